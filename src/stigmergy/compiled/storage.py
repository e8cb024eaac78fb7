"""The contents of a table: the names of its agents and their rows, how both grow and enter snapshots. No numba.

There are two copies of the rows: ahead, which steps change, and durable. Changed rows are noted in chunks of 256, since
the last commit and since the last snapshot was begun.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterator, Sequence
from functools import cached_property
from typing import Any

import msgspec
import numpy as np
from blake3 import blake3
from msgspec import Struct
from numpy.typing import NDArray

from stigmergy.agents.codec import UNDECODABLE, encode
from stigmergy.agents.columns import CHECK_BYTES, ENUM, Column, Layout, canonical_nan, read_records, write_record
from stigmergy.agents.messages import Message, spec_of
from stigmergy.agents.plans import AgentPlan, plan_agent
from stigmergy.agents.windows import HEAD_BYTES, is_window, read_row, window_of, write_row
from stigmergy.base.errors import Bug, FoldMismatch, JournalCorrupt, Malformed
from stigmergy.compiled.fields import CONFIRMATIONS, OTHER
from stigmergy.compiled.names import NameTable
from stigmergy.compiled.program import DIRTY_SHIFT, Program
from stigmergy.compiled.rows import Bytes, Rows, fresh_bytes

# Parts of a snapshot: rows and names of a table, compressed, each with its description. No numba.
#
# Rows are transposed before they are compressed: the first bytes of all rows, then the second ones, and so on. The
# unused bytes of numbers, their signs and their exponents then form long runs that shrink to little. The noise in the
# last digits of measured values is separate and stored as it is: compressing it would take most of the time.

PART_FORMAT = 1
ROWS_BYTES = 1024 * 1024
"""Of one part, before they are compressed: a few milliseconds of work."""
NAMES_BYTES = 1024 * 1024
PART_BYTES_MAX = 64 * 1024 * 1024
"""What a part may become when it is read."""
SAMPLE_COUNT = 1024
DIGEST_BYTES = 16
_ROWS_CONTEXT = "stigmergy 2026 rows of a table"
_NOISY = 0.75
"""Bytes of which a sample has more different values than this share of what chance would give are left as they are."""

Run = tuple[int, int]
"""Rows that lie one behind the other: the number of the first, and how many."""
Identity = tuple[int, bytes, bytes]
"""For rows: the version of the agent class, and the digests of their columns and of the first state."""


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


TablePart = RowsPart | NamesPart
_decoder = msgspec.msgpack.Decoder(TablePart)


def read_part(body: bytes) -> TablePart:
    """Decodes a part; what is in it is checked when it is taken. Raises JournalCorrupt."""
    try:
        part: TablePart = _decoder.decode(body)
    except UNDECODABLE as error:
        raise _corrupt(f"does not decode ({error})") from None
    if part.format != PART_FORMAT:
        raise _corrupt(f"has format {part.format}, and this version reads {PART_FORMAT}")
    return part


def columns_digest(layout: Layout) -> bytes:
    """Stands for how the rows of a kind lie in bytes."""
    described = (layout.kind, layout.row_bytes, layout.columns)
    return blake3(encode(described), derive_key_context=_ROWS_CONTEXT).digest(length=DIGEST_BYTES)


def start_digest(first_row: bytes) -> bytes:
    """Stands for the first state of an agent."""
    return blake3(first_row, derive_key_context=_ROWS_CONTEXT).digest(length=DIGEST_BYTES)


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
        """Raises JournalCorrupt for an invalid enum or boolean: code would look up a missing entry."""
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


# Converts data of another version of an agent class to today's records and rows. No numba.
#
# This path is slow, and the only one where messages and agents become objects: it uses the class's own decoders,
# upcasters and `upcast_state`, so that it ends where the interpreted engine would.

NameOf = Callable[[int], str]


class RowCodec:
    """From messages and agents to records and rows, and back, for one class."""

    def __init__(self, program: Program) -> None:
        self._program = program
        self._layout = program.layout
        self._form_of = {form.tag: number for number, form in enumerate(program.layout.forms)}
        self._checkers: dict[type[Message], Callable[[bytes], Message]] = {}
        self._restore = msgspec.msgpack.Decoder(program.cls).decode

    @cached_property
    def _plan(self) -> AgentPlan:
        return plan_agent(self._program.cls)

    def record_of(self, agent: int, message: Message) -> bytes:
        """A message as a record. Raises Malformed for one of no form, or with a value that it does not allow."""
        cls = type(message)
        form = self._form_of.get(spec_of(cls).tag)
        if form is None:
            known = ", ".join(self._form_of) or "none"
            raise Malformed(f"{self._layout.kind} has no records of {spec_of(cls).tag}; it has {known}")
        check = self._checkers.get(cls)
        if check is None:
            check = self._checkers[cls] = msgspec.msgpack.Decoder(cls).decode
        try:
            checked = check(encode(message))
        except (*UNDECODABLE, TypeError, ValueError, OverflowError) as error:
            raise Malformed(f"{spec_of(cls).tag} for {self._layout.kind} does not decode: {error}") from None
        fields = _fields(checked, self._layout.forms[form].columns)
        name = CONFIRMATIONS.get(cls, "")
        if name and all(fields[name] != one for one, _ in self._layout.forms[form].columns[0].members):
            fields[name] = OTHER
        return write_record(self._layout, form, agent, fields)

    def agent_of(self, name: str, row: bytes) -> Any:
        """A row as an object."""
        return self._restore(encode({"id": name, **read_row(self._layout.columns, row)}))

    def is_alike(self, layout: Layout) -> bool:
        """Whether records of that layout are records of today's as they are."""
        forms = layout.forms
        return layout.record_bytes == self._layout.record_bytes and forms == self._layout.forms[: len(forms)]

    def to_todays_records(self, records: bytes, layout: Layout) -> bytes:
        """The same events as records of today. Raises FoldMismatch for what today's classes cannot read."""
        made: list[bytes] = []
        for record in read_records(records, layout):
            try:
                message = self._plan.decode_kept(record.body)
                if message is not None and spec_of(type(message)).tag in self._form_of:
                    made.append(self.record_of(record.agent, message))
            except (*UNDECODABLE, Malformed) as error:
                raise FoldMismatch(
                    f"{record.tag} in the log of {self._layout.kind} is not one of today's ({error}); write an "
                    "upcaster for it, or use the version that wrote the log"
                ) from None
        return b"".join(made)

    def to_todays_rows(self, part: RowsPart, layout: Layout, rows: Bytes, name_of: NameOf) -> Bytes:
        """The same agents as rows of today, by `upcast_state`. Raises FoldMismatch where it does not say how."""
        made: list[bytes] = []
        data, start = rows.tobytes(), 0
        for first, count in part.runs:
            for number in range(first, first + count):
                fields = {"id": name_of(number), **read_row(layout.columns, data, start)}
                made.append(self._row_of(self._carried(part.version, fields)))
                start += layout.row_bytes
        return np.frombuffer(b"".join(made), np.uint8)

    def _carried(self, version: int, fields: dict[str, Any]) -> Any:
        cls = self._program.cls
        carried = None
        if version != cls.__agent_version__:
            try:
                carried = cls.upcast_state(version, fields)
            except Exception as error:
                raise FoldMismatch(
                    f"{cls.__qualname__}.upcast_state from version {version} raises {type(error).__name__}: {error}; "
                    "fix it, or keep the whole log so that it can be replayed"
                ) from error
        if carried is None:
            raise FoldMismatch(
                f"{self._layout.kind} was version {version} in the snapshot and is version {cls.__agent_version__} "
                "with another layout now; raise version= and write upcast_state, or keep the whole log so that it can "
                "be replayed"
            )
        if type(carried) is not cls:
            raise FoldMismatch(f"{cls.__qualname__}.upcast_state returns {carried!r}, not a {cls.__qualname__}")
        return carried

    def _row_of(self, agent: Any) -> bytes:
        columns, row = self._layout.columns, bytearray(self._layout.row_bytes)
        try:
            write_row(columns, _fields(agent, columns), row, self._program.cls.__qualname__)
        except Malformed as error:
            raise FoldMismatch(f"upcast_state has made a state that has no place in a row: {error}") from None
        return bytes(row)


def _fields(values: Any, columns: Sequence[Column]) -> dict[str, Any]:
    """What goes into columns, with the one NaN."""
    found: dict[str, Any] = {}
    for column in columns:
        value = getattr(values, column.name)
        found[column.name] = canonical_nan(value) if isinstance(value, float) else value
    return found


_CONTEXT = "stigmergy 2026 state of a table"
_CHUNK = 1 << DIRTY_SHIFT
_FOLDED_BYTES = 32
"""To fold an event once more takes as long as to copy so many bytes of rows, there and back."""

Image = tuple[list[Run], Bytes]
"""Rows that have changed, and what they are."""


class TableStorage:
    """Names and rows of one table."""

    def __init__(self, program: Program, carrying: RowCodec) -> None:
        self._layout = program.layout
        self._width = program.layout.row_bytes
        self._first_row = program.first_row
        self._carrying = carrying
        self._columns = Columns(program.layout)
        self._identity = (
            program.cls.__agent_version__,
            columns_digest(program.layout),
            start_digest(program.first_row),
        )
        """What a part of a snapshot must say for its rows to be taken as they are."""
        self.roster = NameTable()
        self.ahead = Rows(self._width)
        self.durable = Rows(self._width)
        self.stopped = Rows(1)
        self.dirty = Rows(1)
        """Since the last snapshot was begun, but for what `touched` says."""
        self.touched = Rows(1)
        """Since the last image."""
        self.unasked = Rows(1)
        """The same for the durable rows, of which nobody asks which have changed."""
        self._noted = (0, 0)
        """How many agents and enrolments the last snapshot knew."""

    def enroll(self, names: Sequence[str], *, first_is_there: bool) -> None:
        """Adds agents in their first state; of the first the row ahead may be there already."""
        before = len(self.roster)
        self.roster.enroll(names)
        self._begin_rows(before, before + 1 if first_is_there and names else before)
        self._note_changed(before, len(self.roster))

    def make_room(self, count: int) -> None:
        """Room for the rows of so many agents."""
        self.ahead.grow(count)
        self.durable.grow(count)
        self.stopped.grow(count)
        self.dirty.grow((count >> DIRTY_SHIFT) + 1)
        self.touched.grow((count >> DIRTY_SHIFT) + 1)
        self.unasked.grow((count >> DIRTY_SHIFT) + 1)

    def expect_newcomer(self) -> None:
        """Makes the row ahead of the agent that would be enrolled next."""
        count = len(self.roster)
        self.make_room(count + 1)
        self.ahead.fill(count, count + 1, self._first_row)
        self.stopped.data[count] = 0

    def rows_of(self, rows: Rows) -> Bytes:
        """The rows of the agents that are there."""
        return rows.data[: len(self.roster) * self._width]

    def matrix(self, rows: Rows) -> Bytes:
        """All rows that there is room for, by number."""
        return rows.data[: rows.room * self._width].reshape(rows.room, self._width)

    def catch_up(self) -> None:
        """The durable rows become what those ahead are."""
        self._index_names()
        self.rows_of(self.durable)[:] = self.rows_of(self.ahead)

    def image(self, events: int) -> Image | None:
        """The rows that so many events have changed since the last image; None if to fold the events is cheaper."""
        if events * _FOLDED_BYTES < _CHUNK * self._width:
            return None  # what they have touched is in the next image, which is of a later commit and so includes it
        chunks = self.touched.data[: (len(self.roster) + _CHUNK - 1) >> DIRTY_SHIFT]
        np.bitwise_or(self.dirty.data[: chunks.size], chunks, out=self.dirty.data[: chunks.size])
        runs = self._runs_of(chunks)
        chunks[:] = 0
        size_bytes = sum(length for _, length in runs) * self._width
        if size_bytes > events * _FOLDED_BYTES:
            return None
        return runs, self._copied(runs)

    def adopt(self, image: Image) -> None:
        """These rows are durable now."""
        runs, rows = image
        start, width = 0, self._width
        for first, length in runs:
            self.durable.data[first * width : (first + length) * width] = rows[start : start + length * width]
            start += length * width

    def _copied(self, runs: list[Run]) -> Bytes:
        width = self._width
        parts = [self.ahead.data[first * width : (first + length) * width] for first, length in runs]
        return np.concatenate(parts) if parts else fresh_bytes(0)

    def _begin_rows(self, before: int, first: int) -> None:
        count = len(self.roster)
        self.make_room(count)
        self.ahead.fill(first, count, self._first_row)
        self.durable.fill(before, count, self._first_row)

    def _note_changed(self, first: int, end: int) -> None:
        if end > first:
            self.dirty.data[first >> DIRTY_SHIFT : ((end - 1) >> DIRTY_SHIFT) + 1] = 1

    # ---- snapshots

    def begin_snapshot(self, *, full: bool) -> Iterator[bytes]:
        """Copies what is to be written, at once; the parts are made of the copy, one by one."""
        count = len(self.roster)
        noted = (0, 0) if full else self._noted
        changed = self.dirty.data[: (count + _CHUNK - 1) >> DIRTY_SHIFT]
        np.bitwise_or(changed, self.touched.data[: changed.size], out=changed)
        runs = [(0, count)] if full and count else self._runs_of(changed)
        rows = self._copied(runs)
        self.dirty.data[:] = 0
        self._noted = (count, self.roster.generation)
        return self._parts(noted, self._noted, runs, rows)

    def _runs_of(self, chunks: Bytes) -> list[Run]:
        """The rows that lie in chunks that are noted as changed."""
        count = len(self.roster)
        edges = np.flatnonzero(np.diff(chunks, prepend=np.uint8(0), append=np.uint8(0)))
        pairs = (edges.reshape(-1, 2) << DIRTY_SHIFT).tolist()
        return [(first, min(end, count) - first) for first, end in pairs]

    def _parts(self, noted: tuple[int, int], now: tuple[int, int], runs: list[Run], rows: Bytes) -> Iterator[bytes]:
        """Names are only ever added, so that there is no need to have copied them."""
        (first, generation), (count, generations) = noted, now
        while first < count or generation < generations:
            end = self.roster.end_of(first, count, NAMES_BYTES)
            last = self.roster.generation_at(end, generations)
            counts, checks = self.roster.generations_from(generation, last)
            yield names_part(first, end - first, self.roster.names_from(first, end), generation, counts, checks)
            first, generation = end, last
        start = 0
        for some in _portions(runs, max(ROWS_BYTES // max(self._width, 1), 1)):
            end = start + sum(length for _, length in some)
            taken = rows[start * self._width : end * self._width]
            yield rows_part(self._columns, self._identity, some, taken)
            start = end

    def load(self, body: bytes, layout: Layout) -> None:
        """Takes over one part. Raises FoldMismatch or JournalCorrupt."""
        part = read_part(body)
        if isinstance(part, NamesPart):
            self._load_names(part)
        else:
            self._load_rows(part, layout)

    def _load_names(self, part: NamesPart) -> None:
        anew = part.first == part.generation == 0
        """The first part of a full one."""
        before = 0 if anew else len(self.roster)
        names, counts = read_names(part, before, 0 if anew else self.roster.generation)
        if anew:
            self.roster.clear()
            self.stopped.data[:] = 0
        self.roster.restore(names, counts, part.checks)
        self._begin_rows(before, before)
        self.dirty.data[:] = 0
        self._noted = (len(self.roster), self.roster.generation)

    def _index_names(self) -> None:
        """All names of a snapshot at once: to do so for each part would take much longer."""
        try:
            self.roster.index()
        except Bug as error:
            raise JournalCorrupt(f"a name is twice in a snapshot ({error}); an older one is used") from None

    def _load_rows(self, part: RowsPart, layout: Layout) -> None:
        self._index_names()
        rows = read_rows(part, layout, len(self.roster))
        same = (part.version, part.columns, part.start) == self._identity
        if not same:
            rows = self._carrying.to_todays_rows(part, layout, rows, self.roster.name)
        self._columns.check(rows)
        start = 0
        for first, length in part.runs:
            taken = rows[start * self._width : (start + length) * self._width]
            self.ahead.data[first * self._width : (first + length) * self._width] = taken
            start += length
            if not same:
                self._note_changed(first, first + length)

    def digest(self) -> bytes:
        """Stands for names, enrolments and the rows ahead."""
        hasher = blake3(derive_key_context=_CONTEXT)
        hasher.update(encode(self.roster.check_of(self.roster.generation)))
        rows = self.rows_of(self.ahead)
        step = max(ROWS_BYTES // max(self._width, 1), 1) * self._width
        for start in range(0, len(rows), max(step, 1)):
            hasher.update(self._columns.canonical(rows[start : start + step]).data)
        return hasher.digest()


def _portions(runs: list[Run], count_max: int) -> Iterator[list[Run]]:
    """The same rows in lists of at most so many."""
    some: list[Run] = []
    room = count_max
    for first, length in runs:
        while length:
            taken = min(length, room)
            some.append((first, taken))
            first, length, room = first + taken, length - taken, room - taken
            if not room:
                yield some
                some, room = [], count_max
    if some:
        yield some
