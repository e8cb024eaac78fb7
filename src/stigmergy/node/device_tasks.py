"""Runs the devices of a node beside its host: sensors and control loops, one task for each of their agents.

The agents are those that the sensor or loop names; otherwise those whose addresses `agents` spells out, and all of the
kind that have had an input here, new ones within a second. Agents that do not run here never count. While supervision
has stopped an agent, nothing is read for it. Start this after the host and stop it before: a loop makes its output safe
while the node still runs. Shared resources open before the host and close after it, because actuators need them while
orders go out.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

from msgspec import Struct, structs

from stigmergy.agents.agent import Agent
from stigmergy.agents.messages import SECOND_NS
from stigmergy.base.clock import Threads
from stigmergy.base.errors import ConfigError, StigmergyError
from stigmergy.devices.loops import Loop, LoopContext, LoopCounters, LoopSpec
from stigmergy.devices.port import Attachment
from stigmergy.devices.sensors import Poller, Pusher, SensorCounters, SensorOutlet, SensorSpec, log
from stigmergy.diagnostics.codes import Trouble
from stigmergy.node.host import Host
from stigmergy.store.blobs import as_current

T = TypeVar("T")
LOOK_EVERY_S = 1.0
"""How often it is looked for new agents, where none are named."""
TASKS_COUNT_MAX = 10_000
"""Sensors and loops times agents on one node; more agents than that are not read, and the standing says how many."""

TROUBLES_MAX = 20
"""Sensors of agents that are named as troubles; of more the number is told."""


class DeviceStatus(Struct, frozen=True):
    """How a sensor or loop is doing."""

    name: str
    kind: str
    agents: int
    counters: dict[str, int]
    last_problem: str


class Inline:
    """The Threads port without threads, for simulations: the call is made at once, in its place."""

    def run(self, call: Callable[[], T], /) -> Awaitable[T]:
        """Makes the call."""
        future: asyncio.Future[T] = asyncio.get_running_loop().create_future()
        try:
            future.set_result(call())
        except Exception as error:
            future.set_exception(error)
        return future


class Devices:
    """The sensors and loops of a running host."""

    def __init__(self, host: Host, threads: Threads) -> None:
        self._host = host
        self._threads = threads
        self._tasks: dict[tuple[str, str], asyncio.Task[None]] = {}
        self._outlets: dict[tuple[str, str], SensorOutlet] = {}
        self._loops: dict[tuple[str, str], Loop] = {}
        self._sensor_counters = {name: SensorCounters() for name in host.declaration.sensors}
        self._loop_counters = {name: LoopCounters() for name in host.declaration.loops}
        self._open: list[Attachment] = []
        self._seen = -1
        self._watch: asyncio.Task[None] | None = None
        self.left_out = 0
        """Agents that are not read because there are too many."""

    async def open(self) -> None:
        """Opens what sensors and actuators share. Call it before the host starts, which may have orders to repeat."""
        for attachment in self._host.declaration.attachments:
            self._open.append(attachment)
            try:
                await open_attachment(attachment)
            except BaseException:
                await self.close()
                raise

    async def close(self) -> None:
        """Closes what was opened, the last first. Call it after the host has stopped; what hangs is left behind."""
        while self._open:
            attachment = self._open.pop()
            try:
                async with asyncio.timeout(self._host.settings.drain_s):
                    await attachment.close()
            except Exception as error:
                what = f"{type(attachment).__name__}: could not be closed"
                log.say("device-failed", f"{what}: {type(error).__name__}: {error}")

    def start(self) -> None:
        """Begins to read and to turn."""
        specs = self._specs()
        if not specs:
            return
        self._look()
        if any(spec.agents is None for spec in specs):
            self._watch = asyncio.ensure_future(self._watch_agents())

    async def stop(self) -> None:
        """Ends all of them, and has the loops make their outputs safe. What does not end in time is left behind."""
        for outlet in self._outlets.values():
            outlet.close()
        tasks = [*self._tasks.values(), *([self._watch] if self._watch else [])]
        for task in tasks:
            task.cancel()
        loop = asyncio.get_running_loop()
        deadline_s = loop.time() + self._host.settings.drain_s
        while not all(task.done() for task in tasks) and loop.time() < deadline_s:
            await asyncio.sleep(0)
            if not all(task.done() for task in tasks):
                await asyncio.sleep(0.001)
        self._tasks.clear()

    async def kill(self) -> None:
        """Ends all of them as a crash would: nothing is made safe. For simulations."""
        for loop in self._loops.values():
            loop.abandon()
        await self.stop()

    def standing(self) -> list[DeviceStatus]:
        """How each sensor and loop is doing, over all its agents."""
        found: list[DeviceStatus] = []
        reports = {key: outlet.report for key, outlet in self._outlets.items()}
        reports |= {key: loop.report for key, loop in self._loops.items()}
        for spec in self._specs():
            mine = [report for key, report in reports.items() if key[0] == _key(spec)]
            problems = [report.last for report in mine if report.last]
            counters: Struct = self._counters(spec)
            counted: dict[str, int] = structs.asdict(counters)
            kind = spec.kind.__agent_kind__
            found.append(DeviceStatus(_key(spec), kind, len(mine), counted, problems[-1] if problems else ""))
        return found

    def troubles(self) -> list[Trouble]:
        """Sensors that fail again and again."""
        found = [trouble for outlet in self._outlets.values() if (trouble := outlet.report.trouble) is not None]
        if len(found) > TROUBLES_MAX:
            more = f"{len(found) - TROUBLES_MAX} more sensors of agents fail"
            found[TROUBLES_MAX:] = [Trouble("device-failed", more)]
        return found

    def counters(self) -> dict[str, int]:
        """All counters in one, for `live.standing()`; none where there are no devices."""
        found: dict[str, int] = {"devices_left_out": self.left_out} if self._specs() else {}
        for prefix, counted in (("sensor", self._sensor_counters), ("loop", self._loop_counters)):
            for one in counted.values():
                for name, value in structs.asdict(one).items():
                    found[f"{prefix}_{name}"] = found.get(f"{prefix}_{name}", 0) + value
        return found

    def _specs(self) -> list[SensorSpec | LoopSpec]:
        declaration = self._host.declaration
        return [*declaration.sensors.values(), *declaration.loops.values()]

    def _counters(self, spec: SensorSpec | LoopSpec) -> SensorCounters | LoopCounters:
        if isinstance(spec, SensorSpec):
            return self._sensor_counters[spec.name]
        return self._loop_counters[spec.name]

    async def _watch_agents(self) -> None:
        while True:
            await asyncio.sleep(LOOK_EVERY_S)
            self._look()

    def _look(self) -> None:
        """Begins for agents that are new. Agents do not go away, so their number says whether there are any."""
        count = sum(len(shard.state.agents) for shard in self._host.shards)
        if count == self._seen:
            return
        self._seen = count
        self.left_out = 0
        assignment = self._host.assignment
        here = sorted(address for shard in self._host.shards for address in shard.state.agents)
        for spec in self._specs():
            kind = spec.kind.__agent_kind__
            mine = [f"{kind}/{name}" for name in (assignment.names_of(kind) if spec.agents is None else spec.agents)]
            mine += here if spec.agents is None else ()
            for address in dict.fromkeys(mine):
                ours = address.startswith(f"{kind}/") and assignment.runs(address)
                if ours and self._host.intake.shard_of(address) in self._host.shards:
                    self._begin(spec, address)

    def _begin(self, spec: SensorSpec | LoopSpec, address: str) -> None:
        key = (_key(spec), address)
        if key in self._tasks:
            return
        if len(self._tasks) >= TASKS_COUNT_MAX:
            self.left_out += 1
            return
        clock = self._host.clock
        if isinstance(spec, LoopSpec):
            beside = LoopContext(lambda: self._image(address), self._now_s)
            loop = self._loops[key] = Loop(spec, address, beside, clock, self._loop_counters[spec.name])
            self._tasks[key] = asyncio.ensure_future(loop.run())
            return
        counters = self._sensor_counters[spec.name]
        outlet = SensorOutlet(spec, address, self._host.intake.observe, self._is_stopped, clock, counters)
        self._outlets[key] = outlet
        runner: Any = Pusher(spec, outlet) if spec.every_s is None else Poller(spec, outlet, clock, self._threads)
        with as_current(self._host.blobs):
            self._tasks[key] = asyncio.ensure_future(runner.run())

    def _image(self, address: str) -> Agent | None:
        if self._host.failure is not None or self._is_stopped(address):
            return None
        image = self._host.durable_image(address)
        return None if image is None else self._host.declaration.plans[address.partition("/")[0]].copy(image)

    def _is_stopped(self, address: str) -> bool:
        return address in self._host.shards[self._host.intake.shard_of(address)].state.stopped

    def _now_s(self) -> float:
        last_ns = max(shard.state.time_ns for shard in self._host.shards)
        return max(self._host.clock.wall_ns(), last_ns) / SECOND_NS


async def open_attachment(attachment: Attachment) -> None:
    """Opens what devices share. What stands in its way is for people to mend, and no bug of ours."""
    try:
        await attachment.open()
    except StigmergyError:
        raise
    except Exception as error:
        raise ConfigError(f"{type(attachment).__name__} cannot be opened: {str(error) or repr(error)}") from error


async def start_attached(host: Host, devices: Devices) -> None:
    """Starts a host whose actuators find open what they need; it is closed again if the host does not start."""
    await devices.open()
    try:
        await host.start()
    except BaseException:
        await devices.close()
        raise


def _key(spec: SensorSpec | LoopSpec) -> str:
    return f"{'sensor' if isinstance(spec, SensorSpec) else 'loop'} {spec.name}"
