"""What a drone decides on board, without a world: it is told what its sensors say."""

from __future__ import annotations

from typing import Any

from msgspec.structs import replace

import stigmergy as st
from apps.drones.airways import ANNOUNCE_S, CLEAR_S, at, level_of
from apps.drones.area import CELL_M, FLOOR_M, Area, stand_of
from apps.drones.drone import CHARGED_AT, LINK_S_MAX, Drone
from apps.drones.flyer import HOLD_M, SHARE_JOB_S, WAIT_M
from apps.drones.messages import (
    AskJob,
    AskWay,
    ClosedZone,
    Collect,
    Collected,
    ColumnTaken,
    Commission,
    Deposit,
    Deposited,
    DepositRefused,
    Fix,
    FlightAborted,
    FlyRoute,
    GoHome,
    Grip,
    GroundDrone,
    JobDeclined,
    JobEnded,
    JobReturned,
    Land,
    MotorWarned,
    Park,
    Parked,
    Release,
    RevokeJob,
    RouteBlocked,
    RouteFlown,
    Site,
    Steer,
    TakeJob,
    TakeOff,
    Track,
    TrackShared,
    TrafficHeard,
    WayAsked,
    ZonesHeard,
)
from apps.drones.sector import SILENT_S
from stigmergy import Granted, Tell
from stigmergy.testing import given

AREA = Area(4, 4, 2400.0, 2)
NAME = "r1-0101-003"
HOME = Site(*stand_of(AREA, "r1-0101", 3))
PICKUP, DROP = Site(2430.0, 2430.0), Site(4530.0, 3030.0)
JOB = TakeJob(job="r1-0101.J1", token=1, pickup=PICKUP, drop=DROP, kg=1.0)
Given = Any


def fix(t: float, x: float, y: float, z: float, **more: Any) -> Fix:
    said: dict[str, Any] = {"vx": 0.0, "vy": 0.0, "vz": 0.0, "battery": 95.0, "down": z == 0.0, **more}
    return Fix(t=t, x=x, y=y, z=z, **said)


def parked(t: float = 10.0, battery: float = 95.0) -> Given:
    return given(Drone, id=NAME).when(Commission(AREA, HOME, 2.5), fix(t, HOME.x, HOME.y, 0.0, battery=battery))


def flying(t: float = 30.0) -> Given:
    """On its way to the pick-up, at its level."""
    drone = parked().when(JOB, TakeOff(JOB.job, 1), fix(15.0, HOME.x, HOME.y, HOLD_M), AskWay(to=PICKUP))
    drone.when(FlyRoute(points=(PICKUP,)), fix(16.0, HOME.x, HOME.y, HOLD_M), fix(21.0, HOME.x, HOME.y, HOLD_M))
    drone.when(fix(t, HOME.x, HOME.y, level_of(HOME.x, HOME.y, PICKUP.x, PICKUP.y), vx=-12.0, vy=-8.0))
    return drone.state(mode="flying")


def at_pickup(t: float = 100.0) -> Given:
    """Above the pick-up, it holds the cell and goes down."""
    drone = flying()
    wait = drone.agent.points[0]
    drone.when(fix(t - 20, wait.x, wait.y, drone.agent.level_m))
    assert having(drone, RouteFlown)
    drone.when(Collect(job=JOB.job, token=1, pickup=PICKUP)).state(asked="cell-40-40")
    drone.when(Granted(claim="cell", resource="cell-40-40", token=5, for_s=30, renews=True)).state(mode="flying")
    drone.when(fix(t - 10, PICKUP.x, PICKUP.y, drone.agent.level_m)).state(mode="above")
    return drone.when(fix(t - 10 + ANNOUNCE_S, PICKUP.x, PICKUP.y, drone.agent.level_m)).state(mode="sinking")


def told(drone: Given, message: type[Any]) -> list[Any]:
    """What the last inputs made it tell others, of one type."""
    return [tell.message for tell in having(drone, Tell) if isinstance(tell.message, message)]


def having(drone: Given, message: type[Any]) -> list[Any]:
    """What the last inputs brought about, of one type."""
    return [one for one in drone.happened if isinstance(one, message)]


def test_takes_a_job_that_it_can_fly_and_begins_the_run_on_board() -> None:
    drone = parked().when(JOB)
    drone.state(job=JOB.job, token=1)
    runs = [tell.to for tell in having(drone, Tell) if tell.to.startswith("Delivery/")]
    assert runs == [f"Delivery/{NAME}.{JOB.job}.1"]


def test_declines_what_it_cannot_fly_and_says_why() -> None:
    for drone, job, why in (
        (parked(), replace(JOB, kg=4.0), "4 kg, it carries 2.5"),
        (parked(battery=56.0), replace(JOB, drop=Site(9030.0, 9030.0)), "% needed"),
        (parked().when(JOB), replace(JOB, job="r1-0101.J2"), "it flies r1-0101.J1"),
        (parked().when(fix(11.0, HOME.x, HOME.y, 0.0, link=False)), JOB, "no link"),
    ):
        drone.when(job)
        (declined,) = having(drone, JobDeclined)
        assert why in declined.why
        assert told(drone, JobReturned)


def test_returns_a_job_that_its_log_does_not_know() -> None:
    drone = parked().when(AskJob(JOB.job, 1))
    (returned,) = told(drone, JobReturned)
    assert (returned.token, returned.drone) == (1, NAME)
    assert not told(parked().when(JOB).when(AskJob(JOB.job, 1)), JobReturned)


def test_declines_what_leads_into_a_closed_zone_and_says_for_how_long() -> None:
    """A run with all faults had a job that one drone after the other declined."""
    x, y = PICKUP.x, PICKUP.y
    around = ClosedZone("Z1", ((x - 90, y - 90), (x + 90, y - 90), (x, y + 90)), FLOOR_M, 120.0, 0.0, 90.0)
    drone = parked(t=10.0).when(ZonesHeard("r1-0101@r1", (around,)), JOB)
    why = "a site of it is in Z1, which is closed"
    assert having(drone, JobDeclined) == [JobDeclined(JOB.job, 1, why, wait_s=80.0)]
    assert told(drone, JobReturned) == [JobReturned(1, NAME, why, wait_s=80.0)]
    for later in (replace(around, from_t=1000.0, until_t=1090.0), replace(around, ceiling_m=30.0)):
        parked(t=10.0).when(ZonesHeard("r1-0101@r1", (later,)), JOB).state(job=JOB.job)


def test_does_not_go_down_where_a_zone_is_about_to_close() -> None:
    """A run had a drone that went on to its pick-up, 15 s after a zone around it was announced."""
    drone = flying()
    wait = drone.agent.points[0]
    drone.when(fix(80.0, wait.x, wait.y, drone.agent.level_m), Collect(job=JOB.job, token=1, pickup=PICKUP))
    drone.when(Granted(claim="cell", resource="cell-40-40", token=5, for_s=30, renews=True)).state(mode="flying")
    soon = replace(square("fire", PICKUP.x, PICKUP.y, 60.0), from_t=100.0)
    drone.when(ZonesHeard("r1-0101@r1", (soon,)), fix(82.0, wait.x, wait.y, drone.agent.level_m))
    assert told(drone, JobReturned) == [JobReturned(1, NAME, "fire closes")]
    drone.state(purpose="home")


def test_does_not_rise_into_a_zone_that_is_closed_or_about_to() -> None:
    """A run had a drone that rose from its pick-up into a zone that was closed while it was down."""
    for from_t in (100.0, 150.0):
        closes = replace(square("fire", PICKUP.x, PICKUP.y, 60.0), from_t=from_t, until_t=200.0)
        drone = at_pickup().when(fix(120.0, PICKUP.x, PICKUP.y, 0.0), FlyRoute(points=(DROP,)))
        drone.when(ZonesHeard("r1-0101@r1", (closes,)), fix(130.0, PICKUP.x, PICKUP.y, HOLD_M))
        for t in (134.5, 150.0, 199.0):
            drone.when(fix(t, PICKUP.x, PICKUP.y, HOLD_M)).state(mode="rising")
            assert drone.agent.course.z == HOLD_M
        drone.when(fix(203.5, PICKUP.x, PICKUP.y, HOLD_M))
        assert drone.agent.course.z > FLOOR_M


def test_stops_before_a_zone_that_closes_on_its_way() -> None:
    soon = replace(square("fire", (HOME.x + PICKUP.x) / 2, (HOME.y + PICKUP.y) / 2, 150.0), from_t=40.0)
    drone = flying().when(ZonesHeard("r1-0101@r1", (soon,)), fix(32.0, HOME.x, HOME.y, 45.0))
    assert RouteBlocked(zone="fire") in drone.happened
    drone.when(AskWay(to=PICKUP))
    (asked,) = having(drone, WayAsked)
    assert asked.zones == (soon,)
    later = replace(soon, from_t=4000.0)
    drone = flying().when(ZonesHeard("r1-0101@r1", (later,)), fix(32.0, HOME.x, HOME.y, 45.0)).state(mode="flying")


def test_flies_level_and_waits_short_of_the_cell() -> None:
    drone = flying()
    (wait,) = drone.agent.points
    assert abs(((wait.x - PICKUP.x) ** 2 + (wait.y - PICKUP.y) ** 2) ** 0.5 - WAIT_M) < 1.0
    assert drone.agent.course.z == level_of(HOME.x, HOME.y, PICKUP.x, PICKUP.y)


def test_goes_down_only_while_it_holds_the_cell() -> None:
    drone = at_pickup()
    (steer,) = having(drone, Steer)
    assert steer.z == 0.0
    assert steer.valid_while.resource == "cell-40-40"
    drone.when(st.Lost(claim="cell", resource="cell-40-40", token=5, reason="restart")).state(mode="above")
    assert drone.agent.descends == PICKUP, "it claims the cell again"


def test_takes_the_parcel_once_it_is_down_and_rises_to_its_column_first() -> None:
    drone = at_pickup().when(fix(120.0, PICKUP.x, PICKUP.y, 0.0))
    assert having(drone, Grip) == [Grip(JOB.job, 1)]
    drone.when(st.Done[Grip](action=Grip(JOB.job, 1), key="k"))
    assert having(drone, Collected)
    drone.when(FlyRoute(points=(DROP,))).state(mode="rising")
    assert drone.agent.course.z == HOLD_M < FLOOR_M
    drone.when(fix(130.0, PICKUP.x, PICKUP.y, HOLD_M))
    assert drone.agent.announced is not None


def test_box_that_refuses_sends_it_home_with_the_parcel() -> None:
    drone = at_pickup().when(fix(120.0, PICKUP.x, PICKUP.y, 0.0))
    drone.when(st.Done[Grip](action=Grip(JOB.job, 1), key="k"), FlyRoute(points=(DROP,)))
    level = drone.agent.level_m
    drone.when(fix(130.0, PICKUP.x, PICKUP.y, HOLD_M), fix(135.0, PICKUP.x, PICKUP.y, HOLD_M))
    drone.when(fix(140.0, PICKUP.x, PICKUP.y, level))
    wait = drone.agent.points[0]
    drone.when(fix(300.0, wait.x, wait.y, level), Deposit(job=JOB.job, token=1, drop=DROP))
    drone.when(Granted(claim="cell", resource=drone.agent.asked, token=9, for_s=30, renews=True))
    drone.when(fix(310.0, DROP.x, DROP.y, level), fix(316.0, DROP.x, DROP.y, level), fix(330.0, DROP.x, DROP.y, 0.0))
    assert having(drone, Release) == [Release(JOB.job, 1)]
    drone.when(st.Failed[Release](action=Release(JOB.job, 1), key="k", reason="it waits for token 2"))
    assert having(drone, DepositRefused)
    drone.state(purpose="home", carries=True, delivered=False)
    assert not having(drone, Deposited)


def test_revoked_job_is_given_up_under_its_token_only() -> None:
    drone = flying().when(RevokeJob(job="another", token=9, because="?")).state(aborted="")
    drone.when(RevokeJob(job=JOB.job, token=1, because="silent")).state(purpose="home")
    assert told(drone, JobReturned)
    parked().when(JOB, RevokeJob(job=JOB.job, token=1, because="cancelled")).state(job="", mode="parked")


def test_does_not_take_off_for_a_job_that_was_revoked_before_its_run_began() -> None:
    """A run had drones that hovered for ten minutes: a link came back, and they heard of job and revocation at once."""
    revoked = parked().when(JOB, RevokeJob(job=JOB.job, token=1, because="silent")).state(job="", mode="parked")
    revoked.when(TakeOff(JOB.job, 1)).refused("it is parked, on no job")
    other = revoked.when(replace(JOB, job="r1-0101.J2"))
    other.when(TakeOff(JOB.job, 1)).refused("it is parked, on r1-0101.J2")
    other.when(TakeOff("r1-0101.J2", 1)).state(mode="rising")


def test_goes_home_when_it_is_in_the_air_without_a_job() -> None:
    drone = flying().when(JobEnded(JOB.job, 1, "whatever"))
    wait = drone.agent.points[0]
    drone.when(fix(60.0, wait.x, wait.y, drone.agent.level_m)).state(mode="above", purpose="route")
    drone.when(fix(61.0, wait.x, wait.y, drone.agent.level_m)).state(purpose="home")


def test_undo_of_a_job_that_is_over_touches_nothing() -> None:
    parked().when(JOB).when(GoHome(job="old", token=1)).then(JobEnded("old", 1, "it is over")).state(job=JOB.job)


def test_low_battery_turns_it_round_and_asks_for_a_pad() -> None:
    drone = flying().when(fix(60.0, 3000.0, 2800.0, 45.0, battery=11.0)).state(purpose="home", wants_pad=True)
    assert having(drone, FlightAborted)


def test_goes_on_without_a_link_for_a_while_and_then_home() -> None:
    drone = flying().when(fix(31.0, 3400.0, 3100.0, 45.0, link=False)).state(mode="flying", purpose="route")
    drone.when(fix(31.0 + LINK_S_MAX - 1, 3200.0, 2900.0, 45.0, link=False)).state(purpose="route")
    drone.when(fix(31.0 + LINK_S_MAX + 1, 3150.0, 2850.0, 45.0, link=False)).state(purpose="home")


def test_silent_sensors_bring_it_down_where_it_is() -> None:
    drone = flying().later(seconds=16).state(mode="landing")
    assert Land(reason="its own sensors are silent") in drone.happened
    assert told(drone, JobReturned)


def square(name: str, x: float, y: float, half_m: float) -> ClosedZone:
    corners = ((x - half_m, y - half_m), (x + half_m, y - half_m), (x + half_m, y + half_m), (x - half_m, y + half_m))
    return ClosedZone(name, corners, 0.0, 300.0, 0.0, 1e9)


def test_zone_in_the_way_stops_it_and_has_the_leg_planned_again() -> None:
    middle = square("fire", (HOME.x + PICKUP.x) / 2, (HOME.y + PICKUP.y) / 2, 150.0)
    drone = flying().when(ZonesHeard("r1-0101@r1", (middle,)), fix(32.0, HOME.x, HOME.y, 45.0))
    assert RouteBlocked(zone="fire") in drone.happened
    drone.state(mode="above")


def test_zone_over_the_site_sends_it_home_before_it_enters() -> None:
    drone = flying()
    wait = drone.agent.points[0]
    drone.when(fix(80.0, wait.x, wait.y, drone.agent.level_m), Collect(job=JOB.job, token=1, pickup=PICKUP))
    drone.when(Granted(claim="cell", resource="cell-40-40", token=5, for_s=30, renews=True)).state(purpose="collect")
    over = square("fire", PICKUP.x, PICKUP.y, 40.0)
    drone.when(ZonesHeard("r1-0101@r1", (over,)), fix(82.0, wait.x, wait.y, drone.agent.level_m))
    drone.state(purpose="home", aborted="fire is in its way")


def test_does_not_rise_into_a_closed_zone() -> None:
    drone = parked().when(JOB, TakeOff(JOB.job, 1), fix(15.0, HOME.x, HOME.y, HOLD_M), FlyRoute(points=(PICKUP,)))
    above = replace(square("fire", HOME.x, HOME.y, 100.0), floor_m=FLOOR_M, until_t=60.0)
    drone.when(ZonesHeard("r1-0101@r1", (above,)), fix(16.0, HOME.x, HOME.y, HOLD_M))
    drone.when(fix(22.0, HOME.x, HOME.y, HOLD_M), fix(59.0, HOME.x, HOME.y, HOLD_M)).state(mode="rising")
    assert drone.agent.course.z == HOLD_M
    drone.when(fix(59.0 + CLEAR_S + 1.0, HOME.x, HOME.y, HOLD_M))
    assert drone.agent.course.z == drone.agent.level_m


def test_zone_around_it_is_left_by_the_shortest_way() -> None:
    around = square("fire", HOME.x - 100.0, HOME.y, 150.0)
    drone = flying().when(ZonesHeard("r1-0101@r1", (around,)), fix(32.0, HOME.x, HOME.y, 45.0)).state(mode="leaving")
    out = drone.agent.course
    assert out.x > HOME.x + 50.0
    assert abs(out.y - HOME.y) < 1.0
    drone.when(fix(42.0, out.x, out.y, 45.0)).state(mode="above")
    assert having(drone, RouteBlocked)


def test_gives_way_by_another_level_and_keeps_it() -> None:
    drone = flying()
    level = drone.agent.level_m
    drone.when(fix(31.0, HOME.x, HOME.y, level, vx=-12.0, vy=-8.0))
    other = Track(31.0, HOME.x - 240.0, HOME.y - 160.0, level, 12.0, 8.0, 0.0, "flying")
    drone.when(TrafficHeard(31.0, (("r1-0000-000", other),)))
    assert drone.agent.level_m != level
    assert drone.agent.course.z == drone.agent.level_m
    assert drone.agent.mode == "flying"


def test_waits_below_the_floor_while_it_is_warned() -> None:
    drone = parked().when(JOB, TakeOff(JOB.job, 1), fix(15.0, HOME.x, HOME.y, HOLD_M), FlyRoute(points=(PICKUP,)))
    drone.when(fix(16.0, HOME.x, HOME.y, HOLD_M))
    other = Track(18.0, HOME.x, HOME.y, 45.0, 0.0, 0.0, 0.0, "above")
    drone.when(TrafficHeard(18.0, (("r1-0000-000", other),)), fix(22.0, HOME.x, HOME.y, HOLD_M)).state(mode="rising")
    assert drone.agent.course.z == HOLD_M
    drone.when(fix(18.0 + CLEAR_S + ANNOUNCE_S + 0.5, HOME.x, HOME.y, HOLD_M))
    assert drone.agent.course.z > FLOOR_M


def test_goes_back_below_the_floor_if_it_is_warned_when_it_has_just_left() -> None:
    drone = parked().when(JOB, TakeOff(JOB.job, 1), fix(15.0, HOME.x, HOME.y, HOLD_M), FlyRoute(points=(PICKUP,)))
    drone.when(fix(16.0, HOME.x, HOME.y, HOLD_M), fix(21.0, HOME.x, HOME.y, HOLD_M)).state(mode="rising")
    drone.when(fix(24.0, HOME.x, HOME.y, FLOOR_M + 1.5, vz=4.0))
    warned = TrafficHeard(24.5, (("r1-0000-000", Track(24.0, HOME.x - 60.0, HOME.y, 45.0, 15.0, 0.0, 0.0, "flying")),))
    drone.when(warned).state(mode="rising")
    assert drone.agent.course.z == HOLD_M
    drone.when(fix(25.0, HOME.x, HOME.y, FLOOR_M + 3.0)).when(replace(warned, t=25.5)).then_nothing()
    drone.when(fix(29.0, HOME.x, HOME.y, HOLD_M))
    assert drone.agent.announced.z == drone.agent.level_m, "it tries again"


def test_lands_again_if_a_later_order_has_overtaken_its_safe_action() -> None:
    drone = flying().when(st.SafeActionTaken(action="Land", because="no Fix for 3 s")).state(mode="landing")
    hovers = {"x": HOME.x, "y": HOME.y, "z": drone.agent.level_m}
    drone.when(fix(40.0, **hovers), fix(42.0, **hovers))
    assert having(drone, Land)


def test_down_by_a_safe_action_that_no_log_knows_of_it_returns_the_job_and_keeps_others_away() -> None:
    drone = flying().when(fix(40.0, HOME.x + CELL_M, HOME.y, 0.0)).state(mode="landing")
    assert told(drone, JobReturned)
    drone.when(fix(41.0, HOME.x + CELL_M, HOME.y, 0.0)).state(mode="grounded")
    claimed = drone.agent.pad.claim(of="pad-r1-0101-3", for_s=60, wait_s=1800, renew=True)
    assert claimed in drone.happened, "it lies on a pad"
    granted = drone.when(Granted(claim="pad", resource="pad-r1-0101-3", token=9, for_s=60, renews=True))
    assert drone.agent.pad.release() not in granted.happened


def test_shares_its_track_more_often_with_a_job_so_that_it_is_missed_soon() -> None:
    drone = flying()
    drone.when(fix(30.5, HOME.x - 6.0, HOME.y - 4.0, drone.agent.level_m, vx=-12.0, vy=-8.0))
    last = drone.agent.shared

    def shares(after_s: float) -> bool:
        x, y, z = at(last, last.t + after_s)
        said = fix(last.t + after_s, x, y, z, vx=last.vx, vy=last.vy)
        return bool(having(drone.when(said), TrackShared))

    assert last.job == JOB.job
    assert not shares(1.0)
    assert not shares(1.5)
    assert shares(2.0)
    assert SILENT_S >= 2 * SHARE_JOB_S, "one that is late by as much is not missed"


def lying(x: float = 5020.0, y: float = 5030.0, t: float = 50.0, **more: Any) -> Given:
    """Its sensors fell silent above a field, and it was put down there with its job."""
    drone = flying().later(seconds=16).state(mode="landing")
    return drone.when(fix(t, x, y, 0.0, **more)).state(mode="grounded")


CELL = Granted(claim="cell", resource="cell-83-83", token=7, for_s=60, renews=True)


def seeing(drone: Given, x: float = 5020.0, y: float = 5030.0, seconds: int = 65, **more: Any) -> Given:
    """It sees for so long."""
    t = drone.agent.t
    for second in range(seconds):
        drone = drone.later(seconds=1).when(fix(t + second, x, y, 0.0, **more))
    return drone


def test_takes_off_again_when_it_was_blind_and_sees() -> None:
    drone = seeing(lying().when(CELL), seconds=15).state(mode="grounded")
    drone = seeing(drone, seconds=50).state(mode="rising", purpose="home")
    assert (drone.agent.course.x, drone.agent.course.y) == (5020.0, 5030.0), "straight up"
    drone.when(fix(200.0, 5020.0, 5030.0, HOLD_M), fix(205.0, 5020.0, 5030.0, HOLD_M))
    drone.when(fix(220.0, 5020.0, 5030.0, drone.agent.level_m)).state(mode="flying")
    assert drone.agent.cell.release() in drone.happened
    drone.when(fix(300.0, HOME.x, HOME.y, drone.agent.level_m), fix(305.0, HOME.x, HOME.y, drone.agent.level_m))
    drone.when(fix(330.0, HOME.x, HOME.y, 0.0)).state(mode="parked", job="")


def test_stays_where_it_was_put_down_unless_it_is_safe_to_rise() -> None:
    seeing(lying()).state(mode="grounded")  # the cell is not its own
    seeing(lying(x=5035.0).when(CELL), x=5035.0).state(mode="grounded")  # too near to the next cell
    seeing(lying().when(CELL), battery=30.0).state(mode="grounded")
    seeing(lying().when(CELL), link=False).state(mode="grounded")
    seeing(lying().when(CELL, MotorWarned(motor=2, current_a=40.0))).state(mode="grounded")
    seeing(lying().when(CELL, ZonesHeard("s", (square("Z", 5020.0, 5030.0, 90.0),)))).state(mode="grounded")
    drone = flying().when(GroundDrone(because="police")).when(fix(50.0, 5020.0, 5030.0, 0.0)).state(mode="grounded")
    seeing(drone.when(CELL)).state(mode="grounded")
    drone = seeing(lying().when(CELL), seconds=15).later(seconds=16)  # blind again
    seeing(drone, seconds=15).state(mode="grounded")


def test_does_not_rise_from_the_stand_of_another_one() -> None:
    x, y = stand_of(AREA, "r1-0101", 5)
    drone = lying(x=x, y=y)
    assert not drone.agent.cell.held
    seeing(drone, x=x, y=y).state(mode="grounded")
    seeing(lying(x=HOME.x, y=HOME.y), x=HOME.x, y=HOME.y).state(mode="rising")


def test_leaves_a_pad_that_another_one_lies_on_and_wants_one_again_later() -> None:
    drone = parked(battery=40.0).when(fix(11.0, HOME.x, HOME.y, 0.0, battery=40.0))
    drone.when(Granted(claim="pad", resource="pad-r1-0101-2", token=3, for_s=60, renews=True))
    drone.when(fix(20.0, HOME.x, HOME.y, HOLD_M), fix(25.0, HOME.x, HOME.y, HOLD_M)).when(ColumnTaken(by="x"))
    drone.state(purpose="charge", wants_pad=True)  # late news of where it was
    level, pad = drone.agent.level_m, drone.agent.points[0]
    drone.when(fix(30.0, HOME.x, HOME.y, level), fix(40.0, pad.x, pad.y, level), fix(45.0, pad.x, pad.y, level))
    drone.state(mode="sinking").when(fix(50.0, pad.x, pad.y, 20.0), ColumnTaken(by="r1-0101-001"))
    drone.state(mode="rising", purpose="home", wants_pad=False)
    assert drone.agent.pad.release() in drone.happened
    drone.when(st.Released(claim="pad", resource="pad-r1-0101-2", token=3))
    low = {"battery": 38.0}
    drone.when(fix(60.0, pad.x, pad.y, HOLD_M, **low), fix(66.0, pad.x, pad.y, HOLD_M, **low))
    level = drone.agent.level_m
    drone.when(fix(80.0, pad.x, pad.y, level, **low), fix(90.0, HOME.x, HOME.y, level, **low))
    drone.when(fix(95.0, HOME.x, HOME.y, level, **low), fix(110.0, HOME.x, HOME.y, 0.0, **low)).state(mode="parked")
    drone.when(fix(121.0, HOME.x, HOME.y, 0.0, **low)).state(wants_pad=True)


def test_gives_a_job_back_whose_place_another_one_lies_on() -> None:
    drone = at_pickup().when(ColumnTaken(by="r1-0101-001")).state(purpose="home")
    assert [one.why for one in told(drone, JobReturned)] == ["r1-0101-001 lies there"]


def test_charges_when_it_is_low_and_returns_when_it_is_full() -> None:
    drone = parked(battery=40.0).when(fix(11.0, HOME.x, HOME.y, 0.0, battery=40.0)).state(wants_pad=True)
    drone.when(Granted(claim="pad", resource="pad-r1-0101-2", token=3, for_s=60, renews=True)).state(purpose="charge")
    drone.when(fix(20.0, HOME.x, HOME.y, HOLD_M), fix(25.0, HOME.x, HOME.y, HOLD_M))
    level, pad = drone.agent.level_m, drone.agent.points[0]
    drone.when(fix(30.0, HOME.x, HOME.y, level), fix(40.0, pad.x, pad.y, level), fix(45.0, pad.x, pad.y, level))
    drone.state(mode="sinking").when(fix(60.0, pad.x, pad.y, 0.0)).state(mode="charging")
    drone.when(fix(300.0, pad.x, pad.y, 0.0, battery=CHARGED_AT)).state(wants_pad=False, purpose="home", mode="rising")


def test_parks_at_home_and_is_ready_for_the_next_job() -> None:
    drone = flying()
    level = drone.agent.level_m
    drone.when(fix(200.0, HOME.x + 20.0, HOME.y, level), Park())
    drone.when(fix(202.0, HOME.x, HOME.y, level), fix(203.0, HOME.x, HOME.y, level))
    drone.when(fix(210.0, HOME.x, HOME.y, level), fix(240.0, HOME.x, HOME.y, 0.0)).state(mode="parked", job="")
    assert having(drone, Parked)
