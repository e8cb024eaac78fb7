"""What a sector says to drones and jobs. No disk, no clock, no network."""

from __future__ import annotations

from typing import Any

from hypothesis import given as when_all
from hypothesis import settings
from hypothesis import strategies as some
from msgspec.structs import replace

from apps.drones.area import Area
from apps.drones.flyer import SHARE_JOB_S
from apps.drones.messages import (
    ClosedZone,
    ColumnTaken,
    DroneSilent,
    Ticked,
    Track,
    TrackShared,
    TrafficHeard,
    ZoneClosed,
    ZoneOpened,
    ZonesHeard,
)
from apps.drones.sector import (
    BACK_S,
    FORGET_S,
    OTHERS_MAX,
    PARKED_S,
    ColumnsTaken,
    DronesSuspected,
    DronesWarned,
    MemberHeard,
    MembersLeft,
    Sector,
    Suspicion,
    ZonesEnded,
)
from stigmergy import Tell
from stigmergy.testing import given

AREA = Area(4, 4, 2400.0, 2)
ZONE, ID = "r1-0101", "r1-0101@r1"
CLOSED = ClosedZone("Z1", ((0.0, 0.0), (100.0, 0.0), (0.0, 100.0)), 0.0, 200.0, 0.0, 500.0)
Given = Any


def track(t: float, x: float = 3000.0, vx: float = 0.0, **more: Any) -> Track:
    said: dict[str, Any] = {"y": 3000.0, "z": 55.0, "vy": 0.0, "vz": 0.0, "mode": "flying", **more}
    return Track(t=t, x=x, vx=vx, **said)


def share(number: int, at: Track, zone: str = ZONE) -> TrackShared:
    return TrackShared(f"r1-0101-{number:03d}", at, zone)


def sector(*heard: TrackShared | ZoneClosed) -> Given:
    return given(Sector, id=ID).when(*heard)


def to_job(silent: DroneSilent) -> tuple[DroneSilent, Tell]:
    return silent, Tell(f"Job/{silent.job}", silent)


WORKS = track(100.0, job="r1-0101.J1", token=2)
FIRST = "r1-0101-001"


def test_a_drone_is_heard_and_told_what_is_closed() -> None:
    one = given(Sector, ZoneClosed(AREA, CLOSED), id=ID).when(share(1, track(100.0)))
    one.then(share(1, track(100.0)), MemberHeard(FIRST, True), Tell(f"Drone/{FIRST}", ZonesHeard(ID, (CLOSED,))))
    one.state(own={FIRST: track(100.0)}, inside={FIRST}, regions={"r1"}, tracks={})
    one = one.when(share(1, track(101.0))).then(share(1, track(101.0))).state(own={FIRST: track(101.0)})
    one.when(share(1, track(99.0))).then_nothing().state(own={FIRST: track(101.0)})  # it was under way for longer


def test_a_drone_that_enters_the_zone_is_told_again() -> None:
    one = sector(share(1, track(100.0), zone="r1-0102")).state(inside=set())
    enters = share(1, track(101.0))
    one.when(enters).then(enters, MemberHeard(FIRST, True), Tell(f"Drone/{FIRST}", ZonesHeard(ID, ())))
    one.state(inside={FIRST})
    one.when(share(1, track(102.0), zone="r1-0201")).state(inside=set(), own={FIRST: track(102.0)})


def test_tracks_are_shared_while_another_region_has_drones_there() -> None:
    alone = sector(share(1, track(100.0))).state(tracks={})
    met = alone.when_peers_write(lambda agent: agent.regions.add("r2"))
    met = met.when(Ticked(100.5)).state(tracks={FIRST: track(100.0)})
    met = met.when(share(1, track(101.0)), share(2, track(101.0, 3900)))
    met.state(tracks={FIRST: track(101.0), "r1-0101-002": track(101.0, 3900)})
    left = met.when_peers_write(lambda agent: agent.regions.remove("r2"))
    left.when(Ticked(101.5)).state(tracks={}).when(share(1, track(102.0))).state(tracks={})


def test_a_region_whose_last_drone_left_says_so() -> None:
    one = sector(share(1, track(100.0))).state(regions={"r1"})
    one.when(Ticked(131.0)).state(own={}, regions=set())


def test_a_drone_on_the_ground_shares_less_and_is_remembered_for_longer() -> None:
    parked = track(100.0, mode="parked", z=0.0)
    one = sector(share(1, parked)).when(Ticked(100.0 + PARKED_S)).state(own={FIRST: parked})
    one.when(Ticked(100.1 + PARKED_S)).state(own={})


def test_two_that_meet_are_warned_once_a_second_and_one_gives_way() -> None:
    one = sector(share(1, track(100.0, 3000, 15.0)), share(2, track(100.0, 3400, -15.0)))
    one = one.when(Ticked(100.5))
    one.then(
        DronesWarned(100.5, (("r1-0101-002", (FIRST,)),)),
        Tell("Drone/r1-0101-002", TrafficHeard(100.5, ((FIRST, track(100.0, 3000, 15.0)),))),
    )
    one.when(Ticked(101.5)).then(
        DronesWarned(101.5, (("r1-0101-002", (FIRST,)),)),
        Tell("Drone/r1-0101-002", TrafficHeard(101.5, ((FIRST, track(100.0, 3000, 15.0)),))),
    )


def test_only_the_own_drones_in_the_zone_are_warned() -> None:
    apart = track(100.0, 3400, -15.0)
    foreign = sector(share(1, track(100.0, 3000, 15.0)))
    foreign = foreign.when_peers_write(lambda agent: agent.tracks["r2-0201-009"].set(apart))
    foreign.when(Ticked(100.5)).then_nothing()
    beyond = sector(share(1, track(100.0, 3000, 15.0)), share(2, apart, zone="r2-0201"))
    beyond.when(Ticked(100.5)).then_nothing()
    own_gives_way = sector(share(2, track(100.0, 3000, 15.0)))
    own_gives_way = own_gives_way.when_peers_write(lambda agent: agent.tracks["r1-0001-009"].set(apart))
    warned = own_gives_way.when(Ticked(100.5))
    warned.then(
        DronesWarned(100.5, (("r1-0101-002", ("r1-0001-009",)),)),
        Tell("Drone/r1-0101-002", TrafficHeard(100.5, (("r1-0001-009", apart),))),
    )


def test_who_wants_to_go_down_is_told_of_one_that_lies_there() -> None:
    wants, lies = track(100.0, mode="above", to_z=0.0), track(60.0, z=0.0, mode="grounded")
    one = sector(share(1, wants), share(2, lies)).when(Ticked(100.5))
    one.then(ColumnsTaken((("r1-0101-001", "r1-0101-002"),)), Tell(f"Drone/{FIRST}", ColumnTaken("r1-0101-002")))
    one.when(share(1, track(101.0, mode="above", to_z=55.0))).when(Ticked(101.5)).then_nothing()
    one.when(share(1, track(102.0, x=3060.0, mode="sinking", to_z=0.0))).when(Ticked(102.5)).then_nothing()
    charging = sector(share(1, wants), share(2, track(60.0, z=0.0, mode="charging"))).when(Ticked(100.5))
    charging.then_nothing()  # it holds the pad, so who comes to it waits for the claim
    # Nor can one be stopped that comes down there by its safe action.
    sinks = sector(share(1, wants), share(2, track(100.0, z=30.0, vz=-3.0, mode="landing", to_z=0.0)))
    assert Tell(f"Drone/{FIRST}", ColumnTaken("r1-0101-002")) in sinks.when(Ticked(100.5)).happened


def test_a_drone_is_told_the_next_ones_first_and_not_too_many() -> None:
    comes = share(1, track(100.0, 3300, -15.0))
    around = [share(10 + i, track(100.0, 3000.0 + 30 * i, y=3200.0, z=85.0)) for i in range(12)]
    parked = share(40, track(100.0, 3010, mode="parked", z=0.0))
    one = sector(share(5, track(100.0, 3000, 15.0)), comes, parked, *around)
    (warned,) = [event for event in one.agent.ticked(Ticked(100.5)) if isinstance(event, DronesWarned)]
    others = dict(warned.warnings)["r1-0101-005"]
    assert others[:2] == (FIRST, "r1-0101-010"), "the conflict, then the nearest"
    assert len(others) == OTHERS_MAX
    assert "r1-0101-040" not in others


# ------------------------------------------------------------------ silence


def test_a_silent_drone_is_reported_to_its_job_once() -> None:
    one = sector(share(1, WORKS))
    one.when(Ticked(101.0), Ticked(103.4)).then_nothing()
    suspected = one.when(Ticked(103.7))
    suspected.then(DronesSuspected((Suspicion(FIRST, 2, 100.0, 104.5),)))
    reported = suspected.when(Ticked(104.7)).then(*to_job(DroneSilent(FIRST, "r1-0101.J1", 2, 100.0)))
    reported.when(Ticked(105.7), Ticked(106.7)).then_nothing()
    heard = reported.when(share(1, replace(WORKS, t=110.0)))
    heard.when(Ticked(117.0), Ticked(118.0), Ticked(124.0)).then_nothing()
    again = heard.when(share(1, replace(WORKS, t=120.0, token=3))).when(Ticked(124.0), Ticked(125.0))
    again.then(
        DronesSuspected((Suspicion(FIRST, 3, 120.0, 124.5),)),
        *to_job(DroneSilent(FIRST, "r1-0101.J1", 3, 120.0)),
    )


def test_one_that_is_heard_in_time_is_not_silent() -> None:
    one = sector(share(1, WORKS)).when(Ticked(103.7)).when(share(1, replace(WORKS, t=103.5)))
    one.when(Ticked(104.7), Ticked(105.7), Ticked(106.9)).then_nothing()


def test_only_those_with_a_job_in_the_air_in_the_zone_are_missed() -> None:
    for shared in (
        share(1, track(100.0)),
        share(1, replace(WORKS, mode="parked")),
        share(1, WORKS, zone="r1-0102"),
    ):
        sector(shared).when(Ticked(105.5), Ticked(106.5), Ticked(107.5)).then_nothing()


def test_after_a_restart_everybody_has_time_to_be_heard() -> None:
    one = sector(share(1, WORKS)).when(Ticked(101.0)).when(Ticked(112.0))
    one.then(DronesSuspected((Suspicion(FIRST, 2, 100.0, 112.0 + BACK_S),)))
    one.when(Ticked(113.0), Ticked(114.9)).then_nothing()
    one.when(Ticked(115.1)).then(*to_job(DroneSilent(FIRST, "r1-0101.J1", 2, 100.0)))
    one = sector(share(1, WORKS)).when(Ticked(101.0)).when(Ticked(112.0))
    one.when(share(1, replace(WORKS, t=112.5))).when(Ticked(115.1)).then_nothing()


def test_a_restart_while_a_drone_is_suspected_begins_anew() -> None:
    one = sector(share(1, WORKS)).when(Ticked(103.7))
    back = one.when(Ticked(115.0))
    back.then(DronesSuspected((Suspicion(FIRST, 2, 100.0, 118.0),)))
    back.when(Ticked(118.2)).then(*to_job(DroneSilent(FIRST, "r1-0101.J1", 2, 100.0)))


@settings(max_examples=60, deadline=None)
@when_all(some.lists(some.floats(0.3, 2.0), min_size=4, max_size=25), some.integers(0, 20), some.floats(3.5, 60.0))
def test_nobody_that_is_heard_is_ever_reported(steps: list[float], gap_at: int, gap_s: float) -> None:
    """Whenever the sector stands still and for how long: a drone that shares as soon as it runs again is not missed."""
    t, one = 100.0, sector(share(1, WORKS))
    heard_t = t
    for i, step in enumerate(steps):
        t += step + (gap_s if i == gap_at else 0.0)
        one = one.when(Ticked(t))
        assert not one.agent.reported
        if t - heard_t >= SHARE_JOB_S:
            one = one.when(share(1, replace(WORKS, t=t)))
            heard_t = t


# ------------------------------------------------------------------ leaving, closed zones


def test_a_drone_that_left_is_forgotten_and_its_track_removed() -> None:
    one = sector(share(1, track(100.0)), ZoneClosed(AREA, CLOSED))
    one.when(Ticked(100.0 + FORGET_S)).then_nothing()
    one.when(Ticked(100.1 + FORGET_S))
    one.then(MembersLeft((FIRST,)), Tell(f"Drone/{FIRST}", ZonesHeard(ID, ())))
    one.state(own={}, inside=set(), tracks={})


def test_what_another_region_left_goes_later() -> None:
    one = sector(ZoneClosed(AREA, CLOSED))
    one.when_peers_write(lambda agent: agent.tracks["r2-0201-009"].set(track(100.0)))
    one.when(Ticked(140.0)).then_nothing()
    one.when(Ticked(161.0)).state(tracks={})


def test_members_hear_what_is_closed_and_opened_and_over() -> None:
    one = sector(share(1, track(100.0)), share(2, track(100.0, 3500)))
    shut = one.when(ZoneClosed(AREA, CLOSED))
    shut.then(*(Tell(f"Drone/r1-0101-00{n}", ZonesHeard(ID, (CLOSED,))) for n in (1, 2)))
    shut.when(ZoneOpened("Z1")).then(*(Tell(f"Drone/r1-0101-00{n}", ZonesHeard(ID, ())) for n in (1, 2)))
    longer = replace(CLOSED, until_t=120.0)
    over = shut.when(ZoneClosed(AREA, longer)).when(Ticked(120.0))
    over.then(ZonesEnded(("Z1",)), *(Tell(f"Drone/r1-0101-00{n}", ZonesHeard(ID, ())) for n in (1, 2)))
    over.state(zones=())
