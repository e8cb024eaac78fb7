"""Raw kinds of events: what may be marked, what holds them, and what the guard of a fleet says."""

import pytest

from stigmergy import Action, Agent, Command, Event, Fleet, Settings, Window, evolve
from stigmergy.agents.codec import encode
from stigmergy.agents.messages import first_raw, spec_of
from stigmergy.agents.raw import BUS, DOORS, UPLINK, RawGuard, inner_tag, read_rules
from stigmergy.agents.steps import StepHeard
from stigmergy.agents.supervision import InputFailed
from stigmergy.base.errors import ConfigError, DefinitionError


class SoundHeard(Event, raw=True):
    sample: bytes


class LoudSoundHeard(SoundHeard):
    level: float


class LevelMeasured(Event):
    level: float


class Keep(Action):
    sound: SoundHeard


class Ear(Agent, kind="Ear"):
    recent: Window[SoundHeard] = Window.last(4)
    last: SoundHeard | None = None
    level: float = 0.0

    @evolve
    def heard(self, event: SoundHeard) -> None:
        self.last = event

    @evolve
    def measured(self, event: LevelMeasured) -> None:
        self.level = event.level


def guard(*rules: str) -> RawGuard:
    return RawGuard(Fleet("ears", agents=[Ear]).plans, rules)


def test_a_mark_is_inherited_and_is_for_events() -> None:
    assert spec_of(SoundHeard).raw
    assert spec_of(LoudSoundHeard).raw
    assert not spec_of(LevelMeasured).raw
    with pytest.raises(DefinitionError, match="raw=True is for events; Order is none"):

        class Order(Command, raw=True):
            pass


def test_what_holds_a_raw_event_is_marked_too_or_refused() -> None:
    with pytest.raises(DefinitionError, match="holds SoundHeard, which is raw; mark it raw=True too"):

        class Alarmed(Event):
            because: tuple[SoundHeard, ...]

    with pytest.raises(DefinitionError, match="holds SoundHeard, which is raw, and commands travel"):

        class Play(Command):
            sound: SoundHeard | None

    class Evidence(Event, raw=True):
        because: SoundHeard

    assert guard().is_raw(spec_of(Evidence).tag)
    assert guard().is_raw(spec_of(Keep).tag), "an action with one stays on the device"


def test_a_guard_stops_raw_kinds_at_every_door_and_counts() -> None:
    ears = guard()
    assert ears.kinds == ["SoundHeard"]
    for door in DOORS:
        why = ears.stops(encode(SoundHeard(sample=b"x")), door)
        assert f'raw_may_leave = ["SoundHeard to {door}"]' in why
        assert ears.stops(encode(LevelMeasured(level=1.0)), door) == ""
        assert ears.kept_back(door) == ["SoundHeard"]
    assert ears.counters.raw_withheld == len(DOORS)
    assert len(ears.troubles()) == len(DOORS)
    with pytest.raises(ConfigError, match="SoundHeard is raw and stays on its device"):
        ears.check(UPLINK)


def test_a_rule_opens_one_door_for_one_kind() -> None:
    ears = guard("SoundHeard to uplink")
    assert ears.stops(encode(SoundHeard(sample=b"x")), UPLINK) == ""
    assert ears.stops(encode(SoundHeard(sample=b"x")), BUS) != ""
    assert ears.stays("LoudSoundHeard", UPLINK), "a kind of its own"


def test_what_carries_a_raw_event_is_found() -> None:
    sound = encode(SoundHeard(sample=b"x"))
    failed = InputFailed(letter="0.1.0", to="Ear/e", source="local", error="no", input=sound)
    for carrier in (StepHeard(step="s", attempt=1, body=sound), failed):
        assert inner_tag(encode(carrier)) == "SoundHeard@1"
        assert guard().stops(encode(carrier), BUS)
    assert inner_tag(encode(StepHeard(step="s", attempt=1, body=b""))) == spec_of(StepHeard).tag


def test_the_fields_of_an_agent_that_hold_raw_events() -> None:
    assert guard().fields_that_stay(Ear, BUS) == ["recent", "last"]
    assert guard("SoundHeard to bus").fields_that_stay(Ear, BUS) == []
    assert first_raw(Window[LevelMeasured]) == ""


@pytest.mark.parametrize("text", ["SoundHeard", "SoundHeard to", " to uplink", "SoundHeard to moon", "A@1 to bus", 7])
def test_a_rule_that_says_nothing_is_refused(text: object) -> None:
    with pytest.raises(ConfigError, match="raw_may_leave"):
        read_rules([text])
    with pytest.raises(ConfigError, match="raw_may_leave"):
        Settings(raw_may_leave=(text,))  # type: ignore[arg-type]
