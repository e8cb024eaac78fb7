"""A worker: a member of its fleet that runs the shards which the plan gives it, and hands them over when it changes.

It runs until it is stopped. When it loses its lease, through a long pause or a cut link, everything it ran ends without
effects, and it joins again under another id. `stop` hands all shards over first, each as soon as its successor is
ready.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import deque
from collections.abc import Awaitable, Callable
from typing import Any

from msgspec import structs

from stigmergy.agents.assignment import Assignment, shown
from stigmergy.base.errors import Bug, ConfigError, NotOwned, StoreError, StoreUnavailable, StoreUnknown
from stigmergy.base.tasks import where
from stigmergy.cluster.lifecycle import LifecycleState
from stigmergy.cluster.membership import WorkerMembership
from stigmergy.cluster.owned_shard import WorkerContext
from stigmergy.cluster.records import FleetShape, KindFold, WorkerRecord, digest_of
from stigmergy.cluster.supervisor import SeenLogs, ShardEvent, ShardSupervisor
from stigmergy.control.live import Live
from stigmergy.node.needs import check_needs
from stigmergy.shard.snapshot import kinds_of
from stigmergy.store.port import KeyValue

ID_BYTES = 4
SHARDS_MAX = 256
"""Of a fleet on workers: each shard has connections to those that it tells something."""
WARM_COUNT_MAX = 4
"""Logs that are replayed at the same time: others live on the same event loop."""
FORMER_IDS_MAX = 4
JOIN_PAUSE_S = 0.5
"""Before it is tried again to join anew."""
LEAVE_S_MAX = 30.0
"""Shards that nobody is ready for so long after we were told to stop are let go all the same."""
END_S_MAX = 20.0
ENDS_DRAINED = 4
"""So long all shards may take to end, and so many times `drain_s` beside: devices, actuators, columns and the log may
each take that. Then the worker stops with an error."""
PASSING = (StoreUnavailable, StoreUnknown)
"""What a store without a majority raises."""
LOOK_S = 0.05
"""How often a worker that stops looks whether all is handed over."""
UNHEARD = (
    "agents publish and this worker has no bus: nobody hears them; start all workers of the fleet with --bus nats://…, "
    "or name it under [fleet] in stigmergy.toml"
)

Tell = Callable[[str, dict[str, Any]], None]


class Worker:
    """One worker. `run` it; `stop` lets it end in good order."""

    def __init__(
        self,
        keys: KeyValue,
        context: WorkerContext,
        about: WorkerRecord,
        tell: Tell = lambda *_: None,
        *,
        upgrade: bool = False,
        reopen: Callable[[], Awaitable[KeyValue]] | None = None,
    ) -> None:
        """`about` is what it says of itself; its id there is the beginning of its ids. `tell` hears what happens.

        `reopen` is asked for the keys before it joins anew: what it lost its lease with may be a bucket that is gone.
        """
        self._keys = keys
        self._reopen = reopen
        self._context = context
        self._about = about
        self._tell = tell
        self._upgrade = upgrade
        declaration = context.declaration
        if declaration.shards > SHARDS_MAX:
            raise ConfigError(
                f"fleet {declaration.name!r}: {declaration.shards} shards; workers can share {SHARDS_MAX} at most"
            )
        # Refuses what names none of the fleet's agents, before a shard fails of it.
        Assignment(context.agents, declaration.plans)
        check_needs(declaration, "nats://hub:4222?replicas=3", bus=context.has_bus, ledger=context.has_ledger)
        self._shape = FleetShape(declaration.name, declaration.shards, declaration.homes.key_name)
        self.membership: WorkerMembership | None = None
        """The present membership; None between two of them."""
        self.supervisors: dict[int, ShardSupervisor] = {}
        self._stopping = False
        self._skewed: tuple[str, ...] = ()
        self._woken = asyncio.Event()
        self.memberships = 0
        self._formerly: deque[str] = deque(maxlen=FORMER_IDS_MAX)
        self._waits_for = ""
        """What keeps it from joining again, as it was said last."""
        self._logs = SeenLogs()
        self._told_unheard = ""

    async def run(self) -> None:
        """Works until it is stopped. Raises ConfigError if it does not fit to those that are there, StoreForeign for a
        bucket of somebody else. While the store does not answer it says so, and tries again and again."""
        while not self._stopping:
            membership = await self._join()
            if membership is None:
                await asyncio.sleep(JOIN_PAUSE_S)
                continue
            self.membership = membership
            self.memberships += 1
            self._formerly.append(membership.me)
            try:
                self._begin(membership)
                await self._work(membership)
            finally:
                await self._end(membership)

    def stop(self) -> None:
        """Makes it hand over everything, and end."""
        self._stopping = True
        self._woken.set()

    def owned(self) -> list[int]:
        """The shards that are ours now."""
        return [shard for shard, supervisor in self.supervisors.items() if supervisor.state is LifecycleState.OWNING]

    def live(self, shard: int) -> Live:
        """The running shard, if it is ours at this very moment. Raises NotOwned otherwise: what we know may be old."""
        supervisor = self.supervisors.get(shard)
        live = None if supervisor is None or self.membership is None or not self.membership.is_held else supervisor.live
        if live is None:
            raise NotOwned(f"shard {shard} is not this worker's now; ask who has it")
        return live

    # ------------------------------------------------------------------ within

    async def _join(self) -> WorkerMembership | None:
        """A new membership, under a new id; None, with a report, while it cannot join. At first it waits only for the
        store: an incompatible worker is told so."""
        me = self._describe_anew()
        try:
            if self.memberships and self._reopen is not None:
                self._keys = await self._reopen()
            lease_s = self._context.settings.lease_s
            membership = WorkerMembership(
                self._keys, self._context.clock, self._shape, me, self._heard, lease_s=lease_s
            )
            await membership.join(other_folds=self._upgrade, complete=self._with_key)
        except (StoreError, ConfigError) as error:
            # A worker that was compatible once is not refused because of a later one, or of a corrected clock.
            # A store without a majority comes back: after a power cut workers may be there before the servers.
            if not self.memberships and not isinstance(error, PASSING):
                raise
            if (reason := str(error).replace(me.id, self._about.id)) != self._waits_for:
                self._waits_for = reason
                self._tell("waits", {"reason": reason})
            return None
        self._waits_for = ""
        others = [member.id for member in membership.register.members() if member.id != me.id]
        self._tell("joined", {"worker": me.id, "others": others})
        return membership

    def _describe_anew(self) -> WorkerRecord:
        context = self._context
        folds = kinds_of(context.declaration.plans)
        return structs.replace(
            self._about,
            id=f"{self._about.id}-{context.entropy.token(ID_BYTES).hex()}",
            kinds=tuple(KindFold(fold.kind, fold.version, fold.layout.hex()) for fold in folds),
            since_ns=context.clock.wall_ns(),
            formerly=tuple(self._formerly),
            bus=context.has_bus,
            agents=shown(context.agents),
            agents_digest=digest_of(context.agents),
        )

    def _with_key(self, me: WorkerRecord) -> WorkerRecord:
        """With the key that it signs with, which is made now if it is missing: a start that is refused leaves none."""
        signer = self._context.signer
        return structs.replace(me, algorithm=signer.algorithm, public_key=signer.public_key.hex())

    def _begin(self, membership: WorkerMembership) -> None:
        places = asyncio.Semaphore(WARM_COUNT_MAX)
        for shard in range(self._shape.shards):
            self.supervisors[shard] = ShardSupervisor(
                shard, self._context, membership, places, self._happened, self._logs
            )
            self.supervisors[shard].start()

    async def _work(self, membership: WorkerMembership) -> None:
        """Runs until the lease is lost, or everything is handed over. Raises what a supervisor did not expect."""
        loop = asyncio.get_running_loop()
        deadline_s = float("inf")
        while not membership.lost.is_set():
            self._woken.clear()
            self._check_lives(membership)
            self._tell_clocks(membership)
            unfit = {shard: supervisor.unfit for shard, supervisor in self.supervisors.items() if supervisor.unfit}
            membership.describe(owns=tuple(self.owned()), unfit=unfit, unmet=self._unmet())
            if self._stopping and deadline_s == float("inf"):
                deadline_s = loop.time() + LEAVE_S_MAX
                membership.describe(leaving=True)
                self._tell("leaving", {"shards": self.owned()})
            if self._stopping:
                others = [member for member in membership.register.members() if not member.leaving]
                if not others or loop.time() >= deadline_s:
                    self._let_all_go()
                if all(
                    supervisor.state in (LifecycleState.IDLE, LifecycleState.WARMING, LifecycleState.READY)
                    for supervisor in self.supervisors.values()
                ):
                    return
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(LOOK_S if self._stopping else 1.0):
                    await self._woken.wait()

    def _unmet(self) -> tuple[str, ...]:
        """What agents turn out to need, although nobody could see it at the start; told once."""
        hosts = [supervisor.live.host for supervisor in self.supervisors.values() if supervisor.live is not None]
        if not self._told_unheard and any(host.effector.counters.unheard for host in hosts):
            self._told_unheard = UNHEARD
            self._tell("troubled", {"reason": UNHEARD})
        return (self._told_unheard,) if self._told_unheard else ()

    def _let_all_go(self) -> None:
        for supervisor in self.supervisors.values():
            if not supervisor.must_go:
                supervisor.must_go = True
                supervisor.wake()

    def _check_lives(self, membership: WorkerMembership) -> None:
        membership.check_lives()
        for supervisor in self.supervisors.values():
            if supervisor.life is not None and supervisor.life.done() and not supervisor.life.cancelled():
                supervisor.life.result()

    def _tell_clocks(self, membership: WorkerMembership) -> None:
        """Says once whose clock is far from ours."""
        skewed = tuple(sorted(membership.register.skews))
        if skewed != self._skewed:
            self._skewed = skewed
            self._tell("clocks", {"ahead_s": {name: round(membership.register.skews[name], 3) for name in skewed}})

    async def _end(self, membership: WorkerMembership) -> None:
        self.membership = None
        try:
            await self._end_supervisors()
        except BaseException:
            await membership.abandon()
            raise
        self.supervisors.clear()
        if membership.lost.is_set():
            await membership.abandon()
            self._tell("fenced", {"worker": membership.me, "reason": membership.why})
        else:
            await membership.leave()
            self._tell("left", {"worker": membership.me})

    async def _end_supervisors(self) -> None:
        """Ends all shards side by side. Raises Bug if that takes too long: this process can work no more, and whoever
        started it is to start it again. Nothing is lost by that: a worker that ends shards like this writes nothing."""
        loop = asyncio.get_running_loop()
        ends = [
            loop.create_task(supervisor.end(), name=f"end of shard {shard}")
            for shard, supervisor in self.supervisors.items()
        ]
        ending = asyncio.gather(*ends, return_exceptions=True)
        # Counted and not timed: a process that was stopped for a while must not think that its shards hang.
        for _ in range(int(END_S_MAX + ENDS_DRAINED * self._context.settings.drain_s)):
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(1.0):
                    await asyncio.shield(ending)
            if ending.done():
                for error in ending.result():
                    if error is not None:
                        raise error
                return
        unended = [where(end) for end in ends if not end.done()]
        unended += [one for supervisor in self.supervisors.values() for one in supervisor.unended()]
        raise Bug(f"this worker's shards do not end; it stops, and must be started again: {'; '.join(unended)}")

    def _heard(self) -> None:
        for supervisor in self.supervisors.values():
            supervisor.wake()
        self._woken.set()

    def _happened(self, happening: ShardEvent) -> None:
        self._tell(happening.event, {"shard": happening.shard, **happening.fields})
        self._woken.set()
