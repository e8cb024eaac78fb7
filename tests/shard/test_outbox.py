"""The outbox: owed until settled, in order, with a cursor for each sink."""

from __future__ import annotations

from stigmergy.shard.commit import Owed, Settled
from stigmergy.shard.outbox import Outbox, Pending


def owing(*sinks: str) -> Outbox:
    outbox = Outbox()
    for index, sink in enumerate(sinks):
        outbox.owe(5, index + 1, 0, Owed("Drone/a", sink, outbox.next_sequence(sink), 0, b"x"))
    return outbox


def test_semantics_3_sequences_of_a_sink_are_dense() -> None:
    outbox = owing("a", "b", "a")
    assert [(pending.sink, pending.sequence) for pending in outbox.owed()] == [("a", 1), ("a", 2), ("b", 1)]
    assert outbox.next_sequence("a") == 3
    assert outbox.next_sequence("c") == 1
    assert outbox.sent() == {"a": 2, "b": 1}
    assert outbox.count == 3


def test_semantics_3_the_cursor_is_below_what_is_still_owed() -> None:
    outbox = owing("a", "a", "a")
    assert outbox.cursor("a") == 0
    outbox.settle(Settled("a", [2]))
    assert outbox.cursor("a") == 0
    outbox.settle(Settled("a", [1, 2, 9]))
    assert outbox.cursor("a") == 2
    outbox.settle(Settled("a", [3]))
    assert outbox.cursor("a") == 3
    assert outbox.cursor("never") == 0
    outbox.settle(Settled("never", [1]))
    assert outbox.count == 0


def test_semantics_3_retention_stops_before_the_oldest_that_is_owed() -> None:
    outbox = owing("a", "b")
    assert outbox.lowest_position() == 1
    outbox.settle(Settled("a", [1]))
    assert outbox.lowest_position() == 2
    outbox.settle(Settled("b", [1]))
    assert outbox.lowest_position() is None


def test_what_later_commits_owe_can_be_told_apart() -> None:
    outbox = owing("a", "b", "a", "a")
    outbox.settle(Settled("a", [2]))
    assert [outbox.count_after(position) for position in range(5)] == [3, 2, 1, 1, 0]


def test_settling_counts_each_effect_once() -> None:
    outbox = owing("a", "a", "a", "b")
    for sequences, left in (([2], 3), ([2, 9], 3), ([1, 3], 1)):
        outbox.settle(Settled("a", sequences))
        assert outbox.count == left
    assert [pending.sink for pending in outbox.owed()] == ["b"]


def test_what_is_owed_can_be_looked_at() -> None:
    outbox = owing("a")
    assert outbox.get("a", 1) == Pending(5, 1, 0, "Drone/a", "a", 1, b"x")
    assert outbox.get("a", 2) is None
    assert outbox.get("b", 1) is None


def test_an_outbox_comes_back_from_a_snapshot() -> None:
    outbox = owing("b", "a", "a")
    outbox.settle(Settled("a", [1]))
    again = Outbox()
    again.restore(outbox.sent(), list(outbox.owed()))
    assert list(again.owed()) == list(outbox.owed())
    assert (again.count, again.cursor("a"), again.next_sequence("a")) == (2, 1, 3)
