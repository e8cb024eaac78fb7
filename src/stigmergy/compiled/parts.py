"""Parts of a snapshot: rows and names of a table, compressed, each saying what it is. No numba.

Rows are turned round before they are compressed: the first bytes of all rows, then the second ones, and so on. What a
number leaves unused, its sign and its exponent are then long runs that shrink to little, and the noise in the last
digits of measured values stands apart and is stored as it is: to try to compress it would take most of the time.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterator, Sequence
from typing import Any

import msgspec
import numpy as np
from blake3 import blake3
from msgspec import Struct
from numpy.typing import NDArray

from stigmergy.compiled.rows import Bytes
from stigmergy.core.codec import UNDECODABLE, encode
from stigmergy.core.columns import CHECK_BYTES, ENUM, Column, Layout
from stigmergy.core.errors import JournalCorrupt
from stigmergy.core.window_columns import HEAD_BYTES, is_window, window_of

PART_FORMAT = 1
ROWS_BYTES = 1024 * 1024
"""Of one part, before they are compressed: a few milliseconds of work."""
NAMES_BYTES = 1024 * 1024
PART_BYTES_MAX = 64 * 1024 * 1024
"""What a part may become when it is read."""
SAMPLE_COUNT = 1024
DIGEST_BYTES = 16
_CONTEXT = "stigmergy 2026 rows of a table"
_NOISY = 0.75
"""Bytes of which a sample has more different values than this share of what chance would give are left as they are."""

Run = tuple[int, int]
"""Rows that lie one behind the other: the number of the first, and how many."""
Identity = tuple[int, bytes, bytes]
"""Of rows: the version of the agent class, and what stands for their columns and for the first state."""


class RowsPart(Struct, array_like=True, frozen=True, tag="rows"):
    """Some rows."""

    format: int
    version: int
    """Of the agent class."""
    columns: bytes
    """Stands for how the row lies in bytes."""
    start: bytes
    """Stands for the row of an agent in its first state: another one means that the class has changed."""
    runs: list[Run]
    noisy: bytes
    """For each byte of a row whether it is among those that are stored as they are."""
    squeezed: bytes
    plain: bytes


class NamesPart(Struct, array_like=True, frozen=True, tag="names"):
    """Some names, and the enrolments that end among them."""

    format: int
    first: int
    count: int
    names: bytes
    """Compressed, each followed by a zero byte."""
    generation: int
    """How many enrolments there were before these."""
    counts: bytes
    """Of each enrolment how many agents there were then: little-endian u4, compressed."""
    checks: bytes


Part = RowsPart | NamesPart
_decoder = msgspec.msgpack.Decoder(Part)


def read_part(body: bytes) -> Part:
    """Decodes a part; what is in it is checked when it is taken. Raises JournalCorrupt."""
    try:
        part: Part = _decoder.decode(body)
    except UNDECODABLE as error:
        raise _corrupt(f"does not decode ({error})") from None
    if part.format != PART_FORMAT:
        raise _corrupt(f"has format {part.format}, and this version reads {PART_FORMAT}")
    return part


def columns_digest(layout: Layout) -> bytes:
    """Stands for how the rows of a kind lie in bytes."""
    described = (layout.kind, layout.row_bytes, layout.columns)
    return blake3(encode(described), derive_key_context=_CONTEXT).digest(length=DIGEST_BYTES)


def start_digest(first_row: bytes) -> bytes:
    """Stands for the first state of an agent."""
    return blake3(first_row, derive_key_context=_CONTEXT).digest(length=DIGEST_BYTES)


class Columns:
    """The columns of rows as numpy sees them: to have equal bytes for equal states, and to check what was read."""

    def __init__(self, layout: Layout) -> None:
        self.width = layout.row_bytes
        self._floats = _dtype(layout, [column for column in layout.columns if column.code == "f8"])
        narrow = [column for column in layout.columns if column.code in (ENUM, "b1")]
        self._narrow = _dtype(layout, narrow)
        self._limits = {column.name: _limit(column) for column in narrow}
        self._windows = [
            (column.offset, column.size_bytes, window_of(column)) for column in layout.columns if is_window(column)
        ]

    def canonical(self, rows: Bytes) -> Bytes:
        """These rows, or a copy of them, such that equal states have equal bytes: every NaN is the same NaN, and the
        entries of windows begin in their first slot, with zeros behind them."""
        if self._windows:
            rows = rows.copy()
        for head, entries in self._rings(rows):
            slots = np.arange(entries.shape[1], dtype=np.int64)
            counts, firsts = head[:, :1], head[:, 1:]
            places = (firsts + slots) % len(slots)
            entries[:] = np.take_along_axis(entries, places[:, :, None], 1)
            entries[slots >= counts] = 0
            firsts[:] = 0
        for name in self._floats.names or ():
            strange = np.isnan(_field(rows, self._floats, name))
            if strange.any():
                rows = rows.copy()
                _field(rows, self._floats, name)[strange] = np.nan
        return rows

    def check(self, rows: Bytes) -> None:
        """Raises JournalCorrupt for an enum or boolean that is none: code would look up what is not there."""
        for name, limit in self._limits.items():
            if (_field(rows, self._narrow, name) >= limit).any():
                raise _corrupt(f"has values of {name} that it cannot have")
        for (_, _, window), (head, entries) in zip(self._windows, self._rings(rows), strict=True):
            if (head[:, 0] > window.count_max).any() or (head[:, 1] >= window.slots).any():
                raise _corrupt("has windows with more entries than they can have")
            for column in window.columns:
                if column.code in (ENUM, "b1"):
                    taken = entries[:, :, column.offset : column.offset + column.size_bytes]
                    values = np.ascontiguousarray(taken).view("<u2" if column.code == ENUM else "u1")
                    if (values >= _limit(column)).any():
                        raise _corrupt(f"has entries with values of {column.name} that it cannot have")

    def _rings(self, rows: Bytes) -> Iterator[tuple[NDArray[np.uint32], Bytes]]:
        """Of each window the counts and first slots of all rows, and the bytes of all slots."""
        table = rows.reshape(-1, self.width)
        for offset, size, window in self._windows:
            head = table[:, offset : offset + 8].view(np.uint32)
            ring = table[:, offset + HEAD_BYTES : offset + size]
            # A view, as all of this is: what is written here is written into the rows.
            shape = (len(table), window.slots, window.entry_bytes)
            strides = (table.strides[0], window.entry_bytes, 1)
            yield head, np.lib.stride_tricks.as_strided(ring, shape, strides)


def rows_part(columns: Columns, identity: Identity, runs: list[Run], rows: Bytes) -> bytes:
    """A part of these rows, which lie one behind the other."""
    version, layout, start = identity
    count = sum(length for _, length in runs)
    table = columns.canonical(rows).reshape(count, columns.width)
    planes = np.ascontiguousarray(table.T)
    noisy = np.fromiter((_is_noisy(plane) for plane in planes), np.uint8, columns.width)
    return encode(
        RowsPart(
            format=PART_FORMAT,
            version=version,
            columns=layout,
            start=start,
            runs=runs,
            noisy=noisy.tobytes(),
            squeezed=zlib.compress(planes[noisy == 0].tobytes(), 1),
            plain=planes[noisy == 1].tobytes(),
        )
    )


def read_rows(part: RowsPart, layout: Layout, rows_count: int) -> Bytes:
    """The rows of a part, of a table that has so many. Raises JournalCorrupt for nonsense."""
    width = layout.row_bytes
    if part.columns != columns_digest(layout) or len(part.noisy) != width:
        raise _corrupt("has rows of another layout than it says")
    if any(first < 0 or count < 1 or first + count > rows_count for first, count in part.runs):
        raise _corrupt("has rows of agents that are not there")
    count = sum(length for _, length in part.runs)
    noisy = np.frombuffer(part.noisy, np.uint8)
    noisy_count = int(np.count_nonzero(noisy))
    squeezed = _decompress(part.squeezed, (width - noisy_count) * count)
    if count * width > PART_BYTES_MAX or len(part.plain) != noisy_count * count or noisy.max(initial=0) > 1:
        raise _corrupt("has not as many rows as it says")
    planes = np.empty((width, count), np.uint8)
    planes[noisy == 0] = np.frombuffer(squeezed, np.uint8).reshape(width - noisy_count, count)
    planes[noisy == 1] = np.frombuffer(part.plain, np.uint8).reshape(noisy_count, count)
    return np.ascontiguousarray(planes.T).reshape(-1)


def names_part(first: int, count: int, names: bytes, generation: int, counts: bytes, checks: bytes) -> bytes:
    """A part of these names."""
    made = NamesPart(PART_FORMAT, first, count, zlib.compress(names, 1), generation, zlib.compress(counts, 1), checks)
    return encode(made)


def read_names(part: NamesPart, known: int, generation: int) -> tuple[bytes, list[int]]:
    """The names of a part and the counts of its enrolments; so many of both are known. Raises JournalCorrupt."""
    if (part.first, part.generation) != (known, generation):
        raise _corrupt(f"has agents from number {part.first} on, and {known} are there")
    generations = len(part.checks) // CHECK_BYTES
    names = _decompress(part.names, None)
    try:
        names.decode()
    except UnicodeDecodeError as error:
        raise _corrupt(f"has names that are no text ({error})") from None
    counts: list[int] = np.frombuffer(_decompress(part.counts, 4 * generations), "<u4").tolist()
    in_order = all(a <= b for a, b in zip([known, *counts], [*counts, known + part.count], strict=True))
    if len(part.checks) % CHECK_BYTES or names.count(0) != part.count or names[-1:] not in (b"", b"\0") or not in_order:
        raise _corrupt("has names and enrolments that do not go together")
    return names, counts


def _corrupt(what: str) -> JournalCorrupt:
    return JournalCorrupt(f"a part of a snapshot {what}; an older one is used")


def _decompress(body: bytes, size: int | None) -> bytes:
    engine = zlib.decompressobj()
    try:
        data = engine.decompress(body, PART_BYTES_MAX if size is None else min(size + 1, PART_BYTES_MAX))
    except zlib.error as error:
        raise _corrupt(f"does not decompress ({error})") from None
    if not engine.eof or engine.unused_data or (size is not None and len(data) != size):
        raise _corrupt("is cut or larger than it may be")
    return data


def _is_noisy(plane: Bytes) -> bool:
    """Whether the bytes look like chance."""
    sample = plane[:: len(plane) // SAMPLE_COUNT or 1]
    different = np.count_nonzero(np.bincount(sample, minlength=256))
    by_chance = 256 * (1 - np.exp(-len(sample) / 256))
    return len(sample) >= 64 and bool(different > _NOISY * by_chance)


def _limit(column: Column) -> int:
    """Of an enum or boolean: all values are below."""
    return len(column.members) if column.code == ENUM else 2


def _dtype(layout: Layout, columns: Sequence[Column]) -> np.dtype[Any]:
    shapes = {"f8": "<f8", ENUM: "<u2", "b1": "u1"}
    return np.dtype(
        {
            "names": [column.name for column in columns],
            "formats": [shapes[column.code] for column in columns],
            "offsets": [column.offset for column in columns],
            "itemsize": max(layout.row_bytes, 1),
        }
    )


def _field(rows: Bytes, dtype: np.dtype[Any], name: str) -> NDArray[Any]:
    field: NDArray[Any] = rows.view(dtype)[name]
    return field
