"""The port of view stores: tables with the rows of views, and how far each was made. Also what can be asked of them."""

from __future__ import annotations

import base64
import math
from collections.abc import Sequence
from typing import Any, Literal, Protocol, get_args

import msgspec
from msgspec import Struct

from stigmergy.agents.view import INTEGER_END, ViewColumn, ViewPlan
from stigmergy.base.errors import ConfigError, Malformed, StoreConflict, StoreForeign

ROWS_DEFAULT = 100
ROWS_MAX = 10_000
"""Rows that one question returns at most; the cursor in the answer leads to the next ones."""
CONDITIONS_MAX = 32
KEYS_MAX = 500
"""Keys that one `load` asks for; callers ask several times."""
NEXT = "__next"
"""What the name of a table ends with that is made anew beside the old one."""

Columns = Sequence[ViewColumn]
Values = tuple[Any, ...]
"""The columns of a row: int, float, str, bool, bytes or None; JSON as text."""
Operator = Literal["=", "!=", "<", "<=", ">", ">="]


class ViewPosition(Struct, frozen=True, omit_defaults=True):
    """How far the log of a shard is in the rows: this commit, told from another one at the same position by what the
    rest says of it."""

    position: int
    previous: bytes = b""
    """The digest of the commit before it."""
    epoch: int = 0
    incarnation: int = 0
    newest_ns: int | None = None
    """The newest event time of the shard: what is late is judged by it."""
    halves_from: int = 0
    """The first position whose events still wait for others to be joined with; 0: none does."""


Positions = dict[str, ViewPosition]
"""By fleet and shard: `delivery/3`."""


def shard_name(fleet: str, shard: int) -> str:
    """How positions name a shard."""
    return f"{fleet}/{shard}"


class StoredView(Struct, frozen=True):
    """What a store knows of a table."""

    digest: bytes
    """Of the view whose rows they are."""
    shape: str
    positions: Positions
    revision: int
    """Counts the writes. A write that expects another one is refused: somebody else has written."""


class RowChanges(Struct, frozen=True):
    """What some commits change: rows that are there from now on, keys of rows that are not, and how far that is."""

    rows: list[Values]
    removed: list[Any]
    positions: Positions
    revision: int
    """The one that this write is made upon."""


class RowCondition(Struct, frozen=True):
    """A column compared with a value. None is equal to None, and neither smaller nor larger than anything."""

    field: str
    op: Operator
    value: Any


class RowSelection(Struct, frozen=True):
    """Which rows, in which order. `check_selection` makes one."""

    where: tuple[RowCondition, ...]
    order: tuple[tuple[str, bool], ...]
    """Columns, and whether from high to low; the keys are among them, so that the order is total."""
    limit: int
    behind: Values | None = None
    """Only rows behind the one that has these values in the columns of `order`."""


class ViewStore(Protocol):
    """Tables of views.

    Atomicity: `write` keeps all of its changes or none, the position included; so does `swap`. So every event is in the
        rows once, wherever a process is killed.
    Durability: what `write` has kept survives the process; `sync` makes it survive loss of power.
    Concurrency: calls may overlap. Several processes may write: the one whose revision is not the newest is refused.
    Errors: StoreConflict (somebody else writes this view), StoreUnavailable (nothing was written: try again),
        StoreUnknown (written or not: `find` tells), StoreForeign, StoreCorrupt. No error of a driver passes unchanged.
    """

    async def find(self, table: str) -> StoredView | None:
        """What is known of a table; None if there is none."""
        ...

    async def create(self, table: str, columns: Columns, digest: bytes) -> StoredView:
        """Makes an empty table, instead of one that may be there."""
        ...

    async def load(self, table: str, columns: Columns, keys: Sequence[Any]) -> list[Values]:
        """The rows with these keys, at most KEYS_MAX of them; in any order."""
        ...

    async def write(self, table: str, columns: Columns, changes: RowChanges) -> None:
        """Makes changes and moves the position, in one transaction."""
        ...

    async def swap(self, built: str, table: str) -> None:
        """Lets one table take the place and the name of another, which is dropped."""
        ...

    async def select(self, table: str, columns: Columns, wanted: RowSelection) -> tuple[list[Values], StoredView]:
        """The wanted rows, and what is known of the table, both from one moment. Raises StoreForeign for a table that
        is not there."""
        ...

    async def sync(self) -> None:
        """What was written survives loss of power when this returns."""
        ...

    async def close(self) -> None:
        """Ends. Closing twice does nothing."""
        ...


# Questions.


def check_selection(
    plan: ViewPlan,
    where: Sequence[RowCondition],
    order: Sequence[tuple[str, bool]] = (),
    limit: int = ROWS_DEFAULT,
    cursor: str = "",
) -> RowSelection:
    """What is asked for, with everything in it that it takes. Raises Malformed; ConfigError for what is no cursor."""
    columns = {column.name: column for column in plan.columns}
    if not 1 <= limit <= ROWS_MAX:
        raise Malformed(f"limit {limit}: give 1 to {ROWS_MAX}")
    if len(where) > CONDITIONS_MAX:
        raise Malformed(f"{len(where)} conditions; give at most {CONDITIONS_MAX}")
    checked = tuple(_checked(plan, columns, one) for one in where)
    for name, _ in order:
        column = _column(plan, columns, name)
        if column.optional or column.kind == "json":
            raise Malformed(f"{plan.name} cannot be ordered by {name}, which may be None or is no plain value")
    named = dict(order)
    if len(named) < len(order):
        raise Malformed("a field is named twice in the order; name it once")
    full = (*order, *((name, False) for name in plan.keys if name not in named))
    behind = None
    if cursor:
        behind = _read_cursor(plan, tuple(full), cursor)
    return RowSelection(checked, tuple(full), limit, behind)


def _column(plan: ViewPlan, columns: dict[str, ViewColumn], name: str) -> ViewColumn:
    if name not in columns:
        raise Malformed(f"{plan.name} has no field {name!r}; it has {', '.join(columns)}")
    return columns[name]


def _checked(plan: ViewPlan, columns: dict[str, ViewColumn], one: RowCondition) -> RowCondition:
    column = _column(plan, columns, one.field)
    if one.op not in get_args(Operator):
        raise Malformed(f"{one.op!r}: give one of {' '.join(get_args(Operator))}")
    if column.kind == "json":
        raise Malformed(f"{plan.name}.{one.field} is no plain value; compare another field, or read rows and choose")
    if one.value is None:
        if one.op not in ("=", "!="):
            raise Malformed(f"{one.field} {one.op} None: compare None with = or != only")
        return one
    try:
        value = msgspec.convert(one.value, plan.hints[one.field])
    except msgspec.ValidationError as error:
        raise Malformed(f"{plan.name}.{one.field} {one.op} {one.value!r} does not fit: {error}") from None
    if column.kind == "int" and not -INTEGER_END <= value < INTEGER_END:
        raise Malformed(f"{plan.name}.{one.field} {one.op} {value}: no row has a whole number of more than 64 bits")
    return RowCondition(one.field, one.op, value)


def read_value(plan: ViewPlan, name: str, text: str) -> Any:
    """A value that somebody has typed, as the type of its field. Raises Malformed."""
    column = _column(plan, {column.name: column for column in plan.columns}, name)
    try:
        return msgspec.convert(None if text == "null" and column.optional else text, plan.hints[name], strict=False)
    except msgspec.ValidationError as error:
        raise Malformed(f"{plan.name}.{name}: {text!r} does not fit: {error}") from None


def cursor_of(plan: ViewPlan, wanted: RowSelection, last: Values) -> str:
    """Where the next page begins: behind this row."""
    places = {column.name: number for number, column in enumerate(plan.columns)}
    values = [last[places[name]] for name, _ in wanted.order]
    return base64.urlsafe_b64encode(msgspec.msgpack.encode((wanted.order, values))).decode().rstrip("=")


def _read_cursor(plan: ViewPlan, order: tuple[tuple[str, bool], ...], cursor: str) -> Values:
    try:
        data = base64.urlsafe_b64decode(cursor + "=" * (-len(cursor) % 4))
        found, values = msgspec.msgpack.decode(data, type=tuple[tuple[tuple[str, bool], ...], list[Any]])
        if found != order or len(values) != len(order):
            raise ValueError("it is of another order")
        return tuple(msgspec.convert(value, plan.hints[name]) for (name, _), value in zip(order, values, strict=True))
    except ValueError as error:  # msgspec's and base64's are some, too
        raise ConfigError(f"cursor {cursor!r} is none of this question ({error}); begin again without one") from None


def comparable(value: Any) -> Any:
    """A value of a column by which rows are ordered: NaN is the largest number, and equal to itself."""
    if isinstance(value, float):
        return (1, 0.0) if math.isnan(value) else (0, value)
    return value


def check_table(name: str) -> None:
    """A guard of stores: names of tables are part of statements."""
    if not name.removesuffix(NEXT).replace("_", "").isalnum() or not name.isascii():
        raise ConfigError(f"{name!r} is no name of a table")


def shape_of(columns: Columns) -> str:
    """The columns of a table as text, for comparing."""
    return msgspec.json.encode(tuple(columns)).decode()


def conflict(table: str) -> StoreConflict:
    """What a second writer of a view is told."""
    return StoreConflict(f"view {table}: another process writes its rows; let one of them do so")


def missing(table: str) -> StoreForeign:
    """What is said of a table that is not there."""
    return StoreForeign(f"view {table}: there is no such table yet; its projector makes it when it runs")


def made_by_others(table: str) -> StoreForeign:
    """What is said of rows that do not have the columns of the view that asks."""
    return StoreForeign(f"view {table}: its rows were made by other code, and are being made anew; ask again")
