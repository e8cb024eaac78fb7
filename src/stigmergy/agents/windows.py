"""Windows: the recent events of an agent as part of its state, filled by the framework. Immutable values.

    recent: Window[Sampled] = Window.last(64)                   the last 64
    recent: Window[Sampled] = Window.sliding(seconds=30)        those of the last 30 seconds
    minute: Window[Sampled] = Window.tumbling(seconds=60)       one bucket after the other; each closing is an event

The time of an entry is when it was taken, or, with `by="measured_at_s"`, a field of the event in seconds since 1970. A
window by event time closes a bucket when it sees an event that is `late_s` younger than the end of the bucket. Later
entries for that bucket are left out and counted in `late`. Entries dated more than `ahead_s` after our own time are
left out and counted in `ahead`: one device whose clock is years ahead must not close every bucket to come. Every window
holds at most `count_max` entries; beyond that the oldest is dropped and counted in `dropped`.

Ask a window by the name of a field: `self.recent.mean("celsius")`, and `total`, `lowest`, `highest`, `oldest`,
`newest`; `closed=True` asks the bucket that closed last. They visit the entries in order, one by one, so they give the
same bits on every machine and Python version, which `sum` does not. For an empty window they raise ValueError unless
you pass a default: `total("celsius", 0.0)`.
"""

from __future__ import annotations

import enum
import struct
from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any, Generic, TypeVar

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from stigmergy.agents.codec import NUMBERS_END, UNDECODABLE, encode
from stigmergy.agents.columns import RECORD_HEAD_BYTES, WINDOW, Column, read_columns, write_columns
from stigmergy.agents.messages import SECOND_NS, Event, is_number, spec_of
from stigmergy.base.errors import DefinitionError, JournalCorrupt, Malformed

EventT = TypeVar("EventT", bound=Event)
_T = TypeVar("_T")

ENTRIES_COUNT_MAX = 4096
TIME_NS_MAX = 2**62
AHEAD_S = 300.0
"""So far may the clock of a device be ahead of ours, unless the window says otherwise."""


class Shape(enum.IntEnum):
    """How a window forgets."""

    LAST = 1
    SLIDING = 2
    TUMBLING = 3


class _Needed:
    """Stands for a default that was not given."""


_NEEDED: Any = _Needed()


class Window(Struct, Generic[EventT], frozen=True, kw_only=True):
    """The recent events of one type. `add` and `close` return a new window; the framework calls them."""

    shape: Shape
    span: int
    """A count for LAST, nanoseconds otherwise."""
    count_max: int = ENTRIES_COUNT_MAX
    by: str = ""
    late_ns: int = 0
    entries: tuple[tuple[int, EventT], ...] = ()
    closed: tuple[tuple[int, EventT], ...] = ()
    start_ns: int = -1
    """Where the oldest open bucket of a tumbling window begins; -1 while there is none."""
    seen_ns: int = 0
    dropped: int = 0
    late: int = 0
    ahead_ns: int = int(AHEAD_S * SECOND_NS)
    ahead: int = 0

    @classmethod
    def last(cls, count: int) -> Window[EventT]:
        """The newest so many."""
        return cls(shape=Shape.LAST, span=_count(count), count_max=count)

    @classmethod
    def sliding(
        cls, *, seconds: float, by: str = "", ahead_s: float = AHEAD_S, count_max: int = ENTRIES_COUNT_MAX
    ) -> Window[EventT]:
        """Those not older than so many seconds before the newest."""
        ahead_ns = _tolerance("sliding", "ahead_s", ahead_s)
        return cls(shape=Shape.SLIDING, span=_span(seconds), by=by, ahead_ns=ahead_ns, count_max=_count(count_max))

    @classmethod
    def tumbling(
        cls,
        *,
        seconds: float,
        by: str = "",
        late_s: float = 0.0,
        ahead_s: float = AHEAD_S,
        count_max: int = ENTRIES_COUNT_MAX,
    ) -> Window[EventT]:
        """Buckets of so many seconds, aligned to 1970; `closed` holds the last complete one."""
        return cls(
            shape=Shape.TUMBLING,
            span=_span(seconds),
            by=by,
            late_ns=_tolerance("tumbling", "late_s", late_s),
            ahead_ns=_tolerance("tumbling", "ahead_s", ahead_s),
            count_max=_count(count_max),
        )

    @property
    def values(self) -> tuple[EventT, ...]:
        """The events in the window, oldest first."""
        return tuple(event for _, event in self.entries)

    @property
    def closed_values(self) -> tuple[EventT, ...]:
        """The events of the bucket that closed last."""
        return tuple(event for _, event in self.closed)

    def __len__(self) -> int:
        return len(self.entries)

    def total(self, field: str, default: Any = _NEEDED, *, closed: bool = False) -> Any:
        """The sum of a field. Raises OverflowError where ints add up to more than 64 bits hold."""
        values = self._numbers("total", field, closed)
        return _or("total", field, default) if not values else _sum(values)

    def mean(self, field: str, default: float = _NEEDED, *, closed: bool = False) -> float:
        """The total of a field, as a float, divided by the number of entries."""
        values = self._numbers("mean", field, closed)
        return float(_sum(values)) / len(values) if values else _or("mean", field, default)

    def lowest(self, field: str, default: Any = _NEEDED, *, closed: bool = False) -> Any:
        """The least value of a field; of equal ones the oldest."""
        values = self._numbers("lowest", field, closed)
        return _or("lowest", field, default) if not values else min(values)

    def highest(self, field: str, default: Any = _NEEDED, *, closed: bool = False) -> Any:
        """The greatest value of a field; of equal ones the oldest."""
        values = self._numbers("highest", field, closed)
        return _or("highest", field, default) if not values else max(values)

    def oldest(self, field: str, default: Any = _NEEDED, *, closed: bool = False) -> Any:
        """A field of the entry that came first."""
        entries = self.closed if closed else self.entries
        return _or("oldest", field, default) if not entries else getattr(entries[0][1], field)

    def newest(self, field: str, default: Any = _NEEDED, *, closed: bool = False) -> Any:
        """A field of the entry that came last."""
        entries = self.closed if closed else self.entries
        return _or("newest", field, default) if not entries else getattr(entries[-1][1], field)

    def _numbers(self, what: str, field: str, closed: bool) -> list[Any]:
        values = [getattr(event, field) for _, event in (self.closed if closed else self.entries)]
        for value in values:
            if type(value) is not int and type(value) is not float:
                raise TypeError(f"{what}({field!r}) of {value!r:.50}, which is no number; use oldest or newest")
        return values

    @property
    def end_ns(self) -> int | None:
        """Where the oldest open bucket of a tumbling window ends; None while there is none."""
        return None if self.start_ns < 0 else self.start_ns + self.span

    def due(self, now_ns: int) -> bool:
        """Whether the oldest open bucket can be closed: by the time we have, or by the events' own."""
        end_ns = self.end_ns
        if end_ns is None:
            return False
        reached_ns = self.seen_ns if self.by else now_ns
        return reached_ns >= end_ns + self.late_ns

    def add(self, now_ns: int, event: EventT) -> Window[EventT]:
        """The window with one more event."""
        time_ns = self._time_of(now_ns, event)
        if time_ns > now_ns + self.ahead_ns:
            return replace(self, ahead=self.ahead + 1)
        seen_ns = max(self.seen_ns, time_ns)
        start_ns = self.start_ns
        entries = (*self.entries, (time_ns, event))
        if self.shape is Shape.SLIDING:
            entries = tuple(entry for entry in entries if entry[0] > seen_ns - self.span)
        elif self.shape is Shape.TUMBLING:
            bucket_ns = time_ns - time_ns % self.span
            # A bucket that ended this long ago has been closed: its events cannot be counted any more.
            if bucket_ns + self.span + self.late_ns <= self.seen_ns and (start_ns < 0 or bucket_ns < start_ns):
                return replace(self, late=self.late + 1)
            start_ns = bucket_ns if start_ns < 0 else min(start_ns, bucket_ns)
        excess = len(entries) - self.count_max
        if excess > 0:
            entries = entries[excess:]
        dropped = self.dropped + max(0, excess) if self.shape is not Shape.LAST else 0
        return replace(self, entries=entries, start_ns=start_ns, seen_ns=seen_ns, dropped=dropped)

    def close(self) -> Window[EventT]:
        """The window after its oldest bucket has become `closed`."""
        end_ns = self.end_ns
        if end_ns is None:
            return self
        closed = tuple(entry for entry in self.entries if entry[0] < end_ns)
        entries = tuple(entry for entry in self.entries if entry[0] >= end_ns)
        start_ns = min((entry[0] - entry[0] % self.span for entry in entries), default=-1)
        # By our own time the bucket ends for good, also when the clock is behind the timer that closed it.
        seen_ns = max(self.seen_ns, end_ns + self.late_ns)
        return replace(self, entries=entries, closed=closed, start_ns=start_ns, seen_ns=seen_ns)

    def _time_of(self, now_ns: int, event: Any) -> int:
        if not self.by:
            return now_ns
        time_ns = int(getattr(event, self.by) * SECOND_NS)
        if not 0 <= time_ns <= TIME_NS_MAX:
            raise ValueError(f"{type(event).__name__}.{self.by} is {getattr(event, self.by)}: no seconds since 1970")
        return time_ns


def empty(what: str, field: str) -> ValueError:
    """What an empty window says when it is asked for something and not told what to answer instead."""
    return ValueError(
        f"{what}({field!r}) of an empty window; ask len() first, or say what it is then: a second argument"
    )


def _or(what: str, field: str, default: _T) -> _T:
    if default is _NEEDED:
        raise empty(what, field)
    return default


def _sum(values: list[Any]) -> Any:
    """One after the other: `sum` does it another way from Python 3.12 on."""
    total = values[0]
    for value in values[1:]:
        total += value
        if type(total) is int and not -NUMBERS_END <= total < NUMBERS_END:
            raise OverflowError("an int outside of -2^63 to 2^63 - 1")
    return total


def _span(seconds: float) -> int:
    if not is_number(seconds) or not 1e-9 <= seconds <= 86_400 * 366:
        raise DefinitionError(f"a window of {seconds} seconds: give more than 0 and at most a year")
    return int(seconds * SECOND_NS)


def _tolerance(shape: str, name: str, seconds: float) -> int:
    if not is_number(seconds) or not 0 <= seconds <= 86_400 * 366:
        raise DefinitionError(f"Window.{shape}({name}={seconds}): give 0 to a year of seconds")
    return int(seconds * SECOND_NS)


def _count(count: object) -> int:
    if not isinstance(count, int) or not 1 <= count <= ENTRIES_COUNT_MAX:
        raise DefinitionError(f"a window of {count} entries: give 1 to {ENTRIES_COUNT_MAX}")
    return count


# Byte layout of a window in the row of a compiled agent: a ring of entries, and a head that says where it begins.
#
#     head    count u4 · first u4 · seen_ns i8 · dropped i8 · ahead i8
#     entry   time_ns i8 · the fields of the event, where its record has them
#
# The column of a window has the code W and its size in bytes. Its one member describes it, so a row can be read without
# the class that wrote it. Neither the index of the first slot nor the bytes of unused slots carry meaning.

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
    if len(plain) == len(columns):
        return found
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
