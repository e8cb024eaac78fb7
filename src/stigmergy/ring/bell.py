"""Bells: one side of a ring wakes the other with a byte in a named pipe.

A side that wants to sleep first says so in the ring, then checks once more, then sleeps. A side that has changed
something checks whether the other sleeps, clears that flag, and rings. Between flag and check each side has a fence, so
that one of the two sees the other. A side that was killed between clearing the flag and ringing has woken nobody: so
nobody sleeps for longer than RELOOK_S without checking again.

Both sides open the pipe for reading and writing. So it never blocks, has no end of file, and does not need the other
side.
"""

from __future__ import annotations

import asyncio
import contextlib
import math
import os
import select
from typing import Protocol

RELOOK_S = 0.25
_DRAIN_BYTES = 65536


class Bell(Protocol):
    """Rings, and can be waited for. Hearing it means: look; it does not mean that there is something."""

    @property
    def relook_s(self) -> float:
        """A waiter checks again after this long: a bell between processes may go unheard."""
        ...

    def ring(self) -> None:
        """Wakes the waiter, or the next one. Never waits."""
        ...

    async def wait_heard(self, within_s: float) -> None:
        """Returns when it rings, or after that time."""
        ...

    def close(self) -> None:
        """Nobody waits any longer."""
        ...


class Listeners:
    """The tasks that wait for a bell, on one event loop."""

    def __init__(self) -> None:
        self._waiting: list[asyncio.Future[None]] = []

    def wake(self) -> None:
        for waiting in self._waiting:
            if not waiting.done():
                waiting.set_result(None)

    async def wait(self, within_s: float) -> None:
        loop = asyncio.get_running_loop()
        waiting: asyncio.Future[None] = loop.create_future()
        self._waiting.append(waiting)
        timer = loop.call_later(within_s, _end, waiting) if within_s < math.inf else None
        try:
            await waiting
        finally:
            if timer is not None:
                timer.cancel()
            self._waiting.remove(waiting)


class PipeBell:
    """A bell between processes. `file` is a named pipe, open at both ends, not blocking; it is closed here."""

    relook_s = RELOOK_S

    def __init__(self, file: int) -> None:
        self._file = file
        self._listeners = Listeners()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._poll = select.poll()
        self._poll.register(file, select.POLLIN)

    def ring(self) -> None:
        # A full pipe has already woken the listener.
        with contextlib.suppress(BlockingIOError):
            os.write(self._file, b"\n")

    def wait_heard_blocking(self, within_s: float) -> None:
        """The same without an event loop."""
        if self._poll.poll(math.ceil(within_s * 1000)):
            self._drain()

    async def wait_heard(self, within_s: float) -> None:
        loop = asyncio.get_running_loop()
        if self._loop is not loop:
            self._leave_loop()
            loop.add_reader(self._file, self._heard)
            self._loop = loop
        await self._listeners.wait(within_s)

    def close(self) -> None:
        if self._file < 0:
            return
        self._leave_loop()
        self._listeners.wake()
        os.close(self._file)
        self._file = -1

    def _heard(self) -> None:
        self._drain()
        self._listeners.wake()

    def _drain(self) -> None:
        with contextlib.suppress(BlockingIOError):
            os.read(self._file, _DRAIN_BYTES)

    def _leave_loop(self) -> None:
        if self._loop is not None and not self._loop.is_closed():
            self._loop.remove_reader(self._file)
        self._loop = None


class MemoryBell:
    """A bell within one event loop, which may be that of a simulation. None of its rings is ever lost."""

    relook_s = math.inf

    def __init__(self) -> None:
        self._listeners = Listeners()

    def ring(self) -> None:
        self._listeners.wake()

    async def wait_heard(self, within_s: float) -> None:
        await self._listeners.wait(within_s)

    def close(self) -> None:
        self._listeners.wake()


def _end(waiting: asyncio.Future[None]) -> None:
    if not waiting.done():
        waiting.set_result(None)
