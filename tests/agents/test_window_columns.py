"""Windows in rows: what is written is read again, rings begin anywhere, and nonsense is refused."""

from __future__ import annotations

import enum
import struct
from typing import Any

import msgspec
import pytest
from msgspec.structs import replace

from stigmergy.agents.codec import canonical_bytes, encode
from stigmergy.agents.columns import LAYOUT_FORMAT, ROW_BYTES_MAX, Column, Form, Layout, read_layout
from stigmergy.agents.messages import SECOND_NS, Event, spec_of
from stigmergy.agents.windows import HEAD_BYTES, Shape, Window, WindowColumns, is_window, read_row, window_of, write_row
from stigmergy.base.errors import JournalCorrupt, Malformed


class Mode(enum.Enum):
    IDLE = "idle"
    BUSY = "busy"


class Told(Event):
    value: float
    mode: Mode = Mode.IDLE


class Other(Event):
    value: float
    mode: Mode = Mode.IDLE


MEMBERS = [(member.name, encode(member)) for member in Mode]
LIES = WindowColumns(
    shape=int(Shape.SLIDING),
    span=5 * SECOND_NS,
    count_max=3,
    by="value",
    ahead_ns=SECOND_NS,
    tag=spec_of(Told).tag,
    slots=4,
    entry_bytes=24,
    columns=[Column("value", "f8", 8), Column("mode", "e2", 16, MEMBERS)],
)
COLUMNS = [Column("count", "i8", 0), LIES.column("recent", 8)]
ROW_BYTES = 8 + LIES.size_bytes
FIRST: Window[Told] = Window.sliding(seconds=5, by="value", ahead_s=1, count_max=3)


def filled(*values: float) -> Window[Told]:
    window = FIRST
    for value in values:
        window = window.add(100 * SECOND_NS, Told(value=value, mode=Mode.BUSY))
    return window


def row_of(window: Any) -> bytes:
    data = bytearray(ROW_BYTES)
    write_row(COLUMNS, {"count": 7, "recent": window}, data, "Watch")
    return bytes(data)


def window_in(row: bytes) -> Window[Told]:
    return msgspec.convert(read_row(COLUMNS, row)["recent"], Window[Told])


@pytest.mark.parametrize("values", [(), (97.0,), (97.0, 98.0, 99.0, 96.0, 300.0)])
def test_a_window_is_read_as_it_was_written(values: tuple[float, ...]) -> None:
    window = filled(*values)
    assert canonical_bytes(window_in(row_of(window))) == canonical_bytes(window)
    assert read_row(COLUMNS, b"\0" * 3 + row_of(window), 3) == read_row(COLUMNS, row_of(window))
    assert read_row(COLUMNS, row_of(window))["count"] == 7
    assert (window.dropped, window.ahead) == ((1, 1) if len(values) > 1 else (0, 0))


def test_a_ring_may_begin_anywhere() -> None:
    window = filled(97.0, 98.0, 99.0)
    row = row_of(window)
    ring = row[8 + HEAD_BYTES :]
    for first in range(4):
        slots = [ring[24 * number :][:24] for number in range(4)]
        turned = b"".join(slots[(number - first) % 4] for number in range(4))
        moved = row[:12] + struct.pack("<I", first) + row[16 : 8 + HEAD_BYTES] + turned
        assert window_in(moved) == window


@pytest.mark.parametrize(("count", "first"), [(4, 0), (0, 4), (2**32 - 1, 0)])
def test_a_ring_that_cannot_be_is_refused(count: int, first: int) -> None:
    with pytest.raises(JournalCorrupt, match=r"recent: .* entries from"):
        read_row(COLUMNS, bytes(8) + struct.pack("<II", count, first) + bytes(ROW_BYTES))


@pytest.mark.parametrize(
    ("window", "says"),
    [
        (None, "not the window that the class declares"),
        (Window.last(3), "not the window that the class declares"),
        (replace(FIRST, span=1), "not the window that the class declares"),
        (replace(FIRST, entries=((1, Told(1.0)),) * 4), "4 entries, 3 at most"),
        (replace(FIRST, closed=((1, Told(1.0)),)), "has buckets"),
        (replace(FIRST, late=1), "has buckets"),
        (replace(FIRST, late_ns=1), "has buckets"),
        (replace(FIRST, start_ns=0), "has buckets"),
        (replace(FIRST, entries=((1, Other(1.0)),)), r"an entry of Other, and its events are Told@1"),
        (replace(FIRST, entries=((2**63, Told(1.0)),)), "a number that has no place in 8 bytes"),
        (replace(FIRST, dropped=2**63), "a number that has no place in 8 bytes"),
        (replace(FIRST, entries=((1, Told("x")),)), r"Watch.recent.value: 'x' does not fit"),  # type: ignore[arg-type]
    ],
)
def test_a_window_that_has_no_place_is_refused(window: Any, says: str) -> None:
    with pytest.raises(Malformed, match=says):
        row_of(window)


def test_a_layout_tells_all_that_is_needed() -> None:
    layout = Layout(LAYOUT_FORMAT, "Watch", 24, [Form("Told@1", LIES.columns)], ROW_BYTES, COLUMNS)
    read = read_layout(encode(layout))
    assert read == layout
    assert [is_window(column) for column in read.columns] == [False, True]
    assert window_of(read.columns[1]) == LIES


def test_a_record_has_no_window() -> None:
    layout = Layout(LAYOUT_FORMAT, "Watch", 512, [Form("Told@1", [LIES.column("recent", 8)])], 0, [])
    with pytest.raises(JournalCorrupt, match="column recent is a window, which a record has not"):
        read_layout(encode(layout))


@pytest.mark.parametrize("code", ["W", "W0", f"W{ROW_BYTES_MAX + 1}", "W-1", "W²"])
def test_a_size_that_no_window_has(code: str) -> None:
    with pytest.raises(JournalCorrupt, match="is no way to store a value"):
        read_layout(encode(Layout(LAYOUT_FORMAT, "Watch", 8, [], ROW_BYTES_MAX, [Column("recent", code, 0)])))


@pytest.mark.parametrize(
    ("column", "says"),
    [
        (Column("recent", "W128", 0), "does not decode"),
        (Column("recent", "W128", 0, [("window", b"\xc1")]), "does not decode"),
        (replace(LIES, shape=9).column("recent", 0), "does not decode"),
        (Column("recent", "W127", 0, LIES.column("recent", 0).members), "larger or smaller than it says"),
        (replace(LIES, slots=3).column("recent", 0), "larger or smaller than it says"),
        (replace(LIES, count_max=0).column("recent", 0), "larger or smaller than it says"),
        (replace(LIES, columns=[Column("value", "f8", 0)]).column("recent", 0), "larger or smaller than it says"),
        (replace(LIES, columns=[Column("value", "x8", 8)]).column("recent", 0), "is no way to store a value"),
        (replace(LIES, columns=[LIES.column("inner", 8)], entry_bytes=500).column("recent", 0), "larger or smaller"),
        (replace(LIES, columns=[Column("value", "f8", 24)]).column("recent", 0), "larger or smaller than it says"),
    ],
)
def test_a_description_that_is_none(column: Column, says: str) -> None:
    with pytest.raises(JournalCorrupt, match=says):
        read_row([column], bytes(4096))
