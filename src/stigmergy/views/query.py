"""Questions to a view, typed: `await live.view(ZoneLoad).where(zone="7").all()`.

Equality is written with names, other comparisons with a function of a row:

    view.where(zone="7").where(lambda row: row.active >= 5).order("active", descending=True).limit(10)

A question is a value: each call returns a new one, and nothing is asked before `all`, `first`, `get` or `page`.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any, Generic, Protocol, TypeVar

from msgspec import Struct, structs

from stigmergy.agents.view import View, plan_of
from stigmergy.base.errors import Malformed
from stigmergy.shard.inputs import UNSAID
from stigmergy.views.port import ROWS_DEFAULT, Operator, RowCondition, Values

V = TypeVar("V", bound=View)
WITHIN_S = 5.0
"""So long a question waits for the positions that it names, unless told otherwise."""
_POSITION = re.compile(r"(?:(?P<name>.+):)?(?P<position>\d{1,18})", re.DOTALL)


def read_position(text: str) -> tuple[str, int]:
    """Reads the `after` of a command's answer: what it is a position of, and the position. Raises Malformed."""
    if (found := _POSITION.fullmatch(text)) is not None:
        return found["name"] or "0", int(found["position"])
    if text.endswith(f":{UNSAID}"):
        raise Malformed(
            f"after {text!r}: the node that accepted this command has not told the node that you asked at which "
            "position of its log: it is of an earlier version, or that was forgotten since. Ask for the rows of that "
            "node (of_node) until they have it"
        )
    raise Malformed(f"after {text!r}: give the `after` of a command's answer, or KIND/NAME:POSITION")


class ViewPage(Struct, frozen=True):
    """Rows as a view has them, where the next ones begin (empty: nowhere), and how far the view is."""

    rows: list[Values]
    cursor: str
    positions: dict[str, int]


class ViewQuestion(Struct, frozen=True):
    """Which rows are asked for, and which positions must be in them; whoever answers checks it."""

    where: tuple[RowCondition, ...] = ()
    order: tuple[tuple[str, bool], ...] = ()
    """Fields, and whether from high to low."""
    limit: int = ROWS_DEFAULT
    cursor: str = ""
    after: Mapping[str, int] = {}
    within_s: float = WITHIN_S


class AnswersViews(Protocol):
    """Whoever has the rows of views, or can ask for them."""

    async def ask(self, view: type[V], question: ViewQuestion) -> tuple[list[V], str]:
        """The rows, and the cursor that leads to the next ones; empty at the end. Raises Malformed and ConfigError for
        what cannot be asked, ViewBehind, ViewFailed, StoreError."""
        ...

    def position_name(self, address: str) -> str:
        """How positions name the shard of an agent."""
        ...


class ViewQuery(Generic[V]):
    """A question to a view."""

    def __init__(self, view: type[V], views: AnswersViews, question: ViewQuestion | None = None) -> None:
        self._view = view
        self._keys = plan_of(view).keys
        self._views = views
        self._question = question or ViewQuestion()

    def where(self, *conditions: Callable[[V], bool], **equal: Any) -> ViewQuery[V]:
        """Only rows for which all of this is so. A function compares one field of a row with a value."""
        found = [RowCondition(name, "=", value) for name, value in equal.items()]
        for one in conditions:
            condition: object = one(_Row())  # type: ignore[arg-type]
            if not isinstance(condition, RowCondition):
                raise Malformed("where(lambda row: …): compare one field of the row with a value, as in row.active > 5")
            found.append(condition)
        return self._with(where=(*self._question.where, *found))

    def order(self, field: str, *, descending: bool = False) -> ViewQuery[V]:
        """By this field, and by those of earlier calls before it; at last by the key."""
        return self._with(order=(*self._question.order, (field, descending)))

    def limit(self, count: int) -> ViewQuery[V]:
        """At most so many rows."""
        return self._with(limit=count)

    def after(self, positions: Mapping[str, int] | str, within_s: float = WITHIN_S) -> ViewQuery[V]:
        """Only when the view has read these positions, or the `after` of an accepted command: it waits for so long.
        Raises ViewBehind."""
        if isinstance(positions, str):
            positions = dict([read_position(positions)])
        return self._with(after={**self._question.after, **positions}, within_s=within_s)

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
        if len(key) != len(self._keys):
            raise Malformed(f"{self._view.__name__} has the key {', '.join(self._keys)}; give a value for each")
        return await self.where(**dict(zip(self._keys, key, strict=True))).first()

    async def page(self, cursor: str = "") -> tuple[list[V], str]:
        """Some rows, and the cursor that leads to the next ones; empty at the end."""
        return await self._views.ask(self._view, structs.replace(self._question, cursor=cursor))

    def _with(self, **changed: Any) -> ViewQuery[V]:
        return ViewQuery(self._view, self._views, structs.replace(self._question, **changed))


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
