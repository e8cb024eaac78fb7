"""The producer's side of a ring: non-blocking, for an event loop, and for a plain script that may block."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable

from stigmergy.base.errors import Malformed, NotRunning, Overloaded, TooLarge
from stigmergy.ring.bell import Bell, PipeBell
from stigmergy.ring.layout import (
    CONSUMER_SLEEPS,
    DURABLE,
    INCARNATIONS,
    MESSAGE_HEADER_BYTES,
    PRODUCER_SLEEPS,
    TAKEN,
    WRITTEN,
    Memory,
    framed_bytes,
)
from stigmergy.ring.port import DURABLE_S_MAX, PUT_S_MAX, Part


class _Producer:
    """What both kinds of producer do without waiting."""

    def __init__(self, memory: Memory, ready: Bell, leave: Callable[[], None], in_place: Callable[[], None]) -> None:
        """Attaches. The caller has made sure that there is no other; `leave` lets go of the memory and the claim."""
        self._memory = memory
        self._ready = ready
        self._leave = leave
        self._in_place = in_place
        """Raises when the ring's file is no longer the one that is mapped."""
        self._closed = False
        self._freed, self._durable = memory.read_cursor(DURABLE)
        # A producer killed at the wrong moment may have left an older cursor; what is durable was certainly written.
        written = memory.read_cursor(WRITTEN)
        self._position, self._number = written if written[1] >= self._durable else (self._freed, self._durable)
        memory.check_distance((self._position, self._number), (self._freed, self._durable))
        self.incarnation = memory.words[INCARNATIONS] + 1
        memory.words[INCARNATIONS] = self.incarnation

    @property
    def written(self) -> int:
        return self._number

    def durable(self) -> int:
        self._check_open()
        position, number = self._memory.read_cursor(DURABLE)
        if number > self._durable:
            # It may not be read before the cursor was; nor may room be used before the consumer has let go of it.
            self._memory.fence()
            self._memory.check_distance((self._position, self._number), (position, number))
            self._freed, self._durable = position, number
        return self._durable

    def taken(self) -> int:
        self._check_open()
        return self._memory.words[TAKEN]

    def put_nowait(self, *parts: Part) -> int:
        number = self._try_put(*self._bytes(parts))
        if number is None:
            raise self._full(0.0)
        return number

    def close(self) -> None:
        if not self._closed:
            self._closed = True
            self._leave()

    def _try_put(self, size: int, views: list[memoryview]) -> int | None:
        """Puts a message, if there is room."""
        self._check_open()
        memory, framed = self._memory, framed_bytes(size)
        offset = self._position % memory.capacity
        skipped = memory.capacity - offset if framed > memory.capacity - offset else 0
        end = self._position + skipped + framed
        if end - self._freed > memory.capacity:
            self.durable()
            if end - self._freed > memory.capacity:
                return None
        number = self._number + 1
        if skipped:
            memory.write_skip(offset, number)
            offset = 0
        at = offset + MESSAGE_HEADER_BYTES
        for view in views:
            memory.body[at : at + view.nbytes] = view
            at += view.nbytes
        memory.write_header(offset, number, size)
        # If we are interrupted from here on, the message is whole, and the next one makes it known as well.
        self._position, self._number = end, number
        memory.fence()
        memory.write_cursor(WRITTEN, end, number)
        memory.fence()
        if memory.words[CONSUMER_SLEEPS]:
            memory.words[CONSUMER_SLEEPS] = 0
            self._ready.ring()
        return number

    def _bytes(self, parts: tuple[Part, ...]) -> tuple[int, list[memoryview]]:
        """The parts as plain bytes, and how many they are."""
        size, views = 0, []
        for part in parts:
            try:
                view = memoryview(part)
                if view.nbytes:
                    views.append(view.cast("B"))
            except TypeError:
                raise Malformed(
                    f"a part of type {type(part).__name__} is no row of bytes; give bytes, a bytearray, or a "
                    "memoryview of what lies in one piece"
                ) from None
            size += view.nbytes
        if size > self._memory.message_bytes_max:
            raise TooLarge(
                f"{self._memory.name}: a message of {size} bytes, at most {self._memory.message_bytes_max} in this "
                "ring; send smaller batches, or make the ring larger"
            )
        return size, views

    def _lie_down(self) -> None:
        """We are about to sleep. A check after this sees every earlier change."""
        self._check_open()
        self._memory.words[PRODUCER_SLEEPS] = 1
        self._memory.fence()

    def _is_durable(self, number: int) -> bool:
        return self.durable() >= number

    def _wanted(self, number: int | None) -> int:
        if number is not None and number > self._number:
            raise Malformed(f"{self._memory.name}: message {number} was not put yet; the last is {self._number}")
        return self._number if number is None else number

    def _check_open(self) -> None:
        if self._closed:
            raise NotRunning(f"{self._memory.name}: this producer was closed; open another")

    def _full(self, waited_s: float) -> Overloaded:
        self._in_place()
        return Overloaded(
            f"{self._memory.name}: no room after {waited_s:g} s, nothing was put; {self._number - self._durable} "
            f"messages are not durable yet, {self._number - self.taken()} of them not read: slow down, or see whether "
            "the consumer runs"
        )

    def _late(self, number: int, waited_s: float) -> Overloaded:
        self._in_place()
        return Overloaded(
            f"{self._memory.name}: message {number} is not durable after {waited_s:g} s, only {self._durable} is; it "
            "is still in the ring: wait on, or see whether the consumer runs"
        )


class Producer(_Producer):
    """For an event loop. See `ring/port.py` for what it promises."""

    def __init__(
        self, memory: Memory, ready: Bell, room: Bell, leave: Callable[[], None], in_place: Callable[[], None]
    ) -> None:
        super().__init__(memory, ready, leave, in_place)
        self._room = room

    async def put(self, *parts: Part, within_s: float = PUT_S_MAX) -> int:
        size, views = self._bytes(parts)
        number = self._try_put(size, views)
        if number is not None:
            return number
        loop = asyncio.get_running_loop()
        deadline_s = loop.time() + within_s
        while True:
            self._lie_down()
            number = self._try_put(size, views)
            if number is not None:
                return number
            if not await self._wait_woken(deadline_s - loop.time()):
                raise self._full(within_s)

    async def wait_durable(self, number: int | None = None, *, within_s: float = DURABLE_S_MAX) -> None:
        number = self._wanted(number)
        loop = asyncio.get_running_loop()
        deadline_s = loop.time() + within_s
        while not self._is_durable(number):
            self._lie_down()
            if self._is_durable(number):
                return
            if not await self._wait_woken(deadline_s - loop.time()):
                raise self._late(number, within_s)

    async def _wait_woken(self, left_s: float) -> bool:
        """Sleeps until there may be something new; False when the time is over."""
        if left_s <= 0:
            return False
        await self._room.wait_heard(min(left_s, self._room.relook_s))
        return True


class BlockingProducer(_Producer):
    """For a plain script or thread. The same promises; `put` and `wait_durable` block."""

    def __init__(
        self, memory: Memory, ready: Bell, room: PipeBell, leave: Callable[[], None], in_place: Callable[[], None]
    ) -> None:
        super().__init__(memory, ready, leave, in_place)
        self._room = room

    def put(self, *parts: Part, within_s: float = PUT_S_MAX) -> int:
        """Puts the parts as one message; its number. Overloaded when there was no room within that time."""
        size, views = self._bytes(parts)
        number = self._try_put(size, views)
        if number is not None:
            return number
        deadline_s = time.monotonic() + within_s
        while True:
            self._lie_down()
            number = self._try_put(size, views)
            if number is not None:
                return number
            if not self._wait_woken(deadline_s - time.monotonic()):
                raise self._full(within_s)

    def wait_durable(self, number: int | None = None, *, within_s: float = DURABLE_S_MAX) -> None:
        """Waits until this message is durable, or all that were put. Overloaded if it takes longer: it may still be."""
        number = self._wanted(number)
        deadline_s = time.monotonic() + within_s
        while not self._is_durable(number):
            self._lie_down()
            if self._is_durable(number):
                return
            if not self._wait_woken(deadline_s - time.monotonic()):
                raise self._late(number, within_s)

    def __enter__(self) -> BlockingProducer:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _wait_woken(self, left_s: float) -> bool:
        if left_s <= 0:
            return False
        self._room.wait_heard_blocking(min(left_s, self._room.relook_s))
        return True
