"""Follows the log of a shard that another worker may own, so that a take-over needs only the last few commits.

It makes the checks of recovery: digests, the chain, and at the end the signatures. It replays in small portions,
because other shards run on the same event loop. `claim` makes the shard ours; a host then starts from what was
replayed.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from typing import cast

from msgspec import Struct

from stigmergy.agents.plans import AgentPlan
from stigmergy.base.errors import DataLost, FoldMismatch, JournalConflict, JournalCorrupt, JournalUnknown
from stigmergy.base.trust import Verifier
from stigmergy.journal.port import Journal, JournalIdentity, ShardLog, SnapshotPart
from stigmergy.journal.recovery import Basis, Recovered, Recovery, new_state
from stigmergy.shard.snapshot import read_header
from stigmergy.shard.state import EnrolledSigner, Limits, ShardState

PORTION_EVENTS = 200
"""So many events are replayed before others have their turn: a fraction of a millisecond."""
LOOK_EVERY_S = 0.5
"""A log that does not say that it has grown is read this often anyway."""
CLAIMS_MAX = 20
"""How often the log may grow between our last read and our claim: an owner that writes so much is healthy, and keeps
it."""
RESTARTS_MAX = 5
"""So often the owner may drop what we were about to read."""
IN_DOUBT_MAX = 2
"""Commits that a snapshot may be ahead of its log: one on its way to the servers, and one sealed behind it."""
NOTED_MAX = 1_024
"""Snapshots of its owner that are remembered: far more than any owner keeps."""


class ClaimedShard(Struct, frozen=True):
    """A shard that is ours: what a host starts from."""

    journal: Journal
    number: int
    """Of the claim; higher than that of every owner before."""
    recovered: Recovered


class _Gap(Exception):
    """The log no longer has what comes next: it was dropped, a newer snapshot covers it."""


class _Fetched:
    """The snapshots that were fetched, as recovery reads them."""

    def __init__(self, identity: JournalIdentity) -> None:
        self.identity = identity
        self.parts: dict[int, list[SnapshotPart]] = {}

    def read_snapshot(self, shard: int, position: int) -> Iterator[SnapshotPart]:
        return iter(self.parts.get(position, ()))


class Standby:
    """One shard, replayed as far as its log has been read. `warm` it, let it `follow`, and `claim` when it is time."""

    def __init__(self, log: ShardLog, plans: Mapping[str, AgentPlan], verifier: Verifier, limits: Limits) -> None:
        self._log = log
        self._plans = plans
        self._verifier = verifier
        self._limits = limits
        self.shard = log.identity.owned[0]
        self._grown = asyncio.Event()
        self._turn = asyncio.Lock()
        """One reader at a time: the follower or the claimant."""
        self._is_warm = False
        self._unusable: list[int] = []
        """Snapshots that were tried when we began, and were no good."""
        self._newest = 0
        """The newest snapshot that was there then, good or not."""
        self._forget()
        log.watch(self._grown.set)

    @property
    def position(self) -> int:
        """Up to where it has replayed."""
        return self._state.position

    @property
    def signers(self) -> Sequence[EnrolledSigner]:
        """Who may sign, as far as it has replayed."""
        return self._state.signers

    async def warm(self) -> None:
        """Replays from the newest snapshot that can be used to the present end. Raises as recovery does."""
        async with self._turn:
            await self._begin_anew()

    async def follow(self) -> None:
        """Goes on replaying what is written, until it is cancelled."""
        while True:
            async with self._turn:
                await self._catch_up()
            try:
                async with asyncio.timeout(LOOK_EVERY_S):
                    await self._grown.wait()
            except TimeoutError:
                continue

    async def claim(self, owner: str) -> ClaimedShard:
        """Reads what is left and takes the shard over. Raises JournalConflict if its owner goes on writing too fast,
        and else as recovery does."""
        async with self._turn:
            if not self._is_warm:
                await self._begin_anew()
            for _ in range(CLAIMS_MAX):
                await self._catch_up()
                try:
                    journal, number = await self._log.claim(self._state.position, owner)
                except (JournalConflict, JournalUnknown):
                    continue
                try:
                    return ClaimedShard(journal, number, self._recovered())
                except BaseException:
                    await journal.close()
                    raise
        raise JournalConflict(
            f"shard {self.shard}: its owner has written at every one of {CLAIMS_MAX} claims; it is well, let it go on"
        )

    # ------------------------------------------------------------------ within

    def _forget(self) -> None:
        self._fetched = _Fetched(self._log.identity)
        self._recovery = Recovery(cast(Journal, self._fetched), self._plans, self._verifier, self._limits)
        self._state: ShardState = new_state(self._log.identity, self.shard, self._plans, self._limits)
        self._note: tuple[int, bytes] | None = None
        """The snapshot we began from, until the log has noted it, with the digest of what is stored."""
        self._chain: list[tuple[int, int]] = []
        self._noted: deque[int] = deque(maxlen=NOTED_MAX)
        """Snapshots that its owner has finished since we began; we must not take them for leftovers."""
        self._snapshot_bytes = 0
        self._commits = self._events = self._tail_bytes = 0

    async def _begin_anew(self) -> None:
        for _ in range(RESTARTS_MAX):
            try:
                await self._begin()
            except _Gap:
                continue
            self._is_warm = True
            return
        raise JournalCorrupt(
            f"shard {self.shard}: the log was dropped {RESTARTS_MAX} times while it was read; give snapshots more time"
        )

    async def _begin(self) -> None:
        """From the newest usable snapshot, or from the beginning if the log still has that."""
        passed_over: list[str] = []
        self._unusable.clear()
        stored = await self._log.snapshots()
        self._newest = stored[-1] if stored else 0
        for position in reversed(stored):
            self._forget()
            try:
                await self._load(position)
                await self._read_on()
                if self._note is not None:
                    raise JournalCorrupt("no commit notes it, it was never finished")
            except (FoldMismatch, JournalCorrupt) as error:
                passed_over.append(f"snapshot at {position}: {error}")
                self._unusable.append(position)
                continue
            return
        self._forget()
        first = await self._log.first_position()
        if first != 1:
            raise FoldMismatch(
                f"shard {self.shard}: the log begins at position {first}, and no snapshot covers what was before "
                f"({'; '.join(passed_over) or 'there is none'}); restore from a copy, or run the version that took it"
            )
        await self._read_on()

    async def _load(self, position: int) -> None:
        wanted = position
        while wanted:
            parts = list(await self._log.read_snapshot(wanted))
            if not parts:
                raise JournalCorrupt(f"shard {self.shard}: the snapshot at {wanted} is not there")
            self._fetched.parts[wanted] = parts
            base = read_header(parts[0].body).base
            if base >= wanted:
                raise JournalCorrupt(f"shard {self.shard}: the snapshot at {wanted} adds to a later one")
            wanted = base
        digest, self._snapshot_bytes = self._recovery.load(self._state, self.shard, position, self._chain)
        self._note = (position, digest)
        self._fetched.parts.clear()

    async def _catch_up(self) -> None:
        try:
            await self._read_on()
        except _Gap:
            await self._begin_anew()

    async def _read_on(self) -> None:
        """Replays up to where the log ends now."""
        since = 0
        while True:
            self._grown.clear()
            read = await self._log.read(self._state.position)
            if not read:
                return
            for stored in read:
                if stored.sealed.position > self._state.position + 1:
                    raise _Gap
                for position, digest in self._recovery.apply(self._state, stored):
                    self._noted.append(position)
                    if self._note is not None and position == self._note[0]:
                        if digest != self._note[1]:
                            raise JournalCorrupt("its bytes are not those that the log notes")
                        self._note = None
                self._commits += 1
                self._events += stored.sealed.events
                self._tail_bytes += len(stored.sealed.body)
                since += stored.sealed.events
                if since >= PORTION_EVENTS:
                    since = 0
                    await asyncio.sleep(0)

    def _recovered(self) -> Recovered:
        """What a host starts from. Raises if the end of the log is lost, or signed by nobody who may."""
        if self._newest > self._state.position + IN_DOUBT_MAX:
            raise DataLost(
                f"shard {self.shard}: there is a snapshot of position {self._newest}, and the log ends at "
                f"{self._state.position}: the end of it is lost; restore it from a newer copy, or delete the snapshots "
                "as well to go on without"
            )
        noted = tuple(position for position in self._noted if position not in self._unusable)
        basis = Basis(tuple(self._chain), self._snapshot_bytes, self._events, self._tail_bytes, noted)
        found = Recovered(states=[self._state], commits=self._commits, events=self._events, bases=[basis])
        if self._chain:
            found.snapshots[self.shard] = self._chain[-1][0]
        self._recovery.finish(found)
        return found
