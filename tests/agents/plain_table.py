"""A table in plain Python: runs the class's own handlers on objects, and keeps to core.tables. For tests. Not a test.

It is slow and says exactly what the core may rely on, so that the core's side of compiled agents is tested without a
compiler.
"""

from __future__ import annotations

import enum
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, get_args, get_origin, get_type_hints

import msgspec
from blake3 import blake3
from msgspec import Struct, structs

from stigmergy.agents.agent import Agent, Rejection
from stigmergy.agents.codec import UNDECODABLE, canonical_bytes, encode
from stigmergy.agents.columns import (
    ACTION_HEAD_BYTES,
    INPUT_BYTES_MAX,
    LAYOUT_FORMAT,
    NO_CHECK,
    NOT_KEPT,
    OTHER_BYTES,
    RECORD_HEAD_BYTES,
    SLOT_BYTES,
    Column,
    Form,
    Halt,
    Layout,
    Say,
    Slot,
    Stretch,
    Table,
    Template,
    Templates,
    Text,
    canonical_nan,
    read_columns,
    read_records,
    roster_check,
    size_of,
    text_of,
    write_columns,
    write_record,
)
from stigmergy.agents.effects import Publish, Tell, Woken
from stigmergy.agents.messages import Action, Effect, Event, Keeping, Message, own_fields, spec_of
from stigmergy.agents.now import step_time_ns
from stigmergy.agents.plans import AgentPlan, plan_agent
from stigmergy.agents.supervision import FRAMEWORK_EVENTS
from stigmergy.base.errors import FoldMismatch, JournalCorrupt, Malformed, TooLarge
from stigmergy.shard.timers import timer_body

_parts = msgspec.msgpack.Decoder(tuple[bool, int, list[str], list[tuple[int, bytes]], list[tuple[int, bytes]]])
_SLOTS = {float: "f8", int: "i8", bool: "b1"}


def code_of(hint: Any) -> tuple[str, list[tuple[str, bytes]]]:
    """How a field is stored, and the members of an enum."""
    if get_origin(hint) is not None and isinstance(get_args(hint)[1], msgspec.Meta):
        meta = get_args(hint)[1]
        hint = get_args(hint)[0]
        if hint is bytes:
            return f"S{meta.max_length}", []
    if isinstance(hint, type) and issubclass(hint, enum.Enum):
        return "e2", [(member.name, encode(member)) for member in hint]
    return _SLOTS[hint], []


def columns_of(cls: type, start: int, timers: Sequence[str] = ()) -> tuple[list[Column], int]:
    """The fields of a class, but for flags at multiples of 8, and where they end. A timer's name is one of a few."""
    columns: list[Column] = []
    hints = get_type_hints(cls, include_extras=True)
    if cls is Woken:
        return [Column("name", "e2", start, [(name, encode(name)) for name in timers])], start + 8
    for name in cls.__struct_fields__:  # type: ignore[attr-defined]
        if name == "id":
            continue
        code, members = code_of(hints[name])
        size_bytes = size_of(code)
        aligned = 1 if code == "b1" else 8
        start = -(-start // aligned) * aligned
        columns.append(Column(name, code, start, members))
        start += size_bytes
    return columns, -(-start // 8) * 8


class PlainEngine:
    """Implements core.tables.Engine. `yielded` are events that the class only yields, `texts` the texts of its actions
    by class and field, `timers` the names of its timers."""

    def __init__(
        self,
        cls: type[Agent],
        *,
        actions: Sequence[type[Action]] = (),
        yielded: Sequence[type[Event]] = (),
        texts: Mapping[tuple[type[Action], str], Text] | None = None,
        timers: Sequence[str] = (),
    ) -> None:
        self.plan = plan_agent(cls)
        handled = [message for message in self.plan.plans if message not in FRAMEWORK_EVENTS]
        self.messages: list[type[Message]] = [*handled, *yielded]
        self.inputs = len(handled)
        fields = [columns_of(message, RECORD_HEAD_BYTES, timers) for message in self.messages]
        rows, row_bytes = columns_of(cls, 0)
        forms = [
            Form(spec_of(message).tag, columns, is_command=self.plan.plan_for(message).is_command)
            for message, (columns, _) in zip(self.messages, fields, strict=True)
        ]
        self._layout = Layout(LAYOUT_FORMAT, self.plan.kind, max(end for _, end in fields), forms, row_bytes, rows)
        made = [_template(action, texts or {}) for action in actions]
        widest = max((slots for _, slots in made), default=0)
        self.templates = Templates(
            LAYOUT_FORMAT, self.plan.kind, ACTION_HEAD_BYTES + widest * SLOT_BYTES, [template for template, _ in made]
        )
        self.prepared = False

    @property
    def layout(self) -> Layout:
        return self._layout

    def prepare(self, say: Say) -> None:
        say("nothing to compile")
        self.prepared = True

    def table(self) -> Table:
        return PlainTable(self)


def _template(action: type[Action], texts: Mapping[tuple[type[Action], str], Text]) -> tuple[Template, int]:
    fields: list[tuple[str, Any]] = []
    slots = 0
    hints = get_type_hints(action, include_extras=True)
    for name in own_fields(action):
        if (action, name) in texts:
            fields.append((name, texts[action, name]))
            continue
        code, members = code_of(hints[name])
        fields.append((name, Slot(slots, code, members)))
        slots += 1
    return Template(spec_of(action).tag, fields), slots + 1  # one more, for numbers inside of texts


class Caused(Struct):
    """What one input has caused."""

    records: list[bytes]
    actions: list[tuple[int, bytes]]
    others: list[tuple[int, Effect]]
    size_bytes: int = 0

    def grow(self, size_bytes: int) -> None:
        self.size_bytes += size_bytes
        if self.size_bytes > INPUT_BYTES_MAX:
            raise TooLarge(f"more than {INPUT_BYTES_MAX} bytes of events and effects from one input")


class Halted(Exception):
    def __init__(self, halt: Halt, error: Exception | None = None) -> None:
        self.halt = halt
        self.error = error


class PlainTable:
    """Implements core.tables.Table."""

    def __init__(self, engine: PlainEngine) -> None:
        self._engine = engine
        self._plan: AgentPlan = engine.plan
        self._layout = engine.layout
        self._names: list[str] = []
        self._numbers: dict[str, int] = {}
        self._counts: list[int] = []
        self._checks: list[bytes] = []
        self._ahead: list[Any] = []
        self._durable: list[Any] = []
        self._stopped: dict[int, None] = {}
        self._batched: tuple[str, ...] = ()
        self._newcomer: Any = None
        self._check: Callable[[Effect], None] = lambda _: None
        self._changed: dict[int, None] = {}
        self._noted = (0, 0)
        """Names and enrolments that the last snapshot had."""
        waits = [self._plan.plan_for(message).wait_ns for message in engine.messages]
        self._wait_ns = min(waits)

    @property
    def layout(self) -> Layout:
        return self._layout

    @property
    def layout_digest(self) -> bytes:
        return self._layout.digest()

    @property
    def templates(self) -> Templates:
        return self._engine.templates

    @property
    def templates_digest(self) -> bytes:
        return self.templates.digest()

    @property
    def wait_ns(self) -> int:
        return self._wait_ns

    # ---- who is there

    def __len__(self) -> int:
        return len(self._names)

    def find(self, name: str) -> int:
        return self._numbers.get(name, -1)

    def name(self, agent: int) -> str:
        return self._names[agent]

    @property
    def generation(self) -> int:
        return len(self._counts)

    def check_of(self, generation: int) -> tuple[int, bytes] | None:
        if generation == 0:
            return 0, NO_CHECK
        if not 0 < generation <= len(self._counts):
            return None
        return self._counts[generation - 1], self._checks[generation - 1]

    def enroll(self, names: Sequence[str]) -> None:
        assert not any(name in self._numbers for name in names)
        previous = self._checks[-1] if self._checks else NO_CHECK
        first, self._newcomer = self._newcomer, None
        assert first is None or first.id == names[0]
        for name in names:
            self._add(name, self._plan.cls(id=name) if first is None else first)
            first = None
        self._counts.append(len(self._names))
        self._checks.append(roster_check(previous, names))

    def _add(self, name: str, agent: Any) -> None:
        self._changed[len(self._names)] = None
        self._numbers[name] = len(self._names)
        self._names.append(name)
        self._ahead.append(agent)
        self._durable.append(self._plan.cls(id=name))

    def stop(self, agent: int, stopped: bool) -> None:
        assert 0 <= agent < len(self)
        self._stopped.pop(agent, None)
        if stopped:
            self._stopped[agent] = None

    # ---- stepping

    def batch(self, tags: Sequence[str]) -> None:
        self._batched = tuple(tags)

    def check_effects(self, check: Callable[[Effect], None]) -> None:
        self._check = check

    def step(
        self,
        records: bytes | memoryview,
        start: int,
        known: int,
        room_bytes: int,
        now_ns: int,
        *,
        newcomer: str = "",
    ) -> Stretch:
        width = self._layout.record_bytes
        count, rest = divmod(len(records), width)
        assert not rest
        assert room_bytes >= INPUT_BYTES_MAX
        assert not newcomer or (count == 1 and known == len(self))
        self._newcomer = None
        kept: list[bytes] = []
        actions: list[bytes] = []
        others: list[tuple[int, int, Effect]] = []
        halt, error, number = Halt.END, None, start
        token = step_time_ns.set(now_ns)
        try:
            while number < count:
                record = bytes(records[number * width : (number + 1) * width])
                agent, message = self._opened(record, known, newcomer, alone=count == 1)
                changed, caused = self._caused(agent, message, newcomer, now_ns)
                if caused.size_bytes > room_bytes:
                    raise Halted(Halt.FULL)
                room_bytes -= caused.size_bytes
                base = len(kept)
                for place, action in caused.actions:
                    cause = NOT_KEPT if place < 0 else base + place
                    actions.append(action[:8] + cause.to_bytes(4, "little") + action[12:])
                others += [(place if place < 0 else base + place, agent, effect) for place, effect in caused.others]
                if agent == len(self):
                    self._newcomer = changed if caused.records or caused.actions else None
                elif caused.records:
                    self._ahead[agent] = changed
                    self._changed[agent] = None
                kept += caused.records
                number += 1
        except Halted as halted:
            halt, error = halted.halt, halted.error
        finally:
            step_time_ns.reset(token)
        return Stretch(number - start, b"".join(kept), len(kept), b"".join(actions), len(actions), others, halt, error)

    def _opened(self, record: bytes, known: int, newcomer: str, *, alone: bool) -> tuple[int, Message]:
        """The agent and the message of a record. The head is looked at first, in this order."""
        agent, number = int.from_bytes(record[:4], "little"), int.from_bytes(record[4:6], "little")
        if number >= self._engine.inputs or (self._layout.forms[number].is_command and not alone):
            raise Halted(Halt.UNKNOWN_FORM)
        if agent >= known + bool(newcomer):
            raise Halted(Halt.UNKNOWN_AGENT)
        if agent in self._stopped:
            raise Halted(Halt.STOPPED)
        form = self._layout.forms[number]
        spare = bytearray(record)
        spare[:6] = bytes(6)
        for column in form.columns:
            value = record[column.offset : column.offset + column.size_bytes]
            if column.code == "b1" and value not in (b"\0", b"\1"):
                raise Halted(Halt.BAD_VALUE, Malformed(f"{form.tag}.{column.name}: {value.hex()} is no boolean"))
            spare[column.offset : column.offset + column.size_bytes] = bytes(column.size_bytes)
        if any(spare):
            raise Halted(Halt.BAD_VALUE, Malformed(f"{form.tag}: a spare byte is in use"))
        try:
            (read,) = read_records(record, self._layout)
            message = self._plan.decode(read.body)
        except (*UNDECODABLE, JournalCorrupt) as error:
            raise Halted(Halt.BAD_VALUE, Malformed(f"{form.tag}: {error}")) from None
        return agent, message

    def _caused(self, number: int, message: Message, newcomer: str, now_ns: int) -> tuple[Any, Caused]:
        """Decides, evolves and reacts, on a copy."""
        agent = self._plan.cls(id=newcomer) if number == len(self) else self._plan.copy(self._ahead[number])
        caused = Caused([], [], [])
        try:
            plan = self._plan.plan_for(type(message))
            decided: list[Any] = [message] if plan.decide is None else list(plan.decide(agent, message) or ())
            for event in decided:
                plan = self._plan.plan_for(type(event))
                if plan.evolve is not None:
                    plan.evolve(agent, event)
                place = -1
                if plan.promise is not Keeping.TRANSIENT:
                    place = len(caused.records)
                    caused.records.append(self.record_of(number, event))
                    caused.grow(self._layout.record_bytes)
                for effect in () if plan.react is None else plan.react(agent, event) or ():
                    self._react(caused, number, agent.id, place, effect, now_ns)
            _check_row(self._layout, structs.asdict(agent))
        except Rejection as rejection:
            raise Halted(Halt.REFUSED, rejection) from None
        except Exception as error:
            raise Halted(Halt.FAULT, error) from None
        return agent, caused

    def _react(self, caused: Caused, number: int, name: str, place: int, effect: Effect, now_ns: int) -> None:
        tag = spec_of(type(effect)).tag
        if isinstance(effect, Action) and tag in self._batched:
            caused.actions.append((place, self._action(number, name, effect, tag)))
            caused.grow(self.templates.action_bytes)
            return
        if not isinstance(effect, Tell | Publish | Action):
            timer_body(effect, now_ns)
        self._check(effect)
        caused.others.append((place, effect))
        caused.grow(len(encode(effect)) + OTHER_BYTES)

    def _action(self, number: int, name: str, effect: Action, tag: str) -> bytes:
        """The record of a batched action, without its cause."""
        place = [template.tag for template in self.templates.templates].index(tag)
        data = bytearray(self.templates.action_bytes)
        data[:4] = number.to_bytes(4, "little")
        data[4:6] = place.to_bytes(2, "little")
        slots = memoryview(data)[ACTION_HEAD_BYTES:]
        for field, part in self.templates.templates[place].fields:
            value = getattr(effect, field)
            if isinstance(part, Slot):
                stored = value
                if part.code == "e2":
                    stored = [member for _, member in part.members].index(encode(value))
                elif part.code.startswith("S"):
                    slots[part.slot * 8 : part.slot * 8 + len(value)] = value
                    continue
                code = "f8" if part.code == "f8" else "i8"
                column = Column(field, code, ACTION_HEAD_BYTES + part.slot * SLOT_BYTES)
                write_columns([column], {field: stored}, data, tag)
            else:
                assert isinstance(part, Text)
                assert text_of(part, self._layout.kind, bytes(slots), number, lambda _: name) == value
        return bytes(data)

    def record_of(self, agent: int, message: Message) -> bytes:
        number = self._engine.messages.index(type(message))
        fields = {
            name: canonical_nan(value) if isinstance(value, float) else value
            for name, value in structs.asdict(message).items()
        }
        return write_record(self._layout, number, agent, fields)

    # ---- following

    def fold(self, records: bytes | memoryview, layout: Layout, now_ns: int) -> None:
        self._fold(self._ahead, bytes(records), layout, now_ns)

    def _fold(self, rows: list[Any], records: bytes, layout: Layout, now_ns: int) -> None:
        token = step_time_ns.set(now_ns)
        try:
            for record in read_records(records, layout):
                if record.agent >= len(rows):
                    raise FoldMismatch(f"agent {record.agent} is not enrolled")
                event = self._plan.decode_kept(record.body)
                if event is None:
                    continue
                plan = self._plan.plan_for(type(event))
                if plan.evolve is not None:
                    plan.evolve(rows[record.agent], event)
                if rows is self._ahead:
                    self._changed[record.agent] = None
        except FoldMismatch:
            raise
        except Exception as error:
            raise FoldMismatch(f"today's code cannot fold {layout.kind} ({error})") from error
        finally:
            step_time_ns.reset(token)

    def follow(self, records: bytes | memoryview, now_ns: int) -> None:
        self._fold(self._durable, bytes(records), self._layout, now_ns)

    def image(self, count: int) -> None:
        """To fold once more is what is tested here."""

    def adopt(self, image: object) -> None:
        raise AssertionError("there are no images")

    def catch_up(self) -> None:
        self._durable = [self._plan.copy(agent) for agent in self._ahead]

    def agent(self, number: int, *, ahead: bool = False) -> Any:
        return self._plan.copy((self._ahead if ahead else self._durable)[number])

    # ---- snapshots

    def _row(self, agent: Any) -> bytes:
        data = bytearray(self._layout.row_bytes)
        fields = {
            name: canonical_nan(value) if isinstance(value, float) else value
            for name, value in structs.asdict(agent).items()
        }
        write_columns(self._layout.columns, fields, data, self._layout.kind)
        return bytes(data)

    def begin_snapshot(self, *, full: bool) -> Iterator[bytes]:
        names, enrolments = (0, 0) if full else self._noted
        numbers = range(len(self)) if full else sorted(self._changed)
        rows = [(number, self._row(self._ahead[number])) for number in numbers]
        new_names = self._names[names:]
        generations = list(zip(self._counts, self._checks, strict=True))[enrolments:]
        self._changed = {}
        self._noted = (len(self._names), len(self._counts))
        return self._parts_of(full, names, new_names, generations, rows)

    def _parts_of(
        self,
        full: bool,
        first: int,
        names: list[str],
        generations: list[tuple[int, bytes]],
        rows: list[tuple[int, bytes]],
    ) -> Iterator[bytes]:
        """Names and enrolments first, then rows, three a part: a generator, so that it is asked part by part."""
        if full or names or rows:
            yield zlib.compress(encode((full, first, names, generations, rows[:3])))
        for at in range(3, len(rows), 3):
            yield zlib.compress(encode((False, len(self._names), [], [], rows[at : at + 3])))

    def load(self, part: bytes, layout: Layout) -> None:
        try:
            full, first, names, generations, rows = _parts.decode(zlib.decompress(part))
        except (*UNDECODABLE, zlib.error) as error:
            raise JournalCorrupt(f"a part of a table does not decode ({error}); an older snapshot is used") from None
        if layout.columns != self._layout.columns:
            raise FoldMismatch(f"{layout.kind} has other columns now; keep the whole log so that it can be replayed")
        if full:
            self._names, self._numbers, self._counts, self._checks = [], {}, [], []
            self._ahead, self._durable, self._stopped = [], [], {}
        if names and first != len(self._names):
            raise JournalCorrupt("a part of a table has the names of others; an older snapshot is used")
        for name in names:
            self._add(name, self._plan.cls(id=name))
        self._counts += [count for count, _ in generations]
        self._checks += [check for _, check in generations]
        for number, row in rows:
            fields = read_columns(self._layout.columns, row)
            body = encode({"id": self._names[number], **fields})
            self._ahead[number] = self._plan.restore(body)
        self._changed = {}
        self._noted = (len(self._names), len(self._counts))

    def digest(self) -> bytes:
        rows = [(name, canonical_bytes(agent)) for name, agent in zip(self._names, self._ahead, strict=True)]
        return blake3(encode((rows, self._counts, self._checks))).digest()


def _check_row(layout: Layout, fields: dict[str, Any]) -> None:
    """Raises unless a state can be a row. An int that grew too large is what docs/compiled.md says it is."""
    if any(isinstance(value, int) and not -(2**63) <= value < 2**63 for value in fields.values()):
        raise OverflowError("an int outside of -2^63 to 2^63 - 1")
    write_columns(layout.columns, fields, bytearray(layout.row_bytes), "a row")


def compiled(engine: PlainEngine) -> AgentPlan:
    """The plan of a class whose agents are in tables of this engine."""
    return structs.replace(engine.plan, engine=engine)
