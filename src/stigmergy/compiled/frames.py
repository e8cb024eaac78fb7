"""Frames: the context in which one function is compiled, and its output lines. Text in, text out."""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from msgspec import Struct

from stigmergy.agents.columns import Column, Halt, Template
from stigmergy.agents.messages import Message
from stigmergy.compiled.faults import Findings, Make, always, shown
from stigmergy.compiled.fields import Field, width_of
from stigmergy.compiled.program import Making, Site
from stigmergy.compiled.sources import Source
from stigmergy.compiled.values import BOOL, FLOAT, INT, REFUSED, Value, ValueKind, is_atom, word_count

SLOTS_AT = 8
SLOTS_COUNT_MAX = 48
ACTION_WORDS = "@action_words"
ZEROS = "@zeros"
"""Stand for what is known only when all effects have been seen: how wide an action is, and so what of it is spare."""
VIEWS = {
    "f8": "np.float64",
    "i8": "np.int64",
    "i4": "np.int32",
    "i2": "np.int16",
    "i1": "np.int8",
    "u4": "np.uint32",
    "u2": "np.uint16",
    "u1": "np.uint8",
}
_STORED_AS = {"b1": "u1", "e2": "u2"}


class FormInfo(Struct, frozen=True):
    """One message type of the class that is compiled."""

    number: int
    message: type[Message]
    fields: dict[str, Field]
    columns: dict[str, Column]
    is_input: bool
    """Whether it may come from outside; other forms are only yielded."""
    is_kept: bool


class Unit:
    """What all functions of one module share while they are compiled."""

    def __init__(
        self, cls: type[Any], findings: Findings, state: Mapping[str, Field], columns: Mapping[str, Column]
    ) -> None:
        self.cls = cls
        self.findings = findings
        self.state = state
        self.columns = columns
        self.forms: dict[type[Message], FormInfo] = {}
        self.windows: dict[str, Any] = {}
        """A WindowInfo for each window of the class that is taken."""
        self.hints: dict[type[Message], dict[str, Any]] = {}
        """The annotations of all messages that handlers make."""
        self.record_words = 0
        self.row_words = 0
        self.sites: list[Site] = []
        self.templates: list[Template] = []
        self.makings: list[Making] = []
        self.template_numbers: dict[tuple[Any, ...], int] = {}
        """By what was yielded and where: the same handler may be compiled in several places."""
        self.slots_count = 0
        """The most slots of any template."""
        self.timer_names: list[str] | None = None
        """Of a class that has a handler for Woken: all names of timers that it mentions."""
        self.numbered = 0
        self.tables: dict[tuple[str, str], str] = {}
        """Names of constant tables by type and content."""

    def number(self) -> int:
        """A number that no other name in the module has."""
        self.numbered += 1
        return self.numbered

    def table(self, dtype: str, content: str) -> str:
        """The name of a constant table."""
        return self.tables.setdefault((dtype, content), f"TABLE_{len(self.tables)}")


class Lines:
    """Lines of source, indented."""

    def __init__(self) -> None:
        self.lines: list[str] = []
        self._depth = 0

    def add(self, text: str) -> None:
        """One line at the present depth."""
        self.lines.append("    " * self._depth + text)

    def extend(self, other: Lines) -> None:
        """All lines of another, below the present depth."""
        self.lines += ["    " * self._depth + line for line in other.lines]

    @contextmanager
    def block(self, head: str) -> Iterator[None]:
        """What is added inside belongs to this head; nothing inside is `pass`."""
        self.add(head)
        self._depth += 1
        before = len(self.lines)
        yield
        if all(line.lstrip().startswith("#") for line in self.lines[before:]):
            self.add("pass")
        self._depth -= 1


class Body:
    """One way of a record through the module: which columns of the row it needs, and how it ends in a halt."""

    def __init__(self, taken: str, counts: str) -> None:
        self.taken = taken
        self.counts = counts
        """The counts of what is kept and asked for so far, as arguments."""
        self.loaded: dict[str, Field] = {}
        self.stored: dict[str, Field] = {}
        self.windows: dict[str, Any] = {}
        self.fed: dict[str, Any] = {}
        """Windows that are used, and those among them that are added to."""
        self.effects_count = 0
        self.read_inside: set[tuple[Any, str]] = set()
        """Which fields of the state are read by functions that a handler calls."""

    def halt(self, reason: Halt, site: int) -> str:
        """The line that ends the call."""
        return f"return finish(result, {self.taken}, {self.counts}, {int(reason)}, {site})"


class RecordView:
    """Where a message lies while its handlers run: which arrays, which word it begins at, what is read of it."""

    def __init__(self, form: FormInfo, arrays: str, base: str, prefix: str) -> None:
        self.form = form
        self.arrays = arrays
        self.base = base
        self.prefix = prefix
        self.used: dict[str, Field] = {}

    def read(self, name: str) -> Value:
        """A field of the message."""
        field = self.form.fields[name]
        self.used.setdefault(name, field)
        return field_value(field, f"{self.prefix}_{name}")

    def loads(self, lines: Lines) -> None:
        """The lines that load what is read."""
        for name, field in self.used.items():
            value = field_value(field, f"{self.prefix}_{name}")
            load(lines, value, self.form.columns[name], self.arrays, self.base)


class Frame:
    """One function while it is compiled."""

    def __init__(self, unit: Unit, body: Body, source: Source, where: str, role: str, lines: Lines) -> None:
        self.unit = unit
        self.body = body
        self.source = source
        self.where = where
        self.role = role
        """decide, evolve, react, or "" for a function that one of them calls."""
        self.lines = lines
        self.number = unit.number()
        self.self_name = ""
        self.message_name = ""
        self.record: RecordView | None = None
        self.entries: dict[str, RecordView] = {}
        """Entries of windows, by the names that loops over them give them."""
        self.locals: dict[str, Value] = {}
        self.assigned: set[str] | None = set()
        """Locals that surely have a value here; None where no run comes to."""
        self.callers: tuple[Any, ...] = ()
        self.is_command = False

    # ---- saying no, and failing

    def refuse(self, node: ast.AST, reason: str, remedy: str) -> Value:
        """Notes a finding; what is refused has no kind."""
        self.unit.findings.add(
            self.source.file, self.source.line_of(node), self.where, f"`{shown(node)}`: {reason}; {remedy}"
        )
        return REFUSED

    def site(self, node: ast.AST, make: Make) -> int:
        """The number of a place that can come to a halt."""
        self.unit.sites.append(Site(self.source.line_of(node), make))
        return len(self.unit.sites) - 1

    def fault_if(self, condition: str, node: ast.AST, make: Make, slots: tuple[Value, ...] = ()) -> None:
        """Ends the call where a condition holds."""
        with self.lines.block(f"if {condition}:"):
            self.halt(Halt.FAULT, node, make, slots)

    def halt(self, reason: Halt, node: ast.AST, make: Make, slots: tuple[Value, ...] = ()) -> None:
        """Ends the call here."""
        for index, value in enumerate(slots):
            array = "result_f8" if value.kind == FLOAT else "result"
            self.lines.add(f"{array}[{SLOTS_AT + index}] = {value.code}")
        self.lines.add(self.body.halt(reason, self.site(node, make)))

    # ---- temporary names

    def spill(self, value: Value) -> Value:
        """The same value in a form that can be repeated."""
        if value.is_constant or all(is_atom(word) for word in value.words):
            return value
        return self.keep(value, f"t{self.unit.number()}")

    def keep(self, value: Value, name: str) -> Value:
        """Assigns a value to a name of our own."""
        words = name_words(name, value.kind)
        for target, word in zip(words, value.words, strict=True):
            self.lines.add(f"{target} = {word}")
        return Value(value.kind, words, low=value.low, high=value.high)

    @contextmanager
    def aside(self) -> Iterator[Lines]:
        """Collects what is emitted inside, to be put elsewhere."""
        outer, self.lines = self.lines, Lines()
        inner = self.lines
        try:
            yield inner
        finally:
            self.lines = outer

    # ---- the state

    def state(self, name: str) -> Value:
        """A field of the state."""
        field = self.unit.state[name]
        self.body.loaded.setdefault(name, field)
        if not self.role:
            self.body.read_inside.add((self.callers[0], name))
        return field_value(field, f"s_{name}")

    def checked(self, node: ast.AST, value: Value, field: Field, fail: Callable[[], Exception]) -> Value:
        """The value, made sure to be within the bounds of a field that it is stored in."""
        if field.kind == INT and (value.low < field.low or value.high > field.high):
            value = self.spill(value)
            self.fault_if(f"not ({field.low} <= {value.code} <= {field.high})", node, always(fail))
        elif field.bounds:
            value = self.spill(value)
            conditions = [text.format(value=value.code, bound=repr(bound)) for text, bound in field.bounds]
            self.fault_if(f"not ({' and '.join(conditions)})", node, always(fail))
        return value


def name_words(name: str, kind: ValueKind) -> tuple[str, ...]:
    """The names of the words of a value."""
    count = word_count(kind)
    return (name,) if count == 1 else tuple(f"{name}_w{index}" for index in range(count))


def field_value(field: Field, name: str) -> Value:
    """The value that a field has under a name. Only its width counts as known: bytes from a disk may say anything."""
    low, high = width_of(field.code)
    return Value(field.kind, name_words(name, field.kind), low=low, high=high)


def place(column: Column, arrays: str, base: str, word: int = 0) -> str:
    """Where a column lies, as an element of the view that fits; `base` counts words of 8 bytes."""
    code = "i8" if column.code.startswith("S") else _STORED_AS.get(column.code, column.code)
    per_word = 8 // int(code[1:])
    offset = column.offset * per_word // 8 + word
    start = base if per_word == 1 else f"{base} * {per_word}"
    return f"{arrays}_{code}[{start} + {offset}]" if offset else f"{arrays}_{code}[{start}]"


def load(lines: Lines, value: Value, column: Column, arrays: str, base: str) -> None:
    """The lines that load a column."""
    for index, word in enumerate(value.words):
        element = place(column, arrays, base, index)
        if value.kind == BOOL:
            element = f"{element} != 0"
        elif column.code not in ("f8", "i8") and not column.code.startswith("S"):
            element = f"np.int64({element})"
        lines.add(f"{word} = {element}")


def store(lines: Lines, value: Value, column: Column, arrays: str, base: str) -> None:
    """The lines that store a value; a NaN has one set of bytes, wherever it comes from."""
    for index, word in enumerate(value.words):
        text = word
        if value.kind == FLOAT and not value.is_constant:
            text = f"{word} if {word} == {word} else NAN"
        lines.add(f"{place(column, arrays, base, index)} = {text}")
