"""Ways around closed zones, on the ground and on board."""

from __future__ import annotations

import itertools
import math
from typing import Any

import pytest
import shapely
from hypothesis import assume, given, settings
from hypothesis import strategies as some

from apps.drones.airways import area_m2, blocked_by, is_outside, is_simple
from apps.drones.messages import ClosedZone, PlanRoute, RoutePlanned, Site
from apps.drones.routing import KEEP_M, detour, octagon, plan_now, plan_on_board
from stigmergy import DeviceRefused


def zone(*corners: tuple[float, float], name: str = "Z", **more: Any) -> ClosedZone:
    said: dict[str, Any] = {"floor_m": 0.0, "ceiling_m": 200.0, "from_t": 0.0, "until_t": 1000.0, **more}
    return ClosedZone(name, corners, **said)


def square(x: float, y: float, half: float, **more: Any) -> ClosedZone:
    return zone((x - half, y - half), (x + half, y - half), (x + half, y + half), (x - half, y + half), **more)


START, TO = Site(0.0, 0.0), Site(2000.0, 0.0)
WALL = square(1000, 0, 200)


def work(*zones: ClosedZone, start: Site = START, to: Site = TO) -> PlanRoute:
    return PlanRoute("r1-0101-001", start, to, zones)


def length(start: Site, planned: tuple[Site, ...]) -> float:
    return sum(math.dist((a.x, a.y), (b.x, b.y)) for a, b in itertools.pairwise((start, *planned)))


def test_without_zones_the_way_is_direct() -> None:
    assert plan_now(work()) == RoutePlanned((TO,), by="direct")
    assert plan_now(work(square(1000, 900, 200))) == RoutePlanned((TO,), by="direct")
    assert plan_now(work(square(1000, 0, 200, floor_m=150.0))) == RoutePlanned((TO,), by="direct"), "above all levels"
    assert detour(START, TO, (), 5) == (TO,)
    assert detour(START, TO, (square(1000, 0, 200, until_t=4.0),), 5) == (TO,), "it is over"


def test_around_a_square_both_take_the_corners() -> None:
    best = 2 * math.hypot(800, 225) + 400
    for points in (plan_now(work(WALL)).points, detour(START, TO, (WALL,), 5)):
        assert blocked_by((START, *points), (WALL,), 5, 55) == ""
        assert points[-1] == TO
        assert length(START, points) < best * 1.05


def test_the_ground_finds_the_way_between_and_into_a_notch() -> None:
    upper, lower = square(1000, 290, 200, name="upper"), square(1000, -290, 200, name="lower")
    assert plan_now(work(upper, lower)).by == "direct", "between them is room"
    notch = zone((800, -300), (1200, -300), (1200, -200), (900, -200), (900, 200), (1200, 200), (1200, 300), (800, 300))
    inner = Site(1000.0, 0.0)
    planned = plan_now(work(notch, to=inner))
    assert planned.by == "ground"
    assert blocked_by((START, *planned.points), (notch,), 5, 55) == ""


def test_overlapping_zones_are_one_wall() -> None:
    walls = (square(1000, 0, 200, name="a"), square(1000, 350, 200, name="b"), square(1000, -350, 200, name="c"))
    for points in (plan_now(work(*walls)).points, detour(START, TO, walls, 5)):
        assert blocked_by((START, *points), walls, 5, 55) == ""
        assert max(abs(point.y) for point in points) > 550


def test_from_inside_it_leaves_first() -> None:
    inner = Site(850.0, 0.0)
    for points in (plan_now(work(WALL, start=inner)).points, detour(inner, TO, (WALL,), 5)):
        first = points[0]
        assert is_outside(WALL, first.x, first.y, KEEP_M)
        assert first.x < 800, "by the shortest way"
        assert blocked_by(points, (WALL,), 5, 55) == ""
        assert points[-1] == TO


def test_a_closed_destination_is_refused() -> None:
    closed = work(WALL, to=Site(1000.0, 210.0))
    with pytest.raises(DeviceRefused, match="Z is closed"):
        plan_now(closed)
    with pytest.raises(DeviceRefused, match="Z is closed"):
        plan_on_board(closed)
    ring = [zone((0, 0), (900, 0), (900, 900), (0, 900), name="a"), zone((950, 0), (1800, 0), (1800, 900), (950, 900))]
    with pytest.raises(DeviceRefused):
        plan_now(work(*ring, start=Site(-500.0, 0.0), to=Site(925.0, 450.0)))


def test_both_planners_say_which_one_it_was() -> None:
    assert plan_now(work(WALL)).by == "ground"
    assert plan_on_board(work(WALL)).by == "on board"
    assert plan_on_board(work()) == RoutePlanned((TO,), by="direct")


def test_an_octagon_is_around_its_polygon() -> None:
    corners = octagon(WALL.corners, 40)
    assert len(corners) == 8
    assert shapely.Polygon(corners).contains(shapely.Polygon(WALL.corners).buffer(39))


coordinates = some.integers(0, 2000).map(float)


@some.composite
def zones(draw: some.DrawFn) -> ClosedZone:
    x, y = draw(coordinates), draw(coordinates)
    angles = sorted(draw(some.lists(some.floats(0, 2 * math.pi), min_size=3, max_size=8, unique=True)))
    reach = draw(some.lists(some.floats(60, 400), min_size=8, max_size=8))
    corners = tuple((x + r * math.cos(a), y + r * math.sin(a)) for a, r in zip(angles, reach, strict=False))
    assume(is_simple(corners) and area_m2(corners) > 100)
    return zone(*corners, name=f"Z{x}-{y}")


@pytest.mark.filterwarnings("ignore:.*:RuntimeWarning")  # shapely, of very flat polygons: it answers all the same
@settings(max_examples=150, deadline=None)
@given(some.lists(zones(), min_size=1, max_size=5), coordinates, coordinates, coordinates, coordinates)
def test_no_way_leads_through_a_closed_zone(many: list[ClosedZone], x0: float, y0: float, x1: float, y1: float) -> None:
    start, to = Site(x0, y0), Site(x1, y1)
    assume(all(is_outside(one, x0, y0, KEEP_M + 2) and is_outside(one, x1, y1, KEEP_M) for one in many))
    try:
        points = plan_now(work(*many, start=start, to=to)).points
    except DeviceRefused:
        wall = shapely.union_all([shapely.Polygon(one.corners) for one in many]).buffer(KEEP_M + 20)
        outer = shapely.box(-1000, -1000, 3000, 3000).difference(wall)
        parts = [part for part in getattr(outer, "geoms", [outer]) if part.distance(shapely.Point(x0, y0)) < 60]
        assert not any(part.contains(shapely.Point(x1, y1)) and part.contains(shapely.Point(x0, y0)) for part in parts)
        return
    assert points[-1] == to
    assert blocked_by((start, *points), many, 5, 55) == ""
    own = detour(start, to, many, 5)
    assert own[-1] == to
    if len(many) == 1:
        assert blocked_by((start, *own), many, 5, 55) == ""
        # The ground keeps some 20 m more distance: all around a zone that is a circle of that radius.
        assert length(start, own) >= length(start, points) - 2 * math.pi * 20
