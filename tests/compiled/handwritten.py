"""A program written by hand for the drone of bench/workload.py: what `reading` is to make of it, more or less.

The source shows the pattern. It is one module; what is in it beside `step` and `fold` is its own business. Views of
the bytes are taken once, at the top. A record is looked at in the order form, agent, stopped, values. Rows, kept
records and actions count only once everything that the record causes has succeeded: until then `result` and the
places of the outputs stand where they were.
"""

from __future__ import annotations

import struct
from collections.abc import Callable

from bench.workload import BatteryMeasured, Descend, Drone, Land, OrderAcknowledged, Positioned
from stigmergy.agents.codec import encode
from stigmergy.agents.columns import LAYOUT_FORMAT, Column, Constant, Form, Layout, Template, Templates
from stigmergy.agents.messages import Effect, spec_of
from stigmergy.base.errors import Malformed
from stigmergy.compiled.program import Making, Program, Site

NameOf = Callable[[int], str]

LAYOUT = Layout(
    format=LAYOUT_FORMAT,
    kind="Drone",
    record_bytes=32,
    forms=[
        Form(
            spec_of(Positioned).tag,
            [Column("north_m", "f8", 8), Column("east_m", "f8", 16), Column("altitude_m", "f8", 24)],
        ),
        Form(spec_of(BatteryMeasured).tag, [Column("percent", "f8", 8)]),
        Form(spec_of(OrderAcknowledged).tag, [Column("order", "i8", 8)]),
    ],
    row_bytes=40,
    columns=[
        Column("north_m", "f8", 0),
        Column("east_m", "f8", 8),
        Column("altitude_m", "f8", 16),
        Column("battery_percent", "f8", 24),
        Column("order", "i8", 32),
    ],
)

TEMPLATES = Templates(
    format=LAYOUT_FORMAT,
    kind="Drone",
    action_bytes=16,
    templates=[
        Template(spec_of(Descend).tag, [("altitude_m", Constant(encode(100.0)))]),
        Template(spec_of(Land).tag, [("reason", Constant(encode("battery")))]),
    ],
)

SOURCE = '''\
"""Drone, to be compiled. Records of 32 bytes, rows of 40, actions of 16."""

import numpy as np

END, FULL, UNKNOWN_AGENT, UNKNOWN_FORM, STOPPED, BAD_VALUE = 0, 1, 2, 3, 4, 5


def step(records, start, end, known, flags_of_call, rows, stopped, dirty, kept, actions, others, batched, now, result):
    heads_u4 = records.view(np.uint32)
    heads_u2 = records.view(np.uint16)
    in_f8 = records.view(np.float64)
    in_i8 = records.view(np.int64)
    row_f8 = rows.view(np.float64)
    row_i8 = rows.view(np.int64)
    actions_u4 = actions.view(np.uint32)
    others_u4 = others.view(np.uint32)
    # One input causes one action at most: so much must be free before it is begun.
    actions_end = actions.size - 16
    others_end = others.size - 16
    actions_at = 0
    others_at = 0
    agents_end = known + (flags_of_call & 1)
    halt = END
    site = 0
    i = start
    while i < end:
        form = heads_u2[i * 16 + 2]
        if form > 2:
            halt = UNKNOWN_FORM
            break
        agent = np.int64(heads_u4[i * 8])
        if agent >= agents_end:
            halt = UNKNOWN_AGENT
            break
        if stopped[agent] != 0:
            halt = STOPPED
            break
        if actions_at > actions_end or others_at > others_end:
            halt = FULL
            break
        spare = np.int64(heads_u2[i * 16 + 3])
        at = i * 4
        row = agent * 5
        template = -1
        if form == 0:
            if spare != 0:
                halt, site = BAD_VALUE, 0
                break
            altitude_m = in_f8[at + 3]
            if altitude_m > 100.0:
                template = 0
            row_f8[row] = in_f8[at + 1]
            row_f8[row + 1] = in_f8[at + 2]
            row_f8[row + 2] = altitude_m
        elif form == 1:
            if spare | in_i8[at + 2] | in_i8[at + 3] != 0:
                halt, site = BAD_VALUE, 1
                break
            percent = in_f8[at + 1]
            if percent < 15.0:
                template = 1
            row_f8[row + 3] = percent
        else:
            if spare | in_i8[at + 2] | in_i8[at + 3] != 0:
                halt, site = BAD_VALUE, 2
                break
            row_i8[row + 4] = in_i8[at + 1]
        dirty[agent >> 8] = 1
        if template >= 0:
            if batched[template] != 0:
                place = actions_at >> 2
                actions_u4[place] = np.uint32(agent)
                actions_u4[place + 1] = np.uint32(template)
                actions_u4[place + 2] = np.uint32(i - start)
                actions_u4[place + 3] = np.uint32(0)
                actions_at += 16
            else:
                place = others_at >> 2
                others_u4[place] = np.uint32(agent)
                others_u4[place + 1] = np.uint32(template)
                others_u4[place + 2] = np.uint32(i - start)
                others_u4[place + 3] = np.uint32(0)
                others_at += 16
        i += 1
    result[0] = i - start
    result[1] = i - start
    result[2] = actions_at // 16
    result[3] = others_at // 16
    result[4] = halt
    result[5] = site


def fold(records, count, rows, dirty, now, result):
    heads_u4 = records.view(np.uint32)
    heads_u2 = records.view(np.uint16)
    in_f8 = records.view(np.float64)
    in_i8 = records.view(np.int64)
    row_f8 = rows.view(np.float64)
    row_i8 = rows.view(np.int64)
    agents_end = rows.size // 40
    halt = END
    i = 0
    while i < count:
        form = heads_u2[i * 16 + 2]
        agent = np.int64(heads_u4[i * 8])
        if form > 2:
            halt = UNKNOWN_FORM
            break
        if agent >= agents_end:
            halt = UNKNOWN_AGENT
            break
        at = i * 4
        row = agent * 5
        if form == 0:
            row_f8[row] = in_f8[at + 1]
            row_f8[row + 1] = in_f8[at + 2]
            row_f8[row + 2] = in_f8[at + 3]
        elif form == 1:
            row_f8[row + 3] = in_f8[at + 1]
        else:
            row_i8[row + 4] = in_i8[at + 1]
        dirty[agent >> 8] = 1
        i += 1
    result[0] = i
    result[4] = halt
'''


def drone_program() -> Program:
    """The drone, read."""
    return Program(
        kind="Drone",
        cls=Drone,
        layout=LAYOUT,
        templates=TEMPLATES,
        makings=[Making(Descend, _descend), Making(Land, _land)],
        sites=[_spare(form.tag) for form in LAYOUT.forms],
        source=SOURCE,
        plain=True,
        record_max=1,
        action_max=1,
        first_row=struct.pack("<ddddq", 0.0, 0.0, 0.0, 100.0, 0),
        wait_ns=0,
    )


def _descend(slots: bytes, agent: int, name_of: NameOf) -> Effect:
    return Descend(altitude_m=100.0)


def _land(slots: bytes, agent: int, name_of: NameOf) -> Effect:
    return Land(reason="battery")


def _spare(tag: str) -> Site:
    def make(slots: bytes, agent: int, name_of: NameOf) -> Exception:
        return Malformed(f"{tag}: bytes behind its fields are in use; fill them with zeros")

    return Site(0, make)
