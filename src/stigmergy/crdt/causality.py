"""Which changes are known: dots, and contexts that hold them. Pure and immutable.

A dot names a change: the replica that wrote it and how many it had written by then. The changes of one replica are
numbered without gaps, so one number says what is known of it while nothing is missing. Changes that came too early are
held as ranges beyond that number, until the gap closes.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Annotated, Final, NamedTuple

from immutables import Map
from msgspec import Meta

from stigmergy.crdt.bounds import COUNTER_MAX, RANGES_COUNT_MAX, REPLICA_BYTES
from stigmergy.crdt.errors import LimitReached

Replica = Annotated[bytes, Meta(min_length=REPLICA_BYTES, max_length=REPLICA_BYTES)]
Counter = Annotated[int, Meta(ge=0, le=COUNTER_MAX)]
Vector = Map[bytes, int]
Range = tuple[int, int]
"""First and last."""


class Dot(NamedTuple):
    """The name of one change."""

    replica: Replica
    counter: Counter


class Context:
    """Known changes: for each replica all up to a counter, and ranges beyond it. Never changed, only replaced."""

    __slots__ = ("_beyond", "_vector")

    def __init__(self, vector: Vector = Map(), beyond: Map[bytes, tuple[Range, ...]] = Map()) -> None:  # noqa: B008
        self._vector = vector
        self._beyond = beyond

    @classmethod
    def of(cls, known: Iterable[tuple[bytes, int]]) -> Context:
        """All changes of each replica up to its counter."""
        return cls(Map({replica: counter for replica, counter in known if counter > 0}))

    def counter(self, replica: bytes) -> int:
        """Up to which change everything of this replica is known; 0 for nothing."""
        return self._vector.get(replica, 0)

    def __contains__(self, replica: object) -> bool:
        """Whether anything without a gap is known of this replica."""
        return replica in self._vector

    def __len__(self) -> int:
        """How many replicas the vector names."""
        return len(self._vector)

    def has(self, dot: tuple[bytes, int]) -> bool:
        """Whether this one change is known."""
        replica, counter = dot
        if counter <= self._vector.get(replica, 0):
            return counter > 0
        return any(first <= counter <= last for first, last in self._beyond.get(replica, ()))

    def add(self, replica: bytes, first: int, last: int) -> Context:
        """With the changes from first to last of one replica, both included."""
        known = self._vector.get(replica, 0)
        if last <= known:
            return self
        if first <= known + 1 and replica not in self._beyond:
            return Context(self._vector.set(replica, last), self._beyond)
        return self._with_ranges(replica, known, (*self._beyond.get(replica, ()), (max(first, known + 1), last)))

    def advanced(self, replica: bytes, last: int) -> Context:
        """With all changes of one replica up to the last. Only for contexts with nothing beyond, as those of stores."""
        return Context(self._vector.set(replica, last), self._beyond)

    def join(self, other: Context) -> Context:
        """What either knows."""
        if not self._beyond and not other._beyond:  # as in all stores: one pass, and no context in between
            vector = self._vector.mutate()
            for replica, counter in other._vector.items():
                if counter > vector.get(replica, 0):
                    vector[replica] = counter
            return Context(vector.finish())
        joined = self
        for replica, counter in other._vector.items():
            joined = joined.add(replica, 1, counter)
        for replica, ranges in other._beyond.items():
            for first, last in ranges:
                joined = joined.add(replica, first, last)
        return joined

    def covers(self, other: Context) -> bool:
        """Whether everything that the other knows is known here."""
        return all(self._knows(replica, 1, counter) for replica, counter in other._vector.items()) and all(
            self._knows(replica, first, last) for replica, ranges in other._beyond.items() for first, last in ranges
        )

    def vector(self) -> tuple[tuple[bytes, int], ...]:
        """Replicas with their counters, sorted; without what is beyond."""
        return tuple(sorted(self._vector.items()))

    def beyond(self) -> tuple[tuple[bytes, tuple[Range, ...]], ...]:
        """What came too early, sorted: replicas with ranges."""
        return tuple(sorted(self._beyond.items()))

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Context):
            return NotImplemented
        return self._vector == other._vector and self._beyond == other._beyond

    def __hash__(self) -> int:
        return hash((self._vector, self._beyond))

    def __repr__(self) -> str:
        named = ", ".join(f"{replica.hex()}: {counter}" for replica, counter in self.vector())
        return f"Context({named}{', and beyond' if self._beyond else ''})"

    def _knows(self, replica: bytes, first: int, last: int) -> bool:
        first = max(first, self.counter(replica) + 1)
        return first > last or any(low <= first and last <= high for low, high in self._beyond.get(replica, ()))

    def _with_ranges(self, replica: bytes, known: int, ranges: tuple[Range, ...]) -> Context:
        """With these ranges beyond, joined where they touch, and taken into the counter where they reach it."""
        apart: list[Range] = []
        for first, last in sorted(ranges):
            if first <= known + 1:
                known = max(known, last)
            elif apart and first <= apart[-1][1] + 1:
                apart[-1] = (apart[-1][0], max(apart[-1][1], last))
            else:
                apart.append((first, last))
        if len(apart) > RANGES_COUNT_MAX:
            raise LimitReached(
                f"more than {RANGES_COUNT_MAX} gaps in what is known of {replica.hex()}; fill some first"
            )
        vector = self._vector.set(replica, known) if known else self._vector
        if apart:
            return Context(vector, self._beyond.set(replica, tuple(apart)))
        return Context(vector, self._beyond.delete(replica) if replica in self._beyond else self._beyond)


NOTHING: Final = Context()
"""Knows no change."""
