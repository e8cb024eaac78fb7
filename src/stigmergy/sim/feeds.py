"""External senders to the agents of a node, which survive its crashes: a feed for each machine.

Observations are numbered and sent again until they are acknowledged; commands are sent until they are answered. In
between is the node's link: loss, duplicates, delay. A feed remembers what was acknowledged as durable; that is the
evidence. When an operator has replaced the machine, everything the old one had acknowledged is gone with its disk; the
feed starts again at 1, with what was not acknowledged yet, under the name of the new incarnation.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable
from contextvars import Context
from functools import partial
from typing import Any

from blake3 import blake3
from msgspec import Struct

from stigmergy.agents.codec import ENVELOPE_FORMAT, Envelope, encode
from stigmergy.agents.messages import SECOND_NS, Command, Event
from stigmergy.base.command_ids import RANDOM_BYTES, new_command_id
from stigmergy.base.errors import Bug, PeerError, StigmergyError
from stigmergy.control.live import Live
from stigmergy.node.intake import check_address, written
from stigmergy.shard.inputs import Verdict
from stigmergy.sim.links import Quality, happens, late_s
from stigmergy.sim.loop import WALL_START_NS

ITEMS_MAX = 200
"""So many are in one envelope at most."""
WAITING_COUNT_MAX = 100_000
"""What may wait for a machine that is down; more is the mistake of a test."""
REPEAT_S = 1.0
ANSWER_S = 5.0
"""An asker that hears nothing for so long asks again."""
ASK_PAUSE_S = 0.2


class DurableReport(Struct, frozen=True):
    """What a feed was told is durable."""

    source: str
    number: int
    address: str
    body: bytes


class SimFeed:
    """All that comes to one machine from outside."""

    def __init__(
        self,
        name: str,
        live: Callable[[], Live | None],
        quality: Quality,
        chance: random.Random,
        context: Context,
        *,
        swift: bool = False,
        remembers: bool = True,
    ) -> None:
        """`swift`: nothing will ever be wrong with the link, and what is said arrives at once."""
        self._name = name
        self._live = live
        self._quality = quality
        self._chance = chance
        self._context = context
        self._swift = swift
        self._remembers = remembers
        self.source = f"world/{name}"
        self._first = 1
        """The number of the first that is not acknowledged."""
        self._items: list[tuple[str, bytes]] = []
        """From that one on."""
        self._waiting: list[asyncio.Future[None] | None] = []
        self._early: dict[int, None] = {}
        """Acknowledged, although not all before them are."""
        self._sent = 0
        """How many of the items were sent at least once."""
        self._flushing = False
        self._timer: asyncio.TimerHandle | None = None
        self.told: list[DurableReport] = []
        self.acknowledged_count = 0
        self._asking_count = 0
        self._asked_count = 0
        self.heard: Callable[[str, int, list[tuple[str, bytes]]], None] | None = None
        """Told of what reaches the node, whether it takes it or not: source, first number, items."""
        self.on_acknowledged: Callable[[str, int], None] | None = None
        """Told of what was acknowledged, at that very moment: source and last number."""

    @property
    def open_count(self) -> int:
        """How much that was said is not acknowledged, and how much that was asked not answered."""
        return len(self._items) + self._asking_count

    def observe(self, address: str, event: Event) -> asyncio.Future[None]:
        """Tells an agent what was observed. The future is done when that is durable; nobody has to wait for it."""
        check_address(address)
        answered: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.say(address, written(event, Event), answered)
        return answered

    def say(self, address: str, body: bytes, answered: asyncio.Future[None] | None = None) -> None:
        """The same with bytes, for those who say much and wait for nothing."""
        if len(self._items) >= WAITING_COUNT_MAX:
            raise Bug(f"{len(self._items)} events wait for {self._name}: the workload says more than it can ever take")
        self._items.append((address, body))
        self._waiting.append(answered)
        if not self._flushing:
            self._flushing = True
            asyncio.get_running_loop().call_soon(self._flush)

    async def send(self, address: str, command: Command) -> Verdict:
        """Asks until there is an answer, with one id: it is done at most once."""
        self._asked_count += 1
        made_ns = WALL_START_NS + int(asyncio.get_running_loop().time() * SECOND_NS)
        own = blake3(f"{self.source}/{self._asked_count}".encode()).digest(length=RANDOM_BYTES)
        command_id = new_command_id(made_ns, own)
        self._asking_count += 1
        try:
            while True:
                answer = await self._ask(address, command, command_id)
                if answer is not None:
                    return answer
                await asyncio.sleep(ASK_PAUSE_S + late_s(self._quality, self._chance))
        finally:
            self._asking_count -= 1

    def said(self) -> dict[tuple[str, bytes], int]:
        """How often each event was said to each agent, as far as the present incarnation can know."""
        counts: dict[tuple[str, bytes], int] = {}
        mine = [(one.address, one.body) for one in self.told if one.source == self.source]
        for key in (*mine, *self._items):
            counts[key] = counts.get(key, 0) + 1
        return counts

    def replaced(self, incarnation: int) -> None:
        """The machine has a new journal that knows nothing of what was said before."""
        self.source = f"world/{self._name}/{incarnation}"
        kept = [number for number in range(len(self._items)) if self._first + number not in self._early]
        self._items = [self._items[number] for number in kept]
        self._waiting = [self._waiting[number] for number in kept]
        self._early.clear()
        self._first, self._sent = 1, 0

    # ------------------------------------------------------------------ what is observed

    def _flush(self) -> None:
        """Sends what was said since the last time. What was sent before is repeated by the timer."""
        self._flushing = False
        first = self._sent
        while first < len(self._items):
            last = min(first + ITEMS_MAX, len(self._items))
            self._transmit(first, last)
            first = last
        self._sent = len(self._items)
        if self._items and self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(REPEAT_S, self._repeat)

    def _repeat(self) -> None:
        """Everything that is open goes out again, now and then cut in other places than before."""
        self._timer = None
        self._sent = 0
        if self._items:
            if self._chance.randrange(2) and len(self._items) > 1:
                self._transmit(0, self._chance.randint(1, min(len(self._items), ITEMS_MAX)))
            self._flush()

    def _transmit(self, first: int, last: int) -> None:
        quality, chance = self._quality, self._chance
        if quality.is_cut or happens(quality.loss, chance):
            return  # a test may cut a link by hand, also where no faults are drawn
        number = self._first + first
        envelope = encode(Envelope(ENVELOPE_FORMAT, self.source, 0, 0, number, self._items[first:last], 0))
        if self._swift:
            self._deliver(self.source, number, self._items[first:last], envelope)
            return
        times = 2 if happens(quality.duplication, chance) else 1
        for _ in range(times):
            delay_s = late_s(quality, chance)
            if happens(quality.reordering, chance):
                delay_s += chance.randint(0, 1_000) / 1_000
            arrival = (self.source, number, self._items[first:last], envelope)
            asyncio.get_running_loop().call_later(delay_s, self._deliver, *arrival)

    def _deliver(self, source: str, number: int, items: list[tuple[str, bytes]], envelope: bytes) -> None:
        live = self._live()
        if live is None or source != self.source:
            return
        if self.heard is not None:
            self.heard(source, number, items)
        try:
            taken = self._context.copy().run(live.host.intake.deliver, envelope)
        except StigmergyError:
            return  # not taken: it is sent again
        taken.add_done_callback(lambda done: self._answered(done, source, number, len(items)))

    def _answered(self, done: asyncio.Future[None], source: str, number: int, count: int) -> None:
        if done.cancelled():
            return
        if done.exception() is None and source == self.source and not self._answer_is_lost():
            self._acknowledge(number, count)

    def _acknowledge(self, number: int, count: int) -> None:
        first = self._first
        if self.on_acknowledged is not None:
            self.on_acknowledged(self.source, number + count - 1)
        for place in range(max(number, first), number + count):
            if place in self._early or place - first >= len(self._items):
                continue
            self._early[place] = None
            address, body = self._items[place - first]
            self.acknowledged_count += 1
            if self._remembers:
                self.told.append(DurableReport(self.source, place, address, body))
            answered = self._waiting[place - first]
            if answered is not None and not answered.done():
                answered.set_result(None)
        done = 0
        while first + done in self._early:
            del self._early[first + done]
            done += 1
        if done:
            del self._items[:done]
            del self._waiting[:done]
            self._first += done
            self._sent = max(0, self._sent - done)
        if not self._items and self._timer is not None:
            self._timer.cancel()
            self._timer = None

    # ------------------------------------------------------------------ what is asked

    async def _ask(self, address: str, command: Command, command_id: str) -> Verdict | None:
        quality, chance = self._quality, self._chance
        await asyncio.sleep(late_s(quality, chance))
        live = self._live()
        if live is None or quality.is_cut or happens(quality.loss, chance):
            return None
        try:
            ask = partial(live.host.intake.ask, client=self.source)
            asked: asyncio.Future[Any] = self._context.copy().run(ask, address, command, command_id)
            async with asyncio.timeout(ANSWER_S):
                answer: Verdict = await asked
        except PeerError:
            raise
        except (StigmergyError, TimeoutError):
            return None
        return None if self._answer_is_lost() else answer

    def _answer_is_lost(self) -> bool:
        quality = self._quality
        return quality.is_cut or quality.is_unheard or happens(quality.loss, self._chance)
