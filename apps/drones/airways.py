"""Who is too near to whom in the air, who gives way, and how; closed zones as polygons. Pure.

Why two drones above the floor never come nearer than 10 m and 4 m at once:

1. All that is decided here is decided from tracks, the same on both sides. A track is extrapolated; if it is off by
   more than `is_off` says, the drone shares a new one. So a position is off by 8 m and 2.5 m at most, and by what
   happens while a new track is under way: 2 s, 1 s until the sector looks, 1 s until the drone has begun to act.
2. In level flight the level follows from the heading, and levels are 10 m apart. A drone that is near its level counts
   as on it, so that noise of the height is no conflict, and at another level nobody is too near (`NEAR_HEIGHT_M`).
3. At one level two drones are too near below `NEAR_M` and `TURN_S` of the way of each, 95 m; one that goes down to the
   ground does not turn, and 65 m or 35 m will do. A turn, or a start from a hover, that nobody could know of, leaves
   that distance to be warned in: from 95 m to 35 m takes 4 s if one turns towards the other, and a level is left by 4 m
   within 2.5 s.
4. What is known ahead is known `HORIZON_S` ahead. A drone that holds stands after 38 m and at most 4 s of delay, 100 m;
   25 s are 375 m. So there is always time to hold, whatever the other one does.
5. Nobody changes its height by surprise. Before it climbs or goes down above the floor it shares a track with `to_z`,
   waits `ANNOUNCE_S`, and begins only if it was not warned. A drone below the floor waits there.
   While it waits it gives way to all that would be in its way (`give_way_s`); when it moves, it has priority.
6. For each pair exactly one gives way (`gives_way`). It takes the nearest level where, and on the way to which, nothing
   heard comes too near; without one it holds; if it hovers already, it goes `aside`, by a way on which nobody is near.
   One that has just risen above the floor goes back below it.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import pairwise
from math import atan2, cos, hypot, pi, sin, sqrt

from msgspec.structs import replace

from apps.drones.area import FLOOR_M, LEVELS_M, Point
from apps.drones.messages import ClosedZone, Site, Track

HORIZON_S = 25.0
NEAR_M = 35.0
NEAR_HEIGHT_M = 8.0
TURN_S = 2.0
"""How much of its way a drone may come nearer by a turn before it is noticed."""
CLEAR_S = 6.0
"""So long after the last warning a drone goes on."""
ANNOUNCE_S = 4.0
"""So long a drone shows that it wants to change its height before it does."""
CLIMB_M_S, DESCEND_M_S = 4.0, 3.0
HOVERS_M_S = 1.0
"""Slower than this a drone stands still."""
ON_LEVEL_M = 3.0
LEVELS_AWAY_M = 35.0
"""Further than this nobody changes its level to give way: the way there would cross those of too many others."""
HOLD_S = 10.0
"""A drone that has so much time can hold: it takes 4 s to begin to, and 5 s to stand."""
LINGER_S = 5.0
"""A drone that changes its height may stop on its way: it counts as still being where it was so long ago."""
GROUND_M = 10.0
OUTSIDE_M = 30.0
CRUISE_M_S = 15.0
PULL_M_S2 = 3.0
ASIDE_S = 10
"""So long it takes to go aside."""
_FAR_M2 = (NEAR_M + 2 * TURN_S * CRUISE_M_S + 2 * HOVERS_M_S * HORIZON_S) ** 2
ZONE_HEIGHT_M = 5.0
"""So far above and below a closed zone nobody flies."""

# ------------------------------------------------------------------ tracks


def at(track: Track, t: float) -> tuple[float, float, float]:
    """Where the drone is at `t`, as far as its track says."""
    dt = t - track.t
    z = track.z + track.vz * dt
    if track.to_z >= 0 and track.vz:
        z = min(z, max(track.to_z, track.z)) if track.vz > 0 else max(z, min(track.to_z, track.z))
    return track.x + track.vx * dt, track.y + track.vy * dt, max(z, 0.0)


def is_off(shared: Track, x: float, y: float, z: float, t: float) -> bool:
    """Whether a drone that is there has to share a new track."""
    there = at(shared, t)
    return hypot(there[0] - x, there[1] - y) > 8.0 or abs(there[2] - z) > 2.5


def level_of(x0: float, y0: float, x1: float, y1: float) -> float:
    """The level of a way, by the octant of its heading."""
    octant = int((atan2(y1 - y0, x1 - x0) + pi) / (pi / 4)) % 8
    return LEVELS_M[octant]


def _hovers(track: Track) -> bool:
    return track.vx * track.vx + track.vy * track.vy < HOVERS_M_S * HOVERS_M_S


def _wants(track: Track) -> bool:
    """It stays at its height, and says that it wants to leave it."""
    return track.to_z >= 0 and abs(track.vz) < 1.0 and abs(track.to_z - track.z) > ON_LEVEL_M


def _turn_m(track: Track) -> float:
    """How much nearer it may come by a turn, or by setting out from where it hovers, before that is noticed."""
    return 0.0 if 0.0 <= track.to_z < FLOOR_M <= track.z else TURN_S * CRUISE_M_S


def _climb(track: Track, z: float) -> tuple[float, float, float] | None:
    """Height, how fast it changes, and where that ends; None if the drone stays out of everybody's way."""
    said = track.to_z >= 0
    if z < FLOOR_M:
        if track.vz < -0.5 or (z < GROUND_M and track.vz < 0.5):
            return None
        return z, CLIMB_M_S, track.to_z if track.to_z > FLOOR_M else LEVELS_M[-1]
    if said:
        away = track.to_z - z
        if abs(away) <= ON_LEVEL_M:
            return track.to_z, 0.0, track.to_z
        if abs(track.vz) >= 1.0 and away * track.vz > 0:
            return z, track.vz, track.to_z
        return z, CLIMB_M_S if away > 0 else -DESCEND_M_S, track.to_z
    if abs(track.vz) >= 1.0:
        return z, track.vz, LEVELS_M[-1] if track.vz > 0 else 0.0
    level = min(LEVELS_M, key=lambda level: abs(level - z))
    z = level if abs(level - z) <= ON_LEVEL_M else z
    return z, 0.0, z


def _band(climb: tuple[float, float, float], said: bool, s: float) -> tuple[float, float]:
    """The heights between which a drone is after `s` seconds."""
    z, vz, to = climb
    then, was = z + vz * (s + 1.0), z + vz * max(s - LINGER_S, 0.0) if said else z
    if vz > 0:
        return min(was, max(to, z)), min(then, max(to, z))
    if vz < 0:
        return max(then, min(to, z)), max(was, min(to, z))
    return z, z


def conflict_s(a: Track, b: Track, now_t: float) -> float | None:
    """The seconds until both are too near at once, within `HORIZON_S`; 0 if they are now."""
    return _conflict(a, b, now_t, 0.0)


def _conflict(a: Track, b: Track, now_t: float, from_s: float) -> float | None:
    ax, ay, az = at(a, now_t)
    bx, by, bz = at(b, now_t)
    dx, dy = bx - ax, by - ay
    if abs(dx) > 900.0 or abs(dy) > 900.0:
        return None
    avx, avy, bvx, bvy = a.vx, a.vy, b.vx, b.vy
    if _hovers(a):
        avx = avy = 0.0
    if _hovers(b):
        bvx = bvy = 0.0
    begin, end = _within(dx, dy, bvx - avx, bvy - avy, NEAR_M + _turn_m(a) + _turn_m(b))
    begin, end = max(begin, from_s), min(end, HORIZON_S)
    if begin > end:
        return None
    climb_a, climb_b = _climb(a, az), _climb(b, bz)
    if climb_a is None or climb_b is None or (a.z < FLOOR_M and b.z < FLOOR_M):
        return None
    if climb_a[1] == 0.0 and climb_b[1] == 0.0:
        return begin if abs(climb_a[0] - climb_b[0]) < NEAR_HEIGHT_M else None
    s = begin
    while s <= end:
        low_a, high_a = _band(climb_a, a.to_z >= 0, s)
        low_b, high_b = _band(climb_b, b.to_z >= 0, s)
        if low_a - high_b < NEAR_HEIGHT_M and low_b - high_a < NEAR_HEIGHT_M:
            return s
        s += 1.0
    return None


def _within(dx: float, dy: float, vx: float, vy: float, near_m: float) -> tuple[float, float]:
    """From when to when something at `dx`, `dy` with this velocity is so near."""
    vv, dv, rest = vx * vx + vy * vy, dx * vx + dy * vy, dx * dx + dy * dy - near_m * near_m
    if vv < 0.01:
        return (0.0, HORIZON_S) if rest < 0 else (1.0, 0.0)
    root = dv * dv - vv * rest
    if root <= 0:
        return 1.0, 0.0
    root = sqrt(root)
    return max((-dv - root) / vv, 0.0), (-dv + root) / vv


def _rank(track: Track) -> int:
    if track.z < FLOOR_M:
        return 0
    if abs(track.vz) >= 1.0:
        return 3
    return 2 if _hovers(track) else 1


def gives_way(name_a: str, a: Track, name_b: str, b: Track) -> bool:
    """Whether a gives way to b. Exactly one of two does, unless both are below the floor.

    Priority falls from those that climb or descend, to those that hover, to those that fly level, to those that are
    still below the floor. Between equals the lower name has priority.
    """
    rank_a, rank_b = _rank(a), _rank(b)
    if rank_a == rank_b == 0:
        return False
    return rank_a < rank_b if rank_a != rank_b else name_a > name_b


def steady(track: Track) -> Track:
    """The track of a drone that stays at its height, whatever it has announced."""
    return replace(track, to_z=-1.0) if _wants(track) else track


def give_way_s(name_a: str, a: Track, name_b: str, b: Track, now_t: float) -> float | None:
    """The seconds until a conflict in which a has to give way to b; None if there is none, or b has to.

    A drone that has only announced a change of its height gives way, by waiting, to all that would be in its way. What
    it is now, hovering or in level flight, keeps its priority. If both have announced one, the one waits that has to
    pass the other.
    """
    now_s = conflict_s(steady(a), steady(b), now_t)
    if now_s is not None:
        return now_s if gives_way(name_a, a, name_b, b) else None
    wants_a, wants_b = _wants(a), _wants(b)
    if not wants_a and not wants_b:
        return None
    soon = conflict_s(a, b, now_t)
    if soon is None:
        return None
    # Below the floor a drone counts as one that begins to rise, whatever it announces.
    if a.z >= FLOOR_M and b.z >= FLOOR_M:
        if wants_a != wants_b:
            return soon if wants_a else None
        blocked_a, blocked_b = _is_between(b, a), _is_between(a, b)
        if blocked_a != blocked_b:
            return soon if blocked_a else None
    return soon if gives_way(name_a, a, name_b, b) else None


def _is_between(one: Track, wants: Track) -> bool:
    """Whether one is where the other one has to go through, or wants to end."""
    ahead, far = one.z - wants.z, wants.to_z - wants.z
    return ahead * far > 0.0 and abs(ahead) < abs(far) + NEAR_HEIGHT_M


def conflicts(tracks: Sequence[tuple[str, Track]], now_t: float) -> list[tuple[float, int, int]]:
    """All conflicts among these: in how many seconds, which one gives way, and to which one. The next one first.

    Most drones fly level, each at one of eight levels: sorted by height, only those that can come to the same one meet.
    """
    bands = []
    for i, (_, track) in enumerate(tracks):
        x, y, z = at(track, now_t)
        climb = _climb(track, z)
        if climb is not None:
            height, _, to = climb
            bands.append((min(height, to), max(height, to), i, x, y, track.vx, track.vy))
    bands.sort()
    found = []
    for k, (_, high, i, x, y, vx, vy) in enumerate(bands):
        for m in range(k + 1, len(bands)):
            low, _, j, other_x, other_y, other_vx, other_vy = bands[m]
            if low - high >= NEAR_HEIGHT_M:
                break
            dx, dy, dvx, dvy = other_x - x, other_y - y, other_vx - vx, other_vy - vy
            # At its nearest moment, or now, or at the horizon: is it anywhere near? Hovering ones drift a little.
            vv = dvx * dvx + dvy * dvy
            s = min(max(-(dx * dvx + dy * dvy) / vv, 0.0), HORIZON_S) if vv else 0.0
            if (dx + dvx * s) ** 2 + (dy + dvy * s) ** 2 > _FAR_M2:
                continue
            for a, b in ((i, j), (j, i)):
                soon = give_way_s(*tracks[a], *tracks[b], now_t)
                if soon is not None:
                    found.append((soon, a, b))
    found.sort()
    return found


Traffic = tuple[tuple[str, Track], ...]


def free_level(name: str, own: Track, others: Traffic, now_t: float) -> float | None:
    """The nearest level where nothing heard comes too near, nor on the way there. None: hold.

    If it is too late to hold, a level will do where it is free for a while. Of two levels the lower name takes the
    lower: if both give way, because tracks were late, they do not meet again.
    """
    x, y, z = at(own, now_t)
    here = replace(own, t=now_t, x=x, y=y, z=z, vz=0.0, to_z=-1.0)
    near = [level for level in LEVELS_M if abs(level - z) <= LEVELS_AWAY_M]
    up = name > _rival(here, others, now_t)
    near.sort(key=lambda level: (round(abs(level - z), -1), -level if up else level))
    best, best_s = None, HOLD_S
    for level in near:
        soon = free_s(name, here, others, now_t, level)
        if soon >= HORIZON_S:
            return level
        if soon > best_s:
            best, best_s = level, soon
    if best is None or free_s(name, here, others, now_t, z) > HOLD_S:
        return None
    return best


def _rival(own: Track, others: Traffic, now_t: float) -> str:
    """The one that comes too near first."""
    first = [(soon, name) for name, track in others if (soon := conflict_s(own, track, now_t)) is not None]
    return min(first, default=(0.0, ""))[1]


def free_s(name: str, own: Track, others: Traffic, now_t: float, level: float) -> float:
    """How long a drone that changes to this level now, and flies on there, is in nobody's way; `HORIZON_S` at most."""
    x, y, z = at(own, now_t)
    up = level > z
    changes = abs(level - z) > ON_LEVEL_M
    there = replace(own, t=now_t, x=x, y=y, z=z, vz=DESCEND_M_S * (1 if up else -1) if changes else 0.0, to_z=level)
    first_s = HORIZON_S
    for other, track in others:
        if other == name:
            continue
        height = at(track, now_t)[2]
        is_behind = height <= z + 1.0 if up else height >= z - 1.0
        leaves = changes and is_behind and abs(track.vz) < 1.0 and abs(height - z) < NEAR_HEIGHT_M
        # From one that is near its own height it gets away by the change itself: what counts is what comes after.
        after_s = LINGER_S + (NEAR_HEIGHT_M + 1.0 - abs(height - z)) / DESCEND_M_S if leaves else 0.0
        soon = _conflict(there, track, now_t, after_s)
        if soon is not None:
            first_s = min(first_s, soon)
    return first_s


def aside(name: str, own: Track, others: Traffic, now_t: float) -> Point | None:
    """Where a drone that hovers goes, at its height, if it must give way and no level is free. None: nowhere.

    There nobody comes too near, and on the way nobody does, or not as near as if it stayed.
    """
    x, y, z = at(own, now_t)
    around = [track for other, track in others if other != name]
    least, best = _nearness(own, around, now_t, 0.0, 0.0), None
    for far_m in (2 * NEAR_M, 4 * NEAR_M):
        for eighth in range(8):
            east, north = far_m * cos(eighth * pi / 4), far_m * sin(eighth * pi / 4)
            there = replace(own, t=now_t, x=x + east, y=y + north, z=z, vx=0.0, vy=0.0, vz=0.0, to_z=z)
            if any(conflict_s(there, track, now_t) is not None for track in around):
                continue
            near = _nearness(own, around, now_t, east, north)
            if near == 0.0:
                return there.x, there.y
            if near < least:
                least, best = near, (there.x, there.y)
    return best


def _nearness(own: Track, around: Sequence[Track], now_t: float, east: float, north: float) -> float:
    """How near, and how long, others are to one that sets out to a place so far away, from a hover, at its height."""
    x, y, z = at(own, now_t)
    far_m, found = hypot(east, north), 0.0
    for track in around:
        other_x, other_y, other_z = at(track, now_t)
        climb = _climb(track, other_z)
        if climb is None:
            continue
        wants, vx, vy = _wants(track), *((0.0, 0.0) if _hovers(track) else (track.vx, track.vy))
        for s in range(ASIDE_S):
            # One that has only announced a change may begin it at any time.
            low, high = sorted((other_z, track.to_z)) if wants else _band(climb, track.to_z >= 0, s)
            if low - z < NEAR_HEIGHT_M and z - high < NEAR_HEIGHT_M:
                share = min(0.5 * PULL_M_S2 * s * s, CRUISE_M_S * s, far_m) / far_m if far_m else 0.0
                found += max(
                    NEAR_M - hypot(other_x + vx * s - x - east * share, other_y + vy * s - y - north * share), 0
                )
    return found


# ------------------------------------------------------------------ closed zones


def closed(zone: ClosedZone, t: float) -> bool:
    """Whether it is closed at that time."""
    return zone.from_t <= t < zone.until_t


def inside(zone: ClosedZone, x: float, y: float, z: float, t: float) -> bool:
    """Whether somebody there would be where nobody may be."""
    return closed(zone, t) and zone.floor_m <= z <= zone.ceiling_m and _holds(zone.corners, x, y)


def _edges(corners: Sequence[Point]) -> Iterable[tuple[Point, Point]]:
    return zip(corners, (*corners[1:], corners[0]), strict=True)


def _holds(corners: Sequence[Point], x: float, y: float) -> bool:
    """Whether a polygon contains the point: a ray to the east crosses its border an odd number of times."""
    odd = False
    for (x0, y0), (x1, y1) in _edges(corners):
        if (y0 > y) != (y1 > y) and x < x0 + (y - y0) / (y1 - y0) * (x1 - x0):
            odd = not odd
    return odd


def _foot(x: float, y: float, start: Point, end: Point) -> Point:
    """The point of a segment that is nearest."""
    dx, dy = end[0] - start[0], end[1] - start[1]
    length = dx * dx + dy * dy
    part = ((x - start[0]) * dx + (y - start[1]) * dy) / length if length else 0.0
    part = min(max(part, 0.0), 1.0)
    return start[0] + part * dx, start[1] + part * dy


def _border_m(corners: Sequence[Point], x: float, y: float) -> float:
    """How far it is to the border, from inside or outside."""
    return min(hypot(x - foot[0], y - foot[1]) for foot in (_foot(x, y, *edge) for edge in _edges(corners)))


def is_outside(zone: ClosedZone, x: float, y: float, margin_m: float) -> bool:
    """Whether a point is outside of the polygon, by this margin."""
    return not _holds(zone.corners, x, y) and _border_m(zone.corners, x, y) >= margin_m


def way_out(zone: ClosedZone, x: float, y: float) -> Point:
    """The nearest point that is `OUTSIDE_M` beyond the border; the point itself if it is there already."""
    corners = zone.corners
    if is_outside(zone, x, y, OUTSIDE_M):
        return x, y
    far_m = OUTSIDE_M + 0.5
    found: list[Point] = []
    for start, end in _edges(corners):
        length = hypot(end[0] - start[0], end[1] - start[1])
        if length == 0:
            continue
        away = (end[1] - start[1]) / length * far_m, (start[0] - end[0]) / length * far_m
        feet = [_foot(x, y, start, end)]
        # In a notch the nearest place beyond an edge may be too near to another one: further along it is not.
        steps = min(int(length / 20.0) + 1, 50)
        feet += [
            (start[0] + (end[0] - start[0]) * i / steps, start[1] + (end[1] - start[1]) * i / steps)
            for i in range(steps + 1)
        ]
        for foot in feet:
            found += [(foot[0] + away[0], foot[1] + away[1]), (foot[0] - away[0], foot[1] - away[1])]
    xs, ys = [corner[0] for corner in corners], [corner[1] for corner in corners]
    found += [(min(xs) - far_m, y), (max(xs) + far_m, y), (x, min(ys) - far_m), (x, max(ys) + far_m)]
    found.sort(key=lambda point: (hypot(point[0] - x, point[1] - y), point))
    return next(point for point in found if is_outside(zone, *point, OUTSIDE_M))


def _cross(a: Point, b: Point, c: Point) -> float:
    return (b[0] - a[0]) * (c[1] - a[1]) - (b[1] - a[1]) * (c[0] - a[0])


def _meet(a: Point, b: Point, c: Point, d: Point) -> bool:
    """Whether two segments have a point in common."""
    if max(a[0], b[0]) < min(c[0], d[0]) or max(c[0], d[0]) < min(a[0], b[0]):
        return False
    if max(a[1], b[1]) < min(c[1], d[1]) or max(c[1], d[1]) < min(a[1], b[1]):
        return False
    return _cross(a, b, c) * _cross(a, b, d) <= 0 and _cross(c, d, a) * _cross(c, d, b) <= 0


def _apart_m(a: Point, b: Point, c: Point, d: Point) -> float:
    """How far two segments are from each other."""
    if _meet(a, b, c, d):
        return 0.0
    feet = ((a, _foot(*a, c, d)), (b, _foot(*b, c, d)), (c, _foot(*c, a, b)), (d, _foot(*d, a, b)))
    return min(hypot(point[0] - foot[0], point[1] - foot[1]) for point, foot in feet)


def crosses(zone: ClosedZone, x0: float, y0: float, x1: float, y1: float, margin_m: float = 25.0) -> bool:
    """Whether the straight way touches the polygon, widened by the margin."""
    start, end = (x0, y0), (x1, y1)
    if _holds(zone.corners, x0, y0) or _holds(zone.corners, x1, y1):
        return True
    return any(_apart_m(start, end, *edge) < margin_m for edge in _edges(zone.corners))


def is_simple(corners: Sequence[Point]) -> bool:
    """Whether the border of a polygon does not touch itself."""
    edges = list(_edges(corners))
    if any(start == end for start, end in edges):
        return False
    for i, (a, b) in enumerate(edges):
        for j in range(i + 1, len(edges)):
            c, d = edges[j]
            if j == i + 1 or (i == 0 and j == len(edges) - 1):
                # Neighbours share a corner; they must not lie on each other.
                shared, one, other = (b, a, d) if j == i + 1 else (a, b, c)
                dot = (one[0] - shared[0]) * (other[0] - shared[0]) + (one[1] - shared[1]) * (other[1] - shared[1])
                if _cross(shared, one, other) == 0 and dot > 0:
                    return False
            elif _meet(a, b, c, d):
                return False
    return True


def area_m2(corners: Sequence[Point]) -> float:
    """The area of a polygon."""
    return abs(sum(a[0] * b[1] - b[0] * a[1] for a, b in _edges(corners))) / 2


def closes_on_way(zone: ClosedZone, t: float, way_m: float) -> bool:
    """Whether a zone is closed, or will be before a way of this length is flown."""
    return zone.from_t <= t + way_m / (CRUISE_M_S / 2) and t < zone.until_t


def blocked_by(points: Sequence[Site], zones: Iterable[ClosedZone], t: float, level_m: float) -> str:
    """The first closed zone in the way of a route at that height: its name, or "" if there is none."""
    way_m = 0.0
    zones = tuple(zones)
    for start, end in pairwise(points):
        way_m += hypot(end.x - start.x, end.y - start.y)
        for zone in zones:
            if not zone.floor_m - ZONE_HEIGHT_M <= level_m <= zone.ceiling_m + ZONE_HEIGHT_M:
                continue
            if closes_on_way(zone, t, way_m) and crosses(zone, start.x, start.y, end.x, end.y):
                return zone.name
    return ""
