"""The cabinet at an intersection: lamps behind their monitor, detectors, buttons. Simulated, with faults to switch on.

It outlives the program that controls it, as a box at the roadside does, and has a clock of its own. After a safe action
it obeys nothing but ALL_RED first: a green that was decided a moment before must not come behind it.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import deque
from collections.abc import Callable

from apps.traffic.grid import Axis
from apps.traffic.messages import AllRed, DetectorsHeard, LampsSeen, ShowPhase
from apps.traffic.monitor import Limits, Monitor
from apps.traffic.phases import LAMPS, Geometry, Lamps, Phase
from stigmergy import DeviceRefused, Event, Fence, Order

DETECTIONS_COUNT_MAX = 10_000
"""What detectors have seen and nobody has taken yet; beyond it the oldest is lost, and counted."""
Clock = Callable[[], float]


class Cabinet:
    """The devices of one intersection."""

    def __init__(self, name: str, clock: Clock, geometry: Geometry | None = None) -> None:
        self.name = name
        self._clock = clock
        surveyed = geometry or Geometry()
        limits = Limits(
            yellow_s=surveyed.yellow_s,
            clearing_s=surveyed.clearing_s,
            flashing_s=surveyed.flashing_s,
            unwarned_s=surveyed.recovery_s,
        )
        self.monitor = Monitor(limits, clock())
        self._fence = Fence()
        self.phase = Phase.ALL_RED
        self.number = 0
        self._armed = True
        """Whether it obeys a green: not after a safe action, before ALL_RED was ordered as well."""
        self.detections: deque[Event] = deque()
        self.lost_count = 0
        self._changed = asyncio.Event()
        self._detected = asyncio.Event()
        self.blind = False
        """A fault: the detectors say nothing."""
        self.dark = False
        """A fault: what the lamps show is not reported."""
        self.standing: Callable[[Axis], bool] = lambda axis: False  # noqa: ARG005
        """Asked whether somebody stands at a stop line of this road."""
        self.on_change: Callable[[Cabinet], None] | None = None

    @property
    def lamps(self) -> Lamps:
        """What is shown."""
        return self.monitor.lamps

    # ------------------------------------------------------------------ what the controller asks

    def show(self, order: Order[ShowPhase]) -> None:
        """Shows a phase. Raises DeviceRefused, with everything red, if the monitor has objections."""
        self._fence.admit(order)
        wanted = order.effect
        if not self._armed and wanted.phase is not Phase.ALL_RED:
            raise DeviceRefused("made safe a moment ago; ALL_RED has to be ordered first")
        shown = self.monitor.show(LAMPS[wanted.phase], self._clock())
        self._armed = True
        self.number = wanted.number
        self._set(wanted.phase if shown == LAMPS[wanted.phase] else Phase.ALL_RED)
        if shown != LAMPS[wanted.phase]:
            raise DeviceRefused(self.monitor.tripped)

    def make_safe(self, order: Order[AllRed] | None = None) -> None:
        """Everything red, whatever was before."""
        if order is not None:
            with contextlib.suppress(Exception):
                self._fence.admit(order)
        self.monitor.show(LAMPS[Phase.ALL_RED], self._clock())
        self._armed = False
        self._set(Phase.ALL_RED)

    def clear(self) -> None:
        """A technician lets the monitor go on."""
        self.monitor.reset(self._clock())
        self._set(Phase.ALL_RED)

    def alive(self) -> None:
        """The controller is there."""
        self.monitor.alive(self._clock())

    def tick(self) -> None:
        """Has the monitor look at its clock. Call it a few times a second, whatever becomes of the controller."""
        before = self.monitor.lamps
        if self.monitor.tick(self._clock()) != before:
            self._armed = False
            self._set(Phase.ALL_RED)

    # ------------------------------------------------------------------ what it says

    def seen(self, *, first: bool = False) -> LampsSeen | None:
        """What the lamps show; None if that cannot be said."""
        if self.dark:
            return None
        monitor = self.monitor
        return LampsSeen(self.phase, self.number, monitor.tripped, monitor.latched, first)

    def heard(self) -> DetectorsHeard | None:
        """That the detectors work; None if they are silent."""
        if self.blind:
            return None
        return DetectorsHeard(street=self.standing("street"), avenue=self.standing("avenue"))

    def detect(self, event: Event) -> None:
        """A detector or a button has something to say."""
        if len(self.detections) >= DETECTIONS_COUNT_MAX:
            self.detections.popleft()
            self.lost_count += 1
        self.detections.append(event)
        self._detected.set()

    async def wait_changed(self, within_s: float) -> None:
        """Until the lamps change, or for so long."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(within_s):
                await self._changed.wait()
        self._changed.clear()

    async def wait_detected(self) -> Event:
        """The oldest detection that is not taken. It stays until `taken`."""
        while not self.detections:
            self._detected.clear()
            await self._detected.wait()
        return self.detections[0]

    def taken(self, event: Event) -> None:
        """A detection is in the journal."""
        if self.detections and self.detections[0] is event:
            self.detections.popleft()

    def _set(self, phase: Phase) -> None:
        self.phase = phase
        self._changed.set()
        if self.on_change is not None:
            self.on_change(self)
