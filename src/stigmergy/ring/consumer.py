"""The consumer's side of a ring: non-blocking, for an event loop, and for a thread that may block."""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Callable

from stigmergy.base.errors import Bug, NotRunning, RingDamaged
from stigmergy.ring.bell import Bell, PipeBell
from stigmergy.ring.layout import (
    CONSUMER_SLEEPS,
    DURABLE,
    INCARNATIONS,
    PRODUCER_SLEEPS,
    TAKEN,
    WRITTEN,
    Cursor,
    Memory,
)
from stigmergy.ring.port import RingMessage


class _Consumer:
    """What both kinds of consumer do without waiting."""

    def __init__(self, memory: Memory, room: Bell, leave: Callable[[], None]) -> None:
        """Attaches. The caller has made sure that there is no other; `leave` lets go of the memory and the claim."""
        self._memory = memory
        self._room = room
        self._leave = leave
        self._closed = False
        self._damage: RingDamaged | None = None
        self._body = memory.body.toreadonly()
        self._freed: Cursor = memory.read_cursor(DURABLE)
        self._written: Cursor = memory.read_cursor(WRITTEN)
        if self._written[1] < self._freed[1]:
            self._written = self._freed  # see the producer: what is durable was certainly written
        memory.check_distance(self._written, self._freed)
        self._position, self._number = self._freed
        self._unmarked: deque[Cursor] = deque()
        """The ends of what was taken and not marked; never more than the ring holds."""
        memory.words[TAKEN] = self._number
        self.incarnation = memory.words[INCARNATIONS + 1] + 1
        memory.words[INCARNATIONS + 1] = self.incarnation

    @property
    def producer_incarnation(self) -> int:
        self._check_open()
        return self._memory.words[INCARNATIONS]

    def durable(self) -> int:
        return self._freed[1]

    def take_nowait(self) -> RingMessage | None:
        if not self._is_ready():
            return None
        number = self._number + 1
        try:
            at, length, end = self._memory.find(self._position, number, self._written[0])
        except RingDamaged as damage:
            self._damage = damage
            raise
        self._position, self._number = end, number
        self._unmarked.append((end, number))
        self._memory.words[TAKEN] = number
        return RingMessage(number, self._body[at : at + length])

    def mark_durable(self, number: int) -> None:
        self._check_open()
        if number > self._number:
            raise Bug(
                f"{self._memory.name}: message {number} cannot be durable, the last that was taken is {self._number}"
            )
        freed = self._freed
        while self._unmarked and self._unmarked[0][1] <= number:
            freed = self._unmarked.popleft()
        if freed is self._freed:
            return
        self._freed = freed
        memory = self._memory
        # Whatever was read of these messages is read before their room is given away.
        memory.fence()
        memory.write_cursor(DURABLE, *freed)
        memory.fence()
        if memory.words[PRODUCER_SLEEPS]:
            memory.words[PRODUCER_SLEEPS] = 0
            self._room.ring()

    def close(self) -> None:
        if not self._closed:
            self._closed = True
            self._body = memoryview(b"")
            self._leave()

    def _is_ready(self) -> bool:
        """Whether there is a next message."""
        self._check_open()
        if self._damage is not None:
            raise self._damage
        if self._written[1] > self._number:
            return True
        try:
            written = self._memory.read_cursor(WRITTEN)
            if written[1] <= self._number:
                return False
            self._memory.check_distance(written, self._freed)
        except RingDamaged as damage:
            self._damage = damage
            raise
        # The messages may not be read before the cursor was.
        self._memory.fence()
        self._written = written
        return True

    def _lie_down(self) -> None:
        """We are about to sleep. A check after this sees every earlier change."""
        self._check_open()
        self._memory.words[CONSUMER_SLEEPS] = 1
        self._memory.fence()

    def _check_open(self) -> None:
        if self._closed:
            raise NotRunning(f"{self._memory.name}: this consumer was closed; open another")


class Consumer(_Consumer):
    """For an event loop. See `ring/port.py` for what it promises."""

    def __init__(self, memory: Memory, ready: Bell, room: Bell, leave: Callable[[], None]) -> None:
        super().__init__(memory, room, leave)
        self._ready = ready

    async def wait_ready(self, within_s: float | None = None) -> bool:
        if self._is_ready():
            return True
        loop = asyncio.get_running_loop()
        deadline_s = loop.time() + within_s if within_s is not None else float("inf")
        while True:
            self._lie_down()
            if self._is_ready():
                return True
            left_s = deadline_s - loop.time()
            if left_s <= 0:
                return False
            await self._ready.wait_heard(min(left_s, self._ready.relook_s))


class BlockingConsumer(_Consumer):
    """For a plain script or thread. The same promises; `wait_ready` blocks."""

    def __init__(self, memory: Memory, ready: PipeBell, room: Bell, leave: Callable[[], None]) -> None:
        super().__init__(memory, room, leave)
        self._ready = ready

    def wait_ready(self, within_s: float | None = None) -> bool:
        """Waits until there is a next message; False if there was none within that time."""
        if self._is_ready():
            return True
        deadline_s = time.monotonic() + within_s if within_s is not None else float("inf")
        while True:
            self._lie_down()
            if self._is_ready():
                return True
            left_s = deadline_s - time.monotonic()
            if left_s <= 0:
                return False
            self._ready.wait_heard_blocking(min(left_s, self._ready.relook_s))

    def __enter__(self) -> BlockingConsumer:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
