"""Runs the writes of a journal one at a time, in a thread: a stalled disk must not stall the event loop.

Inline, for the simulator, the work is done in the caller's thread; the caller still gives way once, so that a second
write while one is under way is found there too. A write that was begun is always finished, also if its caller was
cancelled.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Awaitable, Callable
from queue import SimpleQueue
from typing import Protocol

from stigmergy.core.errors import Bug, StigmergyError

Work = Callable[[], None]


class Writer(Protocol):
    """Runs work, one piece at a time, and what is to be done after each piece once its caller has been told."""

    def run(self, work: Work) -> Awaitable[None]:
        """Begins the work; what it returns is done, or raises, as the work does. Bug while other work is under way."""
        ...

    async def close(self, work: Work) -> None:
        """Waits for work under way, then runs this last piece."""
        ...


class InlineWriter:
    """Does the work where it is asked for."""

    def __init__(self, afterwards: Work) -> None:
        self._afterwards = afterwards
        self._idle = asyncio.Event()
        self._idle.set()

    async def run(self, work: Work) -> None:
        _check_idle(self._idle.is_set())
        self._idle.clear()
        try:
            work()
            await asyncio.sleep(0)
        finally:
            self._idle.set()
            asyncio.get_running_loop().call_soon(self._afterwards)

    async def close(self, work: Work) -> None:
        await self._idle.wait()
        work()


class _Job:
    """Work on its way to the thread and back."""

    __slots__ = ("error", "future", "loop", "work")

    def __init__(self, work: Work) -> None:
        self.work = work
        self.loop = asyncio.get_running_loop()
        self.future: asyncio.Future[None] = self.loop.create_future()
        self.error: BaseException | None = None


class ThreadWriter:
    """Does the work in one thread, in order."""

    def __init__(self, afterwards: Work, name: str) -> None:
        self._afterwards = afterwards
        self._jobs: SimpleQueue[_Job | None] = SimpleQueue()
        self._busy = False
        # A daemon, because a program that ends without closing its journal must end; nothing acknowledged is at stake.
        threading.Thread(target=self._work_through, name=name, daemon=True).start()

    def run(self, work: Work) -> asyncio.Future[None]:
        _check_idle(not self._busy)
        self._busy = True
        job = _Job(work)
        self._jobs.put(job)
        return job.future

    async def close(self, work: Work) -> None:
        job = _Job(work)
        self._jobs.put(job)
        self._jobs.put(None)
        await job.future

    def _work_through(self) -> None:
        while (job := self._jobs.get()) is not None:
            try:
                job.work()
            except BaseException as error:
                job.error = error
            # The loop is closed when the program gave up waiting: then there is nobody left to tell.
            with contextlib.suppress(RuntimeError):
                job.loop.call_soon_threadsafe(self._settle, job)
            del job
            self._afterwards()

    def _settle(self, job: _Job) -> None:
        """Back on the loop. Only here does the next write become possible, so that the loop sees writes in order."""
        self._busy = False
        if job.future.cancelled():
            return
        if job.error is None:
            job.future.set_result(None)
        else:
            job.future.set_exception(job.error)


def refused_write(error: StigmergyError) -> asyncio.Future[None]:
    """A write that was not even begun: whoever awaits it gets the error, as for any other."""
    refused: asyncio.Future[None] = asyncio.get_running_loop().create_future()
    refused.set_exception(error)
    return refused


def _check_idle(idle: bool) -> None:
    if not idle:
        raise Bug("a write is under way; wait for it before the next one")
