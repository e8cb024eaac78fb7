"""Sensors: functions that read a device, polled at a fixed rate or pushing by themselves; readings become observations.

A sensor can fail, hang, lie or fall silent; only its own readings suffer: the failure is counted and reported, and
`WhenStale` watches for silence. Between a sensor and its agent there is room for two readings, one in progress and one
that waits; the newest wins.
"""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

from msgspec import Struct

from stigmergy.agents.agent import Agent
from stigmergy.agents.codec import printable
from stigmergy.agents.messages import SECOND_NS, Event
from stigmergy.base.clock import Clock, Threads
from stigmergy.base.errors import DefinitionError, NotOwned, NotRunning, StigmergyError
from stigmergy.devices.filters import Thinner, Thinning
from stigmergy.devices.port import Feed
from stigmergy.diagnostics.codes import Trouble
from stigmergy.diagnostics.logger import Log

# A fixed rate on the monotonic clock: the grid never shifts, and missed ticks are skipped and counted.

EVERY_S_MIN = 0.001
EVERY_S_MAX = 86_400.0
CLOSE_NS = 1_000
"""Nearer than this, a tick has come: sleeping for less than a microsecond is no sleep."""


class Ticker:
    """Ticks at start, start + every, start + 2 × every, … However late one is taken, the next is where it would be."""

    def __init__(self, clock: Clock, every_s: float) -> None:
        self._clock = clock
        self._every_ns = int(every_s * SECOND_NS)
        self._last_ns: int | None = None
        self.overruns = 0
        """Ticks that passed while the caller was busy."""

    async def wait_tick(self) -> int:
        """Waits for the next tick that lies ahead; returns its moment on the monotonic clock. The first is at once."""
        now_ns = self._clock.monotonic_ns()
        if self._last_ns is None:
            self._last_ns = now_ns
            return now_ns
        due_ns = self._last_ns + self._every_ns
        if due_ns < now_ns:
            missed = -(-(now_ns - due_ns) // self._every_ns)
            self.overruns += missed
            due_ns += missed * self._every_ns
        self._last_ns = due_ns
        await asyncio.sleep(max(0, due_ns - now_ns) / SECOND_NS)
        while (left_ns := due_ns - self._clock.monotonic_ns()) > CLOSE_NS:  # noqa: ASYNC110 - the clocks may differ
            await asyncio.sleep(left_ns / SECOND_NS)
        return due_ns


def check_every(what: str, every_s: float) -> None:
    """Raises DefinitionError for a period that no timer here can keep."""
    if not EVERY_S_MIN <= every_s <= EVERY_S_MAX:
        raise DefinitionError(f"{what}: every_s={every_s}; give {EVERY_S_MIN} to {EVERY_S_MAX:.0f} seconds")


Reading = Event | None
Polled = Callable[[str], Awaitable[Reading]] | Callable[[str], Reading]
"""Asked: `async def battery(drone: str) -> BatteryMeasured`, or a plain `def`, which runs on a thread."""
Pushed = Callable[[Feed], Awaitable[None]] | Callable[[str], AsyncIterator[Event]]
"""Speaks by itself: into a feed, or as an async generator."""
Observe = Callable[[str, Event, str], "asyncio.Future[None]"]
"""Gives an event of a source to an agent; the future is done when it is kept as its type promises."""

WITHIN_S_MIN = 1.0
"""A read may take this long, or its period if that is longer, unless the sensor says otherwise."""
PAUSE_S = 1.0
PAUSE_S_MAX = 30.0
"""The pause before a pushing sensor that has ended is begun again; it doubles from one to the other."""
REPORT_EVERY_S = 60.0
"""What goes wrong with one sensor of one agent is reported at most so often, and then with its count."""
TROUBLE_AFTER = 3
"""A sensor that has failed so many times without a reading in between is a trouble of its node until it reads."""
_REASON_CHARS_MAX = 300

log = Log("devices")


class SensorSpec(Struct, frozen=True):
    """A sensor as it was declared."""

    name: str
    kind: type[Agent]
    call: Callable[..., Any]
    every_s: float | None
    """None: it speaks by itself."""
    within_s: float
    thinning: Thinning
    agents: tuple[str, ...] | None
    """The names of the agents that it reads; None: those of this node."""

    @property
    def source(self) -> str:
        """Who says so, in the log."""
        return f"sensor/{self.name}"


class SensorCounters(Struct):
    """What became of readings."""

    read: int = 0
    """Readings that a sensor gave."""
    taken: int = 0
    """Readings that reached their agent."""
    thinned: int = 0
    withheld: int = 0
    """Readings for an agent that supervision has stopped: they would fill its dead letters."""
    superseded: int = 0
    """Readings that a newer one replaced while they waited to be taken."""
    overruns: int = 0
    """Ticks that were skipped because the read before them was still under way."""
    failed: int = 0
    """Reads that raised, took too long or gave what is no event; pushing sensors that ended; what was not taken."""


class FaultReport:
    """Says what goes wrong, without saying it a thousand times."""

    def __init__(self, device: str, agent: str, clock: Clock) -> None:
        self._what = f"{device} of {agent}"
        self._agent = agent
        self._clock = clock
        self._silent_until_ns: int | None = None
        self._unsaid = 0
        self._why = ""
        self.last = ""
        self.in_a_row = 0
        """Failures since the last reading."""

    @property
    def trouble(self) -> Trouble | None:
        """That it fails again and again, if it does."""
        if self.in_a_row < TROUBLE_AFTER:
            return None
        what, times = self._what, f"{self.in_a_row} times"
        text, past = f"{what} fails, {times} by now: {self._why}", f"{what} failed {times} in a row: {self._why}"
        return Trouble("device-failed", text, self._agent, past=past)

    def worked(self) -> None:
        """It has read."""
        self.in_a_row = 0

    def failed(self, reason: str) -> None:
        """Notes it, and reports it unless that was done a moment ago."""
        self.last = printable(reason, _REASON_CHARS_MAX)
        self.in_a_row += 1
        if self.in_a_row <= TROUBLE_AFTER:
            self._why = self.last  # that of a trouble stays, so that it is one and not many
        now_ns = self._clock.monotonic_ns()
        if self._silent_until_ns is not None and now_ns < self._silent_until_ns:
            self._unsaid += 1
            return
        more = f" ({self._unsaid} more since the last report)" if self._unsaid else ""
        log.say(
            "device-failed",
            f"{self._what}: {self.last}{more}",
            agent=self._agent,
            is_trouble=self.in_a_row > TROUBLE_AFTER,
        )
        self._silent_until_ns = now_ns + int(REPORT_EVERY_S * SECOND_NS)
        self._unsaid = 0


class SensorOutlet:
    """From one sensor to one agent: thins, keeps at most one reading waiting, and hands over one at a time."""

    def __init__(
        self,
        spec: SensorSpec,
        address: str,
        observe: Observe,
        is_stopped: Callable[[str], bool],
        clock: Clock,
        counters: SensorCounters,
    ) -> None:
        self._spec = spec
        self._address = address
        self._observe = observe
        self._is_stopped = is_stopped
        self._clock = clock
        self._thinner = Thinner(spec.thinning)
        self._waiting: Event | None = None
        self._under_way: asyncio.Future[None] | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._closed = False
        self.counters = counters
        self.report = FaultReport(f"sensor {spec.name}", address, clock)

    @property
    def agent(self) -> str:
        """The agent's name."""
        return self._address.partition("/")[2]

    def push(self, event: Event) -> None:
        """A reading; see `ports.device.Feed`."""
        if self._closed:
            return
        given: object = event  # a driver written in haste gives anything
        if not isinstance(given, Event):
            self.failed(f"gave {type(given).__name__}, which is no event")
            return
        self.counters.read += 1
        self.report.worked()
        before = self._thinner.left_out
        self._thinner.offer(event, self._clock.monotonic_ns())
        self.counters.thinned += self._thinner.left_out - before
        self._pass_on()

    async def send(self, event: Event) -> None:
        """An event that must not be lost; see `ports.device.Feed`."""
        self.counters.read += 1
        self.report.worked()
        await self._observe(self._address, event, self._spec.source)
        self.counters.taken += 1

    def failed(self, reason: str) -> None:
        """A read, or the handing over of one, has failed."""
        self.counters.failed += 1
        self.report.failed(reason)

    def _not_taken(self, error: BaseException, reason: str) -> None:
        """Whoever ends a host, or loses its shards, says so: that is no fault of the device."""
        if isinstance(error, NotOwned | NotRunning):
            self.counters.failed += 1
        else:
            self.failed(reason)

    def close(self) -> None:
        """Passes nothing on any more."""
        self._closed = True
        if self._timer is not None:
            self._timer.cancel()

    def _pass_on(self) -> None:
        """Passes on what the thinning lets through now, and comes back when there will be more."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        now_ns = self._clock.monotonic_ns()
        event = self._thinner.take(now_ns)
        if event is not None:
            self._hand_over(event)
        due_ns = self._thinner.due_ns
        if due_ns is not None:
            wait_s = max(0, due_ns - now_ns) / SECOND_NS
            self._timer = asyncio.get_running_loop().call_later(wait_s, self._pass_on)

    def _hand_over(self, event: Event) -> None:
        if self._is_stopped(self._address):
            self.counters.withheld += 1
            return
        if self._under_way is not None:
            if self._waiting is not None:
                self.counters.superseded += 1
            self._waiting = event
            return
        try:
            self._under_way = self._observe(self._address, event, self._spec.source)
        except Exception as error:  # a message that has no bytes is the sensor's fault, and no reason to end it
            self._not_taken(error, _words(error))
            return
        self._under_way.add_done_callback(self._handed_over)

    def _handed_over(self, future: asyncio.Future[None]) -> None:
        self._under_way = None
        if future.cancelled():
            return
        error = future.exception()
        if error is None:
            self.counters.taken += 1
        elif not self._closed:
            self._not_taken(error, f"not taken: {_words(error)}")
        event, self._waiting = self._waiting, None
        if event is not None and not self._closed:
            self._hand_over(event)


class Poller:
    """Asks one sensor about one agent, on a steady beat."""

    def __init__(self, spec: SensorSpec, outlet: SensorOutlet, clock: Clock, threads: Threads) -> None:
        assert spec.every_s is not None
        self._spec = spec
        self._outlet = outlet
        self._ticker = Ticker(clock, spec.every_s)
        self._threads = threads
        self._plain = not _is_async(spec.call)
        self._hung: asyncio.Future[Any] | None = None
        """A plain read that took too long: it cannot be ended, and is not asked again before it has returned."""

    async def run(self) -> None:
        """Until it is cancelled."""
        while True:
            before = self._ticker.overruns
            await self._ticker.wait_tick()
            self._outlet.counters.overruns += self._ticker.overruns - before
            if self._hung is not None and not self._hung.done():
                self._outlet.counters.overruns += 1
                self._outlet.report.in_a_row += 1
                continue
            await self._read()

    async def _read(self) -> None:
        within = asyncio.timeout(self._spec.within_s)
        try:
            async with within:
                event = await (self._read_on_thread() if self._plain else self._spec.call(self._outlet.agent))
        except BaseException as error:
            if within.expired() and isinstance(error, TimeoutError):
                self._outlet.failed(f"no answer within {self._spec.within_s:g} s")
                return
            raise_if_ours(error)
            self._outlet.failed(_words(error))
            return
        if event is not None:  # Nothing new says nothing about a device that fails: only a reading ends that.
            self._outlet.push(event)

    async def _read_on_thread(self) -> Any:
        agent = self._outlet.agent
        future = asyncio.ensure_future(self._threads.run(lambda: self._spec.call(agent)))
        # When nobody waits for it any more, what it raises is of no interest; asking for it keeps asyncio quiet.
        future.add_done_callback(lambda ended: ended.cancelled() or ended.exception())
        self._hung = future
        result = await asyncio.shield(future)
        return await result if inspect.isawaitable(result) else result


class Pusher:
    """Keeps one pushing sensor of one agent going."""

    def __init__(self, spec: SensorSpec, outlet: SensorOutlet) -> None:
        self._spec = spec
        self._outlet = outlet

    async def run(self) -> None:
        """Until it is cancelled."""
        pause_s = PAUSE_S
        while True:
            before = self._outlet.counters.read
            try:
                if inspect.isasyncgenfunction(self._spec.call):
                    await self._drain(self._spec.call(self._outlet.agent))
                else:
                    await self._spec.call(self._outlet)
            except BaseException as error:
                raise_if_ours(error)
                self._outlet.failed(_words(error))
            else:
                self._outlet.failed("ended; a pushing sensor goes on for ever. It is begun again")
            if self._outlet.counters.read > before:
                pause_s = PAUSE_S
            await asyncio.sleep(pause_s)
            pause_s = min(pause_s * 2, PAUSE_S_MAX)

    async def _drain(self, readings: Any) -> None:
        """Ends the generator here, in its own task: when a garbage collection would do it, nobody knows."""
        try:
            async for event in readings:
                self._outlet.push(event)
        finally:
            await readings.aclose()


def raise_if_ours(error: BaseException) -> None:
    """Raises again what is not the device's fault: that we are to stop, or that the program is to end."""
    if isinstance(error, asyncio.CancelledError):
        task = asyncio.current_task()
        if task is None or task.cancelling():
            raise error
    if isinstance(error, KeyboardInterrupt | SystemExit):
        raise error


def _is_async(call: Callable[..., Any]) -> bool:
    return inspect.iscoroutinefunction(call) or inspect.iscoroutinefunction(getattr(call, "__call__", None))  # noqa: B004


def _words(error: BaseException) -> str:
    return str(error) if isinstance(error, StigmergyError) else f"{type(error).__name__}: {error}"
