"""Column batches: the bytes that a producer sends to compiled agents. docs/formats.md describes them.

    "STGB" · length of the header u4 · header (MessagePack) · zeros up to the next multiple of 8 · records

Records come last and are aligned to 8 bytes, so they can be read in place. A batch is for one shard and one kind; it
names the layout of its records and the roster of the agents' numbers.
"""

from __future__ import annotations

import msgspec
from msgspec import Struct

from stigmergy.agents.codec import NUMBERS_END, SOURCE_CHARS_MAX, UNDECODABLE, encode
from stigmergy.agents.columns import ALIGNMENT
from stigmergy.base.errors import Malformed, TooLarge

BATCH_FORMAT = 1
BATCH_MAGIC = b"STGB"
BATCH_BYTES_MAX = 1024 * 1024
HEADER_BYTES_MAX = 1024
_START_BYTES = 8


class BatchHeader(Struct, array_like=True, frozen=True):
    """Whose records these are, in which order, and how they are to be read."""

    format: int
    source: str
    incarnation: int
    epoch: int
    sequence: int
    """Of the first record; the others follow without a gap. A source counts for each shard anew."""
    lost: int
    """So many sequences right before the first will never come."""
    shard: int
    kind: str
    layout: bytes
    generation: int
    check: bytes
    count: int


class ColumnBatch(Struct, frozen=True):
    """A batch, opened. Its records are looked at by their shard, one by one."""

    header: BatchHeader
    records: bytes | memoryview
    """Where they lie in what was sent."""

    @property
    def source(self) -> str:
        """Who counts."""
        return self.header.source

    @property
    def incarnation(self) -> int:
        """Which life of the source it is."""
        return self.header.incarnation

    @property
    def sequence(self) -> int:
        """The number of the first record."""
        return self.header.sequence

    @property
    def lost(self) -> int:
        """So many numbers before it will never come."""
        return self.header.lost

    @property
    def count(self) -> int:
        """How many records there are."""
        return self.header.count


_headers = msgspec.msgpack.Decoder(BatchHeader)


def is_batch(data: object) -> bool:
    """Whether these are bytes that begin like a batch."""
    return isinstance(data, bytes | memoryview) and bytes(data[: len(BATCH_MAGIC)]) == BATCH_MAGIC


def pack_batch(header: BatchHeader, records: bytes | memoryview) -> bytes:
    """The bytes of a batch."""
    packed = encode(header)
    padding = -(_START_BYTES + len(packed)) % ALIGNMENT
    return b"".join((BATCH_MAGIC, len(packed).to_bytes(4, "little"), packed, bytes(padding), records))


def open_batch(data: bytes | memoryview) -> ColumnBatch:
    """Decodes and bounds a batch. Raises Malformed or TooLarge."""
    if len(data) > BATCH_BYTES_MAX:
        raise TooLarge(f"a batch of {len(data)} bytes, {BATCH_BYTES_MAX} at most; send fewer records in one")
    length = int.from_bytes(data[4:_START_BYTES], "little")
    if bytes(data[:4]) != BATCH_MAGIC or not 0 < length <= min(HEADER_BYTES_MAX, len(data) - _START_BYTES):
        raise Malformed("not a column batch; docs/formats.md describes its bytes")
    try:
        header = _headers.decode(data[_START_BYTES : _START_BYTES + length])
    except UNDECODABLE as error:
        raise Malformed(f"the header of a column batch does not decode ({error})") from None
    if header.format != BATCH_FORMAT:
        raise Malformed(f"column batch format {header.format}, this version reads {BATCH_FORMAT}; update this node")
    if not 0 < len(header.source) <= SOURCE_CHARS_MAX:
        raise Malformed(f"a column batch needs a source of 1 to {SOURCE_CHARS_MAX} characters")
    numbers = (header.incarnation, header.epoch, header.lost, header.shard, header.generation, header.count)
    if header.sequence < 1 or min(numbers) < 0 or max(header.sequence, *numbers) >= NUMBERS_END - BATCH_BYTES_MAX:
        raise Malformed("a column batch has a sequence from 1 upward, and its numbers are from 0 and below 2**63")
    start = _START_BYTES + length + -(_START_BYTES + length) % ALIGNMENT
    if not header.count:
        raise Malformed("a column batch without records; send at least one")
    return ColumnBatch(header, memoryview(data)[start:])
