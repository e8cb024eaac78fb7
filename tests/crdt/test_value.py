"""What all shared types have in common."""

from __future__ import annotations

from typing import Any

import pytest

from stigmergy.crdt.causality import Dot
from stigmergy.crdt.delta import Delta
from stigmergy.crdt.errors import BadDelta, BadStore, WrongHint
from stigmergy.crdt.flags import DisableWinsFlag, EnableWinsFlag
from stigmergy.crdt.gcounter import GCounter
from stigmergy.crdt.lww_register import LWWRegister
from stigmergy.crdt.mv_register import MVRegister
from stigmergy.crdt.ormap import ORMap
from stigmergy.crdt.orset import ORSet
from stigmergy.crdt.payloads import stamped, total_payload, unstamped_payload, value_payload
from stigmergy.crdt.pncounter import PNCounter
from stigmergy.crdt.replicated import ReplicatedType
from stigmergy.crdt.store import EMPTY
from stigmergy.crdt.value import SharedValue
from tests.crdt.replicas import A, B, exchange, hand_made, pair

HINTS: tuple[Any, ...] = (
    GCounter,
    PNCounter,
    LWWRegister[int],
    MVRegister[int],
    EnableWinsFlag,
    DisableWinsFlag,
    ORSet[str],
    ORSet,
    ORMap[str, ORSet[int]],
    ORMap[str, ORMap[int, GCounter]],
)
FIVE = unstamped_payload(b"\x05")


@pytest.mark.parametrize("hint", HINTS)
def test_what_is_stored_comes_back(hint: Any) -> None:
    value = SharedValue.empty(hint, "field")
    assert SharedValue.from_plain(hint, value.to_plain()) == value
    assert type(value) is type(SharedValue.from_plain(hint, value.to_plain()))
    with pytest.raises(BadStore):
        SharedValue.from_plain(hint, ("field", b"nothing"))


def test_values_are_equal_by_what_they_know_and_are() -> None:
    one, other = pair(ORSet[str])
    one.write(lambda names: names.add("x"))
    assert one.value != other.value
    exchange(one, other)
    assert one.value == other.value
    assert one.value != SharedValue.empty(ORSet[int], "field").with_store(one.store)
    assert one.value != "x"
    with pytest.raises(TypeError):
        hash(one.value)


@pytest.mark.parametrize(
    ("hint", "why"),
    [
        (int, "cannot be shared"),
        (SharedValue, "cannot be shared"),
        (set[str], "cannot be shared"),
        (ORMap[str, Any], "cannot be shared"),
        (ORMap, "cannot be shared"),
        (ORSet[complex], "complex"),
        (ORMap[str, ORSet[complex]], "complex"),
        ("ORSet[str]", "cannot be shared"),
    ],
)
def test_other_types_cannot_be_shared(hint: Any, why: str) -> None:
    with pytest.raises(WrongHint, match=why):
        SharedValue.empty(hint, "field")


def test_maps_nest_to_a_depth() -> None:
    hint: Any = GCounter
    for _ in range(8):
        hint = ORMap[str, hint]
    value: Any = SharedValue.empty(hint, "field")
    for key in "abcdefgh":
        value = value[key]
    assert value.value == 0
    with pytest.raises(WrongHint, match="deeper than 8"):
        SharedValue.empty(ORMap[str, hint], "field")


GOOD: list[tuple[Any, Delta]] = [
    (GCounter, hand_made(added=(((), 1, total_payload(5)),))),
    (PNCounter, hand_made(added=(((), 1, total_payload(-5)),))),
    (LWWRegister[int], hand_made(added=(((), 1, stamped(FIVE, 5)),))),
    (MVRegister[int], hand_made(added=(((), 1, value_payload(b"\x05")),))),
    (EnableWinsFlag, hand_made(added=(((), 1, b""),), removed=(((), (Dot(B, 1),)),))),
    (DisableWinsFlag, hand_made(added=(((), 1, value_payload(b"\xc2")),))),
    (ORSet[str], hand_made(added=(((b"\xa1x",), 1, b""),))),
    (ORMap[str, ORSet[int]], hand_made(added=(((b"\xa1x", b"\x05"), 1, b""),))),
    (ORMap[str, ORSet[int]], hand_made(removed=(((b"\xa1x", b"\x05"), (Dot(A, 1),)),))),
]
BAD: list[tuple[Any, Delta]] = [
    (GCounter, hand_made(added=(((), 1, total_payload(-5)),))),
    (GCounter, hand_made(added=(((), 1, b""),))),
    (GCounter, hand_made(added=(((), 1, value_payload(b"\x05")),))),
    (GCounter, hand_made(added=(((b"\x05",), 1, total_payload(5)),))),
    (PNCounter, hand_made(added=(((), 1, b""),))),
    (PNCounter, hand_made(added=(((), 1, value_payload(b"\x05")),))),
    (LWWRegister[int], hand_made(added=(((), 1, value_payload(b"\x05")),))),
    (LWWRegister[int], hand_made(added=(((), 1, b""),))),
    (LWWRegister[str], hand_made(added=(((), 1, stamped(FIVE, 5)),))),
    (MVRegister[int], hand_made(added=(((), 1, stamped(FIVE, 5)),))),
    (MVRegister[int], hand_made(added=(((), 1, b""),))),
    (MVRegister[str], hand_made(added=(((), 1, value_payload(b"\x05")),))),
    (EnableWinsFlag, hand_made(added=(((), 1, value_payload(b"\xc2")),))),
    (DisableWinsFlag, hand_made(added=(((), 1, b""),))),
    (ORSet[str], hand_made(added=(((b"\x05",), 1, b""),))),
    (ORSet[str], hand_made(added=(((), 1, b""),))),
    (ORSet[str], hand_made(added=(((b"\xa1x",), 1, total_payload(1)),))),
    (ORSet[str], hand_made(removed=(((b"\xd9\x01x",), (Dot(B, 1),)),))),
    (ORMap[str, ORSet[int]], hand_made(added=(((), 1, b""),))),
    (ORMap[str, ORSet[int]], hand_made(added=(((b"\xa1x",), 1, b""),))),
    (ORMap[str, ORSet[int]], hand_made(added=(((b"\x05", b"\x05"), 1, b""),))),
    (ORMap[str, ORSet[int]], hand_made(added=(((b"\xa1x", b"\xa1x"), 1, b""),))),
    (ORMap[str, ORSet[int]], hand_made(added=(((b"\xa1x", b"\x05", b"\x05"), 1, b""),))),
    (ORMap[str, GCounter], hand_made(added=(((b"\xa1x",), 1, b""),))),
]


@pytest.mark.parametrize(("hint", "delta"), GOOD)
def test_what_fits_the_declared_types_passes(hint: Any, delta: Delta) -> None:
    value = SharedValue.empty(hint, "field")
    value.check(delta)
    store = EMPTY.apply(hand_made(replica=B))  # whose first change some of them remove
    value.check_store(store.apply(delta))


@pytest.mark.parametrize(("hint", "delta"), BAD)
def test_what_does_not_fit_the_declared_types_is_refused(hint: Any, delta: Delta) -> None:
    with pytest.raises(BadDelta):
        SharedValue.empty(hint, "field").check(delta)
    if delta.added:
        with pytest.raises(BadDelta):
            SharedValue.empty(hint, "field").check_store(EMPTY.apply(delta))


def test_a_type_says_what_it_writes() -> None:
    with pytest.raises(NotImplementedError):
        SharedValue(None, "field").check(hand_made(added=(((), 1, b""),)))


def test_the_root_of_shared_types_stores_nothing_by_itself() -> None:
    with pytest.raises(NotImplementedError):
        ReplicatedType().to_plain()
    with pytest.raises(NotImplementedError):
        ReplicatedType.from_plain(ReplicatedType, ("field", b""))
