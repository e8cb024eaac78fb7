"""Records of fixed width: how the events and actions of compiled agents lie in bytes. Pure declarations, no arrays.

A compiled agent's events are *records*: what travels, what the journal keeps and what the loop reads are the same
bytes. All numbers are little-endian.

    record   agent u4 · form u2 · 2 zero bytes · payload, the same width for all forms of a kind, a multiple of 8
    action   agent u4 · template u2 · 2 zero bytes · cause u4 · 4 zero bytes · slots of 8 bytes

A *form* is a message type of an agent kind, numbered by its place in the `Layout`. A *template* is one `yield` of an
action: its constants are in the template, its numbers in the record's slots; texts are made outside. Layout and
templates are declared in the log (`ColumnsDeclared`), and so are the names behind the agents' numbers
(`AgentsEnrolled`): a log can be read without the classes that wrote it.
"""

from __future__ import annotations

import math
import re
import struct
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, assert_never

import msgspec
from blake3 import blake3
from msgspec import Struct

from stigmergy.core.codec import UNDECODABLE, encode
from stigmergy.core.errors import JournalCorrupt, Malformed

LAYOUT_FORMAT = 1
ALIGNMENT = 8
RECORD_HEAD_BYTES = 8
ACTION_HEAD_BYTES = 16
SLOT_BYTES = 8
RECORD_BYTES_MAX = 1024
ROW_BYTES_MAX = 16 * 1024
FORMS_COUNT_MAX = 1_000
FORMAT_WIDTH_MAX = 250
DIGEST_BYTES = 16
CHECK_BYTES = 8
NO_CHECK = bytes(CHECK_BYTES)
"""Of a roster without any enrolment."""
NOT_KEPT = 0xFFFFFFFF
"""The cause of an action whose event was transient, and so is not in the log."""
NO_FORM = 0xFFFF
"""No form has this number; a record that bears it is of nobody's making."""
_LAYOUT_CONTEXT = "stigmergy 2026 layout of columns"
_ROSTER_CONTEXT = "stigmergy 2026 roster of agents"
_SHAPES = {"f8": "d", "i8": "q", "i4": "i", "i2": "h", "i1": "b", "u4": "I", "u2": "H", "u1": "B", "b1": "?"}
"""How each code is written by `struct`; a code S16 is 16 bytes, and e2 an enum: the place of its member, as a u2."""
ENUM = "e2"
WINDOW = "W"
"""Of a row only: a window of so many bytes, see core/window_columns.py."""


class Column(Struct, array_like=True, frozen=True):
    """One field of a record or of a row: how it is stored, and where."""

    name: str
    code: str
    offset: int
    """From the first byte of the record or row."""
    members: list[tuple[str, bytes]] = []
    """Of an enum: the names of its members and the bytes of their values, in the order of their definition.
    Of a window one member, which describes it."""

    @property
    def size_bytes(self) -> int:
        """How many bytes it takes."""
        return size_of(self.code)


class Form(Struct, array_like=True, frozen=True):
    """One message type as records hold it."""

    tag: str
    columns: list[Column]
    is_command: bool = False


class Constant(Struct, array_like=True, frozen=True, tag="constant"):
    """A field of an action that is the same for all that its template makes: the bytes of its value."""

    value: bytes


class Slot(Struct, array_like=True, frozen=True, tag="slot"):
    """A field of an action that lies in a slot of its record."""

    slot: int
    code: str
    members: list[tuple[str, bytes]] = []


class Formatted(Struct, array_like=True, frozen=True, tag="formatted"):
    """A number inside a text, with what Python's `format` is told about it."""

    slot: int
    code: str
    how: str = ""


class OwnName(Struct, array_like=True, frozen=True, tag="name"):
    """The agent's own id inside a text, or its address."""

    with_kind: bool = False


class Text(Struct, array_like=True, frozen=True, tag="text"):
    """A field of an action that is a text, put together outside of the compiled code."""

    pieces: list[str | Formatted | OwnName]


Part = Constant | Slot | Text


class Template(Struct, array_like=True, frozen=True):
    """What one `yield` of an action makes."""

    tag: str
    fields: list[tuple[str, Part]]


class Layout(Struct, array_like=True, frozen=True):
    """How one kind of compiled agents lies in bytes."""

    format: int
    kind: str
    record_bytes: int
    forms: list[Form]
    row_bytes: int
    columns: list[Column]
    """Of the state."""

    def digest(self) -> bytes:
        """Stands for what senders must agree on: the records. The state is nobody's business but ours."""
        return _digest((self.format, self.kind, self.record_bytes, self.forms))


class Templates(Struct, array_like=True, frozen=True):
    """All actions that one kind of compiled agents can ask for."""

    format: int
    kind: str
    action_bytes: int
    templates: list[Template]

    def digest(self) -> bytes:
        """Stands for all of it."""
        return _digest((self.format, self.kind, self.action_bytes, self.templates))


class ColumnRun(Struct, array_like=True, frozen=True):
    """Events of compiled agents of one kind, taken at one time from one source, and the actions they caused."""

    kind: str
    layout: bytes
    """The digest of the layout that the records have."""
    time_ns: int
    source: str
    count: int
    records: bytes
    templates: bytes = b""
    """The digest of the templates of the actions; empty without any."""
    first: int = 0
    """The sequence of the first action, of all that this kind has asked batched hands for."""
    actions_count: int = 0
    actions: bytes = b""
    """Their causes count the records of this run, or are NOT_KEPT."""


class Record(Struct, frozen=True):
    """One record, taken apart: whose it is, and the bytes of the message."""

    agent: int
    tag: str
    body: bytes


class ActionRecord(Struct, frozen=True):
    """One action, taken apart."""

    agent: int
    cause: int
    tag: str
    body: bytes


_layouts = msgspec.msgpack.Decoder(Layout)
_templates = msgspec.msgpack.Decoder(Templates)
_any = msgspec.msgpack.Decoder()
_digits = re.compile("[0-9]{1,9}")
_record_head = struct.Struct("<IHH")
_action_head = struct.Struct("<IHHII")


def size_of(code: str) -> int:
    """How many bytes a value of this code takes. Raises Malformed for a code that there is not."""
    if code == ENUM:
        return 2
    if code in _SHAPES:
        return int(code[1:])
    if code.startswith("S") and code[1:].isascii() and code[1:].isdigit() and 0 < int(code[1:]) <= RECORD_BYTES_MAX:
        return int(code[1:])
    if code.startswith(WINDOW) and code[1:].isascii() and code[1:].isdigit() and 0 < int(code[1:]) <= ROW_BYTES_MAX:
        return int(code[1:])
    raise Malformed(f"{code!r} is no way to store a value; there are {', '.join((*_SHAPES, ENUM))} and S16")


def roster_check(previous: bytes, names: Sequence[str]) -> bytes:
    """What stands for all names of a roster after an enrolment, made of what stood for those before it."""
    digest = blake3(previous + encode(list(names)), derive_key_context=_ROSTER_CONTEXT)
    return digest.digest(length=CHECK_BYTES)


def read_layout(body: bytes) -> Layout:
    """Decodes and checks a layout. Raises JournalCorrupt."""
    try:
        layout = _layouts.decode(body)
        for form in layout.forms:
            _check_columns(form.columns, RECORD_HEAD_BYTES, layout.record_bytes)
        _check_columns(layout.columns, 0, layout.row_bytes)
    except (*UNDECODABLE, Malformed) as error:
        raise JournalCorrupt(f"a layout does not decode ({error}); restore from a copy") from None
    if layout.format != LAYOUT_FORMAT or layout.record_bytes % ALIGNMENT:
        raise JournalCorrupt(f"a layout of format {layout.format}; use the version that wrote it, or a later one")
    if not RECORD_HEAD_BYTES <= layout.record_bytes <= RECORD_BYTES_MAX or not 0 <= layout.row_bytes <= ROW_BYTES_MAX:
        raise JournalCorrupt(
            f"records of {layout.record_bytes} bytes and rows of {layout.row_bytes}, {RECORD_BYTES_MAX} and "
            f"{ROW_BYTES_MAX} at most; restore from a copy"
        )
    return layout


def read_templates(body: bytes) -> Templates:
    """Decodes and checks templates. Raises JournalCorrupt."""
    try:
        templates = _templates.decode(body)
        check_templates(templates)
    except (*UNDECODABLE, Malformed) as error:
        raise JournalCorrupt(f"templates of actions do not decode ({error}); restore from a copy") from None
    if templates.format != LAYOUT_FORMAT or templates.action_bytes % ALIGNMENT:
        raise JournalCorrupt(f"templates of format {templates.format}; use the version that wrote them, or a later one")
    return templates


def check_templates(templates: Templates) -> None:
    """Raises Malformed unless every slot lies in its action, and every number is formatted in a bounded way."""
    slots_bytes = templates.action_bytes - ACTION_HEAD_BYTES
    for template in templates.templates:
        for name, part in template.fields:
            pieces = part.pieces if isinstance(part, Text) else [part]
            for piece in pieces:
                if isinstance(piece, Slot | Formatted):
                    taken_bytes = max(SLOT_BYTES, size_of(piece.code))
                    if piece.slot < 0 or piece.slot * SLOT_BYTES + taken_bytes > slots_bytes:
                        raise Malformed(f"{template.tag}.{name} lies outside of its action")
                if isinstance(piece, Formatted):
                    _check_how(piece)


def _check_how(piece: Formatted) -> None:
    """Widths are bounded: a text is made of them whenever the log is read, by whoever reads it."""
    if any(int(digits) > FORMAT_WIDTH_MAX for digits in _digits.findall(piece.how)):
        raise Malformed(f"a number formatted with {piece.how!r}; give widths of {FORMAT_WIDTH_MAX} at most")
    try:
        format(0.0 if piece.code == "f8" else False if piece.code == "b1" else 0, piece.how)
    except ValueError as error:
        raise Malformed(f"a number cannot be formatted with {piece.how!r} ({error})") from None


def check_run(run: ColumnRun, layout: Layout) -> None:
    """Raises JournalCorrupt unless a run has as many records as it says, all of them whole."""
    if run.count + run.actions_count < 1 or len(run.records) != run.count * layout.record_bytes:
        raise JournalCorrupt(
            f"{len(run.records)} bytes for {run.count} records of {layout.record_bytes}; restore from a copy"
        )


def check_actions(run: ColumnRun, templates: Templates, first: int) -> None:
    """Raises JournalCorrupt unless a run's actions are whole, and the next ones of their kind."""
    if len(run.actions) != run.actions_count * templates.action_bytes or run.first != first:
        raise JournalCorrupt(
            f"{len(run.actions)} bytes for {run.actions_count} actions of {templates.action_bytes}, from number "
            f"{run.first} on where {first} is the next; restore from a copy"
        )


def read_records(records: bytes | memoryview, layout: Layout) -> Iterator[Record]:
    """Takes records apart, one by one: for people and for other tools. Raises JournalCorrupt."""
    records = bytes(records)
    readers = [_reader(form) for form in layout.forms]
    for start in range(0, len(records), layout.record_bytes):
        agent, form, _ = _record_head.unpack_from(records, start)
        if form >= len(readers):
            raise JournalCorrupt(f"a record of form {form}, and {layout.kind} has {len(readers)}; restore from a copy")
        yield Record(agent, layout.forms[form].tag, readers[form](records, start))


def read_actions(actions: bytes, templates: Templates, name_of: Callable[[int], str]) -> Iterator[ActionRecord]:
    """Takes actions apart, one by one. `name_of` tells the id of an agent. Raises JournalCorrupt."""
    for start in range(0, len(actions), templates.action_bytes):
        agent, number, _, cause, _ = _action_head.unpack_from(actions, start)
        if number >= len(templates.templates):
            raise JournalCorrupt(f"an action of template {number}; restore from a copy")
        template = templates.templates[number]
        slots = actions[start + ACTION_HEAD_BYTES : start + templates.action_bytes]
        yield ActionRecord(agent, cause, template.tag, action_body(template, templates.kind, slots, agent, name_of))


def action_body(template: Template, kind: str, slots: bytes, agent: int, name_of: Callable[[int], str]) -> bytes:
    """The bytes of an action: the very ones that the interpreted engine would have made."""
    fields: dict[str, Any] = {"type": template.tag}
    for name, part in template.fields:
        match part:
            case Constant():
                fields[name] = msgspec.Raw(part.value)
            case Slot():
                fields[name] = _slot_value(slots, part)
            case Text():
                fields[name] = text_of(part, kind, slots, agent, name_of)
            case _:
                assert_never(part)
    return encode(fields)


def text_of(text: Text, kind: str, slots: bytes, agent: int, name_of: Callable[[int], str]) -> str:
    """A text, with the numbers and names that belong into it."""
    made: list[str] = []
    for piece in text.pieces:
        match piece:
            case str():
                made.append(piece)
            case Formatted():
                made.append(format(_number(slots, piece.slot, piece.code), piece.how))
            case OwnName():
                made.append(f"{kind}/{name_of(agent)}" if piece.with_kind else name_of(agent))
            case _:
                assert_never(piece)
    return "".join(made)


def write_record(layout: Layout, form: int, agent: int, fields: Mapping[str, Any]) -> bytes:
    """The record of one message; `fields` are its values by name. Raises Malformed for what does not fit."""
    data = bytearray(layout.record_bytes)
    _record_head.pack_into(data, 0, agent, form, 0)
    write_columns(layout.forms[form].columns, fields, data, layout.forms[form].tag)
    return bytes(data)


def write_columns(columns: Sequence[Column], fields: Mapping[str, Any], data: bytearray, what: str) -> None:
    """Puts values in their places. Raises Malformed for what does not fit."""
    for column in columns:
        value = fields[column.name]
        try:
            if column.code == ENUM:
                value = [member for _, member in column.members].index(encode(value))
                struct.pack_into("<H", data, column.offset, value)
            elif column.code.startswith("S"):
                if len(value) != column.size_bytes:
                    raise Malformed(f"{what}.{column.name}: {len(value)} bytes, and it has {column.size_bytes}")
                data[column.offset : column.offset + column.size_bytes] = value
            else:
                struct.pack_into(f"<{_SHAPES[column.code]}", data, column.offset, value)
        except (struct.error, ValueError, TypeError, OverflowError) as error:
            raise Malformed(
                f"{what}.{column.name}: {value!r:.50} does not fit into {column.code} ({error}); send what fits"
            ) from None


def read_columns(columns: Sequence[Column], data: bytes, start: int = 0) -> dict[str, Any]:
    """The values of a record or row by name; an enum by its value."""
    return {column.name: _value(data, start + column.offset, column.code, column.members) for column in columns}


def canonical_nan(value: float) -> float:
    """The one NaN that states and records have."""
    return math.nan if math.isnan(value) else value


def _reader(form: Form) -> Callable[[bytes, int], bytes]:
    def read(data: bytes, start: int) -> bytes:
        return encode({"type": form.tag, **read_columns(form.columns, data, start)})

    return read


def _value(data: bytes, offset: int, code: str, members: Sequence[tuple[str, bytes]]) -> Any:
    if code == ENUM:
        (place,) = struct.unpack_from("<H", data, offset)
        if place >= len(members):
            raise JournalCorrupt(f"member {place} of an enum that has {len(members)}; restore from a copy")
        return _any.decode(members[place][1])
    if code.startswith("S"):
        return data[offset : offset + size_of(code)]
    return struct.unpack_from(f"<{_SHAPES[code]}", data, offset)[0]


def _slot_value(slots: bytes, slot: Slot) -> Any:
    if slot.code == ENUM:
        place = _number(slots, slot.slot, "i8")
        if not 0 <= place < len(slot.members):
            raise JournalCorrupt(f"member {place} of an enum that has {len(slot.members)}; restore from a copy")
        return _any.decode(slot.members[place][1])
    if slot.code.startswith("S"):
        start = slot.slot * SLOT_BYTES
        return slots[start : start + size_of(slot.code)]
    return _number(slots, slot.slot, slot.code)


def _number(slots: bytes, slot: int, code: str) -> Any:
    """What lies in a slot: a float, or a whole number of 8 bytes whatever its code, or a boolean."""
    offset = slot * SLOT_BYTES
    if code == "f8":
        return struct.unpack_from("<d", slots, offset)[0]
    (value,) = struct.unpack_from("<q", slots, offset)
    return bool(value) if code == "b1" else value


def _check_columns(columns: Sequence[Column], start: int, end: int) -> None:
    for column in columns:
        if column.code.startswith(WINDOW) and start:
            raise Malformed(f"column {column.name} is a window, which a record has not")
        if column.offset < start or column.offset + column.size_bytes > end:
            raise Malformed(f"column {column.name} lies outside")


def _digest(described: Any) -> bytes:
    return blake3(encode(described), derive_key_context=_LAYOUT_CONTEXT).digest(length=DIGEST_BYTES)
