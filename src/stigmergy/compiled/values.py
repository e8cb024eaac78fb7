"""The compile-time value of an expression: its kind, the text that computes it, and what is known of it."""

from __future__ import annotations

import enum
import math
from typing import Any

from msgspec import Struct

from stigmergy.compiled.faults import INT_MAX, INT_MIN

NOT_CONSTANT = object()
WORD_BYTES = 8


class ValueKind(Struct, frozen=True):
    """The kind of a value. All ints are i8 while they are calculated with, all floats f8."""

    name: str
    enum: type[enum.Enum] | None = None
    size: int = 0
    """Of bytes: how many."""
    names: tuple[str, ...] = ()
    """Of the name of a timer: which ones there are."""
    open: bool = False
    """Whether there are others, for all of which the last of the names stands."""

    def __str__(self) -> str:
        if self.enum is not None:
            return self.enum.__name__
        return f"{self.size} bytes" if self.name == "bytes" else self.name


INT = ValueKind("int")
FLOAT = ValueKind("float")
BOOL = ValueKind("bool")
TEXT = ValueKind("text")
UNKNOWN = ValueKind("unknown")
"""Of what was refused: nothing that is made of it is worth another finding."""


class Value(Struct, frozen=True):
    """A value: texts of Python expressions without side effects, one for each word it takes."""

    kind: ValueKind
    words: tuple[str, ...] = ()
    constant: Any = NOT_CONSTANT
    low: int = INT_MIN
    high: int = INT_MAX
    """Between which an int surely is."""

    @property
    def code(self) -> str:
        """The one word."""
        return self.words[0]

    @property
    def is_constant(self) -> bool:
        """Whether its value is known."""
        return self.constant is not NOT_CONSTANT

    @property
    def is_known(self) -> bool:
        """Whether it was not refused."""
        return self.kind is not UNKNOWN


REFUSED = Value(UNKNOWN, ("0",))


def constant_of(value: Any) -> Value | None:
    """A constant as a value; None for what has no fixed width. An int may be too large for i8: `fits` tells."""
    if isinstance(value, enum.Enum):
        members = list(type(value))
        return Value(ValueKind("enum", enum=type(value)), (str(members.index(value)),), value)
    # Exactly these types: a number of another library calculates in its own way.
    kind = type(value)
    if kind is bool:
        return Value(BOOL, (str(value),), value)
    if kind is int:
        return Value(INT, (int_text(value),), value, value, value)
    if kind is float:
        return Value(FLOAT, (float_text(value),), value)
    if kind is bytes and value:
        return Value(ValueKind("bytes", size=len(value)), words_of(value), value)
    return Value(TEXT, ("0",), value) if kind is str else None


def fits(value: Value) -> bool:
    """Whether an int constant has a place in 8 bytes."""
    return value.low >= INT_MIN and value.high <= INT_MAX


def int_text(value: int) -> str:
    """An int as source."""
    return str(value) if value >= 0 else f"({value})"


def float_text(value: float) -> str:
    """A float as source, exactly."""
    if math.isnan(value):
        return "NAN"
    if math.isinf(value):
        return "INFINITY" if value > 0 else "(-INFINITY)"
    return repr(value) if math.copysign(1.0, value) > 0 else f"({value!r})"


def words_of(value: bytes) -> tuple[str, ...]:
    """Bytes as words of 8, filled up with zeros."""
    filled = value + bytes(-len(value) % WORD_BYTES)
    starts = range(0, len(filled), WORD_BYTES)
    return tuple(int_text(int.from_bytes(filled[at : at + 8], "little", signed=True)) for at in starts)


def word_count(kind: ValueKind) -> int:
    """How many words a value of this kind takes."""
    return -(-kind.size // WORD_BYTES) if kind.name == "bytes" else 1


def is_atom(text: str) -> bool:
    """Whether a text can be repeated: a name or a number."""
    return text.isidentifier() or text.replace(".", "", 1).isdigit()
