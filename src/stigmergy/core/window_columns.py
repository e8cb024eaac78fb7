"""How the windows of a compiled agent lie in its row: a ring of entries, and a head that says where it begins.

    head    count u4 · first u4 · seen_ns i8 · dropped i8 · ahead i8
    entry   time_ns i8 · the fields of the event, where its record has them

The column of a window has a code W and its size in bytes. Its one member describes it, so that a row can be read
without the class that wrote it. Which of the slots is the first has no meaning; a slot that is in no entry neither.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any

import msgspec
from msgspec import Struct

from stigmergy.core.codec import UNDECODABLE, encode
from stigmergy.core.columns import RECORD_HEAD_BYTES, WINDOW, Column, read_columns, write_columns
from stigmergy.core.errors import JournalCorrupt, Malformed
from stigmergy.core.messages import spec_of
from stigmergy.core.windows import Shape, Window

HEAD_BYTES = 32
TIME_BYTES = RECORD_HEAD_BYTES
"""An entry has its time where a record has its head: so its fields are where those of the record are."""
_MEMBER = "window"
_head = struct.Struct("<IIqqq")
_time = struct.Struct("<q")


class WindowColumns(Struct, array_like=True, frozen=True):
    """What a window is, and how its entries lie in bytes."""

    shape: int
    span: int
    count_max: int
    by: str
    ahead_ns: int
    tag: str
    """Of its events."""
    slots: int
    """Entries that there is room for: some more than `count_max`, so that none is overwritten before it may be."""
    entry_bytes: int
    columns: list[Column]
    """Of an entry."""

    @property
    def size_bytes(self) -> int:
        """How much of a row it takes."""
        return HEAD_BYTES + self.slots * self.entry_bytes

    def column(self, name: str, offset: int) -> Column:
        """The column of a row that is this window."""
        return Column(name, f"{WINDOW}{self.size_bytes}", offset, [(_MEMBER, encode(self))])


_decoder = msgspec.msgpack.Decoder(WindowColumns)


def is_window(column: Column) -> bool:
    """Whether this column of a row is a window."""
    return column.code.startswith(WINDOW)


def window_of(column: Column) -> WindowColumns:
    """What a column says of its window. Raises JournalCorrupt."""
    return _window_of(column.code, tuple(column.members))


@lru_cache(maxsize=256)
def _window_of(code: str, members: tuple[tuple[str, bytes], ...]) -> WindowColumns:
    try:
        ((_, described),) = members
        window = _decoder.decode(described)
        Shape(window.shape)
        fits = all(_fits(one, window.entry_bytes) for one in window.columns)
    except (*UNDECODABLE, Malformed, ValueError) as error:
        raise JournalCorrupt(f"a window in a layout does not decode ({error}); restore from a copy") from None
    if not fits or not 1 <= window.count_max < window.slots or code != f"{WINDOW}{window.size_bytes}":
        raise JournalCorrupt("a window in a layout that is larger or smaller than it says; restore from a copy")
    return window


def _fits(column: Column, entry_bytes: int) -> bool:
    return not is_window(column) and TIME_BYTES <= column.offset <= entry_bytes - column.size_bytes


def read_row(columns: Sequence[Column], data: bytes, start: int = 0) -> dict[str, Any]:
    """The values of a row by name; enums by their values, windows as what they are encoded to."""
    plain = [column for column in columns if not is_window(column)]
    found = read_columns(plain, data, start)
    return {
        column.name: _read_window(column, data, start + column.offset) if is_window(column) else found[column.name]
        for column in columns
    }


def write_row(columns: Sequence[Column], fields: Mapping[str, Any], data: bytearray, what: str) -> None:
    """Puts the values of an agent in their places. Raises Malformed for what does not fit."""
    write_columns([column for column in columns if not is_window(column)], fields, data, what)
    for column in columns:
        if is_window(column):
            _write_window(column, fields[column.name], data, f"{what}.{column.name}")


def _read_window(column: Column, data: bytes, start: int) -> dict[str, Any]:
    window = window_of(column)
    count, first, seen_ns, dropped, ahead = _head.unpack_from(data, start)
    if count > window.count_max or first >= window.slots:
        raise JournalCorrupt(f"{column.name}: {count} entries from {first} on; restore from a copy")
    entries: list[Any] = []
    for number in range(first, first + count):
        at = start + HEAD_BYTES + number % window.slots * window.entry_bytes
        (time_ns,) = _time.unpack_from(data, at)
        entries.append([time_ns, {"type": window.tag, **read_columns(window.columns, data, at)}])
    plain: Window[Any] = Window(
        shape=Shape(window.shape),
        span=window.span,
        count_max=window.count_max,
        by=window.by,
        ahead_ns=window.ahead_ns,
        seen_ns=seen_ns,
        dropped=dropped,
        ahead=ahead,
    )
    return {**msgspec.to_builtins(plain), "entries": entries}


def _write_window(column: Column, window: Any, data: bytearray, what: str) -> None:
    wanted = window_of(column)
    declared = (wanted.shape, wanted.span, wanted.count_max, wanted.by, wanted.ahead_ns)
    if not isinstance(window, Window) or declared != (
        *(int(window.shape), window.span, window.count_max, window.by, window.ahead_ns),
    ):
        raise Malformed(f"{what}: not the window that the class declares; carry its entries over to that one")
    if len(window.entries) > wanted.count_max:
        raise Malformed(f"{what}: {len(window.entries)} entries, {wanted.count_max} at most; leave the oldest out")
    if window.closed or window.late or window.late_ns or window.start_ns != -1:
        raise Malformed(f"{what}: has buckets, and only a tumbling window has; leave them out")
    entry = bytearray(wanted.entry_bytes)
    start = column.offset
    try:
        counts = (window.seen_ns, window.dropped, window.ahead)
        _head.pack_into(data, start, len(window.entries), 0, *counts)
        for number, (time_ns, event) in enumerate(window.entries):
            if spec_of(type(event)).tag != wanted.tag:
                raise Malformed(f"{what}: an entry of {type(event).__name__}, and its events are {wanted.tag}")
            entry[:] = bytes(len(entry))
            _time.pack_into(entry, 0, time_ns)
            values = {one.name: getattr(event, one.name) for one in wanted.columns}
            write_columns(wanted.columns, values, entry, what)
            at = start + HEAD_BYTES + number * wanted.entry_bytes
            data[at : at + len(entry)] = entry
    except struct.error as error:
        raise Malformed(f"{what}: a number that has no place in 8 bytes ({error}); send what fits") from None
