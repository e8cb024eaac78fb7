"""Tells between shards: puts what one shard owes another into its mailbox, and settles it once it is durable there.

If the other shard is not ours, its owner takes the tells; they stay owed until they are durable there.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from typing import Protocol

import msgspec
from msgspec import Struct

from stigmergy.agents.assignment import Assignment
from stigmergy.agents.codec import tag_of
from stigmergy.agents.effects import shard_sink
from stigmergy.agents.messages import SECOND_NS
from stigmergy.node.mailbox import Mailbox, Queued, Ticket
from stigmergy.shard.inputs import Delivery, EffectSettled, Input
from stigmergy.shard.outbox import Pending
from stigmergy.shard.shard import Shards

SHARD_SINKS = "shard/"
REPORT_EVERY_NS = 60 * SECOND_NS
"""Tells that cannot be delivered are logged at most so often, with their number."""
log = logging.getLogger("stigmergy.tells")
_told = msgspec.msgpack.Decoder(tuple[str, bytes])


def shard_of_sink(sink: str) -> int:
    """The shard that a sink of tells stands for."""
    return int(sink.removeprefix(SHARD_SINKS))


def told_items(pendings: Sequence[Pending]) -> list[tuple[str, bytes]]:
    """The targets of these tells, and their contents."""
    return [_told.decode(pending.body) for pending in pendings]


class TellCounters(Struct):
    """What became of tells."""

    tells_undelivered: int = 0
    """For agents that do not run on this node; they are in the dead letters."""


class Settles:
    """The ticket of a tell to another shard: once it is durable there, it is settled here."""

    __slots__ = ("_first", "_last", "_put", "_shard", "_sink")

    def __init__(self, put: Callable[[int, Input], None], shard: int, sink: str, first: int, last: int) -> None:
        self._put = put
        self._shard = shard
        self._sink = sink
        self._first = first
        self._last = last

    def resolve(self) -> None:
        for sequence in range(self._first, self._last + 1):
            self._put(self._shard, EffectSettled(self._sink, sequence))

    def fail(self, error: Exception) -> None:
        del error  # it stays owed, and is released again after the next start


def queued_of(
    shard: int, epoch: int, sink: str, pendings: Sequence[Pending], put: Callable[[int, Input], None]
) -> Queued:
    """The queued input with these tells of a shard; the shard hears through `put` when they have arrived."""
    target = shard_of_sink(sink)
    items = told_items(pendings)
    first = pendings[0].sequence
    delivery = Delivery(shard_sink(shard), items, sequence=first, epoch=epoch)
    # What a shard tells itself is settled in the very step that takes it.
    tickets: tuple[Ticket, ...] = () if target == shard else (Settles(put, shard, sink, first, first + len(items) - 1),)
    return Queued(target, delivery, tickets, len(items))


class RemoteShards(Protocol):
    """The owners of the other shards, as a host sees them."""

    def release(self, shard: int, epoch: int, target: int, pendings: Sequence[Pending]) -> None:
        """Takes durable tells of a shard of ours for one that is elsewhere, in order."""
        ...


class Tells:
    """Releases what the shards of a host tell others."""

    def __init__(
        self,
        shards: Shards,
        mailbox: Mailbox,
        put: Callable[[int, Input], None],
        assignment: Assignment,
        monotonic_ns: Callable[[], int],
        elsewhere: RemoteShards | None,
    ) -> None:
        """`elsewhere` takes tells for shards that are not ours; without it they stay owed until a start with it."""
        self._assignment = assignment
        self._monotonic_ns = monotonic_ns
        self._silent_until_ns: int | None = None
        self._unsaid = 0
        self.counters = TellCounters()
        self._shards = shards
        self._mailbox = mailbox
        self._put = put
        self._elsewhere = elsewhere

    def release(self, shard: int, owed: Sequence[Pending]) -> list[Pending]:
        """Takes the tells among these durable effects; returns the others."""
        others: list[Pending] = []
        tells: dict[str, list[Pending]] = {}
        for pending in owed:
            if pending.sink.startswith(SHARD_SINKS):
                tells.setdefault(pending.sink, []).append(pending)
            else:
                others.append(pending)
        epoch = self._shards[shard].epoch if tells else 0
        for sink, pendings in tells.items():
            if not self._assignment.is_everything:
                self._report(pendings)
            target = shard_of_sink(sink)
            if target in self._shards:
                self._mailbox.put_inside(queued_of(shard, epoch, sink, pendings, self._put))
            elif self._elsewhere is not None:
                self._elsewhere.release(shard, epoch, target, pendings)
        return others

    def _report(self, pendings: Sequence[Pending]) -> None:
        """Counts and logs dead letters for agents that do not run here."""
        for pending, (to, body) in zip(pendings, told_items(pendings), strict=True):
            if self._assignment.runs(to):
                continue
            self.counters.tells_undelivered += 1
            now_ns = self._monotonic_ns()
            if self._silent_until_ns is not None and now_ns < self._silent_until_ns:
                self._unsaid += 1
                continue
            more = f" ({self._unsaid} more since the last report)" if self._unsaid else ""
            why, what = self._assignment.refusal(to), tag_of(body)
            log.warning("%s told %s %s, which is in the dead letters now: %s%s", pending.agent, to, what, why, more)
            self._silent_until_ns, self._unsaid = now_ns + REPORT_EVERY_NS, 0
