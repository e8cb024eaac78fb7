"""Marks: nothing is consumed twice, a gap is not passed over, an owner who was replaced is refused."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stigmergy.agents.effects import shard_sink
from stigmergy.base.errors import Overloaded, SequenceGap, StaleEpoch
from stigmergy.shard.commit import MarkMoved
from stigmergy.shard.marks import Marks


def at(sequence: int, epoch: int = 0, incarnation: int = 0) -> Marks:
    marks = Marks()
    marks.move(MarkMoved("s", incarnation, epoch, sequence))
    return marks


def test_semantics_2_a_source_starts_at_one() -> None:
    marks = Marks()
    assert marks.consumed("s", 0) == 0
    assert marks.epoch("s", 0) == 0
    assert marks.admit("s", 0, 0, 1) == 0


def test_a_source_that_is_known_has_room_also_where_no_other_has() -> None:
    marks = Marks(sources_count_max=1)
    assert marks.has_room("s", 0)
    assert not marks.knows("s", 0)
    marks.move(MarkMoved("s", 0, 0, 5))
    assert marks.knows("s", 0)
    assert marks.has_room("s", 0)
    assert not marks.knows("s", 1)
    assert not marks.has_room("s", 1)


def test_semantics_2_what_was_consumed_is_passed_over() -> None:
    assert at(5).admit("s", 0, 0, 6) == 0
    assert at(5).admit("s", 0, 0, 3) == 3


def test_semantics_2_a_gap_waits() -> None:
    with pytest.raises(SequenceGap, match="source 's': expected sequence 6, got 8; send what lies between, or declare"):
        at(5).admit("s", 0, 0, 8)
    with pytest.raises(SequenceGap, match="expected sequence 6, got 7"):
        at(5).admit("s", 0, 0, 7)
    with pytest.raises(SequenceGap, match="expected sequence 1, got 2"):
        Marks().admit("s", 0, 0, 2)


def test_semantics_2_a_new_incarnation_counts_anew() -> None:
    assert at(5).admit("s", 1, 0, 1) == 0
    assert at(5).consumed("s", 1) == 0


def test_semantics_4_a_lower_epoch_is_refused() -> None:
    marks = at(5, epoch=3)
    assert marks.epoch("s", 0) == 3
    with pytest.raises(StaleEpoch, match="epoch 2 is over, 3 has begun; stop, another owner has taken over"):
        marks.admit("s", 0, 2, 6)
    assert marks.admit("s", 0, 3, 6) == 0
    assert marks.admit("s", 0, 4, 6) == 0


def test_a_mark_never_goes_back() -> None:
    marks = at(5, epoch=3)
    marks.move(MarkMoved("s", 0, 1, 2))
    assert (marks.consumed("s", 0), marks.epoch("s", 0)) == (5, 3)
    marks.move(MarkMoved("s", 0, 2, 7))
    assert (marks.consumed("s", 0), marks.epoch("s", 0)) == (7, 3)
    marks.move(MarkMoved("s", 0, 4, 6))
    assert (marks.consumed("s", 0), marks.epoch("s", 0)) == (7, 4)


@given(st.integers(0, 50), st.integers(1, 60))
def test_what_is_due_follows_what_was_consumed(consumed: int, sequence: int) -> None:
    marks = at(consumed)
    if sequence > consumed + 1:
        with pytest.raises(SequenceGap):
            marks.admit("s", 0, 0, sequence)
    else:
        assert sequence + marks.admit("s", 0, 0, sequence) == consumed + 1


def test_sources_are_bounded() -> None:
    marks = Marks(sources_count_max=1)
    marks.move(MarkMoved("s", 0, 0, 1))
    assert marks.admit("s", 0, 0, 2) == 0
    with pytest.raises(Overloaded, match="source 't': 1 sources are known already; raise sources_count_max"):
        marks.admit("t", 0, 0, 1)
    marks.move(MarkMoved("t", 0, 0, 1))
    with pytest.raises(Overloaded):
        marks.admit("u", 0, 0, 1)
    assert Marks(sources_count_max=300).admit("s", 0, 0, 1) == 0


def test_our_own_shards_are_never_one_source_too_many() -> None:
    marks = Marks(sources_count_max=1)
    marks.move(MarkMoved("s", 0, 0, 1))
    assert marks.admit(shard_sink(3), 0, 1, 1) == 0
    with pytest.raises(Overloaded):
        marks.admit("shards", 0, 0, 1)


def test_all_marks_come_in_a_fixed_order() -> None:
    marks = Marks()
    for source, incarnation in (("b", 0), ("a", 1), ("a", 0)):
        marks.move(MarkMoved(source, incarnation, 0, 1))
    assert [(mark.source, mark.incarnation) for mark in marks.all()] == [("a", 0), ("a", 1), ("b", 0)]
