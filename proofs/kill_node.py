"""The node that the kill proof kills: a small fleet on a real SQLite file, told what to do over a socket.

It runs in a process that was forked from one with everything imported, so that a start costs milliseconds. Frames on
the socket are msgpack; the other side is proofs/kill.py, which is the sensors, the operators and the receiver of
actions in one.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import select
import socket
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any, NoReturn

import msgspec
from msgspec import Struct

from stigmergy import (
    Accepted,
    Action,
    Agent,
    Command,
    Effects,
    Event,
    Events,
    Fleet,
    Live,
    Order,
    Settings,
    Snapshots,
    StigmergyError,
    Tell,
    decide,
    evolve,
    react,
    reject,
)
from stigmergy.core.snapshot import digest_of_state

COUNTERS = 12
FRAME_BYTES_MAX = 1 << 16
SETTINGS = Settings(snapshots=Snapshots(every_events=200, every_s=60.0, tail_ratio=1.0))
"""Snapshots are small and frequent, so that kills hit them as well."""


class Counted(Event):
    """Something was counted. Every third number asks for an action, every seventh tells the neighbour."""

    number: int


class Echoed(Event):
    """The neighbour has counted something."""

    number: int


class Take(Command):
    """Take this number. Every fifth is refused."""

    number: int


class Taken(Event):
    """A number was taken."""

    number: int


class Act(Action):
    """Do something in the world for this number, once."""

    number: int


class Counter(Agent):
    """Counts, and keeps a sum that shows whether anything was folded twice or left out."""

    count: int = 0
    total: int = 0
    echoes: int = 0

    @evolve
    def counted(self, event: Counted) -> None:
        self.count += 1
        self.total += event.number

    @react
    def act_on_third(self, event: Counted) -> Effects:
        if event.number % 3 == 0:
            yield Act(number=event.number)
        if event.number % 7 == 0:
            neighbour = (int(self.id) + 1) % COUNTERS
            yield Tell(f"Counter/{neighbour}", Echoed(number=event.number))

    @evolve
    def echoed(self, event: Echoed) -> None:
        self.echoes += event.number

    @decide
    def take(self, command: Take) -> Events:
        if command.number % 5 == 0:
            reject(f"{command.number} is a multiple of five; {self.count} were counted so far")
        yield Taken(number=command.number)

    @evolve
    def taken(self, event: Taken) -> None:
        self.count += 1
        self.total += event.number

    @react
    def act_on_taken(self, event: Taken) -> Effects:
        yield Act(number=event.number)


class Ready(Struct, tag=True, frozen=True):
    """The node has recovered."""

    events: int
    passed_over: int


class Deliver(Struct, tag=True, frozen=True):
    """Take this envelope, whose last event has this sequence."""

    last: int
    envelope: bytes


class Delivered(Struct, tag=True, frozen=True):
    """It is durable up to this sequence."""

    last: int


class Ask(Struct, tag=True, frozen=True):
    """Give this command to an agent."""

    command_id: str
    address: str
    number: int


class Answered(Struct, tag=True, frozen=True):
    """The durable answer: accepted at a position, or refused for a reason."""

    command_id: str
    position: int
    reason: str


class Release(Struct, tag=True, frozen=True):
    """Carry out this action."""

    sequence: int
    key: str
    number: int


class Confirm(Struct, tag=True, frozen=True):
    """It is carried out, now or before."""

    sequence: int


class Stop(Struct, tag=True, frozen=True):
    """Finish, close, and say where you stand."""


class Stopped(Struct, tag=True, frozen=True):
    """How the node ended."""

    digest: bytes
    duplicates: int


class Broken(Struct, tag=True, frozen=True):
    """The node has stopped by itself: it should not have."""

    why: str


Frame = Ready | Deliver | Delivered | Ask | Answered | Release | Confirm | Stop | Stopped | Broken
_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(Frame).decode


class Channel:
    """One end of the socket between node and proof. Frames arrive whole."""

    def __init__(self, end: socket.socket) -> None:
        end.setblocking(False)
        self._end = end

    def send(self, frame: Frame) -> None:
        """Sends one frame; raises OSError when the other side is gone."""
        data = _encode(frame)
        while True:
            try:
                self._end.send(data)
            except BlockingIOError:
                select.select([], [self._end], [])
            else:
                return

    def receive(self) -> Frame | None:
        """The next frame, None if there is none now; raises EOFError when the other side is gone."""
        try:
            data = self._end.recv(FRAME_BYTES_MAX)
        except BlockingIOError:
            return None
        except ConnectionResetError:
            raise EOFError from None
        if not data:
            raise EOFError
        frame: Frame = _decode(data)
        return frame

    def fileno(self) -> int:
        """For select and for the event loop."""
        return self._end.fileno()

    def close(self) -> None:
        """Closes this end."""
        self._end.close()


class Node:
    """The fleet's side of the conversation."""

    def __init__(self, channel: Channel, confirmed: int) -> None:
        self._channel = channel
        self._confirmations: dict[int, asyncio.Future[None]] = {}
        self._stop = asyncio.Event()
        self._tasks: dict[int, asyncio.Task[None]] = {}
        self._task_count = 0
        self._live: Live | None = None
        self.fleet = make_fleet(self._carry_out)
        self.fleet.receivers["actuators"] = lambda _: confirmed

    async def run(self, path: Path) -> None:
        """Recovers, then does as it is told until it is told to stop."""
        running = self.fleet.running(journal=f"sqlite:{path}", key=path.with_suffix(".key"), settings=SETTINGS)
        loop = asyncio.get_running_loop()
        async with running as live:
            self._live = live
            recovered = live.recovered
            self._channel.send(Ready(recovered.events, len(recovered.passed_over)))
            loop.add_reader(self._channel.fileno(), self._receive)
            await self._stop.wait()
            duplicates = live.standing().counters["duplicates"]
            states = recovered.states
        loop.remove_reader(self._channel.fileno())
        self._channel.send(Stopped(digest_of_state(states[0]), duplicates))

    def _receive(self) -> None:
        try:
            while (frame := self._channel.receive()) is not None:
                self._take(frame)
        except EOFError:
            os._exit(0)  # the proof itself was ended

    def _take(self, frame: Frame) -> None:
        match frame:
            case Deliver():
                self._start(self._deliver(frame))
            case Ask():
                self._start(self._ask(frame))
            case Confirm():
                future = self._confirmations.pop(frame.sequence, None)
                if future is not None and not future.done():
                    future.set_result(None)
            case Stop():
                self._stop.set()
            case _:
                raise TypeError(f"{type(frame).__name__} is not for the node")

    def _start(self, work: Any) -> None:
        self._task_count += 1
        number = self._task_count
        self._tasks[number] = asyncio.ensure_future(work)
        self._tasks[number].add_done_callback(lambda _: self._tasks.pop(number))

    async def _deliver(self, frame: Deliver) -> None:
        assert self._live is not None
        await self._live.deliver(frame.envelope)
        self._channel.send(Delivered(frame.last))

    async def _ask(self, frame: Ask) -> None:
        assert self._live is not None
        verdict = await self._live.send(frame.address, Take(number=frame.number), command_id=frame.command_id)
        if isinstance(verdict, Accepted):
            self._channel.send(Answered(frame.command_id, verdict.position, ""))
        else:
            self._channel.send(Answered(frame.command_id, 0, verdict.reason))

    async def _carry_out(self, order: Order[Act]) -> None:
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._confirmations[order.sequence] = future
        self._channel.send(Release(order.sequence, order.key, order.effect.number))
        await future


def make_fleet(act: Callable[[Order[Act]], Any]) -> Fleet:
    """The fleet, with this receiver for its actions."""
    fleet = Fleet("killed", agents=[Counter])
    fleet.actuator(Act)(act)
    return fleet


def run_node(channel: Channel, path: Path, confirmed: int) -> NoReturn:
    """The whole life of a forked process. Never returns."""
    code = 0
    try:
        asyncio.run(Node(channel, confirmed).run(path))
    except StigmergyError as error:
        code = 2
        with contextlib.suppress(OSError):
            channel.send(Broken(f"{type(error).__name__}: {error}"))
    except BaseException:
        code = 3
        with contextlib.suppress(OSError):
            channel.send(Broken(traceback.format_exc()[-2_000:]))
    finally:
        os._exit(code)
