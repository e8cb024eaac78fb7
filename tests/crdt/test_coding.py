"""Elements, keys and values as canonical bytes."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec import Struct

from stigmergy.crdt.coding import Coder, coder_of
from stigmergy.crdt.errors import BadDelta, LimitReached, WrongHint, WrongType


class Spot(Struct, frozen=True):
    """A place on a map."""

    y: float
    x: float


def test_equal_for_python_is_not_equal_here() -> None:
    anything = coder_of(Any)
    assert len({anything.to_bytes(1), anything.to_bytes(1.0), anything.to_bytes(True)}) == 3


@pytest.mark.parametrize(
    ("hint", "value"),
    [(str, "ä"), (int, -5), (bytes, b"\0"), (bool, True), (float, 0.5), (Spot, Spot(y=1.0, x=2.0)), (int | None, None)],
)
def test_values_come_back(hint: Any, value: Any) -> None:
    coder = coder_of(hint)
    encoded = coder.to_bytes(value)
    assert coder.from_bytes(encoded) == value
    assert coder.find(value) == encoded
    coder.check(encoded)


def test_a_value_is_brought_into_its_type() -> None:
    assert coder_of(float).to_bytes(1) == coder_of(float).to_bytes(1.0)
    assert coder_of(tuple[int, int]).to_bytes([1, 2]) == b"\x92\x01\x02"
    assert coder_of(frozenset[str]).to_bytes({"b", "a", "c"}) == b"\x93\xa1a\xa1b\xa1c"


@pytest.mark.parametrize(
    ("hint", "value"), [(str, 5), (int, True), (int, "5"), (Spot, 1), (str, object()), (str, "\ud800")]
)
def test_values_of_another_type_are_refused(hint: Any, value: Any) -> None:
    with pytest.raises(WrongType, match="is no"):
        coder_of(hint).to_bytes(value)
    assert coder_of(hint).find(value) is None


def test_values_are_bounded() -> None:
    with pytest.raises(LimitReached, match="at most 10"):
        Coder(str, 10).to_bytes("x" * 100)
    with pytest.raises(LimitReached, match="64 bits"):
        coder_of(int).to_bytes(2**64)
    assert coder_of(int).find(2**64) is None


def test_stored_bytes_of_another_type_are_said_to_be() -> None:
    with pytest.raises(WrongType, match="what is stored is no int"):
        coder_of(int).from_bytes(b"\xa1a")


@pytest.mark.parametrize("encoded", [b"", b"\xa1a", b"\xcc\x01", b"\x01\x01", b"\x91" * 5_000])
def test_only_canonical_bytes_pass(encoded: bytes) -> None:
    with pytest.raises(BadDelta):
        coder_of(int).check(encoded)
    with pytest.raises(BadDelta):
        Coder(Any, 4).check(encoded + bytes(5))


def test_deep_bytes_are_refused() -> None:
    deep = b"\x91" * 4_000 + b"\x01"
    with pytest.raises(BadDelta):
        coder_of(Any).check(deep)
    with pytest.raises(WrongType):
        coder_of(Any).from_bytes(deep)


def test_types_that_cannot_be_written_are_refused() -> None:
    with pytest.raises(WrongHint, match="cannot be shared"):
        coder_of(int | str | Spot | dict[str, int] | list[int] | tuple[int] | frozenset[int])
