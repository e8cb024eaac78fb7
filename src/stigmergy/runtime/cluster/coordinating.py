"""The turn to plan: one worker at a time has it, by a lease, and writes which shard is to be whose.

Everybody looks after those who are silent, because that a lease ran out is heard of late; whoever finds the turn free
takes it, and plans at once: the plan of an earlier turn does not count any more when one of a later turn is there.
"""

from __future__ import annotations

import asyncio

from stigmergy.core.errors import ConfigError, LinkDown, StoreConflict, StoreError, StoreUnknown
from stigmergy.core.placement import place
from stigmergy.ports.clock import Clock
from stigmergy.ports.store import NS, KeyValue, Lease
from stigmergy.runtime.cluster.records import COORDINATOR, PLAN, Coordinator, Plan, worker_key, write_record
from stigmergy.runtime.cluster.register import Register

LEASE_S = 2
RENEW_S = 0.5
"""A lease lasts so long, and is renewed so often: three renewals may be lost."""
RETRY_S = 0.1
"""After a renewal that did not come through."""
SETTLE_S = 0.3
"""So long the coordinator waits after somebody joined: workers that are started together are planned together."""
RETURN_S = 1.0
"""The same where all that the last plan knew are gone."""
TROUBLE = (StoreError, ConfigError, LinkDown)
"""What may be over in a moment; a server that is started again without its store says that it is set up wrongly."""


class Coordinating:
    """One worker's part in it. `run` it as long as the worker is a member."""

    def __init__(self, keys: KeyValue, clock: Clock, register: Register, me: str, shards: int) -> None:
        self._keys = keys
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
                self._turn = await self._keys.acquire(COORDINATOR, write_record(Coordinator(self._me)), LEASE_S)
                self._renewed_ns = now_ns
                self._term = 0 if self._turn is None else self._turn.revision
        if self.is_ours and not self._settles(now_ns):
            await self._plan()

    async def _look_after_silent(self, now_ns: int) -> None:
        """Of whom nothing was heard for as long as a lease lasts, it is asked for."""
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
        plan = Plan(
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
        """Who has a shard as far as planning goes: who was to have it, under whatever id, else who has it."""
        now = {former: member.id for member in self._register.members() for former in member.formerly}
        planned = self._register.planned(shard)
        planned = now.get(planned, planned)
        return planned if planned in members else self._register.owner(shard)
