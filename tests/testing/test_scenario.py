"""What `given … when … then` accepts, refuses, and says when a test fails."""

from __future__ import annotations

import itertools

import pytest

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
    Window,
    WindowClosed,
    Woken,
    decide,
    evolve,
    field,
    react,
    reject,
    transient,
    within,
)
from stigmergy.testing import given


class StartMission(Command):
    mission: str


class MissionStarted(Event):
    mission: str


class BatteryMeasured(Event, keep=within(seconds=1)):
    percent: float


class Noise(Event):
    level: int


class Seen(Event, keep=transient):
    what: str


class Land(Action):
    reason: str


class Drone(Agent):
    battery: float = 100.0
    mission: str | None = None
    loudest: int = 0

    @decide
    def start(self, command: StartMission) -> Events:
        if self.battery < 20:
            reject(f"battery at {self.battery:.0f} %, 20 % needed")
        yield MissionStarted(mission=command.mission)

    @evolve
    def started(self, event: MissionStarted) -> None:
        self.mission = event.mission

    @react
    def announce(self, event: MissionStarted) -> Effects:
        yield WakeMe(name="check", after_s=4.35)
        yield Tell(to="Tower/T-1", message=StartMission(mission=event.mission))
        yield Publish(topic="missions", event=event)

    @evolve
    def measured(self, event: BatteryMeasured) -> None:
        if event.percent < 0:
            raise ValueError(f"a battery at {event.percent} %")
        self.battery = event.percent

    @react
    def land_when_low(self, event: BatteryMeasured) -> Effects:
        if self.battery < 15:
            yield Land(reason="battery")

    @decide
    def only_loud(self, event: Noise) -> Events:
        if event.level > 5:
            yield event

    @evolve
    def heard(self, event: Noise) -> None:
        self.loudest = max(self.loudest, event.level)

    @react
    def checked(self, event: Woken) -> Effects:
        yield Land(reason=f"{event.name} at {self.now}")

    @react
    def look(self, event: Seen) -> Effects:
        yield Land(reason=event.what)


def failure(check: object) -> str:
    assert callable(check)
    with pytest.raises(AssertionError) as caught:
        check()
    return str(caught.value)


def test_the_example_of_the_manual() -> None:
    given(Drone).when(BatteryMeasured(percent=12)).then(Land(reason="battery"))


def test_an_agent_with_a_past_is_watched_like_a_new_one() -> None:
    """Its events take the short path through the shard."""
    given(Drone, BatteryMeasured(percent=40)).when(BatteryMeasured(percent=12)).then(Land(reason="battery"))


def test_an_event_kept_as_it_is_may_be_listed_or_left_out() -> None:
    given(Drone).when(BatteryMeasured(percent=80)).then_nothing().then(BatteryMeasured(percent=80))


def test_what_decide_yields_must_be_listed_also_when_it_passes_an_event_on() -> None:
    given(Drone).when(Noise(level=9)).then(Noise(level=9)).state(loudest=9)
    given(Drone).when(Noise(level=1)).then_nothing().state(loudest=0)
    assert "Noise(level=9)" in failure(lambda: given(Drone).when(Noise(level=9)).then_nothing())


def test_events_and_effects_come_in_the_order_of_cause() -> None:
    given(Drone).when(StartMission(mission="M1")).then(
        MissionStarted(mission="M1"),
        WakeMe(name="check", after_s=4.35),
        Tell(to="Tower/T-1", message=StartMission(mission="M1")),
        Publish(topic="missions", event=MissionStarted(mission="M1")),
    )


def test_the_past_is_folded_and_causes_nothing() -> None:
    scenario = given(Drone, MissionStarted(mission="M1"), BatteryMeasured(percent=3), id="D-17", at=5.0)
    scenario.state(mission="M1", battery=3.0, id="D-17", now=0.0).then_nothing()
    scenario.later(seconds=60).then_nothing()


def test_a_refusal() -> None:
    low = given(Drone, BatteryMeasured(percent=12))
    low.when(StartMission(mission="M1")).refused("battery at 12 %").state(mission=None)


def test_time_passes_and_timers_go_off_at_their_time() -> None:
    started = given(Drone, at=1000.0).when(StartMission(mission="M1"))
    started.later(seconds=4).then_nothing()
    started.later(seconds=1).then(Land(reason="check at 1004.35"))
    started.later(seconds=100).then_nothing()


def test_a_transient_event_is_not_kept_and_may_have_effects() -> None:
    given(Drone).when(Seen(what="tree")).then(Land(reason="tree"))


def test_the_agent_is_there_for_assertions_of_any_kind() -> None:
    scenario = given(Drone).when(BatteryMeasured(percent=50))
    drone = scenario.agent
    drone.battery = 1.0
    assert scenario.agent.battery == 50.0


def test_each_when_starts_anew() -> None:
    scenario = given(Drone).when(BatteryMeasured(percent=12)).when(BatteryMeasured(percent=80))
    scenario.then_nothing().when(BatteryMeasured(percent=11), BatteryMeasured(percent=10))
    scenario.then(Land(reason="battery"), Land(reason="battery"))


def test_tells_to_kinds_that_the_fleet_does_not_have_fail_if_the_fleet_is_given() -> None:
    given(Drone, fleet=[Drone]).when(StartMission(mission="M1")).failed("'Tower/T-1' is no address")


def test_a_difference_lists_what_was_expected_and_what_happened() -> None:
    text = failure(lambda: given(Drone).when(BatteryMeasured(percent=12)).then(Land(reason="wind")))
    assert text == (
        "given Drone/one\nwhen BatteryMeasured(percent=12):\n"
        "expected\n    Land(reason='wind')\n"
        "actually\n    BatteryMeasured(percent=12.0)   (as it is)\n    Land(reason='battery')"
    )


def test_something_missing_is_a_difference() -> None:
    text = failure(lambda: given(Drone).when(BatteryMeasured(percent=80)).then(Land(reason="battery")))
    assert "expected\n    Land(reason='battery')\nactually\n    BatteryMeasured" in text


def test_then_says_that_the_command_was_refused() -> None:
    low = given(Drone, BatteryMeasured(percent=12)).when(StartMission(mission="M1"))
    text = failure(lambda: low.then(MissionStarted(mission="M1")))
    assert "but the command was refused\n    battery at 12 %, 20 % needed" in text
    assert "given Drone/one with BatteryMeasured(percent=12)" in text


def test_refused_says_what_happened_instead() -> None:
    started = given(Drone).when(StartMission(mission="M1"))
    assert "because of 'wind', but the command was accepted" in failure(lambda: started.refused("wind"))
    assert "MissionStarted(mission='M1')" in failure(started.refused)
    assert "but there was no command" in failure(lambda: given(Drone).when(Noise(level=9)).refused())
    low = given(Drone, BatteryMeasured(percent=12)).when(StartMission(mission="M1"))
    assert "but the reason is\n    battery at 12 %" in failure(lambda: low.refused("wind"))


def test_a_failure_is_expected_or_explained_with_its_cause() -> None:
    failing = given(Drone).when(BatteryMeasured(percent=-1)).failed("a battery at -1.0 %").failed()
    assert "but what failed is\n    ValueError: a battery at -1.0 %" in failure(lambda: failing.failed("wind"))
    with pytest.raises(AssertionError, match="a battery at") as caught:
        failing.then_nothing()
    assert isinstance(caught.value.__cause__, ValueError)
    assert "but nothing failed\nactually\n    nothing" in failure(lambda: given(Drone).when().failed("wind"))


def test_a_state_that_differs() -> None:
    scenario = given(Drone).when(BatteryMeasured(percent=50))
    assert "    battery: expected 12, is 50.0" in failure(lambda: scenario.state(battery=12, mission=None))
    assert "has no field 'height'; it has id, battery, mission" in failure(lambda: scenario.state(height=3))


def test_a_message_that_does_not_survive_its_encoding() -> None:
    wrong = BatteryMeasured(percent="12")  # type: ignore[arg-type]
    assert "does not survive its encoding: Expected `float`, got `str`" in failure(lambda: given(Drone).when(wrong))
    assert "does not survive its encoding" in failure(lambda: given(Drone, wrong))


def test_a_transient_event_is_no_past() -> None:
    assert "is transient, so it was never kept" in failure(lambda: given(Drone, Seen(what="tree")))


counter = itertools.count()


class Go(Command):
    how: str


class Went(Event):
    number: int = 0


class Impure(Agent):
    seen: list[int] = field(default_factory=list)
    number: int = 0

    @decide
    def go(self, command: Go) -> Events:
        if command.how == "changes":
            self.seen.append(1)
        if command.how == "chance":
            yield Went(number=next(counter))
        if command.how == "mistyped":
            yield Went(number="one")  # type: ignore[arg-type]
        if command.how == "foreign":
            yield "Went"  # type: ignore[misc]
        yield Went()

    @evolve
    def went(self, event: Went) -> None:
        self.number = event.number

    @evolve
    def woken(self, event: Woken) -> None:
        self.number = next(counter)

    @react
    def again(self, event: Woken) -> Effects:
        yield WakeMe(name="again", after_s=0)

    @react
    def wake(self, event: Went) -> Effects:
        yield WakeMeAt(name="at", at_s=2000.0)
        yield CancelWake(name="other")


def test_a_decide_that_changes_the_state_is_found() -> None:
    text = failure(lambda: given(Impure).when(Go(how="changes")))
    assert "@decide of Impure, Go changed the state" in text


def test_a_decide_with_chance_in_it_is_found() -> None:
    text = failure(lambda: given(Impure).when(Go(how="chance")))
    assert "@decide of Impure, Go gave two results for the same input" in text
    assert "first  [Went(number=" in text


def test_an_evolve_with_chance_in_it_is_found() -> None:
    text = failure(lambda: given(Impure).when(Woken(name="x")))
    assert "@evolve of Impure, Woken gave two states for the same event" in text


def test_an_event_that_does_not_survive_its_encoding_is_found() -> None:
    text = failure(lambda: given(Impure).when(Go(how="mistyped")))
    assert "Went(number='one') does not survive its encoding" in text


def test_what_is_no_event_fails() -> None:
    given(Impure).when(Go(how="foreign")).failed("a @decide handler yields events; str is none")


def test_timers_of_all_kinds_are_effects() -> None:
    given(Impure).when(Go(how="well")).then(Went(), WakeMeAt(name="at", at_s=2000), CancelWake(name="other"))


class Restless(Agent):
    @react
    def again(self, event: Woken) -> Effects:
        yield WakeMe(name="again", after_s=0)


def test_an_agent_that_wakes_itself_without_end_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("stigmergy.testing.scenario.FIRINGS_COUNT_MAX", 5)
    restless = given(Restless).when(Woken(name="x"))
    assert "wakes itself without end" in failure(lambda: restless.later(seconds=1))


class Sampled(Event):
    value: float


class Averaged(Action):
    of: int


class Sensor(Agent):
    minute: Window[Sampled] = Window.tumbling(seconds=60)

    @react
    def closed(self, event: WindowClosed) -> Effects:
        yield Averaged(of=len(self.minute.closed_values))


def test_a_window_closes_when_its_time_is_over() -> None:
    sensor = given(Sensor, at=1200.0).when(Sampled(value=1), Sampled(value=2)).then_nothing()
    sensor.later(seconds=59).then_nothing()
    sensor.later(seconds=2).then(Averaged(of=2))


class Mistyped(Agent):
    height: int = 0
    legs: tuple[int, ...] = ()

    @evolve
    def woken(self, event: Woken) -> None:
        if event.name == "text":
            self.height = "high"  # type: ignore[assignment]
        elif event.name == "texts":
            self.legs = ("high",)  # type: ignore[assignment]
        else:
            self.height = 2**70


def test_a_value_that_its_field_is_not_declared_for_fails_the_input() -> None:
    mistyped = given(Mistyped).when(Woken(name="text"))
    mistyped.failed("Mistyped.height is declared as int and was given a str")
    mistyped.state(height=0)


def test_a_state_that_cannot_be_read_back_is_found() -> None:
    assert "cannot be written and read back" in failure(lambda: given(Mistyped).when(Woken(name="texts")))


def test_a_state_that_cannot_be_written_is_found() -> None:
    assert "cannot be written" in failure(lambda: given(Mistyped).when(Woken(name="large")))
