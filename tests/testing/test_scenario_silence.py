"""Staleness rules in `given … later … then`, and safe actions that went out."""

from __future__ import annotations

import pytest

from stigmergy import (
    Action,
    Agent,
    Command,
    Effects,
    Event,
    Events,
    Publish,
    SafeActionTaken,
    WakeMe,
    WhenStale,
    Woken,
    decide,
    evolve,
    react,
)
from stigmergy.testing import given


class Heard(Event):
    pass


class Seen(Event):
    pass


class Halt(Action):
    pass


class Dim(Action):
    pass


class Begin(Command):
    pass


class Watched(Agent):
    """Two silences, a timer, and handlers for what went out."""

    made_safe: tuple[str, ...] = ()

    ears = WhenStale(Heard, after_s=5, then=Halt())
    eyes = WhenStale(Seen, after_s=2, then=Dim())

    @decide
    def begin(self, command: Begin) -> Events:
        yield Seen()

    @react
    def seen(self, event: Seen) -> Effects:
        yield WakeMe(name="look", after_s=2)

    @react
    def look(self, event: Woken) -> Effects:
        yield Publish(topic="looked", event=Heard())

    @evolve
    def went_out(self, event: SafeActionTaken) -> None:
        self.made_safe = (*self.made_safe, f"{event.action} at {self.now:g}: {event.because}")

    @react
    def say(self, event: SafeActionTaken) -> Effects:
        yield Publish(topic="safe", event=Seen())


SAID = Publish(topic="safe", event=Seen())
LOOKED = Publish(topic="looked", event=Heard())


def test_a_staleness_rule_fires_as_time_passes() -> None:
    watched = given(Watched).later(seconds=6)
    watched.then(Dim(), SAID, Halt(), SAID)
    watched.state(made_safe=("Dim at 1002: no Seen for 2 s", "Halt at 1005: no Heard for 5 s"))
    watched.later(seconds=1000).then_nothing()


def test_a_silence_begins_with_the_first_input_and_ends_with_a_fresh_one() -> None:
    watched = given(Watched).later(seconds=1.5).when(Heard())
    watched.later(seconds=1.5).then_nothing()
    watched.later(seconds=0.5).then(Dim(), SafeActionTaken(action="Dim", because="no Seen for 2 s"), SAID)
    watched.when(Heard()).later(seconds=4.9).then_nothing()
    watched.later(seconds=0.1).then(Halt(), SAID)
    watched.when(Heard()).later(seconds=5).then(Halt(), SAID)


def test_the_past_is_no_fresh_news() -> None:
    given(Watched, Heard(), Seen()).later(seconds=2).then(Dim(), SAID)


def test_timers_and_silences_come_in_the_order_of_their_times() -> None:
    watched = given(Watched).when(Begin()).then(Seen(), WakeMe(name="look", after_s=2))
    # At the same time what makes safe comes first, as in the host.
    watched.later(seconds=5).then(Dim(), SAID, LOOKED, Halt(), SAID)


def test_a_safe_action_that_went_out_can_be_told() -> None:
    told = SafeActionTaken(action="Halt", because="the journal failed")
    given(Watched).when(told).then(SAID).state(made_safe=("Halt at 1000: the journal failed",))
    given(Watched, Heard()).when(told, told).then(told, SAID, told, SAID)


def test_what_is_heard_meanwhile_keeps_its_rule_quiet() -> None:
    both = given(Watched).later(seconds=60, hearing=(Heard(), Seen()))
    both.state(made_safe=())
    one = given(Watched).later(seconds=6, hearing=Heard())
    one.state(made_safe=("Dim at 1004: no Seen for 2 s",))  # its first input, at 1002, began both silences
    deaf = given(Watched).later(seconds=60, hearing="everything").then_nothing()
    deaf.later(seconds=1.9).then_nothing()
    deaf.later(seconds=0.2).state(made_safe=("Dim at 1062: no Seen for 2 s",))


class Torn(Agent):
    """Its handler fails."""

    heard: int = 0

    @decide
    def fail(self, event: Heard) -> Events:
        raise ValueError("a wire is loose")


def test_a_state_that_differs_tells_which_input_failed() -> None:
    with pytest.raises(AssertionError, match=r"heard: expected 1, is 0\n.*a wire is loose"):
        given(Torn).when(Heard()).state(heard=1)
