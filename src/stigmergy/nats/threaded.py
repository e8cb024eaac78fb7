"""A link on an event loop in its own thread, for synchronous callers: reads of a journal, command lines."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable
from concurrent.futures import CancelledError
from concurrent.futures import TimeoutError as FutureTimeout
from typing import Any, TypeVar

from stigmergy.base.errors import LinkDown
from stigmergy.nats.address import NatsAddress
from stigmergy.nats.errors import Unanswered
from stigmergy.nats.link import NatsLink

ResultT = TypeVar("ResultT")
GRACE_S = 1.0
"""Extra time, beyond its own limit, for a call to be cancelled."""
END_S = 5.0
"""The limit for each step of closing: longer than the client library takes to leave a server that hangs."""


class BlockingLink:
    """Runs coroutines on a link in a thread, and waits for them. Any thread may call it; each call has a time limit.

    A call that timed out is cancelled, and its cleanup may take longer than the caller waits. So the loop ends only
    when everything on it has ended.
    """

    def __init__(self, address: NatsAddress, *, name: str, open_s: float = 5.0) -> None:
        """Connects. Raises like `NatsLink.open`."""
        self._loop = asyncio.new_event_loop()
        self._link: NatsLink | None = None
        self._running: set[asyncio.Task[Any]] = set()
        """Calls under way; use it on the loop only."""
        self._is_closed = False
        self._submitting = threading.Lock()
        """Held so that nothing is submitted to the loop after it was told to end."""
        self._thread = threading.Thread(target=self._serve, name=f"nats {name}", daemon=True)
        self._thread.start()

        async def connect() -> None:
            # Kept here and not by the waiter: a link that comes up just after the waiter gave up must be closed too.
            self._link = await NatsLink.open(address, name=name, within_s=open_s)

        try:
            self._wait(connect, open_s + 2 * GRACE_S)
        except BaseException:
            self.close()
            raise

    @property
    def link(self) -> NatsLink:
        """The link; use it only on its loop."""
        if self._link is None or self._is_closed:
            raise _closed()
        return self._link

    def run(self, work: Callable[[NatsLink], Awaitable[ResultT]], within_s: float) -> ResultT:
        """Runs `work` with the link and returns its result. Raises its errors, or Unanswered."""
        link = self.link

        async def run() -> ResultT:
            return await work(link)

        return self._wait(run, within_s)

    def close(self) -> None:
        """Ends calls under way, the connection and the thread. Closing twice does nothing."""
        with self._submitting:
            if not self._is_closed:
                self._is_closed = True
                self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()

    def _wait(self, work: Callable[[], Awaitable[ResultT]], within_s: float) -> ResultT:
        async def run() -> ResultT:
            task = asyncio.current_task()
            assert task is not None
            self._running.add(task)
            try:
                return await work()
            finally:
                self._running.discard(task)

        with self._submitting:
            if self._is_closed:
                raise _closed()
            future = asyncio.run_coroutine_threadsafe(run(), self._loop)
        try:
            return future.result(within_s + GRACE_S)
        except FutureTimeout:
            future.cancel()
            raise Unanswered(f"no answer in {within_s:g} s; it may have arrived") from None
        except CancelledError:
            raise Unanswered("the link was closed; what was under way may have arrived") from None

    def _serve(self) -> None:
        """The thread: runs the loop until it is told to end, then ends everything on it."""
        self._loop.run_forever()
        try:
            self._loop.run_until_complete(self._end())
        finally:
            self._loop.close()

    async def _end(self) -> None:
        await asyncio.sleep(0)  # calls that were submitted last start now and are cancelled too
        await _cancel(self._running)
        if self._link is not None:
            await _ended({asyncio.ensure_future(self._link.close())})
        await _cancel(asyncio.all_tasks() - {asyncio.current_task()})


async def _cancel(tasks: set[Any]) -> None:
    for task in tasks:
        if not task.cancelling():  # a second cancellation would interrupt its cleanup
            task.cancel()
    await _ended(tasks)


async def _ended(tasks: set[Any]) -> None:
    if tasks:
        await asyncio.wait(tasks, timeout=END_S)


def _closed() -> LinkDown:
    return LinkDown("the link was closed; nothing was sent")
