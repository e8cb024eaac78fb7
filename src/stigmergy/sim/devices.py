"""The devices of a simulated node, which survive its crashes, and a declaration that uses them in place of real ones.

The receiver keeps marks: it remembers keys, carries out each order once, and notices an order that it should never have
got.
"""

from __future__ import annotations

import asyncio
import copy
import random
from collections.abc import Awaitable, Callable, Generator
from typing import Any, Protocol

from msgspec import Struct

from stigmergy.agents.codec import encode
from stigmergy.agents.effects import Order
from stigmergy.agents.messages import Action, spec_of
from stigmergy.devices.staleness import safe_actions_of
from stigmergy.node.declaration import Declaration
from stigmergy.sim.disk import SimDisk
from stigmergy.sim.logbook import Logbook
from stigmergy.sim.run import Run

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
    model_fail: float = 0.0
    policy_fail: float = 0.0

    def calm(self) -> None:
        """Devices and models work from now on."""
        self.fail = self.delay_s = self.model_fail = self.policy_fail = 0.0


class DeviceOwner(Protocol):
    """The node that orders come from."""

    world: Run
    disk: SimDisk
    logbook: Logbook

    @property
    def alive(self) -> bool:
        """Whether anything can leave the machine."""

    def record(self, what: str, detail: Any = None) -> None:
        """Notes what happened on this node."""


class Receiver:
    """The devices: each order is carried out once, whatever is repeated."""

    def __init__(self, node: DeviceOwner, chance: random.Random) -> None:
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
