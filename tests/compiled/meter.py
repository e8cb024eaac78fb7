"""A meter, and a program written by hand for it: decisions, commands, refusals, faults, effects of all kinds, an enum.

It is here to lead a table into all its corners; what it measures is of no interest.
"""

from __future__ import annotations

import enum
import struct
from collections.abc import Callable

from stigmergy.agents.agent import Agent, Rejection, decide, evolve, react, reject
from stigmergy.agents.codec import encode
from stigmergy.agents.columns import (
    LAYOUT_FORMAT,
    Column,
    Form,
    Formatted,
    Layout,
    OwnName,
    Slot,
    Template,
    Templates,
    Text,
)
from stigmergy.agents.effects import Effects, Events
from stigmergy.agents.messages import Action, Command, Effect, Event, spec_of, transient
from stigmergy.base.errors import Malformed
from stigmergy.compiled.program import Making, Program, Site

NameOf = Callable[[int], str]


class Mode(enum.Enum):
    """Whether somebody has looked."""

    FRESH = "fresh"
    SEEN = "seen"


class Counted(Event):
    """So many more; none at all is not kept."""

    amount: int


class Pinged(Event, keep=transient):
    """Somebody wants to hear from it."""

    mode: Mode


class Reset(Command):
    """Begin anew from here, twice as a precaution."""

    to: int


class WasReset(Event):
    """It has begun anew."""

    to: int


class Alarm(Action):
    """It has counted much."""

    total: int


class Answer(Action):
    """What it says when somebody asks."""

    text: str


class Meter(Agent, version=2):
    """Counts."""

    total: int = 0
    mode: Mode = Mode.FRESH
    ok: bool = True
    code: bytes = b"none"
    level: float = 0.0

    @decide
    def filtered(self, event: Counted) -> Events:
        if event.amount != 0:
            yield event

    @evolve
    def counted(self, event: Counted) -> None:
        self.total += event.amount
        self.level = float(self.total)

    @react
    def warn(self, event: Counted) -> Effects:
        if self.total > 1000:
            yield Alarm(total=self.total)

    @react
    def pinged(self, event: Pinged) -> Effects:
        yield Answer(text=f"{self.id}: {self.total:05}")

    @decide
    def reset(self, command: Reset) -> Events:
        if command.to < 0:
            reject(f"{self.id} cannot begin at {command.to}")
        yield WasReset(to=command.to)
        yield WasReset(to=command.to)

    @evolve
    def was_reset(self, event: WasReset) -> None:
        self.total = event.to
        self.mode = Mode.SEEN

    @classmethod
    def upcast_state(cls, version: int, fields: object) -> Meter | None:
        """Version 1 had a total of dozens, and nothing else."""
        if version != 1 or not isinstance(fields, dict):
            return None
        if fields["dozens"] < 0:
            raise ValueError("less than nothing")
        return cls(total=fields["dozens"] * 12, code=fields["id"][:4].encode().ljust(4))


MEMBERS = [(member.name, encode(member.value)) for member in Mode]
LAYOUT = Layout(
    format=LAYOUT_FORMAT,
    kind="Meter",
    record_bytes=16,
    forms=[
        Form(spec_of(Counted).tag, [Column("amount", "i8", 8)]),
        Form(spec_of(Pinged).tag, [Column("mode", "e2", 8, MEMBERS)]),
        Form(spec_of(Reset).tag, [Column("to", "i8", 8)], is_command=True),
        Form(spec_of(WasReset).tag, [Column("to", "i8", 8)]),
    ],
    row_bytes=24,
    columns=[
        Column("total", "i8", 0),
        Column("mode", "e2", 8, MEMBERS),
        Column("ok", "b1", 10),
        Column("code", "S4", 12),
        Column("level", "f8", 16),
    ],
)
TEMPLATES = Templates(
    format=LAYOUT_FORMAT,
    kind="Meter",
    action_bytes=24,
    templates=[
        Template(spec_of(Alarm).tag, [("total", Slot(0, "i8"))]),
        Template(spec_of(Answer).tag, [("text", Text([OwnName(), ": ", Formatted(0, "i8", "05")]))]),
    ],
)

SOURCE = '''\
"""Meter, to be compiled. Records of 16 bytes, rows of 24, actions of 24."""

import numpy as np

COUNTED, PINGED, RESET, WAS_RESET = 0, 1, 2, 3
END, FULL, UNKNOWN_AGENT, UNKNOWN_FORM, STOPPED, BAD_VALUE, FAULT, REFUSED = 0, 1, 2, 3, 4, 5, 6, 7


def step(records, start, end, known, flags_of_call, rows, stopped, dirty, kept, actions, others, batched, now, result):
    in_u4 = records.view(np.uint32)
    in_u2 = records.view(np.uint16)
    in_i8 = records.view(np.int64)
    row_i8 = rows.view(np.int64)
    row_u2 = rows.view(np.uint16)
    row_f8 = rows.view(np.float64)
    kept_u4 = kept.view(np.uint32)
    kept_i8 = kept.view(np.int64)
    agents_end = known + (flags_of_call & 1)
    kept_count = 0
    actions_count = 0
    others_count = 0
    halt = END
    i = start
    while i < end:
        form = in_u2[i * 8 + 2]
        if form > WAS_RESET or (form == RESET and not flags_of_call & 2):
            halt = UNKNOWN_FORM
            break
        agent = np.int64(in_u4[i * 4])
        if agent >= agents_end:
            halt = UNKNOWN_AGENT
            break
        if stopped[agent] != 0:
            halt = STOPPED
            break
        actions_full = (actions_count + 1) * 24 > actions.size or (others_count + 1) * 24 > others.size
        if actions_full or (kept_count + 2) * 16 > kept.size:
            halt = FULL
            break
        value = in_i8[i * 2 + 1]
        row = agent * 3
        total = row_i8[row]
        place = kept_count
        written = 0
        effect = -1
        if in_u2[i * 8 + 3] != 0 or (form == PINGED and not 0 <= value <= 1):
            halt = BAD_VALUE
            result[5] = 0
            break
        if form == COUNTED:
            if value != 0:
                wrapped = total + value
                if ((total ^ wrapped) & (value ^ wrapped)) < 0:
                    halt = FAULT
                    result[5] = 1
                    break
                total = wrapped
                row_f8[row + 2] = np.float64(total)
                written = 1
                if total > 1000:
                    effect = 0
        elif form == PINGED:
            effect = 1
            place = 0xFFFFFFFF
        elif form == RESET:
            if value < 0:
                halt = REFUSED
                result[5] = 2
                result[8] = value
                break
            total = value
            form = np.uint16(WAS_RESET)
            written = 2
            row_u2[agent * 12 + 4] = 1
        else:
            total = value
            written = 1
            row_u2[agent * 12 + 4] = 1
        if effect >= 0:
            if batched[effect] != 0:
                out = actions
                at = actions_count
                actions_count += 1
            else:
                out = others
                at = others_count
                others_count += 1
            out_u4 = out.view(np.uint32)
            out_u4[at * 6] = np.uint32(agent)
            out_u4[at * 6 + 1] = np.uint32(effect)
            out_u4[at * 6 + 2] = np.uint32(place)
            out_u4[at * 6 + 3] = np.uint32(0)
            out.view(np.int64)[at * 3 + 2] = total
        for _ in range(written):
            kept_u4[kept_count * 4] = np.uint32(agent)
            kept_u4[kept_count * 4 + 1] = np.uint32(form)
            kept_i8[kept_count * 2 + 1] = value
            kept_count += 1
        if written:
            row_i8[row] = total
            dirty[agent >> 8] = 1
        i += 1
    result[0] = i - start
    result[1] = kept_count
    result[2] = actions_count
    result[3] = others_count
    result[4] = halt


def fold(records, count, rows, dirty, now, result):
    in_u4 = records.view(np.uint32)
    in_u2 = records.view(np.uint16)
    in_i8 = records.view(np.int64)
    row_i8 = rows.view(np.int64)
    row_u2 = rows.view(np.uint16)
    row_f8 = rows.view(np.float64)
    halt = END
    i = 0
    while i < count:
        form = in_u2[i * 8 + 2]
        agent = np.int64(in_u4[i * 4])
        if form > WAS_RESET:
            halt = UNKNOWN_FORM
            break
        if agent >= rows.size // 24:
            halt = UNKNOWN_AGENT
            break
        value = in_i8[i * 2 + 1]
        row = agent * 3
        if form == COUNTED:
            total = row_i8[row]
            wrapped = total + value
            if ((total ^ wrapped) & (value ^ wrapped)) < 0:
                halt = FAULT
                result[5] = 1
                break
            row_i8[row] = wrapped
            row_f8[row + 2] = np.float64(wrapped)
        elif form == WAS_RESET:
            row_i8[row] = value
            row_u2[agent * 12 + 4] = 1
        dirty[agent >> 8] = 1
        i += 1
    result[0] = i
    result[4] = halt
'''


def meter_program() -> Program:
    """The meter, read."""
    return Program(
        kind="Meter",
        cls=Meter,
        layout=LAYOUT,
        templates=TEMPLATES,
        makings=[Making(Alarm, _alarm), Making(Answer, _answer)],
        sites=[Site(0, _bad_value), Site(0, _overflow), Site(0, _refusal)],
        source=SOURCE,
        plain=False,
        record_max=2,
        action_max=1,
        first_row=struct.pack("<qHBx4sd", 0, 0, 1, b"none", 0.0),
        wait_ns=0,
    )


def _alarm(slots: bytes, agent: int, name_of: NameOf) -> Effect:
    return Alarm(total=struct.unpack("<q", slots)[0])


def _answer(slots: bytes, agent: int, name_of: NameOf) -> Effect:
    return Answer(text=f"{name_of(agent)}: {struct.unpack('<q', slots)[0]:05}")


def _bad_value(slots: bytes, agent: int, name_of: NameOf) -> Exception:
    return Malformed("a value that is none")


def _overflow(slots: bytes, agent: int, name_of: NameOf) -> Exception:
    return OverflowError(f"{name_of(agent)} has counted too much")


def _refusal(slots: bytes, agent: int, name_of: NameOf) -> Exception:
    return Rejection(f"{name_of(agent)} cannot begin at {struct.unpack_from('<q', slots)[0]}")
