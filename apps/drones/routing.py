"""Ways around closed zones: with shapely on the ground, and a small one on board that needs nothing.

Both look for the shortest way over the corners of widened zones. The ground widens the polygons themselves, joined
where they overlap, and so finds ways through notches and between zones. A drone takes the octagon around each zone that
is in its way: a few corners, which a handler has time for.

Zones count whatever the level: which one a drone flies at is decided when it sets out, and when it gives way.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Sequence
from functools import partial
from itertools import pairwise
from math import cos, dist, pi, sin
from typing import Any

from msgspec import Struct

from apps.drones.airways import ZONE_HEIGHT_M, closes_on_way, crosses, is_outside, way_out
from apps.drones.area import LEVELS_M, Point
from apps.drones.messages import ClosedZone, PlanRoute, RoutePlanned, Site
from stigmergy import DeviceRefused

KEEP_M = 25.0
"""So near to a closed zone a way is blocked."""
WIDE_M = 40.0
CORNERS_MAX = 400
ROUNDS_MAX = 5
"""How often a drone looks again because a way around one zone leads through another."""
AROUND_MAX = 6
"""Zones that a drone takes into account."""

Opened = Callable[[Point, Sequence[Point]], Sequence[bool]]


def concerns(zone: ClosedZone) -> bool:
    """Whether a zone is at heights where drones fly."""
    return zone.floor_m - ZONE_HEIGHT_M <= LEVELS_M[-1] and zone.ceiling_m + ZONE_HEIGHT_M >= LEVELS_M[0]


def shortest(start: Point, to: Point, corners: Sequence[Point], opened: Opened) -> list[Point] | None:
    """The shortest way over some of the corners, without its start. `opened` says which points a point can see."""
    points = [to, *corners]
    costs = {-1: 0.0}
    before: dict[int, int] = {}
    done: set[int] = set()
    queue = [(dist(start, to), -1)]
    while queue:
        _, here = heapq.heappop(queue)
        if here in done:
            continue
        done.add(here)
        if here == 0:
            way = []
            while here != -1:
                way.append(points[here])
                here = before[here]
            return way[::-1]
        place = start if here == -1 else points[here]
        left = [i for i in range(len(points)) if i not in done]
        for i, is_open in zip(left, opened(place, [points[i] for i in left]), strict=True):
            cost = costs[here] + dist(place, points[i])
            if is_open and cost < costs.get(i, float("inf")):
                costs[i], before[i] = cost, here
                heapq.heappush(queue, (cost + dist(points[i], to), i))
    return None


# ------------------------------------------------------------------ on board


def detour(start: Site, to: Site, zones: Sequence[ClosedZone], t: float) -> tuple[Site, ...]:
    """A way around the zones that will be closed on it, without its start. If it finds none, straight there."""
    way_m = 2 * dist((start.x, start.y), (to.x, to.y))
    return way_around(start, to, [zone for zone in zones if closes_on_way(zone, t, way_m)])


def way_around(start: Site, to: Site, zones: Sequence[ClosedZone]) -> tuple[Site, ...]:
    """The same around all of these."""
    zones = [zone for zone in zones if concerns(zone)]
    here, first = (start.x, start.y), []
    for zone in zones:
        if not is_outside(zone, *here, KEEP_M):
            here = way_out(zone, *here)
            first = [here]
    found = _around(here, (to.x, to.y), zones)
    return tuple(Site(*point) for point in ([*first, *found] if found else [(to.x, to.y)]))


class _Wall(Struct, frozen=True):
    """What a way must not touch: an octagon if both ends are outside of it, else the polygon itself."""

    zone: ClosedZone
    margin_m: float
    low: Point
    high: Point

    def is_between(self, a: Point, b: Point) -> bool:
        """Whether it is in the way from one point to the other. Most are not even near."""
        (left, bottom), (right, top) = self.low, self.high
        if max(a[0], b[0]) < left or min(a[0], b[0]) > right or max(a[1], b[1]) < bottom or min(a[1], b[1]) > top:
            return False
        return crosses(self.zone, *a, *b, self.margin_m)


def _wall(zone: ClosedZone, start: Point, to: Point) -> _Wall:
    around = ClosedZone(zone.name, tuple(octagon(zone.corners, KEEP_M)), 0.0, 0.0, 0.0, 0.0)
    if is_outside(around, *start, 1.0) and is_outside(around, *to, 1.0):
        zone, margin_m = around, 1.0
    else:
        margin_m = KEEP_M
    xs, ys = [x for x, _ in zone.corners], [y for _, y in zone.corners]
    low = min(xs) - margin_m, min(ys) - margin_m
    return _Wall(zone, margin_m, low, (max(xs) + margin_m, max(ys) + margin_m))


def _around(start: Point, to: Point, zones: Sequence[ClosedZone]) -> list[Point] | None:
    """Takes one zone after the other into account, as they turn out to be in the way."""
    left = {zone: _wall(zone, start, to) for zone in zones}
    corners: list[Point] = []
    walls: list[_Wall] = []
    way: list[Point] | None = [to]
    for _ in range(ROUNDS_MAX):
        points = [start, *(way or [])]
        met = [zone for zone, wall in left.items() if any(wall.is_between(a, b) for a, b in pairwise(points))]
        if way is None or not met:
            return way
        for zone in met[: AROUND_MAX - len(walls)]:
            walls.append(left.pop(zone))
            corners += octagon(zone.corners, WIDE_M)
        free = [one for one in corners if not any(wall.is_between(one, one) for wall in walls)]
        way = shortest(start, to, free, partial(_seen, tuple(walls)))
    return None


def _seen(walls: Sequence[_Wall], place: Point, points: Sequence[Point]) -> list[bool]:
    return [not any(wall.is_between(place, point) for wall in walls) for point in points]


def octagon(corners: Sequence[Point], wide_m: float) -> list[Point]:
    """The corners of the octagon around a polygon, so much wider."""
    directions = [(cos(i * pi / 4), sin(i * pi / 4)) for i in range(8)]
    reach = [max(x * dx + y * dy for x, y in corners) + wide_m for dx, dy in directions]
    found = []
    for i in range(8):
        (ax, ay), (bx, by) = directions[i], directions[(i + 1) % 8]
        a, b = reach[i], reach[(i + 1) % 8]
        scale = ax * by - ay * bx
        found.append(((a * by - b * ay) / scale, (ax * b - bx * a) / scale))
    return found


def plan_on_board(work: PlanRoute) -> RoutePlanned:
    """What a drone does without the ground."""
    refuse_closed(work)
    points = way_around(work.start, work.to, work.zones)
    return RoutePlanned(points, by="direct" if len(points) == 1 else "on board")


def refuse_closed(work: PlanRoute) -> None:
    """Raises DeviceRefused if the destination is closed: no way leads there."""
    for zone in work.zones:
        if concerns(zone) and not is_outside(zone, work.to.x, work.to.y, KEEP_M):
            raise DeviceRefused(f"{zone.name} is closed, and the way leads into it")


# ------------------------------------------------------------------ on the ground


def load() -> None:
    """Imports the geometry: do it before agents run, as with the solver."""
    import shapely  # noqa: F401


def plan_now(work: PlanRoute) -> RoutePlanned:
    """The shortest way around all zones. Computes; do not call it on an event loop."""
    refuse_closed(work)
    zones = [zone for zone in work.zones if concerns(zone)]
    start, to = (work.start.x, work.start.y), (work.to.x, work.to.y)
    way = _widened(start, to, zones) if zones else [to]
    if way is None:
        raise DeviceRefused("no way leads there")
    return RoutePlanned(tuple(Site(*point) for point in way), by="direct" if len(way) == 1 else "ground")


def _widened(start: Point, to: Point, zones: Sequence[ClosedZone]) -> list[Point] | None:
    import numpy
    import shapely

    polygons = shapely.union_all([shapely.Polygon(zone.corners) for zone in zones])
    walls = polygons.buffer(KEEP_M + 1.0)
    shapely.prepare(walls)
    first: list[Point] = []
    here = shapely.Point(start)
    if shapely.intersects(walls, here):
        # It is inside, or too near: straight to the nearest place that is not.
        edge = polygons.buffer(WIDE_M).boundary
        near = edge.interpolate(edge.project(here))
        first = [(near.x, near.y)]
    widened = polygons.buffer(WIDE_M, join_style="mitre", mitre_limit=2.0).simplify(KEEP_M / 5)
    corners = shapely.get_coordinates(widened)
    corners = corners[~shapely.intersects_xy(walls, corners)]
    if len(corners) > CORNERS_MAX:
        far = shapely.distance(shapely.points(corners), shapely.LineString([start, to]))
        corners = corners[numpy.argsort(far)[:CORNERS_MAX]]

    def opened(place: Point, points: Sequence[Point]) -> list[bool]:
        ends = numpy.empty((len(points), 2, 2))
        ends[:, 0], ends[:, 1] = place, points
        lines: Any = shapely.linestrings(ends)
        free: list[bool] = (~shapely.intersects(walls, lines)).tolist()
        return free

    begin = first[0] if first else start
    way = shortest(begin, to, [(float(x), float(y)) for x, y in corners], opened)
    return None if way is None else [*first, *way]
