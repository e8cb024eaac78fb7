"""The rules of shard.gaps against naive models: nothing is lost, doubled or reordered, and every wait is bounded."""

from __future__ import annotations

from typing import NamedTuple

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stigmergy.base.errors import Overloaded
from stigmergy.shard import gaps
from stigmergy.shard.commit import MarkMoved
from stigmergy.shard.gaps import Accept, GapQueue, Gaps, StreamPosition, Turn
from stigmergy.shard.marks import Marks

WAIT_NS = 10
HELD_MAX = 4
SOURCES = ("a", "b")


class Batch(NamedTuple):
    source: str
    incarnation: int
    sequence: int
    count: int  # type: ignore[assignment]
    lost: int


class Arrives(NamedTuple):
    batch: Batch
    size_bytes: int


class Passes(NamedTuple):
    time_ns: int


class Model:
    """The same by looking at everything each time: a list of what waits, sorted again for each decision."""

    def __init__(self) -> None:
        self.reached = dict.fromkeys(SOURCES, 0)
        self.held: list[tuple[str, int, int, int, int, list[int]]] = []
        """Source, first, count, follows, since, tickets."""

    def arrive(self, batch: Batch, ticket: int, now_ns: int) -> list[tuple[str, int, int, int, bool, list[int]]] | None:
        follows = batch.sequence - 1 - batch.lost
        one = (batch.source, batch.sequence, batch.count, follows, now_ns, [ticket])
        if batch.sequence <= self.reached[batch.source] or follows <= self.reached[batch.source]:
            return [self.out(one), *self.due(batch.source)]
        same = [held for held in self.held if held[:2] == one[:2]]
        if not same and len(self.held) >= HELD_MAX:
            return None
        if same:
            (before,) = same
            self.held.remove(before)
            count, follows = max(before[2], batch.count), min(before[3], follows)
            one = (batch.source, batch.sequence, count, follows, before[4], [*before[5], ticket])
        self.held.append(one)
        return []

    def due(self, source: str) -> list[tuple[str, int, int, int, bool, list[int]]]:
        found = []
        while mine := sorted(held for held in self.held if held[0] == source):
            if mine[0][3] > self.reached[source] and mine[0][1] > self.reached[source]:
                break
            self.held.remove(mine[0])
            found.append(self.out(mine[0]))
        return found

    def overdue(self, now_ns: int) -> list[tuple[str, int, int, int, bool, list[int]]]:
        found = []
        for source in SOURCES:
            while mine := sorted(held for held in self.held if held[0] == source):
                if now_ns - mine[0][4] < WAIT_NS:
                    break
                self.held.remove(mine[0])
                found += [self.out(mine[0]), *self.due(source)]
        return found

    def out(self, one: tuple[str, int, int, int, int, list[int]]) -> tuple[str, int, int, int, bool, list[int]]:
        source, first, count, follows, _, tickets = one
        reached = self.reached[source]
        self.reached[source] = max(reached, first + count - 1)
        skips = first > reached + 1
        return source, first, count, first if skips else 0, skips and follows <= reached, tickets


def told(accepted: list[Accept[Batch, int]]) -> list[tuple[str, int, int, int, bool, list[int]]]:
    return [
        (one.envelope.source, one.envelope.sequence, one.envelope.count, one.skip_to, one.declared, list(one.tickets))
        for one in accepted
    ]


def consume(marks: Marks, accepted: list[Accept[Batch, int]], consumed: list[tuple[str, int]]) -> None:
    """What the step does: an item that the marks do not expect raises SequenceGap."""
    for one in accepted:
        batch = one.envelope
        if one.skip_to:
            assert one.skip_to > marks.consumed(batch.source, 0) + 1
            marks.move(MarkMoved(batch.source, 0, 0, one.skip_to - 1))
        for number in range(batch.sequence + marks.admit(batch.source, 0, 0, batch.sequence), end_of(batch)):
            consumed.append((batch.source, number))
        marks.move(MarkMoved(batch.source, 0, 0, end_of(batch) - 1))


def end_of(batch: Batch) -> int:
    return batch.sequence + batch.count


batches = st.builds(
    Batch, st.sampled_from(SOURCES), st.just(0), st.integers(1, 12), st.integers(1, 3), st.sampled_from((0, 0, 0, 1, 4))
)
scripts = st.lists(
    st.one_of(
        st.builds(Arrives, batches, st.integers(1, 40)),
        st.builds(Arrives, batches, st.integers(1, 40)),
        st.builds(Passes, st.integers(1, WAIT_NS)),
    ),
    max_size=40,
)


@given(scripts)
def test_what_is_held_here_goes_on_as_the_naive_model_says(script: list[Arrives | Passes]) -> None:
    marks, model, now_ns = Marks(), Model(), 0
    queue = GapQueue[Batch, int](marks.consumed, gap_wait_ns=WAIT_NS, gap_deliveries_max=HELD_MAX)
    consumed: list[tuple[str, int]] = []
    tickets: list[int] = []
    taken = 0
    for number, step in enumerate([*script, Passes(WAIT_NS)]):
        if isinstance(step, Passes):
            now_ns += step.time_ns
            accepted = queue.overdue(now_ns)
            assert sorted(told(accepted)) == sorted(model.overdue(now_ns))
        else:
            expected = model.arrive(step.batch, number, now_ns)
            if expected is None:
                with pytest.raises(Overloaded):
                    queue.admit(step.batch, step.size_bytes, (number,), now_ns)
                continue
            taken += 1
            accepted = queue.admit(step.batch, step.size_bytes, (number,), now_ns)
            assert told(accepted) == expected
        consume(marks, accepted, consumed)
        tickets += [ticket for one in accepted for ticket in one.tickets]
        waiting = [min(held[4] for held in model.held if held[:2] == lowest) for lowest in lowest_of(model)]
        assert queue.next_ns == (min(waiting) + WAIT_NS if waiting else None)
    assert queue.next_ns is None, "nothing waits for longer than its time"
    assert len(tickets) == len(set(tickets)) == taken, "everybody who waits hears once"
    assert len(consumed) == len(set(consumed)), "nothing is consumed twice"
    for source in SOURCES:
        mine = [number for whose, number in consumed if whose == source]
        assert mine == sorted(mine)


def lowest_of(model: Model) -> list[tuple[str, int]]:
    found: dict[str, int] = {}
    for source, first, *_ in sorted(model.held, reverse=True):
        found[source] = first
    return list(found.items())


@given(st.lists(st.tuples(st.integers(1, 30), st.integers(1, 60)), max_size=30))
def test_the_bytes_that_are_held_are_bounded_and_given_back(sizes: list[tuple[int, int]]) -> None:
    queue = GapQueue[Batch, int](lambda *_: 0, gap_wait_ns=WAIT_NS, gap_deliveries_max=100)
    held: dict[int, int] = {}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(gaps, "EARLY_BYTES_MAX", 100)
        for sequence, size_bytes in sizes:
            others = sum(held.values()) - held.get(sequence, 0)
            try:
                assert not queue.admit(Batch("a", 0, sequence + 1, 1, 0), size_bytes, (), 0)
            except Overloaded:
                assert others + size_bytes > 100
            else:
                assert others + size_bytes <= 100
                held.setdefault(sequence, size_bytes)
        assert len(queue.overdue(WAIT_NS)) == len(held)
        assert not queue.admit(Batch("a", 0, 1_000, 1, 0), 100, (), 0), "all of the room is free again"


sent = st.lists(st.integers(1, 5), min_size=1, max_size=12)
"""How far the number of each message lies beyond the one before it."""


@given(sent, st.data())
def test_what_a_transport_offers_again_is_taken_once_and_in_order(steps: list[int], data: st.DataObject) -> None:
    """Some messages never come, some are refused, some come twice, all in any order and at any time."""
    numbers = [sum(steps[: place + 1]) for place in range(len(steps))]
    previous = dict(zip(numbers, [0, *numbers], strict=False))
    lost = data.draw(st.sets(st.sampled_from(numbers)), "lost")
    refused = data.draw(st.sets(st.sampled_from(numbers)), "refused") - lost
    come = data.draw(st.permutations([number for number in numbers if number not in lost] * 2), "order")
    machine = Gaps[str](lambda _: StreamPosition(0))
    taken: list[int] = []
    given_up: list[int] = []
    early: list[int] = []
    now_ns, since_ns = 0, -1
    for arrived in [*come, *[0] * len(numbers)]:
        now_ns += data.draw(st.integers(0, 3)) if arrived else WAIT_NS
        offered = {arrived, *early} - {0}
        early.clear()
        # The lowest first, as the inbox does: each may be what the next one waits for.
        for number in sorted(offered):
            turn = machine.turn("s", number, previous[number])
            assert (turn is Turn.REPEATED) == (number <= max(taken, default=0))
            if turn is Turn.REPEATED:
                continue
            if number in refused:
                machine.refuse("s", number, previous[number])
                continue
            if turn is Turn.EARLY:
                since_ns = now_ns if since_ns < 0 else since_ns
                waits = machine.still_waits("s", now_ns, WAIT_NS, 0)
                assert waits == (now_ns < since_ns + WAIT_NS)
                if waits:
                    early.append(number)
                    continue
                given_up.append(number)
            machine.advance("s", number)
            since_ns = -1
            taken.append(number)
    assert not early, "nothing waits for longer than its time"
    assert taken == sorted(set(taken)), "once and in order"
    if not given_up:
        assert taken == [number for number in numbers if number not in lost | refused]


def test_a_stream_that_was_forgotten_is_where_its_marks_are() -> None:
    marked = {"s": StreamPosition(4, 2)}
    machine = Gaps[str](lambda key: marked.get(key, StreamPosition(0)))
    machine.advance("s", 9, 3)
    assert machine.position("s") == StreamPosition(9, 3)
    assert "s" in machine
    assert machine.forget("s")
    assert not machine.forget("s")
    assert machine.position("s") == StreamPosition(4, 2)
    assert machine.turn("s", 6, 5) is Turn.EARLY


def test_a_link_begins_the_waits_anew() -> None:
    machine = Gaps[str](lambda _: StreamPosition(1))
    assert machine.still_waits("s", 0, WAIT_NS, 0)
    machine.restart_waits()
    assert machine.still_waits("s", WAIT_NS, WAIT_NS, 0)
    assert not machine.still_waits("s", 2 * WAIT_NS, WAIT_NS, 0)
    assert machine.still_waits("s", 2 * WAIT_NS, WAIT_NS, 2 * WAIT_NS + 1), "not before this moment"


def test_a_refusal_counts_once_it_is_in_order_and_never_goes_back() -> None:
    machine = Gaps[str](lambda _: StreamPosition(1))
    machine.refuse("s", 9, 7)
    assert machine.turn("s", 10, 9) is Turn.EARLY, "one that came early says nothing yet"
    machine.refuse("s", 4, 1)
    machine.refuse("s", 3, 1)
    assert machine.passed("s") == 4
    assert machine.turn("s", 5, 4) is Turn.NEXT
    machine.advance("s", 3)
    assert machine.passed("s") == 4
    machine.advance("s", 5)
    assert machine.forget("s")
    assert machine.passed("s") == 1


def test_of_too_many_streams_the_one_that_was_silent_longest_is_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gaps, "STREAMS_COUNT_MAX", 2)
    machine = Gaps[str](lambda _: StreamPosition(0))
    for key in "abac":
        machine.advance(key, 1)
    assert [key in machine for key in "abc"] == [True, False, True]
