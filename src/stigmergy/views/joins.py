"""The waiting halves of a view's joins: events whose partner may still come. Pure.

Nothing of it is stored: halves are in the log. `oldest` says from which position of a shard on they are. That is kept
with the rows, and a projector that starts reads from there on again, without pairing what it has paired before.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from typing import Any

from msgspec import Struct

from stigmergy.agents.view_time import JoinSide

HALVES_MAX = 100_000
"""Of a view in memory. When there are more, the oldest is dropped and counted: pairs with it are missed."""


class Half(Struct, eq=False):
    """An event that waits for others."""

    side: JoinSide
    value: Any
    event: Any
    origin: Any
    in_rows: bool = False
    """Its commit is in the rows already, and so are its pairs with others of which that is true."""
    is_paired: bool = False

    @property
    def last_ns(self) -> int:
        """A partner has at most this time."""
        return int(self.origin.time_ns + (0 if self.side.is_second else self.side.within_ns))


class Halves:
    """The halves of all joins of one view. Show it the events of each shard in order."""

    def __init__(self) -> None:
        self._by_value: dict[tuple[str, Any], tuple[list[Half], list[Half]]] = {}
        """By join and value: firsts and seconds."""
        self._by_shard: dict[str, deque[Half]] = {}
        self.count = 0
        self.unmatched = 0
        """Halves whose time is over and that had no partner."""
        self.dropped = 0
        """Halves that were dropped because there were too many."""

    def add(self, shard: str, side: JoinSide, event: Any, origin: Any, *, in_rows: bool) -> Iterator[tuple[Half, Half]]:
        """Takes an event; the pairs that it makes with those before it and that are not in the rows."""
        half = Half(side, side.value(event), event, origin, in_rows)
        sides = self._by_value.setdefault((side.join, half.value), ([], []))
        for other in sides[not side.is_second]:
            first, second = (other, half) if side.is_second else (half, other)
            if 0 <= second.origin.time_ns - first.origin.time_ns <= side.within_ns:
                first.is_paired = second.is_paired = True
                if not (in_rows and other.in_rows):
                    yield first, second
        sides[side.is_second].append(half)
        self._by_shard.setdefault(shard, deque()).append(half)
        self.count += 1
        if self.count > HALVES_MAX:
            self._drop_oldest()

    def expire(self, horizon_ns: int) -> None:
        """Every event to come, of whatever shard, is of this time or later: lets go of what has no partner there."""
        for halves in self._by_shard.values():
            while halves and halves[0].last_ns < horizon_ns:
                half = halves.popleft()
                self.unmatched += not half.is_paired
                self._forget(half)

    def oldest(self, shard: str) -> int:
        """The position of the first half of a shard that waits; 0 if none does."""
        halves = self._by_shard.get(shard)
        return int(halves[0].origin.position) if halves else 0

    def _drop_oldest(self) -> None:
        waiting = [halves for halves in self._by_shard.values() if halves]
        self._forget(min(waiting, key=lambda halves: halves[0].origin.time_ns).popleft())
        self.dropped += 1

    def _forget(self, half: Half) -> None:
        key = (half.side.join, half.value)
        sides = self._by_value[key]
        sides[half.side.is_second].remove(half)
        if not sides[0] and not sides[1]:
            del self._by_value[key]
        self.count -= 1
