"""stigmergy: a runtime for fleets of autonomous agents that decide locally, on their own durable log."""

from msgspec import field

from stigmergy.core.agent import Agent, decide, evolve, react, reject
from stigmergy.core.effects import (
    ActionDone,
    ActionFailed,
    CancelWake,
    Effects,
    Events,
    Order,
    Publish,
    Tell,
    WakeMe,
    WakeMeAt,
    WindowClosed,
    Woken,
    WorkFailed,
)
from stigmergy.core.errors import StigmergyError
from stigmergy.core.inputs import Accepted, Refused
from stigmergy.core.messages import (
    Action,
    Blob,
    Command,
    Effect,
    Event,
    Work,
    durable,
    latest,
    transient,
    upcast,
    within,
)
from stigmergy.core.supervision import (
    AgentResumed,
    AgentStopped,
    InputFailed,
    SafeAction,
    SafeActionTaken,
    Supervise,
    WhenStale,
)
from stigmergy.core.windows import Window

__all__ = [
    "Accepted",
    "Action",
    "ActionDone",
    "ActionFailed",
    "Agent",
    "AgentResumed",
    "AgentStopped",
    "Blob",
    "CancelWake",
    "Command",
    "Effect",
    "Effects",
    "Event",
    "Events",
    "InputFailed",
    "Order",
    "Publish",
    "Refused",
    "SafeAction",
    "SafeActionTaken",
    "StigmergyError",
    "Supervise",
    "Tell",
    "WakeMe",
    "WakeMeAt",
    "WhenStale",
    "Window",
    "WindowClosed",
    "Woken",
    "Work",
    "WorkFailed",
    "decide",
    "durable",
    "evolve",
    "field",
    "latest",
    "react",
    "reject",
    "transient",
    "upcast",
    "within",
]
