"""Decisions: what a `yield` or a refusal in a @decide handler comes to."""

from __future__ import annotations

import ast

from stigmergy.compiled.effects import Effecting
from stigmergy.compiled.fields import CONFIRMATIONS
from stigmergy.compiled.frames import SLOTS_COUNT_MAX, Body, Lines, Unit
from stigmergy.compiled.sources import Source
from stigmergy.compiled.texts import Slots
from stigmergy.core.agent import Rejection
from stigmergy.core.columns import text_of
from stigmergy.core.messages import Event, Message
from stigmergy.core.supervision import FACTS
from stigmergy.core.tables import Halt


class Deciding(Effecting):
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
