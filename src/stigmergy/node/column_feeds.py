"""Feeds a node from rings: takes what producers on the same machine write, and moves the mark once it is durable.

A message is an envelope or a column batch, as for `live.deliver`. Messages are taken in order, a bounded number at a
time. Without room they wait here, and the producer waits when its ring is full. A refused message ends the feed of its
ring: its producer cannot be told, and skipping the message would call it durable. The node goes on and lists it among
its troubles.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import deque
from collections.abc import Callable, Mapping

from msgspec import Struct, structs

from stigmergy.base.errors import NotRunning, Overloaded, StigmergyError
from stigmergy.base.tasks import end_tasks
from stigmergy.diagnostics.codes import Trouble, coded
from stigmergy.node.host import Host
from stigmergy.ring.port import RingConsumer, RingMessage
from stigmergy.shard.batches import is_batch

IN_FLIGHT_MAX = 1_000
"""Messages of one ring that are taken and not durable yet. Their bytes are bounded by the ring."""
PAUSE_S = 0.005
"""How often it looks whether the node has room by now."""
LOOK_S = 1.0
"""How often it looks at all, where nothing comes: whether something that was taken has been refused."""

Deliver = Callable[[bytes], "asyncio.Future[None]"]


class FeedCounters(Struct):
    """What came out of rings."""

    ring_messages: int = 0
    ring_bytes: int = 0
    ring_waits: int = 0
    """How often the node had no room."""


class _Taken(Struct):
    """A message that the node has and that is not marked yet."""

    message: RingMessage
    kept: asyncio.Future[None]


class RingReader:
    """Takes what is in one ring. `run` until it is cancelled or there is trouble; `close` once the node has finished
    what it was given, so that this is marked."""

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
        self._waiting: deque[_Taken] = deque()
        self._moved = asyncio.Event()
        self._again = False
        """Whether the first that waits found no room after all, and is to be delivered once more."""
        self._ended = False
        self.trouble = ""
        """Why nothing more is taken from this ring, in a sentence; empty while all is well."""

    async def run(self) -> None:
        """Takes messages until it is cancelled, or until one is refused."""
        try:
            while not self._ended:
                if self._again:
                    await self._deliver_again()
                elif (message := self._consumer.take_nowait()) is not None:
                    await self._take(message)
                else:
                    await self._consumer.wait_ready(LOOK_S)
        except StigmergyError as error:
            self._end(f"ring {self._name}: nothing more is taken from it: {error}")

    def close(self) -> None:
        """Marks what is durable by now, and leaves the rest to the next consumer."""
        self._settle()
        self._ended = True
        self._waiting.clear()
        self._consumer.close()

    async def _take(self, message: RingMessage) -> None:
        """Gives a message to the node as soon as it has room, so that it is hardly ever told that there is none."""
        while len(self._waiting) >= IN_FLIGHT_MAX and not self._ended:
            await self._pause()
        await self._wait_room(message)
        if self._ended:
            return
        self._counters.ring_messages += 1
        self._counters.ring_bytes += len(message.body)
        self._waiting.append(_Taken(message, self._given(message)))

    async def _deliver_again(self) -> None:
        """What was not taken for want of room is delivered again, in its order."""
        self._again = False
        await self._pause()
        for taken in [taken for taken in self._waiting if _is_overloaded(taken.kept)]:
            await self._wait_room(taken.message)
            if self._ended:
                return
            taken.kept = self._given(taken.message)

    def _given(self, message: RingMessage) -> asyncio.Future[None]:
        try:
            # Copied: who writes into the ring too late must not change what was checked and is not sealed yet.
            kept = self._deliver(bytes(message.body))
        except StigmergyError as error:
            kept = asyncio.get_running_loop().create_future()
            kept.set_exception(error)
        kept.add_done_callback(self._settled)
        return kept

    async def _wait_room(self, message: RingMessage) -> None:
        while not self._ended and not self._has_room(len(message.body)):
            await self._pause()

    async def _pause(self) -> None:
        self._counters.ring_waits += 1
        self._moved.clear()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(PAUSE_S):
                await self._moved.wait()

    def _settled(self, kept: asyncio.Future[None]) -> None:
        if not kept.cancelled():
            kept.exception()  # Looked at here, also for those that nobody gets to look at.
        if not self._ended:
            self._settle()

    def _settle(self) -> None:
        """Marks what is durable, up to the first message that is not."""
        upto = 0
        while self._waiting and self._waiting[0].kept.done() and not self._again:
            taken = self._waiting[0]
            if _is_overloaded(taken.kept):
                self._again = True
            elif (error := _error_of(taken.kept)) is not None:
                self._refused(taken.message.number, error)
                break
            else:
                upto = taken.message.number
                self._waiting.popleft()
        if upto:
            self._consumer.mark_durable(upto)
        self._moved.set()

    def _refused(self, number: int, error: BaseException) -> None:
        if isinstance(error, NotRunning):
            self._end("")  # The node ends, and says itself why.
            return
        self._end(
            f"ring {self._name}: nothing more is taken from it, because message {number} was refused: {error}. Stop "
            "its producer, remove the ring, and send again what was not durable"
        )

    def _end(self, trouble: str) -> None:
        self._ended = True
        self.trouble = self.trouble or trouble


class RingReaders:
    """The rings of one node. `start` when the node runs, `stop` before it stops, `close` after that."""

    def __init__(self, host: Host, rings: Mapping[str, RingConsumer]) -> None:
        self._host = host
        self._counters = FeedCounters()
        self._feedings = [
            RingReader(name, consumer, host.mailbox.has_room, self._deliver, self._counters)
            for name, consumer in rings.items()
        ]
        self._tasks: list[asyncio.Task[None]] = []

    def start(self) -> None:
        """Begins to take."""
        self._tasks = [asyncio.ensure_future(feeding.run()) for feeding in self._feedings]

    async def stop(self) -> None:
        """Takes nothing more. What was taken is finished by the node."""
        await end_tasks(*self._tasks)

    def close(self) -> None:
        """Leaves the rings."""
        for feeding in self._feedings:
            feeding.close()

    def troubles(self) -> list[Trouble]:
        """Which rings are not taken from any more, and why."""
        return coded("ring-ended", (feeding.trouble for feeding in self._feedings))

    def counters(self) -> dict[str, int]:
        """What came out of all of them."""
        return structs.asdict(self._counters)

    def _deliver(self, body: bytes) -> asyncio.Future[None]:
        return self._host.columns.deliver(body) if is_batch(body) else self._host.intake.deliver(body)


def _is_overloaded(kept: asyncio.Future[None]) -> bool:
    return kept.done() and not kept.cancelled() and isinstance(kept.exception(), Overloaded)


def _error_of(kept: asyncio.Future[None]) -> BaseException | None:
    return NotRunning("the node is stopping") if kept.cancelled() else kept.exception()
