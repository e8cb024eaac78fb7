"""A network of meshes in one process, with configurable faults: nodes are names, faults are drawn from a seed.

    network = Network(seed=7)
    mesh = network.mesh("drone-7")                        # the Mesh port
    network.faults = LinkFaults(loss=0.2, jitter_s=0.05)  # for all links, from now on
    network.set_link("a", "b", LinkFaults(loss=1.0))      # one link, one way
    network.partition(("a", "b"), ("c",)); network.cut("a", "b", both=False)
    network.heal()                                        # cuts and partitions are over; `calm` ends faults as well
    network.crash("drone-7")                              # its mesh is dead; network.mesh("drone-7") is its next life

Runs on any event loop; in virtual time one seed gives one history, on every machine: probabilities are compared and
delays computed by operations that IEEE 754 rounds exactly. Each sender has its own random stream, so that one more
datagram here changes no fault there. Without faults nothing is lost and everything arrives in order, 1 ms later.
"""

from __future__ import annotations

import asyncio
import math
import random
from collections.abc import Callable, Sequence
from contextvars import Context

from msgspec import Struct

from stigmergy.base.errors import Bug
from stigmergy.membership.mesh import PACKET_BYTES, Hear, MeshCounters, check_datagram, is_node_name

DELAY_S_MAX = 2.0
"""No datagram is under way for longer, unless the faults of its link say so."""
FLIPPED_COUNT_MAX = 3
"""Bytes that are changed in a damaged datagram."""
UNDER_WAY_COUNT_MAX = 1_000_000
"""Datagrams on their way in the whole network; what is sent beyond that is lost, and counted as overflowed."""


class LinkFaults(Struct, frozen=True):
    """How one direction of a link behaves. Shares are of datagrams, from 0 to 1."""

    loss: float = 0.0
    duplication: float = 0.0
    reordering: float = 0.0
    """So many are held up for up to `held_s` more, so that later ones overtake them."""
    corruption: float = 0.0
    delay_s: float = 0.001
    """The least time a datagram takes."""
    jitter_s: float = 0.0
    """What is added on average: most get less, a few get very much more."""
    heavy: bool = True
    """Whether the added time has a heavy tail (Lomax, shape 2); otherwise it is uniform, up to twice the average."""
    delay_s_max: float = DELAY_S_MAX
    held_s: float = 0.1

    def __post_init__(self) -> None:
        for name in ("loss", "duplication", "reordering", "corruption"):
            if not 0 <= getattr(self, name) <= 1:
                raise ValueError(f"{name} of {getattr(self, name)}: a share is from 0 to 1")
        if not (0 <= self.delay_s <= self.delay_s_max < math.inf and self.jitter_s >= 0 and self.held_s >= 0):
            raise ValueError(f"delays {self}: not negative, and `delay_s_max` not less than `delay_s`")


CALM = LinkFaults()


class NetworkCounters(Struct):
    """What became of all datagrams."""

    sent_count: int = 0
    sent_bytes: int = 0
    delivered_count: int = 0
    lost_count: int = 0
    duplicated_count: int = 0
    reordered_count: int = 0
    corrupted_count: int = 0
    cut_count: int = 0
    """Lost to a cut or a partition."""
    absent_count: int = 0
    """Arrived where nobody listened."""
    overflowed_count: int = 0


Watch = Callable[[str, str, str, bytes], None]
"""Told of each step of each datagram: what, from whom, to whom, and the body.

What is `sent`, `delivered`, `lost`, `duplicated`, `corrupted`, `cut`, `absent` or `overflowed`.
"""


class Network:
    """All nodes of one simulation and the links between them."""

    def __init__(self, seed: int, *, bytes_max: int = PACKET_BYTES, faults: LinkFaults = CALM) -> None:
        self.faults = faults
        """Of every link that has none of its own."""
        self.counters = NetworkCounters()
        self.watch: Watch | None = None
        self._seed = seed
        self._bytes_max = bytes_max
        self._meshes: dict[str, list[SimMesh]] = {}
        """Mostly one for a name; two that use the same name both hear what is sent to it, as on a bus."""
        self._chances: dict[str, random.Random] = {}
        self._links: dict[tuple[str, str], LinkFaults] = {}
        self._cuts: dict[tuple[str, str], None] = {}
        self._sides: dict[str, int] = {}
        """Which part of a partition a node is in; those that are not named are in part 0."""
        self._parted = False
        self._under_way_count = 0

    # Nodes.

    def mesh(self, node: str, context: Context | None = None) -> SimMesh:
        """A mesh for this name: a new node, or the next life of one that crashed.

        With a context, what it hears waits while the machine of that context is held up.
        """
        return SimMesh(self, node, self._bytes_max, context)

    def crash(self, node: str) -> None:
        """The node is gone without a word: it hears and sends nothing more. What is under way to it finds its heir."""
        for mesh in self._meshes.pop(node, []):
            mesh.is_dead = True

    def nodes(self) -> list[str]:
        """Who listens, by name."""
        return sorted(self._meshes)

    # Links.

    def set_link(self, sender: str, to: str, faults: LinkFaults | None) -> None:
        """Gives one direction of one link faults of its own; None gives it those of all."""
        if faults is None:
            self._links.pop((sender, to), None)
        else:
            self._links[sender, to] = faults

    def cut(self, one: str, other: str, *, both: bool = True) -> None:
        """Nothing passes from one to the other any more; nor back, unless told so. What is under way is lost, too."""
        self._cuts[one, other] = None
        if both:
            self._cuts[other, one] = None

    def mend(self, one: str, other: str) -> None:
        """Takes back the cuts between these two, both ways. A partition stays."""
        self._cuts.pop((one, other), None)
        self._cuts.pop((other, one), None)

    def partition(self, *parts: Sequence[str]) -> None:
        """Nothing passes between the parts; who is in none of them is in one more. Replaces an earlier partition."""
        self._sides = {node: number for number, part in enumerate(parts, start=1) for node in part}
        self._parted = bool(parts)

    def isolate(self, node: str) -> None:
        """Cuts a node from everybody who listens now, both ways."""
        for other in self.nodes():
            if other != node:
                self.cut(node, other)

    def heal(self) -> None:
        """All cuts and partitions are over. Loss, delay and the like stay."""
        self._cuts.clear()
        self.partition()

    def calm(self) -> None:
        """Heals, and ends all faults."""
        self.heal()
        self._links.clear()
        self.faults = CALM

    def passes(self, sender: str, to: str) -> bool:
        """Whether there is a way from one to the other now."""
        if (sender, to) in self._cuts:
            return False
        return not self._parted or self._sides.get(sender, 0) == self._sides.get(to, 0)

    # What meshes do.

    def _enter(self, mesh: SimMesh) -> None:
        self._meshes.setdefault(mesh.node, []).append(mesh)

    def _leave(self, mesh: SimMesh) -> None:
        there = [other for other in self._meshes.get(mesh.node, []) if other is not mesh]
        if there:
            self._meshes[mesh.node] = there
        else:
            self._meshes.pop(mesh.node, None)

    def _send(self, sender: str, to: str, body: bytes) -> None:
        counters, watch = self.counters, self.watch
        counters.sent_count += 1
        counters.sent_bytes += len(body)
        if watch is not None:
            watch("sent", sender, to, body)
        if not self.passes(sender, to):
            counters.cut_count += 1
            if watch is not None:
                watch("cut", sender, to, body)
            return
        faults = self._links.get((sender, to), self.faults) if self._links else self.faults
        if faults is CALM:
            self._launch(CALM.delay_s, sender, to, body)
            return
        chance = self._chances.get(sender)
        if chance is None:
            chance = self._chances[sender] = random.Random(f"stigmergy.sim.network/{self._seed}/{sender}")
        if faults.loss and chance.random() < faults.loss:
            counters.lost_count += 1
            if watch is not None:
                watch("lost", sender, to, body)
            return
        if faults.duplication and chance.random() < faults.duplication:
            counters.duplicated_count += 1
            if watch is not None:
                watch("duplicated", sender, to, body)
            self._launch(self._delay_s(faults, chance), sender, to, body)
        if faults.corruption and body and chance.random() < faults.corruption:
            counters.corrupted_count += 1
            body = _damaged(body, chance)
            if watch is not None:
                watch("corrupted", sender, to, body)
        self._launch(self._delay_s(faults, chance), sender, to, body)

    def _delay_s(self, faults: LinkFaults, chance: random.Random) -> float:
        delay_s = faults.delay_s
        if faults.jitter_s:
            drawn = chance.random()
            # A power would depend on the machine's library; a square root is rounded exactly everywhere.
            delay_s += faults.jitter_s * (1 / math.sqrt(1 - drawn) - 1 if faults.heavy else 2 * drawn)
        if faults.reordering and chance.random() < faults.reordering:
            self.counters.reordered_count += 1
            delay_s += faults.held_s * chance.random()
        return min(delay_s, faults.delay_s_max)

    def _launch(self, delay_s: float, sender: str, to: str, body: bytes) -> None:
        if self._under_way_count >= UNDER_WAY_COUNT_MAX:
            self.counters.overflowed_count += 1
            if self.watch is not None:
                self.watch("overflowed", sender, to, body)
            return
        self._under_way_count += 1
        asyncio.get_running_loop().call_later(delay_s, self._arrive, sender, to, body)

    def _arrive(self, sender: str, to: str, body: bytes) -> None:
        self._under_way_count -= 1
        counters = self.counters
        meshes = self._meshes.get(to)
        if not self.passes(sender, to):
            counters.cut_count += 1
            what = "cut"
        elif meshes is None:
            counters.absent_count += 1
            what = "absent"
        else:
            counters.delivered_count += 1
            what = "delivered"
        if self.watch is not None:
            self.watch(what, sender, to, body)
        if what == "delivered" and meshes is not None:
            for mesh in list(meshes):
                mesh._take(sender, body)


class SimMesh:
    """One node's mesh (the Mesh port) in a Network."""

    def __init__(self, network: Network, node: str, bytes_max: int, context: Context | None = None) -> None:
        if not is_node_name(node):
            raise ValueError(f"no node can be called {node!r}")
        self.node = node
        self.bytes_max = bytes_max
        self.contact = ""
        self.counters = MeshCounters()
        self.is_dead = False
        """Crashed or closed."""
        self._network = network
        self._context = context
        self._hear: Hear | None = None

    async def open(self, hear: Hear) -> None:
        """Begins to listen."""
        if self._hear is not None or self.is_dead:
            raise Bug(f"the mesh of {self.node} was opened before; make a new one for a new life")
        self._hear = hear
        self._network._enter(self)

    def send_nowait(self, to: str, body: bytes) -> None:
        """Sends a datagram; what becomes of it the network's faults say."""
        check_datagram(to, body, self.bytes_max)
        if self._hear is None or self.is_dead or to == self.node:
            self.counters.dropped_count += 1
            return
        self.counters.sent_count += 1
        self.counters.sent_bytes += len(body)
        self._network._send(self.node, to, body)

    def introduce(self, node: str, contact: str) -> None:
        """Does nothing: a name is enough here."""

    async def close(self) -> None:
        """Leaves the network."""
        self.is_dead = True
        self._network._leave(self)

    def _take(self, sender: str, body: bytes) -> None:
        if self._hear is not None and not self.is_dead:
            self.counters.received_count += 1
            self.counters.received_bytes += len(body)
            if self._context is None:
                self._hear(sender, body)
            else:
                asyncio.get_running_loop().call_soon(self._hear, sender, body, context=self._context.copy())


def _damaged(body: bytes, chance: random.Random) -> bytes:
    """The body with some bytes changed or its end missing; never the same bytes."""
    if chance.random() < 0.25:
        return body[: chance.randrange(len(body))]
    changed = bytearray(body)
    for _ in range(chance.randint(1, FLIPPED_COUNT_MAX)):
        place = chance.randrange(len(changed))
        changed[place] = (changed[place] + chance.randint(1, 80)) % 256  # three times 80 does not come round to 0
    return bytes(changed)
