"""The logbook: every commit that became durable on a simulated machine, over all its lives, dropped or not.

It is between the host and its journal (`WatchedJournal`), so it knows what was acknowledged and what was only in
progress. After each restart the journal must hold everything durable, bit for bit, and beyond it only the group in
progress, all of it or nothing. The logbook folds what it sees, so that a recovered state can be compared with one that
no snapshot ever touched.

Each problem is a sentence in `findings`. The program under simulation never reads any of this.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence

from msgspec import Struct

from stigmergy.agents.plans import AgentPlan
from stigmergy.base.errors import JournalFull, JournalUnknown, StigmergyError
from stigmergy.journal.port import (
    Journal,
    JournalIdentity,
    JournalSize,
    SnapshotPart,
    StoredCommit,
    file_check,
    keep_within,
)
from stigmergy.journal.recovery import new_state
from stigmergy.shard.commit import Commit, Group, Head, Sealed, Signature, digest_commit, open_commit
from stigmergy.shard.replay import apply
from stigmergy.shard.snapshot import digest_of_state
from stigmergy.shard.state import Limits, ShardState


class Logbook:
    """What one node's journal must hold, and the state that follows from it."""

    def __init__(self, identity: JournalIdentity, plans: Mapping[str, AgentPlan], limits: Limits | None = None) -> None:
        shards = identity.shards
        self.identity = identity
        self.commits: list[list[Commit]] = [[] for _ in range(shards)]
        self.states = [new_state(identity, shard, plans, limits) for shard in range(shards)]
        self.signatures: list[Signature] = []
        self.findings: list[str] = []
        self.groups = 0
        self.lives = 0
        """How often the node was started with this journal."""
        self._digests: list[list[bytes]] = [[] for _ in range(shards)]
        self._attempt: Group | None = None

    @property
    def positions(self) -> tuple[int, ...]:
        """How far each shard is durable."""
        return tuple(state.position for state in self.states)

    def digest(self, shard: int, position: int) -> bytes:
        """The digest of a commit that was durable."""
        return self._digests[shard][position - 1]

    def begin(self, group: Group) -> None:
        """A group is on its way to the disk: kept or not, from now on."""
        self._attempt = group

    def refused(self) -> None:
        """The journal says that it kept nothing of the group."""
        self._attempt = None

    def durable(self, group: Group) -> None:
        """The journal says that the group is durable."""
        self._attempt = None
        self.groups += 1
        self.signatures.append(group.signature)
        for sealed in group.commits:
            self._take(sealed)

    def resume(self, journal: Journal) -> None:
        """After a restart: compares what is there with what must be there, and takes over what was under way."""
        extra = [self._compare(journal, shard) for shard in range(len(self.states))]
        found = [sealed for part in extra for sealed in part]
        attempt, self._attempt = self._attempt, None
        expected = [] if attempt is None else list(attempt.commits)
        if found and sorted(map(_place, found)) != sorted(map(_place, expected)):
            self.findings.append(
                f"the journal holds {[(s.shard, s.position) for s in found]} beyond what was durable; under way was "
                f"{[(s.shard, s.position) for s in expected]}"
            )
        for sealed in found:
            self._take(sealed)

    def refold(self, plans: Mapping[str, AgentPlan], limits: Limits | None = None) -> None:
        """Another version of the agents runs from now on: the state is what its fold makes of the same commits."""
        self.states = [new_state(self.identity, shard, plans, limits) for shard in range(len(self.commits))]
        for shard, commits in enumerate(self.commits):
            for commit in commits:
                apply(self.states[shard], commit, self.digest(shard, commit.position))

    def compare_states(self, states: Sequence[ShardState], where: str) -> None:
        """A state that was reached in some other way must be the same as the fold of all commits."""
        if [state.shard for state in states] != list(self.identity.owned):
            self.findings.append(f"{where}: the shards {[state.shard for state in states]} are not those of this node")
        for other in states:
            mine = self.states[other.shard]
            if (mine.position, mine.digest) != (other.position, other.digest):
                self.findings.append(
                    f"{where}: shard {mine.shard} is at {other.position}, the log that was durable ends at "
                    f"{mine.position}"
                )
            elif digest_of_state(mine) != digest_of_state(other):
                self.findings.append(f"{where}: shard {mine.shard} at {mine.position} is not what its log folds into")

    def _compare(self, journal: Journal, shard: int) -> list[Sealed]:
        """Compares one shard; returns the commits beyond those known."""
        known = self._digests[shard]
        first = journal.first_position(shard)
        if first > 1 and first > len(known):
            self.findings.append(f"shard {shard}: begins at {first}, although only {len(known)} commits were durable")
        extra: list[Sealed] = []
        last = first - 1
        for stored in journal.read(shard):
            sealed = stored.sealed
            last = sealed.position
            if sealed.position > len(known):
                extra.append(sealed)
            elif sealed.digest != known[sealed.position - 1] or digest_commit(sealed.body) != sealed.digest:
                self.findings.append(f"shard {shard}: position {sealed.position} is another commit than was durable")
        if last < len(known):
            self.findings.append(f"shard {shard}: {len(known)} commits were durable, the journal ends at {last}")
        return extra

    def _take(self, sealed: Sealed) -> None:
        commit = open_commit(sealed.body)
        try:
            apply(self.states[sealed.shard], commit, sealed.digest)
        except StigmergyError as error:
            self.findings.append(f"shard {sealed.shard}, position {sealed.position}: cannot be folded: {error}")
        self.commits[sealed.shard].append(commit)
        self._digests[sealed.shard].append(sealed.digest)


class Latency(Struct):
    """How long a write takes before and after it has touched the disk; changed while the simulation runs."""

    before_s: float = 0.0
    after_s: float = 0.0
    jitter: bool = True


class WatchedJournal:
    """The Journal port around another journal: takes virtual time, and tells the logbook. Dies with its machine."""

    def __init__(
        self,
        journal: Journal,
        logbook: Logbook,
        latency: Latency,
        chance: random.Random,
        told: Callable[[Group], None] | None = None,
    ) -> None:
        self._journal = journal
        self._logbook = logbook
        self._latency = latency
        self._chance = chance
        self._told = told
        self.dead = False
        self.owner_failed: Callable[[], bool] = lambda: False
        """Asked at every append: an owner that has failed has told everybody that nothing more is kept."""

    @property
    def identity(self) -> JournalIdentity:
        return self._journal.identity

    def heads(self) -> list[Head]:
        return self._journal.heads()

    def first_position(self, shard: int) -> int:
        return self._journal.first_position(shard)

    def read(self, shard: int, after: int = 0) -> Iterator[StoredCommit]:
        return self._journal.read(shard, after)

    def append(self, group: Group) -> Awaitable[None]:
        if self.owner_failed():
            self._logbook.findings.append(
                f"a write of {len(group.commits)} commits was begun after the node had failed"
            )
        return self._append(group)

    async def _append(self, group: Group) -> None:
        await self._wait(self._latency.before_s)
        self._logbook.begin(group)
        try:
            await self._journal.append(group)
        except JournalFull:
            self._logbook.refused()
            raise
        if not self.dead:
            self._logbook.durable(group)
            if self._told is not None:
                self._told(group)
        await self._wait(self._latency.after_s)

    async def put_snapshot(self, shard: int, position: int, parts: Sequence[SnapshotPart]) -> None:
        await self._wait(self._latency.before_s)
        await self._journal.put_snapshot(shard, position, parts)

    def snapshots(self, shard: int) -> list[int]:
        return self._journal.snapshots(shard)

    def read_snapshot(self, shard: int, position: int) -> Iterator[SnapshotPart]:
        return self._journal.read_snapshot(shard, position)

    async def drop_snapshot(self, shard: int, position: int) -> None:
        await self._wait(self._latency.before_s)
        await self._journal.drop_snapshot(shard, position)

    async def drop(self, shard: int, upto: int) -> None:
        await self._wait(self._latency.before_s)
        await self._journal.drop(shard, upto)

    async def check_files(self) -> None:
        """Asks the journal around which this is, where that has files."""
        check = file_check(self._journal)
        if check is not None:
            await check()

    def keep_within(self, bytes_max: int) -> None:
        """Tells the journal around which this is."""
        keep_within(self._journal, bytes_max)

    def size(self) -> JournalSize:
        return self._journal.size()

    async def close(self) -> None:
        await self._journal.close()

    async def _wait(self, seconds: float) -> None:
        if seconds > 0:
            await asyncio.sleep(self._chance.uniform(0, 2 * seconds) if self._latency.jitter else seconds)
        if self.dead:
            raise JournalUnknown("the simulated machine is down")


def _place(sealed: Sealed) -> tuple[int, int, bytes]:
    return (sealed.shard, sealed.position, sealed.digest)
