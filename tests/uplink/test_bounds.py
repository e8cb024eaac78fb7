"""The bounds of what an uplink says: at the limit it is taken, one step past it it is refused."""

from __future__ import annotations

import random
import zlib
from typing import Any

import msgspec
import pytest

from stigmergy.agents.codec import MESSAGE_BYTES_MAX, REASON_CHARS_MAX
from stigmergy.base.errors import Malformed, TooLarge
from stigmergy.uplink.messages import (
    DIGEST_BYTES,
    ITEMS_COUNT_MAX,
    MARKS_COUNT_MAX,
    NAME_CHARS_MAX,
    OPENED_BYTES_MAX,
    PACK_FROM_BYTES,
    PACKED,
    PLAIN,
    SHARDS_MAX,
    Batch,
    Inquiry,
    Told,
    UplinkMark,
    read_told,
    read_up,
    write_message,
)

NUMBER_MAX = 2**62 - 1


def batch(**changed: Any) -> Batch:
    items = [(11, "Drone/a", b"x"), (20, "Drone/b", b"y")]
    return msgspec.structs.replace(Batch(shard=1, incarnation=2, epoch=3, after=10, upto=20, items=items), **changed)


def told(**changed: Any) -> Told:
    return msgspec.structs.replace(
        Told(receiver="north", run="r", nonce="n", marks=[UplinkMark(1, 2, 3, 4)]), **changed
    )


def test_a_message_is_packed_where_that_makes_it_smaller() -> None:
    def refusing(chars: int) -> tuple[int, bytes]:
        message = told(marks=[], refused="x" * chars)
        return len(msgspec.msgpack.encode(message)), write_message(message)

    frame_bytes = refusing(100)[0] - 100
    length, short = refusing(PACK_FROM_BYTES - 1 - frame_bytes)
    assert (length, short[:1]) == (PACK_FROM_BYTES - 1, PLAIN)
    length, long = refusing(PACK_FROM_BYTES - frame_bytes)
    assert (length, long[:1]) == (PACK_FROM_BYTES, PACKED)
    assert len(long) < length
    noise = batch(items=[(11, "Drone/a", random.Random(1).randbytes(500))])
    assert write_message(noise)[:1] == PLAIN, "noise does not become smaller"
    assert read_up(write_message(noise)) == noise


@pytest.mark.parametrize(
    ("at_the_limit", "past_it"),
    [
        (Inquiry(nonce="n" * NAME_CHARS_MAX), Inquiry(nonce="n" * (NAME_CHARS_MAX + 1))),
        (batch(digest=b"d" * DIGEST_BYTES), batch(digest=b"d" * (DIGEST_BYTES + 1))),
        (
            batch(items=[(11, "Drone/a", b"x" * MESSAGE_BYTES_MAX)]),
            batch(items=[(11, "Drone/a", b"x" * (MESSAGE_BYTES_MAX + 1))]),
        ),
        (
            batch(upto=NUMBER_MAX, items=[(20 + n, "", b"") for n in range(ITEMS_COUNT_MAX)]),
            batch(upto=NUMBER_MAX, items=[(20 + n, "", b"") for n in range(ITEMS_COUNT_MAX + 1)]),
        ),
    ],
    ids=["nonce", "digest", "event", "items"],
)
def test_what_comes_up_is_bounded(at_the_limit: Inquiry | Batch, past_it: Inquiry | Batch) -> None:
    assert read_up(write_message(at_the_limit)) == at_the_limit
    with pytest.raises(TooLarge, match="at most"):
        read_up(write_message(past_it))


@pytest.mark.parametrize(
    ("field", "one", "most"),
    [
        ("receiver", "n", NAME_CHARS_MAX),
        ("run", "n", NAME_CHARS_MAX),
        ("nonce", "n", NAME_CHARS_MAX),
        ("refused", "n", REASON_CHARS_MAX),
        ("marks", [UplinkMark(0, 0, 0, 0)], MARKS_COUNT_MAX),
    ],
)
def test_what_comes_down_is_bounded(field: str, one: Any, most: int) -> None:
    at_the_limit, past_it = told(**{field: one * most}), told(**{field: one * (most + 1)})
    assert read_told(write_message(at_the_limit)) == at_the_limit
    with pytest.raises(TooLarge, match=r"too long|marks in one answer"):
        read_told(write_message(past_it))


@pytest.mark.parametrize("field", ["shard", "incarnation", "epoch", "after"])
def test_numbers_begin_at_zero(field: str) -> None:
    assert read_up(write_message(batch(**{field: 0}))) == batch(**{field: 0})
    with pytest.raises(Malformed, match="impossible numbers"):
        read_up(write_message(batch(**{field: -1})))


@pytest.mark.parametrize(
    ("field", "last"),
    [("shard", SHARDS_MAX - 1), ("incarnation", NUMBER_MAX), ("epoch", NUMBER_MAX), ("upto", NUMBER_MAX)],
)
def test_numbers_have_an_end(field: str, last: int) -> None:
    assert read_up(write_message(batch(**{field: last}))) == batch(**{field: last})
    for beyond in (last + 1, last + 2, 2**63):
        with pytest.raises(Malformed, match=r"impossible numbers; they are below 2\*\*62"):
            read_up(write_message(batch(**{field: beyond})))


@pytest.mark.parametrize(
    "mark",
    [
        UplinkMark(-1, 0, 0, 0),
        UplinkMark(SHARDS_MAX, 0, 0, 0),
        UplinkMark(0, -1, 0, 0),
        UplinkMark(0, 0, -1, 0),
        UplinkMark(0, 0, 0, 2**62),
    ],
)
def test_marks_have_possible_numbers(mark: UplinkMark) -> None:
    last = UplinkMark(SHARDS_MAX - 1, NUMBER_MAX, NUMBER_MAX, NUMBER_MAX)
    assert read_told(write_message(told(marks=[last]))).marks == [last]
    with pytest.raises(Malformed, match="impossible numbers"):
        read_told(write_message(told(marks=[last, mark])))


@pytest.mark.parametrize(
    "fine",
    [
        batch(upto=11, items=[]),
        batch(items=[], lost="x" * REASON_CHARS_MAX),
        batch(upto=11, items=[(11, "Drone/a", b"")]),
        batch(items=[(19, "Drone/a", b""), (20, "Drone/a", b"")]),
    ],
)
def test_the_smallest_and_the_fullest_batch_is_taken(fine: Batch) -> None:
    assert read_up(write_message(fine)) == fine


@pytest.mark.parametrize("numbers", [(10,), (9,), (21,), (12, 12), (13, 12), (11, 21)])
def test_items_have_rising_numbers_within_their_batch(numbers: tuple[int, ...]) -> None:
    with pytest.raises(Malformed, match="rising numbers"):
        read_up(write_message(batch(items=[(number, "Drone/a", b"") for number in numbers])))


def test_what_is_cut_off_or_has_something_behind_it_is_refused() -> None:
    whole = write_message(batch(items=[(11, "Drone/a", b"x" * 1_000)]))
    for bad in (whole[:-1], whole[:20], whole + b"\x00"):
        with pytest.raises(Malformed, match="cut off, or has extra bytes"):
            read_up(bad)


def test_nothing_unpacks_to_more_than_its_bound() -> None:
    at_most, more = bytes(OPENED_BYTES_MAX), bytes(OPENED_BYTES_MAX + 1)
    for data in (PLAIN + at_most, PACKED + zlib.compress(at_most)):
        with pytest.raises(Malformed, match="not an uplink message"):
            read_up(data)
    for data in (PLAIN + more, PACKED + zlib.compress(more)):
        with pytest.raises(TooLarge, match="1048576"):
            read_up(data)
