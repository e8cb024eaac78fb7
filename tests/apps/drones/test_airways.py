"""Who is too near, who gives way, what is closed: against brute force, shapely, and a little air that flies."""

from __future__ import annotations

import itertools
import math

import pytest
import shapely
from hypothesis import assume, example, given, settings
from hypothesis import strategies as some
from msgspec.structs import replace

from apps.drones.airways import (
    HOLD_S,
    HORIZON_S,
    NEAR_HEIGHT_M,
    NEAR_M,
    OUTSIDE_M,
    area_m2,
    aside,
    at,
    blocked_by,
    closed,
    conflict_s,
    conflicts,
    crosses,
    free_level,
    give_way_s,
    gives_way,
    inside,
    is_off,
    is_outside,
    is_simple,
    level_of,
    steady,
    way_out,
)
from apps.drones.area import FLOOR_M, LEVELS_M, SEPARATION_HEIGHT_M, SEPARATION_M
from apps.drones.flyer import INSIDE_M
from apps.drones.messages import ClosedZone, Site, Track
from tests.apps.drones.air import Air, Flyer


def track(x: float, y: float, z: float, vx: float = 0.0, vy: float = 0.0, vz: float = 0.0, to_z: float = -1.0) -> Track:
    return Track(100.0, x, y, z, vx, vy, vz, "flying", to_z=to_z)


def zone(*corners: tuple[float, float], floor_m: float = 0.0, ceiling_m: float = 200.0) -> ClosedZone:
    return ClosedZone("Z", corners, floor_m, ceiling_m, 0.0, 1000.0)


places = some.floats(-800, 800)
speeds = some.sampled_from([0.0, 0.0, 0.4, 5.0, 15.0])
tracks = some.builds(
    lambda t, x, y, z, speed, heading, vz, to_z: Track(
        t, x, y, z, speed * math.cos(heading), speed * math.sin(heading), vz, "flying", to_z=to_z
    ),
    some.floats(96, 100),
    places,
    places,
    some.one_of(some.sampled_from(LEVELS_M), some.floats(0, 120)),
    speeds,
    some.floats(-math.pi, math.pi),
    some.sampled_from([0.0, 0.0, 0.3, 4.0, -3.0]),
    some.one_of(some.just(-1.0), some.just(0.0), some.sampled_from(LEVELS_M)),
)


def test_a_track_is_extrapolated_to_the_height_that_it_says() -> None:
    rising = track(0, 0, 50, vx=10, vz=4, to_z=55)
    assert at(rising, 101) == (10, 0, 54)
    assert at(rising, 110) == (100, 0, 55)
    assert not is_off(rising, 107, 0, 55, 110)
    assert is_off(rising, 109, 0, 55, 110)
    assert is_off(rising, 100, 0, 58, 110)


def test_the_level_follows_from_the_heading() -> None:
    levels = [level_of(0, 0, math.cos(a), math.sin(a)) for a in (i * math.pi / 4 + 0.1 for i in range(8))]
    assert sorted(levels) == list(LEVELS_M)
    assert level_of(0, 0, 100, 5) == level_of(50, 50, 1000, 300)
    assert level_of(0, 0, 100, 5) != level_of(100, 5, 0, 0)


def test_two_that_meet_are_in_conflict_and_one_gives_way() -> None:
    a, b = track(0, 0, 55, vx=15), track(600, 0, 55, vx=-15)
    soon = conflict_s(a, b, 100)
    assert soon is not None
    assert soon == pytest.approx((600 - NEAR_M - 60) / 30)
    assert conflict_s(a, replace(b, z=65), 100) is None
    assert conflict_s(a, replace(b, vx=15), 100) is None
    assert conflict_s(a, track(90, 0, 55, vx=15), 100) == 0
    assert give_way_s("a", a, "b", b, 100) is None
    assert give_way_s("b", b, "a", a, 100) == soon


def test_noise_of_the_height_is_no_conflict() -> None:
    a, b = track(0, 0, 56.5, vx=15, vz=0.3), track(300, 0, 63, vx=-15, vz=-0.3)
    assert conflict_s(a, b, 100) is None


def test_hovering_has_priority_over_flying_and_climbing_over_both() -> None:
    flies, hovers, climbs = track(0, 0, 55, vx=15), track(300, 0, 55), track(300, 0, 45, vz=4, to_z=85)
    assert gives_way("a", flies, "b", hovers)
    assert not gives_way("b", hovers, "a", flies)
    assert gives_way("a", flies, "b", climbs)
    assert gives_way("a", hovers, "b", climbs)
    below = track(300, 0, 30, vz=4, to_z=85)
    assert gives_way("a", below, "b", flies)
    assert not gives_way("b", flies, "a", below)
    assert not gives_way("a", below, "b", below)
    assert not gives_way("b", below, "a", below)


def test_one_that_waits_below_the_floor_is_warned_as_if_it_rose() -> None:
    waits, flies = track(0, 0, 30, to_z=65), track(-200, 0, 65, vx=15)
    assert give_way_s("a", waits, "b", flies, 100) is not None
    assert give_way_s("b", flies, "a", waits, 100) is None
    assert conflict_s(replace(waits, z=0.0), flies, 100) is None, "it is on the ground"
    assert conflict_s(replace(waits, vz=-3.0, to_z=0.0), flies, 100) is None, "it goes down"


def test_an_announced_change_waits_for_others_and_keeps_its_place() -> None:
    announces = track(0, 0, 85, to_z=0.0)
    beneath = track(-200, 0, 65, vx=15)
    assert give_way_s("a", announces, "b", beneath, 100) is not None
    assert give_way_s("b", beneath, "a", announces, 100) is None
    same_level = track(-200, 0, 85, vx=15)
    assert give_way_s("a", announces, "b", same_level, 100) is None, "it hovers: the other one gives way"
    assert give_way_s("b", same_level, "a", announces, 100) is not None
    begun = replace(announces, vz=-3.0)
    assert give_way_s("b", beneath, "a", begun, 100) is not None, "it is under way: now it has priority"


@given(tracks, tracks)
@example(Track(96.0, 0.0, 0.0, 10.0, 0.0, 0.0, 0.0, "flying"), Track(96.0, 0.0, 0.0, 24.0, 0.0, 0.0, 4.0, "flying"))
def test_both_sides_compute_the_same(a: Track, b: Track) -> None:
    assert conflict_s(a, b, 100) == conflict_s(b, a, 100)
    assert gives_way("a", a, "b", b) + gives_way("b", b, "a", a) == (a.z >= FLOOR_M or b.z >= FLOOR_M)
    ways = [give_way_s("a", a, "b", b, 100), give_way_s("b", b, "a", a, 100)]
    soon = [conflict_s(a, b, 100), conflict_s(steady(a), steady(b), 100)]
    assert sum(way is not None for way in ways) == any(one is not None for one in soon)


@given(tracks, tracks)
def test_what_comes_too_near_in_straight_flight_is_a_conflict(a: Track, b: Track) -> None:
    a, b = (replace(one, z=max(one.z, 45.0), vz=0.0, to_z=-1.0) for one in (a, b))
    for s in range(int(HORIZON_S)):
        (ax, ay, az), (bx, by, bz) = at(a, 100.0 + s), at(b, 100.0 + s)
        if math.hypot(ax - bx, ay - by) < SEPARATION_M and abs(az - bz) < SEPARATION_HEIGHT_M - 2:
            soon = conflict_s(a, b, 100)
            assert soon is not None
            assert soon <= s
            return


@given(some.lists(tracks, max_size=14))
def test_conflicts_are_those_of_all_pairs(ones: list[Track]) -> None:
    named = [(f"d{i}", one) for i, one in enumerate(ones)]
    expected = sorted(
        (soon, i, j)
        for i, j in itertools.permutations(range(len(named)), 2)
        if (soon := give_way_s(*named[i], *named[j], 100)) is not None
    )
    assert conflicts(named, 100) == expected


@given(tracks, some.lists(tracks, max_size=6))
def test_a_free_level_is_free(own: Track, others: list[Track]) -> None:
    own = replace(own, z=max(own.z, 45.0), vz=0.0, to_z=-1.0)
    named = tuple((f"d{i}", one) for i, one in enumerate(others))
    level = free_level("own", own, named, 100)
    if level is None:
        return
    x, y, _ = at(own, 100)
    there = replace(own, t=100.0, x=x, y=y, z=level)
    for other in others:
        height = at(other, 100)[2]
        if abs(height - own.z) >= NEAR_HEIGHT_M and abs(other.vz) < 1 and other.to_z < 0:
            soon = conflict_s(there, other, 100)
            assert soon is None or soon > HOLD_S


def test_a_level_is_left_away_from_the_other_one() -> None:
    own, other = track(0, 0, 55, vx=15), track(120, 0, 55, vx=-15)
    assert free_level("own", own, (("o", other),), 100) in (45, 65)
    above = track(80, 0, 65, vx=15)
    assert free_level("own", own, (("o", other), ("p", above)), 100) == 45
    everywhere = tuple((f"d{level}", track(300, 0, level)) for level in LEVELS_M)
    assert free_level("own", own, everywhere, 100) is None, "it holds"
    late = tuple((f"d{level}", track(300, 0, level)) for level in LEVELS_M if level != 75)
    assert free_level("own", own, late, 100) == 75
    soon = (("o", track(120, 0, 55, vx=-15)), *((f"d{z}", track(500, 0, z)) for z in LEVELS_M if z != 55))
    assert free_level("own", own, soon, 100) == 65, "it is too late to hold, and there it is free for a while"
    assert free_level("a", own, soon, 100) == 45, "the lower name goes down, if both do something"


def test_a_drone_that_hovers_goes_aside() -> None:
    own, comes = track(0, 0, 55), track(0, 0, 85, vz=-3.0, to_z=0.0)
    away = aside("own", own, (("o", comes),), 100)
    assert away is not None
    assert math.hypot(*away) >= 2 * NEAR_M - 1e-6
    assert conflict_s(replace(own, x=away[0], y=away[1]), comes, 100) is None
    assert steady(replace(own, to_z=0.0)).to_z == -1.0


def test_a_drone_that_goes_aside_does_not_cross_the_way_of_the_other_one() -> None:
    own, passes = track(0, 0, 75), track(-17, 50, 75, vx=7.9, vy=-12.7)
    away = aside("own", own, (("o", passes),), 100)
    assert away is not None
    assert away[0] * 12.7 + away[1] * 7.9 < 0, "it passes in the east"


def test_of_two_that_have_announced_a_change_the_one_waits_that_has_to_pass_the_other() -> None:
    below, above = track(0, 0, 55, to_z=95), track(10, 0, 63, to_z=105)
    assert give_way_s("a", below, "b", above, 100) is not None
    assert give_way_s("b", above, "a", below, 100) is None
    assert give_way_s("b", below, "a", above, 100) is not None, "whatever their names"
    facing = replace(above, to_z=0.0)
    assert give_way_s("a", below, "b", facing, 100) is None, "both have to: the lower name has priority"
    assert give_way_s("b", facing, "a", below, 100) is not None


# ------------------------------------------------------------------ it flies


@pytest.mark.parametrize("part", range(4))
def test_nobody_comes_too_near(part: int) -> None:
    fly(range(part * 10, part * 10 + 10), seconds=200)


@pytest.mark.parametrize("seed", [3066, 4231])
def test_nobody_goes_aside_through_the_column_or_the_way_of_another(seed: int) -> None:
    fly(range(seed, seed + 1), seconds=100)


def test_nobody_comes_too_near_who_rises_from_where_a_safe_action_has_put_it() -> None:
    fly(range(500, 510), seconds=200, off_m=INSIDE_M)


@pytest.mark.prove
@pytest.mark.parametrize("part", range(10))
def test_nobody_comes_too_near_for_long(part: int) -> None:
    fly(range(1000 + part * 20, 1020 + part * 20), seconds=300)


def fly(seeds: range, seconds: float, off_m: float = 0.0) -> None:
    flown = 0
    for seed in seeds:
        air = Air(seed, off_m=off_m)
        air.run(seconds)
        assert air.is_separated, f"seed {seed}: {air.nearest}"
        flown += sum(flyer.flown for flyer in air.flyers)
    assert flown > len(seeds) * seconds / 20, "they stand in each other's way"


def test_the_little_air_sees_who_comes_too_near(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Flyer, "warn", lambda self, others, t: None)
    airs = [Air(seed) for seed in range(20, 32)]
    for air in airs:
        air.run(200)
    assert not all(air.is_separated for air in airs)


# ------------------------------------------------------------------ closed zones

NOTCH = zone((0, 0), (300, 0), (300, 300), (170, 300), (170, 60), (130, 60), (130, 300), (0, 300))
coordinates = some.integers(-300, 300).map(float)
polygons = (
    some.lists(some.tuples(coordinates, coordinates), min_size=3, max_size=9, unique=True)
    .map(lambda corners: tuple(sorted(corners, key=lambda c: (math.atan2(c[1], c[0]), c))))
    .filter(lambda corners: is_simple(corners) and area_m2(corners) > 100)
)


def test_a_zone_is_closed_from_a_time_to_a_time_between_two_heights() -> None:
    low = zone((0, 0), (100, 0), (0, 100), floor_m=50, ceiling_m=80)
    assert closed(low, 0)
    assert closed(low, 999)
    assert not closed(low, 1000)
    assert not closed(low, -1)
    assert inside(low, 20, 20, 60, 5)
    assert not inside(low, 20, 20, 49, 5)
    assert not inside(low, 80, 80, 60, 5)
    assert not inside(low, 20, 20, 60, 1000)


def test_out_of_a_notch_it_goes_where_there_is_room() -> None:
    x, y = way_out(NOTCH, 150, 40)
    assert is_outside(NOTCH, x, y, OUTSIDE_M)
    assert (x, y) == pytest.approx((150, -30.5))
    assert way_out(NOTCH, 500, 500) == (500, 500)


@given(polygons, coordinates, coordinates)
def test_the_way_out_is_near_the_shortest(corners: tuple[tuple[float, float], ...], x: float, y: float) -> None:
    one = zone(*corners)
    out = way_out(one, x, y)
    assert is_outside(one, *out, OUTSIDE_M)
    shape = shapely.Polygon(corners)
    best = shape.buffer(OUTSIDE_M).exterior.distance(shapely.Point(x, y))
    if not is_outside(one, x, y, OUTSIDE_M):
        assert math.dist(out, (x, y)) <= best + 15


@given(polygons, coordinates, coordinates, coordinates, coordinates)
def test_a_way_crosses_what_shapely_says(
    corners: tuple[tuple[float, float], ...], x0: float, y0: float, x1: float, y1: float
) -> None:
    shape, line = shapely.Polygon(corners), shapely.LineString([(x0, y0), (x1, y1)])
    far = shape.distance(line)
    assume(abs(far - 25.0) > 1e-6)
    assert crosses(zone(*corners), x0, y0, x1, y1) == (far < 25.0)
    if shape.boundary.distance(shapely.Point(x0, y0)) > 1e-6:
        assert inside(zone(*corners), x0, y0, 50, 1) == shape.contains(shapely.Point(x0, y0))
    assert area_m2(corners) == pytest.approx(shape.area)


@settings(max_examples=300)
@given(some.lists(some.tuples(some.integers(0, 6), some.integers(0, 6)), min_size=3, max_size=7))
def test_a_polygon_is_simple_if_shapely_says_so(corners: list[tuple[int, int]]) -> None:
    given_corners = [(float(x), float(y)) for x, y in corners]
    repeats = any(a == b for a, b in itertools.pairwise([*given_corners, given_corners[0]]))
    assert is_simple(given_corners) == (not repeats and shapely.Polygon(given_corners).is_valid)


def test_the_first_zone_in_the_way_is_named() -> None:
    first = replace(zone((100, -50), (200, -50), (200, 50), (100, 50)), name="first")
    later = replace(zone((400, -50), (500, -50), (500, 50), (400, 50)), name="later")
    route = (Site(0, 0), Site(300, 0), Site(900, 0))
    assert blocked_by(route, (later, first), 5, 55) == "first"
    assert blocked_by(route, (later,), 5, 55) == "later"
    assert blocked_by(route, (replace(first, floor_m=80.0), replace(later, ceiling_m=40.0)), 5, 55) == ""
    assert blocked_by(route, (replace(first, from_t=900.0),), 5, 55) == "", "it will have passed"
    assert blocked_by(route, (replace(first, from_t=20.0),), 5, 55) == "first", "it closes while it comes"
    assert blocked_by((Site(0, 0),), (first,), 5, 55) == ""
