"""One simulated machine: the real host on a disk that fails, with clocks that jump, in virtual time.

    world = Run(seed=7)                                     # inside world.run(...)
    node = SimNode(world, declare_fleet)
    live = await node.start()
    node.disk.fail(node.disk.calls + 5, Fault.POWER_LOSS)
    await node.lose_power(); await node.start()             # or kill(), or stop()

Only the disk of a node survives a crash, and, outside of it, its senders and the receivers of its orders. Everything
that happens is recorded in the world's trace; two runs of one seed have the same hash.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from typing import Any, Protocol

from stigmergy.base.errors import StigmergyError
from stigmergy.bus.memory import MemoryBroker, MemoryBus
from stigmergy.control.live import Live
from stigmergy.journal import segments, sqlite
from stigmergy.journal.files import Files
from stigmergy.journal.memory import MemoryJournal, MemoryJournalStore
from stigmergy.journal.port import Journal, JournalIdentity
from stigmergy.keys.ed25519 import Ed25519Signer, Ed25519Verifier
from stigmergy.network.bus_link import BusLink
from stigmergy.network.peers import PeerProcesses
from stigmergy.network.replication import Replication
from stigmergy.node.declaration import Declaration
from stigmergy.node.device_tasks import Devices, Inline, start_attached
from stigmergy.node.host import Host, open_host
from stigmergy.node.settings import Settings
from stigmergy.shard.commit import Group
from stigmergy.sim.disk import AfterFailedSync, IoCall, SimDisk, SimFile
from stigmergy.sim.errors import NoProgress
from stigmergy.sim.logbook import Latency, Logbook, WatchedJournal
from stigmergy.sim.loop import SimClock, SimEntropy
from stigmergy.sim.run import Run
from stigmergy.uplink.rules import UplinkRule

# A folder of a simulated disk, for the journal in segments.


class SimFolder:
    """The files of a disk whose names begin with the folder's."""

    def __init__(self, disk: SimDisk, path: str) -> None:
        self._disk = disk
        self.files: Files = disk
        self.path = path

    def make(self) -> None:
        """A folder of a simulated disk is there once a file is in it."""

    def names(self) -> list[str]:
        """What is there, sorted."""
        prefix = f"{self.path}/"
        return [path.removeprefix(prefix) for path in self._disk.paths() if path.startswith(prefix)]

    def size(self, name: str) -> int | None:
        """How many bytes a file has, or None if there is no such file."""
        return self._disk.size(self._of(name))

    def claim(self, name: str) -> SimFile:
        """Claims the file."""
        return self._disk.claim(self._of(name))

    def open(self, name: str, *, create: bool = False) -> SimFile:
        """Opens a file."""
        return self._disk.open(self._of(name), create=create)

    def replace(self, source: str, target: str) -> None:
        """Syncs the source and gives it the target's name, durably."""
        self._disk.replace(self._of(source), self._of(target))

    def remove(self, name: str) -> None:
        """Removes the file."""
        self._disk.remove(self._of(name))

    def sync(self) -> None:
        """Makes names durable."""
        self._disk.sync_folder(self.path)

    def free_bytes(self) -> int:
        """How much room is left."""
        return self._disk.free_bytes(self.path)

    def _of(self, name: str) -> str:
        return f"{self.path}/{name}"


World = Run
"""What tests of the runtime call a run. Users' World is in sim/world.py."""
URL = "sqlite:fleet.db"
WAL_BYTES_MAX = 256 << 10
RESERVE_BYTES = 64 << 10
"""Small, so that a short run goes through checkpoints."""
SEGMENT_BYTES = 64 << 10
"""Small, so that a short run begins several."""
TURNS_UNSERVED_MAX = 100
"""A turn serves all that is due, so one such turn is a bug; the bound leaves room for one that mends itself."""


class NodeService(Protocol):
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
        incarnation: int = 1,
        parts: Callable[[SimNode, Host], Sequence[NodeService]] | None = None,
        make_bus: Callable[[MemoryBroker], MemoryBus] | None = None,
        on_durable: Callable[[Group], None] | None = None,
    ) -> None:
        """`parts` makes, at each start, what runs beside the host; `on_durable` hears of every group that is kept."""
        self.world = world
        self.name = name
        self.clock = SimClock(world.loop)
        life = "" if incarnation == 1 else f"/{incarnation}"
        self.entropy = SimEntropy(world.seed, f"{name}{life}")
        self.disk = world.make_disk(name, sync_lies=sync_lies, after_failed_sync=after_failed_sync)
        self.disk.on_call = self._on_disk_call
        self.latency = Latency()
        self.signer = Ed25519Signer(SimEntropy(world.seed, f"{name}/key").token(32))
        self.declaration = declare(self)
        self.settings = settings or self.declaration.settings
        self.lives = 0
        self.up_since_ns = 0
        self.on_disk_call: Callable[[IoCall], None] | None = None
        self._identity = JournalIdentity(
            self.declaration.name, self.declaration.shards, incarnation, part, self.declaration.homes.key_name
        )
        self._attach = attach
        """Makes the node one of several owners that share its fleet."""
        self.peers: PeerProcesses | None = None
        self._make_parts = parts
        self.parts: Sequence[NodeService] = ()
        self._make_bus = make_bus or (lambda broker: MemoryBus(broker, name))
        self._on_durable = on_durable
        self.logbook = Logbook(self._identity, self.declaration.plans, self.settings.limits)
        self.store = MemoryJournalStore(self._identity) if in_memory else None
        self._in_segments = in_segments
        self._journal: WatchedJournal | None = None
        self._live: Live | None = None
        self._agents = tuple(agents)
        self._devices: Devices | None = None
        self.broker = broker
        """Whom the node is connected with, under its name; None without a bus."""
        self._bus: MemoryBus | None = None
        self.link: BusLink | None = None
        """The node's side of its bus, from its start on."""
        self.uplink = uplink
        """What of its log the node sends on, from its next start."""

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
    def bus(self) -> MemoryBus | None:
        """The connection to the broker, from its start on."""
        return self._bus

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
                agents=self._agents,
            )
            journal.owner_failed = lambda: host.failure is not None
            host.waker.on_unserved = self._not_served
            devices = Devices(host, Inline())
            link = self.link = self._make_link(host)
            self.peers = None if self._attach is None else self._attach(host)
            self.parts = () if self._make_parts is None else tuple(self._make_parts(self, host))
            await start_attached(host, devices)
            if self.peers is not None:
                await self.peers.start()
        except StigmergyError as error:
            self.record("does not start", type(error).__name__)
            await self._die()
            raise
        self.lives += 1
        self.up_since_ns = self.world.loop.time_ns()
        self.logbook.compare_states(host.recovered.states, f"life {self.lives}, recovered")
        self._devices = devices
        devices.start()
        replication = next((part for part in self.parts if isinstance(part, Replication)), None)
        self._live = Live(host, self.entropy, devices, link=link, replication=replication)
        if link is not None:
            await link.start()
        for part in self.parts:
            await part.start()
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
                self._identity,
                inline=True,
                segment_bytes=SEGMENT_BYTES,
                reserve_bytes=RESERVE_BYTES,
                folder=SimFolder(self.disk, "fleet"),
                key=self.journal_key,
            )
        return sqlite.open_journal(
            URL,
            self._identity,
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
        parts, self.parts = self.parts, ()
        for part in reversed(parts):
            await part.kill()
        if self.peers is not None:
            await self.peers.stop()
        bus, self._bus = self._bus, None
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

    def _make_link(self, host: Host) -> BusLink | None:
        if self.broker is None:
            return None
        self._bus = self._make_bus(self.broker)
        return BusLink(host, self._bus, self.entropy, site="local", node=self.name, uplink=self.uplink)

    def _durable(self, group: Group) -> None:
        self.record("durable", [[sealed.shard, sealed.position, sealed.digest] for sealed in group.commits])
        if self._on_durable is not None:
            self._on_durable(group)

    def _on_disk_call(self, call: IoCall) -> None:
        if self.on_disk_call is not None:
            self.on_disk_call(call)
