"""Column batches: what is packed comes back, and what is none is refused with a reason."""

from __future__ import annotations

import re
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import structs

from stigmergy.agents.codec import NUMBERS_END, Envelope, encode
from stigmergy.base.errors import Malformed, TooLarge
from stigmergy.shard.batches import BATCH_BYTES_MAX, BatchHeader, is_batch, open_batch, pack_batch
from stigmergy.shard.inputs import Delivery

HEADER = BatchHeader(1, "radio/7", 3, 2, 1_000, 4, 1, "Meter", b"l" * 16, 5, b"c" * 8, 2)


@given(st.text(min_size=1, max_size=30), st.binary(max_size=200), st.booleans())
def test_what_is_packed_comes_back(source: str, records: bytes, viewed: bool) -> None:
    header = structs.replace(HEADER, source=source)
    packed = pack_batch(header, records)
    assert (len(packed) - len(records)) % 8 == 0, "records lie at a multiple of 8"
    batch = open_batch(memoryview(packed) if viewed else packed)
    assert (batch.header, batch.records) == (header, records)
    assert (batch.source, batch.incarnation, batch.sequence, batch.lost, batch.count) == (source, 3, 1_000, 4, 2)
    assert is_batch(packed)
    assert is_batch(memoryview(packed))


def test_envelopes_and_batches_are_counted_alike() -> None:
    envelope = Envelope(1, "s", 0, 0, 1, [("Meter/a", b""), ("Meter/b", b"")])
    assert (envelope.count, envelope.lost) == (2, 0)
    assert Delivery("s", envelope.items).length == 2


def test_what_begins_otherwise_is_no_batch() -> None:
    for other in (b"", b"STG", b"STGX" + bytes(100), "STGB", None):
        assert not is_batch(other)


@pytest.mark.parametrize(
    ("data", "error", "text"),
    [
        (b"", Malformed, "not a column batch; docs/formats.md describes its bytes"),
        (b"STGB", Malformed, "not a column batch"),
        (b"STGB" + bytes(8), Malformed, "not a column batch"),
        (b"STGX" + pack_batch(HEADER, b"")[4:], Malformed, "not a column batch"),
        (b"STGB" + (1_025).to_bytes(4, "little") + bytes(2_000), Malformed, "not a column batch"),
        (pack_batch(HEADER, b"")[:20], Malformed, "not a column batch"),
        (b"STGB" + b"\x01\0\0\0\xc1" + bytes(20), Malformed, "the header of a column batch does not decode"),
        (bytes(BATCH_BYTES_MAX + 1), TooLarge, "a batch of 1048577 bytes, 1048576 at most; send fewer records in one"),
    ],
)
def test_what_is_no_batch(data: bytes, error: type[Exception], text: str) -> None:
    with pytest.raises(error, match=re.escape(text)):
        open_batch(data)


@pytest.mark.parametrize(
    ("changed", "text"),
    [
        ({"format": 2}, "column batch format 2, this version reads 1; update this node"),
        ({"source": ""}, "a column batch needs a source of 1 to 256 characters"),
        ({"source": "s" * 257}, "a column batch needs a source of 1 to 256 characters"),
        ({"sequence": 0}, "a column batch has a sequence from 1 upward"),
        *(
            ({name: -1}, "numbers are from 0")
            for name in ("incarnation", "epoch", "lost", "shard", "generation", "count")
        ),
        ({"sequence": NUMBERS_END - BATCH_BYTES_MAX}, "below 2**63"),
        ({"count": 0}, "a column batch without records; send at least one"),
    ],
)
def test_headers_that_cannot_be(changed: dict[str, Any], text: str) -> None:
    with pytest.raises(Malformed, match=re.escape(text)):
        open_batch(pack_batch(structs.replace(HEADER, **changed), bytes(16)))


def test_the_longest_header_there_is() -> None:
    header = structs.replace(HEADER, source="ü" * 256, kind="k" * 64, sequence=2**62, epoch=2**62, incarnation=2**62)
    assert open_batch(pack_batch(header, b"x")).header == header
    assert len(encode(header)) < 1_024
