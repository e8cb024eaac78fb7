"""A view store in memory, for tests, the simulator, and nodes whose journal is in memory."""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from typing import Any

from msgspec import Struct, structs

from stigmergy.base.errors import StoreUnavailable
from stigmergy.views.port import (
    Columns,
    Positions,
    RowChanges,
    RowCondition,
    RowSelection,
    StoredView,
    Values,
    comparable,
    conflict,
    made_by_others,
    missing,
    shape_of,
)

_COMPARE: dict[str, Callable[[Any, Any], bool]] = {
    "=": operator.eq,
    "!=": operator.ne,
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
}


class _Table(Struct):
    known: StoredView
    rows: dict[Any, Values]


class MemoryTables:
    """What outlives a store, as a disk would."""

    def __init__(self) -> None:
        self.tables: dict[str, _Table] = {}


class MemoryViewStore:
    """The ViewStore port over dicts."""

    def __init__(self, kept: MemoryTables | None = None) -> None:
        self._tables = (kept or MemoryTables()).tables
        self._closed = False

    async def find(self, table: str) -> StoredView | None:
        self._check_open()
        found = self._tables.get(table)
        return None if found is None else found.known

    async def create(self, table: str, columns: Columns, digest: bytes) -> StoredView:
        self._check_open()
        known = StoredView(digest, shape_of(columns), {}, 0)
        self._tables[table] = _Table(known, {})
        return known

    async def load(self, table: str, columns: Columns, keys: Sequence[Any]) -> list[Values]:
        rows = self._table(table).rows
        return [rows[key] for key in keys if key in rows]

    async def write(self, table: str, columns: Columns, changes: RowChanges) -> None:
        found = self._table(table)
        if found.known.revision != changes.revision:
            raise conflict(table)
        count = sum(column.key for column in columns)
        for row in changes.rows:
            found.rows[row[0] if count == 1 else row[:count]] = row
        for key in changes.removed:
            found.rows.pop(key, None)
        positions: Positions = {**found.known.positions, **changes.positions}
        found.known = structs.replace(found.known, positions=positions, revision=changes.revision + 1)

    async def swap(self, built: str, table: str) -> None:
        self._table(built)
        self._tables[table] = self._tables.pop(built)

    async def select(self, table: str, columns: Columns, wanted: RowSelection) -> tuple[list[Values], StoredView]:
        found = self._table(table)
        if found.known.shape != shape_of(columns):
            raise made_by_others(table)
        places = {column.name: number for number, column in enumerate(columns)}
        rows = [row for row in found.rows.values() if all(_is(row[places[one.field]], one) for one in wanted.where)]
        for name, descending in reversed(wanted.order):
            rows.sort(key=lambda row: comparable(row[places[name]]), reverse=descending)
        if wanted.behind is not None:
            behind = wanted.behind
            rows = [row for row in rows if _is_behind(row, wanted.order, places, behind)]
        return rows[: wanted.limit], found.known

    async def sync(self) -> None:
        """Nothing to do: memory survives no loss of power."""

    async def close(self) -> None:
        self._closed = True

    def _check_open(self) -> None:
        if self._closed:
            raise StoreUnavailable("the store of the views is closed; nothing was written")

    def _table(self, name: str) -> _Table:
        self._check_open()
        if name not in self._tables:
            raise missing(name)
        return self._tables[name]


def _is(value: Any, one: RowCondition) -> bool:
    if value is None or one.value is None:
        return (value is None and one.value is None) == (one.op == "=") and one.op in ("=", "!=")
    return _COMPARE[one.op](comparable(value), comparable(one.value))


def _is_behind(row: Values, order: Sequence[tuple[str, bool]], places: dict[str, int], behind: Values) -> bool:
    for (name, descending), last in zip(order, behind, strict=True):
        mine, other = comparable(row[places[name]]), comparable(last)
        if mine != other:
            return bool(mine < other) if descending else bool(mine > other)
    return False
