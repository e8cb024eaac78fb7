"""Inner control loops: code that runs every few milliseconds beside an agent, unjournaled, with set-points from it.

The agent sets the target, seldom and durably; the loop holds it, often and without the disk. It drives only while the
agent exists and is not stopped, the node runs, the set-point is fresh, and the loop itself does not fail. When one of
these ends, its `safe` is called once, and again at the next end.
"""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Awaitable, Callable
from typing import Any, Generic, TypeVar

from msgspec import Struct

from stigmergy.agents.agent import Agent
from stigmergy.agents.effects import Order
from stigmergy.agents.messages import SECOND_NS
from stigmergy.base.clock import Clock
from stigmergy.base.errors import DefinitionError
from stigmergy.devices.fence import Fence
from stigmergy.devices.sensors import FaultReport, Ticker, raise_if_ours

AgentT = TypeVar("AgentT", bound=Agent)
ValueT = TypeVar("ValueT")


class Tick(Struct, Generic[AgentT], frozen=True):
    """One turn of a loop."""

    id: str
    """The agent's name, `D-17`."""
    agent: AgentT
    """The agent's state, as it is on disk: set-points may be read from it."""
    now_s: float
    """The node's wall clock, as `self.now` has it: compare it with times in the state."""
    dt_s: float
    """Since the turn before, on the grid; the period, unless turns were missed. For the first turn: the period."""


Looped = Callable[[Tick[Any]], Awaitable[None] | None]
MakeSafe = Callable[[str], Awaitable[None] | None]
"""Brings the output of a loop into its safe state, for the agent of this name. Idempotent."""


class SetPoints(Generic[ValueT]):
    """Set-points that an actuator leaves for a loop: the newest for each agent, and only while it is fresh.

    An order with a lower token than the last is refused (StaleOrder). Without a new order for `stale_s` seconds there
    is no set-point any more: have the agent repeat what it wants.
    """

    def __init__(self, *, stale_s: float) -> None:
        if not 0 < stale_s <= 86_400:
            raise DefinitionError(f"SetPoints(stale_s={stale_s}): give more than 0 and at most a day of seconds")
        self.stale_s = stale_s
        self._fence = Fence()
        self._values: dict[str, tuple[ValueT, float]] = {}

    def put(self, order: Order[Any], value: ValueT) -> None:
        """Takes the set-point of an order. Raises StaleOrder for an older one than it has."""
        self._fence.admit(order)
        self._values[_name(order.agent)] = (value, asyncio.get_running_loop().time())

    def clear(self, order: Order[Any]) -> None:
        """There is no set-point any more: the loop makes its output safe at its next turn."""
        self._fence.admit(order)
        self._values.pop(_name(order.agent), None)

    def get(self, agent: str) -> ValueT | None:
        """The set-point of the agent of this name; None if there is none or it is stale."""
        found = self._values.get(agent)
        if found is None or asyncio.get_running_loop().time() - found[1] > self.stale_s:
            return None
        return found[0]


class LoopSpec(Struct, frozen=True):
    """A loop as it was declared."""

    name: str
    kind: type[Agent]
    call: Looped
    every_s: float
    safe: MakeSafe | None
    set_points: SetPoints[Any] | None
    agents: tuple[str, ...] | None


class LoopCounters(Struct):
    """What became of turns."""

    turns: int = 0
    overruns: int = 0
    """Turns that were skipped because the one before was still under way, or the node was busy."""
    failed: int = 0
    """Turns that raised."""
    made_safe: int = 0
    safe_failed: int = 0
    """Times that making the output safe has failed: it is tried again at the next turn."""


class LoopContext(Struct, frozen=True):
    """What a loop sees of the node it runs beside."""

    image: Callable[[], Agent | None]
    """The agent as it is on disk; None while it is not there, is stopped, or the node has failed."""
    now_s: Callable[[], float]


class Loop:
    """Turns one loop for one agent."""

    def __init__(self, spec: LoopSpec, address: str, beside: LoopContext, clock: Clock, counters: LoopCounters) -> None:
        self._spec = spec
        self._id = _name(address)
        self._beside = beside
        self._ticker = Ticker(clock, spec.every_s)
        self._driving = False
        self._abandoned = False
        self.counters = counters
        self.report = FaultReport(f"loop {spec.name}", address, clock)

    async def run(self) -> None:
        """Until it is cancelled; the output is then made safe."""
        last_ns: int | None = None
        try:
            while True:
                before = self._ticker.overruns
                now_ns = await self._ticker.wait_tick()
                self.counters.overruns += self._ticker.overruns - before
                dt_s = self._spec.every_s if last_ns is None else (now_ns - last_ns) / SECOND_NS
                last_ns = now_ns
                await self._turn(dt_s)
        finally:
            await self._make_safe()

    def abandon(self) -> None:
        """What it drives is left as it is."""
        self._driving = False
        self._abandoned = True

    async def _turn(self, dt_s: float) -> None:
        points = self._spec.set_points
        agent = self._beside.image()
        if agent is None or (points is not None and points.get(self._id) is None):
            await self._make_safe()
            return
        self._driving = True
        try:
            turned = self._spec.call(Tick(self._id, agent, self._beside.now_s(), dt_s))
            if inspect.isawaitable(turned):
                await turned
        except BaseException as error:
            raise_if_ours(error)
            self.counters.failed += 1
            self.report.failed(f"{type(error).__name__}: {error}")
            await self._make_safe()
        else:
            self.counters.turns += 1

    async def _make_safe(self) -> None:
        if not self._driving or self._abandoned:
            return
        self._driving = False
        if self._spec.safe is None:
            return
        self.counters.made_safe += 1
        try:
            made = self._spec.safe(self._id)
            if inspect.isawaitable(made):
                await made
        except BaseException as error:
            raise_if_ours(error)
            self._driving = True
            self.counters.safe_failed += 1
            self.report.failed(f"could not be made safe: {type(error).__name__}: {error}")


def _name(address: str) -> str:
    return address.partition("/")[2]
