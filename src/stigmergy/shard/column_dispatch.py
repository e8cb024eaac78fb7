"""Handles inputs for compiled agents: batches of records, and single messages as batches of one. Used by the shard.

The results of a table enter the draft here. Failures take the ordinary path: a fault becomes an `InputFailed` and a
dead letter, supervision may stop the agent, and an unknown layout or roster consumes nothing.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import Protocol, cast

from stigmergy.agents.codec import SOURCE_CHARS_MAX, encode, printable
from stigmergy.agents.columns import (
    INPUT_BYTES_MAX,
    ColumnRun,
    Halt,
    Stretch,
    Table,
    read_layout,
    read_records,
    read_templates,
)
from stigmergy.agents.messages import Effect, Event, Message
from stigmergy.agents.now import step_time_ns
from stigmergy.agents.plans import AgentPlan
from stigmergy.agents.supervision import SHARD_ADDRESS, AgentsEnrolled, ColumnsDeclared
from stigmergy.base.errors import (
    Bug,
    DefinitionError,
    JournalCorrupt,
    Malformed,
    Overloaded,
    PeerError,
    StaleMapping,
)
from stigmergy.shard.commit import NO_CAUSE, column_cause
from stigmergy.shard.draft import DRAFT_BYTES_MAX, OVERHEAD_BYTES, Draft, ShardCounters, owe, pack_effect, size_of
from stigmergy.shard.homes import Homes
from stigmergy.shard.inputs import ColumnDelivery
from stigmergy.shard.state import ShardState

DECLARED_BYTES_MAX = 64 * 1024
"""A layout and templates: so that what declares them always finds room in a commit."""
ENROLLED_BYTES_MAX = 32 * 1024
"""Names of one enrolment; more of them are several enrolments."""
NAME_BYTES = 2
"""Counted for each name besides its characters."""


class OrdinaryDispatch(Protocol):
    """The ordinary path, for inputs without columns."""

    @property
    def counters(self) -> ShardCounters:
        """Counts of taken, failed and skipped inputs."""
        ...

    def keep(self, draft: Draft, address: str, event: Event, now_ns: int) -> Exception | None:
        """Keeps an event of the framework."""
        ...

    def fail(
        self,
        draft: Draft,
        address: str,
        body: bytes,
        source: str,
        error: Exception,
        now_ns: int,
        *,
        reached: bool = False,
    ) -> None:
        """Keeps `InputFailed` and makes the input a dead letter. If it `reached` a handler, supervision decides."""
        ...


class ColumnDispatcher:
    """Turns records into what a draft keeps."""

    def __init__(self, state: ShardState, homes: Homes, dispatcher: OrdinaryDispatch) -> None:
        self._state = state
        self._homes = homes
        self._dispatcher = dispatcher
        self._undeclared = {kind: _declaration(kind, table) for kind, table in state.tables.items()}
        """What the log may not say yet: looked at once for each run of this node."""
        for table in state.tables.values():
            table.check_effects(self._check)
        self._watched = {kind: _watched_forms(table, state.plans[kind]) for kind, table in state.tables.items()}

    def check(self, delivery: ColumnDelivery) -> int:
        """Raises unless the delivery is meant for this very table; returns how many agents its sender knows."""
        table = self._state.tables.get(delivery.kind)
        if table is None:
            known = ", ".join(sorted(self._state.tables)) or "none"
            raise StaleMapping(f"{delivery.kind!r} is no compiled kind of this fleet; there are {known}")
        if delivery.layout != table.layout_digest:
            raise StaleMapping(
                f"records of {delivery.kind} in layout {delivery.layout.hex()}, and here it is "
                f"{table.layout_digest.hex()}: request the roster again and make the records with it"
            )
        known_then = table.check_of(delivery.generation)
        if known_then is None or known_then[1] != delivery.check:
            raise StaleMapping(
                f"records of {delivery.kind} for generation {delivery.generation} of another roster: "
                "request the roster again; taken, they would change other agents"
            )
        if len(delivery.records) != delivery.count * table.layout.record_bytes:
            raise Malformed(
                f"{len(delivery.records)} bytes for {delivery.count} records of {table.layout.record_bytes}; "
                "send whole ones"
            )
        return known_then[0]

    def take(self, draft: Draft, delivery: ColumnDelivery, known: int, now_ns: int) -> int:
        """Takes records in order; returns how many, fewer than there are only when the draft is full."""
        kind = delivery.kind
        table = self._state.tables[kind]
        source = printable(delivery.source, SOURCE_CHARS_MAX)
        start = delivery.start
        while start < delivery.count:
            room_bytes = self._state.limits.columns_bytes_max - draft.size_bytes - self._undeclared_bytes(kind)
            if room_bytes < INPUT_BYTES_MAX or draft.full_of_words:
                break
            stretch = table.step(delivery.records, start, known, room_bytes, now_ns)
            if stretch.halt is Halt.FULL and not stretch.taken:
                raise Bug(f"the table of {kind} finds no room for a record in {room_bytes} bytes")
            self._enter(draft, kind, table, source, stretch, now_ns)
            if self._watched[kind]:
                width = table.layout.record_bytes
                came = delivery.records[start * width : (start + stretch.taken) * width]
                if came != stretch.records:
                    self._freshen(draft, kind, table, came)
            start += stretch.taken
            if stretch.halt in (Halt.END, Halt.FULL):
                break
            self._give_up(draft, delivery, table, start, stretch, now_ns)
            start += 1
        taken = start - delivery.start
        self._dispatcher.counters.inputs += taken
        return taken

    def record_of(self, address: str, message: Message) -> bytes:
        """A message as the record of its agent, which may be one that is not there yet. Raises PeerError."""
        kind, _, name = address.partition("/")
        table = self._state.tables[kind]
        agent = table.find(name)
        return table.record_of(len(table) if agent < 0 else agent, message)

    def run(self, draft: Draft, address: str, record: bytes, now_ns: int) -> PeerError | None:
        """Takes the record of one message. Returns what is wrong with it if no handler was reached. Raises as a handler
        would. In both cases nothing is changed."""
        kind, _, name = address.partition("/")
        table = self._state.tables[kind]
        newcomer = name if table.find(name) < 0 else ""
        stretch = table.step(record, 0, len(table), INPUT_BYTES_MAX, now_ns, newcomer=newcomer)
        if stretch.halt in (Halt.FAULT, Halt.REFUSED):
            raise stretch.error or Bug(f"the table of {kind} does not say what has failed")
        if stretch.halt is not Halt.END:
            return stretch.error if isinstance(stretch.error, PeerError) else self._reason(stretch.halt, address)
        if newcomer and (stretch.count or stretch.actions_count):
            self.ensure(draft, address, now_ns)
        self._enter(draft, kind, table, draft.source, stretch, now_ns, address)
        return None

    def ensure(self, draft: Draft, address: str, now_ns: int) -> None:
        """Enrols an agent unless it is."""
        kind, _, name = address.partition("/")
        if self._state.tables[kind].find(name) < 0:
            self._enroll(draft, kind, (name,), now_ns)

    def enroll(self, draft: Draft, kind: str, names: Sequence[str], now_ns: int) -> None:
        """Enrols those of these agents that are not. Raises PeerError or Overloaded, with none of them enrolled."""
        table = self._state.tables.get(kind)
        if table is None:
            raise StaleMapping(f"{kind!r} is no compiled kind of this fleet")
        new = [name for name in dict.fromkeys(names) if table.find(name) < 0]
        for name in new:
            self._state.plan_at(f"{kind}/{name}")
            self._state.assignment.check(f"{kind}/{name}")
        if sum(len(name) + NAME_BYTES for name in new) > ENROLLED_BYTES_MAX:
            raise Malformed(f"{len(new)} names in one enrolment; give {ENROLLED_BYTES_MAX} bytes of them at most")
        self.check_room(kind, len(new))
        self._declare(draft, kind, now_ns)
        if new:
            self._enroll(draft, kind, tuple(new), now_ns)

    def list_names(self, draft: Draft, now_ns: int) -> bool:
        """Lists the agents that have numbers and that the log does not name yet; whether those were all of them."""
        draft.begin_run(now_ns, SHARD_ADDRESS)
        for kind in list(self._state.directory.unlisted):
            while (names := self._state.directory.unlisted.get(kind)) is not None:
                if draft.size_bytes > DRAFT_BYTES_MAX:
                    return False
                first = len(self._state.tables[kind]) - len(names)
                event = AgentsEnrolled(kind=kind, first=first, names=_fitting(names))
                self._dispatcher.keep(draft, SHARD_ADDRESS, event, now_ns)
        return True

    def check_room(self, what: str, count: int = 1) -> None:
        """Raises Overloaded unless so many more agents may be here."""
        limit = self._state.limits.agents_count_max
        if self._state.agents_count + count > limit:
            raise Overloaded(f"{what}: this shard has {limit} agents already; raise agents_count_max or add shards")

    def _enroll(self, draft: Draft, kind: str, names: tuple[str, ...], now_ns: int) -> None:
        event = AgentsEnrolled(kind=kind, first=len(self._state.tables[kind]), names=names)
        self._dispatcher.keep(draft, SHARD_ADDRESS, event, now_ns)
        if self._state.plans[kind].stale_rules:
            draft.fresh.extend((f"{kind}/{name}", None) for name in names)

    def _undeclared_bytes(self, kind: str) -> int:
        event = self._undeclared.get(kind)
        return 0 if event is None else len(event.layout) + len(event.templates) + len(kind) + 2 * OVERHEAD_BYTES

    def _declare(self, draft: Draft, kind: str, now_ns: int) -> None:
        """Once for each run of this node, and only if the log does not say it already: how records are to be read."""
        event = self._undeclared.pop(kind, None)
        if event is None:
            return
        table, directory = self._state.tables[kind], self._state.directory
        if table.layout_digest not in directory.layouts or table.templates_digest not in directory.templates:
            self._dispatcher.keep(draft, SHARD_ADDRESS, event, now_ns)

    def _enter(
        self, draft: Draft, kind: str, table: Table, source: str, stretch: Stretch, now_ns: int, address: str = ""
    ) -> None:
        """Lets what a stretch has made become part of the draft. With `address` all of it is of this agent."""
        state = self._state
        base = draft.columns_count
        if stretch.count or stretch.actions_count:
            self._declare(draft, kind, now_ns)
            if self._watched[kind]:
                self._freshen(draft, kind, table, stretch.records)
            first = state.blocks.next_sequence(kind) if stretch.actions_count else 0
            run = ColumnRun(
                kind=kind,
                layout=table.layout_digest,
                time_ns=now_ns,
                source=source,
                count=stretch.count,
                # It is bytes once it is read back; until then it may still lie in what was sent.
                records=cast("bytes", stretch.records),
                templates=table.templates_digest if stretch.actions_count else b"",
                first=first,
                actions_count=stretch.actions_count,
                actions=stretch.actions,
            )
            draft.add_run(run)
            draft.hurry(table.wait_ns)
            if stretch.actions_count:
                index = sum(block.count for block in draft.blocks)
                draft.blocks.append(state.blocks.owe(state.incarnation, draft.position, index, run))
                draft.hurry(0)
        for place, agent, effect in stretch.others:
            asking = address or f"{kind}/{table.name(agent)}"
            packed = pack_effect(state, self._homes, effect, (None, b""), now_ns)
            owe(state, draft, asking, packed, NO_CAUSE if place < 0 else column_cause(base + place), now_ns)
            draft.size_bytes += size_of(packed) + len(asking) + OVERHEAD_BYTES

    def _check(self, effect: Effect) -> None:
        """Raises for an effect that cannot be sent, as it would in the hands of an interpreted agent."""
        pack_effect(self._state, self._homes, effect, (None, b""), step_time_ns.get())

    def _freshen(self, draft: Draft, kind: str, table: Table, records: bytes | memoryview) -> None:
        """Says of which agents something has come that a staleness rule waits for."""
        watched = self._watched[kind]
        heads = struct.iter_unpack(f"<IH{table.layout.record_bytes - 6}x", records)
        for agent, form in dict.fromkeys(heads):
            if form in watched:
                draft.fresh.append((f"{kind}/{table.name(agent)}", watched[form]))

    def _give_up(
        self, draft: Draft, delivery: ColumnDelivery, table: Table, number: int, stretch: Stretch, now_ns: int
    ) -> None:
        """A record that cannot be taken becomes a dead letter, as any other input would."""
        width = table.layout.record_bytes
        record = bytes(delivery.records[number * width : (number + 1) * width])
        agent = int.from_bytes(record[:4], "little")
        there = agent < len(table)
        address = f"{delivery.kind}/{table.name(agent)}" if there else f"{delivery.kind}/#{agent}"
        try:
            (read,) = read_records(record, table.layout)
            body = read.body
        except JournalCorrupt:
            body = record
        error = stretch.error or self._reason(stretch.halt, address)
        reached = stretch.halt is Halt.FAULT
        self._dispatcher.fail(draft, address, body, delivery.source, error, now_ns, reached=reached)

    def _reason(self, halt: Halt, address: str) -> PeerError:
        match halt:
            case Halt.UNKNOWN_AGENT:
                return PeerError(f"{address}: the roster of the batch has no such agent; enrol it and send this again")
            case Halt.STOPPED:
                reason = self._state.stopped.get(address, "")
                return PeerError(f"{address} is stopped: {reason}; resume it, then send or retry this")
            case _:
                return Malformed("a record of no form that events have; commands are sent one by one")


def _declaration(kind: str, table: Table) -> ColumnsDeclared:
    """How records are to be read. Raises DefinitionError for what the log could not hold, or nobody could read."""
    event = ColumnsDeclared(kind=kind, layout=encode(table.layout), templates=encode(table.templates))
    size_bytes = len(event.layout) + len(event.templates)
    if size_bytes > DECLARED_BYTES_MAX:
        raise DefinitionError(
            f"{kind}: it takes {size_bytes} bytes to describe its messages, {DECLARED_BYTES_MAX} at most; "
            "compile fewer messages in one class, or smaller enums"
        )
    try:
        read_layout(event.layout)
        read_templates(event.templates)
    except JournalCorrupt as error:
        raise DefinitionError(f"{kind}: nobody could read what it keeps: {error}") from None
    return event


def _watched_forms(table: Table, plan: AgentPlan) -> dict[int, type[Message]]:
    """The forms that a staleness rule of this kind waits for, by number."""
    watched = {one.tag: message for message, one in plan.plans.items() if one.watched}
    forms = enumerate(table.layout.forms)
    return {number: watched[form.tag] for number, form in forms if form.tag in watched}


def _fitting(names: Sequence[str]) -> tuple[str, ...]:
    """As many of these names as one enrolment has room for."""
    size_bytes = 0
    for count, name in enumerate(names):
        size_bytes += len(name) + NAME_BYTES
        if size_bytes > ENROLLED_BYTES_MAX:
            return tuple(names[:count])
    return tuple(names)


__all__ = ["ColumnDispatcher", "column_cause"]
