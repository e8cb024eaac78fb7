"""Alarms: when which timer is due. Durations are counted by the monotonic clock, moments by the wall clock.

The table of timers is the shard's; this is only the watch on it. A timer that was cancelled or set anew since is passed
over by the step. One that is set anew again and again leaves its old entries behind; they are swept out when they are
more than those that count.
"""

from __future__ import annotations

import heapq

from stigmergy.core.inputs import TimerDue
from stigmergy.core.messages import SECOND_NS
from stigmergy.core.timers import Timer

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

    def set(self, shard: int, timer: Timer, set_at_ns: int, monotonic_ns: int) -> None:
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
