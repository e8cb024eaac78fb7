"""When a host takes its next turn: soon, because something came, or later, because time will bring something."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from stigmergy.core.messages import SECOND_NS


class Waker:
    """Schedules turns on the event loop; at most one is due soon, and at most one later."""

    def __init__(self, turn: Callable[[], None]) -> None:
        self._turn = turn
        self._scheduled = False
        self._timer: asyncio.TimerHandle | None = None
        self._armed_ns = 0
        self._over = False

    def wake(self) -> None:
        """Has a turn taken soon."""
        if not self._scheduled and not self._over:
            self._scheduled = True
            asyncio.get_running_loop().call_soon(self._take)

    def arm(self, monotonic_ns: int, due_ns: int) -> None:
        """Sets the clock for the next turn that nobody else will cause. One that rings too early does no harm."""
        if monotonic_ns < self._armed_ns <= due_ns:
            return
        if self._timer is not None:
            self._timer.cancel()
        self._armed_ns = due_ns
        wait_s = max(0, due_ns - monotonic_ns) / SECOND_NS
        self._timer = asyncio.get_running_loop().call_later(wait_s, self._ring)

    def _ring(self) -> None:
        """The timer has gone off, perhaps a little before its time by the clock that turns look at. It is not set any
        more: the turn sets it again for what is not due yet."""
        self._armed_ns = 0
        self.wake()

    def end(self) -> None:
        """There are no more turns."""
        self._over = True
        if self._timer is not None:
            self._timer.cancel()

    def _take(self) -> None:
        self._scheduled = False
        if not self._over:
            self._turn()
