"""Handles inputs for compiled agents: batches of records, and single messages as batches of one. Used by the shard.

What a table makes of records enters the draft here. What cannot be taken goes the core's ordinary way: a fault is an
`InputFailed` and a dead letter, supervision may stop the agent, an unknown layout or roster consumes nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from stigmergy.core.codec import SOURCE_CHARS_MAX, encode, printable
from stigmergy.core.columns import ColumnRun, read_records
from stigmergy.core.draft import COLUMNS_BYTES_MAX, OVERHEAD_BYTES, Draft
from stigmergy.core.errors import JournalCorrupt, Malformed, Overloaded, PeerError, StaleMapping
from stigmergy.core.inputs import ColumnDelivery
from stigmergy.core.messages import Message
from stigmergy.core.outcome import NO_CAUSE, owe, pack_effect
from stigmergy.core.state import ShardState
from stigmergy.core.supervision import SHARD_ADDRESS, AgentsEnrolled, ColumnsDeclared
from stigmergy.core.tables import Halt, Stretch, Table

if TYPE_CHECKING:
    from stigmergy.core.handling import Handling

ENROLLED_BYTES_MAX = 32 * 1024
"""Names of one enrolment; more of them are several enrolments."""
COLUMN_CAUSES = -2
"""The causes of ordinary effects whose events are in columns: this one for the first of the commit, then downwards."""


def column_cause(place: int) -> int:
    """How an effect names the event behind it, of which there are so many before it in the commit's columns."""
    return COLUMN_CAUSES - place


class Columnar:
    """Turns records into what a draft keeps."""

    def __init__(self, state: ShardState, shards: int, handling: Handling) -> None:
        self._state = state
        self._shards = shards
        self._handling = handling
        self._declared: dict[str, None] = {}

    def check(self, delivery: ColumnDelivery) -> int:
        """Raises unless the delivery is meant for this very table; returns how many agents its sender knows."""
        table = self._state.tables.get(delivery.kind)
        if table is None:
            known = ", ".join(sorted(self._state.tables)) or "none"
            raise StaleMapping(f"{delivery.kind!r} is no compiled kind of this fleet; there are {known}")
        if delivery.layout != table.layout_digest:
            raise StaleMapping(
                f"records of {delivery.kind} in layout {delivery.layout.hex()}, and here it is "
                f"{table.layout_digest.hex()}: ask for the roster anew and make the records with it"
            )
        known_then = table.check_of(delivery.generation)
        if known_then is None or known_then[1] != delivery.check:
            raise StaleMapping(
                f"records of {delivery.kind} for generation {delivery.generation} of another roster: "
                "ask for the roster anew; taken, they would change other agents"
            )
        if len(delivery.records) != delivery.count * table.layout.record_bytes:
            raise Malformed(
                f"{len(delivery.records)} bytes for {delivery.count} records of {table.layout.record_bytes}; "
                "send whole ones"
            )
        return known_then[0]

    def take(self, draft: Draft, delivery: ColumnDelivery, known: int, now_ns: int) -> int:
        """Takes records in order; returns how many, fewer than there are only when the draft is full."""
        table = self._state.tables[delivery.kind]
        self._declare(draft, delivery.kind, table, now_ns)
        source = printable(delivery.source, SOURCE_CHARS_MAX)
        start = delivery.start
        while start < delivery.count:
            room_bytes = COLUMNS_BYTES_MAX - draft.size_bytes
            if room_bytes <= 0:
                break
            stretch = table.step(delivery.records, start, known, room_bytes, now_ns)
            self._enter(draft, delivery.kind, table, source, stretch, now_ns)
            start += stretch.taken
            if stretch.halt is Halt.END or (stretch.halt is Halt.FULL and not stretch.taken):
                break
            if stretch.halt is not Halt.FULL:
                self._give_up(draft, delivery, table, start, stretch, now_ns)
                start += 1
        taken = start - delivery.start
        self._handling.counters.inputs += taken
        return taken

    def record_of(self, address: str, message: Message) -> bytes:
        """A message as the record of its agent, which may be one that is not there yet. Raises PeerError."""
        table, agent = self._state.table_at(address)
        if table is None:
            raise Malformed(f"{address} is no compiled agent")
        return table.record_of(len(table) if agent < 0 else agent, message)

    def run(self, draft: Draft, address: str, record: bytes, source: str, now_ns: int) -> None:
        """Takes the record of one message. Raises, as a handler would, with nothing changed."""
        kind, _, name = address.partition("/")
        table = self._state.tables[kind]
        self._declare(draft, kind, table, now_ns)
        newcomer = table.find(name) < 0
        stretch = table.step(record, 0, len(table), COLUMNS_BYTES_MAX, now_ns, newcomer=newcomer)
        if stretch.error is not None:
            raise stretch.error
        if stretch.halt is not Halt.END:
            raise Malformed(f"a record for {address} was not taken ({stretch.halt.name.lower()})")
        if newcomer:
            self.ensure(draft, address, now_ns)
        self._enter(draft, kind, table, printable(source, SOURCE_CHARS_MAX), stretch, now_ns)

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
        if sum(len(name) + 2 for name in new) > ENROLLED_BYTES_MAX:
            raise Malformed(f"{len(new)} names in one enrolment; give {ENROLLED_BYTES_MAX} bytes of them at most")
        self.check_room(kind, len(new))
        self._declare(draft, kind, table, now_ns)
        if new:
            self._enroll(draft, kind, tuple(new), now_ns)

    def check_room(self, what: str, count: int = 1) -> None:
        """Raises Overloaded unless so many more agents may be here."""
        limit = self._state.limits.agents_count_max
        if self._state.agents_count + count > limit:
            raise Overloaded(f"{what}: this shard has {limit} agents already; raise agents_count_max or add shards")

    def _enroll(self, draft: Draft, kind: str, names: tuple[str, ...], now_ns: int) -> None:
        event = AgentsEnrolled(kind=kind, first=len(self._state.tables[kind]), names=names)
        self._handling.keep(draft, SHARD_ADDRESS, event, now_ns)

    def _declare(self, draft: Draft, kind: str, table: Table, now_ns: int) -> None:
        """Once for each run of this node, and only if the log does not say it already: how records are to be read."""
        if kind in self._declared:
            return
        self._declared[kind] = None
        directory = self._state.directory
        if table.layout_digest not in directory.layouts or table.templates_digest not in directory.templates:
            event = ColumnsDeclared(kind=kind, layout=encode(table.layout), templates=encode(table.templates))
            self._handling.keep(draft, SHARD_ADDRESS, event, now_ns)

    def _enter(self, draft: Draft, kind: str, table: Table, source: str, stretch: Stretch, now_ns: int) -> None:
        """Lets what a stretch has made become part of the draft."""
        state = self._state
        base = draft.columns_count
        if stretch.count:
            first = state.blocks.next_sequence(kind) if stretch.actions_count else 0
            run = ColumnRun(
                kind=kind,
                layout=table.layout_digest,
                time_ns=now_ns,
                source=source,
                count=stretch.count,
                records=stretch.records,
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
            address = f"{kind}/{table.name(agent)}"
            packed = pack_effect(state, self._shards, effect, (None, b""), now_ns)
            owe(state, draft, address, packed, NO_CAUSE if place < 0 else column_cause(base + place), now_ns)
            draft.size_bytes += len(packed[1]) + len(address) + OVERHEAD_BYTES

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
        error = stretch.error or _reason(stretch.halt, address, self._state)
        reached = there and stretch.halt is Halt.FAULT
        self._handling.fail(draft, address, body, delivery.source, error, now_ns, reached=reached)


def _reason(halt: Halt, address: str, state: ShardState) -> Exception:
    match halt:
        case Halt.UNKNOWN_AGENT:
            return PeerError(f"{address}: the roster of the batch has no such agent; enrol it, then send this again")
        case Halt.STOPPED:
            return PeerError(f"{address} is stopped: {state.stopped.get(address, '')}; resume it, then send this again")
        case _:
            return Malformed("a record of no form that events have; commands are sent one by one")


__all__ = ["Columnar", "column_cause"]
