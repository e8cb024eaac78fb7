"""How a drone moves, and to whom it gives way. Every drone is one; `drone` adds jobs, descents and charging.

On the ground and below `FLOOR_M` it is in a column that is its own: its stand, or a cell or pad that it holds. Between
columns it flies level, at the level of its way. A change of height is made where it is, straight up or down, and above
the floor only after it has announced it in its track and nobody has warned it. It waits for a cell short of it, at its
level, never above it: the one below must be able to leave.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from zlib import crc32

from msgspec.structs import replace

from apps.drones.airways import (
    ANNOUNCE_S,
    CLEAR_S,
    HOVERS_M_S,
    ON_LEVEL_M,
    aside,
    at,
    free_level,
    give_way_s,
    is_off,
    level_of,
    steady,
)
from apps.drones.area import (
    FLOOR_M,
    LEVELS_M,
    Area,
    cell_name,
    centre_of,
    pad_of,
    place_of_pad,
    region_of,
    stand_of,
)
from apps.drones.flight import CRUISE_M_S, RESERVE_PERCENT, needed_percent
from apps.drones.messages import (
    Avoiding,
    ClosedZone,
    CourseSet,
    Fix,
    Grounded,
    HeightAnnounced,
    HoldExtended,
    Land,
    LinkChanged,
    Moved,
    RouteSet,
    Site,
    Steer,
    Track,
    TrackShared,
    TrafficHeard,
    WayClear,
    ZonesHeard,
)
from apps.drones.routing import detour
from stigmergy import (
    Agent,
    Claim,
    Effect,
    Effects,
    Event,
    Events,
    Lost,
    Ordered,
    Tell,
    decide,
    evolve,
    field,
    ordered,
    react,
)

HOLD_M = 30.0
"""Where it waits in its own column."""
WAIT_M = 90.0
"""So far from a site it waits for the cell."""
NEAR_M, NEAR_HEIGHT_M = 8.0, 1.5
"""So near to where it was to be, it is there."""
BRAKE_M_S2 = 3.0
"""How hard the flight controller brakes."""
SHARE_S, SHARE_PARKED_S = 4.0, 60.0
SHARE_JOB_S = 2.0
"""With a job it shares its track so often: its sector has to miss it soon."""
OBEY_S = 8.0
"""An order that shows no effect for so long is given again."""
MOVING = ("rising", "flying", "sinking", "leaving", "landing")
PARKED = ("new", "parked", "charging", "grounded")
WELL_S, WELL_APART_S = 20.0, 40.0
"""Put down because it was blind, it takes off again when it has seen for so long; not all of them at the same time."""
INSIDE_M = 22.0
"""So near to the middle of its cell, it is away from another one in the next cell, which may rise as well."""
OWN_WAY = ("home", "charge")
"""What it flies without a workflow."""


class Flyer(Agent):
    """What of a drone is in the air."""

    cell: Ordered[Claim] = ordered()
    pad: Ordered[Claim] = ordered()

    area: Area | None = None
    home: Site = Site(0.0, 0.0)

    mode: str = "new"
    """new, parked, rising, ready, flying, above, sinking, down, charging, leaving, landing, grounded."""
    t: float = 0.0
    x: float = 0.0
    y: float = 0.0
    z: float = 0.0
    vx: float = 0.0
    vy: float = 0.0
    battery: float = 0.0
    link: bool = True
    link_t: float = 0.0

    job: str = ""
    token: int = 0
    kg: float = 0.0
    carries: bool = False
    delivered: bool = False
    aborted: str = ""

    purpose: str = ""
    """What the way is for: route, take-off, collect, deposit, park, home, charge."""
    points: tuple[Site, ...] = ()
    level_m: float = 0.0
    course: CourseSet | None = None
    course_t: float = 0.0
    announced: HeightAnnounced | None = None
    """The change of height that it is about to begin."""
    holds_until_t: float = 0.0
    """It waits for others until then; 0: it does not."""
    descends: Site | None = None
    """Where it wants to go down, as soon as it holds the cell."""
    wants_pad: bool = False
    unfit: bool = False
    """It was told to land, or a motor is worn: put down, it waits to be fetched."""
    wakes_s: float = 0.0
    """Put down, it may take off again from then on."""

    shared: Track | None = None
    zones: dict[str, tuple[ClosedZone, ...]] = field(default_factory=dict)

    # ------------------------------------------------------------------ where it is

    @evolve
    def moved(self, event: Moved) -> None:
        self.t, self.battery = event.t, event.battery / 10
        self.x, self.y, self.z = event.x / 10, event.y / 10, event.z / 10
        self.vx, self.vy = event.vx / 10, event.vy / 10

    @evolve
    def link_changed(self, event: LinkChanged) -> None:
        self.link, self.link_t = event.up, event.t

    # ------------------------------------------------------------------ ways

    def _set_out(self, purpose: str, points: tuple[Site, ...]) -> Iterator[Event]:
        """Sets a route from where it is. It changes its height first, where it is."""
        last = points[-1]
        level_m = level_of(self.x, self.y, last.x, last.y)
        if purpose == "route":
            points = (*points[:-1], self._short_of(points))
        yield RouteSet(purpose, points, level_m)
        x, y = self._stop()
        if self.z < FLOOR_M:
            yield CourseSet("rising", x, y, HOLD_M, CRUISE_M_S, purpose)
        elif abs(self.z - level_m) < ON_LEVEL_M:
            yield CourseSet("flying", points[0].x, points[0].y, level_m, CRUISE_M_S, purpose)
        else:
            yield CourseSet("above", x, y, self.z, CRUISE_M_S, purpose)
            yield HeightAnnounced("rising", x, y, level_m, self.t + ANNOUNCE_S)

    def _stop(self) -> tuple[float, float]:
        """Where it stands if it brakes now."""
        stops_s = math.hypot(self.vx, self.vy) / (2 * BRAKE_M_S2)
        return self.x + self.vx * stops_s, self.y + self.vy * stops_s

    def _short_of(self, points: tuple[Site, ...]) -> Site:
        """Where it waits for the cell of the last point: short of it, on the way there."""
        last = points[-1]
        before = points[-2] if len(points) > 1 else Site(self.x, self.y)
        far = math.hypot(last.x - before.x, last.y - before.y)
        if far <= WAIT_M:
            return before
        share = WAIT_M / far
        return Site(last.x - (last.x - before.x) * share, last.y - (last.y - before.y) * share)

    def _go_home(self) -> Iterator[Event]:
        purpose, to = "home", self.home
        if self.wants_pad and self.pad.held:
            purpose, to = "charge", self._pad_site(self.pad.resource)
        yield from self._set_out(purpose, self._around(to))

    def _around(self, to: Site) -> tuple[Site, ...]:
        """The way there, around what is closed, as the drone itself can find it."""
        zones = tuple(self._zones_left(self.t))
        return detour(Site(self.x, self.y), to, zones, self.t) if zones else (to,)

    @evolve
    def route_set(self, event: RouteSet) -> None:
        self.purpose, self.points, self.level_m = event.purpose, event.points, event.level_m
        self.holds_until_t = 0.0
        self.descends = None

    @evolve
    def course_set(self, event: CourseSet) -> None:
        self.course, self.mode, self.course_t = event, event.mode, self.t
        self.holds_until_t = 0.0
        self.announced = None

    @evolve
    def height_announced(self, event: HeightAnnounced) -> None:
        self.announced = event

    @react
    def steer(self, event: CourseSet) -> Effects:
        if event.mode == "landing":
            yield Land(reason=event.why)
        elif event.z > 0.0 or self.purpose not in ("collect", "deposit"):
            yield Steer(event.x, event.y, event.z, event.speed)
        else:
            yield Steer(event.x, event.y, event.z, event.speed, valid_while=self.cell)
        if event.mode != "flying":
            return
        # Now it is above the floor and leaves the column.
        if self.cell.held and self.descends is None:
            yield self.cell.release()
        if self.pad.held and not self.wants_pad:
            yield self.pad.release()

    def _pad_site(self, resource: str) -> Site:
        assert self.area is not None
        return Site(*place_of_pad(self.area, resource))

    def _does_not_obey(self, fix: Fix, course: CourseSet) -> bool:
        """Whether it stands still although it should move: an order that the flight controller did not get."""
        if self.mode not in MOVING or self.holds_until_t or self.announced is not None:
            return False
        stands = abs(fix.vx) + abs(fix.vy) + abs(fix.vz) < HOVERS_M_S
        off_m = math.hypot(fix.x - course.x, fix.y - course.y) + abs(fix.z - course.z)
        return stands and off_m > 2 * NEAR_M and fix.t - self.course_t > OBEY_S

    # ------------------------------------------------------------------ put down by a safe action

    @evolve
    def grounded(self, event: Grounded) -> None:
        self.mode = "grounded"
        self.x, self.y, self.z = event.at.x, event.at.y, 0.0
        self.course = self.descends = None
        self._sees_anew()

    def _sees_anew(self) -> None:
        self.wakes_s = self.now + WELL_S + WELL_APART_S * (crc32(self.id.encode()) % 100) / 100

    @react
    def keep_place(self, event: Grounded) -> Effects:
        yield from self._claim_place()

    @react
    def keep_place_again(self, verdict: Lost) -> Effects:
        if self.mode == "grounded":
            yield from self._claim_place()

    def _claim_place(self) -> Iterator[Effect]:
        """Nobody is to come down where it lies. A stand is its owner's, whoever lies there."""
        assert self.area is not None
        zone, here = self.area.zone_at(self.x, self.y), cell_name(self.x, self.y)
        if here in (cell_name(*stand_of(self.area, zone, number)) for number in range(self.area.stands**2)):
            return
        for number in range(self.area.pads):
            if cell_name(*pad_of(self.area, zone, number)) == here:
                yield self.pad.claim(of=f"pad-{zone}-{number}", for_s=60, wait_s=1800, renew=True)
                return
        yield self.cell.claim(of=here, for_s=60, wait_s=1800, renew=True)

    def _may_rise_again(self, fix: Fix) -> bool:
        """Whether it may leave the place where its safe action has put it: it was blind and sees, nobody else may be in
        its column or beside it, and its battery takes it home."""
        x, y = centre_of(fix.x, fix.y)
        home_m = math.hypot(fix.x - self.home.x, fix.y - self.home.y)
        return (
            not self.unfit
            and fix.link
            and self.now >= self.wakes_s
            and max(abs(fix.x - x), abs(fix.y - y)) <= INSIDE_M
            and cell_name(fix.x, fix.y) in self._own_columns()
            and fix.battery >= RESERVE_PERCENT + needed_percent(home_m, self.kg if self.carries else 0.0)
        )

    # ------------------------------------------------------------------ others in the air

    def _zones_left(self, t: float) -> Iterator[ClosedZone]:
        """Those that are closed, or will be."""
        seen: list[str] = []
        for zones in self.zones.values():
            for zone in zones:
                if zone.name not in seen and t < zone.until_t:
                    seen.append(zone.name)
                    yield zone

    @evolve
    def zones_heard(self, event: ZonesHeard) -> None:
        self.zones = (
            {**self.zones, event.sector: event.zones}
            if event.zones
            else {sector: zones for sector, zones in self.zones.items() if sector != event.sector}
        )

    @decide
    def give_way(self, heard: TrafficHeard) -> Events:
        """Waits in its column, or changes its level, or stops; `airways` says why that keeps everybody apart."""
        course, own, wants = self.course, self.shared, self.announced
        if course is None or own is None or not heard.others or self.mode in (*PARKED, "landing", "down"):
            return
        name, clear_t = heard.others[0][0], heard.t + CLEAR_S
        rises = self.mode == "rising" and wants is None
        if self.z < FLOOR_M or (rises and (course.z < FLOOR_M or self._has_just_left())):
            if wants is not None:
                yield replace(wants, begins_t=clear_t)
            elif rises and course.z > FLOOR_M:
                yield CourseSet("rising", course.x, course.y, HOLD_M, course.speed, f"waits for {name}")
            return
        x, y, z = at(own, heard.t)
        now = replace(own, t=heard.t, x=x, y=y, z=z)
        if wants is not None:
            yield replace(wants, begins_t=heard.t + ANNOUNCE_S)
            now = steady(now)
            if all(give_way_s(self.id, now, other, track, heard.t) is None for other, track in heard.others):
                return
        elif self.mode in ("rising", "sinking"):
            yield CourseSet("above", course.x, course.y, self.z, course.speed, f"waits for {name}")
            yield HeightAnnounced(self.mode, course.x, course.y, course.z, clear_t)
            return
        level_m = free_level(self.id, now, heard.others, heard.t)
        stands = math.hypot(own.vx, own.vy) < HOVERS_M_S
        if level_m is not None and (level_m != self.level_m or not stands):
            if level_m != self.level_m:
                yield Avoiding(name, x, y, level_m, holds=False, clear_t=0.0)
                yield CourseSet(course.mode, course.x, course.y, level_m, course.speed, f"gives way to {name}")
                if wants is not None:
                    yield replace(wants, begins_t=clear_t + ANNOUNCE_S)
            return
        away = aside(self.id, now, heard.others, heard.t) if stands and level_m is None else None
        if self.holds_until_t and away is None:
            yield HoldExtended(clear_t)
        else:
            level_m = self.level_m if wants is None else z  # what is only announced has not begun
            yield Avoiding(name, *(away or self._stop()), level_m, holds=True, clear_t=clear_t)

    def _has_just_left(self) -> bool:
        """Whether it is below all levels and above a column that is its own: it can go back there."""
        return self.z < LEVELS_M[0] and cell_name(self.x, self.y) in self._own_columns()

    def _own_columns(self) -> list[str]:
        """The cells that only it may be above, below the floor."""
        sites = [self.home, *([self._pad_site(self.pad.resource)] if self.pad.held else [])]
        return [cell_name(site.x, site.y) for site in sites] + ([self.cell.resource] if self.cell.held else [])

    @evolve
    def holds_on(self, event: HoldExtended) -> None:
        self.holds_until_t = event.until_t

    @evolve
    def clear(self, event: WayClear) -> None:
        self.holds_until_t = 0.0

    @evolve
    def avoids(self, event: Avoiding) -> None:
        if event.holds:
            self.holds_until_t = event.clear_t
        else:
            self.level_m = event.level_m

    @react
    def hold(self, event: Avoiding) -> Effects:
        if event.holds:
            yield Steer(event.x, event.y, event.level_m, CRUISE_M_S)

    def _track(self, fix: Fix) -> Track:
        return Track(
            round(fix.t, 2),
            round(fix.x, 1),
            round(fix.y, 1),
            round(fix.z, 1),
            round(fix.vx, 1),
            round(fix.vy, 1),
            round(fix.vz, 1),
            self.mode,
            "" if self.aborted or self.delivered else self.job,
            self.token,
            self._to_z(),
        )

    def _to_z(self) -> float:
        """The height that it goes to, or is about to go to."""
        if self.announced is not None:
            return self.announced.z
        return -1.0 if self.course is None else round(self.course.z, 1)

    def _is_share_due(self, fix: Fix) -> bool:
        last = self.shared
        if last is None or last.mode != self.mode or last.to_z != self._to_z():
            return True
        old_s = fix.t - last.t
        if self.mode in PARKED and not self.job:
            return old_s >= SHARE_PARKED_S
        every_s = SHARE_JOB_S if last.job else SHARE_S
        return old_s >= every_s or is_off(last, fix.x, fix.y, fix.z, fix.t)

    @evolve
    def told_track(self, event: TrackShared) -> None:
        self.shared = event.track

    @react
    def tell_track(self, event: TrackShared) -> Effects:
        if self.area is not None:
            region = region_of(self.id)
            for zone in self.area.zones_near(event.track.x, event.track.y):
                yield Tell(f"Sector/{zone}@{region}", event)


def moved_to(fix: Fix) -> Moved:
    """What is kept of a fix."""
    x, y, z, vx, vy, battery = (round(10 * value) for value in (fix.x, fix.y, fix.z, fix.vx, fix.vy, fix.battery))
    return Moved(fix.t, x, y, z, battery, vx, vy)
