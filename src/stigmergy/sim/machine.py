"""One machine of a simulated fleet over all its lives: restarts it, and replaces it when its disk is bad.

As an init system, it restarts a node that is down or has stopped by itself, after a moment. As an operator, it gives a
node whose journal is refused a fresh disk and a new incarnation, under the same name and key; data that was only on
that disk is gone, and everybody who keeps marks must treat the new one as new.
"""

from __future__ import annotations

import asyncio
import contextvars
import copy
import random
from collections.abc import Awaitable, Coroutine, Generator
from typing import Any, Protocol, TypeVar

from msgspec import Struct

from stigmergy.agents.effects import Order
from stigmergy.agents.messages import Action, spec_of
from stigmergy.base.errors import StigmergyError
from stigmergy.control.live import Live
from stigmergy.devices.staleness import safe_actions_of
from stigmergy.node.declaration import Declaration
from stigmergy.node.settings import Settings
from stigmergy.shard.commit import Group
from stigmergy.sim.disk import DiskFault
from stigmergy.sim.feeds import SimFeed
from stigmergy.sim.links import Quality
from stigmergy.sim.loop import ACTOR
from stigmergy.sim.node import SimNode
from stigmergy.sim.peers import Receiver
from stigmergy.sim.run import Run

# A declaration adapted to the simulator: nothing in it reaches a real device, unless you ask for it.


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
    """What a machine is put into: makes its node, hears what becomes of it."""

    run: Run

    def make_node(self, machine: Machine) -> SimNode:
        """The machine's node, of its present incarnation."""

    def kept(self, machine: Machine, group: Group) -> None:
        """A group of commits is durable on a machine."""

    def changed(self, machine: Machine, what: str) -> None:
        """A machine has started, stopped, crashed or been replaced."""


class Machine:
    """A named place in the fleet, and whatever runs there."""

    def __init__(
        self,
        around: Surroundings,
        name: str,
        agents: tuple[str, ...],
        fleet: Declaration,
        *,
        journal: str,
        settings: Settings,
        quality: Quality,
        devices: bool,
        stormy: bool = True,
        remembers: bool = True,
    ) -> None:
        self.around = around
        self.name = name
        self.agents = agents
        self.fleet = fleet
        """The version that runs, or will at the next start."""
        self.journal = journal
        self.settings = settings
        self.quality = quality
        self._devices = devices
        self.chance = around.run.chance(f"{name}/machine")
        self.context = contextvars.copy_context()
        self.context.run(ACTOR.set, name)
        self.incarnation = 1
        self.receivers: list[Receiver] = []
        """The devices, one set for each incarnation."""
        self.node = self._make()
        self.past: list[SimNode] = []
        """Nodes that were replaced."""
        self.replaced: list[Replaced] = []
        """When and why they were."""
        self.findings: list[str] = []
        self.flips = 0
        """Bits that were flipped since the last start."""
        self._known = 0
        """How much was found wrong before they were."""
        self._planned: list[int] = []
        self.feed = SimFeed(
            name,
            self._live,
            quality,
            around.run.chance(f"{name}/feed"),
            self.context,
            swift=not stormy,
            remembers=remembers,
        )
        self.feed.on_acknowledged = self._check_durable
        self.stormy = stormy
        """Whether faults may still be the reason for what goes wrong."""
        self._guarding: asyncio.Task[None] | None = None
        self._turns = asyncio.Lock()
        """Held by the one task that changes the machine's life."""
        self.over = False
        self.expects_down = False
        """Whether what takes the machine down says so itself."""

    def _live(self) -> Live | None:
        live = self.node.live
        return None if live is None or live.failure is not None else live

    @property
    def live(self) -> Live | None:
        """The running node; None while it is down."""
        return self._live()

    @property
    def receiver(self) -> Receiver:
        """The devices of the present incarnation."""
        return self.receivers[-1]

    def declare(self, node: SimNode) -> Declaration:
        """The declaration with the devices of this incarnation."""
        self.receivers.append(Receiver(node, self.around.run.chance(f"{self.name}/devices/{self.incarnation}")))
        return equip(self.fleet, self.receivers[-1], devices=self._devices)

    def _make(self) -> SimNode:
        node = self.around.make_node(self)
        node.disk.on_down = lambda: self.around.changed(self, "down")
        return node

    # ------------------------------------------------------------------ life

    async def start(self) -> None:
        """Starts the node for the first time, and begins to watch it."""
        await self._start()
        self._guarding = asyncio.ensure_future(self._guard())

    async def crash(self, how: str) -> None:
        """Takes the machine down at once: `power` or `kill`. It is started again by its guard."""
        async with self._turns:
            if self.node.live is not None:
                self.resume()
                self.expects_down = True
                await (self.node.lose_power() if how == "power" else self.node.kill())
                self.expects_down = False
                self.around.changed(self, "lost power" if how == "power" else "killed")

    async def upgrade(self, fleet: Declaration) -> None:
        """Stops the node in good order and starts another version of the program on its journal."""
        async with self._turns:
            if self.live is None:
                return
            self.resume()
            self.expects_down = True
            await self.node.stop()
            self.expects_down = False
            self.fleet = fleet
            self.node.change_declaration(equip(fleet, self.receiver, devices=self._devices))
            self.around.changed(self, "upgraded")

    async def stop(self) -> None:
        """Ends the guard and stops the node as a good program does."""
        self.over = self.expects_down = True
        if self._guarding is not None:
            self._guarding.cancel()
        async with self._turns:
            if self.live is not None:
                await self.node.stop()

    def hold(self) -> None:
        """The process does not run until `resume`."""
        self.around.run.loop.hold(self.name)

    def resume(self) -> None:
        """The process goes on."""
        self.around.run.loop.release(self.name)

    def _check_durable(self, source: str, last: int) -> None:
        """What is acknowledged must be durable at that very moment, in each shard."""
        for state in self.node.logbook.states:
            consumed = state.marks.consumed(source, 0)
            if consumed < last:
                shard = f"shard {state.shard} has {consumed} on disk"
                self.findings.append(f"nothing_acknowledged_is_lost: {source} {last} is acknowledged, {shard}")

    # ------------------------------------------------------------------ faults of the disk

    def plan(self, fault: DiskFault, calls: int) -> None:
        """One of the next calls to the disk ends in a fault."""
        number = self.node.disk.calls + max(1, calls)
        self._planned.append(number)
        self.node.disk.fail(number, fault)

    def flip(self, where: int) -> bool:
        """Flips a bit on the disk of a machine that is down; whether there was one to flip."""
        disk = self.node.disk
        paths = [path for path in disk.paths() if disk.content(path)]
        if not paths:
            return False
        path = paths[where % len(paths)]
        size = len(disk.content(path))
        disk.flip(path, (where // len(paths)) % size, where % 8)
        if not self.flips:
            self._known = len(self.node.logbook.findings)
        self.flips += 1
        return True

    def heal(self) -> None:
        """From now on its disk and devices work, and its clock is set right."""
        self.stormy = False
        disk, clock, loop = self.node.disk, self.node.clock, self.around.run.loop
        disk.forgive()
        self._planned = [number for number in self._planned if number <= disk.calls]
        disk.capacity_bytes = ROOM_BYTES
        self.resume()
        clock.set_drift(0)
        clock.set_monotonic_drift(0)
        clock.set_wall_ns(loop.wall_start_ns + loop.time_ns())
        self.node.latency.before_s = self.node.latency.after_s = WRITE_S
        self.receiver.temper.fail = self.receiver.temper.delay_s = 0.0

    # ------------------------------------------------------------------ starting

    async def _guard(self) -> None:
        while True:
            live = self.node.live
            if live is not None and live.failure is None:
                await self._wait_for_trouble(live)
                continue
            async with self._turns:
                await self._restart()

    async def _restart(self) -> None:
        live = self.node.live
        if live is not None and live.failure is None:
            return  # somebody else was faster
        if live is not None:
            self.around.run.record(self.name, "stopped by itself", type(live.failure).__name__)
            self.around.changed(self, f"stopped by itself: {type(live.failure).__name__}")
        self.resume()
        await self.node.kill()
        await asyncio.sleep(self.chance.choice((0.05, 0.3, 2.0)))
        await self._start()

    async def _wait_for_trouble(self, live: Live) -> None:
        """Returns when the node has stopped by itself, or is down. While nothing goes wrong it only waits."""
        if not self.stormy:
            await live.wait_failure()
            return
        try:
            async with asyncio.timeout(LOOK_S):
                await live.wait_failure()
        except TimeoutError:
            pass

    async def _start(self) -> None:
        for _ in range(STARTS_MAX):
            self.around.changed(self, "starting")
            try:
                await self._inside(self.node.start())
            except StigmergyError as error:
                self._not_started(error)
            else:
                if not self.flips or len(self.node.logbook.findings) == self._known:
                    self.flips = 0
                    self.around.changed(self, "started")
                    return
                # The start found nothing wrong, but an audit would have: the end of the log, or what lies before a
                # snapshot. A state that is not what its log folds into stays a finding.
                await self.node.kill()
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
        disk = self.node.disk
        spoilt = any(number <= disk.calls for number in self._planned)
        self._planned = [number for number in self._planned if number > disk.calls]
        full = disk.free_bytes("") < SCANT_BYTES
        if full:
            disk.capacity_bytes = ROOM_BYTES
        return spoilt or full

    def _replace(self, why: str) -> None:
        """What an operator does: a fresh disk under a new incarnation. What the log lost is known to be lost."""
        findings = self.node.logbook.findings
        findings[self._known :] = [finding for finding in findings[self._known :] if "folds into" in finding]
        self.past.append(self.node)
        self.incarnation += 1
        self.flips = 0
        self._planned.clear()
        self.node = self._make()
        self.feed.replaced(self.incarnation)
        self.around.run.record(self.name, "replaced", [self.incarnation, why])
        self.replaced.append(Replaced(self.name, self.around.run.loop.time(), self.incarnation, why))
        self.around.changed(self, f"journal replaced: {why}; fresh one, incarnation {self.incarnation}")

    async def _inside(self, coroutine: Coroutine[Any, Any, T]) -> T:
        """Runs something as a part of this machine, so that it is held up with it."""
        result: T = await self.around.run.loop.create_task(coroutine, context=self.context.copy())
        return result


def draw_journal(chance: random.Random, wants_disk: bool) -> str:
    """What a machine keeps its log in."""
    return chance.choice((SQLITE, SQLITE, SEGMENTS, MEMORY)) if wants_disk else MEMORY
