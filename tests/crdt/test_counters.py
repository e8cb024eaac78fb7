"""GCounter and PNCounter."""

from __future__ import annotations

from typing import Any

import pytest

from stigmergy.crdt.bounds import COUNTER_MAX
from stigmergy.crdt.errors import LimitReached, WrongType
from stigmergy.crdt.gcounter import GCounter
from stigmergy.crdt.pncounter import PNCounter
from tests.crdt.replicas import A, B, exchange, pair


@pytest.mark.parametrize("hint", [GCounter, PNCounter])
def test_what_everybody_adds_adds_up(hint: Any) -> None:
    one, other = pair(hint)
    one.write(lambda counter: counter.add(2))
    one.write(lambda counter: counter.add())
    other.write(lambda counter: counter.add(40))
    exchange(one, other)
    assert one.value.value == int(other.value) == 43
    assert repr(one.value) == f"{hint.__name__}(43)"


def test_a_pn_counter_goes_below_zero() -> None:
    one, other = pair(PNCounter)
    one.write(lambda counter: counter.subtract())
    other.write(lambda counter: counter.subtract(4))
    other.write(lambda counter: counter.add(1))
    exchange(one, other)
    assert one.value.value == -4


def test_each_replica_has_one_total() -> None:
    one, other = pair(GCounter)
    for _ in range(5):
        one.write(lambda counter: counter.add(1))
        other.write(lambda counter: counter.add(1))
        exchange(one, other)
    assert sorted(one.store.dots_at(())) == [A, B]
    assert one.store.live_count == 2


def test_additions_of_one_decision_add_up() -> None:
    one, _ = pair(GCounter)
    edits = [one.value.add(2), one.value.add(3)]
    for edit in edits:
        one.keep(edit)
    assert one.value.value == 5


@pytest.mark.parametrize(("amount", "error"), [(-1, LimitReached), (COUNTER_MAX + 1, LimitReached), (1.0, WrongType)])
def test_amounts_are_whole_and_within_bounds(amount: Any, error: type[Exception]) -> None:
    for hint in (GCounter, PNCounter):
        one, _ = pair(hint)
        with pytest.raises(error):
            one.value.add(amount)
        with pytest.raises(WrongType, match="no int"):
            one.value.add(True)
