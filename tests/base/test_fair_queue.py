"""Sources take turns, whatever they put; each one's order is kept."""

from collections import deque

from hypothesis import given
from hypothesis import strategies as st

from stigmergy.base.fair_queue import QUANTUM, FairQueue

SOURCES = "abc"
Put = tuple[str, int]
puts = st.lists(st.tuples(st.sampled_from(SOURCES), st.integers(1, 300 * QUANTUM)), max_size=60)


def drain(queue: FairQueue[int]) -> list[tuple[str, int]]:
    taken = []
    while queue.is_ready:
        taken.append(queue.pop())
    return taken


def test_one_that_floods_delays_another_by_a_turn_only() -> None:
    queue: FairQueue[int] = FairQueue()
    for number in range(40_000):
        queue.put("flood", number, QUANTUM)
    queue.put("quiet", -1, QUANTUM)
    assert ("quiet", -1) in [queue.pop() for _ in range(3)]
    assert len(queue) == 39_998


def test_large_items_cost_what_they_take() -> None:
    queue: FairQueue[int] = FairQueue()
    for number in range(100):
        queue.put("large", number, 10 * QUANTUM)
        queue.put("small", number, QUANTUM)
    first = [queue.pop()[0] for _ in range(55)]
    assert 45 <= first.count("small") <= 51


def test_an_item_far_beyond_the_quantum_comes_out_at_once_if_nothing_else_waits() -> None:
    queue: FairQueue[int] = FairQueue()
    queue.put("a", 1, 10**12)
    queue.put("b", 2, 10**12)
    assert drain(queue) == [("a", 1), ("b", 2)]
    assert len(queue) == 0


def test_a_held_source_has_no_turn_and_keeps_its_items() -> None:
    queue: FairQueue[int] = FairQueue()
    queue.hold("a")
    queue.hold("a")
    queue.put("a", 1, 1)
    assert not queue.is_ready
    queue.put("b", 2, 1)
    assert drain(queue) == [("b", 2)]
    assert len(queue) == 1
    assert queue.cost_of("a") == 1
    queue.release("a")
    queue.hold("a")
    queue.release("a")  # it was still in its place
    queue.put_first("a", 0, 1)
    assert drain(queue) == [("a", 0), ("a", 1)]
    queue.hold("a")
    queue.release("a")
    queue.release("a")
    assert queue.cost_of("a") == 0


def test_a_source_that_is_held_while_it_has_items_is_passed_over() -> None:
    queue: FairQueue[int] = FairQueue()
    queue.put("a", 1, 1)
    queue.put("b", 2, 1)
    queue.hold("a")
    assert queue.pop() == ("b", 2)
    assert not queue.is_ready
    queue.put("b", 3, 1)
    assert queue.pop() == ("b", 3)
    queue.release("a")
    assert queue.clear() == [1]
    assert not queue.is_ready
    assert len(queue) == 0


@given(puts)
def test_all_comes_out_once_and_each_source_in_its_order(put: list[Put]) -> None:
    queue: FairQueue[int] = FairQueue()
    for number, (source, cost) in enumerate(put):
        queue.put(source, number, cost)
    taken = drain(queue)
    assert sorted(number for _, number in taken) == list(range(len(put)))
    for source in SOURCES:
        mine = [number for whose, number in taken if whose == source]
        assert mine == sorted(mine)


@given(puts)
def test_no_source_gets_ahead_of_another_by_more_than_a_turn(put: list[Put]) -> None:
    queue: FairQueue[int] = FairQueue()
    waiting = {source: deque[int]() for source in SOURCES}
    for source, cost in put:
        queue.put(source, cost, cost)
        waiting[source].append(cost)
    spent = dict.fromkeys(SOURCES, 0)
    while all(waiting.values()):  # as long as all have something
        source, cost = queue.pop()
        waiting[source].popleft()
        spent[source] += cost
        assert max(spent.values()) - min(spent.values()) <= 2 * (300 + 1) * QUANTUM
