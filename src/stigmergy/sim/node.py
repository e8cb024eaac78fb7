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

import asyncio
import contextlib
import copy
import random
from collections.abc import Awaitable, Callable, Generator, Sequence
from typing import Any, Protocol

from msgspec import Struct

from stigmergy.agents.codec import encode
from stigmergy.agents.effects import Order
from stigmergy.agents.messages import Action, spec_of
from stigmergy.base.errors import StigmergyError
from stigmergy.bus.memory import MemoryBroker, MemoryBus
from stigmergy.control.live import Live
from stigmergy.devices.staleness import safe_actions_of
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
from stigmergy.sim.disk import AfterFailedSync, SimFolder
from stigmergy.sim.errors import NoProgress
from stigmergy.sim.logbook import Latency, Logbook, WatchedJournal
from stigmergy.sim.loop import SimClock, SimEntropy
from stigmergy.sim.run import Run
from stigmergy.uplink.rules import UplinkRule

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
        self._make_parts = parts
        self._make_bus = make_bus or (lambda broker: MemoryBus(broker, name))
        self._on_durable = on_durable
        self._journal: WatchedJournal | None = None
        self._live: Live | None = None
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
        self._live = Live(host, self.entropy, devices, link=self.link, replication=replication)
        if self.link is not None:
            await self.link.start()
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
            self.bus = self._make_bus(self.broker)
            self.link = BusLink(host, self.bus, self.entropy, site="local", node=self.name, uplink=self.uplink)
        self.peers = None if self._attach is None else self._attach(host)
        self.parts = () if self._make_parts is None else tuple(self._make_parts(self, host))
        return connections_of(self.link, self.peers, *self.parts)

    def _durable(self, group: Group) -> None:
        self.record("durable", [[sealed.shard, sealed.position, sealed.digest] for sealed in group.commits])
        if self._on_durable is not None:
            self._on_durable(group)


# The devices of a node, which survive its crashes, and a declaration that uses them in place of real ones.

SAFE = ".safe."
"""What the key of a safe action has in it."""


class Carried(Struct, frozen=True):
    """An order that was carried out, the first time."""

    agent: str
    tag: str
    body: bytes
    time_ns: int
    token: int
    sequence: int


class Temper(Struct):
    """How a network or a device behaves; changed while the simulation runs."""

    loss: float = 0.0
    repeat: float = 0.0
    delay_s: float = 0.0
    fail: float = 0.0


class Receiver:
    """The devices: each order is carried out once, whatever is repeated."""

    def __init__(self, node: SimNode, chance: random.Random) -> None:
        self._node = node
        self._disk = node.disk
        self._chance = chance
        self.temper = Temper()
        self.carried: dict[str, Carried] = {}
        """By key, in the order of the first time."""
        self.failed_keys: dict[str, None] = {}
        """Orders that a device has failed at least once."""
        self.safe_tried_ns: dict[str, int] = {}
        """Per agent when a safe action last went out, whether the device took it or not."""
        self.safe_tries: dict[str, list[int]] = {}
        """Per agent all such times."""
        self.safe: list[Carried] = []
        self.on_carried: Callable[[Order[Any]], None] | None = None
        """Told of each order, the first time."""
        self.repeats = 0
        self.findings: list[str] = []

    def act(self, order: Order[Any]) -> None:
        """Carries out an order at once."""
        if self._node_lives:
            self.note_try(order)
            if self._chance.random() < self.temper.fail / 2:
                self.failed_keys[order.key] = None
                raise OSError("the device did not answer")
            self._carry_out(order)
            if self._chance.random() < self.temper.fail / 2:
                raise OSError("the device has acted, but its answer is lost")

    async def act_slowly(self, order: Order[Any]) -> None:
        """Carries out an order in the course of some time."""
        await self._take_time()
        self.act(order)
        await self._take_time()

    def note_try(self, order: Order[Any]) -> None:
        """A safe action has reached the devices, whatever becomes of it."""
        if SAFE in order.key and self._node_lives:
            self.safe_tried_ns[order.agent] = now_ns = self._node.world.loop.time_ns()
            self.safe_tries.setdefault(order.agent, []).append(now_ns)

    async def _take_time(self) -> None:
        if self.temper.delay_s:
            await asyncio.sleep(self._chance.uniform(0, self.temper.delay_s))
        if not self._node_lives:
            # The machine is down: the caller is about to be told so. Nothing leaves it any more.
            await asyncio.get_running_loop().create_future()

    def _carry_out(self, order: Order[Any]) -> None:
        body = encode(order.effect)
        tag = spec_of(type(order.effect)).tag
        time_ns = self._node.world.loop.time_ns()
        carried = Carried(order.agent, tag, body, time_ns, order.token, order.sequence)
        known = self.carried.get(order.key)
        if known is not None:
            self.repeats += 1
            if (known.agent, known.tag, known.body, known.token) != (order.agent, tag, body, order.token):
                self.findings.append(f"key {order.key}: was {known.tag} of {known.agent}, is {tag} of {order.agent}")
            return
        self.carried[order.key] = carried
        if SAFE in order.key:
            self.safe.append(carried)
        else:
            self._check_is_durable(order, body)
        self._node.record("carried out", [order.key, order.agent, tag])
        if self.on_carried is not None:
            self.on_carried(order)

    @property
    def _node_lives(self) -> bool:
        """A node with a new disk has new devices: to these it never comes back."""
        return self._node.alive and self._node.disk is self._disk

    def _check_is_durable(self, order: Order[Any], body: bytes) -> None:
        """Journal before effect: the commit behind the order must be durable at this very moment."""
        _, shard, position, index = (int(part) for part in order.key.split("."))
        commits = self._node.logbook.commits[shard]
        if position > len(commits):
            self.findings.append(f"order {order.key} went out, but {len(commits)} commits of shard {shard} are durable")
            return
        owed = commits[position - 1].owed
        if index >= len(owed) or (owed[index].agent, owed[index].body) != (order.agent, body):
            self.findings.append(f"order {order.key} of {order.agent} is not what the log owes at that place")


def equip(fleet: Declaration, receiver: Receiver, *, devices: bool) -> Declaration:
    """The same fleet with simulated actuators: `receiver`, which keeps marks, carries out every action.

    Workers stay as they are: their results are part of the design under test. Sensors, control loops and attachments
    are left out, and the test provides observations. With `devices` all of them run as declared.
    """
    made = copy.copy(fleet)
    if devices:
        return made

    def actuator(order: Order[Any]) -> Awaitable[None] | None:
        if receiver.temper.delay_s:
            return Slowly(receiver, order)
        receiver.act(order)
        return None

    actuators = dict(fleet._actuators)
    for tag, (effect, _) in fleet._actuators.items():
        if issubclass(effect, Action):
            actuators[tag] = (effect, actuator)
    for plan in fleet.plans.values():
        for action in safe_actions_of(plan):
            actuators.setdefault(spec_of(type(action)).tag, (type(action), actuator))
    made._actuators = actuators
    made._batched = {tag: (action, _take_all) for tag, (action, _) in fleet._batched.items()}
    made.sensors, made.loops, made.attachments = {}, {}, []
    return made


class Slowly:
    """An order that takes time. Not a coroutine: one that a crash comes before would never be awaited."""

    def __init__(self, receiver: Receiver, order: Order[Any]) -> None:
        self._receiver = receiver
        self._order = order
        receiver.note_try(order)

    def __await__(self) -> Generator[Any, None, None]:
        return self._receiver.act_slowly(self._order).__await__()


def _take_all(orders: Any) -> None:
    """Confirms a block of orders."""
