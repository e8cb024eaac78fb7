"""The world around the node: gauges that repeat what was not acknowledged, an operator, and the receiver of actions.

It remembers every acknowledgement and every action, because afterwards the journal is held against that memory.
"""

from __future__ import annotations

import select
import signal
import subprocess
import sys
import time
from pathlib import Path

from msgspec import Struct

from examples.demonstration.frames import (
    Answered,
    Ask,
    FromNode,
    Ordered,
    Ready,
    Status,
    Stopped,
    ToNode,
    from_node,
)
from examples.demonstration.patrol import DRONES, BatteryMeasured, ProgressMeasured
from stigmergy import Event
from stigmergy.core.codec import pack_envelope
from stigmergy.testing.frames import Broken, Channel, Confirm, Deliver, Delivered, Stop, socket_pair

TICK_S = 0.1
SILENT_DRONE = "D-7"
SILENT_FROM_S = 5.0
WEAK_DRONE = "D-3"
PROGRESS_PER_S = 7.5
CONFIRM_AFTER_S = 0.5
"""A device takes its time; so a kill finds actions that are carried out and not confirmed yet."""


class Flight(Struct):
    """One drone in the world: where it really is."""

    name: str
    percent: float = 0.0
    battery: float = 100.0
    down: bool = False

    def move(self, seconds: float) -> None:
        """Flies on, and uses its battery."""
        if not self.down:
            number = int(self.name.removeprefix("D-"))
            self.percent = min(100.0, self.percent + seconds * (PROGRESS_PER_S + number % 4))
            self.battery = max(0.0, self.battery - seconds * (12.0 if self.name == WEAK_DRONE else 3.0))


class World:
    """Sends, repeats, receives, remembers."""

    def __init__(self, path: Path, pace: float = 1.0) -> None:
        self._path = path
        self._pace = pace
        """How many times faster than usual everybody flies."""
        self._process: subprocess.Popen[bytes] | None = None
        self._channel: Channel[FromNode] | None = None
        self._began_s = time.monotonic()
        self._sequence = 0
        self._unacknowledged: dict[int, bytes] = {}
        self.flights = {f"D-{number}": Flight(f"D-{number}") for number in range(1, DRONES + 1)}
        self.acknowledged: dict[int, None] = {}
        """The last sequence of every envelope that was acknowledged; envelopes follow each other without a gap."""
        self.sizes: dict[int, int] = {}
        self.asked: dict[str, Ask] = {}
        self.answers: dict[str, Answered] = {}
        self.answers_differ: list[str] = []
        self.done: dict[int, Ordered] = {}
        """What the receiver has carried out, by sequence."""
        self._confirmations: list[tuple[float, str]] = []
        """What the receiver will confirm, and when."""
        self.repeats_dropped = 0
        self.safe: list[tuple[float, Ordered]] = []
        """Safe actions, each with the time since the silence began or the node was started, whichever was later."""
        self._silent_since_s = 0.0
        self.news: list[str] = []
        self.ready: Ready | None = None
        self.status: Status | None = None
        self.stopped: Stopped | None = None
        self.broken: str | None = None

    @property
    def seconds(self) -> float:
        """Since the world began."""
        return time.monotonic() - self._began_s

    @property
    def in_flight(self) -> int:
        """Envelopes that were sent and not acknowledged."""
        return len(self._unacknowledged)

    @property
    def events_acknowledged(self) -> int:
        """Events that the node has promised to keep."""
        return sum(self.sizes[last] for last in self.acknowledged)

    def start_node(self) -> None:
        """Starts the node on the same file as before, and waits until it is ready."""
        confirmed = 0
        while confirmed + 1 in self.done:
            confirmed += 1
        ours, theirs = socket_pair()
        number = theirs.fileno()
        node = ("-m", "examples.demonstration.node", str(self._path), str(confirmed), str(number))
        self._process = subprocess.Popen([sys.executable, *node], pass_fds=[number])
        theirs.close()
        self._channel = Channel(ours, from_node)
        self._confirmations.clear()
        self.ready = None
        self._await_ready()
        for last, envelope in self._unacknowledged.items():
            self._send(Deliver(last, envelope))
        for ask in self.asked.values():
            self._send(ask)  # the operator is not sure what was heard, and asks again
        self._silent_since_s = self.seconds

    def _await_ready(self) -> None:
        while self.ready is None and self.broken is None:
            self.listen(0.05)

    def kill_node(self) -> None:
        """SIGKILL: no handler, no flush, no goodbye. What it had said before still counts."""
        assert self._process is not None
        self._process.send_signal(signal.SIGKILL)
        self._process.wait()
        self._read()
        self._close()

    def stop_node(self) -> None:
        """Lets the node finish, and hears in which state it ended."""
        self._send(Stop())
        deadline_s = time.monotonic() + 20
        while self.stopped is None and self.broken is None and time.monotonic() < deadline_s:
            self.listen(0.05)
        if self._process is not None:
            self._process.wait(timeout=20)
            self._close()

    def start_missions(self) -> None:
        """The operator sends everybody off."""
        for name in self.flights:
            ask = Ask(f"start-{name}", name, f"parcel-{name.removeprefix('D-')}")
            self.asked[ask.command_id] = ask
            self._send(ask)

    def tick(self) -> None:
        """A tenth of a second passes: everybody moves and reports, but for the gauge that has fallen silent."""
        for flight in self.flights.values():
            flight.move(TICK_S * self._pace)
            events: list[tuple[str, Event]] = [(f"Drone/{flight.name}", ProgressMeasured(percent=flight.percent))]
            if flight.name != SILENT_DRONE or self.seconds < SILENT_FROM_S / self._pace:
                events.append((f"Drone/{flight.name}", BatteryMeasured(percent=flight.battery)))
                if flight.name == SILENT_DRONE:
                    self._silent_since_s = self.seconds
            self._report(events)

    def listen(self, seconds: float) -> None:
        """Hears what the node says for so long."""
        deadline_s = time.monotonic() + seconds
        self._confirm()
        while (wait_s := deadline_s - time.monotonic()) > 0:
            assert self._channel is not None
            readable, _, _ = select.select([self._channel], [], [], wait_s)
            if readable and not self._read():
                if self.stopped is None:
                    self.broken = self.broken or "the node ended by itself"
                return

    def flying(self) -> bool:
        """Whether somebody is still on the way."""
        waiting = self._unacknowledged or self._confirmations
        return bool(waiting) or any(not flight.down and flight.percent < 100 for flight in self.flights.values())

    def _report(self, events: list[tuple[str, Event]]) -> None:
        first = self._sequence + 1
        self._sequence += len(events)
        envelope = pack_envelope("gauges", [*events], sequence=first)
        self._unacknowledged[self._sequence] = envelope
        self.sizes[self._sequence] = len(events)
        self._send(Deliver(self._sequence, envelope))

    def _send(self, frame: ToNode) -> None:
        assert self._channel is not None
        try:
            self._channel.send(frame)
        except (BrokenPipeError, ConnectionResetError):
            self.broken = self.broken or "the node ended by itself"

    def _read(self) -> bool:
        """Takes what the node has said; False when it will say nothing more."""
        assert self._channel is not None
        try:
            while (frame := self._channel.receive()) is not None:
                self._take(frame)
        except EOFError:
            return False
        return True

    def _take(self, frame: FromNode) -> None:
        match frame:
            case Ready():
                self.ready = frame
            case Status():
                self.status = frame
            case Delivered():
                if self._unacknowledged.pop(frame.last, None) is not None:
                    self.acknowledged[frame.last] = None
            case Answered():
                before = self.answers.setdefault(frame.command_id, frame)
                if before != frame:
                    self.answers_differ.append(f"{before} became {frame}")
            case Ordered():
                self._receive(frame)
            case Stopped():
                self.stopped = frame
            case Broken():
                self.broken = frame.why

    def _receive(self, order: Ordered) -> None:
        """The receiver of actions: by its marks it drops what it had. A safe action it may carry out again."""
        flight = self.flights[order.drone]
        if order.sequence == 0:
            self.safe.append((self.seconds - self._silent_since_s, order))
            self.news.append(f"{order.drone}: safe action {order.action}, {order.detail}")
        elif order.sequence in self.done:
            self.repeats_dropped += 1
            self.news.append(f"{order.drone}: {order.action} came again, and was dropped by its mark")
        else:
            self.done[order.sequence] = order
            if order.action != "Blink":
                self.news.append(f"{order.drone}: {order.action}, {order.detail}")
        if order.action == "Land":
            flight.down = True
        self._confirmations.append((self.seconds + CONFIRM_AFTER_S, order.key))

    def _confirm(self) -> None:
        """Confirms what has been carried out long enough ago."""
        due = [key for at_s, key in self._confirmations if at_s <= self.seconds]
        self._confirmations = [(at_s, key) for at_s, key in self._confirmations if at_s > self.seconds]
        for key in due:
            self._send(Confirm(key))

    def _close(self) -> None:
        assert self._channel is not None
        self._channel.close()
