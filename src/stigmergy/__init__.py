"""stigmergy: a runtime for fleets of autonomous agents that decide locally, on their own durable log."""

from msgspec import field

from stigmergy.agents.agent import Agent, decide, evolve, react, reject
from stigmergy.agents.codec import pack_envelope
from stigmergy.agents.confirmations import Done, Failed
from stigmergy.agents.effects import (
    ActionDone,
    ActionFailed,
    CancelWake,
    Effects,
    Events,
    Order,
    OrderClaim,
    Publish,
    Tell,
    TellFailed,
    Timer,
    WakeMe,
    WakeMeAt,
    WindowClosed,
    Woken,
    WorkFailed,
)
from stigmergy.agents.ledgers import Entered, Entry, Ledger, Proposed
from stigmergy.agents.messages import (
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
from stigmergy.agents.ordered import Claim, Denied, Granted, Lost, Ordered, Pool, Released, ordered, pool
from stigmergy.agents.shared import Merged, Shared, SharedChanged, shared
from stigmergy.agents.steps import Steps
from stigmergy.agents.supervision import (
    AgentResumed,
    AgentStopped,
    InputFailed,
    SafeAction,
    SafeActionTaken,
    Supervise,
    WhenStale,
)
from stigmergy.agents.view import Key, Origin, View, project
from stigmergy.agents.view_time import tumbling
from stigmergy.agents.windows import Window
from stigmergy.app.client import connect
from stigmergy.app.fleet import Fleet, make_process_ours
from stigmergy.app.moved import install as install_moved
from stigmergy.base.errors import (
    BlobMissing,
    ClaimLapsed,
    DeviceRefused,
    LogCut,
    NoAnswer,
    NotAssigned,
    NotRunning,
    Overloaded,
    StaleOrder,
    StigmergyError,
    StoreFull,
    Unreachable,
    ViewBehind,
    ViewFailed,
)
from stigmergy.bus.layout import PayloadLayout
from stigmergy.bus.presence import Member, MemberJoined, MemberLeft, MembersReset
from stigmergy.clients.client import Client
from stigmergy.control.live import Live
from stigmergy.crdt.flags import DisableWinsFlag, EnableWinsFlag
from stigmergy.crdt.gcounter import GCounter
from stigmergy.crdt.lww_register import LWWRegister
from stigmergy.crdt.mv_register import MVRegister
from stigmergy.crdt.ormap import ORMap
from stigmergy.crdt.orset import ORSet
from stigmergy.crdt.pncounter import PNCounter
from stigmergy.devices.fence import Fence
from stigmergy.devices.fence_file import FenceFile
from stigmergy.devices.loops import SetPoints, Tick
from stigmergy.devices.pid import Pid
from stigmergy.devices.port import Feed
from stigmergy.models.model import Inferred, Inputs, Model, ModelSource, inferred
from stigmergy.models.rollout import RolloutRule
from stigmergy.models.rollout_agent import (
    BeginRollout,
    ModelRollout,
    PauseRollout,
    Promoted,
    PromoteModel,
    ResumeRollout,
    RollBackModel,
    RolledBack,
    RolloutBegan,
    StageBegan,
    VersionsCompared,
)
from stigmergy.models.service import ModelSettings
from stigmergy.node.mailbox import BLOCK, DROP_OLDEST, sample
from stigmergy.node.settings import (
    BusSettings,
    Retention,
    Settings,
    SharedSettings,
    Snapshots,
    TraceSettings,
    UplinkSettings,
)
from stigmergy.node.watching import Heard, Watching
from stigmergy.policy.service import PolicySettings
from stigmergy.shard.inputs import Accepted, Refused, Verdict
from stigmergy.store.blobs import Blobs, BlobSettings
from stigmergy.uplink.rules import Aggregate, FieldSummary, Summary, UplinkRule
from stigmergy.views.query import ViewQuery
from stigmergy.workflows.definition import Branch, Parallel, Workflow
from stigmergy.workflows.messages import ApproveStep, CancelRun, DenyStep, RetryUndo
from stigmergy.workflows.run import WorkflowRun
from stigmergy.workflows.step import Approval, Holding, Step

install_moved()

__all__ = [
    "BLOCK",
    "DROP_OLDEST",
    "Accepted",
    "Action",
    "ActionDone",
    "ActionFailed",
    "Agent",
    "AgentResumed",
    "AgentStopped",
    "Aggregate",
    "Approval",
    "ApproveStep",
    "BeginRollout",
    "Blob",
    "BlobMissing",
    "BlobSettings",
    "Blobs",
    "Branch",
    "BusSettings",
    "CancelRun",
    "CancelWake",
    "Claim",
    "ClaimLapsed",
    "Client",
    "Command",
    "Denied",
    "DenyStep",
    "DeviceRefused",
    "DisableWinsFlag",
    "Done",
    "Effect",
    "Effects",
    "EnableWinsFlag",
    "Entered",
    "Entry",
    "Event",
    "Events",
    "Failed",
    "Feed",
    "Fence",
    "FenceFile",
    "FieldSummary",
    "Fleet",
    "GCounter",
    "Granted",
    "Heard",
    "Holding",
    "Inferred",
    "InputFailed",
    "Inputs",
    "Key",
    "LWWRegister",
    "Ledger",
    "Live",
    "LogCut",
    "Lost",
    "MVRegister",
    "Member",
    "MemberJoined",
    "MemberLeft",
    "MembersReset",
    "Merged",
    "Model",
    "ModelRollout",
    "ModelSettings",
    "ModelSource",
    "NoAnswer",
    "NotAssigned",
    "NotRunning",
    "ORMap",
    "ORSet",
    "Order",
    "OrderClaim",
    "Ordered",
    "Origin",
    "Overloaded",
    "PNCounter",
    "Parallel",
    "PauseRollout",
    "PayloadLayout",
    "Pid",
    "PolicySettings",
    "Pool",
    "PromoteModel",
    "Promoted",
    "Proposed",
    "Publish",
    "Refused",
    "Released",
    "ResumeRollout",
    "Retention",
    "RetryUndo",
    "RollBackModel",
    "RolledBack",
    "RolloutBegan",
    "RolloutRule",
    "SafeAction",
    "SafeActionTaken",
    "SetPoints",
    "Settings",
    "Shared",
    "SharedChanged",
    "SharedSettings",
    "Snapshots",
    "StageBegan",
    "StaleOrder",
    "Step",
    "Steps",
    "StigmergyError",
    "StoreFull",
    "Summary",
    "Supervise",
    "Tell",
    "TellFailed",
    "Tick",
    "Timer",
    "TraceSettings",
    "Unreachable",
    "UplinkRule",
    "UplinkSettings",
    "Verdict",
    "VersionsCompared",
    "View",
    "ViewBehind",
    "ViewFailed",
    "ViewQuery",
    "WakeMe",
    "WakeMeAt",
    "Watching",
    "WhenStale",
    "Window",
    "WindowClosed",
    "Woken",
    "Work",
    "WorkFailed",
    "Workflow",
    "WorkflowRun",
    "connect",
    "decide",
    "durable",
    "evolve",
    "field",
    "inferred",
    "latest",
    "make_process_ours",
    "ordered",
    "pack_envelope",
    "pool",
    "project",
    "react",
    "reject",
    "sample",
    "shared",
    "transient",
    "tumbling",
    "upcast",
    "within",
]
