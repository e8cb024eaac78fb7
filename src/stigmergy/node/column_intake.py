"""Takes column batches: opens them, keeps the order of each source, puts them into the mailbox. Makes rosters.

A batch is for one shard, so a source has a sequence of its own for each shard. Each shard applies the rules of
envelopes: early batches wait within bounds, lost ones are declared.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from msgspec import structs

from stigmergy.agents.columns import NO_CHECK, Table
from stigmergy.base.errors import Malformed, UnknownKind
from stigmergy.node.column_roster import Place, Roster, ShardRoster
from stigmergy.node.declaration import Declaration
from stigmergy.node.ingress import Ingress
from stigmergy.node.intake import DECLARED, MISSING, AwaitedTicket, Intake
from stigmergy.node.mailbox import Mailbox, Queued, Ticket
from stigmergy.shard.batches import ColumnBatch, open_batch
from stigmergy.shard.draft import Ready
from stigmergy.shard.gaps import Accept, GapCounters
from stigmergy.shard.inputs import ColumnDelivery, EnrollAgents, SequencesSkipped
from stigmergy.shard.judging import OUTSIDE, Sender
from stigmergy.shard.shard import Shards
from stigmergy.shard.state import ShardState

ITEM_BYTES = 4096
"""So many bytes of records count as one input, so that a commit's worth of either is about the same."""
ENROLLED_BYTES = 16 * 1024
"""Names that are enrolled in one go; more of them are enrolled one part after the other, while others go on."""

GIVE_WAY_NAMES = 500
GIVE_WAY_S = 0.001
"""So many names are looked at in one go, and so long others get their turn then: a fleet grows without a pause. Not for
an instant only, because the disk's thread needs the interpreter as well."""


class ColumnIntake:
    """Takes column batches into the mailbox, and enrols agents."""

    def __init__(
        self,
        declaration: Declaration,
        shards: Shards,
        mailbox: Mailbox,
        intake: Intake,
        monotonic_ns: Callable[[], int],
        *,
        gap_wait_ns: int,
        gap_deliveries_max: int,
    ) -> None:
        self._declaration = declaration
        self._shards = shards
        self._mailbox = mailbox
        self._intake = intake
        self._monotonic_ns = monotonic_ns
        self._gap_wait_ns = gap_wait_ns
        self._gap_deliveries_max = gap_deliveries_max
        self._ingresses: dict[int, Ingress[ColumnBatch]] = {}
        self.counters = GapCounters()

    def deliver(self, data: bytes | memoryview) -> asyncio.Future[None]:
        """Takes a batch. The future is done when all of it is durable, and fails when it was not taken."""
        self._intake.check_open()
        if isinstance(data, memoryview) and not data.readonly:
            # Records stay in place until they are written. A sender that gives up waiting may reuse this memory.
            data = bytes(data)
        # The source is named inside; the ingress of any shard can open it.
        batch = self._ingress(self._shards.first.state.shard).open(data, open_batch)
        self._check(batch)
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        ingress = self._ingress(batch.header.shard)
        self._post(batch.header.shard, ingress.admit(batch, len(data), (AwaitedTicket(future),), self._monotonic_ns()))
        # Also where it came early: the clock must be set to when it will have waited long enough.
        self._intake.wake()
        return future

    def _check(self, batch: ColumnBatch) -> None:
        """Raises Malformed for a batch that no shard could take, which must not be joined to good ones; NotOwned for
        one that another process can."""
        header = batch.header
        if header.shard >= self._shards.total:
            self.counters.malformed += 1
            raise Malformed(f"a column batch for shard {header.shard}; there are {self._shards.total}")
        if header.shard not in self._shards:
            self.counters.refused += 1
        table = self._shards[header.shard].state.tables.get(header.kind)
        if table is None or table.layout_digest != header.layout:
            return
        if len(batch.records) != header.count * table.layout.record_bytes:
            self.counters.malformed += 1
            raise Malformed(
                f"{len(batch.records)} bytes for {header.count} records of {table.layout.record_bytes}; "
                "send whole ones, and as many as the header says"
            )

    async def enroll(self, kind: str, names: Sequence[str], sender: Sender = OUTSIDE) -> Roster:
        """Gives agents their numbers, durably; those that have one keep it. Returns where each of them is."""
        if isinstance(names, str) or not all(isinstance(name, str) for name in names):
            raise Malformed(f"enroll({kind!r}, {names!r:.60}): give a list of names, also for one alone")
        self._check_compiled(kind)
        names = list(names)
        by_shard: dict[int, list[str]] = {}
        for start in range(0, len(names), GIVE_WAY_NAMES):
            if start:
                await asyncio.sleep(GIVE_WAY_S)
            for name in names[start : start + GIVE_WAY_NAMES]:
                by_shard.setdefault(self._intake.home_of(f"{kind}/{name}"), []).append(name)
        for shard, here in by_shard.items():
            for part in _parts(here):
                await self._intake.take(shard, EnrollAgents(kind, part, sender))
        places: list[Place] = []
        for start in range(0, len(names), GIVE_WAY_NAMES):
            if start:
                await asyncio.sleep(GIVE_WAY_S)
            places += [self._place(kind, name) for name in names[start : start + GIVE_WAY_NAMES]]
        return structs.replace(self.roster(kind), places=places, names=names)

    def roster(self, kind: str) -> Roster:
        """What a producer needs to make records for agents of this kind, as it is on disk now. Of shards that another
        process has, it knows only that they are there."""
        self._check_compiled(kind)
        table = self._shards.first.state.tables[kind]
        shards = [ShardRoster(table.layout_digest, 0, NO_CHECK, 0)] * self._shards.total
        for shard in self._shards:
            enrolled = shard.state.enrolled.get(kind, 0)
            generation, check = _durable_generation(shard.state.tables[kind], enrolled)
            shards[shard.state.shard] = ShardRoster(table.layout_digest, generation, check, enrolled)
        return Roster(kind, table.layout, shards, [])

    def overdue(self, monotonic_ns: int) -> None:
        """Early batches that have waited long enough: the gap before them is declared lost."""
        for shard, ingress in self._ingresses.items():
            self._post(shard, ingress.overdue(monotonic_ns))

    @property
    def next_ns(self) -> int | None:
        """When the oldest early batch will have waited long enough."""
        waiting = [at_ns for ingress in self._ingresses.values() if (at_ns := ingress.next_ns) is not None]
        return min(waiting, default=None)

    def forget(self, shard: int, source: str, incarnation: int) -> bool:
        """The shard could not take what was let through: the next one is compared with the marks again. Returns whether
        it came through our ingress."""
        return shard in self._ingresses and self._ingresses[shard].forget((source, incarnation))

    def fail_all(self, error: Exception) -> None:
        """Tells everybody who waits that it is over."""
        for ingress in self._ingresses.values():
            for ticket in ingress.clear():
                ticket.fail(error)

    def _ingress(self, shard: int) -> Ingress[ColumnBatch]:
        ingress = self._ingresses.get(shard)
        if ingress is None:
            ingress = self._ingresses[shard] = Ingress(
                self._shards[shard].state.marks.consumed,
                gap_wait_ns=self._gap_wait_ns,
                gap_deliveries_max=self._gap_deliveries_max,
            )
            ingress.counters = self.counters
        return ingress

    def _post(self, shard: int, accepted: list[Accept[ColumnBatch, Ticket]]) -> None:
        """Puts what the ingress let through into the mailbox. If there is no room, the waiting sender is told."""
        self._ingress(shard).post(accepted, partial(self._put, shard))
        if accepted:
            self._intake.wake()

    def _put(self, shard: int, accepted: Accept[ColumnBatch, Ticket]) -> None:
        header, policy = accepted.envelope.header, self._declaration.policy_of(accepted.envelope.source)
        if accepted.skip_to:
            because = DECLARED if accepted.declared else MISSING
            skipped = SequencesSkipped(header.source, header.incarnation, header.epoch, accepted.skip_to - 1, because)
            self._mailbox.put_note(Queued(shard=shard, input=skipped, items=0, columns=True), policy)
        delivery = ColumnDelivery(
            source=header.source,
            kind=header.kind,
            layout=header.layout,
            generation=header.generation,
            check=header.check,
            records=accepted.envelope.records,
            count=header.count,
            sequence=header.sequence,
            incarnation=header.incarnation,
            epoch=header.epoch,
        )
        size_bytes = len(delivery.records)
        items = max(1, size_bytes // ITEM_BYTES)
        queued = Queued(shard, delivery, accepted.tickets, items, accepted.size_bytes, columns=True)
        self._mailbox.put_telemetry(queued, policy)

    def _place(self, kind: str, name: str) -> Place:
        shard = self._intake.home_of(f"{kind}/{name}")
        return Place(shard, self._shards[shard].state.tables[kind].find(name))

    def _check_compiled(self, kind: str) -> None:
        plan = self._declaration.plans.get(kind)
        if plan is None or plan.engine is None:
            compiled = ", ".join(name for name, other in self._declaration.plans.items() if other.engine) or "none"
            raise UnknownKind(f"{kind!r} is no compiled kind of this fleet; there are {compiled}")


def _parts(names: list[str]) -> list[list[str]]:
    parts: list[list[str]] = [[]]
    size_bytes = 0
    for name in names:
        size_bytes += len(str(name)) + 2
        if size_bytes > ENROLLED_BYTES and parts[-1]:
            parts.append([])
            size_bytes = len(str(name)) + 2
        parts[-1].append(name)
    return parts


def _durable_generation(table: Table, enrolled: int) -> tuple[int, bytes]:
    """The last enrolment that is on disk: with so many agents, or fewer. Enrolments may be as many as agents."""
    known = (0, NO_CHECK)
    low, high = 0, table.generation
    while low < high:
        middle = (low + high + 1) // 2
        found = table.check_of(middle)
        if found is not None and found[0] <= enrolled:
            low, known = middle, found
        else:
            high = middle - 1
    return low, known[1]


# Joins consecutive column deliveries, so that a thousand small batches cost as much as a large one. Only adjacent ones
# with consecutive numbers of the same source are joined: no order changes.

JOINED_BYTES_MAX = 256 * 1024
SMALL_BYTES = 64 * 1024
"""Larger ones are left alone: to copy them costs more than to step them one by one."""


def join_queued(queued_inputs: Sequence[Queued]) -> list[Queued]:
    """The queued inputs, with consecutive deliveries joined into one that carries the tickets of all."""
    joined: list[Queued] = []
    run: list[Queued] = []
    size_bytes = 0
    for queued in queued_inputs:
        if run and not (_follows(run[-1], queued) and size_bytes + queued.size_bytes <= JOINED_BYTES_MAX):
            joined.append(_joined(run))
            run, size_bytes = [], 0
        run.append(queued)
        size_bytes += queued.size_bytes
    if run:
        joined.append(_joined(run))
    return joined


def _follows(before: Queued, after: Queued) -> bool:
    one, other = before.input, after.input
    if not isinstance(one, ColumnDelivery) or not isinstance(other, ColumnDelivery) or other.start:
        return False
    if max(before.size_bytes, after.size_bytes) > SMALL_BYTES:
        return False
    return (
        before.shard == after.shard
        and other.sequence == (one.sequence + one.length if one.sequence else 0)
        and (one.source, one.incarnation, one.epoch) == (other.source, other.incarnation, other.epoch)
        and (one.kind, one.layout, one.generation) == (other.kind, other.layout, other.generation)
        and one.check == other.check
    )


def _joined(run: list[Queued]) -> Queued:
    first = run[0]
    if len(run) == 1 or not isinstance(first.input, ColumnDelivery):
        return first
    deliveries = [queued.input for queued in run if isinstance(queued.input, ColumnDelivery)]
    delivery = structs.replace(
        first.input,
        records=b"".join(one.records for one in deliveries),
        count=sum(one.count for one in deliveries),
    )
    return Queued(
        shard=first.shard,
        input=delivery,
        tickets=tuple(ticket for queued in run for ticket in queued.tickets),
        items=sum(queued.items for queued in run),
        size_bytes=sum(queued.size_bytes for queued in run),
        columns=True,
    )


# Tables after a durable commit: the rows that queries see follow.


def follow(state: ShardState, ready: Ready) -> None:
    """A commit is on disk: its events enter the durable rows, and agents that it enrolled are there."""
    for kind, image in ready.images.items():
        if image is not None:
            state.tables[kind].adopt(image)
    for run in ready.commit.columns:
        if ready.images.get(run.kind) is None:
            state.tables[run.kind].follow(run.records, run.time_ns)
    state.enrolled.update(ready.enrolled)


def catch_up(state: ShardState) -> None:
    """After a replay everything is durable."""
    for kind, table in state.tables.items():
        table.catch_up()
        state.enrolled[kind] = len(table)


def durable_agent(state: ShardState, address: str) -> Any:
    """A compiled agent as it is on disk; None for one that is not there yet."""
    table, number = state.table_at(address)
    return None if table is None or number < 0 else durable_row(state, address.partition("/")[0], number)


def durable_row(state: ShardState, kind: str, number: int) -> Any:
    """The same by its number."""
    return state.tables[kind].agent(number) if number < state.enrolled.get(kind, 0) else None


def durable_addresses(state: ShardState, kind: str) -> list[str]:
    """The addresses of the compiled agents of a kind that are on disk."""
    table = state.tables[kind]
    return [f"{kind}/{table.name(number)}" for number in range(state.enrolled.get(kind, 0))]
