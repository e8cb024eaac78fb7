"""Watches all leases and offers, and writes to the ledger when one is over.

It counts from when this node saw the lease, on this node's monotonic clock, for the lease and the drift of both clocks
(`claims/state.py`). To avoid that all nodes write at once, each resource has an order of nodes, and each next one waits
a little longer; a node that reads the expiry of another node writes nothing.
"""

from __future__ import annotations

import heapq
from collections import OrderedDict
from collections.abc import Callable, Sequence

from blake3 import blake3

from stigmergy.claims.entries import Expire
from stigmergy.claims.rules import Fate, FoldStep
from stigmergy.claims.state import MILLISECOND_NS, OFFER_MS, Claims, expiry_ns

STAGGER_MS = 250
RANK_MAX = 7
"""Bounds the wait to this many times the stagger, however many nodes there are."""
RANKED_COUNT_MAX = 64
"""With more writers than this a node's rank is drawn from its name, and not counted."""
AGAIN_MS = 5_000
"""An expiry that did not get through is written again after this time."""
QUEUED_COUNT_MAX = 10_000
"""Claimants of which it is known when they joined a queue. Beyond it the first are dropped."""


class LeaseObserver:
    """The watched leases and offers, by time."""

    def __init__(self, writer: bytes, say: Callable[[Expire], bool]) -> None:
        self._writer = writer
        self._say = say
        self._watched: dict[str, tuple[int, int]] = {}
        """By resource: the beginning of the watched lease or offer, and its latest end."""
        self._due: list[tuple[int, str, int]] = []
        self.queued: OrderedDict[bytes, tuple[int, int]] = OrderedDict()
        """By claimant: the position of the entry with which it joined its queues, and when we read it. For people: a
        queue has no times. Also of claimants that have left since."""
        self.expired = 0
        """How many expiries this node has written."""

    @property
    def next_ns(self) -> int | None:
        """When something is due."""
        return self._due[0][0] if self._due else None

    def heard(self, steps: Sequence[FoldStep], before: Claims, now_ns: int) -> None:
        """Entries were read, after this state: notes who has joined a queue. A claimant that asks again is in it."""
        for step in steps:
            if step.fate is Fate.QUEUED and not before.waits(step.resource, step.claimant):
                self.queued[step.claimant] = (step.claims.position, now_ns)
                self.queued.move_to_end(step.claimant)
                if len(self.queued) > QUEUED_COUNT_MAX:
                    self.queued.popitem(last=False)
            before = step.claims

    def changed(self, name: str, claims: Claims, now_ns: int) -> None:
        """A resource may have changed: watches its current lease or offer from now on."""
        known = claims.resource(name)
        if known.grant is not None:
            began, for_ms = known.grant.began, known.grant.for_ms
        elif known.offer is not None:
            began, for_ms = known.offer.position, OFFER_MS
        else:
            self._watched.pop(name, None)
            return
        if self._began(name) == began:
            return
        over_ns = expiry_ns(now_ns, for_ms)
        self._watched[name] = (began, over_ns)
        stagger_ns = self._rank(name, claims) * STAGGER_MS * MILLISECOND_NS
        heapq.heappush(self._due, (over_ns + stagger_ns, name, began))

    def over_ns(self, name: str, began: int) -> int | None:
        """The latest end of this lease or offer by our clock; None if it is not watched."""
        watched = self._watched.get(name)
        return watched[1] if watched is not None and watched[0] == began else None

    def jumped(self, claims: Claims, now_ns: int) -> None:
        """Everything may have changed. Watched leases that still exist count from when they were first seen."""
        for name in sorted(self._watched):
            self.changed(name, claims, now_ns)
        for name in sorted(claims.resources):
            self.changed(name, claims, now_ns)

    def tick(self, now_ns: int) -> None:
        """Writes the expiries that are due."""
        while self._due and self._due[0][0] <= now_ns:
            _, name, began = heapq.heappop(self._due)
            if self._began(name) == began:
                self.expired += self._say(Expire(name, began))
                heapq.heappush(self._due, (now_ns + AGAIN_MS * MILLISECOND_NS, name, began))

    def _began(self, name: str) -> int | None:
        watched = self._watched.get(name)
        return None if watched is None else watched[0]

    def _rank(self, name: str, claims: Claims) -> int:
        """How many nodes come before this one for this resource."""
        mine = _draw(self._writer, name)
        if len(claims.writers) > RANKED_COUNT_MAX:
            return mine[0] % (RANK_MAX + 1)
        return min(RANK_MAX, sum(_draw(writer, name) < mine for writer in claims.writers if writer != self._writer))


def _draw(writer: bytes, name: str) -> bytes:
    return blake3(writer + name.encode()).digest(8)
