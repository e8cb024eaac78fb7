"""The timers of a virtual loop, by (due time, order of scheduling), and the permutations that asyncio leaves open.

Never moves time and never runs a callback: the loop does. Times are integer nanoseconds of virtual time.
"""

from __future__ import annotations

import asyncio
import heapq
import math
import random

NS = 1_000_000_000
NEVER_NS = 2**63 - 1
"""Later than every deadline: 292 years."""
CANCELLED_COUNT_MAX = 1_000
"""So many cancellations, and more than half of the heap, before cancelled timers are swept out."""


def nanoseconds(seconds: float) -> int:
    """The first nanosecond that reads as at least these seconds.

    A timer must not fire before its time even by a rounding error: a program that sleeps the tiny rest again would not
    get on in virtual time.
    """
    if math.isnan(seconds):
        raise ValueError("a time that is not a number (nan) never comes")
    if seconds >= NEVER_NS / NS:
        return NEVER_NS
    instant = math.ceil(seconds * NS)
    while instant / NS < seconds:
        instant += 1
    return instant


class Timers:
    """The timers that are set. Cancelled ones are skipped; they never hold time up."""

    def __init__(self) -> None:
        self._heap: list[tuple[int, int, asyncio.TimerHandle]] = []
        self._count = 0
        self._cancelled_count = 0

    def add(self, due_ns: int, handle: asyncio.TimerHandle) -> None:
        """Sets a timer. The running number breaks ties, so that no two handles are ever compared."""
        self._count += 1
        heapq.heappush(self._heap, (due_ns, self._count, handle))

    def note_cancelled(self) -> None:
        """Asyncio says that a timer was cancelled, perhaps one that has fired. A flood of them must not fill memory."""
        self._cancelled_count += 1
        if self._cancelled_count > max(CANCELLED_COUNT_MAX, len(self._heap) // 2):
            self._heap = [entry for entry in self._heap if not entry[2].cancelled()]
            heapq.heapify(self._heap)
            self._cancelled_count = 0

    def next_ns(self) -> int | None:
        """When the next timer is due; None if none is set."""
        while self._heap and self._heap[0][2].cancelled():
            heapq.heappop(self._heap)
        return self._heap[0][0] if self._heap else None

    def take_due(self, now_ns: int, chance: random.Random | None) -> list[asyncio.TimerHandle]:
        """Takes out what is due, in order. With `chance`, timers of the very same instant come in a drawn order."""
        taken: list[asyncio.TimerHandle] = []
        while (instant := self.next_ns()) is not None and instant <= now_ns:
            together = [heapq.heappop(self._heap)[2]]
            while self.next_ns() == instant:
                together.append(heapq.heappop(self._heap)[2])
            if chance is not None:
                chance.shuffle(together)
            taken += together
        return taken

    def clear(self) -> None:
        """Forgets all timers."""
        self._heap.clear()


def permute_wakeups(handles: list[asyncio.Handle], chance: random.Random) -> list[asyncio.Handle]:
    """Permutes each unbroken row of task wake-ups; everything else stays where it is and is crossed by none."""
    permuted: list[asyncio.Handle] = []
    row: list[asyncio.Handle] = []
    for handle in handles:
        if _wakes_a_task(handle):
            row.append(handle)
            continue
        chance.shuffle(row)
        permuted += [*row, handle]
        row = []
    chance.shuffle(row)
    return permuted + row


def _wakes_a_task(handle: asyncio.Handle) -> bool:
    """True for a step of a task. A callback like `task.cancel` is bound to a task too, but it is a plain callback."""
    callback = getattr(handle, "_callback", None)
    name = getattr(callback, "__name__", "__step")  # the C wrapper of a task's step has no name
    return name in {"__step", "__wakeup", "task_wakeup"} and asyncio.isfuture(getattr(callback, "__self__", None))
