"""What the drone decides. No disk, no clock, no network."""

import pytest

from apps.edge_agent.drone import (
    BatteryMeasured,
    Drone,
    Land,
    LandingBegun,
    PositionMeasured,
    TakeOff,
    fleet,
)
from apps.edge_agent.messages import (
    AbortMission,
    BatteryReported,
    Delivered,
    GroundHeard,
    Landed,
    MissionStarted,
    PositionReported,
    ReturnBegun,
    StartMission,
)
from stigmergy import Event, Publish, SafeActionTaken
from stigmergy.testing import Scenario, given

FLYING: tuple[Event, ...] = (MissionStarted(mission="M1", distance_m=60),)


def ready(*past: Event, percent: float = 90.0) -> Scenario[Drone]:
    """A drone that hears the ground and knows its battery."""
    return given(Drone, BatteryMeasured(percent=percent), BatteryReported(percent=percent), GroundHeard(), *past)


def test_takes_off_and_says_so() -> None:
    started = MissionStarted(mission="M1", distance_m=60)
    flying = ready().when(StartMission(mission="M1", distance_m=60))
    flying.then(started, TakeOff(), Publish(topic="mission", event=started))
    flying.state(phase="flying", mission="M1", goal_m=60)


@pytest.mark.parametrize(
    ("past", "percent", "distance_m", "why"),
    [
        (FLYING, 90, 60, "flying, on M1"),
        ((), 33, 60, "battery at 33 %, 34 % needed for 60 m and back"),
        ((), 90, 0, "0 m is no distance to fly"),
        ((), 90, float("nan"), "no distance to fly"),
    ],
)
def test_refuses_to_start(past: tuple[Event, ...], percent: float, distance_m: float, why: str) -> None:
    ready(*past, percent=percent).when(StartMission(mission="M2", distance_m=distance_m)).refused(why)


def test_refuses_what_it_cannot_know_enough_for() -> None:
    start = StartMission(mission="M1", distance_m=60)
    given(Drone).when(start).refused("the battery is not known")
    given(Drone, BatteryMeasured(percent=90)).when(start).refused("the ground is not heard")
    ready().later(seconds=3.1).when(start).refused("the battery is not known")
    ready().later(seconds=3.1).when(BatteryMeasured(percent=90), start).refused("the ground is not heard")


def test_delivers_and_turns_round() -> None:
    delivered = Delivered(mission="M1")
    there = PositionMeasured(distance_m=59.2, height_m=10)
    ready(*FLYING, PositionReported(distance_m=58)).when(there).then(
        there, delivered, Publish(topic="mission", event=delivered)
    ).state(phase="returning", goal_m=0, deliveries=1)


def test_lands_at_home() -> None:
    near = PositionMeasured(distance_m=0.5, height_m=10)
    returning = ready(*FLYING, Delivered(mission="M1")).when(near)
    returning.then(near, LandingBegun(because="home"), Land(reason="home")).state(phase="landing")
    landed = Landed(mission="M1", at_m=0.5, because="home")
    down = PositionMeasured(distance_m=0.5, height_m=0)
    returning.when(down).then(down, landed, Publish(topic="mission", event=landed)).state(phase="parked", mission=None)


def test_is_aborted_only_on_its_way_out() -> None:
    turned = ReturnBegun(mission="M1", because="storm")
    aborted = ready(*FLYING).when(AbortMission(reason="storm"))
    aborted.then(turned, Publish(topic="mission", event=turned)).state(phase="returning", goal_m=0, because="storm")
    aborted.when(AbortMission()).refused("nothing to abort: returning")
    ready().when(AbortMission()).refused("nothing to abort: parked")


def low(drone: Scenario[Drone], percent: float) -> Scenario[Drone]:
    """The gauge says so again and again, until it is believed."""
    return drone.when(*(BatteryMeasured(percent=percent) for _ in range(40)))


def test_returns_when_low() -> None:
    out = PositionMeasured(distance_m=50, height_m=10)
    drone = low(ready(*FLYING).when(out), 25)
    drone.state(phase="returning", mission="M1")
    assert drone.agent.because == "battery at 26 %, 26 % needed for home"


def test_lands_where_it_is_when_critical() -> None:
    drone = low(ready(*FLYING, Delivered(mission="M1"), PositionMeasured(distance_m=50, height_m=10)), 8)
    drone.state(phase="landing")
    assert "battery at 10 %" in drone.agent.because


def test_one_wrong_reading_changes_nothing() -> None:
    ready(*FLYING).when(BatteryMeasured(percent=30)).state(phase="flying", battery=78.0)


def test_reports_every_five_metres() -> None:
    near, far = PositionMeasured(distance_m=4.9, height_m=10), PositionMeasured(distance_m=5.04, height_m=10)
    reported = PositionReported(distance_m=5.0)
    drone = ready(*FLYING).when(near).then(near).when(far)
    drone.then(far, reported, Publish(topic="position", event=reported)).when(far).then(far)


def test_reports_each_change_once() -> None:
    reported = BatteryReported(percent=88.0)
    drone = ready().when(BatteryMeasured(percent=80))
    drone.then(BatteryMeasured(percent=80), reported, Publish(topic="battery", event=reported))
    drone.when(BatteryMeasured(percent=88)).then(BatteryMeasured(percent=88))


def test_a_safe_landing_ends_the_mission() -> None:
    silence = SafeActionTaken(action="Land@1", because="no GroundHeard for 3 s")
    drone = ready(*FLYING, PositionReported(distance_m=20), silence)
    drone.state(phase="landing", mission="M1")
    landed = Landed(mission="M1", at_m=20.0, because="no GroundHeard for 3 s")
    down = PositionMeasured(distance_m=20, height_m=0)
    drone.when(down).then(down, landed, Publish(topic="mission", event=landed)).state(phase="parked")


def test_silence_on_the_ground_is_no_landing() -> None:
    ready(SafeActionTaken(action="Land@1", because="no GroundHeard for 3 s")).state(phase="parked", because="")


def test_somebody_lands_it() -> None:
    fleet.check_safe_actions()
