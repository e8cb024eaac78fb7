"""Column runs as Arrow record batches, one event type each, and record batches as records. Needs pyarrow and numpy.

    agent      dictionary of text    Kind/name
    shard      int32
    position   int64                 of the commit
    index      int32                 among the events of the commit; of an order, that of the event behind it, or null
    time       timestamp(ns, UTC)
    source     dictionary of text
    sequence   int64                 of orders only

The fields of the event or action follow, with their types. An enum is a column of its values. The metadata of the
schema names the kind and type.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import msgspec
import numpy as np
import pyarrow as arrow  # type: ignore[import-untyped,unused-ignore]
from msgspec import Struct

from stigmergy.agents.columns import ENUM, ColumnRun, Layout, check_run
from stigmergy.agents.messages import Message
from stigmergy.base.errors import JournalCorrupt, Malformed
from stigmergy.compiled.arrays import AGENT, Coded, Values, record_dtype
from stigmergy.compiled.batcher import Batcher
from stigmergy.shard.commit import Commit
from stigmergy.shard.commit_reader import Reading

ROWS_PER_BATCH = 256 * 1024
"""So many rows of one type and shard are collected before they are given out."""
KIND = b"stigmergy.kind"
TYPE = b"stigmergy.type"
OWN = ("agent", "shard", "position", "index", "time", "source", "sequence")
"""Columns that are not the event's; a field of such a name gets a line behind it."""
TEXT = arrow.dictionary(arrow.int32(), arrow.string())
TIME = arrow.timestamp("ns", tz="UTC")
_TYPES = {
    "f8": arrow.float64(),
    "i8": arrow.int64(),
    "i4": arrow.int32(),
    "i2": arrow.int16(),
    "i1": arrow.int8(),
    "u4": arrow.uint32(),
    "u2": arrow.uint16(),
    "u1": arrow.uint8(),
    "b1": arrow.bool_(),
}


class EventFilter(Struct, frozen=True):
    """Which events. Times are inclusive, a type is a tag with or without its version, an agent is Kind/name."""

    kind: str | None = None
    type: str | None = None
    agent: str | None = None
    since_ns: int | None = None
    until_ns: int | None = None

    def takes_run(self, run: ColumnRun) -> bool:
        """Whether something of this run may be wanted."""
        kinds = (self.kind, None if self.agent is None else self.agent.partition("/")[0])
        early = self.since_ns is not None and run.time_ns < self.since_ns
        late = self.until_ns is not None and run.time_ns > self.until_ns
        return not early and not late and all(kind in (None, run.kind) for kind in kinds)

    def takes_tag(self, tag: str) -> bool:
        """Whether messages with this tag are wanted."""
        return self.type is None or self.type in (tag, tag.partition("@")[0])


ALL = EventFilter()


class RecordSlice(Struct, frozen=True):
    """Some records of one type out of one run, or their actions."""

    rows: Values
    position: int
    indices: Values
    time_ns: int
    source: str
    sequences: Values | None = None


class Heap:
    """Pieces of one type and shard on their way into a batch."""

    def __init__(self) -> None:
        self.pieces: list[RecordSlice] = []
        self.count = 0

    def add(self, piece: RecordSlice) -> None:
        """One more."""
        self.pieces.append(piece)
        self.count += len(piece.rows)

    def take(self) -> list[RecordSlice]:
        """All of them; it is empty then."""
        pieces, self.pieces, self.count = self.pieces, [], 0
        return pieces


class Addresses:
    """The addresses of a kind's agents in one shard, as Arrow has them; made once, and added to."""

    def __init__(self, kind: str) -> None:
        self._kind = kind
        self._known = arrow.array([], arrow.string())

    def column(self, numbers: Values, reading: Reading) -> Any:
        """For every row the address, as a dictionary of those that occur."""
        highest = int(numbers.max())
        reading.name(self._kind, highest)  # who is not enrolled gets no room made for
        present = np.zeros(highest + 1, bool)
        present[numbers] = True
        self._extend(len(present), reading)
        dictionary = self._known.take(arrow.array(np.flatnonzero(present)))
        if dictionary.null_count:
            unknown = int(np.flatnonzero(present)[dictionary.is_null().to_numpy(zero_copy_only=False)][0])
            raise JournalCorrupt(f"agent {unknown} of {self._kind} was never enrolled; restore from a copy")
        places = (np.cumsum(present) - 1)[numbers].astype(np.int32)
        return arrow.DictionaryArray.from_arrays(arrow.array(places), dictionary)

    def _extend(self, count: int, reading: Reading) -> None:
        missing = range(len(self._known), count)
        if missing:
            added = arrow.array([self._address(number, reading) for number in missing], arrow.string())
            self._known = arrow.concat_arrays([self._known, added])

    def _address(self, number: int, reading: Reading) -> str | None:
        try:
            return f"{self._kind}/{reading.name(self._kind, number)}"
        except JournalCorrupt:
            return None


class EventBatches:
    """Makes record batches of the events of compiled agents. Show it commits; it gives out batches when they are full,
    and `rest` at the end. Each batch is of one event type and one shard, in the order of the log."""

    def __init__(self, wanted: EventFilter = ALL, *, rows: int = ROWS_PER_BATCH) -> None:
        self._wanted = wanted
        self._rows = rows
        self._heaps: dict[tuple[int, bytes, int], tuple[Heap, Layout, Reading]] = {}
        """By shard, layout and form."""
        self._addresses: dict[tuple[int, str], Addresses] = {}

    def take(self, commit: Commit, reading: Reading) -> Iterator[Any]:
        """Takes the column runs of a commit. Raises JournalCorrupt for what cannot be read."""
        first = len(commit.events)
        for run in commit.columns:
            if self._wanted.takes_run(run) and run.count:
                yield from self._take_run(commit, run, first, reading)
            first += run.count

    def rest(self) -> Iterator[Any]:
        """What is left."""
        for key, (heap, layout, reading) in self._heaps.items():
            if heap.count:
                yield from self._made(key, heap, layout, reading)

    def _take_run(self, commit: Commit, run: ColumnRun, first: int, reading: Reading) -> Iterator[Any]:
        layout = reading.layout_of(run)
        check_run(run, layout)
        records = np.frombuffer(run.records, np.uint8).reshape(run.count, layout.record_bytes)
        forms = records[:, 4:6].copy().view("<u2").reshape(-1)
        counts = np.bincount(forms, minlength=len(layout.forms))
        if len(counts) > len(layout.forms):
            raise JournalCorrupt(f"a record of form {int(forms.max())}, and {run.kind} has {len(layout.forms)}")
        for number in np.flatnonzero(counts).tolist():
            if not self._wanted.takes_tag(layout.forms[number].tag):
                continue
            if counts[number] == run.count:
                rows, places = records, np.arange(run.count, dtype=np.int32)
            else:
                places = np.flatnonzero(forms == number).astype(np.int32)
                rows = records[places]
            key = (commit.shard, run.layout, number)
            heap = self._heaps.setdefault(key, (Heap(), layout, reading))[0]
            heap.add(RecordSlice(rows, commit.position, places + np.int32(first), run.time_ns, run.source))
            if heap.count >= self._rows:
                yield from self._made(key, heap, layout, reading)

    def _made(self, key: tuple[int, bytes, int], heap: Heap, layout: Layout, reading: Reading) -> Iterator[Any]:
        shard, _, number = key
        pieces = heap.take()
        form = layout.forms[number]
        rows = np.concatenate([piece.rows for piece in pieces]).view(record_dtype(layout, form)).reshape(-1)
        addresses = self._addresses.setdefault((shard, layout.kind), Addresses(layout.kind))
        agents = addresses.column(rows[AGENT], reading)
        columns = common_columns(agents, shard, pieces)
        for column in form.columns:
            values = np.ascontiguousarray(rows[column.name])
            columns[own_name(column.name)] = typed_column(
                column.code, column.members, values, f"{form.tag}.{column.name}"
            )
        batch = a_batch(layout.kind, form.tag, columns)
        if self._wanted.agent is not None:
            batch = batch.filter(of_agent(agents, self._wanted.agent))
        if len(batch):
            yield batch


def common_columns(agents: Any, shard: int, pieces: Sequence[RecordSlice]) -> dict[str, Any]:
    """The columns that all batches have."""
    lengths = [len(piece.rows) for piece in pieces]
    sources: dict[str, int] = {}
    codes = [sources.setdefault(piece.source, len(sources)) for piece in pieces]
    indices = np.concatenate([piece.indices for piece in pieces])
    columns = {
        "agent": agents,
        "shard": arrow.array(np.full(sum(lengths), shard, np.int32)),
        "position": arrow.array(np.repeat(np.array([piece.position for piece in pieces], np.int64), lengths)),
        "index": arrow.array(indices, mask=indices < 0),
        "time": arrow.array(np.repeat(np.array([piece.time_ns for piece in pieces], np.int64), lengths)).cast(TIME),
        "source": arrow.DictionaryArray.from_arrays(
            arrow.array(np.repeat(np.array(codes, np.int32), lengths)), arrow.array(list(sources), arrow.string())
        ),
    }
    numbered = [piece.sequences for piece in pieces if piece.sequences is not None]
    if numbered:
        columns["sequence"] = arrow.array(np.concatenate(numbered))
    return columns


def typed_column(code: str, members: Sequence[tuple[str, bytes]], values: Values, where: str) -> Any:
    """Values as they are stored, as a column with their type."""
    if code == ENUM:
        if len(values) and int(values.max()) >= len(members):
            raise JournalCorrupt(f"{where}: member {int(values.max())} of an enum that has {len(members)}")
        known = enum_values(members)
        if all(isinstance(value, int) for value in known):
            return arrow.array(np.array(known, np.int64)[values])
        return arrow.DictionaryArray.from_arrays(
            arrow.array(values.astype(np.int32)), arrow.array(known, arrow.string())
        )
    if code.startswith("S"):
        size = int(code[1:])
        return arrow.Array.from_buffers(arrow.binary(size), len(values), [None, arrow.py_buffer(values.tobytes())])
    return arrow.array(values, type=_TYPES[code])


def enum_values(members: Sequence[tuple[str, bytes]]) -> list[Any]:
    """The values of the members of an enum, if those are all texts or all whole numbers, else their names."""
    values = [msgspec.msgpack.decode(body) for _, body in members]
    for kind in (str, int):
        if all(type(value) is kind for value in values):
            return values
    return [name for name, _ in members]


def own_name(field: str) -> str:
    """What a field's column is called."""
    return f"{field}_" if field in OWN else field


def a_batch(kind: str, tag: str, columns: Mapping[str, Any]) -> Any:
    """A record batch that says what it is."""
    orders = "sequence" in columns
    fields = [
        arrow.field(name, column.type, nullable=orders and (name == "index" or name not in OWN))
        for name, column in columns.items()
    ]
    schema = arrow.schema(fields, metadata={KIND: kind.encode(), TYPE: tag.encode()})
    return arrow.RecordBatch.from_arrays(list(columns.values()), schema=schema)


def of_agent(agents: Any, address: str) -> Any:
    """Which rows are of this agent."""
    there = agents.dictionary.to_pylist()
    wanted = there.index(address) if address in there else -1
    return arrow.array(agents.indices.to_numpy() == wanted)


def kind_and_type(batch: Any) -> tuple[str, str]:
    """What a batch says that it is."""
    metadata = batch.schema.metadata
    return metadata[KIND].decode(), metadata[TYPE].decode()


# Feeds Arrow record batches and tables to a batcher, for producers with Arrow data. Needs pyarrow.
#
# One row is one event. The agent is in a column `agent` (a name, or Kind/name) or `number` (a place in the roster); the
# event's fields are columns of their own. Columns that `read_log` adds are ignored: what was read can be sent.

AGENT_COLUMN = "agent"
NUMBER = "number"


def add_table(batcher: Batcher, message: type[Message] | str, data: Any) -> int:
    """Adds the rows of a pyarrow RecordBatch or Table to a batcher; returns how many.

    Raises Malformed, naming column and row, with nothing added: for columns that are missing or not known, for nulls,
    for values of another type or outside of their bounds, for agents that are not in the roster.
    """
    if not isinstance(data, arrow.RecordBatch | arrow.Table):
        raise Malformed(f"{type(data).__name__} is neither a RecordBatch nor a Table of pyarrow")
    form = batcher.form_of(message)
    names = data.schema.names
    whose = [name for name in (AGENT_COLUMN, NUMBER) if name in names and name not in _fields_named(form)]
    if len(whose) != 1:
        raise Malformed(
            f"give either a column {AGENT_COLUMN} or a column {NUMBER}; there are {', '.join(names) or 'none'}"
        )
    columns: dict[str, Any] = {}
    for field in form.columns:
        named = own_name(field.name)
        if named in names:
            columns[field.name] = _values(named, data.column(named))
    known = [*OWN, *whose, *(own_name(field.name) for field in form.columns)]
    for name in names:
        if name not in known:
            columns[name] = ()  # it is refused under its name
    agents = _values(whose[0], data.column(whose[0]))
    if whose == [AGENT_COLUMN]:
        agents = _names(agents, batcher.kind)
    elif not isinstance(agents, np.ndarray) or agents.dtype.kind not in "iu":
        raise Malformed(f"column {NUMBER}: {data.schema.field(NUMBER).type} where whole numbers belong")
    return batcher.add_columns(message, agents, columns)


def _fields_named(form: Any) -> list[str]:
    return [own_name(field.name) for field in form.columns]


def _names(agents: Any, kind: str) -> Coded:
    if not isinstance(agents, Coded) or not all(isinstance(name, str) for name in agents.values):
        raise Malformed(f"column {AGENT_COLUMN}: names belong there; put numbers into a column {NUMBER}")
    return Coded([name.removeprefix(f"{kind}/") for name in agents.values], agents.places)


def _values(name: str, column: Any) -> Any:
    """A column as numpy has it; texts and dictionaries each value once."""
    array = column.combine_chunks() if isinstance(column, arrow.ChunkedArray) else column
    if array.null_count:
        row = int(np.flatnonzero(array.is_null().to_numpy(zero_copy_only=False))[0])
        raise Malformed(f"column {name}, row {row}: null; give a value in every row")
    kind = array.type
    if arrow.types.is_string(kind) or arrow.types.is_large_string(kind):
        array = array.dictionary_encode()
    if arrow.types.is_dictionary(array.type):
        return Coded(array.dictionary.to_pylist(), array.indices.to_numpy(zero_copy_only=False).astype(np.int64))
    if arrow.types.is_fixed_size_binary(kind):
        whole = np.frombuffer(array.buffers()[1] or b"", f"V{kind.byte_width}")
        return whole[array.offset : array.offset + len(array)]
    if arrow.types.is_binary(kind) or arrow.types.is_large_binary(kind):
        return array.to_pylist()
    return array.to_numpy(zero_copy_only=False)
