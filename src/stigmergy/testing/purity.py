"""Watches an agent's handlers while a shard runs them: what do they change, and do they give the same twice.

It wraps the handlers of a plan, so that they are watched at their real moment, with their real state and time. What it
finds is collected, not raised: the shard would take it for a fault of the handler.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import islice
from typing import Any

import msgspec
from msgspec.structs import replace

from stigmergy.core.codec import canonical_bytes, encode
from stigmergy.core.effects import CancelWake, Publish, Tell, WakeMe, WakeMeAt
from stigmergy.core.messages import Message
from stigmergy.core.now import step_time_ns
from stigmergy.core.plans import AgentPlan, Plan
from stigmergy.core.timers import timer_body

YIELDED_COUNT_MAX = 10_000
"""A handler that yields more is cut off here; the shard refuses it long before."""

Handler = Callable[[Any, Any], Any]


def identity_of(message: Message, now_ns: int) -> bytes:
    """Equal for equal messages, whatever kind of number they were made with. Timers are equal by their due time."""
    match message:
        case Tell(to=to, message=told):
            return b"tell " + encode(to) + identity_of(told, now_ns)
        case Publish(topic=topic, event=event):
            return b"publish " + encode(topic) + identity_of(event, now_ns)
        case WakeMe() | WakeMeAt() | CancelWake():
            return b"timer " + bytes(timer_body(message, now_ns))
        case _:
            again = msgspec.msgpack.decode(encode(message), type=type(message))
            return canonical_bytes(again)


def lost_in_encoding(message: Message, now_ns: int) -> str | None:
    """What is wrong with the bytes of this message, or None."""
    try:
        identity_of(message, now_ns)
    except Exception as error:
        return f"{message!r} does not survive its encoding: {error}"
    return None


class Watch:
    """What the handlers of one agent class did."""

    def __init__(self) -> None:
        self.findings: list[str] = []
        self.errors: list[Exception] = []
        self.paused = False
        self._yielded: dict[bytes, Message] = {}

    def over(self, agent_plan: AgentPlan) -> AgentPlan:
        """The plan with each handler watched."""
        name = agent_plan.cls.__name__
        for message, plan in list(agent_plan.plans.items()):
            watched = self._watched(f"{name}, {message.__name__}", agent_plan, plan)
            agent_plan.plans[message] = watched
            if message in agent_plan.shorts:
                agent_plan.shorts[message] = (
                    watched.evolve,
                    watched.react,
                    watched.yields,
                    watched.wait_ns,
                    watched.watched,
                )
        return agent_plan

    def yielded(self, body: bytes) -> Message | None:
        """The message that a handler yielded and that has these bytes."""
        return self._yielded.get(bytes(body))

    def _watched(self, where: str, agent_plan: AgentPlan, plan: Plan) -> Plan:
        return replace(
            plan,
            decide=plan.decide and self._twice(f"@decide of {where}", plan.decide),
            react=plan.react and self._twice(f"@react of {where}", plan.react),
            yields=False,
            evolve=plan.evolve and self._evolve(f"@evolve of {where}", agent_plan, plan.evolve),
        )

    def _twice(self, where: str, handler: Handler) -> Handler:
        """Calls a handler that may change nothing, twice."""

        def watched(agent: Any, message: Any) -> Any:
            before = self._bytes(agent)
            results = [self._call(handler, agent, message) for _ in range(2)]
            (first, error), (second, other_error) = results
            if self._bytes(agent) != before:
                self._find(f"{where} changed the state; yield an event and change it in its @evolve handler")
            elif self._shown(first, error) != self._shown(second, other_error):
                self._find(
                    f"{where} gave two results for the same input: take time from self.now, chance from an input\n"
                    f"    first  {first or error!r}\n    second {second or other_error!r}"
                )
            if error is not None:
                raise error
            self._remember(first)
            return first

        return watched

    def _evolve(self, where: str, agent_plan: AgentPlan, evolve: Handler) -> Handler:
        def watched(agent: Any, event: Any) -> None:
            if not self.paused:
                images = [agent_plan.copy(agent), agent_plan.copy(agent)]
                errors = [self._call(evolve, image, event)[1] for image in images]
                if errors == [None, None] and self._bytes(images[0]) != self._bytes(images[1]):
                    self._find(f"{where} gave two states for the same event: it may use only the state and the event")
            evolve(agent, event)

        return watched

    def _call(self, handler: Handler, agent: Any, message: Any) -> tuple[list[Any], Exception | None]:
        try:
            return list(islice(handler(agent, message) or (), YIELDED_COUNT_MAX)), None
        except Exception as error:
            self.errors.append(error)
            return [], error

    def _remember(self, messages: list[Any]) -> None:
        now_ns = step_time_ns.get()
        for message in messages:
            if not isinstance(message, Message):
                continue
            lost = lost_in_encoding(message, now_ns)
            if lost is not None:
                self._find(lost)
                continue
            match message:
                case Tell(to=to, message=told):
                    self._yielded[encode((to, encode(told)))] = message
                case Publish(topic=topic, event=event):
                    self._yielded[encode((topic, encode(event)))] = message
                case WakeMe() | WakeMeAt() | CancelWake():
                    self._yielded[bytes(timer_body(message, now_ns))] = message
                case _:
                    self._yielded[encode(message)] = message

    def _shown(self, messages: list[Any], error: Exception | None) -> tuple[list[str], str]:
        return [repr(message) for message in messages], repr(error)

    def _bytes(self, agent: Any) -> bytes:
        try:
            return canonical_bytes(agent)
        except Exception as error:
            self._find(f"the state {agent!r} cannot be written: {error}")
            return b""

    def _find(self, finding: str) -> None:
        if finding not in self.findings:
            self.findings.append(finding)
