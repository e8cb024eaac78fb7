"""Replies to senders on a bus: answers to commands, and refusals."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

from msgspec import Struct

from stigmergy.agents.codec import REASON_CHARS_MAX, printable
from stigmergy.base.errors import StigmergyError, TooLarge
from stigmergy.base.tasks import end_tasks
from stigmergy.bus.cloudevents import EVENT_BYTES_MAX, JSON, STRUCTURED, CloudEvent, read_event, write_structured
from stigmergy.bus.port import Bus, BusMessage
from stigmergy.bus.quotas import Quotas
from stigmergy.bus.topics import Channel, Topics
from stigmergy.shard.inputs import Refused, Verdict

ANSWER = "stigmergy.Answer@1"
TAKEN = "stigmergy.CommandTaken@1"
QUERY = "stigmergy.Query@1"
STATE = "stigmergy.State@1"
REFUSAL = "stigmergy.MessageRefused@1"
REFUSALS_BURST = 20
REFUSALS_IN_FLIGHT_MAX = 20


class ResponderCounters(Struct):
    """Counts of replies."""

    answers: int = 0
    states: int = 0
    refusals_told: int = 0


class Responder:
    """Publishes answers and refusals."""

    def __init__(
        self, bus: Bus, topics: Topics, node: str, monotonic_ns: Callable[[], int], *, refusals_per_s: float
    ) -> None:
        self._bus = bus
        self._topics = topics
        self._node = node
        self._monotonic_ns = monotonic_ns
        self._quota = Quotas(refusals_per_s, REFUSALS_BURST)
        self._refusals = 0
        self._tasks: dict[int, asyncio.Task[None]] = {}
        self.counters = ResponderCounters()

    async def answer(self, address: str, command_id: str, verdict: Verdict) -> None:
        """Publishes a verdict; raises LinkDown if the broker did not get it: then call this again."""
        refused = verdict.reason if isinstance(verdict, Refused) else None
        data = {
            "command": command_id,
            "accepted": refused is None,
            "reason": refused,
            "position": None if isinstance(verdict, Refused) else verdict.position,
            "after": None if isinstance(verdict, Refused) else verdict.after,
        }
        event = CloudEvent(
            id=command_id,
            source=self._topics.source_of(address),
            type=ANSWER,
            subject=address,
            datacontenttype=JSON,
            data=data,
            extensions={"category": "control"},
        )
        topic = self._topics.of_agent(address, Channel.ANSWERS)
        await self._bus.publish(BusMessage(topic, write_structured(event), content_type=STRUCTURED))
        self.counters.answers += 1

    async def taken(self, address: str, command_id: str) -> None:
        """Publishes that a command for an agent elsewhere is in this node's log, and has no answer yet."""
        event = CloudEvent(
            id=command_id,
            source=self._topics.source_of_node(self._node),
            type=TAKEN,
            subject=address,
            datacontenttype=JSON,
            data={"command": command_id, "node": self._node},
            extensions={"category": "control"},
        )
        topic = self._topics.of_agent(address, Channel.ANSWERS)
        await self._bus.publish(BusMessage(topic, write_structured(event), content_type=STRUCTURED))

    async def state(self, address: str, query_id: str, data: dict[str, Any], error: StigmergyError | None) -> None:
        """Publishes an agent's state in reply to a query, or the error."""
        if error is not None:
            data = {"error": printable(error, REASON_CHARS_MAX), "kind": type(error).__name__}
        event = CloudEvent(
            id=query_id,
            source=self._topics.source_of(address),
            type=STATE,
            subject=address,
            datacontenttype=JSON,
            data={"query": query_id, **data},
            extensions={"category": "state"},
        )
        payload = write_structured(event)
        if len(payload) > EVENT_BYTES_MAX:
            too_large = TooLarge(
                f"the state of {address} has {len(payload)} bytes, a message at most {EVENT_BYTES_MAX}; ask its node: "
                "stigmergy state"
            )
            await self.state(address, query_id, {}, too_large)
            return
        topic = self._topics.of_agent(address, Channel.STATES)
        await self._bus.publish(BusMessage(topic, payload, content_type=STRUCTURED))
        self.counters.states += 1

    def refused(self, message: BusMessage, error: StigmergyError) -> None:
        """Publishes a refusal on this node's own topic, within its quota."""
        if (
            not self._bus.is_up
            or len(self._tasks) >= REFUSALS_IN_FLIGHT_MAX
            or not self._quota.admit(self._node, self._monotonic_ns())
        ):
            return
        self._refusals += 1
        number = self._refusals
        event = CloudEvent(
            id=f"{self._monotonic_ns()}.{number}",
            source=self._topics.source_of_node(self._node),
            type=REFUSAL,
            datacontenttype=JSON,
            data={
                "topic": printable(message.topic, REASON_CHARS_MAX),
                "reason": printable(error, REASON_CHARS_MAX),
                "kind": type(error).__name__,
                "message": _id_of(message),
            },
        )
        where = self._topics.of_node(self._node, Channel.REFUSALS)
        said = BusMessage(where, write_structured(event), content_type=STRUCTURED)
        self._tasks[number] = asyncio.ensure_future(self._say(said))
        self._tasks[number].add_done_callback(lambda _: self._tasks.pop(number, None))

    async def stop(self) -> None:
        """Publishes nothing more."""
        await end_tasks(*self._tasks.values())

    async def _say(self, message: BusMessage) -> None:
        try:
            await self._bus.publish(message)
            self.counters.refusals_told += 1
        except StigmergyError:
            pass  # it was counted when it was refused


def _id_of(message: BusMessage) -> str:
    """The sender's id of the message; empty if it has none or it cannot be read."""
    try:
        return printable(read_event(message.payload, message.content_type, message.properties).id, REASON_CHARS_MAX)
    except StigmergyError:
        return ""
