"""Records of fixed width: the byte layout of events and actions of compiled agents. Pure declarations, no arrays.

The events of a compiled agent are *records*: the wire, the journal and the loop use the same bytes. All numbers are
little-endian.

    record   agent u4 · form u2 · 2 zero bytes · payload, the same width for all forms of a kind, a multiple of 8
    action   agent u4 · template u2 · 2 zero bytes · cause u4 · 4 zero bytes · slots of 8 bytes

A *form* is a message type of an agent kind, numbered by its place in the `Layout`. A *template* is one `yield` of an
action: the template holds its constants, the slots of the record hold its numbers; texts are made outside. The log
declares layouts and templates (`ColumnsDeclared`) and the names behind the agents' numbers (`AgentsEnrolled`), so a log
can be read without the classes that wrote it.
"""

from __future__ import annotations

import enum
import math
import re
import struct
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Protocol, assert_never

import msgspec
from blake3 import blake3
from msgspec import Struct

from stigmergy.agents.codec import UNDECODABLE, encode
from stigmergy.agents.messages import Effect, Message
from stigmergy.base.errors import JournalCorrupt, Malformed

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
"""Of a row only: a window of so many bytes, see agents/windows.py."""


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


TemplatePart = Constant | Slot | Text


class Template(Struct, array_like=True, frozen=True):
    """What one `yield` of an action makes."""

    tag: str
    fields: list[tuple[str, TemplatePart]]


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
    """The sequence of the first action, among all actions of this kind for batch actuators."""
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
    """The digest of all names of a roster after an enrolment, made from the digest of those before it."""
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
    """Widths are bounded: every reader of the log makes a text of them."""
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


# Tables: the rows of one kind of compiled agents in one shard. This is the interface of an engine; `compiled`
# implements it.
#
# An engine reads an agent class once (`Engine`) and makes a table for each shard. A table has two versions of its rows:
# steps change *ahead*, and *durable* follows when a commit is on disk. Queries see the durable one. Nothing here does
# I/O, and the same calls always end in the same bytes.

INPUT_BYTES_MAX = 80 * 1024
"""What one input may cause at most, counted as `Table.step` says: so with so much room a step can take a record."""
OTHER_BYTES = 257
"""Counted for each ordinary effect beside its own bytes: the longest address and the framing."""

Say = Callable[[str], None]
"""Told in a sentence what takes long: a cold start says what it is doing."""


class Halt(enum.IntEnum):
    """Why a stretch ended where it did."""

    END = 0
    """All records were taken."""
    FULL = 1
    """There might be no room for all that the next record causes."""
    UNKNOWN_AGENT = 2
    UNKNOWN_FORM = 3
    """No form, or a command: those are sent one by one."""
    STOPPED = 4
    """Its agent is stopped by its supervision."""
    BAD_VALUE = 5
    """A value that the message does not allow: outside of its bounds, no member of its enum, a spare byte in use."""
    FAULT = 6
    """A handler failed; the agent is as it was before."""
    REFUSED = 7
    """A command was refused; only where it was sent alone."""


class Stretch(Struct, frozen=True):
    """What a step has made of consecutive records. The record that halted it is not among those taken."""

    taken: int
    records: bytes | memoryview
    """The events that are kept; they need not be those that came."""
    count: int
    actions: bytes = b""
    """Actions for batch actuators; their causes count `records`, or are NOT_KEPT."""
    actions_count: int = 0
    others: list[tuple[int, int, Effect]] = []
    """All other effects in their order: the place of the event behind it in `records` (-1: it is not kept), the agent,
    the effect. All have passed what `check_effects` was told."""
    halt: Halt = Halt.END
    error: Exception | None = None
    """With BAD_VALUE a Malformed, with REFUSED a Rejection, with FAULT what the handler raised; else None."""


class Table(Protocol):
    """The rows of one kind in one shard.

    Order: records are taken in order; what one input causes is all there or not at all.
    Numbers: an agent's number is its place in the order of enrolment, dense from 0, never used again.
    """

    @property
    def layout(self) -> Layout:
        """How records and rows lie in bytes."""
        ...

    @property
    def layout_digest(self) -> bytes:
        """The cached digest of the layout."""
        ...

    @property
    def templates(self) -> Templates:
        """What actions can be made."""
        ...

    @property
    def templates_digest(self) -> bytes:
        """The cached digest of the templates."""
        ...

    @property
    def wait_ns(self) -> int:
        """How long the most urgent event of this kind may wait for the disk."""
        ...

    # ---- who is there

    def __len__(self) -> int:
        """How many agents are enrolled."""
        ...

    def find(self, name: str) -> int:
        """The number of an agent; -1 if it is not enrolled."""
        ...

    def name(self, agent: int) -> str:
        """The id of an agent."""
        ...

    @property
    def generation(self) -> int:
        """How many enrolments there were."""
        ...

    def check_of(self, generation: int) -> tuple[int, bytes] | None:
        """Of an enrolment, how many agents there were then, and 8 bytes that stand for all their names; None for one
        that has not been yet. Generation 0 has no agents."""
        ...

    def enroll(self, names: Sequence[str]) -> None:
        """Adds agents, in their first state, as one enrolment, ahead and durable. The caller has made sure that none is
        there. If the last call was a step of a newcomer that made records, the first of them is that one, and has the
        row that this step made."""
        ...

    def stop(self, agent: int, stopped: bool) -> None:
        """From now on this agent's records halt a stretch, or no longer. Not part of the rows, the digest or a
        snapshot: the shard says it again after a restart."""
        ...

    # ---- stepping

    def batch(self, tags: Sequence[str]) -> None:
        """Actions with these tags go into `Stretch.actions`; before this call none do. A later call replaces it."""
        ...

    def check_effects(self, check: Callable[[Effect], None]) -> None:
        """From now on each effect that is no batched action is shown to `check` before what caused it counts. What that
        raises is a FAULT: only the shard knows who is in the fleet."""
        ...

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
        """Takes records from number `start` on, until the end, one that cannot be taken, or until there might be no
        room for the next. Agents are known up to number `known` (exclusive). Nothing of the record that halted the
        stretch is done.

        What a step makes takes `room_bytes` at most, never more: each kept event and each batched action takes its
        record, each other effect `len(encode(effect))` and OTHER_BYTES. There are always INPUT_BYTES_MAX of room, and
        with these any record finds some: an input that would cause more is a FAULT with TooLarge, or its class is
        refused beforehand.

        With `newcomer`, a name, the one record may be for the agent that would be enrolled next under that name, in its
        first state. If it has made records of events or actions, the caller enrols it at once; otherwise it is as if it
        had never been.
        A command is taken only where `records` is one record; in a batch it is an UNKNOWN_FORM, as is an event that
        the agent only yields.
        """
        ...

    def record_of(self, agent: int, message: Message) -> bytes:
        """A message, one that the agent handles or yields, as a record. Raises Malformed for a value that has no place
        in one."""
        ...

    # ---- following

    def fold(self, records: bytes | memoryview, layout: Layout, now_ns: int) -> None:
        """Folds kept events into the rows ahead, while replaying: `evolve` alone. `layout` is that of the records,
        which may be an older one. Raises FoldMismatch for what today's code cannot fold, and for an agent that is not
        enrolled."""
        ...

    def follow(self, records: bytes | memoryview, now_ns: int) -> None:
        """Folds kept events, of a commit that has become durable, into the durable rows. In the layout of today."""
        ...

    def image(self, count: int) -> Any:
        """A commit with so many events of this kind was sealed: the rows that have changed since the last call, as they
        are now, for `adopt`; or None where it is cheaper to have `follow` fold the events once more."""
        ...

    def adopt(self, image: Any) -> None:
        """The commit of this image has become durable: its rows are the durable ones now. Images and events of commits
        are taken in the order of the commits."""
        ...

    def catch_up(self) -> None:
        """The durable rows become what those ahead are: after a replay."""
        ...

    def agent(self, number: int, *, ahead: bool = False) -> Any:
        """An agent as an object of its class, from the durable rows, or from those ahead."""
        ...

    # ---- snapshots: of the rows ahead

    def begin_snapshot(self, *, full: bool) -> Iterator[bytes]:
        """Fixes the rows as they are now, before it returns, and gives them out in compressed parts. A full one has
        names, enrolments and all rows; another what is new or changed since the last one was begun, or since the last
        part was loaded. Without agents, or without changes, there may be no part."""
        ...

    def load(self, part: bytes, layout: Layout) -> None:
        """Takes over one part: those of a full one replace all that is there, those of another add to it. `layout` is
        the one it was written with. Ends with the rows ahead; `catch_up` follows. Raises FoldMismatch or
        JournalCorrupt."""
        ...

    def digest(self) -> bytes:
        """Stands for names, enrolments and rows ahead: equal ones have equal digests, however they were reached."""
        ...


class Engine(Protocol):
    """An agent class made ready to run as a table."""

    @property
    def layout(self) -> Layout:
        """How records and rows lie in bytes; known without compiling."""
        ...

    def prepare(self, say: Say) -> None:
        """Compiles, or loads what was compiled before. May take seconds, the first time; tables need it."""
        ...

    def table(self) -> Table:
        """A new table without agents."""
        ...


def images_of(tables: Mapping[str, Table], runs: Sequence[ColumnRun]) -> dict[str, Any]:
    """Per kind that has changed in these runs, its table's image of that."""
    counts: dict[str, int] = {}
    for run in runs:
        counts[run.kind] = counts.get(run.kind, 0) + run.count
    return {kind: tables[kind].image(count) for kind, count in counts.items()}
