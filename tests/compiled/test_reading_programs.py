"""What reading makes of whole classes: layouts, order, what is kept, what one input causes, and how it halts."""

from __future__ import annotations

import enum
import math
import struct
from pathlib import Path
from typing import Annotated, Any

import pytest
from msgspec import Meta

from bench.workload import Drone
from stigmergy import (
    Action,
    Agent,
    CancelWake,
    Command,
    Effects,
    Event,
    Events,
    Publish,
    Supervise,
    Tell,
    WakeMe,
    WakeMeAt,
    WhenStale,
    Woken,
    Work,
    decide,
    evolve,
    react,
    reject,
    transient,
    upcast,
    within,
)
from stigmergy.agents.agent import Rejection
from stigmergy.agents.columns import Column, Halt
from stigmergy.agents.messages import SECOND_NS
from stigmergy.base.errors import Malformed
from stigmergy.compiled.program import ALONE, NEWCOMER, NO_CAUSE
from stigmergy.compiled.reader import read_agent
from tests.compiled.handwritten import LAYOUT, TEMPLATES, drone_program
from tests.compiled.running import fold, module_of, record, run

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


# ---- decisions


class Reported(Event):
    level: float


class Glanced(Event, keep=transient):
    level: float


class Raised(Event):
    level: float
    by: float = 0.5


class Ask(Command):
    level: float
    times: int


class Answered(Event):
    level: float


class Light(Action):
    level: float


class Look(Work):
    level: float


class Decider(Agent):
    CEILING = 100

    level: float = 0.0
    raised: int = 0
    seen: int = 0

    @decide
    def filter(self, event: Reported) -> Events:
        if event.level < 0:
            return
        if event.level > self.level:
            yield Glanced(level=event.level)
            yield Raised(event.level, by=event.level - self.level)
        yield event
        if event.level > self.CEILING:
            yield Raised(level=0)

    @evolve
    def reported(self, event: Reported) -> None:
        self.seen += 1

    @evolve
    def was_raised(self, event: Raised) -> None:
        self.level = event.level
        self.raised += 1

    @react
    def after_report(self, event: Reported) -> Effects:
        yield Light(level=self.level)

    @react
    def after_glance(self, event: Glanced) -> Effects:
        yield Look(level=self.level)

    @react
    def after_raise(self, event: Raised) -> Effects:
        yield Light(event.by)

    @decide
    def ask(self, command: Ask) -> Events:
        if command.times > 3:
            reject(f"{command.times} times, {self.id}: {self.level:.1f} of {self.address} is {command.level > 1.0}")
        for i in range(5):
            if i >= command.times:
                break
            yield Answered(level=command.level / (command.times - 1 - i) if command.times == 3 else command.level)


def test_a_decision_sees_the_state_unchanged_and_its_events_follow_one_by_one() -> None:
    ran = run(read_agent(Decider), Reported(level=120.0), Reported(level=-1.0), Reported(level=7.0))
    assert ran.halt is Halt.END
    assert (ran.taken, ran.kept_count) == (3, 5)
    assert [one.tag for one in ran.kept] == ["Raised@1", "Reported@1", "Raised@1", "Raised@1", "Reported@1"]
    assert ran.effects == [
        (NO_CAUSE, Look(level=0.0)),
        (0, Light(level=120.0)),
        (1, Light(level=120.0)),
        (2, Light(level=0.5)),
        (NO_CAUSE, Look(level=0.0)),
        (3, Light(level=7.0)),
        (4, Light(level=7.0)),
    ]
    assert ran.states == [{"level": 7.0, "raised": 3, "seen": 2}]


def test_what_is_not_kept_leaves_no_gap() -> None:
    program = read_agent(Decider)
    ran = run(program, Reported(level=50.0))
    bodies = [one.body for one in ran.kept]
    assert [one.tag for one in ran.kept] == ["Raised@1", "Reported@1"]
    assert b"level\xcb@I\x00" in bodies[1]
    assert (program.plain, program.record_max, program.action_max) == (False, 5, 4)


def test_commands_are_taken_alone() -> None:
    program = read_agent(Decider)
    command = Ask(level=2.0, times=2)
    assert run(program, command).halt is Halt.UNKNOWN_FORM
    ran = run(program, command, flags=ALONE)
    assert (ran.halt, [one.tag for one in ran.kept]) == (Halt.END, ["Answered@1", "Answered@1"])
    assert ran.effects == []


def test_events_that_are_only_yielded_are_no_inputs() -> None:
    assert run(read_agent(Decider), Answered(level=1.0), flags=ALONE).halt is Halt.UNKNOWN_FORM
    assert run(read_agent(Decider), Raised(level=1.0)).halt is Halt.END


def test_a_refusal_says_why_with_numbers_and_names() -> None:
    ran = run(read_agent(Decider), Ask(level=2.0, times=4), flags=ALONE)
    assert (ran.halt, ran.taken, ran.kept_count) == (Halt.REFUSED, 0, 0)
    assert isinstance(ran.error, Rejection)
    assert ran.error.reason == "4 times, D-0: 0.0 of Decider/D-0 is True"


def test_a_fault_in_the_middle_of_a_decision_undoes_all_of_it() -> None:
    ran = run(read_agent(Decider), Ask(level=2.0, times=3), flags=ALONE)
    assert (ran.halt, ran.taken, ran.kept_count, ran.others_count) == (Halt.FAULT, 0, 0, 0)
    assert isinstance(ran.error, ZeroDivisionError)
    line = Path(__file__).read_text(encoding="utf-8").splitlines()[ran.line - 1]
    assert "yield Answered(level=command.level / (command.times" in line


class Choosing(Agent):
    x: float = 0.0

    @decide
    def choose(self, event: Reported) -> Events:
        if event.level > 5.0:
            yield Raised(level=1.0)
            yield Raised(level=2.0)
        elif event.level > 3.0:
            yield event
        else:
            for i in range(3):
                if event.level > 1.0:
                    yield Answered(level=float(i))
                else:
                    yield event

    @react
    def light(self, event: Raised | Reported) -> Effects:
        if isinstance(event, Raised):
            yield Light(level=1.0)
            yield Light(level=2.0)
        elif event.level > 4.0:
            yield Light(level=3.0)
        else:
            yield Look(level=4.0)


def test_of_branches_the_one_counts_that_causes_most() -> None:
    program = read_agent(Choosing)
    assert program.record_max == 3
    assert program.action_max == 2 * 2 + 3 * 1
    for level in (9.0, 4.0, 2.0, 0.0):
        ran = run(program, Reported(level=level), room=program.action_max)
        assert ran.halt is Halt.END
        assert len(ran.effects) <= program.action_max


# ---- faults after the state has changed


class Stepped(Event):
    by: int
    of: int


class Faulty(Agent):
    total: int = 10
    ratio: float = 1.0
    level: Byte = 0

    @evolve
    def stepped(self, event: Stepped) -> None:
        self.total += event.by
        self.level = event.of
        self.ratio = self.total / 2.5 - event.of

    @react
    def act(self, event: Stepped) -> Effects:
        yield Light(level=self.ratio)
        yield Light(level=1.0 / event.by)


def test_a_fault_in_react_leaves_the_agent_as_it_was() -> None:
    program = read_agent(Faulty)
    ran = run(program, Stepped(by=5, of=1), Stepped(by=0, of=2), Stepped(by=1, of=2))
    assert (ran.halt, ran.taken, ran.kept_count, ran.others_count) == (Halt.FAULT, 1, 1, 2)
    assert ran.states == [{"total": 15, "ratio": 5.0, "level": 1}]
    assert fold(program, Stepped(by=5, of=1), Stepped(by=0, of=2)).states[0]["level"] == 2


@pytest.mark.parametrize("of", [-1, 201, 2**40])
def test_what_does_not_fit_into_a_narrow_field_is_a_fault(of: int) -> None:
    ran = run(read_agent(Faulty), Stepped(by=5, of=of))
    assert ran.halt is Halt.FAULT
    assert isinstance(ran.error, OverflowError)
    assert str(ran.error) == "Faulty.level: outside of 0 to 200"
    assert fold(read_agent(Faulty), Stepped(by=5, of=of)).halt is Halt.FAULT


# ---- texts, timers, tells


class Begin(Event):
    wait: float
    whole: int


class Report(Command):
    wait: float
    whole: int = 4
    text: str = "nothing"


class Timed(Agent):
    AT = "at"
    ticks: int = 0

    @react
    def begin(self, event: Begin) -> Effects:
        yield WakeMe("tick", event.wait)
        yield WakeMe(name="late", after_s=event.whole)
        yield WakeMeAt(self.AT, at_s=self.now + event.wait)
        yield Tell("Other/1", Report(wait=event.wait, text=f"{self.id} {event.whole:03d}"))
        yield Tell(to=self.address, message=event)
        yield Publish(f"begun/{self.id}", event)

    @evolve
    def woken(self, event: Woken) -> None:
        if event.name in ("tick", "never set"):
            self.ticks += 1
        elif event.name != "late":
            self.ticks += 100

    @react
    def cancel(self, event: Woken) -> Effects:
        if event.name == "tick":
            yield CancelWake("late")
            yield Tell("Other/1", event)


def test_timers_tells_and_publications_are_made_as_they_were_written() -> None:
    ran = run(read_agent(Timed), Begin(wait=2.5, whole=7), now=100.0)
    assert [effect for _, effect in ran.effects] == [
        WakeMe("tick", 2.5),
        WakeMe("late", 7),
        WakeMeAt("at", 102.5),
        Tell("Other/1", Report(wait=2.5, whole=4, text="D-0 007")),
        Tell("Timed/D-0", Begin(wait=2.5, whole=7)),
        Publish("begun/D-0", Begin(wait=2.5, whole=7)),
    ]


def test_names_of_timers_are_an_enum_of_those_that_the_class_mentions() -> None:
    program = read_agent(Timed)
    form = next(form for form in program.layout.forms if form.tag == "stigmergy.Woken@1")
    assert [name for name, _ in form.columns[0].members] == ["tick", "late", "at", "never set"]
    ran = run(program, Woken("tick"), Woken("late"), Woken("at"), Woken("never set"))
    assert ran.states == [{"ticks": 102}]
    assert ran.effects == [(0, CancelWake("late")), (0, Tell("Other/1", Woken("tick")))]


@pytest.mark.parametrize("wait", [-1.0, math.nan, 1e12])
def test_a_time_that_no_timer_can_have_is_the_fault_that_it_is_elsewhere(wait: float) -> None:
    ran = run(read_agent(Timed), Begin(wait=wait, whole=7))
    assert ran.halt is Halt.FAULT
    assert isinstance(ran.error, ValueError)
    assert str(ran.error) == f"WakeMe(after_s={wait}): give 0 seconds to ten years"


# ---- numbers that change their type


class Weighed(Event):
    whole: int


class Noted(Event):
    share: float


class Weight(Action):
    share: float
    fixed: float


class Scale(Agent):
    share: float = 0.5

    @decide
    def weigh(self, event: Weighed) -> Events:
        yield Noted(share=event.whole)
        yield Noted(share=3)

    @evolve
    def noted(self, event: Noted) -> None:
        self.share = 7

    @react
    def tell(self, event: Noted) -> Effects:
        yield Weight(share=int(event.share), fixed=2)


def test_an_int_for_a_float_becomes_one_in_the_state_and_in_events_and_stays_one_in_effects() -> None:
    ran = run(read_agent(Scale), Weighed(whole=2**53 + 1))
    assert ran.states == [{"share": 7.0}]
    assert ran.kept[0].body.endswith(struct.pack(">d", 2.0**53))
    (_, first), (_, second) = ran.effects
    assert isinstance(first, Weight)
    assert (type(first.share), type(first.fixed)) == (int, int)
    assert second == Weight(share=3, fixed=2)


class Odd(Event):
    x: float


class Holding(Agent):
    x: float = 0.0
    sum: float = 0.0

    @decide
    def odd(self, event: Odd) -> Events:
        yield Odd(x=event.x - event.x)

    @evolve
    def held(self, event: Odd) -> None:
        self.x = event.x
        self.sum = -event.x

    @react
    def light(self, event: Odd) -> Effects:
        yield Light(level=-event.x)


def test_nan_has_one_set_of_bytes() -> None:
    program = read_agent(Holding)
    odd = struct.pack("<Q", 0xFFF8_0000_0000_1234)
    came = record(program, Odd(x=0.0))[:8] + odd
    ran = run(program, came)
    canonical = struct.pack("<d", math.nan)
    assert struct.pack("<d", ran.states[0]["x"]) == canonical
    assert struct.pack("<d", ran.states[0]["sum"]) == canonical
    assert ran.kept[0].body.endswith(canonical[::-1])
    effect = ran.effects[0][1]
    assert isinstance(effect, Light)
    assert struct.pack("<d", effect.level) == canonical


# ---- where classes come from


class Base(Agent):
    STEP = 2
    total: int = 0

    @evolve
    def add(self, event: Stepped) -> None:
        self.total += event.by * self.STEP + self.offset + self.twice(event.of)

    @property
    def offset(self) -> int:
        return 1000 if self.total > 10_000 else 100

    def twice(self, value: int) -> int:
        return value * 2


class Derived(Base, kind="derived"):
    STEP = 3
    seen: int = 0

    def twice(self, value: int) -> int:
        return value * 20

    @react
    def both(self, happened: Stepped | Weighed) -> Effects:
        """A docstring
        that is indented less than its method."""
        if isinstance(happened, Weighed):
            yield Light(level=float(happened.whole))
        elif isinstance(happened, (Raised, Holder)):
            yield Light(level=happened.not_there)  # type: ignore[attr-defined]
        elif self.total > 0 and not isinstance(happened, Flow):
            yield Light(level=float(self.total + happened.by))

    @evolve
    def weighed(this, what: Weighed) -> None:
        this.seen = what.whole


def test_inherited_handlers_methods_and_constants_are_those_of_the_class() -> None:
    ran = run(read_agent(Derived), Stepped(by=5, of=1), Weighed(whole=9))
    assert ran.states == [{"total": 15 + 100 + 20, "seen": 9}]
    assert [effect for _, effect in ran.effects] == [Light(level=140.0), Light(level=9.0)]
    assert read_agent(Derived).kind == "derived"
    assert len(read_agent(Derived).templates.templates) == 2


def made_in_a_function(limit: float) -> list[Any]:
    factor = 2.0

    def scaled(x: float, by: float = factor) -> float:
        return x * by

    class Colour(enum.Enum):
        RED = "red"
        BLUE = "blue"

    class Gauge(Event):
        x: float

    class Paint(Action):
        colour: Colour

    class Gauging(Agent):
        over: bool = False
        x: float = 0.0

        @evolve
        def gauge(self, event: Gauge) -> None:
            self.over = scaled(event.x) > limit
            self.x = scaled(by=0.5, x=event.x)

        @react
        def paint(self, event: Gauge) -> Effects:
            for _ in range(2):
                if self.over:
                    yield Paint(colour=Colour.BLUE)
                    return

    return [read_agent(Gauging), Gauge]


def test_a_class_inside_a_function_sees_what_is_around_it() -> None:
    program, build = made_in_a_function(limit=10.0)
    ran = run(program, build(x=5.5))
    assert ran.states == [{"over": True, "x": 2.75}]
    assert len(ran.effects) == 1
    assert run(program, build(x=5.0)).states == [{"over": False, "x": 2.5}]


class GaugedV1(Event, name="Gauged"):
    x: int


class Gauged(Event, version=2):
    x: float


@upcast
def gauged_1_to_2(old: GaugedV1) -> Gauged:
    return Gauged(x=float(old.x))


class Careful(Agent):
    safe = WhenStale(Reported, after_s=1.0, then=Light(level=0.0))
    supervision = Supervise(stop_after=3)
    x: float = 0.0

    @evolve
    def gauged(self, event: Gauged) -> None:
        self.x = event.x


def test_the_newest_version_and_what_a_staleness_rule_waits_for_have_forms() -> None:
    program = read_agent(Careful)
    assert [form.tag for form in program.layout.forms] == ["Gauged@2", "Reported@1"]
    ran = run(program, Reported(level=1.0), Gauged(x=2.0))
    assert (ran.halt, ran.kept_count, ran.states) == (Halt.END, 2, [{"x": 2.0}])


def test_the_text_depends_on_what_is_written_and_not_on_where(tmp_path: Path) -> None:
    source = """
class Told(Event):
    x: float
class Listener(Agent):
    x: float = 0.0
    @evolve
    def told(self, event: Told) -> None:
        self.x = event.x
"""
    first = read_agent(module_of(tmp_path, source).Listener)
    moved = read_agent(module_of(tmp_path, "\n\n# moved\n" + source).Listener)
    assert first.source == moved.source
    assert first.layout == moved.layout
    assert read_agent(module_of(tmp_path, source.replace("= event.x", "= -event.x")).Listener).source != first.source
    assert str(tmp_path) not in first.source


# ---- flow


class Flow(Event):
    a: int
    b: int


class Flowing(Agent):
    path: int = 0
    rounds: int = 0

    @evolve
    def flow(self, event: Flow) -> None:
        if event.a == 0:
            self.path = 1
            return
        for i in range(1, 6, 2):
            for j in range(3):
                self.rounds += 1
                if j > event.b:
                    break
                if i * j == event.a:
                    self.path = 100 * i + j
                    return
                if i == event.b:
                    continue
                self.rounds += 10
        if event.b > 5:
            if event.a > 5:
                self.path = 2
            elif event.a > 3:
                self.path = 3
                return
            else:
                pass
            self.path += 10
        self.path += 1000


def flowed(a: int, b: int) -> dict[str, int]:
    agent, event = Flowing(), Flow(a=a, b=b)
    Flowing.flow(agent, event)
    return {"path": agent.path, "rounds": agent.rounds}


def test_returns_breaks_and_loops_go_where_pythons_go() -> None:
    program = read_agent(Flowing)
    for a in range(-1, 12):
        for b in range(-2, 9):
            assert run(program, Flow(a=a, b=b)).states == [flowed(a, b)], (a, b)


def test_any_number_of_early_returns_and_branches_is_taken(tmp_path: Path) -> None:
    returns = "\n".join(
        f"        if event.x == {n}:\n            self.x = {n + 1}\n            return" for n in range(150)
    )
    branches = "\n".join(f"        elif event.x == {n}:\n            self.x = {n + 2}" for n in range(150, 300))
    written = module_of(
        tmp_path,
        f"""
class Told(Event):
    x: int
class Listener(Agent):
    x: int = 0
    @evolve
    def told(self, event: Told) -> None:
{returns}
        if event.x < 0:
            self.x = -1
{branches}
        else:
            self.x = -2
""",
    )
    program = read_agent(written.Listener)
    for x, want in ((0, 1), (149, 150), (150, 152), (299, 301), (300, -2), (-5, -1)):
        assert run(program, written.Told(x=x)).states == [{"x": want}]


def test_a_loop_that_may_not_run_gives_no_value(tmp_path: Path) -> None:
    written = module_of(
        tmp_path,
        """
class Told(Event):
    x: int
class Listener(Agent):
    x: int = 0
    last: int = 0
    @evolve
    def told(self, event: Told) -> None:
        total = 0
        for i in range(3):
            twice = i * 2
            total += twice + event.x
        for j in range(0):
            total += 1000
        self.x = total + i
        self.last = twice
""",
    )
    assert run(read_agent(written.Listener), written.Told(x=5)).states == [{"x": 23, "last": 4}]
