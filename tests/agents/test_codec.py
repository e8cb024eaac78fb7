"""Envelopes, tags, sizes: what is read, what is refused, and in which words."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import Struct

from stigmergy.agents.codec import (
    ENVELOPE_BYTES_MAX,
    ENVELOPE_FORMAT,
    ENVELOPE_ITEMS_MAX,
    MESSAGE_BYTES_MAX,
    Envelope,
    canonical_bytes,
    describe,
    encode,
    explain_undecodable,
    is_sound,
    keepable,
    open_envelope,
    pack_envelope,
    printable,
    tag_of,
)
from stigmergy.agents.messages import Event
from stigmergy.base.errors import Malformed, TooLarge, UnknownTag


class Went(Event):
    n: int


def envelope(**changed: Any) -> bytes:
    fields: dict[str, Any] = {"format": ENVELOPE_FORMAT, "source": "s", "incarnation": 0, "epoch": 0, "sequence": 1}
    return encode(Envelope(**{**fields, "items": [], **changed}))


def test_an_envelope_comes_back() -> None:
    data = pack_envelope(
        "gateway", [("Drone/a", Went(n=1)), ("Drone/b", Went(n=2))], sequence=7, incarnation=2, epoch=3
    )
    opened = open_envelope(data)
    assert (opened.source, opened.sequence, opened.incarnation, opened.epoch) == ("gateway", 7, 2, 3)
    assert opened.items == [("Drone/a", encode(Went(n=1))), ("Drone/b", encode(Went(n=2)))]


@pytest.mark.parametrize(
    ("data", "error", "text"),
    [
        (b"", Malformed, "not an envelope"),
        (b"\xc1", Malformed, "not an envelope"),
        (b"\x96" * 5_000, Malformed, "not an envelope"),
        (encode([1, 2]), Malformed, "docs/formats.md describes its bytes"),
        (envelope(format=0), Malformed, "envelope format 0, this version reads 1"),
        (envelope(lost=-1), Malformed, "no negative number"),
        (envelope(sequence=-1), Malformed, "a sequence from 1 upward"),
        (envelope(format=2), Malformed, "envelope format 2, this version reads 1; update this node"),
        (envelope(source=""), Malformed, "an envelope needs a source, a sequence from 1 upward"),
        (envelope(sequence=0), Malformed, "a sequence from 1 upward"),
        (envelope(epoch=-1), Malformed, "no negative number"),
        (envelope(incarnation=-1), Malformed, "no negative number"),
        (envelope(sequence=2**63 - ENVELOPE_ITEMS_MAX), Malformed, "numbers are below 2[*][*]63; count from 1"),
        (envelope(source="s" * 257), TooLarge, "a source name of 257 characters, 256 at most"),
        (envelope(items=[("", b"")] * (ENVELOPE_ITEMS_MAX + 1)), TooLarge, "10001 items, 10000 at most; send fewer"),
        (bytes(ENVELOPE_BYTES_MAX + 1), TooLarge, "1048577 bytes, 1048576 at most; send fewer items in one"),
    ],
)
def test_what_is_no_envelope(data: bytes, error: type[Exception], text: str) -> None:
    with pytest.raises(error, match=text):
        open_envelope(data)


@pytest.mark.parametrize("wrong", [2**70, object(), "half \ud800"])
def test_what_has_no_bytes_cannot_be_packed(wrong: Any) -> None:
    with pytest.raises(Malformed, match="cannot be put into an envelope"):
        pack_envelope("s", [("Drone/a", Went(n=wrong))], sequence=1)


LAST = 2**63 - ENVELOPE_ITEMS_MAX - 1


@pytest.mark.parametrize("field", ["sequence", "incarnation", "epoch"])
def test_numbers_of_an_envelope_leave_room_to_count_on(field: str) -> None:
    assert getattr(open_envelope(envelope(**{field: LAST})), field) == LAST
    with pytest.raises(Malformed, match=r"numbers are below 2\*\*63; count from 1"):
        open_envelope(envelope(**{field: LAST + 1}))


def test_an_envelope_at_its_limits_is_taken() -> None:
    least = open_envelope(envelope(sequence=1, lost=0))
    assert (least.sequence, least.incarnation, least.epoch, least.lost) == (1, 0, 0, 0)
    assert open_envelope(envelope(lost=7)).lost == 7
    assert len(open_envelope(envelope(source="s" * 256)).source) == 256
    assert len(open_envelope(envelope(items=[("", b"")] * ENVELOPE_ITEMS_MAX)).items) == ENVELOPE_ITEMS_MAX
    frame_bytes = len(envelope(items=[("", bytes(2**17))])) - 2**17
    full = envelope(items=[("", bytes(ENVELOPE_BYTES_MAX - frame_bytes))])
    assert len(full) == ENVELOPE_BYTES_MAX
    assert len(open_envelope(full).items) == 1


def test_an_envelope_is_packed_as_it_is_told() -> None:
    plain = open_envelope(pack_envelope("s", [], sequence=3))
    assert (plain.format, plain.incarnation, plain.epoch, plain.sequence, plain.lost) == (1, 0, 0, 3, 0)
    assert open_envelope(pack_envelope("s", [], sequence=3, lost=2)).lost == 2


def test_tags_are_found_without_knowing_the_type() -> None:
    assert tag_of(encode(Went(n=1))) == "Went@1"
    for noise in (b"", b"\xc1", encode(1), encode({"type": 3}), b"\x81" * 9_000):
        assert tag_of(noise) == ""
    assert tag_of(encode({"other": 1})) == ""


def test_why_a_message_does_not_decode() -> None:
    known = explain_undecodable("Drone", encode(Went(n=1)), frozenset({"Went@1"}), ValueError("why"))
    assert isinstance(known, Malformed)
    assert str(known) == "Went@1 for Drone does not decode: why"
    unknown = explain_undecodable("Drone", encode(Went(n=1)), frozenset(), ValueError("why"))
    assert isinstance(unknown, UnknownTag)
    assert str(unknown) == "Drone has no handler for Went@1; it knows no message"


def test_sound_bytes_are_whole_flat_and_not_too_many() -> None:
    assert is_sound(encode(Went(n=1)))
    assert not is_sound(encode(Went(n=1))[:-1])
    assert not is_sound(encode(Went(n=1)) + b"\x00")
    assert not is_sound(b"\x91" * 1_000 + b"\x00")
    full = encode("x" * (MESSAGE_BYTES_MAX - 3))
    assert len(full) == MESSAGE_BYTES_MAX
    assert is_sound(full)
    assert not is_sound(encode("x" * (MESSAGE_BYTES_MAX - 2)))


def test_what_is_too_large_is_not_kept() -> None:
    assert keepable(b"x" * MESSAGE_BYTES_MAX) == b"x" * MESSAGE_BYTES_MAX
    assert keepable(b"x" * (MESSAGE_BYTES_MAX + 1)) == b""


def test_an_error_is_described_up_to_its_limit() -> None:
    assert describe(ValueError("x" * 488)) == "ValueError: " + "x" * 488
    assert describe(ValueError("x" * 489)) == "ValueError: " + "x" * 488


def test_texts_are_cut_and_have_bytes() -> None:
    assert printable("abcdef", 3) == "abc"
    assert printable("a\ud800b", 9) == "a?b"
    assert printable(12, 9) == "12"


class State(Struct):
    a: float = 0.0
    b: Mapping[str, Any] = {}
    c: tuple[Any, ...] = ()


FLOATS = st.floats(allow_nan=True) | st.sampled_from([math.nan, -math.nan, 0.0, -0.0, math.inf])
VALUES = st.recursive(
    st.none() | st.integers(-(2**63), 2**64 - 1) | FLOATS | st.text() | st.binary() | st.booleans(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=3), inner, max_size=4),
    max_leaves=12,
)


@given(FLOATS, st.dictionaries(st.text(max_size=3), VALUES, max_size=5))
def test_equal_states_have_equal_bytes(number: float, mapping: dict[str, Any]) -> None:
    turned = dict(reversed(list(mapping.items())))
    assert canonical_bytes(State(number, mapping)) == canonical_bytes(State(number, turned))
    data = canonical_bytes(State(number, mapping, (number, [number])))
    again = msgspec.msgpack.decode(data, type=State)
    assert canonical_bytes(again) == data


def test_an_infinity_is_no_nan() -> None:
    assert canonical_bytes(State(math.inf)) != canonical_bytes(State(math.nan))
    assert msgspec.msgpack.decode(canonical_bytes(State(math.inf)), type=State).a == math.inf
