"""What one `decide` yields, collected against the unchanged state, before any of it changes the state. Pure."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from stigmergy.agents.messages import Event, Message
from stigmergy.agents.plans import AgentPlan, Plan
from stigmergy.agents.shared import SharedWrites
from stigmergy.base.errors import TooLarge
from stigmergy.crdt.delta import Edit


def decided_events(
    agent_plan: AgentPlan,
    plan: Plan,
    agent: Any,
    message: Message,
    body: bytes,
    replica_of: Callable[[str], bytes],
    now_ns: int,
    events_max: int,
) -> list[tuple[Any, bytes]]:
    """The events of one decision with their bytes. Writes to shared fields get their dots, in the order of the yields;
    `replica_of` says under which id an agent writes.

    A fact that is decided about is kept already, and so not yielded again.
    """
    decided: list[tuple[Any, bytes]] = []
    writing: SharedWrites | None = None
    events = plan.decide(agent, message) if plan.decide is not None else None
    for event in events or ():
        if isinstance(event, Edit):
            writing = writing or SharedWrites(agent, agent_plan.shared, replica_of(agent.address), now_ns)
            decided.append(agent_plan.written(writing.event(event)))
        elif not isinstance(event, Event):
            raise TypeError(f"a @decide handler yields events; {type(event).__name__} is none")
        elif agent_plan.plan_for(type(event)).fact:
            raise TypeError(f"{type(event).__name__} is said by the framework alone; yield an event of your own")
        else:
            # An observed event that is passed on keeps the bytes it came with, unknown fields included.
            decided.append((event, body) if event is message else agent_plan.written(event))
        if len(decided) > events_max:
            raise TooLarge(f"more than {events_max} events from one decision; decide in smaller steps")
    return decided
