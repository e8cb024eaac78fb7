"""LWWRegister and MVRegister."""

from __future__ import annotations

import pytest

from stigmergy.crdt import lww_register as register_module
from stigmergy.crdt.errors import LimitReached, WrongType
from stigmergy.crdt.lww_register import VALUE_BYTES_MAX, LWWRegister
from stigmergy.crdt.mv_register import MVRegister
from tests.crdt.replicas import Replica, exchange, pair


def test_a_register_without_a_write() -> None:
    one, _ = pair(LWWRegister[int])
    assert one.value.value is None
    assert one.value.value_or(7) == 7
    assert one.value.stamp_ns == 0
    assert repr(one.value) == "LWWRegister(None)"


def test_the_last_write_wins_and_both_are_kept_until_somebody_writes() -> None:
    one, other = pair(LWWRegister[str])
    one.write(lambda register: register.set("early"), now_ns=100)
    other.write(lambda register: register.set("late"), now_ns=200)
    exchange(one, other)
    assert one.value.value == other.value.value == "late"
    assert one.value.value_or("none") == "late"
    assert one.value.stamp_ns == 200
    assert one.store.live_count == 2
    one.write(lambda register: register.set("now"), now_ns=1)
    exchange(one, other)
    assert (other.value.value, other.value.stamp_ns, other.store.live_count) == ("now", 201, 1)


def test_of_equal_stamps_the_higher_replica_wins() -> None:
    one, other = pair(LWWRegister[str])
    one.write(lambda register: register.set("of A"), now_ns=100)
    other.write(lambda register: register.set("of B"), now_ns=100)
    exchange(one, other)
    assert one.value.value == "of B"


def test_of_very_many_writes_a_change_replaces_some_and_beats_all(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(register_module, "SEEN_COUNT_MAX", 2)
    others = [Replica(LWWRegister[str], bytes([number]) * 8) for number in range(1, 6)]
    one, _ = pair(LWWRegister[str])
    one.take(*[other.write(lambda register: register.set("other"), now_ns=500) for other in others])
    left = []
    for value in "abc":
        one.keep(one.value.set(value), now_ns=1)
        assert one.value.value == value
        left.append(one.store.live_count)
    assert left == [4, 2, 1]


def test_of_two_writes_in_one_decision_the_second_stays() -> None:
    one, _ = pair(LWWRegister[int])
    for edit in [one.value.set(1), one.value.set(2)]:
        one.keep(edit, now_ns=5)
    assert one.value.value == 2


def test_concurrent_writes_stand_side_by_side() -> None:
    one, other = pair(MVRegister[str])
    assert one.value.values == ()
    one.write(lambda register: register.set("b"))
    other.write(lambda register: register.set("a"))
    exchange(one, other)
    assert one.value.values == ("a", "b")
    assert one.value.in_conflict
    assert repr(one.value) == "MVRegister('a', 'b')"
    other.write(lambda register: register.set("c"))
    exchange(one, other)
    assert one.value.values == ("c",)
    assert not one.value.in_conflict


def test_equal_concurrent_values_are_read_once() -> None:
    one, other = pair(MVRegister[str])
    for replica in (one, other):
        replica.write(lambda register: register.set("same"))
    exchange(one, other)
    assert one.value.values == ("same",)
    assert not one.value.in_conflict


def test_values_are_of_the_type_and_bounded() -> None:
    one, _ = pair(LWWRegister[str])
    with pytest.raises(WrongType):
        one.value.set(5)
    one.write(lambda register: register.set("x" * (VALUE_BYTES_MAX - 3)))
    with pytest.raises(LimitReached):
        one.value.set("x" * (VALUE_BYTES_MAX - 2))
