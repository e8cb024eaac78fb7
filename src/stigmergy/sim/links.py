"""The links of a simulated fleet: how well each node is connected, on its bus, its mesh and to its sensors alike.

A bus runs over a connection that repeats what is lost (TCP): loss shows as delay, and too much loss in a row breaks the
connection. Then the messages of a session come again. Order on a connection is kept; duplicates and overtaking happen
only across a break. The mesh has no such protection.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Sequence
from contextvars import Context

from msgspec import Struct, structs

from stigmergy.base.errors import LedgerUnavailable, LedgerUnknown
from stigmergy.bus.memory import MemoryBroker, MemoryBus
from stigmergy.bus.port import BusMessage
from stigmergy.claims.memory_ledger import MemoryLedger, MemoryLedgerStore
from stigmergy.claims.port import READ_COUNT_MAX, Heard, LedgerCheckpoint, LedgerEntry
from stigmergy.sim.network import LinkFaults, Network

PER_MILLE = 1_000
LATENCY_S = 0.001
"""What a message takes when nothing is wrong."""
REPEAT_S = 0.2
"""After so long a lost packet is sent again, then after twice that, and so on."""
LOST_IN_A_ROW_MAX = 5
"""So many losses in a row, and the connection is given up."""
APART_S = 0.000_000_01
LATE_S_MAX = 20.0
"""The tail of a delay is cut here."""


class Quality(Struct):
    """How well one node is connected at present. Shares are per mille."""

    loss: int = 0
    duplication: int = 0
    reordering: int = 0
    delay_ms: int = 0
    is_cut: bool = False
    is_unheard: bool = False
    """It hears the others, and they do not hear it."""


def late_s(quality: Quality, chance: random.Random) -> float:
    """How long a message takes: up to the node's delay, and for a few ten times as long."""
    delay_s = LATENCY_S
    if quality.delay_ms:
        tail = 10 if chance.randrange(20) == 0 else 1
        delay_s += chance.randint(0, quality.delay_ms * tail) / PER_MILLE
    return min(delay_s, LATE_S_MAX)


def happens(share: int, chance: random.Random) -> bool:
    """Whether something happens that does so in so many of a thousand cases. Draws nothing where it never does."""
    return share > 0 and chance.randrange(PER_MILLE) < share


class Connection:
    """One direction of a connection between a node and its broker: keeps order, repeats what is lost."""

    def __init__(self, quality: Quality, chance: random.Random) -> None:
        self._quality = quality
        self._chance = chance
        self._free_s = 0.0

    def arrives_s(self, now_s: float) -> float | None:
        """When what is sent now arrives; None if the connection breaks over it."""
        quality = self._quality
        due_s = now_s + late_s(quality, self._chance)
        if quality.loss:
            lost = 0
            while happens(quality.loss, self._chance):
                due_s += REPEAT_S * (1 << lost)
                lost += 1
                if lost > LOST_IN_A_ROW_MAX:
                    return None
        # Never at the same moment as the one before: timers of one moment go off in any order.
        self._free_s = max(self._free_s + APART_S, due_s)
        return self._free_s


Passed = Callable[[str, str, int, BusMessage], None]
"""Told of each message that arrives: from whom, at whom, when it was sent, and what."""


class SimBroker(MemoryBroker):
    """A broker that knows who sent what, for the timeline."""

    def __init__(self, *, redeliver_after_s: float | None = None) -> None:
        super().__init__(redeliver_after_s=redeliver_after_s)
        self.sender = ("", 0)
        """Whose message is being taken, and when it was sent."""
        self.passed: Passed | None = None
        self.origins: dict[int, tuple[str, int]] = {}
        self.carried_count = 0

    def _line_up(self, session: object, message: BusMessage) -> None:
        before = self._count
        super()._line_up(session, message)  # type: ignore[arg-type]
        if self.passed is not None and self._count > before:
            self.origins[self._count] = self.sender

    def arrived(self, number: int, to: str, message: BusMessage) -> None:
        """A message has reached a client."""
        self.carried_count += 1
        if self.passed is not None:
            sender, sent_ns = self.origins.get(number, ("", 0))
            self.passed(sender, to, sent_ns, message)


class SimBus(MemoryBus):
    """The Bus port over a connection that takes time. Whatever it calls on its node belongs to that node."""

    def __init__(
        self,
        broker: SimBroker,
        client_id: str,
        quality: Quality,
        chance: random.Random,
        context: Context,
        time_ns: Callable[[], int],
    ) -> None:
        super().__init__(broker, client_id)
        self._sim_broker = broker
        self._context = context
        self._time_ns = time_ns
        self._up = Connection(quality, chance)
        self._down = Connection(quality, chance)

    def _send_soon(self) -> None:
        """Takes the time that the connection takes."""
        loop = asyncio.get_running_loop()
        due_s = self._up.arrives_s(loop.time())
        if due_s is None:
            loop.call_soon(self._break)
        else:
            loop.call_at(due_s, self._send)

    def _send(self) -> None:
        self._sim_broker.sender = (self.client_id, self._time_ns())
        super()._send()
        self._sim_broker.sender = ("", 0)  # what the broker says by itself, wills and what it retains, is nobody's

    def _receive(self, number: int, message: BusMessage) -> None:
        loop = asyncio.get_running_loop()
        due_s = self._down.arrives_s(loop.time())
        if due_s is None:
            loop.call_soon(self._break)
        else:
            loop.call_at(due_s, self._arrive, self._link, number, message, context=self._context.copy())

    def _arrive(self, link: int, number: int, message: BusMessage) -> None:
        if link == self._link:
            self._sim_broker.arrived(number, self.client_id, message)
        super()._arrive(link, number, message)

    def _break(self) -> None:
        """Too much was lost in a row: the connection is given up and made again."""
        if self.is_up:
            self._sim_broker.vanish(self.client_id)
            asyncio.get_running_loop().call_later(REPEAT_S, self._connect_soon)

    def _connect_soon(self) -> None:
        self._context.copy().run(super()._connect_soon)

    def _lost(self) -> None:
        self._context.copy().run(super()._lost)


class Links:
    """All links of a fleet: their quality per node, on the bus and, where there is one, on the mesh."""

    def __init__(self, nodes: list[str], broker: SimBroker, network: Network) -> None:
        self._nodes = nodes
        self._broker = broker
        self._network = network
        self.quality = {node: Quality() for node in nodes}

    def change(self, node: str, **changes: int | bool) -> None:
        """Changes how well a node is connected."""
        quality = self.quality[node]
        was_cut, was_unheard = quality.is_cut, quality.is_unheard
        for name, value in changes.items():
            setattr(quality, name, value)
        if quality.is_cut != was_cut:
            (self._broker.cut if quality.is_cut else self._broker.restore)(node)
        if quality.is_unheard != was_unheard:
            self._mute(node, quality.is_unheard)
        self._change_mesh(node)

    def double(self, node: str) -> None:
        """What comes from now on is acknowledged in vain; `mend` makes it come again."""
        self._broker.drop_acknowledgements(node)

    def mend(self, node: str) -> None:
        """The connection of a node breaks and is made again: what was under way comes again."""
        if not self.quality[node].is_cut:
            self._broker.cut(node)
            self._broker.restore(node)

    def calm(self) -> None:
        """Everybody is well connected again."""
        for node in self._nodes:
            fresh = structs.asdict(Quality())
            self.change(node, **fresh)
            self.mend(node)
        self._network.calm()

    def _mute(self, node: str, unheard: bool) -> None:
        """On a bus nobody can hear only: without answers the connection breaks. What came meanwhile comes again."""
        if unheard:
            self._broker.drop_acknowledgements(node)
        else:
            self.mend(node)

    def _change_mesh(self, node: str) -> None:
        for other in self._nodes:
            if other != node:
                self._set_link(node, other)
                self._set_link(other, node)

    def _set_link(self, sender: str, to: str) -> None:
        ours, theirs = self.quality[sender], self.quality[to]
        if (ours.is_cut or theirs.is_cut or ours.is_unheard) and not (ours.is_cut and theirs.is_cut):
            self._network.set_link(sender, to, LinkFaults(loss=1.0))
            return
        faults = LinkFaults(
            loss=max(ours.loss, theirs.loss) / PER_MILLE,
            duplication=max(ours.duplication, theirs.duplication) / PER_MILLE,
            reordering=max(ours.reordering, theirs.reordering) / PER_MILLE,
            jitter_s=max(ours.delay_ms, theirs.delay_ms) / (4 * PER_MILLE),
            delay_s_max=LATE_S_MAX,
        )
        self._network.set_link(sender, to, None if faults == LinkFaults(delay_s_max=LATE_S_MAX) else faults)


# The Ledger port over a node's own bad link: one ordered log for the fleet, over a link that loses and delays.
#
# The log itself is never wrong and survives everything: it stands for a majority of machines elsewhere. What a node
# learns of it is uncertain: whether an append was written, and when writes of others are seen.

LATE_MS_MAX = 5_000
"""An append whose fate is unknown may be written so much later."""


class SimLedger:
    """One node's connection to the fleet's ledger."""

    def __init__(self, store: MemoryLedgerStore, quality: Quality, chance: random.Random, context: Context) -> None:
        self._store = store
        self._inner = MemoryLedger(store)
        self._quality = quality
        self._chance = chance
        self._context = context

    @property
    def name(self) -> str:
        return self._inner.name

    async def append(self, entries: Sequence[bytes]) -> int:
        await self._travel()
        if happens(self._quality.loss, self._chance):
            self._strand(tuple(entries))
            raise LedgerUnknown(f"{self.name}: no answer came; whether it was written is not known")
        first = await self._inner.append(entries)
        await asyncio.sleep(late_s(self._quality, self._chance))
        if self._is_mute():
            raise LedgerUnknown(f"{self.name}: no answer came; whether it was written is not known")
        return first

    async def read(self, after: int, count_max: int = READ_COUNT_MAX, *, fresh: bool = True) -> list[LedgerEntry]:
        await self._travel()
        if self._is_mute():
            raise LedgerUnavailable(f"{self.name}: no answer came")
        return await self._inner.read(after, count_max, fresh=fresh)

    def watch(self, heard: Heard) -> None:
        loop, context = asyncio.get_running_loop(), self._context

        def tell(end: int) -> None:
            """A hint: it comes late, and on a bad link not at all."""
            if not self._quality.is_cut and not happens(self._quality.loss, self._chance):
                loop.call_later(late_s(self._quality, self._chance), heard, end, context=context.copy())

        self._inner.watch(tell)

    async def checkpoint(self) -> LedgerCheckpoint | None:
        await self._travel()
        return await self._inner.checkpoint()

    async def put_checkpoint(self, checkpoint: LedgerCheckpoint) -> None:
        await self._travel()
        await self._inner.put_checkpoint(checkpoint)

    async def cut(self, upto: int) -> None:
        await self._travel()
        await self._inner.cut(upto)

    async def close(self) -> None:
        await self._inner.close()

    async def _travel(self) -> None:
        await asyncio.sleep(late_s(self._quality, self._chance))
        if self._quality.is_cut:
            raise LedgerUnavailable(f"{self.name}: no way there; nothing was written")

    def _is_mute(self) -> bool:
        quality = self._quality
        return quality.is_cut or quality.is_unheard or happens(quality.loss, self._chance)

    def _strand(self, entries: tuple[bytes, ...]) -> None:
        """It was lost on the way, or is written long after the writer has given up waiting."""
        if self._chance.randrange(2):
            delay_s = self._chance.randint(0, LATE_MS_MAX) / 1_000
            asyncio.get_running_loop().call_later(delay_s, self._store.append, entries)
