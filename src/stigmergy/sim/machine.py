"""One machine of a simulated fleet over all its lives: restarts it, and replaces it when its disk is bad.

As an init system, it restarts a node that is down or has stopped by itself, after a moment. As an operator, it gives a
node whose journal is refused a fresh disk and a new incarnation, under the same name and key; data that was only on
that disk is gone, and everybody who keeps marks must treat the new one as new.
"""

from __future__ import annotations

import asyncio
import contextvars
import random
from collections.abc import Coroutine, Sequence
from typing import Any, Protocol, TypeVar

from msgspec import Struct

from stigmergy.agents.effects import Order
from stigmergy.base.errors import StigmergyError
from stigmergy.bus.memory import MemoryBroker, MemoryBus
from stigmergy.claims.memory_ledger import MemoryLedgerStore
from stigmergy.control.live import Live
from stigmergy.network.bus_link import describe_this_node
from stigmergy.network.replication import Replication
from stigmergy.node.declaration import Declaration
from stigmergy.node.host import Host
from stigmergy.node.settings import Settings
from stigmergy.shard.commit import Group
from stigmergy.sim.disk import AfterFailedSync, DiskFault
from stigmergy.sim.feeds import SimFeed
from stigmergy.sim.links import Quality, SimLedger
from stigmergy.sim.loop import ACTOR
from stigmergy.sim.network import Network
from stigmergy.sim.node import NodeService, Receiver, SimNode, equip
from stigmergy.sim.run import Run

T = TypeVar("T")
LOOK_S = 0.5
"""How often it is looked whether a disk has lost power without its node knowing, while things go wrong."""
STARTS_MAX = 40
"""A node that does not start in so many attempts never does."""
ROOM_BYTES = 1 << 40
SCANT_BYTES = 1 << 20
WRITE_S = 0.0005
MEMORY, SQLITE, SEGMENTS = "memory", "sqlite", "segments"


class Replaced(Struct, frozen=True):
    """A journal that was given up for a fresh one: what was only in it is gone."""

    node: str
    at_s: float
    """Virtual seconds since the beginning of the run."""
    incarnation: int
    """Of the fresh one."""
    why: str

    def __str__(self) -> str:
        return f"{self.node} at {self.at_s:.3f} s, incarnation {self.incarnation}: {self.why}"


class Surroundings(Protocol):
    """What a machine is put into: connects it, hears what becomes of it."""

    run: Run

    def connect(self, machine: Machine, broker: MemoryBroker) -> MemoryBus:
        """The machine's connection to its broker, at a start."""

    def make_services(self, machine: Machine, host: Host) -> Sequence[NodeService]:
        """What runs beside the host of a machine, at a start."""

    def kept(self, machine: Machine, group: Group) -> None:
        """A group of commits is durable on a machine."""

    def carried(self, machine: Machine, order: Order[Any]) -> None:
        """A device of a machine has carried out an order."""

    def changed(self, machine: Machine, what: str) -> None:
        """A machine has started, stopped, crashed or been replaced."""


class Machine(SimNode):
    """A simulated node that somebody looks after, with its devices and the senders outside."""

    def __init__(
        self,
        around: Surroundings,
        name: str,
        agents: tuple[str, ...],
        fleet: Declaration,
        *,
        journal: str,
        settings: Settings,
        broker: MemoryBroker | None,
        quality: Quality,
        devices: bool,
        stormy: bool = True,
        remembers: bool = True,
    ) -> None:
        run = around.run
        self.around = around
        self.fleet = fleet
        """The version that runs, or will at the next start."""
        self.quality = quality
        self._own_devices = devices
        self.chance = run.chance(f"{name}/machine")
        self.context = contextvars.copy_context()
        self.context.run(ACTOR.set, name)
        self.receivers: list[Receiver] = []
        """The devices, one set for each incarnation."""
        self.replaced: list[Replaced] = []
        """When and why its journals were given up."""
        self.findings: list[str] = []
        self.flips = 0
        """Bits that were flipped since the last start."""
        self._known = 0
        """How much was found wrong before they were."""
        self._planned: list[int] = []
        self.stormy = stormy
        """Whether faults may still be the reason for what goes wrong."""
        self._write_s = WRITE_S if stormy else 0.0
        self._guarding: asyncio.Task[None] | None = None
        self._turns = asyncio.Lock()
        """Held by the one task that changes the machine's life."""
        self.expects_down = False
        """Whether what takes the machine down says so itself."""
        super().__init__(
            run,
            self._declare_equipped,
            name=name,
            settings=settings,
            in_memory=journal == MEMORY,
            in_segments=journal == SEGMENTS,
            after_failed_sync=self._draw_after_failed_sync(name, 1),
            agents=agents,
            broker=broker,
            parts=lambda _, host: around.make_services(self, host),
            make_bus=lambda broker: around.connect(self, broker),
            on_durable=lambda group: around.kept(self, group),
        )
        self._set_up()
        self.feed = SimFeed(
            name,
            lambda: self.running,
            quality,
            run.chance(f"{name}/feed"),
            self.context,
            swift=not stormy,
            remembers=remembers,
        )
        self.feed.on_acknowledged = self._check_durable

    @property
    def running(self) -> Live | None:
        """The running node; None while it is down or has failed."""
        live = self.live
        return None if live is None or live.failure is not None else live

    @property
    def receiver(self) -> Receiver:
        """The devices of the present incarnation."""
        return self.receivers[-1]

    def _declare_equipped(self, node: SimNode) -> Declaration:
        """The declaration with the devices of this incarnation."""
        receiver = Receiver(node, self.around.run.chance(f"{node.name}/devices/{node.incarnation}"))
        receiver.on_carried = lambda order: self.around.carried(self, order)
        self.receivers.append(receiver)
        return equip(self.fleet, receiver, devices=self._own_devices)

    def _draw_after_failed_sync(self, name: str, incarnation: int) -> AfterFailedSync:
        chance = self.around.run.chance(f"{name}/node/{incarnation}")
        return chance.choice((AfterFailedSync.STALE_CACHE, AfterFailedSync.DROPPED_CACHE))

    def _set_up(self) -> None:
        """What each new disk gets."""
        self.disk.on_down = lambda: self.around.changed(self, "down")
        self.latency.before_s = self.latency.after_s = self._write_s

    # ------------------------------------------------------------------ life

    async def run_guarded(self) -> None:
        """Starts the node for the first time, and begins to look after it."""
        await self._start_until_it_runs()
        self._guarding = asyncio.ensure_future(self._guard())

    async def crash(self, how: str) -> None:
        """Takes the machine down at once: `power` or `kill`. It is started again by its guard."""
        async with self._turns:
            if self.live is not None:
                self.resume()
                self.expects_down = True
                await (self.lose_power() if how == "power" else self.kill())
                self.expects_down = False
                self.around.changed(self, "lost power" if how == "power" else "killed")

    async def upgrade(self, fleet: Declaration) -> None:
        """Stops the node in good order and starts another version of the program on its journal."""
        async with self._turns:
            if self.running is None:
                return
            self.resume()
            self.expects_down = True
            await self.stop()
            self.expects_down = False
            self.fleet = fleet
            self.change_declaration(equip(fleet, self.receiver, devices=self._own_devices))
            self.around.changed(self, "upgraded")

    async def retire(self) -> None:
        """Ends the guard and stops the node as a good program does."""
        self.expects_down = True
        if self._guarding is not None:
            self._guarding.cancel()
        async with self._turns:
            if self.running is not None:
                await self.stop()

    def hold(self) -> None:
        """The process does not run until `resume`."""
        self.world.loop.hold(self.name)

    def resume(self) -> None:
        """The process goes on."""
        self.world.loop.release(self.name)

    def _check_durable(self, source: str, last: int) -> None:
        """What is acknowledged must be durable at that very moment, in each shard."""
        for state in self.logbook.states:
            consumed = state.marks.consumed(source, 0)
            if consumed < last:
                shard = f"shard {state.shard} has {consumed} on disk"
                self.findings.append(f"nothing_acknowledged_is_lost: {source} {last} is acknowledged, {shard}")

    # ------------------------------------------------------------------ faults of the disk

    def plan(self, fault: DiskFault, calls: int) -> None:
        """One of the next calls to the disk ends in a fault."""
        number = self.disk.calls + max(1, calls)
        self._planned.append(number)
        self.disk.fail(number, fault)

    def flip(self, where: int) -> bool:
        """Flips a bit on the disk of a machine that is down; whether there was one to flip."""
        disk = self.disk
        paths = [path for path in disk.paths() if disk.content(path)]
        if not paths:
            return False
        path = paths[where % len(paths)]
        size = len(disk.content(path))
        disk.flip(path, (where // len(paths)) % size, where % 8)
        if not self.flips:
            self._known = len(self.logbook.findings)
        self.flips += 1
        return True

    def heal(self) -> None:
        """From now on its disk and devices work, and its clock is set right."""
        self.stormy = False
        disk, clock, loop = self.disk, self.clock, self.world.loop
        disk.forgive()
        self._planned = [number for number in self._planned if number <= disk.calls]
        disk.capacity_bytes = ROOM_BYTES
        self.resume()
        clock.set_drift(0)
        clock.set_monotonic_drift(0)
        clock.set_wall_ns(loop.wall_start_ns + loop.time_ns())
        self.latency.before_s = self.latency.after_s = WRITE_S
        self.receiver.temper.fail = self.receiver.temper.delay_s = 0.0

    # ------------------------------------------------------------------ starting

    async def _guard(self) -> None:
        while True:
            live = self.live
            if live is not None and live.failure is None:
                await self._wait_for_trouble(live)
                continue
            async with self._turns:
                await self._restart()

    async def _restart(self) -> None:
        live = self.live
        if live is not None and live.failure is None:
            return  # somebody else was faster
        if live is not None:
            self.record("stopped by itself", type(live.failure).__name__)
            self.around.changed(self, f"stopped by itself: {type(live.failure).__name__}")
        self.resume()
        await self.kill()
        await asyncio.sleep(self.chance.choice((0.05, 0.3, 2.0)))
        await self._start_until_it_runs()

    async def _wait_for_trouble(self, live: Live) -> None:
        """Returns when the node has stopped by itself, or is down. While nothing goes wrong it only waits."""
        if not self.stormy:
            await live.wait_failure()
            return
        try:
            async with asyncio.timeout(LOOK_S):
                await live.wait_failure()
        except TimeoutError:
            pass

    async def _start_until_it_runs(self) -> None:
        for _ in range(STARTS_MAX):
            self.around.changed(self, "starting")
            try:
                await self._inside(self.start())
            except StigmergyError as error:
                self._not_started(error)
            else:
                if not self.flips or len(self.logbook.findings) == self._known:
                    self.flips = 0
                    self.around.changed(self, "started")
                    return
                # The start found nothing wrong, but an audit would have: the end of the log, or what lies before a
                # snapshot. A state that is not what its log folds into stays a finding.
                await self.kill()
                self._replace("its log is not what was written")
            await asyncio.sleep(0.2)
        self.findings.append(f"{self.name} did not start in {STARTS_MAX} attempts")

    def _not_started(self, error: StigmergyError) -> None:
        if self._spoilt():
            return
        if self.flips:
            self._replace(type(error).__name__)
            return
        self.findings.append(f"{self.name} does not start: {type(error).__name__}: {error}")
        raise error

    def _spoilt(self) -> bool:
        """Whether a start that failed had a fault to blame. A full disk gets its room back: it would never end."""
        disk = self.disk
        spoilt = any(number <= disk.calls for number in self._planned)
        self._planned = [number for number in self._planned if number > disk.calls]
        full = disk.free_bytes("") < SCANT_BYTES
        if full:
            disk.capacity_bytes = ROOM_BYTES
        return spoilt or full

    def _replace(self, why: str) -> None:
        """What an operator does: a fresh disk under a new incarnation. What the log lost is known to be lost."""
        findings = self.logbook.findings
        findings[self._known :] = [finding for finding in findings[self._known :] if "folds into" in finding]
        self.flips = 0
        self._planned.clear()
        self.replace_disk(self._draw_after_failed_sync(self.name, self.incarnation + 1))
        self._set_up()
        self.feed.replaced(self.incarnation)
        self.record("replaced", [self.incarnation, why])
        self.replaced.append(Replaced(self.name, self.world.loop.time(), self.incarnation, why))
        self.around.changed(self, f"journal replaced: {why}; fresh one, incarnation {self.incarnation}")

    async def _inside(self, coroutine: Coroutine[Any, Any, T]) -> T:
        """Runs something as a part of this machine, so that it is held up with it."""
        result: T = await self.world.loop.create_task(coroutine, context=self.context.copy())
        return result


def draw_journal(chance: random.Random, wants_disk: bool) -> str:
    """What a machine keeps its log in."""
    return chance.choice((SQLITE, SQLITE, SEGMENTS, MEMORY)) if wants_disk else MEMORY


SEEDS_COUNT = 3
"""So many nodes are known to everybody from the start; the others are heard of."""


class SimServices:
    """What runs on each machine beside its host, as the real wiring would put it there.

    A fleet with shared or ordered fields gets replicas over a mesh, or over its bus, with the members that these know,
    and claims on a ledger. The seed decides how they gossip.
    """

    def __init__(self, run: Run, fleet: Declaration, network: Network, names: list[str], *, bus: bool) -> None:
        self._run = run
        self._network = network
        self._names = names
        self.shares = any(plan.shared for plan in fleet.plans.values())
        self.claims = any(plan.ordered for plan in fleet.plans.values())
        self.over_bus = bus and run.chance("company").randrange(3) == 0
        """Whether replicas gossip over the broker, instead of a mesh of their own."""
        self._store = MemoryLedgerStore(fleet.name)

    def make(self, machine: Machine, host: Host) -> Replication | None:
        """The replication of a machine that is about to start; None for a fleet that has no use for it."""
        if not self.shares and not self.claims:
            return None
        name, link = machine.name, machine.link
        chance = self._run.chance(f"{name}/ledger/{machine.incarnation}/{machine.lives}")
        ledger = SimLedger(self._store, machine.quality, chance, machine.context) if self.claims else None
        if self.over_bus and link is not None:
            return Replication(host, machine.signer, machine.entropy, link=link, ledger=ledger)
        self._network.crash(name)  # the node that had the name before
        return Replication(
            host,
            machine.signer,
            machine.entropy,
            mesh=self._network.mesh(name, machine.context),
            ledger=ledger,
            me=describe_this_node(host, name, machine.entropy, "simulated"),
            seeds=self._names[:SEEDS_COUNT],
        )
