"""Replicates the shared fields of a host with other nodes: the I/O around crdt/anti_entropy.

Create it before the host starts, so that no change is missed; call `start` after the host's, when everything on disk is
known, and `stop` before it. The machine learns only what the host has on disk. What the machine hands over becomes an
input of the agent, one at a time for each field, and is acknowledged to its sender when it is on disk. Everything runs
in plain functions on the event loop. Without peers nothing is sent, and agents write as always.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial

from msgspec import Struct, structs

from stigmergy.agents.messages import SECOND_NS
from stigmergy.agents.shared import (
    DELTAS_BYTES_MAX,
    STATE_BYTES_MAX,
    Merged,
    SharedChanged,
    SharedField,
    replica_id,
    replica_seed,
)
from stigmergy.base.clock import Entropy
from stigmergy.base.errors import NotRunning, StigmergyError
from stigmergy.base.trust import Signer
from stigmergy.crdt.anti_entropy.authorship import NodeIdentity, Quarantined, Trust
from stigmergy.crdt.anti_entropy.context import BehindPeer, SharedStatus
from stigmergy.crdt.anti_entropy.held_object import PendingMerge
from stigmergy.crdt.anti_entropy.machine import AntiEntropy
from stigmergy.crdt.anti_entropy.rules import ClockReading, Rules
from stigmergy.crdt.delta import read_delta
from stigmergy.crdt.store import ReplicaStore
from stigmergy.crdt.value import SharedValue
from stigmergy.diagnostics.codes import Trouble, coded
from stigmergy.membership.mesh import Mesh
from stigmergy.metrics.histogram import Histogram
from stigmergy.metrics.samples import SampleSheet
from stigmergy.node.host import Connections, Host
from stigmergy.node.settings import SharedSettings
from stigmergy.shard.inputs import SharedReceived

# Which field of which agent is a replica of which object, and what of it is on disk.


class SharedReplica(Struct, frozen=True):
    """A shared field of an agent here."""

    object: str
    replica: bytes
    """Under which id it writes."""
    shard: int
    agent: str
    field: str


class SharedReplicas:
    """All shared fields of all agents of one host."""

    def __init__(self, host: Host) -> None:
        self._host = host
        self._by_field: dict[tuple[str, str], SharedReplica] = {}
        self._by_replica: dict[tuple[str, bytes], SharedReplica] = {}
        self._apart: dict[tuple[str, str], str] = {}
        """Fields that belong to no object, by kind and name: why, for the first agent."""

    def __len__(self) -> int:
        return len(self._by_field)

    def agents(self) -> Iterator[str]:
        """The addresses of all agents with shared fields, in the order of the shards."""
        for shard in self._host.shards:
            for address in list(shard.state.agents):
                if self._fields(address) and address not in shard.state.at_rest:
                    yield address

    def take(self, address: str) -> list[tuple[SharedReplica, ReplicaStore, SharedValue]]:
        """The shared fields of an agent that were not known yet, with what is on disk of them and an empty value.

        Without those that `shared(by=…)` has no group for: it may be another function since the agent was made. The
        agent goes on with what it has, alone.
        """
        agent = self._host.durable_image(address)
        if agent is None:
            return []
        kind, _, agent_id = address.partition("/")
        shard = self._host.intake.shard_of(address)
        replica = self._host.shards[shard].state.replica_of(address)
        taken: list[tuple[SharedReplica, ReplicaStore, SharedValue]] = []
        for name, field in self._fields(address).items():
            if (address, name) not in self._by_field:
                store: ReplicaStore = getattr(agent, name).store
                try:
                    place = SharedReplica(field.object_of(kind, agent_id), replica, shard, address, name)
                except Exception as error:  # a function of the user's may raise anything
                    self._apart.setdefault((kind, name), f"{address}, {type(error).__name__}: {error}")
                    continue
                self._by_field[address, name] = place
                self._by_replica[place.object, place.replica] = place
                taken.append((place, store, field.initial))
        return taken

    def of_field(self, address: str, field: str) -> SharedReplica | None:
        """The place of a field of an agent; None for a field that is not shared any more."""
        return self._by_field.get((address, field))

    def of_replica(self, name: str, replica: bytes) -> SharedReplica:
        """The place of a replica of ours."""
        return self._by_replica[name, replica]

    def durable(self, place: SharedReplica) -> ReplicaStore:
        """What is on disk of it."""
        value: SharedValue = getattr(self._host.durable_image(place.agent), place.field)
        return value.store

    def troubles(self) -> list[str]:
        """Which fields are not shared, for one agent or more."""
        return [
            f"{kind}.{name} is not shared by agents that belong to no group: {why}; give shared(by=…) a function that "
            "answers for every agent there is, and start again"
            for (kind, name), why in self._apart.items()
        ]

    def _fields(self, address: str) -> dict[str, SharedField]:
        plan = self._host.declaration.plans.get(address.partition("/")[0])
        return {} if plan is None else plan.shared


SEED_BYTES = 16
TICK_S_MIN = 0.001
"""No tick sooner: a clock that stands still must not keep the loop busy."""
TICK_S_MAX = 1.0
"""No tick later: a clock that jumps must not put digests off, and somebody may have joined."""
FRAME_BYTES = 4 * 1024
"""What a state may have around it on its way."""

ListMembers = Callable[[], Sequence[str]]
"""The names of all members, as far as is known; our own may be among them."""
Shared = tuple[str, SharedChanged | Merged | None]


BEHIND_TOLD_MAX = 100
COMPARED_COUNT_MAX = 1_000
"""Objects whose convergence is measured, by name; of more, the first."""
COMPARED_EVERY_NS = SECOND_NS // 4


class Convergence:
    """How long nodes are not in step with what is on disk here, found by looking four times a second at most."""

    def __init__(self) -> None:
        self._since_ns: dict[tuple[str, str], int] = {}
        self._looked_ns = 0
        self._took = Histogram()

    def look(self, machine: AntiEntropy, now_ns: int) -> None:
        """Compares what nodes have last told with what is here."""
        if now_ns - self._looked_ns < COMPARED_EVERY_NS:
            return
        self._looked_ns = now_ns
        behind: dict[tuple[str, str], int] = {}
        for held in machine.objects[:COMPARED_COUNT_MAX]:
            for node, in_step in machine.holders(held.name).items():
                since_ns = self._since_ns.get((held.name, node))
                if not in_step:
                    behind[held.name, node] = now_ns if since_ns is None else since_ns
                elif since_ns is not None:
                    self._took.observe(now_ns - since_ns)
        self._since_ns = behind

    def behind(self, now_ns: int) -> tuple[BehindPeer, ...]:
        """Who is not in step, the longest first, at most so many."""
        found = sorted((since_ns, *key) for key, since_ns in self._since_ns.items())
        return tuple(
            BehindPeer(name, node, (now_ns - since_ns) / SECOND_NS) for since_ns, name, node in found[:BEHIND_TOLD_MAX]
        )

    def longest_s(self, name: str, nodes: Iterable[str], now_ns: int) -> float | None:
        """How long the first of these nodes is not in step with an object; None if all are, or it is not measured."""
        since = [self._since_ns[name, node] for node in nodes if (name, node) in self._since_ns]
        return (now_ns - min(since)) / SECOND_NS if since else None

    def measure(self, sheet: SampleSheet, now_ns: int) -> None:
        """Adds what was found."""
        longest = self.behind(now_ns)[:1]
        sheet.observe("stigmergy_convergence_seconds", self._took)
        sheet.put("stigmergy_shared_behind", len(self._since_ns))
        sheet.put("stigmergy_shared_behind_seconds", longest[0].seconds if longest else 0)


class Replicator:
    """The other nodes' side of a host's shared fields."""

    def __init__(
        self,
        host: Host,
        mesh: Mesh,
        signer: Signer,
        entropy: Entropy,
        list_members: ListMembers,
        *,
        trusted: Sequence[bytes] | None = None,
        settings: SharedSettings | None = None,
    ) -> None:
        self._host = host
        self._mesh = mesh
        self._list_members = list_members
        self._places = SharedReplicas(host)
        fleet, chance = host.declaration.name, random.Random(entropy.token(SEED_BYTES))
        self.machine = AntiEntropy(
            NodeIdentity(fleet, mesh.node, signer.algorithm, signer.public_key, host.replica_incarnation),
            Trust(
                sign=signer.sign,
                verify=host.verifier.verify,
                acceptable=host.verifier.acceptable,
                id_of=lambda key, incarnation, address: replica_id(replica_seed(fleet, key, incarnation), address),
                trusted=None if trusted is None else frozenset(trusted),
            ),
            lambda count, of: chance.sample(range(of), count),
            mesh.bytes_max,
            rules_of(settings or host.settings.shared),
        )
        self._members: tuple[str, ...] | None = None
        self._declined: dict[str, str] = {}
        """Why the host did not take something, by object, until it takes something again."""
        self._timer: asyncio.TimerHandle | None = None
        self._timer_ns = 0
        self._flushes = False
        self._running = False
        self.convergence = Convergence()
        self._merges = Histogram()
        self._sent_bytes = self._heard_bytes = 0

    # ------------------------------------------------------------------ life

    @property
    def connections(self) -> Connections:
        """What the host calls of it."""
        return Connections(shared=self._shared)

    async def start(self) -> None:
        """Takes stock of what is on disk, and begins to listen and to speak. The host has started."""
        await self._mesh.open(self._hear)
        self._running = True
        for address in self._places.agents():
            self._hold(address)
        self.look()
        self._tick()

    async def stop(self) -> None:
        """Sends what is durable and was not sent yet, and ends. The host still runs."""
        if self._running:
            self._flush()
        await self.kill()

    async def kill(self) -> None:
        """Ends at once and says nothing, as a crash would."""
        self._running = False
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        await self._mesh.close()

    def look(self) -> None:
        """Reads the list of members: at each tick, and whenever a member joins or leaves."""
        if not self._running:
            return
        members = tuple(sorted(self._list_members()))
        if members != self._members:
            self._members = members
            self.machine.members(list(members), self._moment())
            self._flush_soon()

    # ------------------------------------------------------------------ for people

    def standing(self) -> SharedStatus:
        """How this node stands with the others."""
        objects = self.machine.objects
        return SharedStatus(
            objects=len(objects),
            replicas=len(self._places),
            peers=self.machine.peers_count,
            waiting=sum(len(held.waiting) for held in objects),
            unacknowledged=self.machine.unacknowledged_count,
            diverged=tuple(held.name for held in objects if held.diverged),
            quarantined=tuple(one.key.hex() for one in self.machine.quarantined()),
            behind=self.convergence.behind(self._host.clock.monotonic_ns()),
        )

    def counters(self) -> dict[str, int]:
        """What became of changes and messages."""
        mesh = {f"shared_mesh_{name}": value for name, value in structs.asdict(self._mesh.counters).items()}
        return {**structs.asdict(self.machine.counters), **mesh}

    def measure(self, sheet: SampleSheet) -> None:
        """What this node measures of its shared state."""
        sheet.put("stigmergy_delta_bytes_total", self._heard_bytes, direction="in")
        sheet.put("stigmergy_delta_bytes_total", self._sent_bytes, direction="out")
        sheet.observe("stigmergy_merge_seconds", self._merges)
        self.convergence.measure(sheet, self._host.clock.monotonic_ns())

    def troubles(self) -> list[Trouble]:
        """What does not mend itself: lies, states that are too large, types that do not fit, fields without a group."""
        texts = (*self.machine.troubles(), *self._declined.values(), *self._places.troubles())
        return coded("shared-trouble", texts)

    def quarantined(self) -> list[Quarantined]:
        """Quarantined replicas, and why."""
        return self.machine.quarantined()

    def lift_quarantine(self, key: bytes) -> bool:
        """An operator trusts this key again; False if it was not shut out."""
        return self.machine.lift(key)

    def retire(self, name: str, replica: bytes) -> bool:
        """An operator declares a replica dead: it leaves the vectors that nodes tell each other. False if unknown."""
        return self.machine.retire(name, replica, self._moment())

    def behind_s(self, name: str) -> float | None:
        """How long some node is not in step with an object of ours; None if all are, or nobody knows."""
        nodes = self.machine.holders(name)
        return self.convergence.longest_s(name, nodes, self._host.clock.monotonic_ns())

    def unheard(self, name: str) -> list[str]:
        """Members that may hold an object of ours, and have said nothing for a while."""
        return self.machine.unheard(name, self._moment())

    def retired(self, name: str) -> tuple[bytes, ...]:
        """Which replicas of an object of ours are left out of the vectors that nodes tell each other."""
        return self.machine.retired(name, self._moment())

    # ------------------------------------------------------------------ what the host says

    def _shared(self, shard: int, changes: list[Shared]) -> None:
        """Changes of shared fields are on disk, or agents that have such fields."""
        if not self._running:
            return
        for address, event in changes:
            if event is None:
                self._hold(address)
            elif isinstance(event, SharedChanged):
                place = self._places.of_field(address, event.field)
                if place is not None:
                    delta = read_delta(event.delta)
                    self.machine.written(place.object, place.replica, delta, self._places.durable(place))
        self._flush_soon()

    def _hold(self, address: str) -> None:
        for place, store, kind in self._places.take(address):
            self.machine.hold(place.object, place.replica, address, store, self._moment(), kind)

    # ------------------------------------------------------------------ what others say, and time

    def _hear(self, sender: str, body: bytes) -> None:
        if self._running:
            self._heard_bytes += len(body)
            self.machine.step(sender, body, self._moment())
            self._flush_soon()

    def _tick(self) -> None:
        self._timer = None
        if self._running and self._host.failure is None:
            self.look()
            self.machine.tick(self._moment())
            if self._host.measures is not None:
                self.convergence.look(self.machine, self._host.clock.monotonic_ns())
            self._flush()

    def _arm(self) -> None:
        """One timer, for the earliest wish. One that comes too early does no harm."""
        now_ns = self._host.clock.monotonic_ns()
        next_ns = self.machine.next_ns
        wake_ns = now_ns + int(TICK_S_MAX * SECOND_NS)
        if next_ns is not None:
            wake_ns = min(wake_ns, next_ns)
        if self._timer is not None:
            if self._timer_ns <= wake_ns:
                return
            self._timer.cancel()
        self._timer_ns = wake_ns
        delay_s = max(TICK_S_MIN, (wake_ns - now_ns) / SECOND_NS)
        self._timer = asyncio.get_running_loop().call_later(delay_s, self._tick)

    def _moment(self) -> ClockReading:
        clock = self._host.clock
        return ClockReading(clock.monotonic_ns(), clock.wall_ns())

    # ------------------------------------------------------------------ what goes out

    def _flush_soon(self) -> None:
        """What comes within one turn of the loop is sent, signed and handed over together."""
        if not self._flushes:
            self._flushes = True
            asyncio.get_running_loop().call_soon(self._flush)

    def _flush(self) -> None:
        self._flushes = False
        if not self._running or self._host.failure is not None:
            return
        ready = self.machine.ready(self._moment())
        for to, data in ready.datagrams:
            self._mesh.send_nowait(to, data)
            self._sent_bytes += len(data)
        for merge in ready.merges:
            self._merge(merge)
        self._arm()

    def _merge(self, merge: PendingMerge) -> None:
        place = self._places.of_replica(merge.object, merge.replica)
        received = SharedReceived(place.agent, place.field, merge.deltas, merge.state)
        try:
            taken = self._host.intake.take(place.shard, received)
        except StigmergyError as error:
            self._refused(place, error)
            return
        taken.add_done_callback(partial(self._taken, place, self._host.clock.monotonic_ns()))

    def _taken(self, place: SharedReplica, began_ns: int, done: asyncio.Future[None]) -> None:
        """What was handed over is on disk, or it was not taken."""
        error = NotRunning("cancelled") if done.cancelled() else done.exception()
        if not self._running:
            return
        if error is not None:
            self._refused(place, error)
        else:
            self._merges.observe(self._host.clock.monotonic_ns() - began_ns)
            self._declined.pop(place.object, None)
            self.machine.merged(place.object, place.replica, self._places.durable(place), self._moment())
        self._flush_soon()

    def _refused(self, place: SharedReplica, error: BaseException) -> None:
        if not isinstance(error, NotRunning):
            self._declined[place.object] = f"shared object '{place.object}': not taken from peers: {error}"
        self.machine.declined(place.object, place.replica, self._moment())


def rules_of(settings: SharedSettings) -> Rules:
    """What a machine keeps to, by these settings and by what a host takes at once."""
    return Rules(
        interval_ns=int(settings.interval_s * SECOND_NS),
        interval_ns_by_peer={
            node: int(interval_s * SECOND_NS) for node, interval_s in settings.interval_s_by_node.items()
        },
        fan_out=settings.fan_out,
        resend_ns=int(settings.resend_s * SECOND_NS),
        buffer_bytes_max=settings.buffer_bytes_max,
        batch_bytes_max=DELTAS_BYTES_MAX // 2,
        merge_bytes_max=DELTAS_BYTES_MAX // 2,
        body_bytes_max=STATE_BYTES_MAX + FRAME_BYTES,
        skew_ns_max=int(settings.skew_s * SECOND_NS),
        retire_ns=int(settings.retire_after_s * SECOND_NS),
    )
