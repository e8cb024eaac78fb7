"""What reading makes of handlers: decisions, faults, timers, tells, and numbers in effects."""

from __future__ import annotations

import math
import struct
from pathlib import Path
from typing import Annotated

import pytest
from msgspec import Meta

from stigmergy import (
    Action,
    Agent,
    CancelWake,
    Command,
    Effects,
    Event,
    Events,
    Publish,
    Tell,
    WakeMe,
    WakeMeAt,
    Woken,
    Work,
    decide,
    evolve,
    react,
    reject,
    transient,
)
from stigmergy.agents.agent import Rejection
from stigmergy.agents.columns import Halt
from stigmergy.compiled.program import ALONE, NO_CAUSE
from stigmergy.compiled.reader import read_agent
from tests.compiled.running import fold, record, run

Byte = Annotated[int, Meta(ge=0, le=200)]


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
