"""Questions to a view, typed: `await live.view(ZoneLoad).where(zone="7").all()`.

Equality is written with names, other comparisons with a function of a row:

    view.where(zone="7").where(lambda row: row.active >= 5).order("active", descending=True).limit(10)

A question is a value: each call returns a new one, and nothing is asked before `all`, `first`, `get` or `page`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Generic, Protocol, TypeVar

from msgspec import Struct

from stigmergy.agents.view import View, ViewPlan, plan_of
from stigmergy.base.errors import Malformed
from stigmergy.views.port import ROWS_DEFAULT, Operator, RowCondition, RowSelection, Values, check_selection

V = TypeVar("V", bound=View)
WITHIN_S = 5.0
"""So long a question waits for the positions that it names, unless told otherwise."""


class ViewPage(Struct, frozen=True):
    """Rows as a view has them, where the next ones begin (empty: nowhere), and how far the view is."""

    rows: list[Values]
    cursor: str
    positions: dict[str, int]


class AnswersViews(Protocol):
    """Whoever has the rows of views."""

    async def page(self, plan: ViewPlan, wanted: RowSelection, after: Mapping[str, int], within_s: float) -> ViewPage:
        """The wanted rows, once these positions are in them. Raises ViewBehind, ViewFailed, StoreError."""
        ...

    def position_name(self, address: str) -> str:
        """How positions name the shard of an agent."""
        ...


class ViewQuery(Generic[V]):
    """A question to a view."""

    def __init__(self, view: type[V], views: AnswersViews) -> None:
        self._view = view
        self._plan = plan_of(view)
        self._views = views
        self._where: tuple[RowCondition, ...] = ()
        self._order: tuple[tuple[str, bool], ...] = ()
        self._limit = ROWS_DEFAULT
        self._cursor = ""
        self._after: dict[str, int] = {}
        self._within_s = WITHIN_S

    def where(self, *conditions: Callable[[V], bool], **equal: Any) -> ViewQuery[V]:
        """Only rows for which all of this is so. A function compares one field of a row with a value."""
        found = [RowCondition(name, "=", value) for name, value in equal.items()]
        for one in conditions:
            condition: object = one(_Row())  # type: ignore[arg-type]
            if not isinstance(condition, RowCondition):
                raise Malformed("where(lambda row: …): compare one field of the row with a value, as in row.active > 5")
            found.append(condition)
        return self._with(_where=(*self._where, *found))

    def order(self, field: str, *, descending: bool = False) -> ViewQuery[V]:
        """By this field, and by those of earlier calls before it; at last by the key."""
        return self._with(_order=(*self._order, (field, descending)))

    def limit(self, count: int) -> ViewQuery[V]:
        """At most so many rows."""
        return self._with(_limit=count)

    def after(self, positions: Mapping[str, int], within_s: float = WITHIN_S) -> ViewQuery[V]:
        """Only when the view has read these positions: it waits for so long. Raises ViewBehind."""
        return self._with(_after={**self._after, **positions}, _within_s=within_s)

    def after_command(self, address: str, position: int, within_s: float = WITHIN_S) -> ViewQuery[V]:
        """Only when the view has read what a command to this agent has changed: its answer says the position."""
        return self.after({self._views.position_name(address): position}, within_s)

    async def all(self) -> list[V]:
        """The rows, up to the limit."""
        return (await self.page())[0]

    async def first(self) -> V | None:
        """The first row, if there is one."""
        rows = await self.limit(1).all()
        return rows[0] if rows else None

    async def get(self, *key: Any) -> V | None:
        """The row with this key."""
        if len(key) != len(self._plan.keys):
            raise Malformed(f"{self._plan.name} has the key {', '.join(self._plan.keys)}; give a value for each")
        return await self.where(**dict(zip(self._plan.keys, key, strict=True))).first()

    async def page(self, cursor: str = "") -> tuple[list[V], str]:
        """Some rows, and the cursor that leads to the next ones; empty at the end."""
        wanted = check_selection(self._plan, self._where, self._order, self._limit, cursor)
        found = await self._views.page(self._plan, wanted, self._after, self._within_s)
        rows: list[Any] = [self._plan.row_of(values) for values in found.rows]
        return rows, found.cursor

    def _with(self, **changed: Any) -> ViewQuery[V]:
        copy: ViewQuery[V] = ViewQuery(self._view, self._views)
        vars(copy).update({**vars(self), **changed})
        return copy


class _Field:
    """A field in a comparison."""

    def __init__(self, name: str) -> None:
        self._name = name

    def _is(self, op: Operator, value: object) -> Any:
        if isinstance(value, _Field):
            raise Malformed(f"{self._name} {op} {value._name}: compare a field with a value")
        return Comparison(self._name, op, value)

    def __eq__(self, other: object) -> Any:
        return self._is("=", other)

    def __ne__(self, other: object) -> Any:
        return self._is("!=", other)

    def __lt__(self, other: object) -> Any:
        return self._is("<", other)

    def __le__(self, other: object) -> Any:
        return self._is("<=", other)

    def __gt__(self, other: object) -> Any:
        return self._is(">", other)

    def __ge__(self, other: object) -> Any:
        return self._is(">=", other)

    __hash__ = None  # type: ignore[assignment]

    def __bool__(self) -> bool:
        raise Malformed(f"row.{self._name} alone is no condition; compare it with a value, as in row.{self._name} == 1")


class Comparison(RowCondition, frozen=True):
    """A condition that refuses to be joined: `a and b` would lose the first one."""

    def __bool__(self) -> bool:
        raise Malformed("and, or and not do not work here; give several conditions, which must all be so")


class _Row:
    """Stands for a row in a comparison."""

    def __getattr__(self, name: str) -> _Field:
        return _Field(name)
