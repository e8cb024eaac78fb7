"""Replays an old journal against today's code: the gate before an upgrade. Nothing is written or sent.

Each commit is repeated (`redecision`) and then folded as a start would fold it. Where the journal has a snapshot, its
agents and tables, made by the old code, are compared with what today's code makes of the log. It replays one shard
after the other, so it needs the memory of one.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import islice
from typing import Any

import msgspec

from stigmergy.agents.codec import canonical_bytes, describe
from stigmergy.agents.columns import Say
from stigmergy.agents.plans import AgentPlan
from stigmergy.audit.column_redecision import Restepping
from stigmergy.audit.differences import Compared, Difference, shortened
from stigmergy.audit.directories import read_chain
from stigmergy.audit.redecision import Redecision
from stigmergy.base.errors import DefinitionError, FoldMismatch, JournalCorrupt, JournalError, RecoveryError
from stigmergy.base.trust import Verifier
from stigmergy.journal.port import Journal, StoredCommit, homes_of
from stigmergy.journal.recovery import Recovery, new_state
from stigmergy.shard.commit import Commit, EventRun, digest_commit, open_commit
from stigmergy.shard.homes import Homes
from stigmergy.shard.replay import apply
from stigmergy.shard.snapshot import (
    TABLE_PART,
    PartsDigest,
    SnapshotHeader,
    digest_of_state,
    load_agents,
    read_header,
    tables_of,
)
from stigmergy.shard.state import Limits, ShardState


class JournalReplay:
    """One replay of one journal."""

    def __init__(
        self,
        journal: Journal,
        plans: Mapping[str, AgentPlan],
        limits: Limits,
        verifier: Verifier,
        *,
        differences_max: int = 1_000,
        say: Say = lambda _: None,
        homes: Homes | None = None,
    ) -> None:
        """`homes` are those of the fleet, if it has a function for them. `say` is told what takes
        long: classes may have to be compiled."""
        for plan in plans.values():
            if plan.engine is not None:
                plan.engine.prepare(say)
        self._journal = journal
        self._plans = plans
        self._limits = limits
        self._verifier = verifier
        self._homes = homes_of(journal.identity, homes)
        self.found = Compared(differences_max=differences_max)
        self._heads = {head.shard: head.position for head in journal.heads()}

    @property
    def commits_expected(self) -> int:
        """How many commits there are to replay, at most."""
        return sum(last - self._journal.first_position(shard) + 1 for shard, last in self._heads.items())

    def run(self) -> Compared:
        """Replays everything."""
        for _ in self.run_slowly():
            pass
        return self.found

    def run_slowly(self) -> Iterator[int]:
        """The same in small pieces, each with the number of commits so far."""
        for shard in sorted(self._heads):
            yield from _ShardReplay(self, shard, self._heads[shard]).run()
        self.found.settle()

    @property
    def parts(self) -> tuple[Journal, Mapping[str, AgentPlan], Limits, Verifier, Homes]:
        """What a shard's replay works with."""
        return self._journal, self._plans, self._limits, self._verifier, self._homes


class _ShardReplay:
    """The replay of one shard."""

    def __init__(self, replaying: JournalReplay, shard: int, last: int) -> None:
        self._journal, self._plans, self._limits, self._verifier, self._homes = replaying.parts
        self._found = replaying.found
        self._shard = shard
        self._last = last
        self._lost: dict[str, None] = {}
        self._unnoted: dict[int, tuple[bytes, int, list[Difference]]] = {}
        """Snapshots that were compared and that no commit has noted yet: digest, agents, differences."""

    def run(self) -> Iterator[int]:
        try:
            state = self._begin()
        except (RecoveryError, JournalError) as error:
            self._differ("fold", 0, "", "the snapshot that this shard must begin from", "loaded", str(error))
            return
        snapshots = dict.fromkeys(self._journal.snapshots(self._shard))
        count = self._last - state.position
        restepping = Restepping(state, self._homes, self._found)
        for stored in islice(self._journal.read(self._shard, after=state.position), count):
            commit = self._opened(stored)
            Redecision(state, self._homes, commit, self._found, self._lost).run()
            restepping.prepare(commit)
            try:
                apply(state, without(commit, self._lost), stored.sealed.digest)
                restepping.run(commit)
            except FoldMismatch as error:
                # Of agents in tables, which are folded in one go: nothing can be said of what follows.
                self._differ("fold", commit.position, "", "events of compiled agents", "folded", str(error))
                self._found.skip("commits behind one that cannot be folded", self._last - commit.position)
                return
            self._found.commits += 1
            for note in commit.snapshots:
                self._take_note(note.position, note.digest)
            if state.position in snapshots:
                self._compare_snapshot(state)
            yield self._found.commits
        if self._unnoted:
            self._found.skip("snapshots that were never finished", len(self._unnoted))
        self._check_agents(state)
        self._found.agents += state.agents_count
        if not self._lost:
            self._found.digests[self._shard] = digest_of_state(state).hex()

    def _check_agents(self, state: ShardState) -> None:
        """Says which agents a start would refuse to go on with."""
        for address, agent in state.agents.items():
            check = state.plan_of[type(agent)].check
            try:
                if check is not None:
                    check(agent)
            except DefinitionError as error:
                self._differ("fold", state.position, address, "the start of a node", "goes on", str(error))

    def _begin(self) -> ShardState:
        """The state before the first commit that is kept: from the oldest snapshot, where what was before is gone."""
        identity = self._journal.identity
        if self._journal.first_position(self._shard) == 1:
            return new_state(identity, self._shard, self._plans, self._limits)
        positions = self._journal.snapshots(self._shard)
        if not positions:
            raise FoldMismatch(
                f"the log of shard {self._shard} begins at {self._journal.first_position(self._shard)}, and there is "
                "no snapshot to begin from; replay the journal itself, or a flight log from the beginning"
            )
        recovery = Recovery(self._journal, self._plans, self._verifier, self._limits)
        return recovery.replay_from_start(self._shard, upto=positions[0])

    def _opened(self, stored: StoredCommit) -> Commit:
        sealed = stored.sealed
        if digest_commit(sealed.body) != sealed.digest:
            raise JournalCorrupt(
                f"shard {self._shard}, position {sealed.position}: the bytes do not have the digest they were stored "
                "with; nothing can be said of a damaged log: see stigmergy log verify"
            )
        return open_commit(sealed.body)

    # ------------------------------------------------------------------ snapshots

    def _compare_snapshot(self, state: ShardState) -> None:
        """Holds what the old code had made of the log so far against what today's code makes of it."""
        position = state.position
        parts = self._journal.read_snapshot(self._shard, position)
        digest = PartsDigest()
        differences: list[Difference] = []
        header: SnapshotHeader | None = None
        count = 0
        scratch = new_state(self._journal.identity, self._shard, self._plans, self._limits)
        try:
            self._load_base(scratch, position)
            for part in parts:
                digest.add(part.body)
                if header is None:
                    header = read_header(part.body)
                    continue
                load_agents(scratch, header, part.body)
                for address, old in scratch.agents.items():
                    count += address not in self._lost
                    differences += self._state_differences(state, address, old)
                scratch.agents = {}
        except (FoldMismatch, JournalError) as error:
            # It cannot be carried over; a start would use an older one or the whole log, which is what we do here.
            self._found.skip(f"snapshots of another version of the agents ({type(error).__name__})")
            return
        if header is not None:
            differences += self._table_differences(state, header)
            for kind in scratch.tables:
                count += len(scratch.tables[kind])
                differences += self._row_differences(state, scratch, kind)
        self._unnoted[position] = (digest.value(), count, differences)

    def _load_base(self, scratch: ShardState, position: int) -> None:
        """Of tables, an incremental snapshot has only what has changed: those that it adds to come first."""
        if not scratch.tables:
            return
        headers, _ = read_chain(self._journal, self._shard, position)
        for header in headers[:-1]:
            for part in islice(self._journal.read_snapshot(self._shard, header.tables.position), 1, None):
                if part.body.startswith(TABLE_PART):
                    load_agents(scratch, header, part.body)

    def _row_differences(self, state: ShardState, scratch: ShardState, kind: str) -> Iterator[Difference]:
        """Compiled agents in a snapshot against what the fold of the log makes of them."""
        old, new = scratch.tables[kind], state.tables[kind]
        if old.digest() == new.digest():
            return
        if len(old) != len(new):
            yield self._difference("table", state.position, "", f"how many {kind}", "agents", len(old), len(new))
        for number in range(min(len(old), len(new))):
            before, after = old.agent(number, ahead=True), new.agent(number, ahead=True)
            for field in type(after).__struct_fields__:
                was, is_ = getattr(before, field), getattr(after, field)
                if canonical_bytes(was) != canonical_bytes(is_):
                    address = f"{kind}/{new.name(number)}"
                    yield self._difference(
                        "state", state.position, address, "the state", field, shortened(was), shortened(is_)
                    )

    def _take_note(self, position: int, digest: bytes) -> None:
        """A snapshot counts only if the log says that it is whole."""
        compared = self._unnoted.pop(position, None)
        if compared is None or compared[0] != digest:
            return
        self._found.snapshots += 1
        self._found.states += compared[1]
        for difference in compared[2]:
            self._found.add(difference)

    def _state_differences(self, state: ShardState, address: str, old: Any) -> Iterator[Difference]:
        new = state.agents.get(address)
        if address in self._lost:
            return
        if new is None:
            yield self._difference("state", state.position, address, "the agent", "", "there", "not there")
            return
        try:
            # As it would be when it is read back: that is how the old one was written.
            new = state.plan_of[type(new)].restore(canonical_bytes(new))
        except Exception as error:
            what = f"cannot be written and read back ({describe(error)})"
            yield self._difference("state", state.position, address, "the state", "", "written", what)
            return
        for field in type(new).__struct_fields__:
            before, after = getattr(old, field), getattr(new, field)
            if canonical_bytes(before) != canonical_bytes(after):
                yield self._difference(
                    "state", state.position, address, "the state", field, shortened(before), shortened(after)
                )

    def _table_differences(self, state: ShardState, header: SnapshotHeader) -> Iterator[Difference]:
        if self._lost:
            return
        if not header.base and header.agents_count != len(state.agents):
            yield self._difference(
                "table", state.position, "", "how many agents", "agents", header.agents_count, len(state.agents)
            )
        tables = tables_of(state)
        for field in tables.__struct_fields__:
            before, after = getattr(header.tables, field), getattr(tables, field)
            if canonical_bytes(before) != canonical_bytes(after):
                yield self._difference(
                    "table", state.position, "", "a table of the shard", field, shortened(before), shortened(after)
                )

    def _difference(
        self, kind: str, position: int, agent: str, what: str, field: str, old: Any, new: Any
    ) -> Difference:
        return Difference(kind, self._shard, position, 0, agent, what, field, old, new)

    def _differ(self, kind: str, position: int, agent: str, what: str, old: Any, new: Any) -> None:
        self._found.add(self._difference(kind, position, agent, what, "", old, new))


def without(commit: Commit, addresses: Mapping[str, Any]) -> Commit:
    """The commit without the events of these agents, so that the others can still be folded."""
    if not addresses:
        return commit
    events = iter(commit.events)
    kept: list[tuple[str, bytes]] = []
    runs: list[EventRun] = []
    for run in commit.runs:
        before = len(kept)
        kept += [event for event in islice(events, run.events) if event[0] not in addresses]
        runs.append(msgspec.structs.replace(run, events=len(kept) - before))
    return msgspec.structs.replace(commit, runs=runs, events=kept)
