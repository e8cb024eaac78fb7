"""Contexts: which changes are known."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stigmergy.crdt.causality import NOTHING, Context, Dot
from stigmergy.crdt.errors import LimitReached
from tests.crdt.replicas import A, B

RANGES = st.lists(st.tuples(st.sampled_from([A, B]), st.integers(1, 12), st.integers(0, 4)), max_size=8)


def context_of(ranges: list[tuple[bytes, int, int]]) -> tuple[Context, set[tuple[bytes, int]]]:
    """A context, and beside it the plain set of what it must know."""
    context, known = NOTHING, set()
    for replica, first, more in ranges:
        context = context.add(replica, first, first + more)
        known |= {(replica, counter) for counter in range(first, first + more + 1)}
    return context, known


@given(RANGES)
def test_it_knows_what_was_added_and_nothing_else(ranges: list[tuple[bytes, int, int]]) -> None:
    context, known = context_of(ranges)
    for replica in (A, B):
        assert {c for c in range(20) if context.has(Dot(replica, c))} == {c for r, c in known if r == replica}
        contiguous = 0
        while (replica, contiguous + 1) in known:
            contiguous += 1
        assert context.counter(replica) == contiguous
        assert (replica in context) == (contiguous > 0)
    assert context.vector() == tuple(sorted((r, context.counter(r)) for r in (A, B) if r in context))


@given(RANGES, RANGES)
def test_joined_it_knows_what_either_does(
    one_ranges: list[tuple[bytes, int, int]], other_ranges: list[tuple[bytes, int, int]]
) -> None:
    (one, one_known), (other, other_known) = context_of(one_ranges), context_of(other_ranges)
    joined, _ = context_of(one_ranges + other_ranges)
    assert one.join(other) == other.join(one) == joined
    assert hash(one.join(other)) == hash(other.join(one))
    assert joined.covers(one)
    assert joined.covers(other)
    assert one.covers(other) == (other_known <= one_known)


def test_ranges_beyond_are_kept_joined() -> None:
    context = NOTHING.add(A, 3, 4).add(A, 5, 5).add(A, 9, 9)
    assert context.beyond() == ((A, ((3, 5), (9, 9))),)
    assert context.add(A, 1, 2).vector() == ((A, 5),)
    assert context.add(A, 1, 8).beyond() == ()


def test_gaps_are_bounded() -> None:
    context = NOTHING
    for number in range(1_024):
        context = context.add(A, 2 * number + 2, 2 * number + 2)
    with pytest.raises(LimitReached, match="1024 gaps"):
        context.add(A, 5_000, 5_000)
    assert context.add(A, 1, 1).counter(A) == 2


def test_what_has_no_changes_is_not_named() -> None:
    assert Context.of([(A, 0), (B, 2)]) == NOTHING.add(B, 1, 2)
    assert NOTHING != "nothing"
    assert NOTHING.add(A, 1, 2).add(A, 2, 2).counter(A) == 2


def test_it_shows_what_it_knows() -> None:
    assert repr(NOTHING.add(A, 1, 2)) == "Context(4141414141414141: 2)"
    assert repr(NOTHING.add(A, 2, 2)) == "Context(, and beyond)"
