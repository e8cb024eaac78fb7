"""Repeats with today's code what the column runs of a commit recorded: steps the records through a table.

A record that was kept as it came is an input that can be given again: its effects today are compared with the recorded
ones, batched or not. Results of a `decide` handler are only folded, because its input is not in the log; so are records
in an older layout. The stepped table is separate from the one that the replay folds: it follows what was recorded, and
is rebuilt where it diverged.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from stigmergy.agents.codec import describe, tag_of
from stigmergy.agents.columns import Halt, Table
from stigmergy.agents.effects import ACTUATORS
from stigmergy.agents.messages import Effect, Keeping, spec_of
from stigmergy.agents.plans import AgentPlan
from stigmergy.agents.supervision import AgentsEnrolled
from stigmergy.audit.differences import ABSENT, Compared, Difference, effect_differences, shown_effect
from stigmergy.shard.commit import NO_CAUSE, Commit, Owed
from stigmergy.shard.commit_reader import BATCHED, Records, effects_of, runs_of, said_in
from stigmergy.shard.draft import compared, pack_effect
from stigmergy.shard.homes import Homes
from stigmergy.shard.state import ShardReading, ShardState

ROOM_BYTES = 4 * 1024 * 1024
"""For what a step makes; a longer run takes several."""
DECIDED = "events of compiled agents that a decide handler has made: they are folded, and nothing more"
OLD_LAYOUT = "events of compiled agents in an older layout: they are folded, and nothing more"
BEHIND = "events of compiled agents in a commit behind a difference: they are folded, and nothing more"
NO_TABLE = "events of agents that were compiled then: they are folded, and nothing more"


class Restepping:
    """The tables of one shard, stepped beside those that the replay folds. For each commit: `prepare`, fold, `run`."""

    def __init__(self, state: ShardState, homes: Homes, found: Compared) -> None:
        self._state = state
        self._homes = homes
        self._found = found
        self._tables: dict[str, Table] = {}
        self._stale = dict.fromkeys(state.tables)
        """Kinds whose table has come off its way, or was never made."""
        self._plain = {kind: _plain_forms(state.plans[kind], table) for kind, table in state.tables.items()}

    def prepare(self, commit: Commit) -> None:
        """Before a commit is folded: tables that have come off their way become what those of the replay are, and
        agents get their numbers. An ordinary event of a compiled agent is of a time when it was not one."""
        for run in commit.columns:
            if run.kind in self._stale and run.kind in self._state.tables:
                self._copy(run.kind)
        for said in said_in(commit):
            if isinstance(said, AgentsEnrolled) and said.kind not in self._stale and said.kind in self._tables:
                new = [name for name in said.names if self._tables[said.kind].find(name) < 0]
                if new:
                    self._tables[said.kind].enroll(new)
        for address, body in commit.events:
            kind = address.partition("/")[0]
            if kind in self._tables and not tag_of(body).startswith("stigmergy."):
                self._stale[kind] = None

    def run(self, commit: Commit) -> None:
        """Steps all runs of a commit that has been folded. Raises JournalCorrupt."""
        if not commit.columns:
            return
        reading = ShardReading(self._state)
        effects = effects_of(commit, reading)
        for records in runs_of(commit, reading):
            kind, count = records.run.kind, records.run.count
            self._found.events += count
            if kind not in self._state.tables:
                self._found.skip(NO_TABLE, count)
            elif kind in self._stale:
                self._found.skip(BEHIND, count)
            elif records.run.layout != self._state.tables[kind].layout_digest:
                self._found.skip(OLD_LAYOUT, count)
                self._stale[kind] = None
            else:
                self._step(commit, records, effects)

    def _copy(self, kind: str) -> None:
        engine = self._state.plans[kind].engine
        if engine is None:
            return
        table, origin = engine.table(), self._state.tables[kind]
        for part in origin.begin_snapshot(full=True):
            table.load(part, origin.layout)
        self._tables[kind] = table
        self._stale.pop(kind, None)

    def _step(self, commit: Commit, records: Records, effects: Mapping[int, Sequence[Owed]]) -> None:
        """Steps stretches of records that came as they are kept, and folds the others."""
        run, table = records.run, self._tables[records.run.kind]
        width, plain = records.layout.record_bytes, self._plain[run.kind]
        for start, end, came in _stretches(records, plain):
            part = run.records[start * width : end * width]
            if not came:
                self._found.skip(DECIDED, end - start)
                table.fold(part, records.layout, run.time_ns)
                continue
            place = start
            while place < end:
                place = self._step_some(commit, records, effects, place, end)

    def _step_some(
        self, commit: Commit, records: Records, effects: Mapping[int, Sequence[Owed]], start: int, end: int
    ) -> int:
        """Steps as many as there is room for; returns the place of the next."""
        run, table = records.run, self._tables[records.run.kind]
        width = records.layout.record_bytes
        taken = memoryview(run.records)[start * width : end * width]
        stretch = table.step(taken, 0, len(table), ROOM_BYTES, run.time_ns)
        done = start + stretch.taken
        if stretch.records != run.records[start * width : done * width]:
            self._differ(commit, records, start, "event", "its records", "kept", "kept in another way")
            self._stale[run.kind] = None
        self._compare(commit, records, start, done, stretch.others, effects)
        if stretch.halt in (Halt.END, Halt.FULL) and (stretch.taken or done == end):
            return done
        error = describe(stretch.error) if stretch.error is not None else stretch.halt.name
        self._differ(commit, records, done, "failure", "error", None, error)
        table.fold(run.records[done * width : (done + 1) * width], records.layout, run.time_ns)
        return done + 1

    def _compare(
        self,
        commit: Commit,
        records: Records,
        start: int,
        end: int,
        others: Sequence[tuple[int, int, Effect]],
        effects: Mapping[int, Sequence[Owed]],
    ) -> None:
        """Compares what the records cause today with what is owed. Batched or not depends on the actuators."""
        today: dict[int, list[Owed]] = {}
        for place, agent, effect in others:
            sink, body = pack_effect(self._state, self._homes, effect, (None, b""), records.run.time_ns)
            index = records.first + start + place if place >= 0 else NO_CAUSE
            today.setdefault(index, []).append(Owed(records.address(agent), sink, 0, index, body))
        for index in sorted({**today, **{place: None for place in effects if place >= 0}}):
            if not records.first + start <= index < records.first + end:
                continue
            was = sorted((_unbatched(owed) for owed in effects.get(index, ())), key=_order)
            now = sorted(today.get(index, ()), key=_order)
            self._found.effects += max(len(was), len(now))
            for number in range(max(len(was), len(now))):
                self._compare_one(commit, records, index, number, was[number : number + 1], now[number : number + 1])

    def _compare_one(
        self, commit: Commit, records: Records, index: int, number: int, was: list[Owed], now: list[Owed]
    ) -> None:
        what = f"effect {number + 1}"
        if not was or not now:
            old, new = (shown_effect(some[0]) if some else ABSENT for some in (was, now))
            self._differ(commit, records, index - records.first, "effect", "", old, new, what)
        elif compared(self._homes, was[0]) != compared(self._homes, now[0]):
            for field, old, new in effect_differences(was[0], now[0]):
                self._differ(commit, records, index - records.first, "effect", field, old, new, what)

    def _differ(
        self,
        commit: Commit,
        records: Records,
        place: int,
        kind: str,
        field: str,
        old: Any,
        new: Any,
        what: str = "",
    ) -> None:
        agent, form = struct.unpack_from("<IH", records.run.records, place * records.layout.record_bytes)
        tag = records.layout.forms[form].tag
        named = f"{what} of {tag}" if what else tag
        address, index = records.address(agent), records.first + place
        self._found.add(Difference(kind, commit.shard, commit.position, index, address, named, field, old, new))


def _plain_forms(plan: AgentPlan, table: Table) -> list[bool]:
    """For each form whether a record of it is the very input that it was: nothing decides about it, and it is kept."""
    by_tag = {spec_of(message).tag: one for message, one in plan.plans.items()}
    found: list[bool] = []
    for form in table.layout.forms:
        one = by_tag.get(form.tag)
        found.append(
            one is not None
            and not form.is_command
            and one.decide is None
            and one.promise is not Keeping.TRANSIENT
            and (one.evolve is not None or one.react is not None)
        )
    return found


def _stretches(records: Records, plain: Sequence[bool]) -> Iterator[tuple[int, int, bool]]:
    """Adjacent records of one sort: from, up to, and whether they were kept as they came."""
    start, before = 0, None
    for place, (_, form) in enumerate(records.heads()):
        if before is not None and plain[form] is not before:
            yield start, place, before
            start = place
        before = plain[form]
    if before is not None:
        yield start, records.run.count, before


def _unbatched(owed: Owed) -> Owed:
    if not owed.sink.startswith(BATCHED):
        return owed
    return Owed(owed.agent, ACTUATORS, owed.sequence, owed.cause, owed.body)


def _order(owed: Owed) -> tuple[str, bytes]:
    return owed.sink, owed.body
