"""ORSet."""

from __future__ import annotations

from typing import Any

import pytest

from stigmergy.crdt.errors import LimitReached, WrongType
from stigmergy.crdt.orset import ORSet
from tests.crdt.replicas import exchange, pair


def test_a_set_holds_what_was_added_and_not_removed() -> None:
    one, other = pair(ORSet[str])
    for name in ("beta", "alpha", "z"):
        one.keep(one.value.add(name))
    exchange(one, other)
    other.write(lambda names: names.remove("beta"))
    exchange(one, other)
    assert list(one.value) == ["z", "alpha"]
    assert "alpha" in one.value
    assert "beta" not in one.value
    assert 5 not in one.value
    assert len(one.value) == 2
    assert repr(one.value) == "ORSet(['z', 'alpha'])"


def test_removing_takes_only_what_was_seen() -> None:
    one, other = pair(ORSet[str])
    one.write(lambda names: names.add("x"))
    other.write(lambda names: names.add("x"))
    one.write(lambda names: names.remove("x"))
    exchange(one, other)
    assert "x" in one.value
    one.write(lambda names: names.clear())
    exchange(one, other)
    assert len(other.value) == 0


def test_one_and_one_point_zero_and_true_are_three() -> None:
    one, _ = pair(ORSet[Any])
    for element in (1, 1.0, True):
        one.keep(one.value.add(element))
    assert [type(element) for element in one.value] == [int, bool, float]


def test_elements_are_of_the_type_and_bounded() -> None:
    one, _ = pair(ORSet[str])
    with pytest.raises(WrongType):
        one.value.add(5)
    with pytest.raises(WrongType):
        one.value.remove(5)
    with pytest.raises(LimitReached, match="at most 4096"):
        one.value.add("x" * 5_000)


def test_an_empty_set_is_false_and_cleared_without_change() -> None:
    one, _ = pair(ORSet[str])
    assert not one.value
    assert one.value.clear().changes_nothing
