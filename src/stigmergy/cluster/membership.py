"""One worker among those of its fleet: a member while it renews its lease, and what it reports to the others.

A worker that loses its lease is no longer a member and owns nothing: it joins again under another id. Nothing here
reads or writes logs: the claim in a shard's log decides who owns the shard.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, TypeVar

from msgspec import Struct, structs

from stigmergy.base.clock import Clock
from stigmergy.base.errors import (
    Bug,
    ConfigError,
    LinkDown,
    Malformed,
    StaleEpoch,
    StoreConflict,
    StoreError,
    StoreForeign,
    StoreUnavailable,
    StoreUnknown,
)
from stigmergy.base.tasks import end_tasks
from stigmergy.cluster.records import (
    COORDINATOR,
    FLEET,
    PLAN,
    Coordinator,
    FleetShape,
    Owner,
    ShardPlan,
    StandbyRecord,
    WorkerRecord,
    owner_key,
    place,
    read_record,
    ready_key,
    worker_key,
    write_record,
)
from stigmergy.cluster.register import Register, check_agents, check_clocks, check_folds, check_shape, is_old
from stigmergy.store.port import NS, KeyValue, Lease, StoredEntry

# The turn to plan: one worker at a time has it, by a lease, and writes which worker each shard is for.
#
# Every worker checks the silent ones, because an expired lease is reported late. A worker that finds the turn free
# takes it and plans at once: a plan of a later turn replaces that of an earlier one.

LEASE_S = 2
"""How long a lease lasts, unless the worker's settings say otherwise. Each worker has its own: the servers end it, and
others look there."""
RENEW_S = 0.5
"""A lease is renewed so often: of one of 2 s, three renewals may be lost."""
RETRY_S = 0.1
"""After a renewal that did not come through."""
SETTLE_S = 0.3
"""So long the coordinator waits after somebody joined: workers that are started together are planned together."""
RETURN_S = 1.0
"""The same where all that the last plan knew are gone."""
TROUBLE = (StoreError, ConfigError, LinkDown)
"""What may be over in a moment; a server that is started again without its store says that it is set up wrongly."""


class PlanCoordinator:
    """One worker's part in it. `run` it as long as the worker is a member."""

    def __init__(
        self, keys: KeyValue, clock: Clock, register: Register, me: str, shards: int, lease_s: int = LEASE_S
    ) -> None:
        self._keys = keys
        self._lease_s = lease_s
        self._clock = clock
        self._register = register
        self._me = me
        self._shards = shards
        self._turn: Lease | None = None
        self._term = 0
        """The revision with which our turn began."""
        self._renewed_ns = 0
        self._woken = asyncio.Event()
        self.plans_written = 0

    @property
    def is_ours(self) -> bool:
        """Whether it is our turn."""
        return self._turn is not None and self._turn.held(self._clock.monotonic_ns())

    def wake(self) -> None:
        """Something has changed."""
        self._woken.set()

    async def run(self) -> None:
        """Takes the turn when nobody has it, and plans while it is ours."""
        while True:
            self._woken.clear()
            try:
                await self._look()
            except TROUBLE:
                await asyncio.sleep(RETRY_S)
            try:
                async with asyncio.timeout(RENEW_S / 2):
                    await self._woken.wait()
            except TimeoutError:
                continue

    async def release(self) -> None:
        """Leaves the turn to others."""
        if self._turn is not None:
            await self._turn.release()

    async def _look(self) -> None:
        now_ns = self._clock.monotonic_ns()
        await self._look_after_silent(now_ns)
        if self._turn is not None and now_ns - self._renewed_ns >= int(RENEW_S * NS):
            try:
                await self._turn.renew()
                self._renewed_ns = now_ns
            except StoreError:
                pass  # it is ours until its time is over
        if not self.is_ours:
            self._turn = None
            if self._register.mirror.get(COORDINATOR) is None:
                self._turn = await self._keys.acquire(COORDINATOR, write_record(Coordinator(self._me)), self._lease_s)
                self._renewed_ns = now_ns
                self._term = 0 if self._turn is None else self._turn.revision
        if self.is_ours and not self._settles(now_ns):
            await self._plan()

    async def _look_after_silent(self, now_ns: int) -> None:
        """A worker that was silent for a whole lease is probed."""
        for worker, renewed_ns in list(self._register.renewed_ns.items()):
            if now_ns - renewed_ns > LEASE_S * NS:
                await self._ask_for(worker_key(worker))
        if not self.is_ours and self._register.member(self._register.coordinator()) is None:
            await self._ask_for(COORDINATOR)

    async def _ask_for(self, key: str) -> None:
        entry = self._register.mirror.get(key)
        if entry is not None and await self._keys.get(key) is None:
            self._register.mirror.forget(entry)

    def _settles(self, now_ns: int) -> bool:
        """Whether more are likely to join. Nobody waits for that when somebody has gone; but when all have, they have
        lost their leases together, and come back one after the other."""
        plan = self._register.plan
        planned = () if plan is None else plan.members
        left = [worker for worker in planned if self._register.member(worker) is not None]
        if 0 < len(left) < len(planned):
            return False
        settle_s = RETURN_S if planned and not left else SETTLE_S
        return now_ns - self._register.joined_ns < int(settle_s * NS)

    async def _plan(self) -> None:
        """Writes a plan if the last one was made from something else, or in another turn."""
        register = self._register
        entry, before = register.mirror.get(PLAN), register.plan
        members = tuple(member.id for member in register.members() if not member.leaving)
        unfit = tuple((member.id, shard) for member in register.members() for shard in sorted(member.unfit))
        if before is not None and (before.term, before.members, before.unfit) == (self._term, members, unfit):
            return
        current = {shard: self._kept_by(shard, members) for shard in range(self._shards)}
        plan = ShardPlan(
            number=1 if before is None else before.number + 1,
            term=self._term,
            worker=self._me,
            members=members,
            unfit=unfit,
            owners=place(self._shards, members, current, unfit),
        )
        try:
            await self._keys.put(PLAN, write_record(plan), 0 if entry is None else entry.revision)
        except (StoreConflict, StoreUnknown):
            return  # the watch tells what is there, and it is looked at again
        self.plans_written += 1
        register.take_plan(plan)

    def _kept_by(self, shard: int, members: tuple[str, ...]) -> str:
        """The owner of a shard for planning: the planned one, under whatever id, else the present one."""
        now = {former: member.id for member in self._register.members() for former in member.formerly}
        planned = self._register.planned(shard)
        planned = now.get(planned, planned)
        return planned if planned in members else self._register.owner(shard)


JOIN_S_MAX = 10.0
"""What is there must be known within this time."""
Record = TypeVar("Record", Owner, StandbyRecord)
STOOD_S_MIN = 0.5
"""A task that is woken so much later than it was due: this process stood still, by a busy machine or its own code."""
WRITES_TRIED_MAX = 8
"""So often a record is written again after somebody else was faster."""


class WorkerMembershipCounters(Struct):
    """What became of our lease."""

    lease_renewals: int = 0
    lease_renewals_missed: int = 0


class WorkerMembership:
    """One membership of one worker, from `join` until it leaves or `lost` is set. `heard` is told of every change."""

    def __init__(
        self,
        keys: KeyValue,
        clock: Clock,
        shape: FleetShape,
        me: WorkerRecord,
        heard: Callable[[], None] = lambda: None,
        *,
        lease_s: int = LEASE_S,
    ) -> None:
        self._keys = keys
        self._lease_s = lease_s
        self._clock = clock
        self._shape = shape
        self._me = me
        self._heard = heard
        self.register = Register(keys, clock, self._hear)
        self.coordinating = PlanCoordinator(keys, clock, self.register, me.id, shape.shards, lease_s)
        self._lease: Lease | None = None
        self._urgent = asyncio.Event()
        self._tasks: list[asyncio.Task[None]] = []
        self.lost = asyncio.Event()
        """Set when the lease is gone: we are no member any more."""
        self.why = ""
        """Why it is gone."""
        self.counters = WorkerMembershipCounters()
        self._end_looked_ns = 0
        """When it is looked next whether our time is over."""
        self._stood_s, self._stood_until_ns = 0.0, 0

    async def join(
        self, *, other_folds: bool = False, complete: Callable[[WorkerRecord], WorkerRecord] = lambda me: me
    ) -> None:
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
            self._lease = await self._keys.acquire(worker_key(self.me), self._described(), self._lease_s)
            if self._lease is None:
                raise Bug(f"the id {self.me} is taken; ids are drawn at random")
        except BaseException:
            self.register.mirror.stop()
            raise
        self._end_looked_ns = self._lease.ends_ns
        lives = (self._renew(self._lease), self.coordinating.run(), self._watch_end(self._lease))
        self._tasks = [asyncio.ensure_future(life) for life in lives]

    async def _living(self) -> list[WorkerRecord]:
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

    def _others(self) -> list[WorkerRecord]:
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
        await end_tasks(*tasks)

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
        await self._keys.put(ready_key(shard), write_record(StandbyRecord(self.me, position)))

    async def take_back_ready(self, shard: int) -> None:
        """We no longer wait for it. A record that another worker wrote after us is left alone. Raises StoreError."""
        entry = await self._keys.get(ready_key(shard))
        if entry is not None:
            await self._take_back(StandbyRecord, entry)

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

    async def _take_back(self, kind: type[Record], entry: StoredEntry) -> bool:
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

    def _check_known(self, entry: StoredEntry) -> None:
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
            due_ns = self._clock.monotonic_ns() + int(pause_s * NS)
            try:
                async with asyncio.timeout(pause_s):
                    await self._urgent.wait()
            except TimeoutError:
                self._note_stood(due_ns)

    async def _watch_end(self, lease: Lease) -> None:
        """Notices that our time is over also while a renewal is under way."""
        while True:
            left_ns = lease.ends_ns - self._clock.monotonic_ns()
            if left_ns <= 0:
                self._lose(f"our lease could not be renewed for {self._lease_s} s")
                return
            self._end_looked_ns = lease.ends_ns
            await asyncio.sleep(left_ns / NS)

    def _note_stood(self, due_ns: int) -> None:
        """Notes for how long nothing of us has run: what was due is done only now."""
        now_ns = self._clock.monotonic_ns()
        if now_ns - due_ns >= STOOD_S_MIN * NS:
            self._stood_s, self._stood_until_ns = (now_ns - due_ns) / NS, now_ns

    def _lose(self, why: str) -> None:
        if not self.lost.is_set():
            self._note_stood(self._end_looked_ns)
            if self._stood_s and self._clock.monotonic_ns() - self._stood_until_ns < self._lease_s * NS:
                why += f"; this process stood still for {self._stood_s:.1f} s: the machine is busy, or code blocks it"
            self.why = why
            self.lost.set()
            self._heard()

    def _hear(self) -> None:
        self.coordinating.wake()
        self._heard()
