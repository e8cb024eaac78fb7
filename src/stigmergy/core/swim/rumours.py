"""What is to be passed on: the latest update about each member, as often as it takes to reach everybody. Pure.

An update rides on packets that go anyway. Those that went out least go first; each goes a number of times that grows
with the logarithm of the fleet and is then forgotten: who has missed it learns it by comparing digests.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain, islice

from stigmergy.core.swim.packets import SwimUpdate

RUMOURS_COUNT_MAX = 1_024
"""Updates that wait. One more, and one that went out most is dropped."""
TIMES_PER_DOUBLING = 3
"""So many times more an update is passed on whenever the fleet doubles."""
CHOSEN_COUNT_MAX = 64
"""Updates that one packet chooses from."""


class Rumours:
    """Updates that wait to be passed on."""

    def __init__(self, count_max: int = RUMOURS_COUNT_MAX) -> None:
        self._count_max = count_max
        self._times: dict[str, int] = {}
        """How often the update about a node went out."""
        self._waiting: list[dict[str, SwimUpdate]] = [{}]
        """By how often they went out."""

    def __len__(self) -> int:
        return len(self._times)

    def add(self, update: SwimUpdate) -> None:
        """Passes this on from now, instead of what was said of the node before."""
        self._drop(update.node)
        if len(self._times) >= self._count_max:
            self._drop(next(node for waiting in reversed(self._waiting) for node in waiting))
        self._put(update, 0)

    def choose(self) -> list[SwimUpdate]:
        """What the next packet should carry, in order of need."""
        return list(islice(chain.from_iterable(map(dict.values, self._waiting)), CHOSEN_COUNT_MAX))

    def went(self, updates: Sequence[SwimUpdate], members_count: int) -> None:
        """Notes that these went out; those that went out often enough are forgotten."""
        times_max = TIMES_PER_DOUBLING * max(1, members_count.bit_length())
        for update in updates:
            times = self._times.get(update.node)
            if times is not None and self._waiting[times][update.node] is update:
                self._drop(update.node)
                if times + 1 < times_max:
                    self._put(update, times + 1)

    def _put(self, update: SwimUpdate, times: int) -> None:
        if times == len(self._waiting):
            self._waiting.append({})
        self._waiting[times][update.node] = update
        self._times[update.node] = times

    def _drop(self, node: str) -> None:
        times = self._times.pop(node, None)
        if times is not None:
            del self._waiting[times][node]
