"""The signed changes of one object that are kept: to forward them, to send them again, and as evidence. Bounded.

An author signs each of its changes once, alone or joined with adjacent ones, and never again differently. So the signed
changes of one replica never overlap unless they are the same. Two that overlap and differ prove a lie.

When the pool is full the oldest go, of any author. A node that lacks one of those is sent the state instead.
"""

from __future__ import annotations

import bisect
from collections.abc import Callable, Iterable, Iterator

from stigmergy.crdt.anti_entropy.messages import body_digest
from stigmergy.crdt.anti_entropy.rules import Rules
from stigmergy.crdt.causality import Context
from stigmergy.crdt.delta import Delta

CounterOf = Callable[[bytes], int]


class SignedChange:
    """A signed change."""

    __slots__ = ("data", "delta", "key", "sender", "stamp_ns")

    def __init__(self, data: bytes, delta: Delta, key: bytes, sender: str) -> None:
        self.data = data
        """The datagram, as its author wrote it."""
        self.delta = delta
        self.key = key
        """Of the author."""
        self.sender = sender
        """The node that sent it first; empty for our own."""
        self.stamp_ns = delta.stamp_ns_max

    @property
    def digest(self) -> bytes:
        """Of what was signed: the same for the same changes, whatever the signature."""
        return body_digest(self.delta.to_bytes())


class ChangePool:
    """The changes of one object."""

    def __init__(self, rules: Rules) -> None:
        self._rules = rules
        self._kept: dict[tuple[bytes, int], SignedChange] = {}
        """By replica and first counter, in the order in which they came."""
        self._firsts: dict[bytes, list[int]] = {}
        """Of each replica, sorted."""
        self.size_bytes = 0

    def __len__(self) -> int:
        return len(self._kept)

    def all(self) -> list[SignedChange]:
        """All of them, oldest first."""
        return list(self._kept.values())

    def find(self, replica: bytes, counter: int) -> SignedChange | None:
        """The one with this change in it."""
        firsts = self._firsts.get(replica, [])
        at = bisect.bisect_right(firsts, counter) - 1
        if at < 0:
            return None
        found = self._kept[replica, firsts[at]]
        return found if found.delta.last >= counter else None

    def contradicts(self, kept: SignedChange) -> SignedChange | None:
        """One that the same replica has signed, that overlaps with this one and is not the same."""
        delta = kept.delta
        found = self._overlapping(delta.replica, delta.first, delta.last)
        return next((other for other in found if other.delta != delta), None)

    def differs(self, replica: bytes, first: int, last: int, digest: bytes) -> SignedChange | None:
        """The same for a change of which only the digest is known."""
        return next((other for other in self._overlapping(replica, first, last) if other.digest != digest), None)

    def _overlapping(self, replica: bytes, first: int, last: int) -> Iterator[SignedChange]:
        firsts = self._firsts.get(replica, [])
        start = max(0, bisect.bisect_right(firsts, first) - 1)
        for at in firsts[start : bisect.bisect_right(firsts, last)]:
            other = self._kept[replica, at]
            if other.delta.last >= first:
                yield other

    def add(self, kept: SignedChange) -> list[SignedChange]:
        """Keeps one that contradicts none; returns those that had to go for it."""
        delta = kept.delta
        key = (delta.replica, delta.first)
        if key in self._kept:
            return []
        self._kept[key] = kept
        bisect.insort(self._firsts.setdefault(delta.replica, []), delta.first)
        self.size_bytes += len(kept.data)
        gone: list[SignedChange] = []
        rules = self._rules
        while len(self._kept) > 1 and (
            self.size_bytes > rules.buffer_bytes_max or len(self._kept) > rules.buffer_count_max
        ):
            gone.append(self.drop(next(iter(self._kept))))
        return gone

    def drop(self, key: tuple[bytes, int]) -> SignedChange:
        """Lets one go."""
        kept = self._kept.pop(key)
        firsts = self._firsts[key[0]]
        firsts.remove(key[1])
        if not firsts:
            del self._firsts[key[0]]
        self.size_bytes -= len(kept.data)
        return kept

    def drop_replica(self, replica: bytes) -> None:
        """Lets go all of one replica."""
        for first in list(self._firsts.get(replica, ())):
            self.drop((replica, first))

    def lacking(self, here: Context, there: CounterOf) -> list[SignedChange] | None:
        """What somebody lacks who knows `there`, of what is known `here`; None if part of it is not kept any more."""
        found: list[SignedChange] = []
        for replica, counter in here.vector():
            at = there(replica)
            while at < counter:
                kept = self.find(replica, at + 1)
                if kept is None:
                    return None
                found.append(kept)
                at = kept.delta.last
        return found


def ripe(waiting: Iterable[SignedChange], known: CounterOf, horizon_ns: int) -> list[SignedChange]:
    """Those of the waiting that can be taken one after the other by somebody who knows `known`, in such an order.

    A change with a stamp beyond the horizon is not ripe, nor is what builds upon it.
    """
    counters: dict[bytes, int] = {}

    def counter_of(replica: bytes) -> int:
        return counters.get(replica) or known(replica)

    taken: list[SignedChange] = []
    left = [kept for kept in waiting if kept.stamp_ns <= horizon_ns]
    moved = True
    while moved:
        moved, rest = False, []
        for kept in left:
            delta = kept.delta
            at = counter_of(delta.replica)
            if delta.last <= at:
                continue
            if delta.first <= at + 1 and all(counter_of(replica) >= counter for replica, counter in delta.seen):
                counters[delta.replica] = delta.last
                taken.append(kept)
                moved = True
            else:
                rest.append(kept)
        left = rest
    return taken
