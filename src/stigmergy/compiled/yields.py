"""Messages: what a `yield` makes. An event becomes a record behind those that are kept, an effect a record of slots.

All arguments of a message are evaluated first, in the order of the source; then its fields are checked against their
bounds, in the order of their declaration.
"""

from __future__ import annotations

import ast
from collections.abc import Callable
from typing import Any

import msgspec
from msgspec import Struct

from stigmergy.agents.agent import FACTS, Rejection
from stigmergy.agents.codec import UNDECODABLE, encode
from stigmergy.agents.columns import Constant, Halt, Slot, Template, TemplatePart, Text, text_of
from stigmergy.agents.effects import CancelWake, Publish, Tell, WakeMe, WakeMeAt
from stigmergy.agents.messages import (
    BINDING,
    Action,
    Bindable,
    Command,
    Effect,
    Event,
    Message,
    Work,
    newer_version,
    own_fields,
    spec_of,
)
from stigmergy.base.errors import Bug
from stigmergy.compiled import faults
from stigmergy.compiled.faults import Make, NameOf, number_at
from stigmergy.compiled.fields import CONFIRMATIONS, Field, Refusal, field_of
from stigmergy.compiled.frames import ACTION_WORDS, SLOTS_COUNT_MAX, ZEROS, Body, FormInfo, Lines, Unit, store
from stigmergy.compiled.program import Making
from stigmergy.compiled.sources import MISSING, Source
from stigmergy.compiled.texts import DraftText, Slots, Texts, slot_of
from stigmergy.compiled.values import BOOL, FLOAT, INT, Value
from stigmergy.shard.timers import MOMENT_S_END, timer_body

Build = Callable[[bytes, int, NameOf], Any]
"""Makes the value of a field, given the slots, the agent's number and who tells names."""


class Given(Struct, frozen=True):
    """An argument of a message, evaluated."""

    node: ast.expr
    value: Value | None = None
    draft: DraftText | None = None
    constant: Any = MISSING


class Made(Struct, frozen=True):
    """A field of an effect: how it is declared in the log, and how it is made."""

    part: TemplatePart
    build: Build


class Messages(Texts):
    """A frame that compiles the making of messages."""

    def message_class(self, node: ast.expr) -> type[Message] | None:
        """The class of the message that an expression makes, if it does."""
        if not isinstance(node, ast.Call):
            return None
        found = self.source.resolve(node.func)
        return found if isinstance(found, type) and issubclass(found, Message) else None

    def arguments(self, node: ast.Call, cls: type[Message]) -> dict[str, ast.expr] | None:
        """The expressions of a message's fields in the order of the source; without those left to defaults."""
        if any(isinstance(one, ast.Starred) for one in node.args) or any(one.arg is None for one in node.keywords):
            self.refuse(node, "is given *arguments", "name the fields")
            return None
        places: tuple[str, ...] = cls.__match_args__
        given = {
            **dict(zip(places, node.args, strict=False)),
            **{str(one.arg): one.value for one in node.keywords},
        }
        fields = own_fields(cls)
        if BINDING in given and issubclass(cls, Bindable):
            says = "is bound to a claim, and compiled agents have none"
            self.refuse(node, says, "run agents of this kind interpreted")
            return None
        needed = [name for name in fields if name not in dict(given_defaults(cls))]
        wrong = [name for name in given if name not in fields]
        wrong += [name for name in needed if name not in given]
        if wrong or len(given) != len(node.args) + len(node.keywords):
            says = f"does not fit {cls.__name__}({', '.join(fields)})"
            self.refuse(node, says, "give each of its fields once")
            return None
        return given

    # ---- events that decide yields

    def event_fields(self, node: ast.Call, form: FormInfo) -> dict[str, Value] | None:
        """The values of a new event's fields, checked; None where one was refused."""
        arguments = self.arguments(node, form.message)
        if arguments is None:
            return None
        values: dict[str, Value] = {}
        for name, expression in arguments.items():
            field = form.fields.get(name)
            value = self.value(expression)
            if field is not None and value.is_known:
                value = self.fitting(expression, value, field)
                values[name] = self.spill(value)
        defaults = defaults_of(form.message)
        for name, field in form.fields.items():
            if name not in arguments:
                values[name] = self.fitting(node, self.constant(node, defaults[name]), field)
        if len(values) != len(form.message.__struct_fields__) or not all(one.is_known for one in values.values()):
            return None
        return {
            name: self.checked(node, values[name], field, outside(form.message.__name__, field))
            for name, field in form.fields.items()
        }

    def fitting(self, node: ast.AST, value: Value, field: Field) -> Value:
        """A value as one of a field's kind; an int becomes a float, all else is refused."""
        if not value.is_known or value.kind == field.kind:
            return value
        if field.kind == FLOAT and value.kind == INT:
            return self.to_float(node, value)
        remedy = "write int(x)" if field.kind == INT else "write x != 0" if field.kind == BOOL else "give it one"
        return self.refuse(node, f"{value.kind} for {field.name}, which is {field.kind}", remedy)

    def put_event(self, form: FormInfo, values: dict[str, Value]) -> None:
        """Writes an event behind those that are kept; it counts as one when it has been evolved."""
        self.lines.add(f"at = (kept_count + queued) * {self.unit.record_words}")
        self.lines.add(f"kept_i8[at] = agent | {form.number << 32}")
        covered = {
            word
            for column in form.columns.values()
            if column.size_bytes % 8 == 0
            for word in range(column.offset // 8, (column.offset + column.size_bytes) // 8)
        }
        for word in range(1, self.unit.record_words):
            if word not in covered:
                self.lines.add(f"kept_i8[at + {word}] = 0")
        for name, value in values.items():
            store(self.lines, value, form.columns[name], "kept", "at")
        self.lines.add("queued += 1")

    # ---- effects

    def given(self, node: ast.expr) -> Given | None:
        """An argument of an effect, evaluated; None where it was refused."""
        if isinstance(node, ast.JoinedStr) or self.own_name(node) is not None:
            draft = self.text(node)
            return None if draft is None else Given(node, draft=draft)
        if isinstance(node, ast.Constant) and node.value is None:
            return Given(node, constant=None)
        value = self.value(node)
        if not value.is_known:
            return None
        if value.is_constant:
            return Given(node, value=value, constant=value.constant)
        return Given(node, value=self.spill(value))

    def fields_made(self, node: ast.Call, cls: type[Message], slots: Slots) -> dict[str, Made] | None:
        """The fields of an effect, or of a message inside one; None where one was refused."""
        arguments = self.arguments(node, cls)
        if arguments is None:
            return None
        given = {name: self.given(expression) for name, expression in arguments.items()}
        hints = self.unit.hints[cls]
        defaults = defaults_of(cls)
        made: dict[str, Made] = {}
        for name in own_fields(cls):
            if name not in arguments:
                one = self._constant_made(node, cls, name, hints[name], defaults.get(name, MISSING))
            else:
                argument = given[name]
                one = None if argument is None else self._made(argument, cls, name, hints[name], slots)
            if one is not None:
                made[name] = one
        return made if len(made) == len(own_fields(cls)) else None

    def _constant_made(self, node: ast.AST, cls: type[Message], name: str, hint: Any, value: Any) -> Made | None:
        if value is MISSING:
            self.refuse(node, f"the default of {cls.__name__}.{name} is made anew each time", "give it here")
            return None
        try:
            body = encode(value)
            msgspec.msgpack.decode(body, type=hint)
        except (*UNDECODABLE, TypeError, UnicodeEncodeError) as error:
            self.refuse(node, f"{cls.__name__}.{name} cannot be {value!r:.50} ({error})", "give it a value of its type")
            return None
        return Made(Constant(body), lambda *_: value)

    def _made(self, given: Given, cls: type[Message], name: str, hint: Any, slots: Slots) -> Made | None:
        where = f"{cls.__name__}.{name}"
        if given.constant is not MISSING:
            return self._constant_made(given.node, cls, name, hint, given.constant)
        if given.draft is not None:
            if hint is not str:
                self.refuse(given.node, f"{where} is no plain text", "declare it as str")
                return None
            return text_made(given.draft.text(slots), self.unit.cls.__agent_kind__)
        value = given.value
        assert value is not None
        field = field_of(name, hint)
        if hint is str:
            self.refuse(given.node, f"{value.kind} for {where}, which is a text", 'write f"{x}"')
            return None
        if isinstance(field, Refusal):
            self.refuse(given.node, f"{where}: {field.reason}", field.remedy)
            return None
        if not (field.kind == FLOAT and value.kind == INT):
            value = self.fitting(given.node, value, field)
        if not value.is_known:
            return None
        value = self.checked(given.node, value, field, outside(cls.__name__, field))
        return value_made(slot_of(value, list(field.members), slots), value)

    def passed_on(self, slots: Slots) -> tuple[type[Message], dict[str, Made]]:
        """The observed event itself, as the message inside an effect."""
        assert self.record is not None
        form = self.record.form
        made = {
            name: value_made(slot_of(self.record.read(name), list(field.members), slots), self.record.read(name))
            for name, field in form.fields.items()
        }
        return form.message, made

    def put_effect(self, node: ast.AST, number: int, slots: Slots, cause: str, *, batchable: bool) -> None:
        """Writes an effect: to the batched actions if its actuator is batched, to the others otherwise."""
        if len(slots.values) > SLOTS_COUNT_MAX:
            self.refuse(node, f"{len(slots.values)} numbers in one effect", f"give it at most {SLOTS_COUNT_MAX}")
        self.unit.slots_count = max(self.unit.slots_count, len(slots.values))
        if not batchable:
            self._write_effect("others", number, slots, cause)
            return
        for head, array in ((f"if batched[{number}] != 0:", "actions"), ("else:", "others")):
            with self.lines.block(head):
                self._write_effect(array, number, slots, cause)

    def _write_effect(self, array: str, number: int, slots: Slots, cause: str) -> None:
        self.lines.add(f"at = new_{array} * {ACTION_WORDS}")
        self.lines.add(f"{array}_i8[at] = agent | {number << 32}" if number else f"{array}_i8[at] = agent")
        self.lines.add(f"{array}_i8[at + 1] = {cause}")
        for index, value in enumerate(slots.values):
            if value.kind == FLOAT:
                text = f"{value.code} if {value.code} == {value.code} else NAN"
                self.lines.add(f"{array}_f8[at + {index + 2}] = {text}")
            else:
                self.lines.add(f"{array}_i8[at + {index + 2}] = {value.code}")
        self.lines.add(f"{ZEROS} {array} {len(slots.values) + 2}")
        self.lines.add(f"new_{array} += 1")

    def is_newest(self, node: ast.AST, cls: type[Message]) -> bool:
        """Whether no upcaster carries this message to a newer one."""
        newer = newer_version(cls)
        if newer is not None:
            self.refuse(node, f"an upcaster carries it to {newer.__name__}", f"make {newer.__name__} instead")
        return newer is None


def text_made(text: Text, kind: str) -> Made:
    """A text that is put together from the slots."""
    return Made(text, lambda slots, agent, name_of: text_of(text, kind, slots, agent, name_of))


def value_made(slot: Slot, value: Value) -> Made:
    """A number, enum or bytes from its slots."""
    at, kind = slot.slot, value.kind

    def build(slots: bytes, *_: Any) -> Any:
        if kind.name == "bytes":
            return slots[at * 8 : at * 8 + kind.size]
        number = number_at(slots, at, kind.name)
        if kind.enum is not None:
            return list(kind.enum)[number]
        return kind.names[number] if kind.name == "name" else number

    return Made(slot, build)


def outside(owner: str, field: Field) -> Callable[[], Exception]:
    """What is raised when a value is stored that its field does not allow."""
    if field.kind == INT:
        return lambda: faults.stored_int_outside(owner, field.name, field.low, field.high)
    return lambda: faults.stored_float_outside(owner, field.name)


def given_defaults(cls: type[Any]) -> list[tuple[str, Any]]:
    """The defaults that a struct declares, by field; also the factories among them."""
    names, defaults = cls.__struct_fields__, cls.__struct_defaults__
    given = zip(names[len(names) - len(defaults) :], defaults, strict=True)
    return [(name, default) for name, default in given if default is not msgspec.NODEFAULT and name != BINDING]


def defaults_of(cls: type[Any]) -> dict[str, Any]:
    """The defaults of a struct by field; without those that a factory makes."""
    return {name: default for name, default in given_defaults(cls) if not is_factory(default)}


def is_factory(default: object) -> bool:
    """Whether a default is made anew each time."""
    return type(default).__name__ == "Factory" and type(default).__module__.startswith("msgspec")


# Effects: a `yield` in a @react handler becomes a template with numbers in slots, and a way to make it.

TEMPLATES_COUNT_MAX = 1_000
_WAKE_AFTER_S_MAX = 86_400 * 3660
_TIMES: dict[type[Effect], tuple[str, str]] = {
    WakeMe: ("after_s", f"not (0 <= {{value}} <= {_WAKE_AFTER_S_MAX})"),
    WakeMeAt: ("at_s", f"not (-{MOMENT_S_END} < {{value}} < {MOMENT_S_END})"),
}
"""Which times the interpreted engine refuses; see shard/timers.py."""


class EffectStatements(Messages):
    """A frame that compiles the effects of @react handlers."""

    def __init__(self, unit: Unit, body: Body, source: Source, where: str, role: str, lines: Lines) -> None:
        super().__init__(unit, body, source, where, role, lines)
        self.cause = "0"
        """The place of the event behind the effect among those that are kept."""
        self.yielded: dict[type[Message], int] = {}
        """How many events of which type one decision yields at most."""
        self.queued_max = 0
        """How many events it yields at most, of all types together."""

    def yield_effect(self, node: ast.expr) -> None:
        """One effect."""
        cls = self.message_class(node)
        if cls is None or not issubclass(cls, Effect) or not isinstance(node, ast.Call):
            asked = self.source.resolve(node.func) if isinstance(node, ast.Call) else None
            if hasattr(getattr(asked, "__self__", None), "__model__"):
                self.refuse(node, "asks a model", "run agents of this kind interpreted, or let another agent ask")
                return
            self.refuse(node, "is no effect that is made in place", "write yield SomeAction(…)")
            return
        slots = Slots()
        if issubclass(cls, Action | Work):
            fields = self.fields_made(node, cls, slots)
            if fields is not None:
                template = Template(spec_of(cls).tag, [(name, made.part) for name, made in fields.items()])
                self._put(node, cls, template, fields, slots)
        elif cls in (Tell, Publish):
            self._sending(node, cls, slots)
        elif cls in (WakeMe, WakeMeAt, CancelWake):
            self._timer(node, cls, slots)
        else:
            self.refuse(node, f"nobody carries out {cls.__name__}", "subclass Action or Work")

    def _put(self, node: ast.AST, cls: type[Effect], template: Template, fields: dict[str, Made], slots: Slots) -> None:
        message = None if self.record is None else self.record.form.message
        place = (self.source.function, message, getattr(node, "lineno", 0), getattr(node, "col_offset", 0))
        number = self.unit.template_numbers.setdefault(place, len(self.unit.templates))
        if number >= TEMPLATES_COUNT_MAX:
            self.refuse(node, "too many effects in one class", f"use at most {TEMPLATES_COUNT_MAX}")
            return
        self.put_effect(node, number, slots, self.cause, batchable=issubclass(cls, Action | Work))
        if number < len(self.unit.templates):
            return
        self.unit.templates.append(template)

        def make(data: bytes, agent: int, name_of: NameOf) -> Effect:
            return cls(**{name: made.build(data, agent, name_of) for name, made in fields.items()})

        self.unit.makings.append(Making(cls, make))

    def _sending(self, node: ast.Call, cls: type[Effect], slots: Slots) -> None:
        """Tell and Publish: a text, and a message inside."""
        to, inside, *_ = cls.__struct_fields__
        arguments = self.arguments(node, cls)
        if arguments is None:
            return
        for name in arguments:
            if name not in (to, inside):
                self.refuse(node, f"{name} is not compiled", f"leave {name} out, or do not compile this class")
                return
        texts: dict[str, Made] = {}
        for name, expression in arguments.items():
            if name == to:
                draft = self.text(expression)
                if draft is not None:
                    texts[name] = text_made(draft.text(slots), self.unit.cls.__agent_kind__)
            else:
                message = self._message(expression, cls, slots)
                if message is not None:
                    texts[name] = message
        if len(texts) == 2:
            fields = {to: texts[to], inside: texts[inside]}
            self._put(node, cls, Template(spec_of(cls).tag, []), fields, slots)

    def _message(self, node: ast.expr, cls: type[Effect], slots: Slots) -> Made | None:
        """The message inside: made in place, or the event itself."""
        if isinstance(node, ast.Name) and node.id == self.message_name and self.record is not None:
            if self.record.form.message in CONFIRMATIONS:
                self.refuse(node, "texts of it are not kept", "make an event of your own, and give it what counts")
                return None
            message, fields = self.passed_on(slots)
        else:
            found = self.message_class(node)
            wanted = Event if cls is Publish else Command | Event
            if found is None or not issubclass(found, wanted) or not isinstance(node, ast.Call):
                self.refuse(node, "is no message that is made in place", "write SomeEvent(…), or give the event itself")
                return None
            made = self.fields_made(node, found, slots)
            if made is None or not self.is_newest(node, found):
                return None
            message, fields = found, made

        def build(data: bytes, agent: int, name_of: NameOf) -> Any:
            return message(**{name: made.build(data, agent, name_of) for name, made in fields.items()})

        return Made(Constant(b""), build)

    def _timer(self, node: ast.Call, cls: type[Effect], slots: Slots) -> None:
        """WakeMe, WakeMeAt, CancelWake: a name, and a time that is within reason."""
        fields = self.fields_made(node, cls, slots)
        if fields is None:
            return
        if not self.timer_name(node, fields["name"]):
            return
        if cls in _TIMES:
            name, condition = _TIMES[cls]
            part = fields[name].part
            if isinstance(part, Constant):
                try:
                    timer_body(cls(**{"name": "", name: fields[name].build(b"", 0, str)}), 0)
                except ValueError as error:
                    self.refuse(node, f"always fails ({error})", "give another time")
                    return
            elif isinstance(part, Slot):
                value = slots.values[part.slot]
                text = condition.format(value=value.code)
                self.fault_if(text, node, _time_refused(cls, name, part, value), (value,))
        self._put(node, cls, Template(spec_of(cls).tag, []), fields, slots)

    def timer_name(self, node: ast.AST, made: Made) -> bool:
        """Whether the name of a timer is one that may be."""
        if not isinstance(made.part, Constant):
            if self.unit.timer_names is not None:
                self.refuse(node, "the name of a timer that is calculated", "use constant names, or no @… of Woken")
                return False
            return True
        name = made.build(b"", 0, str)
        if self.unit.timer_names is not None and name not in self.unit.timer_names:
            raise Bug(f"{self.where}: the timer {name!r} was not seen before; report it")
        try:
            timer_body(CancelWake(name=name), 0)
        except ValueError as error:
            self.refuse(node, f"always fails ({error})", "choose another name")
            return False
        return True


def _time_refused(cls: type[Effect], name: str, part: Slot, value: Value) -> Make:
    """The very exception that the interpreted engine raises for such a time."""
    kind = "float" if value.kind == FLOAT else part.code

    def make(slots: bytes, *_: Any) -> Exception:
        time_s = number_at(slots, 0, kind)
        try:
            timer_body(cls(**{"name": "", name: time_s}), 0)
        except ValueError as error:
            return error.with_traceback(None)
        raise Bug(f"{cls.__name__}({name}={time_s}) is no fault; report it")

    return make


# Decisions: the result of a `yield` or a refusal in a @decide handler.


class DecideStatements(EffectStatements):
    """A frame that compiles what @decide handlers do."""

    def __init__(self, unit: Unit, body: Body, source: Source, where: str, role: str, lines: Lines) -> None:
        super().__init__(unit, body, source, where, role, lines)
        self.rounds = 1
        """How often the present statement runs at most."""

    def yield_event(self, node: ast.expr) -> None:
        """`yield SomeEvent(…)`, or the observed event itself."""
        if isinstance(node, ast.Name) and node.id == self.message_name and self.record is not None:
            if self.is_command:
                self.refuse(node, "a command is no event", "yield an event that says what follows from it")
                return
            form = self.record.form
            self.lines.add(f"at = (kept_count + queued) * {self.unit.record_words}")
            for word in range(self.unit.record_words):
                self.lines.add(f"kept_i8[at + {word}] = {self.record.arrays}_i8[{self.record.base} + {word}]")
            self.lines.add("queued += 1")
            self._count(form.message)
            return
        cls = self.message_class(node)
        said = cls is not None and issubclass(cls, (*FACTS, *CONFIRMATIONS))
        if cls is None or not issubclass(cls, Event) or said or not isinstance(node, ast.Call):
            self.refuse(node, "is no event that is made in place", "write yield SomeEvent(…)")
            return
        known = self.unit.forms.get(cls)
        if not self.is_newest(node, cls) or known is None:
            return
        self._count(cls)
        values = self.event_fields(node, known)
        if values is not None:
            self.put_event(known, values)

    def _count(self, cls: type[Message]) -> None:
        self.yielded[cls] = self.yielded.get(cls, 0) + self.rounds
        self.queued_max += self.rounds

    def refusal(self, node: ast.Call) -> None:
        """`reject(…)`."""
        if self.role != "decide" or not self.is_command:
            self.refuse(node, "only commands are refused, by their @decide handler", "yield nothing to filter an event")
            return
        if len(node.args) + len(node.keywords) != 1:
            self.refuse(node, "is given no reason", 'write reject("…")')
            return
        draft = self.text(node.args[0] if node.args else node.keywords[0].value)
        if draft is None:
            return
        slots = Slots()
        text, kind = draft.text(slots), self.unit.cls.__agent_kind__
        if len(slots.values) > SLOTS_COUNT_MAX:
            self.refuse(node, f"{len(slots.values)} numbers in one text", f"use at most {SLOTS_COUNT_MAX}")
            return
        self.halt(
            Halt.REFUSED,
            node,
            lambda data, agent, name_of: Rejection(text_of(text, kind, data, agent, name_of)),
            tuple(slots.values),
        )
        self.assigned = None
