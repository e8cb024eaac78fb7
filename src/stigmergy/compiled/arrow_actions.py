"""Actions in blocks as Arrow record batches, one action type each. Needs pyarrow and numpy.

A class may make an action in several places, and a field may be a constant in one and a number in another: a column has
the type that fits all of them, text as the last resort.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import msgspec
import numpy as np
import pyarrow as arrow  # type: ignore[import-untyped,unused-ignore]

from stigmergy.agents.columns import (
    ACTION_HEAD_BYTES,
    ENUM,
    NOT_KEPT,
    SLOT_BYTES,
    ColumnRun,
    Constant,
    Slot,
    Template,
    TemplatePart,
    Templates,
    text_of,
)
from stigmergy.base.errors import JournalCorrupt
from stigmergy.compiled.arrays import AGENT, Values
from stigmergy.compiled.arrow import (
    ALL,
    ROWS_PER_BATCH,
    Addresses,
    EventFilter,
    Heap,
    RecordSlice,
    a_batch,
    common_columns,
    enum_values,
    of_agent,
    own_name,
    typed_column,
)
from stigmergy.shard.commit import Commit
from stigmergy.shard.commit_reader import Reading


class OrderBatches:
    """Makes record batches of the actions of compiled agents, as EventBatches does of their events."""

    def __init__(self, wanted: EventFilter = ALL, *, rows: int = ROWS_PER_BATCH) -> None:
        self._wanted = wanted
        self._rows = rows
        self._heaps: dict[tuple[int, bytes, str], tuple[Heap, Templates, Reading]] = {}
        """By shard, templates and tag."""
        self._addresses: dict[tuple[int, str], Addresses] = {}

    def take(self, commit: Commit, reading: Reading) -> Iterator[Any]:
        """Takes the blocks of a commit. Raises JournalCorrupt for what cannot be read."""
        first = len(commit.events)
        for run in commit.columns:
            if run.actions_count and self._wanted.takes_run(run):
                yield from self._take_run(commit, run, first, reading)
            first += run.count

    def rest(self) -> Iterator[Any]:
        """What is left."""
        for key, (heap, templates, reading) in self._heaps.items():
            if heap.count:
                yield from self._made(key, heap, templates, reading)

    def _take_run(self, commit: Commit, run: ColumnRun, first: int, reading: Reading) -> Iterator[Any]:
        templates = reading.templates_of(run.templates)
        if len(run.actions) != run.actions_count * templates.action_bytes:
            raise JournalCorrupt(f"{len(run.actions)} bytes for {run.actions_count} actions of {run.kind}")
        rows = np.frombuffer(run.actions, action_dtype(templates))
        numbers = rows["template"]
        if int(numbers.max()) >= len(templates.templates):
            raise JournalCorrupt(f"an action of template {int(numbers.max())}; restore from a copy")
        causes = rows["cause"].astype(np.int64)
        indices = np.where(causes == NOT_KEPT, -1, causes + first).astype(np.int32)
        for tag in dict.fromkeys(templates.templates[number].tag for number in np.unique(numbers).tolist()):
            if not self._wanted.takes_tag(tag):
                continue
            mine = [number for number, made in enumerate(templates.templates) if made.tag == tag]
            places = np.flatnonzero(np.isin(numbers, mine))
            key = (commit.shard, run.templates, tag)
            heap = self._heaps.setdefault(key, (Heap(), templates, reading))[0]
            heap.add(
                RecordSlice(rows[places], commit.position, indices[places], run.time_ns, run.source, places + run.first)
            )
            if heap.count >= self._rows:
                yield from self._made(key, heap, templates, reading)

    def _made(self, key: tuple[int, bytes, str], heap: Heap, templates: Templates, reading: Reading) -> Iterator[Any]:
        shard, _, tag = key
        pieces = heap.take()
        rows = np.concatenate([piece.rows for piece in pieces])
        addresses = self._addresses.setdefault((shard, templates.kind), Addresses(templates.kind))
        agents = addresses.column(rows[AGENT], reading)
        columns = common_columns(agents, shard, pieces)
        mine = [(number, made) for number, made in enumerate(templates.templates) if made.tag == tag]
        for name in dict.fromkeys(name for _, made in mine for name, _ in made.fields):
            columns[own_name(name)] = _field_column(name, mine, templates, rows, reading)
        batch = a_batch(templates.kind, tag, columns)
        if self._wanted.agent is not None:
            batch = batch.filter(of_agent(agents, self._wanted.agent))
        if len(batch):
            yield batch


def action_dtype(templates: Templates) -> np.dtype[Any]:
    """An action as numpy sees it; its slots are words."""
    words = (templates.action_bytes - ACTION_HEAD_BYTES) // SLOT_BYTES
    return np.dtype(
        {
            "names": [AGENT, "template", "cause", "slots"],
            "formats": ["<u4", "<u2", "<u4", ("<i8", (words,))],
            "offsets": [0, 4, 8, ACTION_HEAD_BYTES],
            "itemsize": templates.action_bytes,
        }
    )


def _field_column(
    name: str, mine: Sequence[tuple[int, Template]], templates: Templates, rows: Values, reading: Reading
) -> Any:
    """One field of all actions, whatever templates made them."""
    parts = [(number, dict(made.fields).get(name)) for number, made in mine]
    made = [
        _part_column(part, templates, rows[rows["template"] == number], reading)
        for number, part in parts
        if part is not None
    ]
    kind = _common_type([column.type for column in made])
    if len(parts) == 1:
        return _as(made[0], kind)
    # One behind the other, and then back into their order.
    order = np.concatenate([np.flatnonzero(rows["template"] == number) for number, part in parts if part is not None])
    behind = arrow.concat_arrays([_as(column, kind) for column in made])
    places = np.full(len(rows), -1)
    places[order] = np.arange(len(order))
    return behind.take(arrow.array(places, mask=places < 0))


def _part_column(part: TemplatePart, templates: Templates, rows: Values, reading: Reading) -> Any:
    if isinstance(part, Constant):
        value = msgspec.to_builtins(msgspec.msgpack.decode(part.value))
        return arrow.repeat(arrow.scalar(value), len(rows))
    if isinstance(part, Slot):
        return _slot_column(part, rows)

    def name_of(number: int) -> str:
        return reading.name(templates.kind, number)

    slots = np.ascontiguousarray(rows["slots"])
    texts = [
        text_of(part, templates.kind, slots[place].tobytes(), agent, name_of)
        for place, agent in enumerate(rows[AGENT].tolist())
    ]
    return arrow.array(texts, arrow.string())


def _slot_column(slot: Slot, rows: Values) -> Any:
    """What lies in a slot: a float, fixed bytes, or a whole number of 8 bytes whatever its code."""
    words = rows["slots"]
    if slot.code.startswith("S"):
        size = int(slot.code[1:])
        count = -(-size // SLOT_BYTES)
        taken = np.ascontiguousarray(words[:, slot.slot : slot.slot + count]).view(np.uint8).reshape(len(rows), -1)
        return typed_column(slot.code, (), np.ascontiguousarray(taken[:, :size]), slot.code)
    values = np.ascontiguousarray(words[:, slot.slot])
    if slot.code == "f8":
        return arrow.array(values.view("<f8"))
    if slot.code == "b1":
        return arrow.array(values != 0)
    if slot.code == ENUM:
        if len(values) and not 0 <= int(values.min()) <= int(values.max()) < len(slot.members):
            raise JournalCorrupt(f"a member of an enum that has {len(slot.members)}; restore from a copy")
        known = enum_values(slot.members)
        return arrow.array(known).take(arrow.array(values))
    return arrow.array(values)


def _common_type(kinds: Sequence[Any]) -> Any:
    """The type that all of these fit into."""
    some = [kind for kind in kinds if not arrow.types.is_null(kind)]
    if not some:
        return arrow.string()
    if all(kind == some[0] for kind in some):
        return some[0]
    if all(arrow.types.is_integer(kind) or arrow.types.is_floating(kind) for kind in some):
        return arrow.float64()
    return arrow.string()


def _as(column: Any, kind: Any) -> Any:
    """A column in another type; as text where it cannot be cast."""
    try:
        return column.cast(kind)
    except (arrow.ArrowInvalid, arrow.ArrowNotImplementedError):
        return arrow.array([None if value is None else str(value) for value in column.to_pylist()], arrow.string())
