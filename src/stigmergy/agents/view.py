"""Read models: rows with a key, folded from the events of a whole fleet. The class definition checks them.

    class ZoneLoad(View):
        zone: Key[str]
        active: int = 0

        @project
        def entered(self, event: ZoneEntered) -> None:
            self.active += 1

Which row an event changes: the key fields are read from the fields of the event with the same name; `agent` is the
address of the agent that the event is of, unless the event has a field of that name. Otherwise say it:
`@project(key=lambda event: event.to_zone)`; None means that the event concerns no row. A row exists from the first
event for its key until a handler calls `self.delete()`. A handler may take a third argument, the event's `Origin`.

Handlers are pure, as those of `evolve`: they change the row and nothing else, and what they see is in the log.
"""

from __future__ import annotations

import ast
import builtins
import dis
import functools
import inspect
import re
import types
import typing
from collections.abc import Callable, Iterator, Mapping
from operator import attrgetter
from typing import Annotated, Any, ClassVar, Literal, TypeVar, dataclass_transform, get_args, overload

import msgspec
from blake3 import blake3
from msgspec import Struct, StructMeta, field, structs

from stigmergy.agents.agent import assigned_attributes
from stigmergy.agents.codec import encode
from stigmergy.agents.messages import (
    SECOND_NS,
    Event,
    Keeping,
    Message,
    check_defaults,
    check_version,
    newer_version,
    older_versions,
    parameters_of,
    plain_name,
    resolve_hints,
    spec_of,
    to_newest,
    union_members,
)
from stigmergy.agents.plans import keep_types
from stigmergy.agents.view_time import (
    WINDOW,
    JoinSide,
    Late,
    Lateness,
    MarkedTime,
    Tumbling,
    ViewTime,
    at_function,
    check_marked_time,
    check_view_time,
    with_window,
)
from stigmergy.base.errors import DefinitionError

T = TypeVar("T")
_P = TypeVar("_P", bound=Callable[..., None])
NAME = re.compile(r"(?!.*__)(?!sqlite_|stigmergy_)[A-Za-z][A-Za-z0-9_]{0,47}", re.ASCII | re.IGNORECASE)
"""Of a view and its fields: they are the names of a table and its columns."""
INTEGER_END = 2**63
"""Whole numbers in a row are smaller than this: those that databases have."""
_KEY_TYPES = (str, int, bool, bytes)
_IMPURE = frozenset(
    ("asyncio", "datetime", "io", "logging", "os", "random", "secrets", "socket", "subprocess", "sys", "threading")
) | {"time", "uuid", "_io", "_random", "_socket", "posix"}
"""Modules that tell a handler what is not in the log, or change the world."""
_IMPURE_CLASSES = ("datetime.date", "datetime.datetime", "random.Random")
_IMPURE_BUILTINS = frozenset(("breakpoint", "exec", "eval", "globals", "hash", "id", "input", "open", "print", "vars"))

OnChange = Literal["rebuild", "refuse"]
"""What happens when the code of a view has changed since its rows were made."""
History = Literal["all", "kept"]
"""Which part of the log a view needs: all of it, or what retention has left."""
ColumnKind = Literal["int", "float", "text", "bool", "bytes", "json"]
_KINDS: dict[Any, ColumnKind] = {int: "int", float: "float", str: "text", bool: "bool", bytes: "bytes"}


class _KeyMark:
    """What tells a key from other fields."""

    def __repr__(self) -> str:
        return "key"


KEY = _KeyMark()
Key = Annotated[T, KEY]
"""A field of a view that says which row it is: str, int, bool or bytes. Several of them are one key together."""


class Origin(Struct, frozen=True):
    """Where an event of the log comes from."""

    agent: str
    """The address of the agent it is of."""
    time_ns: int
    fleet: str
    shard: int
    position: int
    index: int

    @property
    def time(self) -> float:
        """In seconds since 1970, as `self.now` was when the event was kept."""
        return self.time_ns / SECOND_NS

    @property
    def id(self) -> str:
        """The name of the agent: `D-17` of `Drone/D-17`."""
        return self.agent.partition("/")[2]


@overload
def project(method: _P) -> _P: ...


@overload
def project(
    *,
    key: Callable[..., Any] | None = None,
    at: Callable[..., Any] | None = None,
    join: str | tuple[str, str] | None = None,
    within_s: float | None = None,
) -> Callable[[_P], _P]: ...


def project(
    method: Any = None,
    *,
    key: Callable[..., Any] | None = None,
    at: Callable[..., Any] | None = None,
    join: str | tuple[str, str] | None = None,
    within_s: float | None = None,
) -> Any:
    """Marks the handler that folds an event into a row. `key` says of which: from the event, or from event and Origin;
    for a view with several key fields a tuple. `at` says when it happened, if that is not when it was kept: seconds
    since 1970, or a datetime. With `join` the handler takes two events that are equal in this field, the second at most
    `within_s` after the first."""
    time = check_marked_time(at, join, within_s)

    def mark(marked: Any) -> Any:
        if not isinstance(marked, types.FunctionType):
            raise DefinitionError(f"@project marks {marked!r}: put it directly above a method that is written with def")
        marked.__stigmergy_project__ = key  # type: ignore[attr-defined]
        marked.__stigmergy_time__ = time  # type: ignore[attr-defined]
        return marked

    if key is not None and not isinstance(key, types.FunctionType):
        raise DefinitionError(f"@project(key={key!r}): give a function, such as key=lambda event: event.zone")
    return mark if method is None else mark(method)


class ViewColumn(Struct, frozen=True):
    """A field of a view as a column. What is no plain value is JSON."""

    name: str
    kind: ColumnKind
    optional: bool
    key: bool = False


class Projection(Struct, frozen=True):
    """What a view does with one type of event."""

    event: type[Event]
    decode: Callable[[bytes], Any]
    key: Callable[[Any, Any], Any]
    """The key of the row from event and origin; None: no row."""
    apply: Callable[[Any, Any, Any], None]
    wants_origin: bool
    timing: Lateness | JoinSide | None = None
    """Whether the event may be late, or waits for another."""


class ViewPlan(Struct, frozen=True):
    """A view class made ready to run."""

    name: str
    cls: type[View]
    columns: tuple[ViewColumn, ...]
    keys: tuple[str, ...]
    projections: dict[str, Projection]
    """By the tag of the event; older versions included."""
    digest: bytes
    """Of its types, its handlers and the events they are for: rows of another digest are not its rows."""
    on_change: OnChange
    history: History
    fleets: tuple[str, ...]
    """Whose events; empty: of the fleet that lists it."""
    has_joins: bool = False

    def new_row(self, key: Any) -> View:
        """The row of a key that there is no row of yet."""
        if len(self.keys) == 1:
            return self.cls(**{self.keys[0]: key})
        return self.cls(**dict(zip(self.keys, key, strict=True)))

    def values_of(self, row: View) -> tuple[Any, ...]:
        """The columns of a row. Raises TypeError for a value that is not of its field's type."""
        return tuple(_stored(self, column, getattr(row, column.name)) for column in self.columns)

    def row_of(self, values: tuple[Any, ...]) -> View:
        """A row as it was stored. Raises msgspec.ValidationError for what does not fit."""
        fields: dict[str, Any] = {}
        for column, value in zip(self.columns, values, strict=True):
            if column.kind == "json" and value is not None:
                value = msgspec.json.decode(value, type=self.hints[column.name])
            fields[column.name] = value
        return self.cls(**fields)

    def key_of(self, values: tuple[Any, ...]) -> Any:
        """The key in the columns of a row: they come first."""
        return values[0] if len(self.keys) == 1 else values[: len(self.keys)]

    @property
    def hints(self) -> Mapping[str, Any]:
        """The types of its fields."""
        return _hints(self.cls)

    @property
    def shape(self) -> str:
        """Its table, for comparing."""
        return msgspec.json.encode(self.columns).decode()


@functools.lru_cache(maxsize=1_000)
def _hints(cls: type) -> Mapping[str, Any]:
    return {name: _bare(hint) for name, hint in resolve_hints(cls, cls.__qualname__).items()}


def _stored(plan: ViewPlan, column: ViewColumn, value: Any) -> Any:
    if value is None and column.optional:
        return None
    match column.kind:
        case "json":
            return msgspec.json.encode(value, order="deterministic").decode()
        case "float" if isinstance(value, int | float):
            return float(value)
        case "int" if isinstance(value, int) and -INTEGER_END <= value < INTEGER_END:
            return int(value)
        case "bool" if isinstance(value, bool):
            return value
        case "text" if isinstance(value, str):
            return str(value)
        case "bytes" if isinstance(value, bytes | bytearray | memoryview):
            return bytes(value)
    raise TypeError(
        f"{plan.name}.{column.name} is declared as {plain_name(plan.hints[column.name])} and was given a "
        f"{type(value).__name__}; fix the @project handler that assigns it, or declare the field so"
    )


@dataclass_transform(kw_only_default=True, field_specifiers=(field,))
class ViewMeta(StructMeta):
    """Makes each view class a struct and checks its fields and handlers while it is defined."""

    def __new__(
        mcls,
        class_name: str,
        bases: tuple[type, ...],
        namespace: dict[str, Any],
        *,
        version: int = 1,
        on_change: OnChange = "rebuild",
        history: History = "all",
        fleets: tuple[str, ...] = (),
        window: Tumbling | None = None,
        lateness_s: float | None = None,
        late: Late = "drop",
        **config: Any,
    ) -> Any:
        check_version(class_name, version)
        time = check_view_time(class_name, window, lateness_s, late)
        check_defaults(class_name, namespace)
        if on_change not in get_args(OnChange):
            raise DefinitionError(f"{class_name}: on_change={on_change!r}; give 'rebuild' or 'refuse'")
        if history not in get_args(History):
            raise DefinitionError(f"{class_name}: history={history!r}; give 'all' or 'kept'")
        cls: Any = super().__new__(mcls, class_name, bases, namespace, kw_only=True, **config)
        if any(isinstance(base, ViewMeta) for base in bases):
            cls.__view_plan__ = _plan(cls, version, on_change, history, tuple(fleets), time)
        return cls


@dataclass_transform(kw_only_default=True, field_specifiers=(field,))
class View(Struct, metaclass=ViewMeta):
    """The base of all read models. An instance is a row: its `Key` fields say which, all others need a default.

    Of the class statement: `version=2` has the rows made anew although the code looks the same (a function that
    handlers call has changed); `on_change="refuse"` does not start with changed code, instead of making the rows anew;
    `history="kept"` folds what retention has left of the log, where all of it is not there any more;
    `fleets=("delivery", "ground")` reads the logs of these fleets, and not of the one that lists it.
    """

    _deleted: bool = False

    __view_plan__: ClassVar[ViewPlan]

    def __repr__(self) -> str:
        shown = ", ".join(f"{name}={getattr(self, name)!r}" for name in self.__struct_fields__ if name != HIDDEN)
        return f"{type(self).__name__}({shown})"

    def delete(self) -> None:
        """The row is removed once the handler is over. The next event for its key makes a new one."""
        self._deleted = True


HIDDEN = "_deleted"


def plan_of(view: object) -> ViewPlan:
    """The plan of a view class."""
    plan = getattr(view, "__view_plan__", None)
    if not isinstance(plan, ViewPlan):
        raise DefinitionError(f"{view!r} is not a view; give a subclass of View that has @project handlers")
    return plan


# Checks.


def _plan(
    cls: Any, version: int, on_change: OnChange, history: History, fleets: tuple[str, ...], time: ViewTime
) -> ViewPlan:
    where = f"{cls.__qualname__} ({_place(cls)})"
    if NAME.fullmatch(cls.__name__) is None:
        raise DefinitionError(
            f"{where}: the name of a view is that of a table: 1 to 48 letters, digits and single '_', beginning with a "
            "letter, and not with sqlite_ or stigmergy_"
        )
    columns = _columns(cls, where)
    keys = tuple(column.name for column in columns if column.key)
    _check_time(cls, where, keys, time)
    projections: dict[str, Projection] = {}
    described: list[Any] = []
    for method in _marked(cls):
        place = f"{cls.__qualname__}.{method.__name__} ({_place(method)})"
        for event, projection in _projections(cls, keys, method, place, time):
            for member in (event, *older_versions(event)):
                tag = spec_of(member).tag
                if tag in projections:
                    raise DefinitionError(f"{place}: another handler is for {tag} already; merge the two methods")
                projections[tag] = projection
            key = method.__stigmergy_project__
            marked = method.__stigmergy_time__
            timed = [(marked.join, marked.within_s, _source(marked.at))] if marked != MarkedTime() else []
            described.append((spec_of(event).tag, _fields(event), _source(method), _source(key), *timed))
    if not projections:
        raise DefinitionError(f"{where}: no method is marked with @project, so it would never have a row; write one")
    plan = ViewPlan(
        name=cls.__name__,
        cls=cls,
        columns=columns,
        keys=keys,
        projections=projections,
        digest=b"",
        on_change=on_change,
        history=history,
        fleets=fleets,
        has_joins=any(isinstance(one.timing, JoinSide) for one in projections.values()),
    )
    first = plan.values_of(cls(**{name: plan.hints[name]() for name in keys}))
    with_time = (time,) if time != ViewTime() else ()
    code = encode((version, plan.shape, first, described, *with_time, *([fleets] if fleets else [])))
    return structs.replace(plan, digest=blake3(code).digest(length=16))


def _check_time(cls: Any, where: str, keys: tuple[str, ...], time: ViewTime) -> None:
    if time.window is not None and (WINDOW not in keys or _bare(resolve_hints(cls, where)[WINDOW]) is not int):
        raise DefinitionError(
            f"{where}: a row of a window needs its beginning as a part of the key, in seconds since 1970; write "
            f"{WINDOW}: Key[int]"
        )
    if time.lateness_s is not None and all(method.__stigmergy_time__.at is None for method in _marked(cls)):
        raise DefinitionError(
            f"{where}: lateness_s is for events that say themselves when they happened, @project(at=…); by the time of "
            "the log nothing is late, so leave it out"
        )


def _columns(cls: Any, where: str) -> tuple[ViewColumn, ...]:
    """The fields, keys first."""
    found: list[ViewColumn] = []
    for info in structs.fields(cls):
        if info.name == HIDDEN:
            continue
        hint = resolve_hints(cls, cls.__qualname__)[info.name]
        is_key = KEY in getattr(hint, "__metadata__", ())
        members = [member for member in union_members(_bare(hint)) if member is not type(None)]
        optional = len(members) < len(union_members(_bare(hint)))
        kind: ColumnKind = _KINDS.get(members[0], "json") if len(members) == 1 else "json"
        if NAME.fullmatch(info.name) is None:
            raise DefinitionError(f"{where}: {info.name}: the name of a field is 1 to 48 letters, digits and '_'")
        if is_key and (_bare(hint) not in _KEY_TYPES or not info.required):
            raise DefinitionError(
                f"{where}: {info.name}: a Key is str, int, bool or bytes, without default; write {info.name}: Key[str]"
            )
        if not is_key and info.required:
            raise DefinitionError(
                f"{where}: {info.name} needs a default, because a row exists from the first event for its key; write "
                f"{info.name}: … = …, or {info.name}: Key[…] if it says which row it is"
            )
        found.append(ViewColumn(info.name, kind, optional, is_key))
    if not any(column.key for column in found):
        raise DefinitionError(f"{where}: no field is a Key, so nothing says which row it is; write zone: Key[str]")
    return (*(one for one in found if one.key), *(one for one in found if not one.key))


def _marked(cls: type) -> Iterator[Any]:
    """The marked methods, also inherited ones, in the order of their definition."""
    names = dict.fromkeys(name for base in reversed(cls.__mro__) for name in vars(base))
    for name in names:
        method = getattr(cls, name)
        if hasattr(method, "__stigmergy_project__"):
            yield method
        elif any(hasattr(vars(base).get(name), "__stigmergy_project__") for base in cls.__mro__):
            raise DefinitionError(f"{cls.__qualname__}.{name}: overrides a handler; mark it with @project as well")


def _projections(
    cls: Any, keys: tuple[str, ...], method: Any, place: str, time: ViewTime
) -> Iterator[tuple[type[Event], Projection]]:
    marked: MarkedTime = method.__stigmergy_time__
    parameters = parameters_of(method)
    allowed = (2, 3) if marked.join is None else (3, 5)
    if len(parameters) not in allowed or method.__code__.co_kwonlyargcount:
        takes = "self and an event, and may take its Origin"
        if marked.join is not None:
            takes = "self and two events, and may take the Origin of each, behind them"
        raise DefinitionError(f"{place}: a @project handler takes {takes}")
    if method.__code__.co_flags & (inspect.CO_GENERATOR | inspect.CO_COROUTINE | inspect.CO_ASYNC_GENERATOR):
        raise DefinitionError(f"{place}: a @project handler only assigns: it yields nothing and waits for nothing")
    for name in assigned_attributes(method, parameters[0]):
        if name in keys or name not in cls.__struct_fields__:
            why = "which says which row it is" if name in keys else "which is no field of the view"
            raise DefinitionError(f"{place}: assigns self.{name}, {why}; assign another field, or declare this one")
    _check_pure(method, place)
    hints = resolve_hints(method, place)
    for name in parameters[allowed[0] :]:
        if hints.get(name) is not Origin:
            raise DefinitionError(f"{place}: annotate {name!r} with Origin")
    for name in parameters[1 : allowed[0]]:
        if hints.get(name) is None:
            raise DefinitionError(f"{place}: annotate {name!r} with the event that this handler is for")
    if marked.join is not None:
        yield from _join(cls, keys, method, place, time, [hints[name] for name in parameters[1:3]])
        return
    others = keys if time.window is None else tuple(name for name in keys if name != WINDOW)
    at_count = 0 if marked.at is None else len(parameters_of(marked.at))
    if marked.at is not None:
        _check_pure(marked.at, place)
    at = at_function(marked.at, at_count == 2, place)
    for event in union_members(hints[parameters[1]]):
        _check_event(event, place)
        key, wants_origin = None, False
        if others or method.__stigmergy_project__ is not None:
            key, wants_origin = _key_function(cls, others, event, method.__stigmergy_project__, place)
        if time.window is not None:
            key, wants_origin = with_window(key, keys, time.window, at), True
        assert key is not None
        apply: Any = method
        if len(parameters) == 2:
            apply = _without_origin(keep_types(method, cls, event))
        timing = None
        if time.lateness_s is not None and marked.at is not None:
            timing, wants_origin = Lateness(int(time.lateness_s * SECOND_NS), time.late, at), True
        yield event, Projection(event, _decoder(event), key, apply, wants_origin or len(parameters) == 3, timing)


def _join(
    cls: Any, keys: tuple[str, ...], method: Any, place: str, time: ViewTime, events: list[Any]
) -> Iterator[tuple[type[Event], Projection]]:
    """Both sides of a join."""
    marked: MarkedTime = method.__stigmergy_time__
    assert marked.join is not None
    assert marked.within_s is not None
    for event in events:
        _check_event(event, place)
    if events[0] is events[1]:
        raise DefinitionError(f"{place}: a join is of two different events; fold {events[0].__name__} by itself")
    kinds = []
    for event, name in zip(events, marked.join, strict=True):
        if name not in event.__struct_fields__:
            raise DefinitionError(f"{place}: {event.__name__} has no field {name!r} to be joined by; name one")
        kinds.append(_bare(resolve_hints(event, event.__qualname__)[name]))
    if kinds[0] is not kinds[1] or kinds[0] not in _KEY_TYPES:
        raise DefinitionError(
            f"{place}: {plain_name(kinds[0])} and {plain_name(kinds[1])} cannot be joined; declare both fields alike, "
            "as str, int, bool or bytes"
        )
    key = _pair_key(cls, keys, events, method, place, time)
    with_origins = len(parameters_of(method)) == 5

    def apply(row: Any, pair: Any, origins: Any) -> None:
        method(row, *pair, *origins) if with_origins else method(row, *pair)

    pair = Projection(events[1], _decoder(events[1]), key, apply, True)
    for number, (event, name) in enumerate(zip(events, marked.join, strict=True)):
        within_ns = int(marked.within_s * SECOND_NS)
        side = JoinSide(method.__name__, bool(number), attrgetter(name), within_ns, pair)
        yield event, Projection(event, _decoder(event), key, apply, True, side)


def _pair_key(
    cls: Any, keys: tuple[str, ...], events: list[Any], method: Any, place: str, time: ViewTime
) -> Callable[[Any, Any], Any]:
    """The key of the row of a pair: what `key=` says of both events, else fields of the second, then of the first."""
    others = keys if time.window is None else tuple(name for name in keys if name != WINDOW)
    given = method.__stigmergy_project__
    key: Callable[[Any, Any], Any] | None = None
    if given is not None:
        _check_pure(given, place)
        if len(parameters_of(given)) != 2:
            raise DefinitionError(f"{place}: key= of a join takes both events")
        wanted = tuple(_bare(resolve_hints(cls, place)[name]) for name in others)
        key = _checked_key(lambda pair: given(*pair), False, wanted, place)
    elif others:
        sides: list[tuple[int, str]] = []
        for name in others:
            has = [number for number in (1, 0) if name in events[number].__struct_fields__]
            wanted_type = _bare(resolve_hints(cls, place)[name])
            if not has or _bare(resolve_hints(events[has[0]], place)[name]) is not wanted_type:
                raise DefinitionError(
                    f"{place}: neither {events[1].__name__} nor {events[0].__name__} has a field {name!r} of this "
                    "type, so nothing says which row a pair is for; write key=lambda first, second: …"
                )
            sides.append((has[0], name))
        if len(sides) == 1:
            ((side, name),) = sides
            key = lambda pair, _: getattr(pair[side], name)  # noqa: E731
        else:
            key = lambda pair, _: tuple(getattr(pair[side], name) for side, name in sides)  # noqa: E731
    if time.window is None:
        assert key is not None
        return key
    return with_window(key, keys, time.window, lambda _, origins: int(origins[1].time_ns))


def _without_origin(apply: Callable[[Any, Any], None]) -> Callable[[Any, Any, Any], None]:
    return lambda row, event, _: apply(row, event)


def _check_event(event: Any, place: str) -> None:
    if not (isinstance(event, type) and issubclass(event, Event)):
        shown = getattr(event, "__name__", str(event))
        raise DefinitionError(f"{place}: {shown} is not an event, and only events are kept; give a subclass of Event")
    if spec_of(event).keep.promise is Keeping.TRANSIENT:
        raise DefinitionError(
            f"{place}: {event.__name__} is transient, so no log has it; project an event that is kept"
        )
    newer = newer_version(event)
    if newer is not None:
        raise DefinitionError(f"{place}: an upcaster carries {event.__name__} to {newer.__name__}; project that one")


def _decoder(event: type[Event]) -> Callable[[bytes], Any]:
    members: Any = event
    for old in older_versions(event):
        members = members | old
    decode = msgspec.msgpack.Decoder(members).decode
    return decode if members is event else lambda body: to_newest(decode(body))


def _key_function(
    cls: Any, keys: tuple[str, ...], event: type[Event], given: Any, place: str
) -> tuple[Callable[[Any, Any], Any], bool]:
    """How the key is found, and whether that takes the origin."""
    wanted = tuple(_bare(resolve_hints(cls, place)[name]) for name in keys)
    if given is not None:
        _check_pure(given, place)
        count = len(parameters_of(given))
        if count not in (1, 2):
            raise DefinitionError(f"{place}: key= takes the event, or the event and its Origin, not {count} arguments")
        return _checked_key(given, count == 2, wanted, place), count == 2
    hints = resolve_hints(event, event.__qualname__)
    for name, hint in zip(keys, wanted, strict=True):
        if name in event.__struct_fields__:
            if _bare(hints[name]) is not hint:
                raise DefinitionError(
                    f"{place}: {event.__name__}.{name} is {plain_name(_bare(hints[name]))}, and the key is "
                    f"{plain_name(hint)}; declare them alike, or write @project(key=lambda event: …)"
                )
        elif name != "agent" or hint is not str:
            raise DefinitionError(
                f"{place}: {event.__name__} has no field {name!r}, so nothing says which row it is for; write "
                "@project(key=lambda event: …), or with its origin: key=lambda event, origin: origin.id"
            )
    if all(name in event.__struct_fields__ for name in keys):
        from_event = attrgetter(*keys)
        return (lambda event, _: from_event(event)), False
    if len(keys) == 1:
        return (lambda _, origin: origin.agent), True
    own = tuple(name in event.__struct_fields__ for name in keys)
    return (
        lambda event, origin: tuple(
            getattr(event, name) if known else origin.agent for name, known in zip(keys, own, strict=True)
        )
    ), True


def _checked_key(
    given: Callable[..., Any], wants_origin: bool, wanted: tuple[Any, ...], place: str
) -> Callable[[Any, Any], Any]:
    """The user's function, whose keys must be of the declared types: a wrong one would be a row of its own."""

    def key(event: Any, origin: Any) -> Any:
        found = given(event, origin) if wants_origin else given(event)
        if found is None:
            return None
        parts = found if len(wanted) > 1 else (found,)
        if not isinstance(parts, tuple) or tuple(map(type, parts)) != wanted:
            shown = ", ".join(plain_name(one) for one in wanted)
            raise TypeError(f"{place}: the key of {event!r} is {found!r}, and it must be {shown}, or None for no row")
        return found

    return key


def _bare(hint: Any) -> Any:
    return get_args(hint)[0] if typing.get_origin(hint) is Annotated else hint


def _check_pure(function: Any, place: str) -> None:
    """Refuses code that names what is not in the log: a clock, randomness, files, the network."""
    known = {**vars(builtins), **function.__globals__, **inspect.getclosurevars(function).nonlocals}
    for name in _names(function.__code__):
        value = known.get(name)
        module = value.__name__ if isinstance(value, types.ModuleType) else getattr(value, "__module__", None)
        impure = str(module).partition(".")[0] in _IMPURE and not isinstance(value, type)
        impure |= name in _IMPURE_BUILTINS and value is getattr(builtins, name)
        impure |= isinstance(value, type) and f"{value.__module__}.{value.__name__}" in _IMPURE_CLASSES
        if impure:
            raise DefinitionError(
                f"{place}: uses {name}, and a projection is made again from the log at any time: it may use nothing "
                "that is not in the event, its Origin or the row"
            )


def _names(code: types.CodeType) -> Iterator[str]:
    """The global and enclosing names that code reads."""
    for instruction in dis.get_instructions(code):
        if instruction.opname in ("LOAD_GLOBAL", "LOAD_NAME", "LOAD_DEREF"):
            yield str(instruction.argval)
    for inner in code.co_consts:
        if isinstance(inner, types.CodeType):
            yield from _names(inner)


def _fields(event: type[Message]) -> list[tuple[str, str]]:
    hints = resolve_hints(event, event.__qualname__)
    return [(name, plain_name(hints[name])) for name in event.__struct_fields__]


def _source(function: Any) -> str:
    """What tells a function from a changed one: its source without comments, or where there is none its code."""
    if function is None:
        return ""
    code: types.CodeType = function.__code__
    try:
        lines, _ = inspect.getsourcelines(code)
        text = "".join(lines)
        tree = ast.parse(f"if True:\n{text}" if text[:1].isspace() else text)
        return ast.unparse(tree)
    except (OSError, SyntaxError, TypeError):
        return f"{code.co_code.hex()} {code.co_consts!r} {code.co_names}"


def _place(thing: Any) -> str:
    """The file and line of a class or function."""
    code = getattr(thing, "__code__", None)
    if code is not None:
        return f"{code.co_filename.rpartition('/')[2]}:{code.co_firstlineno}"
    module = thing.__module__.rpartition(".")[2]
    return f"{module}.py"
