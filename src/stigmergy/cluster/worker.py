"""A worker: a member of its fleet that runs the shards which the plan gives it, and hands them over when it changes.

It lives as long as it is told to. When it loses its lease, by a long sleep or a cut link, everything it ran ends
without effects, and it joins anew under another id. `stop` hands all shards over first, each as soon as its successor
is ready.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import deque
from collections.abc import Awaitable, Callable
from typing import Any

from msgspec import structs

from stigmergy.agents.assignment import Assignment, shown
from stigmergy.base.errors import ConfigError, NotOwned, StoreError, StoreUnavailable, StoreUnknown
from stigmergy.cluster.lifecycle import State
from stigmergy.cluster.membership import Roster
from stigmergy.cluster.owned_shard import Means
from stigmergy.cluster.records import FleetShape, KindFold, Member, digest_of
from stigmergy.cluster.supervisor import Happening, SeenLogs, Tenant
from stigmergy.control.live import Live
from stigmergy.network.shares import PROCESSES_MAX
from stigmergy.node.needs import check_needs
from stigmergy.shard.snapshot import kinds_of
from stigmergy.store.port import KeyValue

ID_BYTES = 4
WARM_COUNT_MAX = 4
"""Logs that are replayed at the same time: others live on the same event loop."""
FORMER_IDS_MAX = 4
JOIN_PAUSE_S = 0.5
"""Before it is tried again to join anew."""
LEAVE_S_MAX = 30.0
"""Shards that nobody is ready for so long after we were told to stop are let go all the same."""
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
        means: Means,
        about: Member,
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
        self._means = means
        self._about = about
        self._tell = tell
        self._upgrade = upgrade
        declaration = means.declaration
        if declaration.shards > PROCESSES_MAX:
            raise ConfigError(
                f"fleet {declaration.name!r}: {declaration.shards} shards; workers can share {PROCESSES_MAX} at most"
            )
        Assignment(
            means.agents, declaration.plans
        )  # refuses what names none of the fleet's, before a shard fails of it
        check_needs(declaration, "nats://hub:4222?replicas=3", bus=means.has_bus, ledger=means.has_ledger)
        self._shape = FleetShape(declaration.name, declaration.shards, declaration.homes.key_name)
        self.roster: Roster | None = None
        """The present membership; None between two of them."""
        self.tenants: dict[int, Tenant] = {}
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
            roster = await self._join()
            if roster is None:
                await asyncio.sleep(JOIN_PAUSE_S)
                continue
            self.roster = roster
            self.memberships += 1
            self._formerly.append(roster.me)
            try:
                self._begin(roster)
                await self._work(roster)
            finally:
                await self._end(roster)

    def stop(self) -> None:
        """Has it hand everything over, and end."""
        self._stopping = True
        self._woken.set()

    def owned(self) -> list[int]:
        """The shards that are ours now."""
        return [shard for shard, tenant in self.tenants.items() if tenant.state is State.OWNING]

    def live(self, shard: int) -> Live:
        """The running shard, if it is ours at this very moment. Raises NotOwned otherwise: what we know may be old."""
        tenant = self.tenants.get(shard)
        live = None if tenant is None or self.roster is None or not self.roster.is_held else tenant.live
        if live is None:
            raise NotOwned(f"shard {shard} is not this worker's now; ask who has it")
        return live

    # ------------------------------------------------------------------ within

    async def _join(self) -> Roster | None:
        """A new membership, under a new id; None, and told, while there can be none. At first only the store is waited
        for: whoever does not fit is told so."""
        me = self._describe_anew()
        try:
            if self.memberships and self._reopen is not None:
                self._keys = await self._reopen()
            roster = Roster(self._keys, self._means.clock, self._shape, me, self._heard)
            await roster.join(other_folds=self._upgrade, complete=self._with_key)
        except (StoreError, ConfigError) as error:
            # Who has fitted once is not sent away because of somebody who came meanwhile, or of a clock that is mended.
            # A store without a majority comes back: after a power cut workers may be there before the servers.
            if not self.memberships and not isinstance(error, PASSING):
                raise
            if (reason := str(error).replace(me.id, self._about.id)) != self._waits_for:
                self._waits_for = reason
                self._tell("waits", {"reason": reason})
            return None
        self._waits_for = ""
        others = [member.id for member in roster.register.members() if member.id != me.id]
        self._tell("joined", {"worker": me.id, "others": others})
        return roster

    def _describe_anew(self) -> Member:
        means = self._means
        folds = kinds_of(means.declaration.plans)
        return structs.replace(
            self._about,
            id=f"{self._about.id}-{means.entropy.token(ID_BYTES).hex()}",
            kinds=tuple(KindFold(fold.kind, fold.version, fold.layout.hex()) for fold in folds),
            since_ns=means.clock.wall_ns(),
            formerly=tuple(self._formerly),
            bus=means.has_bus,
            agents=shown(means.agents),
            agents_digest=digest_of(means.agents),
        )

    def _with_key(self, me: Member) -> Member:
        """With the key that it signs with, which is made now if it is missing: a start that is refused leaves none."""
        signer = self._means.signer
        return structs.replace(me, algorithm=signer.algorithm, public_key=signer.public_key.hex())

    def _begin(self, roster: Roster) -> None:
        places = asyncio.Semaphore(WARM_COUNT_MAX)
        for shard in range(self._shape.shards):
            self.tenants[shard] = Tenant(shard, self._means, roster, places, self._happened, self._logs)
            self.tenants[shard].start()

    async def _work(self, roster: Roster) -> None:
        """Until the lease is gone, or everything is handed over. Raises what a tenant did not expect."""
        loop = asyncio.get_running_loop()
        deadline_s = float("inf")
        while not roster.lost.is_set():
            self._woken.clear()
            self._check_lives(roster)
            self._tell_clocks(roster)
            unfit = {shard: tenant.unfit for shard, tenant in self.tenants.items() if tenant.unfit}
            roster.describe(owns=tuple(self.owned()), unfit=unfit, unmet=self._unmet())
            if self._stopping and deadline_s == float("inf"):
                deadline_s = loop.time() + LEAVE_S_MAX
                roster.describe(leaving=True)
                self._tell("leaving", {"shards": self.owned()})
            if self._stopping:
                others = [member for member in roster.register.members() if not member.leaving]
                if not others or loop.time() >= deadline_s:
                    self._let_all_go()
                if all(tenant.state in (State.IDLE, State.WARMING, State.READY) for tenant in self.tenants.values()):
                    return
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(LOOK_S if self._stopping else 1.0):
                    await self._woken.wait()

    def _unmet(self) -> tuple[str, ...]:
        """What agents turn out to need, although nobody could see it at the start; told once."""
        hosts = [tenant.live.host for tenant in self.tenants.values() if tenant.live is not None]
        if not self._told_unheard and any(host.effector.counters.unheard for host in hosts):
            self._told_unheard = UNHEARD
            self._tell("troubled", {"reason": UNHEARD})
        return (self._told_unheard,) if self._told_unheard else ()

    def _let_all_go(self) -> None:
        for tenant in self.tenants.values():
            if not tenant.must_go:
                tenant.must_go = True
                tenant.wake()

    def _check_lives(self, roster: Roster) -> None:
        roster.check_lives()
        for tenant in self.tenants.values():
            if tenant.life is not None and tenant.life.done() and not tenant.life.cancelled():
                tenant.life.result()

    def _tell_clocks(self, roster: Roster) -> None:
        """Says once whose clock is far from ours."""
        skewed = tuple(sorted(roster.register.skews))
        if skewed != self._skewed:
            self._skewed = skewed
            self._tell("clocks", {"ahead_s": {name: round(roster.register.skews[name], 3) for name in skewed}})

    async def _end(self, roster: Roster) -> None:
        self.roster = None
        for tenant in self.tenants.values():
            await tenant.end()
        self.tenants.clear()
        if roster.lost.is_set():
            await roster.abandon()
            self._tell("fenced", {"worker": roster.me, "reason": roster.why})
        else:
            await roster.leave()
            self._tell("left", {"worker": roster.me})

    def _heard(self) -> None:
        for tenant in self.tenants.values():
            tenant.wake()
        self._woken.set()

    def _happened(self, happening: Happening) -> None:
        self._tell(happening.event, {"shard": happening.shard, **happening.fields})
        self._woken.set()
