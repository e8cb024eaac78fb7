"""When a host takes its next turn: soon, because something came, or later, because time will bring something.

`plan` is the one place that sets the clock. It is told whether the turn could step: while turns cannot, nothing that
only a step serves may bring the next one, or the host would spin until the disk answers.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Protocol

from stigmergy.core.messages import SECOND_NS


class Watch(Protocol):
    """Something that waits for a time."""

    @property
    def next_ns(self) -> int | None:
        """When it has something to do, by the monotonic clock, if nothing else happens; a time in the past: now."""
        ...


class Waker:
    """Schedules turns on the event loop; at most one is due soon, and at most one later."""

    def __init__(self, turn: Callable[[], None]) -> None:
        self._turn = turn
        self._scheduled = False
        self._timer: asyncio.TimerHandle | None = None
        self._armed_ns = 0
        self._over = False
        self.watches: dict[str, Watch] = {}
        """By their names, what time may bring. Set before the first turn."""
        self.on_unserved: Callable[[str, int], None] = lambda *_: None
        """Told of a watch that is due after a turn that could have served it, and how many such turns there were in a
        row. It is a bug that burns a core. The simulator ends a run for it; a node goes on."""
        self._unserved_turns = 0

    def wake(self) -> None:
        """Has a turn taken soon."""
        if not self._scheduled and not self._over:
            self._scheduled = True
            asyncio.get_running_loop().call_soon(self._take)

    def plan(self, monotonic_ns: int, latest_ns: int, *, could_step: bool) -> None:
        """Sets the clock after the turn of `monotonic_ns`, for `latest_ns` or for what is due before.

        A turn serves everything that is due, but some of it only if it can step. So what is still due after a turn
        that could not step needs room in the open commit. Whoever makes room wakes the host: the turn that seals the
        commit, or the end of the write under way. A turn before that would change nothing.
        """
        due_ns, unserved = latest_ns, ""
        for name, watch in self.watches.items():
            at_ns = watch.next_ns
            if at_ns is None or (at_ns <= monotonic_ns and not could_step):
                continue
            if at_ns <= monotonic_ns:
                unserved = name
            due_ns = min(due_ns, at_ns)
        self._unserved_turns = self._unserved_turns + 1 if unserved else 0
        if unserved:
            self.on_unserved(unserved, self._unserved_turns)
        self.arm(monotonic_ns, due_ns)

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
