"""Emits the module of an agent class: `step` and `fold`, each one loop over records with all handlers inlined.

The text depends only on the class, not on its line numbers, so that compiled code is found again.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

from msgspec import Struct

from stigmergy.agents.agent import Handlers
from stigmergy.agents.columns import ACTION_HEAD_BYTES, SLOT_BYTES, Halt
from stigmergy.agents.messages import Command, Message, spec_of
from stigmergy.base.errors import Malformed
from stigmergy.compiled.fields import Field, spare_words, width_of
from stigmergy.compiled.frames import (
    ACTION_WORDS,
    VIEWS,
    ZEROS,
    Body,
    FormInfo,
    Lines,
    RecordView,
    Unit,
    field_value,
    load,
    store,
)
from stigmergy.compiled.program import ALONE, DIRTY_SHIFT, NEWCOMER, NO_CAUSE, NOW_NS, Site
from stigmergy.compiled.sources import source_of
from stigmergy.compiled.statements import YIELDS_COUNT_MAX, Statements
from stigmergy.compiled.values import BOOL, FLOAT, INT, Value, int_text
from stigmergy.compiled.windows import add_to_window, load_windows, store_windows, windows_fed

_ARRAYS = {"in": "records", "row": "rows", "kept": "kept", "actions": "actions", "others": "others"}
_COUNTS = "kept_count, actions_count, others_count"
DEPTH_MAX = 80
"""Python reads source that is indented up to 100 times."""


class Bounds(Struct):
    """How much one input can cause at most."""

    records: int = 1
    actions: int = 0


class Emitter:
    """Writes the module of one class."""

    def __init__(self, unit: Unit, handlers: dict[type[Message], Handlers], *, plain: bool) -> None:
        self._unit = unit
        self._handlers = handlers
        self._plain = plain
        self.bounds = Bounds()
        self.adds = dict.fromkeys(unit.windows, 1)
        """How many events one input can add to each window."""

    def module(self) -> str:
        """The text of the module. Findings are in the unit."""
        step, fold = self._step(), self._fold()
        if any(line.startswith(" " * 4 * DEPTH_MAX) for line in (*step.lines, *fold.lines)):
            self._unit.findings.add_of(self._unit.cls, self._unit.cls.__name__, "nested too deep; use fewer ifs in ifs")
        unit, name = self._unit, self._unit.cls.__name__
        lines = [
            f'"""{name}, to be compiled: made from its own source. Records of {unit.record_words * 8} bytes, rows of '
            f'{unit.row_words * 8}."""',
            "",
            "import numpy as np",
            "",
            "from stigmergy.compiled.arithmetic import add, finish, multiply, remainder, subtract",
            "",
            'NAN = float("nan")',
            'INFINITY = float("inf")',
            *(f"{table} = np.array([{content}], dtype={dtype})" for (dtype, content), table in unit.tables.items()),
            *("", "", *step.lines, "", "", *fold.lines, ""),
        ]
        return "\n".join(lines)

    # ---- step

    def _step(self) -> Lines:
        loop = Lines()
        with loop.block("for i in range(start, end):"):
            self._heads(loop, f"i * {self._unit.record_words}")
            self._check_head(loop)
            inputs = [form for form in self._unit.forms.values() if form.is_input]
            for index, form in enumerate(inputs):
                loop.add(f"# {spec_of(form.message).tag}")
                with loop.block(f"{'if' if index == 0 else 'elif'} form == {form.number}:"):
                    self._input(loop, form)
        step = Lines()
        parameters = "records, start, end, known, flags_of_call, rows, stopped, dirty, kept, actions, others, batched"
        with step.block(f"def step({parameters}, now, result):"):
            self._views(step, loop)
            action_bytes = ACTION_HEAD_BYTES + SLOT_BYTES * self._unit.slots_count
            step.add("result_f8 = result.view(np.float64)")
            step.add(f"kept_room = kept.size // {self._unit.record_words * 8}")
            step.add(f"actions_room = actions.size // {action_bytes}")
            step.add(f"others_room = others.size // {action_bytes}")
            step.add(f"agents_end = known + (flags_of_call & {NEWCOMER})")
            for name in ("kept_count", "actions_count", "others_count"):
                step.add(f"{name} = 0")
            loop.lines = _widened(loop.lines, action_bytes // 8)
            step.extend(loop)
            step.add(f"return finish(result, end - start, {_COUNTS}, {int(Halt.END)}, 0)")
        return step

    def _views(self, lines: Lines, body: Lines) -> None:
        """Views of the bytes, taken once; only those that are used."""
        text = "\n".join(body.lines)
        for prefix, array in _ARRAYS.items():
            for code, dtype in VIEWS.items():
                if re.search(rf"\b{prefix}_{code}\[", text):
                    lines.add(f"{prefix}_{code} = {array}.view({dtype})")

        if re.search(r"\bnow_ns\b", text):
            lines.add(f"now_ns = result[{NOW_NS}]")

    def _slots_view(self, lines: Lines, body: Lines) -> None:
        if any("result_f8[" in line for line in body.lines):
            lines.add("result_f8 = result.view(np.float64)")

    def _heads(self, lines: Lines, base: str) -> None:
        lines.add(f"base = {base}")
        lines.add("head = in_i8[base]")
        lines.add("agent = head & 0xFFFFFFFF")
        lines.add("form = (head >> 32) & 0xFFFF")

    def _check_head(self, lines: Lines) -> None:
        """Form, agent, stopped: in this order, before anything else."""
        body = Body("i - start", _COUNTS)
        unknown = [f"form >= {len(self._unit.forms)}"]
        for form in self._unit.forms.values():
            if not form.is_input:
                unknown.append(f"form == {form.number}")
            elif issubclass(form.message, Command):
                unknown.append(f"(form == {form.number} and flags_of_call & {ALONE} == 0)")
        for condition, halt in (
            (" or ".join(unknown), Halt.UNKNOWN_FORM),
            ("agent >= agents_end", Halt.UNKNOWN_AGENT),
            ("stopped[agent] != 0", Halt.STOPPED),
        ):
            lines.add(f"if {condition}:")
            lines.add(f"    {body.halt(halt, 0)}")
        lines.add(f"row = agent * {self._unit.row_words}")

    def _input(self, lines: Lines, form: FormInfo) -> None:
        """All that one input can cause. Rows and counts change at its end, when nothing can fail any more."""
        body = Body("i - start", _COUNTS)
        handlers = self._handlers.get(form.message, Handlers())
        inner = Lines()
        if handlers.decide is not None:
            records = self._decide(inner, body, form, handlers.decide)
        else:
            records = self._take(inner, body, form)
        self._note_bounds(form, records, body.effects_count)
        room = [f"kept_count + {records} > kept_room"] if records else []
        if body.effects_count:
            room += [f"{one}_count + {body.effects_count} > {one}_room" for one in ("actions", "others")]
        if room:
            lines.add(f"if {' or '.join(room)}:")
            lines.add(f"    {body.halt(Halt.FULL, 0)}")
        self._check_values(lines, body, form)
        self._load_state(lines, body)
        if body.effects_count:
            lines.add("new_actions = actions_count")
            lines.add("new_others = others_count")
        lines.extend(inner)
        self._store_state(lines, body)
        if handlers.decide is not None:
            lines.add("kept_count = new_kept")
        elif form.is_kept:
            lines.add("kept_count += 1")
        if body.effects_count:
            lines.add("actions_count = new_actions")
            lines.add("others_count = new_others")

    def _take(self, lines: Lines, body: Body, form: FormInfo) -> int:
        """An event without `decide`: kept as it came. Returns how many records it writes."""
        record = RecordView(form, "in", "base", f"e{self._unit.number()}")
        writes = form.is_kept and not self._plain
        if writes:
            lines.add(f"to = kept_count * {self._unit.record_words}")
            for word in range(self._unit.record_words):
                lines.add(f"kept_i8[to + {word}] = in_i8[base + {word}]")
        self._apply(lines, body, record, "kept_count" if form.is_kept else str(NO_CAUSE))
        return 1 if writes else 0

    def _decide(self, lines: Lines, body: Body, form: FormInfo, handler: Callable[..., Any]) -> int:
        """What a decision yields is queued behind the kept records, then evolved and reacted to one by one."""
        record = RecordView(form, "in", "base", f"e{self._unit.number()}")
        inner = Lines()
        frame = self._frame(handler, "decide", body, record, inner)
        yielded: dict[type[Message], int] = {}
        queued = 0
        if frame is not None:
            frame.is_command = issubclass(form.message, Command)
            frame.run()
            yielded, queued = frame.yielded, frame.queued_max
        record.loads(lines)
        lines.add("queued = 0")
        lines.extend(inner)
        lines.add("new_kept = kept_count")
        known = self._unit.forms
        forms = [known[message] for message in known if message in yielded]
        thinned = not all(one.is_kept for one in forms)
        for name, info in self._unit.windows.items():
            self.adds[name] = max(self.adds[name], yielded.get(info.form.message, 0))
        effects = 0
        if forms:
            with lines.block("for place in range(queued):"):
                lines.add(f"at_event = (kept_count + place) * {self._unit.record_words}")
                lines.add("decided = kept_i8[at_event] >> 32")
                for index, one in enumerate(forms):
                    before = body.effects_count
                    lines.add(f"# {spec_of(one.message).tag}")
                    with lines.block(f"{'if' if index == 0 else 'elif'} decided == {one.number}:"):
                        self._decided(lines, body, one, thinned=thinned)
                    effects += (body.effects_count - before) * yielded[one.message]
        body.effects_count = effects
        return queued

    def _decided(self, lines: Lines, body: Body, form: FormInfo, *, thinned: bool) -> None:
        """One event of a decision."""
        record = RecordView(form, "kept", "at_event", f"e{self._unit.number()}")
        self._apply(lines, body, record, "new_kept" if form.is_kept else str(NO_CAUSE))
        if form.is_kept and thinned:
            # Behind one that is not kept, the others move up.
            lines.add(f"to = new_kept * {self._unit.record_words}")
            with lines.block("if to != at_event:"):
                for word in range(self._unit.record_words):
                    lines.add(f"kept_i8[to + {word}] = kept_i8[at_event + {word}]")
        if form.is_kept:
            lines.add("new_kept += 1")

    def _apply(self, lines: Lines, body: Body, record: RecordView, cause: str, *, reacts: bool = True) -> None:
        """Evolves and reacts."""
        handlers = self._handlers.get(record.form.message, Handlers())
        inner = Lines()
        for info in windows_fed(self._unit, record.form.message):
            add_to_window(inner, self._unit, body, record, info)
        if handlers.evolve is not None:
            frame = self._frame(handlers.evolve, "evolve", body, record, inner)
            if frame is not None:
                frame.run()
        if handlers.react is not None and reacts:
            frame = self._frame(handlers.react, "react", body, record, inner)
            if frame is not None:
                frame.cause = cause
                frame.run()
        record.loads(lines)
        lines.extend(inner)

    def _frame(
        self, handler: Callable[..., Any], role: str, body: Body, record: RecordView, lines: Lines
    ) -> Statements | None:
        """A frame for a handler; None, with a finding, where its source cannot be read."""
        unit = self._unit
        where = f"{unit.cls.__name__}.{handler.__name__}"
        try:
            source = source_of(handler)
        except (OSError, SyntaxError) as error:
            unit.findings.add("", 0, where, f"its source cannot be read ({error}); define it in a file")
            return None
        lines.add(f"# {where}")
        frame = Statements(unit, body, source, where, role, lines)
        frame.self_name, frame.message_name = source.parameters
        frame.record = record
        frame.callers = (handler,)
        return frame

    def _note_bounds(self, form: FormInfo, records: int, effects: int) -> None:
        if max(records, effects) > YIELDS_COUNT_MAX:
            self._unit.findings.add_of(
                self._unit.cls,
                f"{self._unit.cls.__name__} with {form.message.__name__}",
                f"{records} events and {effects} effects of one input; cause at most {YIELDS_COUNT_MAX} of each",
            )
        self.bounds.records = max(self.bounds.records, records)
        self.bounds.actions = max(self.bounds.actions, effects)

    # ---- rows

    def _load_state(self, lines: Lines, body: Body) -> None:
        for name, field in body.loaded.items():
            load(lines, field_value(field, f"s_{name}"), self._unit.columns[name], "row", "row")
        load_windows(lines, body)

    def _store_state(self, lines: Lines, body: Body) -> None:
        for name, field in body.stored.items():
            store(lines, field_value(field, f"s_{name}"), self._unit.columns[name], "row", "row")
        store_windows(lines, body)
        if body.stored or body.fed:
            lines.add(f"dirty[agent >> {DIRTY_SHIFT}] = 1")

    # ---- values that come from outside

    def _check_values(self, lines: Lines, body: Body, form: FormInfo) -> None:
        """Spare bytes are zero, and each value is one that the message allows."""
        tag = form.message.__name__
        spare = ["(head >> 48)"]
        for word, mask in spare_words(list(form.columns.values()), self._unit.record_words * 8):
            element = f"in_i8[base + {word}]"
            spare.append(element if mask == -1 else f"({element} & {int_text(mask)})")
        self._bad_if(
            lines, body, f"{' | '.join(spare)} != 0", f"{tag}: bytes outside of its fields; fill them with zeros"
        )
        for name, field in form.fields.items():
            condition = _disallowed(field)
            if not condition:
                continue
            value = Value(INT, (f"c_{name}",)) if field.kind == BOOL else field_value(field, f"c_{name}")
            load(lines, value, form.columns[name], "in", "base")
            self._bad_if(lines, body, condition.format(value=f"c_{name}"), f"{tag}.{name}: give {field.said()}")

    def _bad_if(self, lines: Lines, body: Body, condition: str, says: str) -> None:
        site = len(self._unit.sites)
        self._unit.sites.append(Site(0, lambda *_: Malformed(says)))
        lines.add(f"if {condition}:")
        lines.add(f"    {body.halt(Halt.BAD_VALUE, site)}")

    # ---- fold

    def _fold(self) -> Lines:
        """Kept events, folded with `evolve` alone."""
        loop = Lines()
        body = Body("i", "0, 0, 0")
        kept = [form for form in self._unit.forms.values() if form.is_kept]
        with loop.block("for i in range(count):"):
            self._heads(loop, f"i * {self._unit.record_words}")
            with loop.block("if agent >= agents_end:"):
                loop.add(body.halt(Halt.UNKNOWN_AGENT, 0))
            loop.add(f"row = agent * {self._unit.row_words}")
            for index, form in enumerate(kept):
                loop.add(f"# {spec_of(form.message).tag}")
                with loop.block(f"{'if' if index == 0 else 'elif'} form == {form.number}:"):
                    self._folded(loop, form)
            if kept:
                loop.add("else:")
                loop.add(f"    {body.halt(Halt.UNKNOWN_FORM, 0)}")
        fold = Lines()
        with fold.block("def fold(records, count, rows, dirty, now, result):"):
            self._views(fold, loop)
            self._slots_view(fold, loop)
            fold.add(f"agents_end = rows.size // {self._unit.row_words * 8}")
            fold.extend(loop)
            fold.add(f"return finish(result, count, 0, 0, 0, {int(Halt.END)}, 0)")
        return fold

    def _folded(self, lines: Lines, form: FormInfo) -> None:
        body = Body("i", "0, 0, 0")
        inner = Lines()
        self._apply(inner, body, RecordView(form, "in", "base", f"e{self._unit.number()}"), "0", reacts=False)
        self._load_state(lines, body)
        lines.extend(inner)
        self._store_state(lines, body)


def _widened(lines: list[str], words: int) -> list[str]:
    """The lines, now that it is known how many words an action has."""
    made: list[str] = []
    for line in lines:
        text = line.lstrip()
        if text.startswith(ZEROS):
            _, array, first = text.split()
            indent = line[: len(line) - len(text)]
            made += [f"{indent}{array}_i8[at + {word}] = 0" for word in range(int(first), words)]
        else:
            made.append(line.replace(ACTION_WORDS, str(words)))
    return made


def _disallowed(field: Field) -> str:
    """The condition under which a value that came is none of this field's; empty if all are."""
    if field.kind == INT:
        return (
            "" if (field.low, field.high) == width_of(field.code) else f"not ({field.low} <= {{value}} <= {field.high})"
        )
    if field.kind == BOOL:
        return "{value} > 1"
    if field.kind.name in ("enum", "name"):
        return f"{{value}} >= {len(field.members)}"
    if field.kind == FLOAT and field.bounds:
        conditions = [text.format(value="{value}", bound=repr(bound)) for text, bound in field.bounds]
        return f"not ({' and '.join(conditions)})"
    return ""
