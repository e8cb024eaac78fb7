"""When a host takes its next turn: soon, because something came, or later, because a time is due.

Only `plan` sets the clock. It is told whether the turn could step. While turns cannot step, nothing that only a step
serves may cause the next turn; otherwise the host would spin until the disk answers.
"""

from __future__ import annotations

import asyncio
import heapq
from collections.abc import Callable
from typing import Protocol

from stigmergy.agents.messages import SECOND_NS
from stigmergy.shard.inputs import TimerDue
from stigmergy.shard.timers import PendingTimer

OnUnserved = Callable[[str, int], None]
"""Told of a watch that is due after a turn that could have served it, and how many such turns there were in a row. It
is a bug that burns a core. The simulator ends a run for it; a node goes on."""


GIVE_WAY_COUNT = 3
"""Callbacks through which an answer of the disk comes, one after the other: thread, task, committer. With a long turn
between each of them and the next, the disk would seem to take three turns longer."""


class DeadlineWatch(Protocol):
    """Something that waits for a time."""

    @property
    def next_ns(self) -> int | None:
        """When it has something to do, by the monotonic clock, if nothing else happens; a time in the past: now."""
        ...


class Waker:
    """Schedules turns on the event loop; at most one is due soon, and at most one later."""

    def __init__(self, turn: Callable[[], None], on_unserved: OnUnserved = lambda *_: None) -> None:
        self._turn = turn
        self._on_unserved = on_unserved
        self._scheduled = False
        self._timer: asyncio.TimerHandle | None = None
        self._armed_ns = 0
        self._over = False
        self.watches: dict[str, DeadlineWatch] = {}
        """By their names, what time may bring. Set before the first turn."""
        self._unserved_turns = 0

    def wake(self) -> None:
        """Has a turn taken soon."""
        if not self._scheduled and not self._over:
            self._scheduled = True
            asyncio.get_running_loop().call_soon(self._take)

    def wake_behind(self) -> None:
        """Has a turn taken once an answer of the disk that is there was heard."""
        if not self._scheduled and not self._over:
            self._scheduled = True
            self._give_way(GIVE_WAY_COUNT)

    def _give_way(self, count: int) -> None:
        loop = asyncio.get_running_loop()
        if count:
            loop.call_soon(self._give_way, count - 1)
        else:
            loop.call_soon(self._take)

    def plan(self, monotonic_ns: int, latest_ns: int, *, could_step: bool) -> None:
        """Sets the clock after the turn of `monotonic_ns`, for `latest_ns` or for what is due before.

        A turn serves everything that is due, but some of it only if it can step. So what is still due after a turn
        that could not step needs room in the open commit. The code that makes room wakes the host: the turn that seals
        the commit, or the end of the write under way. A turn before that would change nothing.
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
            self._on_unserved(unserved, self._unserved_turns)
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


# Alarms: when each timer is due. Durations use the monotonic clock, points in time the wall clock.
#
# The shard owns the table of timers; this only watches it. The step skips a timer that was cancelled or set again
# since. A timer that is set again and again leaves stale entries; they are swept when they outnumber the live ones.

WALL_CHECK_NS = SECOND_NS
"""A timer at a moment of the wall clock is looked at this often, because that clock may jump."""


SWEEP_COUNT_MIN = 1_000

Entry = tuple[int, int, str, str, int, bool]
"""When to look, due time, agent, name, shard, whether it follows the wall clock."""


class Alarms:
    """A watch over the timers of all shards of a host."""

    def __init__(self) -> None:
        self._heap: list[Entry] = []
        self._due_ns: dict[tuple[int, str, str], int] = {}
        """What each timer was last set to: entries with another due time are old."""

    def set(self, shard: int, timer: PendingTimer, set_at_ns: int, monotonic_ns: int) -> None:
        """Watches a timer that was set at this time of the log, which was just now."""
        wait_ns = max(0, timer.due_ns - set_at_ns)
        if timer.follows_wall:
            wait_ns = min(wait_ns, WALL_CHECK_NS)
        self._due_ns[shard, timer.agent, timer.name] = timer.due_ns
        entry = (monotonic_ns + wait_ns, timer.due_ns, timer.agent, timer.name, shard, timer.follows_wall)
        heapq.heappush(self._heap, entry)
        if len(self._heap) > max(SWEEP_COUNT_MIN, 2 * len(self._due_ns)):
            self._heap = [one for one in self._heap if self._due_ns.get((one[4], one[2], one[3])) == one[1]]
            heapq.heapify(self._heap)

    def due(self, now_ns: int, monotonic_ns: int) -> list[tuple[int, TimerDue]]:
        """Timers whose time has come, with their shards, in the order in which they fire: due time, agent, name."""
        fired: list[tuple[int, TimerDue]] = []
        while self._heap and self._heap[0][0] <= monotonic_ns:
            _, due_ns, agent, name, shard, follows_wall = heapq.heappop(self._heap)
            if self._due_ns.get((shard, agent, name)) != due_ns:
                continue
            if follows_wall and due_ns > now_ns:
                again_ns = monotonic_ns + min(due_ns - now_ns, WALL_CHECK_NS)
                heapq.heappush(self._heap, (again_ns, due_ns, agent, name, shard, True))
            else:
                del self._due_ns[shard, agent, name]
                fired.append((shard, TimerDue(agent=agent, name=name, due_ns=due_ns)))
        fired.sort(key=lambda one: (one[1].due_ns, one[1].agent, one[1].name))
        return fired

    @property
    def next_ns(self) -> int | None:
        """When to look again, by the monotonic clock."""
        return self._heap[0][0] if self._heap else None
