"""Safe action in time: whoever has heard nothing for T is made safe within T and a tick, whatever else happens."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Sequence

from msgspec import Struct

TICK_NS = 300_000_000
"""How late a safe action may be, seen from outside: a turn of the host, and the way to the device."""
CLOCK_SHARE = 100
"""A clock may run ahead by one part in so many."""


class Watched(Struct, frozen=True):
    """One agent and one rule, as seen from outside. All times are the simulator's, and sorted.

    When exactly a node heard something is not seen from outside: it was between the moment when it was delivered and
    that when it was durable.
    """

    agent: str
    after_ns: int
    fresh_ns: Sequence[tuple[int, int]]
    """When it was fresh, earliest and latest: something that the rule waits for was kept, or the node was started."""
    maybe_ns: Sequence[int]
    """When something was delivered that may have been heard, and is in no log yet."""
    safe_ns: Sequence[int]
    """When a safe action reached the device, whether that took it or not."""
    up_ns: Sequence[tuple[int, int]]
    """From when to when its node ran."""


def safe_action_in_time(watched: Iterable[Watched], *, tick_ns: int = TICK_NS) -> list[str]:
    """Looks at every silence that is certain, and for a safe action in it."""
    findings: list[str] = []
    for one in watched:
        for place, (earliest, latest) in enumerate(one.fresh_ns):
            due = latest + one.after_ns + tick_ns
            if place + 1 < len(one.fresh_ns) and one.fresh_ns[place + 1][0] <= due:
                continue
            if bisect_right(one.maybe_ns, due) > bisect_right(one.maybe_ns, earliest):
                continue
            if not any(begin <= latest and due <= end for begin, end in one.up_ns):
                continue
            since = earliest + one.after_ns - one.after_ns // CLOCK_SHARE
            found = bisect_left(one.safe_ns, since)
            if found == len(one.safe_ns) or one.safe_ns[found] > due:
                findings.append(
                    f"{one.agent}: silent since {latest // 1_000_000} ms, not made safe by {due // 1_000_000} ms"
                )
    return findings
