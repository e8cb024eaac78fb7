"""One simulated machine: the real host on a disk that fails, with clocks that jump, in virtual time.

    world = Run(seed=7)                                     # inside world.run(...)
    node = SimNode(world, declare_fleet)
    live = await node.start()
    node.disk.fail(node.disk.calls + 5, DiskFault.POWER_LOSS)
    await node.lose_power(); await node.start()             # or kill(), or stop()

Only the disk of a node survives a crash, and, outside of it, its senders and the receivers of its orders. Everything
that happens is recorded in the run's trace; two runs of one seed have the same hash. A `Machine` is such a node in a
fleet: it is restarted when it is down, and gets a new disk when its journal is refused.
"""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import random
from collections.abc import Callable, Coroutine, Sequence
from typing import Any, Protocol, TypeVar

from msgspec import Struct, structs

from stigmergy.agents.effects import Order
from stigmergy.app.blobs import BlobsAt
from stigmergy.app.signing import signs_as
from stigmergy.base.errors import StigmergyError
from stigmergy.bus.memory import MemoryBroker, MemoryBus
from stigmergy.control.live import Live
from stigmergy.journal import segments, sqlite
from stigmergy.journal.memory import MemoryJournal, MemoryJournalStore
from stigmergy.journal.port import Journal, JournalIdentity
from stigmergy.keys.ed25519 import Ed25519Signer, Ed25519Verifier
from stigmergy.network.bus_link import BusLink
from stigmergy.network.peers import PeerProcesses
from stigmergy.network.replication import Replication
from stigmergy.node.declaration import Declaration
from stigmergy.node.device_tasks import Devices, Inline, start_attached
from stigmergy.node.host import Connected, Connections, Host, connections_of, open_host
from stigmergy.node.settings import Settings
from stigmergy.shard.commit import Group
from stigmergy.sim.devices import Receiver, equip
from stigmergy.sim.disk import AfterFailedSync, DiskFault, SimFolder
from stigmergy.sim.errors import NoProgress
from stigmergy.sim.feeds import SimFeed
from stigmergy.sim.links import Quality
from stigmergy.sim.logbook import Latency, Logbook, WatchedJournal
from stigmergy.sim.loop import ACTOR, SimClock, SimEntropy
from stigmergy.sim.run import Run
from stigmergy.sim.views import SimViewDisk, check_views, make_views
from stigmergy.store.memory import MemoryStore
from stigmergy.uplink.rules import UplinkRule
from stigmergy.views.service import ViewService

SITE = "local"
"""Of all simulated nodes."""
WAL_BYTES_MAX = 256 << 10
RESERVE_BYTES = 64 << 10
"""Small, so that a short run goes through checkpoints."""
SEGMENT_BYTES = 64 << 10
"""Small, so that a short run begins several."""
TURNS_UNSERVED_MAX = 100
"""A turn serves all that is due, so one such turn is a bug; the bound leaves room for one that mends itself."""


class NodeService(Connected, Protocol):
    """What runs on a node beside its host and its bus: a mesh, replicas, claims."""

    async def start(self) -> None:
        """Begins; the host runs already."""

    async def stop(self) -> None:
        """Ends in good order, before the host does."""

    async def kill(self) -> None:
        """Ends at once, as in a crash: nothing more leaves the machine."""


class SimNode:
    """A machine with a disk, a clock, a key, and the host when it runs."""

    def __init__(
        self,
        world: Run,
        declare: Callable[[SimNode], Declaration],
        *,
        name: str = "node",
        settings: Settings | None = None,
        in_memory: bool = False,
        in_segments: bool = False,
        sync_lies: bool = False,
        after_failed_sync: AfterFailedSync = AfterFailedSync.STALE_CACHE,
        agents: Sequence[str] = (),
        broker: MemoryBroker | None = None,
        uplink: UplinkRule | None = None,
        part: tuple[int, int] | None = None,
        attach: Callable[[Host], PeerProcesses] | None = None,
        parts: Callable[[SimNode, Host], Sequence[NodeService]] | None = None,
        make_bus: Callable[[MemoryBroker], MemoryBus] | None = None,
        on_durable: Callable[[Group], None] | None = None,
    ) -> None:
        """`parts` makes, at each start, what runs beside the host; `on_durable` hears of every group that is kept."""
        self.world = world
        self.name = name
        self.agents = tuple(agents)
        self.signer = Ed25519Signer(SimEntropy(world.seed, f"{name}/key").token(32))
        self.up_since_ns = 0
        self.past: list[Logbook] = []
        """Of incarnations whose disk was replaced."""
        self.broker = broker
        """Whom the node is connected with, under its name; None without a bus."""
        self.bus: MemoryBus | None = None
        """The connection to the broker, from its start on."""
        self.link: BusLink | None = None
        """The node's side of its bus, from its start on."""
        self.uplink = uplink
        """What of its log the node sends on, from its next start."""
        self.peers: PeerProcesses | None = None
        self.parts: Sequence[NodeService] = ()
        self._declare = declare
        self._settings = settings
        self._in_memory = in_memory
        self._in_segments = in_segments
        self._sync_lies = sync_lies
        self._part = part
        self._attach = attach
        """Makes the node one of several owners that share its fleet."""
        self.make_parts = parts
        """Makes what runs beside the host, from its next start."""
        self._make_bus = make_bus or (lambda broker: MemoryBus(broker, name))
        self._on_durable = on_durable
        self._sign = signs_as(SITE, name, self.signer, world.loop.time)
        self._journal: WatchedJournal | None = None
        self._live: Live | None = None
        self._views: ViewService | None = None
        self._devices: Devices | None = None
        self._install(1, after_failed_sync)

    def _install(self, incarnation: int, after_failed_sync: AfterFailedSync) -> None:
        """Puts a new computer with an empty disk under the node's name. Its key stays; everything else is new."""
        world, name = self.world, self.name
        self.incarnation = incarnation
        self.clock = SimClock(world.loop)
        self.entropy = SimEntropy(world.seed, name if incarnation == 1 else f"{name}/{incarnation}")
        self.disk = world.make_disk(name, sync_lies=self._sync_lies, after_failed_sync=after_failed_sync)
        self.latency = Latency()
        self.declaration = declaration = self._declare(self)
        self.settings = self._settings or declaration.settings
        identity = JournalIdentity(
            declaration.name, declaration.shards, incarnation, self._part, declaration.homes.key_name
        )
        self.logbook = Logbook(identity, declaration.plans, self.settings.limits)
        self.store = MemoryJournalStore(identity) if self._in_memory else None
        self._view_disk = SimViewDisk()

    def replace_disk(self, after_failed_sync: AfterFailedSync) -> None:
        """A node that is down gets an empty disk under its next incarnation. What only the old one had is gone."""
        self.past.append(self.logbook)
        self._install(self.incarnation + 1, after_failed_sync)

    @property
    def live(self) -> Live | None:
        """The running fleet; None while the machine is down or has lost its disk's power without knowing."""
        return None if self.disk.down else self._live

    @property
    def host(self) -> Host:
        """The running host. Ask only while it runs."""
        if self._live is None:
            raise RuntimeError("the simulated node does not run")
        return self._live.host

    @property
    def lives(self) -> int:
        """How often it was started with its present disk."""
        return self.logbook.lives

    @property
    def alive(self) -> bool:
        """Whether anything can leave the machine."""
        return not self.disk.down and self._journal is not None

    @property
    def journal_key(self) -> bytes:
        """What the frames of a journal in segments are keyed with."""
        return SimEntropy(self.world.seed, f"{self.name}/journal").token(segments.KEY_BYTES)

    def record(self, what: str, detail: Any = None) -> None:
        """Notes what happened on this node."""
        self.world.record(self.name, what, detail)

    def change_declaration(self, declaration: Declaration) -> None:
        """Another version of the program is installed. Only while the node does not run."""
        self.declaration = declaration
        self.logbook.refold(declaration.plans, self.settings.limits)

    async def start(self) -> Live:
        """Opens the journal, recovers, runs. Raises what the shipping code raises; then the machine is off again."""
        self.disk.restart()
        try:
            chance = self.world.chance(f"{self.name}/wait")
            journal = WatchedJournal(self._open(), self.logbook, self.latency, chance, self._durable)
            self._journal = journal
            self.logbook.resume(journal)
            host = open_host(
                self.declaration,
                journal,
                self.signer,
                Ed25519Verifier(),
                self.clock,
                self.settings,
                agents=self.agents,
                connect=self._connect,
                on_unserved=self._not_served,
            )
            journal.owner_failed = lambda: host.failure is not None
            self._views = make_views(self.declaration, host, self._view_disk)
            devices = Devices(host, Inline())
            await start_attached(host, devices)
            if self.peers is not None:
                await self.peers.start()
        except StigmergyError as error:
            self.record("does not start", type(error).__name__)
            await self._die()
            raise
        self.logbook.lives += 1
        self.up_since_ns = self.world.loop.time_ns()
        self.logbook.compare_states(host.recovered.states, f"life {self.lives}, recovered")
        self._devices = devices
        devices.start()
        replication = next((part for part in self.parts if isinstance(part, Replication)), None)
        self._live = Live(host, self.entropy, devices, link=self.link, replication=replication, views=self._views)
        if self.link is not None:
            await self.link.start()
        for part in self.parts:
            await part.start()
        if self._views is not None:
            await self._views.start()
        self.record("started", [list(self.logbook.positions), sorted(host.recovered.snapshots.items())])
        return self._live

    def _not_served(self, watch: str, turns: int) -> None:
        """The host has taken so many turns in a row that left this watch due. In virtual time it would never end."""
        if turns >= TURNS_UNSERVED_MAX:
            loop = self.world.loop
            loop.fail(
                NoProgress(
                    f"seed {self.world.seed}, at {loop.time():g} virtual seconds: {self.name} has taken {turns} turns "
                    f"without progress; the watch that is due is {watch}, and no turn serves it"
                )
            )

    async def lose_power(self) -> None:
        """The machine stops in the middle of whatever it does; the disk keeps what was synced, and some of the rest."""
        if not self.disk.down:
            self.disk.lose_power()
        self._view_disk.lose_power()
        self.record("lost power")
        await self._die()

    async def kill(self) -> None:
        """The process ends; what it has written stays in the system's cache."""
        if not self.disk.down:
            self.disk.kill()
        self.record("killed")
        await self._die()

    async def stop(self) -> None:
        """Stops as a good program does, and compares what was in memory with what is in the log."""
        live, self._live = self._live, None
        if live is not None:
            if self._views is not None:
                await check_views(self._views, live.host, self.logbook)
                await self._views.stop()
            if self._devices is not None:
                await self._devices.stop()
            for part in reversed(self.parts):
                await part.stop()
            if live.link is not None:
                await live.link.stop()
            if self.peers is not None:
                await self.peers.stop()
            await live.host.stop()
            if self._devices is not None:
                await self._devices.close()
            committer = live.host.committer
            if committer.idle and not committer.in_doubt:  # else a disk was too slow, and memory is ahead of its log
                self.logbook.compare_states([shard.state for shard in live.host.shards], "at the stop")
        self._journal = None
        self.disk.kill()
        self.record("stopped", list(self.logbook.positions))

    def _open(self) -> Journal:
        if self.store is not None:
            self.store.owner = None
            return MemoryJournal(self.store)
        if self._in_segments:
            return segments.open_journal(
                "segments:fleet",
                self.logbook.identity,
                inline=True,
                segment_bytes=SEGMENT_BYTES,
                reserve_bytes=RESERVE_BYTES,
                folder=SimFolder(self.disk, "fleet"),
                key=self.journal_key,
            )
        return sqlite.open_journal(
            "sqlite:fleet.db",
            self.logbook.identity,
            inline=True,
            wal_bytes_max=WAL_BYTES_MAX,
            reserve_bytes=RESERVE_BYTES,
            vfs=self.disk.vfs,
            files=self.disk,
        )

    async def _die(self) -> None:
        """Ends everything that ran here. The handles of the disk are dead already or die now."""
        live, self._live = self._live, None
        journal, self._journal = self._journal, None
        devices, self._devices = self._devices, None
        if not self.disk.down:
            self.disk.kill()
        if journal is not None:
            journal.dead = True
        if devices is not None:
            await devices.kill()
        views, self._views = self._views, None
        if views is not None:
            await views.kill()
        parts, self.parts = self.parts, ()
        for part in reversed(parts):
            await part.kill()
        if self.peers is not None:
            await self.peers.stop()
        bus, self.bus = self.bus, None
        if bus is not None and self.broker is not None:
            # The broker sees the connection break; nothing that still runs here reaches it any more.
            self.broker.vanish(self.name)
        if live is not None:
            if live.link is not None:
                await live.link.kill()
            await live.host.kill()
        if devices is not None:
            await devices.close()
        if bus is not None:
            await bus.close()
        if journal is not None:
            with contextlib.suppress(StigmergyError):
                await journal.close()

    def _connect(self, host: Host) -> Connections:
        self.link = None
        if self.broker is not None:
            bus = self.bus = self._make_bus(self.broker)
            signed = self._sign(host.declaration.name, host.settings.bus, bus)
            self.link = BusLink(host, signed, self.entropy, site=SITE, node=self.name, uplink=self.uplink)
        self.peers = None if self._attach is None else self._attach(host)
        self.parts = () if self.make_parts is None else tuple(self.make_parts(self, host))
        store = MemoryStore(self.world.store_server, self.clock)
        place = BlobsAt("memory:", self.declaration.name, self.clock, Inline(), self.settings.blobs, store=store)
        return structs.replace(connections_of(self.link, self.peers, *self.parts), blobs=place.blobs)

    def _durable(self, group: Group) -> None:
        self.record("durable", [[sealed.shard, sealed.position, sealed.digest] for sealed in group.commits])
        if self._on_durable is not None:
            self._on_durable(group)


# A machine of a fleet, over all its lives. As an init system, it restarts a node that is down or has stopped by itself,
# after a moment. As an operator, it gives a node whose journal is refused a fresh disk, under the same name and key.

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
        self.receiver.temper.calm()

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
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(LOOK_S):
                await live.wait_failure()

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
