"""One worker among those of its fleet: a member as long as it renews its lease, and what it says to the others.

Whoever loses its lease is no member any more, and owns nothing: it joins anew, under another id. Nothing here reads or
writes logs: who really has a shard is decided by the claim in its log.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, TypeVar

from msgspec import Struct, structs

from stigmergy.core.errors import (
    Bug,
    Malformed,
    StaleEpoch,
    StoreConflict,
    StoreError,
    StoreForeign,
    StoreUnavailable,
    StoreUnknown,
)
from stigmergy.ports.clock import Clock
from stigmergy.ports.store import NS, Entry, KeyValue, Lease
from stigmergy.runtime.cluster.coordinating import LEASE_S, RENEW_S, RETRY_S, TROUBLE, Coordinating
from stigmergy.runtime.cluster.ending import end_task
from stigmergy.runtime.cluster.fitting import check_agents, check_clocks, check_folds, check_shape, is_old
from stigmergy.runtime.cluster.records import (
    FLEET,
    FleetShape,
    Member,
    Owner,
    Ready,
    owner_key,
    read_record,
    ready_key,
    worker_key,
    write_record,
)
from stigmergy.runtime.cluster.register import Register

JOIN_S_MAX = 10.0
"""What is there must be known within this time."""
Record = TypeVar("Record", Owner, Ready)
WRITES_TRIED_MAX = 8
"""So often a record is written again after somebody else was faster."""


class RosterCounters(Struct):
    """What became of our lease."""

    lease_renewals: int = 0
    lease_renewals_missed: int = 0


class Roster:
    """One membership of one worker, from `join` until it leaves or `lost` is set. `heard` is told of every change."""

    def __init__(
        self, keys: KeyValue, clock: Clock, shape: FleetShape, me: Member, heard: Callable[[], None] = lambda: None
    ) -> None:
        self._keys = keys
        self._clock = clock
        self._shape = shape
        self._me = me
        self._heard = heard
        self.register = Register(keys, clock, self._hear)
        self.coordinating = Coordinating(keys, clock, self.register, me.id, shape.shards)
        self._lease: Lease | None = None
        self._urgent = asyncio.Event()
        self._tasks: list[asyncio.Task[None]] = []
        self.lost = asyncio.Event()
        """Set when the lease is gone: we are no member any more."""
        self.why = ""
        """Why it is gone."""
        self.counters = RosterCounters()

    async def join(self, *, other_folds: bool = False, complete: Callable[[Member], Member] = lambda me: me) -> None:
        """Becomes a member. Raises ConfigError if this worker does not fit to those that are there, and StoreError.

        With `other_folds` it may have other agents than they, or other versions: to replace them one by one. `complete`
        fills in what it says of itself once it was found to fit, before anything is written.
        """
        await self.register.mirror.start(JOIN_S_MAX)
        try:
            known = self.register.mirror.get(FLEET)
            if known is not None:
                self._check_known(known)
            for member in await self._living():
                check_clocks(member, self._clock.wall_ns(), LEASE_S)
                if not other_folds:
                    check_folds(member, self._me)
                    check_agents(member, self._me)
            self._me = complete(self._me)
            if known is None:
                await self._agree_shape()
            self._lease = await self._keys.acquire(worker_key(self.me), self._described(), LEASE_S)
            if self._lease is None:
                raise Bug(f"the id {self.me} is taken; ids are drawn at random")
        except BaseException:
            self.register.mirror.stop()
            raise
        lives = (self._renew(self._lease), self.coordinating.run(), self._watch_end(self._lease))
        self._tasks = [asyncio.ensure_future(life) for life in lives]

    async def _living(self) -> list[Member]:
        """Those of the others who are there, each as it describes itself now.

        A description that looks old is not yet one of a clock that is slow: it may be of somebody who is gone, or who
        could not renew it while no server took it, ourselves of a moment ago included. The next one tells.
        """
        old = {one.id: one for one in self._others() if is_old(one, self._clock.wall_ns(), LEASE_S)}
        until_ns = self._clock.monotonic_ns() + int(2 * LEASE_S * NS)
        while any(self.register.member(name) == one for name, one in old.items()):
            if self._clock.monotonic_ns() > until_ns:
                break
            await asyncio.sleep(RETRY_S)
        return [one for one in self._others() if old.get(one.id) != one]

    def _others(self) -> list[Member]:
        return [one for one in self.register.members() if one.id not in self._me.formerly]

    async def leave(self) -> None:
        """Is no member any more, and says so. What it owns it must have let go before."""
        await self.abandon()
        for release in (self.coordinating.release, *(() if self._lease is None else (self._lease.release,))):
            try:
                await release()
            except StoreError:
                continue  # it runs out by itself

    async def abandon(self) -> None:
        """Ends at once, as a crash would: leases run out."""
        self.register.mirror.stop()
        tasks, self._tasks = self._tasks, []
        for task in tasks:
            await end_task(task)

    def check_lives(self) -> None:
        """Raises what has ended one of our tasks: without it we would be a member that renews or plans nothing more,
        and nobody would know why."""
        for task in self._tasks:
            if task.done() and not task.cancelled():
                task.result()

    @property
    def me(self) -> str:
        """Our id."""
        return self._me.id

    @property
    def is_held(self) -> bool:
        """Whether we are a member at this very moment, by our own clock. Only then may we act as an owner."""
        return self._lease is not None and not self.lost.is_set() and self._lease.held(self._clock.monotonic_ns())

    # ------------------------------------------------------------------ what we say

    def describe(self, **changes: Any) -> None:
        """Changes what the others hear of us, soon."""
        described = structs.replace(self._me, **changes)
        if described != self._me:
            self._me = described
            self._urgent.set()

    async def say_ready(self, shard: int, position: int) -> None:
        """Says that we wait for a shard. Raises StoreError."""
        await self._keys.put(ready_key(shard), write_record(Ready(self.me, position)))

    async def take_back_ready(self, shard: int) -> None:
        """We do not wait for it any more. Whoever wrote there after us is left alone. Raises StoreError."""
        entry = await self._keys.get(ready_key(shard))
        if entry is not None:
            await self._take_back(Ready, entry)

    async def say_owner(self, shard: int, claim: int) -> None:
        """Says that the shard is ours. Raises StaleEpoch if somebody claimed it after us, and StoreError."""
        key, record = owner_key(shard), write_record(Owner(self.me, claim))
        for _ in range(WRITES_TRIED_MAX):
            entry = await self._keys.get(key)
            known = None if entry is None else self.register.read(Owner, entry)
            if known is not None and known.claim > claim:
                raise StaleEpoch(f"shard {shard}: worker {known.worker} has claimed it after us; it is not ours")
            try:
                await self._keys.put(key, record, 0 if entry is None else entry.revision)
                return
            except (StoreConflict, StoreUnknown):
                continue
        raise StoreUnavailable(f"shard {shard}: others write to {key} all the time; nothing was written")

    async def let_go(self, shard: int) -> None:
        """Says that the shard is free, if it still says that it is ours. Raises StoreError."""
        # What we know of it is mostly right, and saves a question while the shard has no owner.
        known = self.register.mirror.get(owner_key(shard))
        if known is None or not await self._take_back(Owner, known):
            found = await self._keys.get(owner_key(shard))
            if found is not None:
                await self._take_back(Owner, found)

    async def _take_back(self, kind: type[Record], entry: Entry) -> bool:
        """Deletes a record of ours; whether it was, and is gone."""
        record = self.register.read(kind, entry)
        if record is None or record.worker != self.me:
            return False
        try:
            await self._keys.delete(entry.key, entry.revision)
        except StoreConflict:
            return False  # somebody else has written there meanwhile
        return True

    # ------------------------------------------------------------------ our lease

    async def _agree_shape(self) -> None:
        """All workers of a fleet agree where agents live; the first one writes it down."""
        for _ in range(WRITES_TRIED_MAX):
            try:
                await self._keys.create(FLEET, write_record(self._shape))
                return
            except (StoreConflict, StoreUnknown):
                entry = await self._keys.get(FLEET)
            if entry is not None:
                self._check_known(entry)
                return
        raise StoreUnavailable("what the fleet looks like can neither be read nor written; try again")

    def _check_known(self, entry: Entry) -> None:
        """Refuses a fleet of another shape than the one that is written down."""
        try:
            known = read_record(FleetShape, FLEET, entry.value)
        except Malformed as error:
            raise StoreForeign(f"bucket {self._keys.bucket}: {error}; name the right servers") from None
        check_shape(known, self._shape)

    def _described(self) -> bytes:
        return write_record(structs.replace(self._me, wall_ns=self._clock.wall_ns()))

    async def _renew(self, lease: Lease) -> None:
        while True:
            self._urgent.clear()
            pause_s = RENEW_S
            try:
                await lease.renew(self._described())
                self.counters.lease_renewals += 1
            except TROUBLE:
                self.counters.lease_renewals_missed += 1
                pause_s = RETRY_S
            if not self.is_held:
                self._lose("another worker or the store has taken our lease away")
                return
            try:
                async with asyncio.timeout(pause_s):
                    await self._urgent.wait()
            except TimeoutError:
                continue

    async def _watch_end(self, lease: Lease) -> None:
        """Notices that our time is over also while a renewal is under way."""
        while True:
            left_ns = lease.ends_ns - self._clock.monotonic_ns()
            if left_ns <= 0:
                self._lose(f"our lease could not be renewed for {LEASE_S} s")
                return
            await asyncio.sleep(left_ns / NS)

    def _lose(self, why: str) -> None:
        if not self.lost.is_set():
            self.why = why
            self.lost.set()
            self._heard()

    def _hear(self) -> None:
        self.coordinating.wake()
        self._heard()
