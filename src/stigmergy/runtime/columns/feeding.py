"""Feeds a node from rings: what producers on the same machine put there is taken, and marked once it is durable.

A message is an envelope or a column batch, as `live.deliver` takes it. Messages are taken in order, so many at a time;
what finds no room waits here, and the producer with it when its ring is full. A message that is refused ends the
feeding of its ring: nobody could tell its producer, and to pass over it would be to say that it is durable. The node
goes on, and says so in its troubles.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import deque
from collections.abc import Callable

from msgspec import Struct

from stigmergy.core.errors import NotRunning, StigmergyError
from stigmergy.ports.ring import RingConsumer, RingMessage

IN_FLIGHT_MAX = 1_000
"""Messages of one ring that are taken and not durable yet. Their bytes are bounded by the ring."""
PAUSE_S = 0.005
"""How often it looks whether the node has room by now."""
LOOK_S = 1.0
"""How often it looks at all, where nothing comes: whether something that was taken has been refused."""

Deliver = Callable[[bytes | memoryview], "asyncio.Future[None]"]


class FeedCounters(Struct):
    """What came out of rings."""

    ring_messages: int = 0
    ring_bytes: int = 0
    ring_waits: int = 0
    """How often the node had no room."""


class Feeding:
    """Takes what is in one ring. `run` ends when it is cancelled, or with a trouble."""

    def __init__(
        self,
        name: str,
        consumer: RingConsumer,
        has_room: Callable[[int], bool],
        deliver: Deliver,
        counters: FeedCounters,
    ) -> None:
        self._name = name
        self._consumer = consumer
        self._has_room = has_room
        self._deliver = deliver
        self._counters = counters
        self._waiting: deque[tuple[RingMessage, asyncio.Future[None]]] = deque()
        self._moved = asyncio.Event()
        self._failed: Exception | None = None
        self.trouble = ""
        """Why nothing more is taken from this ring, in a sentence; empty while all is well."""

    async def run(self) -> None:
        """Takes messages until it is cancelled."""
        try:
            while True:
                message = self._consumer.take_nowait()
                if self._failed is not None:
                    raise self._failed
                if message is None:
                    await self._consumer.wait_ready(LOOK_S)
                else:
                    await self._take(message)
        except StigmergyError as error:
            number = self._consumer.durable() + 1
            self.trouble = f"ring {self._name}: nothing more is taken, since message {number} was refused: {error}"
        finally:
            self._consumer.close()

    async def _take(self, message: RingMessage) -> None:
        """Gives a message to the node as soon as it has room, so that it is never told that there is none."""
        size_bytes = len(message.body)
        while self._failed is None and (len(self._waiting) >= IN_FLIGHT_MAX or not self._has_room(size_bytes)):
            self._counters.ring_waits += 1
            self._moved.clear()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(PAUSE_S):
                    await self._moved.wait()
        if self._failed is not None:
            raise self._failed
        future = self._deliver(message.body)
        self._counters.ring_messages += 1
        self._counters.ring_bytes += size_bytes
        self._waiting.append((message, future))
        future.add_done_callback(self._settled)

    def _settled(self, _: asyncio.Future[None]) -> None:
        """Marks what is durable, up to the first message that is not."""
        upto = 0
        while self._waiting and self._waiting[0][1].done() and self._failed is None:
            message, future = self._waiting[0]
            error = None if future.cancelled() else future.exception()
            if error is not None or future.cancelled():
                self._failed = error if isinstance(error, Exception) else NotRunning("the node is stopping")
                break
            upto = message.number
            self._waiting.popleft()
        if upto:
            self._consumer.mark_durable(upto)
        self._moved.set()
