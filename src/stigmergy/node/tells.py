"""Tells between shards: puts what one shard owes another into its mailbox, and settles it once it is durable there.

If the other shard is not ours, its owner takes the tells; they stay owed until they are durable there. Tells to agents
that other nodes run go over the bus; without one they are given up at once.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

import msgspec
from msgspec import Struct

from stigmergy.agents.assignment import Assignment, is_foreign
from stigmergy.agents.codec import tag_of
from stigmergy.agents.effects import REMOTE_SINKS, shard_sink
from stigmergy.agents.messages import SECOND_NS
from stigmergy.diagnostics.logger import Log
from stigmergy.node.mailbox import Mailbox, Queued, Ticket
from stigmergy.shard.draft import REMOTE_ADDRESSES_MAX
from stigmergy.shard.inputs import Delivery, EffectSettled, Input, TellGivenUp
from stigmergy.shard.outbox import OwedTraces, Pending, read_told
from stigmergy.shard.shard import Shards
from stigmergy.shard.tracing import Traces

SHARD_SINKS = "shard/"
REPORT_EVERY_NS = 60 * SECOND_NS
"""Tells that cannot be delivered are logged at most so often, with their number."""
NO_BUS = (
    'tells reach other nodes over a bus only, and this node has none: name one, such as bus = "mqtt://gateway:1883"'
)
RUNS_NOW = "runs on this node since then: retry this"
TOO_MANY = (
    f"{REMOTE_ADDRESSES_MAX:,} agents of other nodes were told something before, and there is no room for one more"
)
log = Log("tells")
_told = msgspec.msgpack.Decoder(tuple[str, bytes])


def shard_of_sink(sink: str) -> int:
    """The shard that a sink of tells stands for."""
    return int(sink.removeprefix(SHARD_SINKS))


def told_items(pendings: Sequence[Pending]) -> list[tuple[str, bytes]]:
    """The targets of these tells, and their contents."""
    return [_told.decode(pending.body) for pending in pendings]


def traces_of(carried: OwedTraces, pendings: Sequence[Pending], came_ns: int = 0) -> Traces:
    """The traces of these effects of a shard, by their places."""
    if not carried:
        return ()
    found = ((place, carried.of(pending)) for place, pending in enumerate(pendings))
    return tuple((place, one.context(came_ns)) for place, one in found if one is not None)


class TellCounters(Struct):
    """What became of tells."""

    tells_undelivered: int = 0
    """For agents that do not run on this node, and that were given up; they are in the dead letters."""


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
    shard: int,
    epoch: int,
    sink: str,
    pendings: Sequence[Pending],
    put: Callable[[int, Input], None],
    traces: Traces = (),
) -> Queued:
    """The queued input with these tells of a shard; the shard hears through `put` when they have arrived."""
    target = shard_of_sink(sink)
    items = told_items(pendings)
    first = pendings[0].sequence
    delivery = Delivery(shard_sink(shard), items, sequence=first, epoch=epoch, traces=traces, sender=None)
    # What a shard tells itself is settled in the very step that takes it.
    tickets: tuple[Ticket, ...] = () if target == shard else (Settles(put, shard, sink, first, first + len(items) - 1),)
    return Queued(target, delivery, tickets, len(items))


class RemoteShards(Protocol):
    """The owners of the other shards, as a host sees them."""

    def release(self, shard: int, epoch: int, target: int, pendings: Sequence[Pending]) -> None:
        """Takes durable tells of a shard of ours for one that is elsewhere, in order."""
        ...


class RemoteAgents(Protocol):
    """The agents that other nodes run, as a host sees them."""

    def release(self, shard: int, epoch: int, pendings: Sequence[Pending]) -> None:
        """Takes durable tells of a shard of ours for agents that other nodes run, those of a sink in order."""
        ...


class AskModels(Struct, frozen=True):
    """The models of a node, for one host."""

    ask: Callable[[int, Pending], None]
    """Asks what a durable effect asks."""
    heard: Callable[[bytes], None] | None = None
    """Is given the body of each durable tell before it leaves: some say whether an answer was right."""


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
        remote: RemoteAgents | None,
    ) -> None:
        """`elsewhere` takes tells for shards that are not ours; without it they stay owed until a start with it.
        `remote` takes those for agents of other nodes; without it they are given up."""
        self._remote = remote
        self._assignment = assignment
        self._monotonic_ns = monotonic_ns
        self._silent_until_ns: int | None = None
        self._unsaid = 0
        self.counters = TellCounters()
        self.heard: Callable[[bytes], None] | None = None
        """Is given the body of each durable tell before it leaves."""
        self._shards = shards
        self._mailbox = mailbox
        self._put = put
        self._elsewhere = elsewhere

    def release(self, shard: int, owed: Sequence[Pending]) -> list[Pending]:
        """Takes the tells among these durable effects; returns the others."""
        others: list[Pending] = []
        remote: list[Pending] = []
        tells: dict[str, list[Pending]] = {}
        if self.heard is not None:
            for pending in owed:
                if pending.sink.startswith((SHARD_SINKS, REMOTE_SINKS)):
                    self.heard(pending.body)
        for pending in owed:
            if pending.sink.startswith(SHARD_SINKS):
                tells.setdefault(pending.sink, []).append(pending)
            elif pending.sink.startswith(REMOTE_SINKS):
                remote.append(pending)
            else:
                others.append(pending)
        epoch = self._shards[shard].epoch if tells or remote else 0
        if remote:
            self._release_remote(shard, epoch, remote)
        for sink, pendings in tells.items():
            target = shard_of_sink(sink)
            if target in self._shards:
                traces = traces_of(self._shards[shard].state.traces, pendings)
                self._mailbox.put_inside(queued_of(shard, epoch, sink, pendings, self._put, traces))
            elif self._elsewhere is not None:
                self._elsewhere.release(shard, epoch, target, pendings)
        return others

    def said_at_rest(self) -> str:
        """What to say at the start of tells that agents at rest still owe: their events are in the log."""
        states = [shard.state for shard in self._shards]
        owed = ((state, pending) for state in states if state.at_rest for pending in state.outbox.owed())
        sinks = (SHARD_SINKS, REMOTE_SINKS)
        count = sum(pending.sink.startswith(sinks) and pending.agent in state.at_rest for state, pending in owed)
        return f"; tells that they still owe are sent: {count}" if count else ""

    def _release_remote(self, shard: int, epoch: int, pendings: Sequence[Pending]) -> None:
        """Gives up what nobody can carry: without a bus, to one agent too many, to a kind that no node has."""
        carried: list[Pending] = []
        for pending in pendings:
            to = read_told(pending.body).to
            if pending.sink == REMOTE_SINKS:
                self.give_up(shard, pending, f"{to}: {TOO_MANY}")
            elif not (is_foreign(to) or self._assignment.knows_kind(to) or self._assignment.locate(to)):
                self.give_up(shard, pending, self._assignment.refusal(to))
            elif self._remote is None:
                # It may have come to run here since it was told.
                here = not is_foreign(to) and self._assignment.runs(to)
                why = f"{to} {RUNS_NOW}" if here else f"{self._assignment.refusal(to)}; {NO_BUS}"
                self.give_up(shard, pending, why)
            else:
                carried.append(pending)
        if self._remote is not None and carried:
            self._remote.release(shard, epoch, carried)

    def give_up(self, shard: int, pending: Pending, reason: str) -> None:
        """Has a shard keep that a tell to another node is given up."""
        self._put(shard, TellGivenUp(pending.sink, pending.sequence, reason))
        self.note_given_up(shard, pending, reason)

    def note_given_up(self, shard: int, pending: Pending, reason: str) -> None:
        """Counts a tell that is given up, and logs it now and then."""
        self.counters.tells_undelivered += 1
        now_ns = self._monotonic_ns()
        if self._silent_until_ns is not None and now_ns < self._silent_until_ns:
            self._unsaid += 1
            return
        more = f" ({self._unsaid} more since the last report)" if self._unsaid else ""
        told = read_told(pending.body)
        who, what = pending.agent or "this node", tag_of(told.message)
        text = f"{who} told {told.to} {what}, which is in the dead letters now: {reason}{more}"
        traced = self._shards[shard].state.traces.of(pending)
        trace = "" if traced is None else traced.trace_id.hex()
        log.say("tell-failed", text, agent=pending.agent, shard=shard, trace=trace)
        self._silent_until_ns, self._unsaid = now_ns + REPORT_EVERY_NS, 0
