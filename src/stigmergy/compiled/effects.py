"""Effects: what a `yield` in a @react handler asks for: a template with numbers in slots, and how to make it."""

from __future__ import annotations

import ast
from typing import Any

from stigmergy.compiled.faults import Make, NameOf, number_at
from stigmergy.compiled.fields import CONFIRMATIONS
from stigmergy.compiled.frames import Body, Lines, Unit
from stigmergy.compiled.messages import Made, Messages, text_made
from stigmergy.compiled.program import Making
from stigmergy.compiled.sources import Source
from stigmergy.compiled.texts import Slots
from stigmergy.compiled.values import FLOAT, Value
from stigmergy.core.columns import Constant, Slot, Template
from stigmergy.core.effects import CancelWake, Publish, Tell, WakeMe, WakeMeAt
from stigmergy.core.errors import Bug
from stigmergy.core.messages import Action, Command, Effect, Event, Message, Work, spec_of
from stigmergy.core.timers import MOMENT_S_END, timer_body

TEMPLATES_COUNT_MAX = 1_000
_WAKE_AFTER_S_MAX = 86_400 * 3660
_TIMES: dict[type[Effect], tuple[str, str]] = {
    WakeMe: ("after_s", f"not (0 <= {{value}} <= {_WAKE_AFTER_S_MAX})"),
    WakeMeAt: ("at_s", f"not (-{MOMENT_S_END} < {{value}} < {MOMENT_S_END})"),
}
"""Which times the interpreted engine refuses; see core/timers.py."""


class Effecting(Messages):
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
        to, inside = cls.__struct_fields__
        arguments = self.arguments(node, cls)
        if arguments is None:
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
