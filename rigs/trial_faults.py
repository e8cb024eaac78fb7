"""What goes wrong in a trial, and when: all of it drawn from the seed, all of it undone by `heal`."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable

from stigmergy.sim.devices import Receiver, Temper
from stigmergy.sim.disk import DiskFault
from stigmergy.sim.node import SimNode

HOUR_S = 3600.0
Crash = Callable[[str], Awaitable[None]]


class Faults:
    """Plans and carries out faults on one node."""

    def __init__(self, node: SimNode, receiver: Receiver, chance: random.Random, *, power_only: bool = False) -> None:
        self._node = node
        self._receiver = receiver
        self._chance = chance
        self._power_only = power_only
        self.on = True
        self.network = Temper()
        self.paused_until_ns = 0
        self.counts: dict[str, int] = {}
        self._planned: list[int] = []
        """The numbers of the calls that are to fail and have not been reached by a start yet."""
        node.latency.before_s = chance.choice((0.0, 0.001, 0.02))
        node.latency.after_s = chance.choice((0.0, 0.001, 0.02))

    async def run(self, duration_s: float, crash: Crash) -> None:
        """Lets things go wrong until the time is over."""
        if not self.on:
            return
        chance = self._chance
        if not self._power_only:
            self.network.loss = chance.choice((0.0, 0.05, 0.2))
            self.network.repeat = chance.choice((0.0, 0.2))
            self.network.delay_s = chance.choice((0.0, 0.05, 0.4))
            self._receiver.temper.fail = chance.choice((0.0, 0.1, 0.4))
        self._receiver.temper.delay_s = chance.choice((0.0, 0.05, 0.5))
        end = self._node.world.loop.time() + duration_s
        while self._node.world.loop.time() < end:
            await asyncio.sleep(chance.uniform(0.1, duration_s / 4))
            await self._let_something_happen(crash)

    async def heal(self) -> None:
        """From now on everything works."""
        self.on = False
        self._node.disk.forgive()
        self._node.disk.capacity_bytes = 1 << 40
        self.network.loss = self.network.repeat = self.network.delay_s = 0.0
        self._receiver.temper.fail = self._receiver.temper.delay_s = 0.0
        self._node.latency.before_s = self._node.latency.after_s = 0.001

    def before_start(self) -> None:
        """The moment before a machine starts again: its clock may have lost its battery, its disk may not be well."""
        if not self.on or self._power_only:
            return
        if self._chance.random() < 0.15:
            self._note("boot in 1970")
            self._node.clock.boot_in_1970()
        if self._chance.random() < 0.2:
            self._plan(self._chance.choice((DiskFault.EIO, DiskFault.POWER_LOSS, DiskFault.KILL)), 40)

    def spoilt_the_start(self) -> bool:
        """Whether a start that failed had a fault to blame. A full disk gets its room back: it would never end."""
        disk = self._node.disk
        spoilt = any(number <= disk.calls for number in self._planned)
        self._planned = [number for number in self._planned if number > disk.calls]
        full = disk.free_bytes("") < (1 << 20)
        if full:
            disk.capacity_bytes = 1 << 40
        return spoilt or full

    async def _let_something_happen(self, crash: Crash) -> None:
        chance, node = self._chance, self._node
        if not self.on:
            return
        choices = ["power at call", "power at call", "power"]
        if not self._power_only:
            choices += ["kill at call", "kill", "EIO", "EIO", "ENOSPC", "full", "jump", "pause", "stall", "freeze"]
        what = chance.choice(choices)
        self._note(what)
        match what:
            case "power at call":
                self._plan(DiskFault.POWER_LOSS, 60)
            case "kill at call":
                self._plan(DiskFault.KILL, 60)
            case "EIO":
                self._plan(DiskFault.EIO, 60)
            case "ENOSPC":
                self._plan(DiskFault.ENOSPC, 60)
            case "power" | "kill":
                await crash(what)
            case "full":
                node.disk.capacity_bytes = node.disk.used_bytes() + chance.randint(0, 60_000)
            case "jump":
                node.clock.jump(chance.choice((-HOUR_S, HOUR_S, -1.0, 1.0, 30 * HOUR_S)))
            case "pause":
                self._pause(chance.uniform(0.1, 3.0))
            case "stall":
                node.latency.before_s = chance.choice((0.5, 4.0))
            case "freeze":
                node.clock.freeze()
                node.latency.before_s = 0.001
            case _:
                raise AssertionError(what)

    def _plan(self, fault: DiskFault, calls_max: int) -> None:
        disk = self._node.disk
        number = disk.calls + self._chance.randint(1, calls_max)
        self._planned.append(number)
        disk.fail(number, fault)

    def _pause(self, seconds: float) -> None:
        loop = self._node.world.loop
        loop.pause(seconds)
        self.paused_until_ns = loop.time_ns()

    def _note(self, what: str) -> None:
        self.counts[what] = self.counts.get(what, 0) + 1
        self._node.world.record("fault", what)
