"""The peers of a node that survive its crashes: a receiver of its orders, senders, callers.

The receiver keeps marks: it remembers keys, carries out each order once, and notices an order that it should never have
got. A sender numbers its inputs and repeats them until they are acknowledged; a caller repeats a command until it is
answered, and sometimes after that. Between them and the node is a network that loses, delays and repeats.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable
from typing import Any

from msgspec import Struct

from stigmergy.agents.codec import encode
from stigmergy.agents.effects import Order
from stigmergy.agents.messages import spec_of
from stigmergy.sim.node import SimNode

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
        if self._node.alive:
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
        if SAFE in order.key and self._node.alive:
            self.safe_tried_ns[order.agent] = now_ns = self._node.world.loop.time_ns()
            self.safe_tries.setdefault(order.agent, []).append(now_ns)

    async def _take_time(self) -> None:
        if self.temper.delay_s:
            await asyncio.sleep(self._chance.uniform(0, self.temper.delay_s))
        if not self._node.alive:
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
