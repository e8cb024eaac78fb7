"""Senders and callers of a simulated node; they survive its crashes.

A sender numbers its inputs and repeats them until they are acknowledged. A caller repeats a command until it is
answered, and sometimes after that. Between them and the node is a network that loses, delays and repeats.
"""

from __future__ import annotations

import asyncio
import random

from stigmergy.agents.codec import pack_envelope
from stigmergy.agents.messages import Command, Event
from stigmergy.base.errors import StigmergyError
from stigmergy.shard.inputs import Accepted, Verdict
from stigmergy.sim.devices import Temper
from stigmergy.sim.node import SimNode


class Sender:
    """Sends what is said, in envelopes with numbers, until each is acknowledged."""

    def __init__(self, node: SimNode, source: str, chance: random.Random, temper: Temper) -> None:
        self._node = node
        self.source = source
        self._chance = chance
        self._temper = temper
        self.items: list[tuple[str, Event | Command]] = []
        """The n-th has the number n + 1."""
        self.acknowledged: dict[int, int] = {}
        """By number, when."""
        self.first_called_ns: dict[int, int] = {}
        """By number, when it was first delivered."""
        self.heard_ns: dict[str, int] = {}
        """Per agent when a delivery for it was last begun or over."""
        self.on_its_way: dict[str, int] = {}
        """Per agent how many deliveries are begun and not over."""
        self._under_way = 0
        self._sent: list[asyncio.Future[None]] = []
        self.findings: list[str] = []
        self.given_up: dict[int, None] = {}
        """Numbers that will not be sent any more: the envelope behind them says so."""
        self.epoch = 0
        """Raised when another owner takes over; what the one before has sent may still be on its way."""
        self.repeat_s = 0.7
        self.items_max = 6

    @property
    def done(self) -> bool:
        """Whether everything that was said is acknowledged or given up."""
        return self._first_open() > len(self.items)

    def say(self, address: str, message: Event | Command) -> None:
        """Puts a message at the end of the queue."""
        self.items.append((address, message))

    def take_over(self) -> None:
        """Another owner speaks from now on. The last word of the one before is still on its way, and comes after."""
        first = self._first_open()
        if first < len(self.items):
            self._sent.append(asyncio.ensure_future(self._transmit(first, len(self.items), late_s=0.3)))
        self.epoch += 1
        if first <= len(self.items):
            self._sent.append(asyncio.ensure_future(self._transmit(first, first)))

    def give_up(self, count: int) -> None:
        """Loses the next so many of what is not acknowledged, as a sender with a small memory does."""
        first = self._first_open()
        self.given_up.update(dict.fromkeys(range(first, min(first + count, len(self.items) + 1))))

    async def run(self) -> None:
        """Sends for ever. Envelopes overtake each other; their limits shift from repetition to repetition."""
        while True:
            first = self._first_open()
            if first > len(self.items) or self._under_way >= 4:
                await asyncio.sleep(0.05)
                continue
            wait_s = self.repeat_s
            self._sent = [sent for sent in self._sent if not sent.done()]
            for _ in range(self._chance.choice((1, 1, 2, 3))):
                last = min(len(self.items), first + self._chance.randrange(self.items_max))
                if last < first:
                    break
                for _ in range(2 if self._chance.random() < self._temper.repeat else 1):
                    self._sent.append(asyncio.ensure_future(self._transmit(first, last)))
                first = last + 1
                wait_s = self._chance.uniform(0.01, self.repeat_s)
            await asyncio.sleep(wait_s)

    def _first_open(self) -> int:
        number = 1
        while number in self.acknowledged or number in self.given_up:
            number += 1
        return number

    def _lost_before(self, first: int) -> int:
        """How many right before this number were given up."""
        lost = 0
        while first - lost - 1 in self.given_up:
            lost += 1
        return lost

    async def _transmit(self, first: int, last: int, late_s: float = 0.0) -> None:
        items, epoch, lost = self.items[first - 1 : last], self.epoch, self._lost_before(first)
        self._under_way += 1
        try:
            if self._temper.delay_s or late_s:
                await asyncio.sleep(late_s + self._chance.uniform(0, self._temper.delay_s))
            live = self._node.live
            if live is None or self._chance.random() < self._temper.loss:
                return
            self._heard(items, 1)
            for number in range(first, last + 1):
                self.first_called_ns.setdefault(number, self._node.world.loop.time_ns())
            try:
                await live.deliver(pack_envelope(self.source, list(items), sequence=first, epoch=epoch, lost=lost))
            except StigmergyError as error:
                self._node.record("refused", [self.source, first, last, type(error).__name__])
                return
            finally:
                self._heard(items, -1)
            if self._chance.random() >= self._temper.loss:
                self._acknowledge(first, last)
        finally:
            self._under_way -= 1

    def _acknowledge(self, first: int, last: int) -> None:
        now_ns = self._node.world.loop.time_ns()
        for state in self._node.logbook.states:
            consumed = state.marks.consumed(self.source, 0)
            if consumed < last:
                self.findings.append(f"{self.source} {last} is acknowledged, shard {state.shard} is at {consumed}")
        for number in range(first, last + 1):
            self.acknowledged.setdefault(number, now_ns)
        self._node.record("acknowledged", [self.source, first, last])

    def _heard(self, items: list[tuple[str, Event | Command]], change: int) -> None:
        now_ns = self._node.world.loop.time_ns()
        for address, _ in items:
            self.heard_ns[address] = now_ns
            self.on_its_way[address] = self.on_its_way.get(address, 0) + change


class Caller:
    """Asks commands with ids, again and again, and keeps every answer."""

    def __init__(self, node: SimNode, name: str, chance: random.Random) -> None:
        self._node = node
        self._name = name
        self._chance = chance
        self.answers: dict[str, list[tuple[bool, str]]] = {}
        self.open = 0
        self._count = 0

    async def ask(self, address: str, command: Command) -> None:
        """Asks until there is an answer; sometimes once more."""
        self._count += 1
        command_id = f"{self._name}-{self._count}"
        self.open += 1
        wanted = self._chance.choice((1, 1, 1, 2, 3))
        while len(self.answers.get(command_id, ())) < wanted:
            verdict = await self._try(address, command, command_id)
            if verdict is None:
                await asyncio.sleep(self._chance.uniform(0.05, 0.5))
                continue
            accepted = isinstance(verdict, Accepted)
            told = str(verdict.position) if isinstance(verdict, Accepted) else verdict.reason
            self.answers.setdefault(command_id, []).append((accepted, told))
            self._node.record("answered", [command_id, accepted, told])
        self.open -= 1

    async def _try(self, address: str, command: Command, command_id: str) -> Verdict | None:
        live = self._node.live
        if live is None:
            return None
        try:
            async with asyncio.timeout(self._chance.choice((0.02, 5.0, 30.0))):
                return await live.send(address, command, command_id=command_id)
        except (StigmergyError, TimeoutError):
            return None
