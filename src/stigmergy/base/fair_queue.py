"""A queue that is fair to sources: deficit round robin. Pure.

The items of one source keep their order. Between sources each gets the same cost per round, so a source that puts
thousands delays another one by one round, not by thousands. A source with nothing waiting has no turn and saves nothing
up. The caller bounds how much is put, and passes the cost of an item: its bytes and a fixed amount for its work.

A source may be held: it keeps its place and its items, and has no turn until it is released.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from typing import Generic, TypeVar

ItemT = TypeVar("ItemT")
QUANTUM = 1024
"""The cost that each source may spend in a round: about one small message."""


class _Flow(Generic[ItemT]):
    """What waits of one source."""

    __slots__ = ("cost", "deficit", "in_ring", "is_held", "items")

    def __init__(self) -> None:
        self.items: deque[tuple[int, ItemT]] = deque()
        self.cost = 0
        self.deficit = 0
        self.in_ring = False
        self.is_held = False


class FairQueue(Generic[ItemT]):
    """Items of many sources, taken by deficit round robin."""

    def __init__(self, quantum: int = QUANTUM) -> None:
        self._quantum = quantum
        self._flows: dict[str, _Flow[ItemT]] = {}
        self._ring: deque[str] = deque()
        """The sources that have something, in the order of their turns. One that was held is taken out at its turn."""
        self._count = 0
        self._ready_count = 0
        """Sources in the ring that are not held."""

    def __len__(self) -> int:
        """How many items wait, those of held sources included."""
        return self._count

    def __iter__(self) -> Iterator[ItemT]:
        """What waits, source by source."""
        return (item for flow in self._flows.values() for _, item in flow.items)

    @property
    def is_ready(self) -> bool:
        """Whether `pop` has something to give."""
        return self._ready_count > 0

    def count_of(self, source: str) -> int:
        """How many items of this source wait."""
        flow = self._flows.get(source)
        return 0 if flow is None else len(flow.items)

    def cost_of(self, source: str) -> int:
        """What the waiting items of this source cost together."""
        flow = self._flows.get(source)
        return 0 if flow is None else flow.cost

    def put(self, source: str, item: ItemT, cost: int) -> None:
        """Puts an item behind the others of its source."""
        self._flow(source, cost).items.append((cost, item))

    def put_first(self, source: str, item: ItemT, cost: int) -> None:
        """Puts an item before the others of its source."""
        self._flow(source, cost).items.appendleft((cost, item))

    def put_rest(self, source: str, item: ItemT, cost: int) -> None:
        """Puts back what is left of the item that was popped last. It is paid for; others have a turn before it."""
        if self._ring and self._ring[0] == source:
            self._ring.rotate(-1)
        flow = self._flow(source, cost)
        flow.items.appendleft((cost, item))
        flow.deficit += cost

    def first(self) -> ItemT | None:
        """The next item, if nothing is held; None for an empty queue."""
        return self._flows[self._ring[0]].items[0][1] if self._ring else None

    def pop(self) -> tuple[str, ItemT]:
        """The next item, and whose it is. Only while `is_ready`."""
        passed = 0
        while True:
            source = self._ring[0]
            flow = self._flows[source]
            if flow.is_held:
                self._ring.popleft()
                flow.in_ring = False
                continue
            cost, item = flow.items[0]
            if cost <= flow.deficit:
                break
            if passed == len(self._ring):
                # All the rounds until the first source can afford its next item are granted at once.
                self._grant(min(self._rounds(other) for other in self._ring) - 1)
                passed = 0
            flow.deficit += self._quantum
            self._ring.rotate(-1)
            passed += 1
        flow.items.popleft()
        flow.deficit -= cost
        flow.cost -= cost
        self._count -= 1
        if not flow.items:
            self._ring.popleft()
            self._ready_count -= 1
            del self._flows[source]
        return source, item

    def hold(self, source: str) -> None:
        """Gives this source no turn until `release`."""
        flow = self._flows.setdefault(source, _Flow())
        if not flow.is_held:
            flow.is_held = True
            self._ready_count -= flow.in_ring

    def release(self, source: str) -> None:
        """Gives a held source its turns again."""
        flow = self._flows.get(source)
        if flow is None or not flow.is_held:
            return
        flow.is_held = False
        if flow.in_ring:
            self._ready_count += 1
        elif flow.items:
            self._enter(source, flow)
        else:
            del self._flows[source]

    def clear(self) -> list[ItemT]:
        """Empties the queue; returns what waited, source by source."""
        left = list(self)
        self._flows.clear()
        self._ring.clear()
        self._count = self._ready_count = 0
        return left

    def _flow(self, source: str, cost: int) -> _Flow[ItemT]:
        """The flow that gets one more item."""
        flow = self._flows.get(source)
        if flow is None:
            flow = self._flows[source] = _Flow()
        if not flow.in_ring and not flow.is_held:
            self._enter(source, flow)
        flow.cost += cost
        self._count += 1
        return flow

    def _enter(self, source: str, flow: _Flow[ItemT]) -> None:
        flow.in_ring = True
        self._ring.append(source)
        self._ready_count += 1

    def _rounds(self, source: str) -> int:
        """How many rounds a source must wait until it can afford its next item."""
        flow = self._flows[source]
        return -(-(flow.items[0][0] - flow.deficit) // self._quantum)

    def _grant(self, rounds: int) -> None:
        if rounds > 0:
            for source in self._ring:
                self._flows[source].deficit += rounds * self._quantum
