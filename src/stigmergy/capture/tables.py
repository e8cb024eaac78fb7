"""The tables that events go into: one for each event type, with typed columns. Pure: no database, no SQL.

Every table begins with the same columns, which say where an event is in the log. Its fields follow, under their own
names. An event that has no table, or that its table cannot hold, goes into `other_events` as it is, with the reason: a
capture never leaves an event out and never stops because of one.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

import msgspec
from msgspec import UNSET, Struct, inspect, structs

from stigmergy.agents.codec import UNDECODABLE
from stigmergy.agents.messages import Event, loaded_events, newer_version, resolve_hints, spec_of, to_newest
from stigmergy.agents.plans import AgentPlan
from stigmergy.agents.raw import CAPTURE, RawGuard, inner_tag
from stigmergy.audit.listing import readable_fields
from stigmergy.base.errors import ConfigError
from stigmergy.shard.commit_reader import KeptEvent

NAME_BYTES_MAX = 63
"""A longer name is cut by PostgreSQL, without a word."""
OTHER_EVENTS = "other_events"
RESERVED = (OTHER_EVENTS, "capture_source", "capture_positions")
"""Tables of the capture itself."""
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_INT_END = 2**63

Row = tuple[Any, ...]
Convert = Callable[[Any], Any]


class Unfit(Exception):
    """A value that a column cannot hold; the message is the reason."""


class SqlColumn(Struct, frozen=True):
    """A column: its name, its type as PostgreSQL spells it, and how a value of the field becomes one of the column."""

    name: str
    type: str
    convert: Convert | None = None
    """None: values are taken as they are."""
    before: Any = None
    """In rows from before the field was there: its default, as such events decode today."""


HEAD = (
    SqlColumn("log_shard", "integer"),
    SqlColumn("log_position", "bigint"),
    SqlColumn("log_index", "integer"),
    SqlColumn("log_time", "timestamp with time zone"),
    SqlColumn("log_agent", "text"),
)
"""What every table begins with. The first three are its primary key, and the order in which a shard wrote."""
KEY = tuple(column.name for column in HEAD[:3])


class SqlTable(Struct, frozen=True):
    """A table for the events of one type. `columns` are behind those of HEAD."""

    name: str
    columns: tuple[SqlColumn, ...]
    event: str = ""
    """The class, for people."""

    def row(self, head: Row, event: Event) -> Row:
        """The row of an event. Raises Unfit."""
        values = structs.astuple(event)
        return head + tuple(
            value if value is None or column.convert is None else _converted(column, value)
            for column, value in zip(self.columns, values, strict=True)
        )


OTHERS = SqlTable(
    OTHER_EVENTS,
    (SqlColumn("type", "text"), SqlColumn("reason", "text"), SqlColumn("fields", "jsonb"), SqlColumn("body", "bytea")),
)
"""Events without a table. `body` is the event as the log has it (msgpack), `fields` the same for people."""


class EventTables:
    """Which table each event of a fleet goes into, and its row there."""

    def __init__(
        self, plans: Mapping[str, AgentPlan], only: Sequence[str] = (), raw_may_leave: Sequence[str] = ()
    ) -> None:
        """`only` names the event types that are captured; none: all events of the log, but raw ones that no rule lets
        out. Raises ConfigError for a type that has no table, or shares it with another, or is raw and named."""
        self._guard = RawGuard(plans, raw_may_leave)
        self._plans = plans
        self._tables: dict[type[Event], SqlTable] = {}
        self._decoders: dict[str, Callable[[bytes], Any] | None] = {}
        for event in _events_of(plans):
            self._add(event)
        self.only = tuple(sorted(only))
        known = {table.event: cls for cls, table in self._tables.items()}
        for name in self.only:
            if name not in known:
                raise ConfigError(f"--only {name}: the fleet has no such event; it has {', '.join(sorted(known))}")
        self._wanted = [spec_of(known[name]).name for name in self.only]
        self._guard.check(CAPTURE, self._wanted)
        self.left_out = [] if self.only else self._guard.kept_back(CAPTURE)
        """Raw kinds that stay where they are."""

    @property
    def tables(self) -> list[SqlTable]:
        """Those of the types that the fleet's modules define, as far as they are captured; by name."""
        wanted = [
            table
            for cls, table in self._tables.items()
            if (not self.only or table.event in self.only) and not self._guard.stays(spec_of(cls).tag, CAPTURE)
        ]
        return sorted([*wanted, OTHERS], key=lambda table: table.name)

    def takes(self, tag: str, body: bytes = b"") -> bool:
        """Whether events with this tag are captured; not those of the runtime whose `body` carries raw ones."""
        if self._guard.stays(inner_tag(body) if body else tag, CAPTURE):
            return False
        return not self.only or tag.partition("@")[0] in self._wanted

    def row_of(self, shard: int, position: int, kept: KeptEvent) -> tuple[SqlTable, Row]:
        """The row of an event, and its table."""
        time = _EPOCH + timedelta(microseconds=kept.time_ns // 1000)
        head = (shard, position, kept.index, time, kept.address)
        try:
            event = self._decode(kept)
            table = self._tables.get(type(event)) or self._add(type(event))
            return table, table.row(head, event)
        except UNDECODABLE as error:
            return OTHERS, head + _other(kept, f"does not decode: {error}")
        except Unfit as error:
            return OTHERS, head + _other(kept, str(error))

    def _decode(self, kept: KeptEvent) -> Event:
        plan = self._plans.get(kept.address.partition("/")[0])
        if plan is not None and kept.tag in plan.known_tags:
            event = plan.decode(kept.body)
        else:
            decode = self._decoder(kept.tag)
            if decode is None:
                raise Unfit(f"the fleet's code has no event {kept.tag}")
            event = to_newest(decode(kept.body))
        if _is_ours(type(event)) or not isinstance(event, Event):
            raise Unfit("an event of the runtime itself")
        return event

    def _decoder(self, tag: str) -> Callable[[bytes], Any] | None:
        """Of an event that no agent handles: a class with this tag, if exactly one is imported."""
        if tag not in self._decoders:
            found = [cls for cls in loaded_events(Event) if spec_of(cls).tag == tag]
            self._decoders[tag] = msgspec.msgpack.Decoder(found[0]).decode if len(found) == 1 else None
        return self._decoders[tag]

    def _add(self, event: type[Event]) -> SqlTable:
        table = table_of(event)
        for other in self._tables.values():
            if other.name == table.name:
                raise ConfigError(
                    f"{table.event} and {other.event} would share the table {table.name}; give one of them name=…"
                )
        self._tables[event] = table
        return table


def table_of(event: type[Event]) -> SqlTable:
    """The table of an event type. Raises ConfigError for names that a database cannot tell apart or hold."""
    spec = spec_of(event)
    name = snake_case(spec.name) + (f"_v{spec.version}" if spec.version > 1 else "")
    if name in RESERVED:
        raise ConfigError(f"{event.__name__}: {name} is a table of the capture itself; give the event name=…")
    hints = resolve_hints(event, event.__qualname__)
    columns = tuple(_column(event, field, hints[field.name]) for field in structs.fields(event))
    for one in (name, *(column.name for column in columns)):
        if len(one.encode()) > NAME_BYTES_MAX:
            raise ConfigError(f"{event.__name__}: the name {one!r} has over {NAME_BYTES_MAX} bytes; give a shorter one")
    for column in columns:
        if any(column.name == ours.name for ours in HEAD):
            raise ConfigError(f"{event.__name__}.{column.name}: every table has such a column; rename the field")
    return SqlTable(name, columns, event.__name__)


def snake_case(name: str) -> str:
    """`MissionStarted` as SQL writes it: `mission_started`."""
    words = re.sub(r"(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])", "_", name)
    return re.sub(r"\W", "_", words).lower()


# ---------------------------------------------------------------------- columns


def _column(event: type[Event], field: structs.FieldInfo, hint: Any) -> SqlColumn:
    try:
        type_, convert = _sql_type(inspect.type_info(hint))
        before = field.default_factory() if callable(field.default_factory) else field.default
        column = SqlColumn(field.name, type_, convert)
        known = before is not msgspec.NODEFAULT and before is not None
        return structs.replace(column, before=_converted(column, before)) if known else column
    except (TypeError, Unfit) as error:
        raise ConfigError(f"{event.__name__}.{field.name}: no column can hold it: {error}") from None


_PLAIN: dict[type[inspect.Type], str] = {
    inspect.BoolType: "boolean",
    inspect.FloatType: "double precision",
    inspect.BytesType: "bytea",
    inspect.DateType: "date",
    inspect.TimeType: "time without time zone",
    inspect.TimeDeltaType: "interval",
    inspect.UUIDType: "uuid",
    inspect.DecimalType: "numeric",
}


def _sql_type(info: inspect.Type) -> tuple[str, Convert | None]:
    """The type of a column, and what its values go through. What has parts is JSON."""
    while isinstance(info, inspect.Metadata):
        info = info.type
    if type(info) in _PLAIN:
        return _PLAIN[type(info)], None
    match info:
        case inspect.IntType():
            return "bigint", _small
        case inspect.StrType():
            return "text", _text
        case inspect.DateTimeType(tz=False):
            return "timestamp without time zone", None
        case inspect.DateTimeType():
            return "timestamp with time zone", None
        case inspect.EnumType(cls=cls):
            return _of_values([member.value for member in cls], lambda member: member.value)
        case inspect.LiteralType(values=values):
            return _of_values(list(values), None)
        case inspect.UnionType(types=types):
            some = [one for one in types if not isinstance(one, inspect.NoneType)]
            return _sql_type(some[0]) if len(some) == 1 else ("jsonb", json_text)
        case _:
            return "jsonb", json_text


def _of_values(values: Sequence[object], convert: Convert | None) -> tuple[str, Convert | None]:
    if all(isinstance(value, str) for value in values):
        return "text", convert
    return ("bigint", convert) if all(isinstance(value, int) for value in values) else ("jsonb", json_text)


def _converted(column: SqlColumn, value: Any) -> Any:
    if value is UNSET:
        return None
    try:
        return value if column.convert is None else column.convert(value)
    except Unfit as error:
        raise Unfit(f"{column.name}: {error}") from None


def _small(value: int) -> int:
    if not -_INT_END <= value < _INT_END:
        raise Unfit(f"{value} has more than 64 bits")
    return value


def _text(value: str) -> str:
    if "\0" in value:
        raise Unfit("a text of PostgreSQL cannot hold the character U+0000")
    return value


def json_text(value: Any) -> str:
    """A value with parts as JSON; bytes in base64, NaN and infinities as null."""
    text = msgspec.json.encode(value).decode()
    if "\\u0000" in text:
        raise Unfit("JSON in PostgreSQL cannot hold the character U+0000")
    return text


# ---------------------------------------------------------------------- events


def _other(kept: KeptEvent, reason: str) -> Row:
    try:
        fields: str | None = json_text(readable_fields(kept.body))
    except (Unfit, TypeError, ValueError, RecursionError):
        fields = None
    return (kept.tag.replace("\0", ""), reason.replace("\0", ""), fields, kept.body)


def _events_of(plans: Mapping[str, AgentPlan]) -> list[type[Event]]:
    """The event types that agents handle, and all that the same modules define: an agent may only yield some."""
    handled = [cls for plan in plans.values() for cls in plan.plans if issubclass(cls, Event)]
    modules = {plan.cls.__module__ for plan in plans.values()} | {cls.__module__ for cls in handled}
    beside = [cls for cls in loaded_events(Event) if cls.__module__ in modules and "<locals>" not in cls.__qualname__]
    found = dict.fromkeys(cls for cls in (*handled, *beside) if not _is_ours(cls) and newer_version(cls) is None)
    tags: dict[str, type[Event]] = {}
    for cls in found:  # of two classes with one tag, the one that is handled
        tags.setdefault(spec_of(cls).tag, cls)
    return sorted(tags.values(), key=lambda cls: spec_of(cls).tag)


def _is_ours(cls: type) -> bool:
    return cls.__module__.partition(".")[0] == "stigmergy"
