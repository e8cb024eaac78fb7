"""Fields of fixed width: the storage and bounds of an annotation, and the offsets of the columns of a form."""

from __future__ import annotations

import enum
import math
import typing
from collections.abc import Sequence
from typing import Any

import msgspec
from msgspec import Meta, Struct

from stigmergy.agents.codec import UNDECODABLE, encode
from stigmergy.agents.columns import ALIGNMENT, ENUM, Column, size_of
from stigmergy.agents.effects import ActionDone, ActionFailed, WorkFailed
from stigmergy.agents.messages import Message, union_members
from stigmergy.agents.ordered import Claim
from stigmergy.compiled.faults import INT_MAX, INT_MIN
from stigmergy.compiled.values import BOOL, FLOAT, INT, ValueKind
from stigmergy.crdt.replicated import ReplicatedType

CONFIRMATIONS: dict[type[Message], str] = {ActionDone: "action", ActionFailed: "action", WorkFailed: "work"}
"""What comes back from sinks, and the field of it that has a place in a record."""
OTHER = ""
"""Stands for all names that a class does not mention."""
BYTES_LENGTH_MAX = 512
MEMBERS_COUNT_MAX = 0xFFFF
_WIDTHS = {
    "i1": (-(2**7), 2**7 - 1),
    "u1": (0, 2**8 - 1),
    "i2": (-(2**15), 2**15 - 1),
    "u2": (0, 2**16 - 1),
    "i4": (-(2**31), 2**31 - 1),
    "u4": (0, 2**32 - 1),
    "i8": (INT_MIN, INT_MAX),
}
_CONDITIONS = (
    ("ge", "{value} >= {bound}"),
    ("gt", "{value} > {bound}"),
    ("le", "{value} <= {bound}"),
    ("lt", "{value} < {bound}"),
)
_REMEDIES: dict[Any, tuple[str, str]] = {
    str: ("a text has no fixed width", "use an enum or fixed bytes"),
    bytes: ("bytes without a fixed length", "write Annotated[bytes, Meta(min_length=16, max_length=16)]"),
    bytearray: ("bytes without a fixed length", "write Annotated[bytes, Meta(min_length=16, max_length=16)]"),
    complex: ("there are no complex columns", "use two floats"),
}


def width_of(code: str) -> tuple[int, int]:
    """The least and the greatest int that a column of this code can hold."""
    return _WIDTHS.get(code, (INT_MIN, INT_MAX))


class Refusal(Struct, frozen=True):
    """Why something has no place in a record, and what to do."""

    reason: str
    remedy: str

    def __str__(self) -> str:
        return f"{self.reason}; {self.remedy}"


class Field(Struct, frozen=True):
    """A field: how it is stored, and what may be in it."""

    name: str
    kind: ValueKind
    code: str
    low: int = INT_MIN
    high: int = INT_MAX
    """Of an int: what it may be, by its bounds or its width."""
    bounds: tuple[tuple[str, float], ...] = ()
    """Of a float: conditions like ("{value} >= {bound}", 0.0)."""
    members: tuple[tuple[str, bytes], ...] = ()
    """Of an enum."""

    @property
    def room_bytes(self) -> int:
        """How much room it takes; bytes are filled up to whole words."""
        size = size_of(self.code)
        return -(-size // ALIGNMENT) * ALIGNMENT if self.code.startswith("S") else size

    def said(self) -> str:
        """What is allowed, in words."""
        if self.kind == INT:
            return f"{self.low} to {self.high}"
        if self.kind.name in ("enum", "name"):
            return f"one of {', '.join(name for name, _ in self.members)}"
        if self.kind == BOOL:
            return "0 or 1"
        return " and ".join(condition.format(value="x", bound=f"{bound:g}") for condition, bound in self.bounds)


def field_of(name: str, hint: Any) -> Field | Refusal:
    """How a field with this annotation is stored, or why it cannot be."""
    metas: list[Meta] = []
    while typing.get_origin(hint) is typing.Annotated:
        hint, *notes = typing.get_args(hint)
        metas += [note for note in notes if isinstance(note, Meta)]
    if any(meta.multiple_of is not None or meta.pattern is not None for meta in metas):
        return Refusal(
            "multiple_of and pattern are not checked in compiled code", "leave them out, and check in decide"
        )
    if hint is bool:
        return Field(name, BOOL, "b1")
    if hint is int:
        return _int_field(name, metas)
    if hint is float:
        return _float_field(name, metas)
    if hint is bytes and metas:
        return _bytes_field(name, metas)
    if isinstance(hint, type) and issubclass(hint, enum.Enum):
        return _enum_field(name, hint)
    return _refusal_of(hint)


def names_field(name: str, names: Sequence[str], *, others: bool = False) -> Field:
    """The field of an event of the framework that holds one of these texts, or, with `others`, OTHER for any other."""
    known = (*names, OTHER) if others else tuple(names)
    members = tuple((text, encode(text)) for text in known)
    return Field(name, ValueKind("name", names=known, open=others), ENUM, members=members)


def lay_out(fields: Sequence[Field], start: int) -> tuple[list[Column], int]:
    """The columns of these fields from an aligned byte on, the widest first so that none straddles; and their end."""
    columns: dict[str, Column] = {}
    at = start
    for field in sorted(fields, key=lambda field: -min(field.room_bytes, ALIGNMENT)):
        columns[field.name] = Column(field.name, field.code, at, list(field.members))
        at += field.room_bytes
    return [columns[field.name] for field in fields], -(-at // ALIGNMENT) * ALIGNMENT


def spare_words(columns: Sequence[Column], end: int) -> list[tuple[int, int]]:
    """Which bytes belong to no column: words by number, each with a mask of its spare bytes; the head is left out."""
    used = bytearray(end)
    for column in columns:
        used[column.offset : column.offset + column.size_bytes] = b"\xff" * column.size_bytes
    found: list[tuple[int, int]] = []
    for word in range(1, end // ALIGNMENT):
        mask = ~int.from_bytes(used[word * ALIGNMENT : (word + 1) * ALIGNMENT], "little", signed=True)
        if mask:
            found.append((word, mask))
    return found


def _int_field(name: str, metas: list[Meta]) -> Field | Refusal:
    low, high = INT_MIN, INT_MAX
    for meta in metas:
        for bound in (meta.ge, None if meta.gt is None else meta.gt + 1):
            low = low if bound is None else max(low, math.ceil(bound))
        for bound in (meta.le, None if meta.lt is None else meta.lt - 1):
            high = high if bound is None else min(high, math.floor(bound))
    if low > high:
        return Refusal("bounds that nothing is within", "mend them")
    code = next(code for code, (least, most) in _WIDTHS.items() if least <= low and high <= most)
    return Field(name, INT, code, low, high)


def _float_field(name: str, metas: list[Meta]) -> Field:
    bounds = [
        (condition, float(getattr(meta, bound)))
        for meta in metas
        for bound, condition in _CONDITIONS
        if getattr(meta, bound) is not None
    ]
    return Field(name, FLOAT, "f8", bounds=tuple(bounds))


def _bytes_field(name: str, metas: list[Meta]) -> Field | Refusal:
    shortest = {meta.min_length for meta in metas} - {None}
    longest = {meta.max_length for meta in metas} - {None}
    if len(shortest) != 1 or shortest != longest:
        return Refusal(*_REMEDIES[bytes])
    (length,) = (length for length in longest if length is not None)
    if not 0 < length <= BYTES_LENGTH_MAX:
        return Refusal(f"{length} bytes", f"give 1 to {BYTES_LENGTH_MAX}, or keep a digest of them")
    return Field(name, ValueKind("bytes", size=length), f"S{length}")


def _enum_field(name: str, cls: type[enum.Enum]) -> Field | Refusal:
    if issubclass(cls, enum.Flag):
        return Refusal(f"{cls.__name__} is a Flag, whose values are combined", "use an int with bounds")
    for base in cls.__mro__:
        if "__eq__" in vars(base) and base.__module__ not in ("builtins", "enum"):
            return Refusal(f"{cls.__name__} compares its members in its own way", "take its __eq__ out")
    try:
        members = tuple((member.name, encode(member)) for member in cls)
        for _, body in members:
            msgspec.msgpack.decode(body, type=cls)
    except (*UNDECODABLE, TypeError) as error:
        return Refusal(f"{cls.__name__} has values that are not written ({error})", "give its members ints or texts")
    if not 0 < len(members) <= MEMBERS_COUNT_MAX:
        return Refusal(f"{cls.__name__} has {len(members)} members", f"give it 1 to {MEMBERS_COUNT_MAX}")
    return Field(name, ValueKind("enum", enum=cls), ENUM, members=members)


def _refusal_of(hint: Any) -> Refusal:
    members = union_members(hint)
    if type(None) in members:
        return Refusal("what may be None has no fixed width", "use a flag field next to it")
    if len(members) > 1:
        return Refusal("a field of several types has no fixed width", "use one field for each")
    if hint in _REMEDIES:
        return Refusal(*_REMEDIES[hint])
    cls = typing.get_origin(hint) or hint
    if cls is Claim or (isinstance(cls, type) and issubclass(cls, ReplicatedType)):
        return Refusal("what is shared or ordered has no fixed width", "run agents of this kind interpreted")
    shown = getattr(hint, "__name__", str(hint))
    return Refusal(
        f"{shown} has no fixed width", "use float, int, bool, an enum or fixed bytes; one field for each value"
    )
