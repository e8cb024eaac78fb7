"""A node in a process of its own, and whoever tests it: what they say to each other, whole frame by whole frame.

The parent makes a pair of sockets, gives one end to the child (by fork, or by its number) and keeps the other. What all
such tests say is here; what one test says besides are frames of its own, for which it brings the decoder. A child that
is killed leaves nothing half said: the sockets carry packets.
"""

from __future__ import annotations

import asyncio
import contextlib
import select
import socket
from collections.abc import Callable, Coroutine
from typing import Any, Generic, TypeVar

import msgspec
from msgspec import Struct

from stigmergy.base.errors import TooLarge
from stigmergy.control.live import Live

FRAME_BYTES_MAX = 1 << 16


class Deliver(Struct, tag=True, frozen=True):
    """To the node: take this envelope, whose last event has this sequence."""

    last: int
    envelope: bytes


class Delivered(Struct, tag=True, frozen=True):
    """It is durable: whoever sent it may forget it."""

    last: int


class Confirm(Struct, tag=True, frozen=True):
    """To the node: the action with this key is carried out, now or before."""

    key: str


class Stop(Struct, tag=True, frozen=True):
    """To the node: finish what you have, close, and say how you ended."""


class Broken(Struct, tag=True, frozen=True):
    """The node cannot go on, and should."""

    why: str


FrameT = TypeVar("FrameT")


def socket_pair() -> tuple[socket.socket, socket.socket]:
    """Two ends between which frames travel whole, in order."""
    return socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)


class Channel(Generic[FrameT]):
    """One end. `decoder` reads what arrives here."""

    def __init__(self, end: socket.socket, decoder: msgspec.msgpack.Decoder[FrameT]) -> None:
        end.setblocking(False)
        self._end = end
        self._decoder = decoder

    def send(self, frame: Struct) -> None:
        """Sends one frame, and waits while there is no room; raises OSError when the other side is gone."""
        data = msgspec.msgpack.encode(frame)
        if len(data) > FRAME_BYTES_MAX:
            raise TooLarge(f"{type(frame).__name__} of {len(data)} bytes, {FRAME_BYTES_MAX} at most; say less at once")
        while True:
            try:
                self._end.send(data)
            except BlockingIOError:
                select.select([], [self._end], [])
            else:
                return

    def receive(self) -> FrameT | None:
        """The next frame, None if there is none now; raises EOFError when the other side is gone."""
        try:
            data = self._end.recv(FRAME_BYTES_MAX)
        except BlockingIOError:
            return None
        except ConnectionResetError:
            raise EOFError from None
        if not data:
            raise EOFError
        return self._decoder.decode(data)

    def fileno(self) -> int:
        """For select and for the event loop."""
        return self._end.fileno()

    def close(self) -> None:
        """Closes this end."""
        self._end.close()


class ToldNode(Generic[FrameT]):
    """The node's side: delivers, confirms and stops as it is told. `take` does what a test's own frames ask for."""

    def __init__(self, channel: Channel[FrameT], take: Callable[[FrameT], Coroutine[Any, Any, None]]) -> None:
        self._channel = channel
        self._take_other = take
        self._confirmations: dict[str, asyncio.Future[None]] = {}
        self._tasks: dict[int, asyncio.Task[None]] = {}
        self._task_count = 0
        self._stop = asyncio.Event()

    async def attend(self, live: Live) -> None:
        """Does as it is told, until it is told to stop or nobody is there any more."""
        loop = asyncio.get_running_loop()
        loop.add_reader(self._channel.fileno(), self._receive, live)
        try:
            await self._stop.wait()
        finally:
            loop.remove_reader(self._channel.fileno())

    async def wait_confirmed(self, key: str, frame: Struct) -> None:
        """Tells the receiver of an action to carry it out, and waits until it has."""
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._confirmations[key] = future
        self._channel.send(frame)
        await future

    def start(self, work: Coroutine[Any, Any, None]) -> None:
        """Does something beside; if it fails, that is told, and the node stops."""
        self._task_count += 1
        number = self._task_count
        self._tasks[number] = asyncio.ensure_future(work)
        self._tasks[number].add_done_callback(lambda task: self._ended(number, task))

    def _receive(self, live: Live) -> None:
        try:
            while (frame := self._channel.receive()) is not None:
                self._take(live, frame)
        except EOFError:
            self._stop.set()

    def _take(self, live: Live, frame: FrameT) -> None:
        match frame:
            case Deliver():
                self.start(self._deliver(live, frame))
            case Confirm():
                future = self._confirmations.pop(frame.key, None)
                if future is not None and not future.done():
                    future.set_result(None)
            case Stop():
                self._stop.set()
            case _:
                self.start(self._take_other(frame))

    async def _deliver(self, live: Live, frame: Deliver) -> None:
        await live.deliver(frame.envelope)
        self._channel.send(Delivered(frame.last))

    def _ended(self, number: int, task: asyncio.Task[None]) -> None:
        del self._tasks[number]
        error = None if task.cancelled() else task.exception()
        if error is None or self._stop.is_set():
            return
        self._stop.set()
        with contextlib.suppress(OSError):  # there may be nobody to tell
            self._channel.send(Broken(f"{type(error).__name__}: {error}"))
