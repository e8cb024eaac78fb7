"""A link on an event loop in a thread of its own, for what must be synchronous: reads of a journal, command lines."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Awaitable, Callable
from concurrent.futures import TimeoutError as FutureTimeout
from typing import TypeVar

from stigmergy.adapters.nats.address import NatsAddress
from stigmergy.adapters.nats.errors import Unanswered
from stigmergy.adapters.nats.link import NatsLink
from stigmergy.core.errors import LinkDown

ResultT = TypeVar("ResultT")
GRACE_S = 1.0
"""Beyond its own limit, what a call may take to be given up."""


class BlockingLink:
    """Runs coroutines on a link elsewhere, and waits for them. Any thread may call it; each call has its limit."""

    def __init__(self, address: NatsAddress, *, name: str, open_s: float = 5.0) -> None:
        """Connects. Raises as `NatsLink.open` does."""
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name=f"nats {name}", daemon=True)
        self._thread.start()
        self._link: NatsLink | None = None
        try:
            self._link = self._wait(NatsLink.open(address, name=name, within_s=open_s), open_s + 2 * GRACE_S)
        except BaseException:
            self.close()
            raise

    @property
    def link(self) -> NatsLink:
        """The link; of use only to what runs on its loop."""
        if self._link is None:
            raise LinkDown("the link was closed; nothing was sent")
        return self._link

    def run(self, work: Callable[[NatsLink], Awaitable[ResultT]], within_s: float) -> ResultT:
        """Does some work with the link and returns what it returns. Raises what it raises, or Unanswered."""
        return self._wait(work(self.link), within_s)

    def close(self) -> None:
        """Ends the connection and the thread. Closing twice does nothing."""
        if self._loop.is_closed():
            return
        link, self._link = self._link, None
        if link is not None:
            with contextlib.suppress(Unanswered):
                self._wait(link.close(), 2 * GRACE_S)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    def _wait(self, work: Awaitable[ResultT], within_s: float) -> ResultT:
        async def run() -> ResultT:
            return await work

        future = asyncio.run_coroutine_threadsafe(run(), self._loop)
        try:
            return future.result(within_s + GRACE_S)
        except FutureTimeout:
            future.cancel()
            raise Unanswered(f"no answer in {within_s:g} s; it may have arrived") from None
