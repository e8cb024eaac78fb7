"""Texts: assembled outside of compiled code from constants, numbers in slots and the agent's own name."""

from __future__ import annotations

import ast
import re

from msgspec import Struct

from stigmergy.agents.columns import FORMAT_WIDTH_MAX, Formatted, OwnName, Slot, Text
from stigmergy.compiled.calls import Calls
from stigmergy.compiled.values import BOOL, FLOAT, INT, TEXT, Value, ValueKind

_digits = re.compile(r"\d+")
_CODES = {"int": "i8", "float": "f8", "bool": "b1"}


class Slots:
    """The slots of one record of an effect or of a refusal, in the order in which they are filled."""

    def __init__(self) -> None:
        self.values: list[Value] = []

    def add(self, value: Value) -> int:
        """Takes a value in; returns its first slot."""
        at = len(self.values)
        self.values += [Value(FLOAT if value.kind == FLOAT else INT, (word,)) for word in value.words]
        return at


class TextNumber(Struct, frozen=True):
    """A number inside a text."""

    value: Value
    how: str


class DraftText(Struct, frozen=True):
    """A text whose numbers have no slots yet."""

    pieces: list[str | TextNumber | OwnName]

    def text(self, slots: Slots) -> Text:
        """The text, with its numbers in slots."""
        made: list[str | Formatted | OwnName] = []
        for piece in self.pieces:
            if isinstance(piece, TextNumber):
                number = piece.value
                value = Value(INT, (f"np.int64({number.code})",)) if number.kind == BOOL else number
                made.append(Formatted(slots.add(value), _CODES[number.kind.name], piece.how))
            else:
                made.append(piece)
        return Text(made)

    @property
    def constant(self) -> str | None:
        """The text itself, where it is the same for all."""
        texts = [piece for piece in self.pieces if isinstance(piece, str)]
        return "".join(texts) if len(texts) == len(self.pieces) else None


class Texts(Calls):
    """A frame that compiles texts."""

    def text(self, node: ast.expr) -> DraftText | None:
        """A text; None for what is none, or was refused."""
        draft = self._text(node)
        try:
            for piece in draft.pieces if draft is not None else ():
                (piece.how if isinstance(piece, TextNumber) else str(piece)).encode()
        except UnicodeEncodeError as error:
            self.refuse(node, f"has no bytes in UTF-8 ({error})", "leave half a character out")
            return None
        return draft

    def _text(self, node: ast.expr) -> DraftText | None:
        if isinstance(node, ast.JoinedStr):
            pieces: list[str | TextNumber | OwnName] = []
            for part in node.values:
                if isinstance(part, ast.FormattedValue):
                    piece = self._piece(part)
                    if piece is None:
                        return None
                    pieces.append(piece)
                else:
                    assert isinstance(part, ast.Constant)
                    pieces.append(str(part.value))
            return DraftText(pieces)
        name = self.own_name(node)
        if name is not None:
            return DraftText([name])
        value = self.value(node)
        if not value.is_known:
            return None
        if value.kind != TEXT:
            self.refuse(node, f"{value.kind} where a text is wanted", 'write f"{x}"')
            return None
        return DraftText([value.constant])

    def own_name(self, node: ast.expr) -> OwnName | None:
        """`self.id` or `self.address`."""
        match node:
            case ast.Attribute(value=ast.Name(id=owner), attr=("id" | "address") as attr) if owner == self.self_name:
                return OwnName(with_kind=attr == "address")
            case _:
                return None

    def _piece(self, part: ast.FormattedValue) -> str | TextNumber | OwnName | None:
        how = ""
        if part.conversion != -1:
            self.refuse(part.value, "!r, !s and !a are not on the list of what compiles", "leave it out")
            return None
        if isinstance(part.format_spec, ast.JoinedStr):
            if not all(isinstance(one, ast.Constant) for one in part.format_spec.values):
                self.refuse(part.value, "is formatted in a way that is calculated", "write a constant format")
                return None
            how = "".join(str(one.value) for one in part.format_spec.values if isinstance(one, ast.Constant))
        name = self.own_name(part.value)
        if name is not None:
            if how:
                self.refuse(part.value, "a name is not formatted", "leave the format out")
            return name
        value = self.value(part.value)
        if not value.is_known:
            return None
        if value.kind not in (INT, FLOAT, BOOL) and not value.is_constant:
            self.refuse(
                part.value, f"{value.kind} inside a text", "put numbers there, and enums into fields of their own"
            )
            return None
        return self._formatted(part.value, value, how)

    def _formatted(self, node: ast.expr, value: Value, how: str) -> str | TextNumber | None:
        """A number with its format, which is tried out now: later it may not fail."""
        wide = any(int(digits) > FORMAT_WIDTH_MAX for digits in _digits.findall(how))
        if wide or how.endswith(("c", "n")):
            self.refuse(node, f"the format {how!r} is too wide, or not the same everywhere", "use another")
            return None
        try:
            if value.is_constant:
                return format(value.constant, how)
            format({"int": 1, "float": 1.5, "bool": True}[value.kind.name], how)
        except ValueError as error:
            self.refuse(node, f"the format {how!r} fails ({error})", "use another")
            return None
        return TextNumber(self.spill(value), how)


def slot_of(value: Value, members: list[tuple[str, bytes]], slots: Slots) -> Slot:
    """A number, enum or bytes in slots of its own."""
    kind: ValueKind = value.kind
    if kind == BOOL:
        return Slot(slots.add(Value(INT, (f"np.int64({value.code})",))), "b1")
    if kind.name == "bytes":
        return Slot(slots.add(value), f"S{kind.size}")
    if kind.name in ("enum", "name"):
        return Slot(slots.add(value), "e2", members)
    return Slot(slots.add(value), _CODES[kind.name])
