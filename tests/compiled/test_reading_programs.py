"""What reading makes of whole classes: layouts, what goes in and comes out, what is not allowed, and how it halts."""

from __future__ import annotations

import enum
import math
import struct
from typing import Annotated, Any

import pytest
from msgspec import Meta

from bench.workload import Drone
from stigmergy import (
    Action,
    Agent,
    Effects,
    Event,
    evolve,
    react,
    within,
)
from stigmergy.agents.columns import Column, Halt
from stigmergy.agents.messages import SECOND_NS
from stigmergy.base.errors import Malformed
from stigmergy.compiled.program import NEWCOMER
from stigmergy.compiled.reader import read_agent
from tests.compiled.handwritten import LAYOUT, TEMPLATES, drone_program
from tests.compiled.running import fold, record, run

Tiny = Annotated[int, Meta(ge=-3, le=3)]
Byte = Annotated[int, Meta(ge=0, le=200)]
Word = Annotated[int, Meta(gt=-30_000, lt=30_000)]
Long = Annotated[int, Meta(ge=0, le=2**32 - 1)]
Share = Annotated[float, Meta(ge=0.0, lt=1.0)]
Key = Annotated[bytes, Meta(min_length=10, max_length=10)]


class Mode(enum.Enum):
    OFF = "off"
    ON = "on"


class Everything(Event, keep=within(seconds=2)):
    flag: bool
    tiny: Tiny
    word: Word
    key: Key
    long: Long
    mode: Mode
    share: Share
    whole: int
    byte: Byte = 7


class Shown(Action):
    flag: bool
    tiny: Tiny
    key: Key
    mode: Mode
    share: Share
    whole: int
    text: str
    constant: Mode = Mode.ON


class Holder(Agent, kind="holder", version=3):
    """Has every type of field, and gives each of them back."""

    flag: bool = True
    tiny: Tiny = -1
    word: Word = 5
    key: Key = b"0123456789"
    long: Long = 2**31
    mode: Mode = Mode.ON
    share: Share = 0.5
    whole: int = -(2**63)
    byte: Byte = 200

    @evolve
    def take(self, event: Everything) -> None:
        """Takes all of it over."""
        self.flag = event.flag
        self.tiny = event.tiny
        self.word = event.word
        self.key = event.key
        self.long = event.long
        self.mode = event.mode
        self.share = event.share
        self.whole = event.whole
        self.byte = event.byte

    @react
    def show(self, event: Everything) -> Effects:
        yield Shown(
            flag=self.flag,
            tiny=event.tiny,
            key=self.key,
            mode=event.mode,
            share=self.share,
            whole=event.whole,
            text=f"{self.address}: {event.share:.2f} {event.flag} {event.word:+d} of {self.id}",
        )


EVERYTHING = {
    "flag": False,
    "tiny": 3,
    "word": -29_999,
    "key": b"abcdefghij",
    "long": 2**32 - 1,
    "mode": Mode.OFF,
    "share": 0.25,
    "whole": 2**63 - 1,
    "byte": 0,
}


def everything(**changes: Any) -> Everything:
    return Everything(**{**EVERYTHING, **changes})


# ---- layouts


def test_the_drone_is_read_as_it_was_written_by_hand() -> None:
    program, by_hand = read_agent(Drone), drone_program()
    assert program.layout == LAYOUT
    assert program.templates == TEMPLATES
    assert (program.plain, program.record_max, program.action_max) == (True, 1, 1)
    assert (program.first_row, program.wait_ns) == (by_hand.first_row, by_hand.wait_ns)


def test_columns_are_aligned_and_as_narrow_as_their_bounds() -> None:
    layout = read_agent(Holder).layout
    (form,) = layout.forms
    assert {column.name: (column.code, column.offset) for column in form.columns} == {
        "key": ("S10", 8),
        "share": ("f8", 24),
        "whole": ("i8", 32),
        "long": ("u4", 40),
        "word": ("i2", 44),
        "mode": ("e2", 46),
        "flag": ("b1", 48),
        "tiny": ("i1", 49),
        "byte": ("u1", 50),
    }
    assert [column.name for column in form.columns] == list(Everything.__struct_fields__)
    assert layout.record_bytes == 56
    assert layout.row_bytes == 48
    assert form.columns[5] == Column("mode", "e2", 46, [("OFF", b"\xa3off"), ("ON", b"\xa2on")])


def test_every_type_goes_in_through_the_state_and_out_again() -> None:
    program = read_agent(Holder)
    ran = run(program, everything(), batched=True)
    assert ran.halt is Halt.END
    assert ran.states == [{**EVERYTHING, "mode": "off"}]
    (cause, effect) = ran.effects[0]
    assert cause == 0
    assert effect == Shown(
        flag=False,
        tiny=3,
        key=b"abcdefghij",
        mode=Mode.OFF,
        share=0.25,
        whole=2**63 - 1,
        text="holder/D-0: 0.25 False -29999 of D-0",
    )
    assert (ran.actions_count, ran.others_count) == (1, 0)
    assert fold(program, everything()).states == ran.states


def test_the_first_row_has_the_defaults() -> None:
    assert run(read_agent(Holder)).states[0] == {
        "flag": True,
        "tiny": -1,
        "word": 5,
        "key": b"0123456789",
        "long": 2**31,
        "mode": "on",
        "share": 0.5,
        "whole": -(2**63),
        "byte": 200,
    }


def test_within_tells_how_long_the_most_urgent_event_may_wait() -> None:
    assert read_agent(Holder).wait_ns == 2 * SECOND_NS
    assert read_agent(Drone).wait_ns == 0


# ---- values from outside


@pytest.mark.parametrize(
    ("offset", "value", "says"),
    [
        (6, b"\x01", "bytes outside of its fields"),
        (18, b"\x01", "bytes outside of its fields"),
        (51, b"\x01", "bytes outside of its fields"),
        (55, b"\x80", "bytes outside of its fields"),
        (24, struct.pack("<d", math.nan), "Everything.share: give x >= 0 and x < 1"),
        (24, struct.pack("<d", 1.0), "Everything.share: give x >= 0 and x < 1"),
        (24, struct.pack("<d", -1e-9), "Everything.share: give x >= 0 and x < 1"),
        (44, struct.pack("<h", 30_000), "Everything.word: give -29999 to 29999"),
        (46, b"\x02", "Everything.mode: give one of OFF, ON"),
        (48, b"\x02", "Everything.flag: give 0 or 1"),
        (49, b"\x04", "Everything.tiny: give -3 to 3"),
        (50, b"\xc9", "Everything.byte: give 0 to 200"),
    ],
)
def test_a_value_that_is_not_allowed_halts_and_says_what_is(offset: int, value: bytes, says: str) -> None:
    program = read_agent(Holder)
    good = record(program, everything())
    bad = good[:offset] + value + good[offset + len(value) :]
    ran = run(program, good, bad, good)
    assert (ran.halt, ran.taken, ran.kept_count, ran.others_count) == (Halt.BAD_VALUE, 1, 1, 1)
    assert isinstance(ran.error, Malformed)
    assert says in str(ran.error)


def test_form_agent_and_stopped_are_looked_at_first() -> None:
    program = read_agent(Holder)
    good = record(program, everything())
    unknown_form = good[:4] + b"\x01\x00" + b"\xff" * 50
    unknown_agent = b"\x02\x00\x00\x00" + good[4:6] + b"\xff" * 50
    stopped = b"\x01\x00\x00\x00" + good[4:6] + b"\xff" * 50
    assert run(program, good, unknown_form, agents=2).halt is Halt.UNKNOWN_FORM
    assert run(program, good, unknown_agent, agents=2).halt is Halt.UNKNOWN_AGENT
    assert run(program, good, stopped, agents=2, stopped=b"\x00\x01").halt is Halt.STOPPED
    assert run(program, good, stopped, agents=2).halt is Halt.BAD_VALUE


def test_a_newcomer_may_be_one_more_than_known() -> None:
    program = read_agent(Holder)
    newcomer = record(program, everything(), agent=1)
    rows = program.first_row * 2
    assert run(program, newcomer, rows=rows).halt is Halt.UNKNOWN_AGENT
    ran = run(program, newcomer, rows=rows, stopped=bytes(2), flags=NEWCOMER)
    assert (ran.halt, ran.taken) == (Halt.END, 1)
    assert ran.states[1]["byte"] == 0
    assert ran.states[0]["byte"] == 200


def test_without_room_for_what_may_come_the_call_ends_before_the_record() -> None:
    program = read_agent(Holder)
    ran = run(program, *[everything()] * 5, room=3)
    assert (ran.halt, ran.taken, ran.others_count) == (Halt.FULL, 3, 3)
    assert run(program, *[everything()] * 5, room=5).halt is Halt.END
