"""A drone: it decides on board, on what its own sensors and its sector tell it.

It sees the world through `Fix`, twice a second, and acts through a few orders to its flight controller: fly, land,
take and leave a parcel. Everything else is decided here and kept: which jobs it refuses, how it flies the steps of a
delivery, when it gives way, when it turns round, where it charges.

How it moves. On the ground and below `FLOOR_M` it is in a column that is its own: its stand, or a cell or pad that it
holds. Between columns it flies level, at the level of its way. A change of height is made where it is, straight up or
down, and above the floor only after it has announced it in its track and nobody has warned it. It waits for a cell
short of it, at its level, never above it: the one below must be able to leave.

What it does without anybody: gives way, leaves a zone that closes, turns round when the battery asks for it or the link
is lost for long, and lands where it is if its own sensors fall silent. None of that needs a ledger, a job or a link.
"""

from __future__ import annotations

import math
from collections.abc import Generator, Iterator

from msgspec.structs import replace

from apps.drones.airways import (
    ANNOUNCE_S,
    CLEAR_S,
    HOVERS_M_S,
    ON_LEVEL_M,
    aside,
    at,
    blocked_by,
    closed,
    free_level,
    give_way_s,
    inside,
    is_off,
    level_of,
    steady,
    way_out,
)
from apps.drones.area import FLOOR_M, Area, cell_name, centre_of, pad_of, region_of, zone_of
from apps.drones.flight import CRUISE_M_S, RESERVE_PERCENT, length_m, needed_percent
from apps.drones.messages import (
    Airborne,
    AskWay,
    Avoiding,
    BringBack,
    Charged,
    ChargeWanted,
    ChargingBegan,
    ClosedZone,
    Collect,
    Collected,
    Commission,
    Commissioned,
    CourseSet,
    Deliver,
    Deposit,
    Deposited,
    DepositRefused,
    DescentWanted,
    DroneBusy,
    DroneReady,
    Fix,
    FlightAborted,
    FlyRoute,
    GoHome,
    Grip,
    GroundDrone,
    Grounded,
    HeightAnnounced,
    HoldExtended,
    JobAccepted,
    JobDeclined,
    JobDelivered,
    JobEnded,
    JobPicked,
    JobReturned,
    JobTaken,
    Land,
    LinkChanged,
    MotorWarned,
    Moved,
    Park,
    Parked,
    ReadyTold,
    Release,
    RevokeJob,
    RouteBlocked,
    RouteFlown,
    RouteSet,
    Site,
    Steer,
    TakeJob,
    TakeOff,
    TouchedDown,
    Track,
    TrackShared,
    TrafficHeard,
    WayAsked,
    WayClear,
    ZonesHeard,
)
from apps.drones.routing import detour
from stigmergy import (
    Agent,
    Claim,
    Denied,
    Done,
    Effects,
    Event,
    Events,
    Failed,
    Granted,
    Lost,
    Ordered,
    Pool,
    SafeActionTaken,
    Steps,
    Tell,
    WhenStale,
    decide,
    evolve,
    field,
    ordered,
    pool,
    react,
    reject,
)

HOLD_M = 30.0
"""Where it waits in its own column."""
WAIT_M = 90.0
"""So far from a site it waits for the cell."""
NEAR_M, NEAR_HEIGHT_M = 8.0, 1.5
"""So near to where it was to be, it is there."""
SILENT_S = 3.0
LINK_S_MAX = 20.0
"""So long it goes on by its last orders without a link."""
BRAKE_M_S2 = 3.0
"""How hard the flight controller brakes."""
SHARE_S, SHARE_PARKED_S = 4.0, 15.0
READY_S = 60.0
CHARGE_BELOW, CHARGED_AT, CRITICAL = 55.0, 92.0, 6.0
PADS_PER_ZONE = 8
OBEY_S = 8.0
"""An order that shows no effect for so long is given again."""
MOVING = ("rising", "flying", "sinking", "leaving", "landing")
PARKED = ("new", "parked", "charging", "grounded")
OWN_WAY = ("home", "charge")
"""What it flies without a workflow."""


class Drone(Agent):
    """One drone."""

    steps: Steps = Steps()
    cell: Ordered[Claim] = ordered()
    pad: Ordered[Claim] = ordered()

    area: Area | None = None
    home: Site = Site(0.0, 0.0)
    capacity_kg: float = 0.0

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
    pickup: Site = Site(0.0, 0.0)
    drop: Site = Site(0.0, 0.0)
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
    asked: str = ""
    """The cell that it has claimed and not given back."""
    wants_pad: bool = False
    ready: bool = False
    ready_t: float = 0.0

    shared: Track | None = None
    zones: dict[str, tuple[ClosedZone, ...]] = field(default_factory=dict)

    blind = WhenStale(Fix, after_s=SILENT_S, then=Land(reason="its own sensors are silent"))

    # ------------------------------------------------------------------ service

    @decide
    def commission(self, command: Commission) -> Events:
        if self.mode not in ("new", "parked"):
            reject(f"{self.mode}; a drone is put into service on the ground")
        yield Commissioned(command.area, command.home, command.capacity_kg)

    @evolve
    def commissioned(self, event: Commissioned) -> None:
        self.area, self.home, self.capacity_kg = event.area, event.home, event.capacity_kg
        self.x, self.y = event.home.x, event.home.y
        self.mode = "parked"
        self.link = True

    @decide
    def ground(self, command: GroundDrone) -> Events:
        if self.mode in PARKED:
            reject(f"it is on the ground: {self.mode}")
        yield FlightAborted(because=command.because)
        yield CourseSet("landing", self.x, self.y, 0.0, CRUISE_M_S, command.because)

    # ------------------------------------------------------------------ jobs

    @decide
    def take_job(self, command: TakeJob) -> Events:
        if (command.job, command.token) == (self.job, self.token):
            return
        why = self._cannot_fly(command)
        if why:
            yield JobDeclined(command.job, command.token, why)
            return
        yield JobTaken(command.job, command.token, command.pickup, command.drop, command.kg, command.deadline_t)
        if self.ready:
            # Now, not at the next fix: by then it may have taken off, and who is in the air says nothing of this.
            yield ReadyTold(ready=False, t=self.t)

    def _cannot_fly(self, job: TakeJob) -> str:
        """Why it does not take this job; empty if it does."""
        if self.job:
            return f"it flies {self.job}"
        if self.mode != "parked" or (self.x - self.home.x) ** 2 + (self.y - self.home.y) ** 2 > CRUISE_M_S**2:
            return f"it is {self.mode}, not at home"
        if not self.link:
            return "it has no link"
        if self.wants_pad:
            return "it has to charge"
        if job.kg > self.capacity_kg:
            return f"{job.kg:g} kg, it carries {self.capacity_kg:g}"
        way = length_m([point(self.home), point(job.pickup), point(job.drop), point(self.home)])
        needed = RESERVE_PERCENT + needed_percent(way, job.kg, stops=2)
        if self.battery < needed:
            return f"battery at {self.battery:.0f} %, {needed:.0f} % needed"
        for zone in self._closed_zones(self.t):
            if any(inside(zone, site.x, site.y, zone.floor_m, self.t) for site in (job.pickup, job.drop)):
                return f"a site of it is in {zone.name}, which is closed"
        return ""

    @evolve
    def took(self, event: JobTaken) -> None:
        self.job, self.token, self.kg = event.job, event.token, event.kg
        self.pickup, self.drop = event.pickup, event.drop
        self.carries = self.delivered = False
        self.aborted = ""

    @react
    def begin(self, event: JobTaken) -> Effects:
        yield Tell(f"Job/{event.job}", JobAccepted(token=event.token, drone=self.id))
        run = f"Delivery/{self.id}.{event.job}.{event.token}"
        yield Tell(run, Deliver(self.id, event.job, event.token, event.pickup, event.drop, self.home))

    @react
    def decline(self, event: JobDeclined) -> Effects:
        yield Tell(f"Job/{event.job}", JobReturned(token=event.token, drone=self.id, why=event.why))

    @decide
    def revoke(self, command: RevokeJob) -> Events:
        if command.job != self.job or command.token < self.token or self.delivered or self.aborted:
            return
        yield from self._turn_round(f"revoked: {command.because}")

    # ------------------------------------------------------------------ the steps of a delivery

    @decide
    def take_off(self, command: TakeOff) -> Events:
        if self.mode != "parked":
            reject(f"it is {self.mode}")
        if self.aborted:
            reject(self.aborted)
        yield RouteSet("take-off", (), HOLD_M)
        yield CourseSet("rising", self.home.x, self.home.y, HOLD_M, CRUISE_M_S, "takes off")

    @decide
    def ask_way(self, command: AskWay) -> Events:
        yield WayAsked(Site(self.x, self.y), command.to, tuple(self._closed_zones(self.t)))

    @decide
    def fly_route(self, command: FlyRoute) -> Events:
        if self.aborted:
            reject(self.aborted)
        if self.mode not in ("ready", "above", "down", "flying", "rising"):
            reject(f"it is {self.mode}")
        if not command.points:
            reject("a route without points")
        yield from self._set_out("route", command.points)

    @decide
    def go_down(self, command: Collect | Deposit) -> Events:
        if self.aborted:
            reject(self.aborted)
        if self.mode != "above" or command.job != self.job:
            reject(f"it is {self.mode}, on {self.job or 'no job'}")
        collects = isinstance(command, Collect)
        yield DescentWanted("collect" if collects else "deposit", self.pickup if collects else self.drop)

    @decide
    def park(self, command: Park) -> Events:
        if self.aborted:
            reject(self.aborted)
        yield from self._set_out("park", (self.home,))

    @decide
    def bring_back(self, command: BringBack) -> Events:
        """The parcel is on board and stays there: going home brings it back."""
        if (command.job, command.token) == (self.job, self.token):
            yield from self._turn_round("the delivery was given up")

    @decide
    def go_home(self, command: GoHome) -> Events:
        """Of a job that is over, or that has not left the ground, nothing is to be undone."""
        if (command.job, command.token) != (self.job, self.token):
            yield JobEnded(command.job, command.token, "it is over")
        else:
            yield from self._turn_round("the delivery was given up")

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

    def _turn_round(self, because: str) -> Iterator[Event]:
        """Gives up what it was doing and flies home, or to the pad that it holds."""
        if not self.aborted:
            yield FlightAborted(because=because)
        if self.mode in PARKED and self.job:
            yield JobEnded(self.job, self.token, because)
        if self.mode in PARKED or self.mode in ("landing", "leaving") or self.purpose in OWN_WAY:
            return
        if self.mode in ("sinking", "rising", "ready") and self.purpose in ("park", "take-off") and self.z < FLOOR_M:
            yield RouteSet("home", (self.home,), self.level_m)
            yield CourseSet("sinking", self.home.x, self.home.y, 0.0, CRUISE_M_S, because)
            return
        yield from self._go_home()

    def _go_home(self) -> Iterator[Event]:
        purpose, to = "home", self.home
        if self.wants_pad and self.pad.held:
            purpose, to = "charge", self._pad_site(self.pad.resource)
        yield from self._set_out(purpose, self._around(to))

    def _around(self, to: Site) -> tuple[Site, ...]:
        """The way there, around what is closed, as the drone itself can find it."""
        zones = tuple(self._closed_zones(self.t))
        return detour(Site(self.x, self.y), to, zones, self.t) if zones else (to,)

    @evolve
    def aborts(self, event: FlightAborted) -> None:
        self.aborted = event.because
        self.descends = None

    @react
    def report_abort(self, event: FlightAborted) -> Effects:
        if self.job and not self.delivered:
            yield Tell(f"Job/{self.job}", JobReturned(token=self.token, drone=self.id, why=event.because))
        if self.asked and not self.cell.held:
            yield self.cell.release(of=self.asked)

    @react
    def report_safe(self, event: SafeActionTaken) -> Effects:
        if self.job and not self.delivered and self.mode == "landing":
            yield Tell(f"Job/{self.job}", JobReturned(token=self.token, drone=self.id, why=event.because))

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

    # ------------------------------------------------------------------ what its sensors say

    @decide
    def fixed(self, fix: Fix) -> Events:
        if self.area is None:
            return
        due_s = 1.0 if self.mode not in PARKED else 10.0
        looks = fix.t - self.t >= due_s - 0.25
        if looks:
            yield moved_to(fix)
        if fix.link != self.link:
            yield LinkChanged(up=fix.link, t=fix.t)
        if self.mode in PARKED:
            yield from self._on_ground(fix)
        elif fix.down and self.mode in ("sinking", "landing"):
            yield from self._touched_down(fix)
        else:
            yield from self._in_the_air(fix, looks)
        if fix.link and self._is_share_due(fix):
            yield TrackShared(self.id, self._track(fix), self.area.zone_at(fix.x, fix.y))

    @evolve
    def moved(self, event: Moved) -> None:
        self.t, self.battery = event.t, event.battery / 10
        self.x, self.y, self.z = event.x / 10, event.y / 10, event.z / 10
        self.vx, self.vy = event.vx / 10, event.vy / 10

    @evolve
    def link_changed(self, event: LinkChanged) -> None:
        self.link, self.link_t = event.up, event.t

    def _on_ground(self, fix: Fix) -> Iterator[Event]:
        if not fix.down and fix.z > HOLD_M / 2 and self.mode != "grounded":
            # Its log says that it is on the ground: that log was lost. It knows no better place than home.
            yield moved_to(fix)
            yield RouteSet("astray", (), fix.z)
            yield CourseSet("above", fix.x, fix.y, fix.z, CRUISE_M_S, "is in the air and does not know why")
            return
        ready = self.mode == "parked" and not self.job and not self.wants_pad and self.link
        if self.mode == "charging" and fix.battery >= CHARGED_AT:
            yield Charged(percent=fix.battery)
            yield from self._set_out("home", self._around(self.home))
        elif self.mode == "parked" and not self.job and not self.wants_pad and fix.battery < CHARGE_BELOW:
            ready = False
            yield ChargeWanted(pads=self._pads().text)
        if ready != self.ready or (ready and fix.t - self.ready_t >= READY_S):
            yield ReadyTold(ready=ready, t=fix.t)

    def _touched_down(self, fix: Fix) -> Iterator[Event]:
        here = Site(*centre_of(fix.x, fix.y))
        if self.mode == "landing":
            yield Grounded(here, self.aborted or "landed")
        elif self.purpose in ("collect", "deposit"):
            yield TouchedDown(self.purpose)
        else:
            yield Parked(here)
            if self.purpose == "charge":
                yield ChargingBegan(self.pad.resource)
            if self.job:
                yield JobEnded(self.job, self.token, self.aborted or "delivered")

    def _in_the_air(self, fix: Fix, looks: bool) -> Iterator[Event]:
        course, wants = self.course, self.announced
        if course is None or self.mode == "down":
            return
        if looks and self.mode != "landing" and (yield from self._must_turn(fix)):
            return
        if looks and self._does_not_obey(fix, course):
            yield replace(course, why="once more")
            return
        if self.mode == "landing":
            return
        if self.purpose == "astray":
            yield from self._go_home()
            return
        if self.holds_until_t:
            if fix.t > self.holds_until_t:
                yield WayClear()
                yield CourseSet(course.mode, course.x, course.y, course.z, course.speed, "goes on")
                if wants is not None:
                    yield replace(wants, begins_t=fix.t + ANNOUNCE_S)
            return
        if wants is not None:
            if fix.t >= wants.begins_t and math.hypot(fix.x - wants.x, fix.y - wants.y) < NEAR_M:
                yield CourseSet(wants.mode, wants.x, wants.y, wants.z, CRUISE_M_S, "as announced")
        elif self.mode == "rising":
            if abs(fix.z - course.z) < NEAR_HEIGHT_M:
                yield from self._at_level(fix)
        elif self.mode in ("flying", "leaving") and math.hypot(fix.x - course.x, fix.y - course.y) < NEAR_M:
            yield from self._at_point(fix)

    def _does_not_obey(self, fix: Fix, course: CourseSet) -> bool:
        """Whether it stands still although it should move: an order that the flight controller did not get."""
        if self.mode not in MOVING or self.holds_until_t or self.announced is not None:
            return False
        stands = abs(fix.vx) + abs(fix.vy) + abs(fix.vz) < HOVERS_M_S
        off_m = math.hypot(fix.x - course.x, fix.y - course.y) + abs(fix.z - course.z)
        return stands and off_m > 2 * NEAR_M and fix.t - self.course_t > OBEY_S

    def _at_level(self, fix: Fix) -> Iterator[Event]:
        if self.purpose == "take-off":
            yield Airborne()
            yield CourseSet("ready", self.home.x, self.home.y, HOLD_M, CRUISE_M_S)
        elif fix.z < FLOOR_M:
            yield HeightAnnounced("rising", fix.x, fix.y, self.level_m, fix.t + ANNOUNCE_S)
        elif self.points:
            to = self.points[0]
            yield CourseSet("flying", to.x, to.y, self.level_m, CRUISE_M_S, self.purpose)

    def _at_point(self, fix: Fix) -> Iterator[Event]:
        if self.mode == "leaving":
            yield RouteBlocked(zone="it has left it")
            if self.purpose in OWN_WAY or self.aborted:
                yield from self._go_home()
            else:
                yield CourseSet("above", fix.x, fix.y, self.level_m, CRUISE_M_S, "has left a closed zone")
            return
        if len(self.points) > 1:
            rest = self.points[1:]
            yield RouteSet(self.purpose, rest, self.level_m)
            yield CourseSet("flying", rest[0].x, rest[0].y, self.level_m, CRUISE_M_S, self.purpose)
        elif self.purpose == "route":
            to = self.points[0]
            yield CourseSet("above", to.x, to.y, self.level_m, CRUISE_M_S, "has flown its route")
            yield RouteFlown()
        else:
            to = self.points[0]
            yield CourseSet("above", to.x, to.y, self.level_m, CRUISE_M_S, self.purpose)
            yield HeightAnnounced("sinking", to.x, to.y, 0.0, fix.t + ANNOUNCE_S)

    def _must_turn(self, fix: Fix) -> Generator[Event, None, bool]:
        """What it decides once a second whatever it is doing. Whether it has decided something."""
        if fix.z >= FLOOR_M and self.mode in ("flying", "above", "rising", "sinking"):
            for zone in self._closed_zones(fix.t):
                if inside(zone, fix.x, fix.y, fix.z, fix.t):
                    x, y = way_out(zone, fix.x, fix.y)
                    if self.descends is not None:
                        yield from self._turn_round(f"{zone.name} is closed")
                    yield CourseSet("leaving", x, y, fix.z, CRUISE_M_S, f"leaves {zone.name}")
                    return True
            if self.mode == "flying":
                way = (Site(fix.x, fix.y), *self.points)
                blocked = blocked_by(way, tuple(self._closed_zones(fix.t)), fix.t, self.level_m)
                if blocked and self.purpose in OWN_WAY:
                    yield from self._set_out(self.purpose, self._around(self.points[-1]))
                    return True
                if blocked and self.purpose == "route":
                    x, y = self._stop()
                    yield CourseSet("above", x, y, self.level_m, CRUISE_M_S, f"{blocked} is in its way")
                    yield RouteBlocked(zone=blocked)
                    return True
        if self.aborted or self.purpose in OWN_WAY:
            if fix.battery < CRITICAL and self.mode not in ("sinking", "landing"):
                yield CourseSet("landing", fix.x, fix.y, 0.0, CRUISE_M_S, f"battery at {fix.battery:.0f} %")
                return True
            return False
        home_m = math.hypot(fix.x - self.home.x, fix.y - self.home.y)
        needed = RESERVE_PERCENT / 2 + needed_percent(home_m, self.kg if self.carries else 0.0)
        if fix.battery < needed:
            yield ChargeWanted(pads=self._pads().text)
            yield from self._turn_round(f"battery at {fix.battery:.0f} %, {needed:.0f} % needed for home")
            return True
        if not self.link and fix.t - self.link_t > LINK_S_MAX:
            yield from self._turn_round("no link")
            return True
        return False

    @decide
    def motor_warned(self, event: MotorWarned) -> Events:
        yield event
        if self.mode not in PARKED and not self.aborted:
            yield from self._turn_round(f"motor {event.motor} draws {event.current_a:.0f} A")

    @evolve
    def clear(self, event: WayClear) -> None:
        self.holds_until_t = 0.0

    # ------------------------------------------------------------------ down and up again

    @evolve
    def wants_down(self, event: DescentWanted) -> None:
        self.purpose, self.descends = event.purpose, event.at
        self.asked = cell_name(event.at.x, event.at.y)

    @react
    def claim_cell(self, event: DescentWanted) -> Effects:
        yield self.cell.claim(of=cell_name(event.at.x, event.at.y), for_s=30, wait_s=240, renew=True)

    @decide
    def granted(self, verdict: Granted) -> Events:
        if verdict.claim == "pad":
            waits = self.mode == "parked" and self.wants_pad and not self.job
            if waits or (self.purpose == "home" and self.mode in ("flying", "rising")):
                yield from self._set_out("charge", self._around(self._pad_site(verdict.resource)))
        elif self.descends is not None:
            if self.mode == "above":
                yield CourseSet("flying", self.descends.x, self.descends.y, self.level_m, CRUISE_M_S, self.purpose)
        elif self.mode in PARKED:
            yield WayClear()

    @evolve
    def may_go_down(self, verdict: Granted) -> None:
        if verdict.claim == "cell" and self.descends is not None:
            self.points = (self.descends,)

    @react
    def not_needed(self, verdict: Granted) -> Effects:
        """Gives back what it does not need any more."""
        if verdict.claim == "cell" and self.descends is None and self.mode not in ("down", "sinking", "rising"):
            yield self.cell.release()
        if verdict.claim == "pad" and not self.wants_pad:
            yield self.pad.release()

    @decide
    def not_held(self, verdict: Denied | Lost) -> Events:
        if verdict.claim == "pad":
            if self.wants_pad and self.mode == "parked":
                yield ChargeWanted(pads=self._pads().text)
            elif self.purpose == "charge" and self.mode not in PARKED:
                yield from self._set_out("home", self._around(self.home))
        elif self.mode in ("above", "flying", "sinking") and self.purpose in ("collect", "deposit"):
            if isinstance(verdict, Denied):
                yield from self._turn_round(f"no cell: {verdict.reason}")
            elif self.descends is not None:
                x, y = self._stop()
                yield CourseSet("above", x, y, max(self.z, HOLD_M), CRUISE_M_S, "has lost its cell")
                yield DescentWanted(self.purpose, self.descends)

    @evolve
    def touched_down(self, event: TouchedDown) -> None:
        self.mode = "down"

    @react
    def handle_parcel(self, event: TouchedDown) -> Effects:
        if event.purpose == "collect":
            yield Grip(self.job, self.token)
        else:
            yield Release(self.job, self.token)

    @decide
    def gripped(self, done: Done[Grip]) -> Events:
        if done.action.job == self.job and done.action.token == self.token and not self.carries:
            yield Collected(self.job, self.token)

    @decide
    def released(self, done: Done[Release]) -> Events:
        if done.action.job == self.job and done.action.token == self.token and not self.delivered:
            yield Deposited(self.job, self.token)

    @decide
    def not_gripped(self, failed: Failed[Grip]) -> Events:
        if failed.action.job == self.job and not self.aborted:
            yield from self._turn_round(f"no parcel: {failed.reason}")

    @decide
    def not_released(self, failed: Failed[Release]) -> Events:
        if failed.action.job == self.job and not self.aborted:
            yield DepositRefused(self.job, self.token, failed.reason)
            yield from self._turn_round(f"the box: {failed.reason}")

    @evolve
    def collected(self, event: Collected) -> None:
        self.carries = True
        self.descends = None

    @evolve
    def deposited(self, event: Deposited) -> None:
        self.carries = False
        self.delivered = True
        self.descends = None

    @react
    def report_pick_up(self, event: Collected) -> Effects:
        yield Tell(f"Job/{event.job}", JobPicked(token=event.token, drone=self.id))

    @react
    def report_delivery(self, event: Deposited) -> Effects:
        yield Tell(f"Job/{event.job}", JobDelivered(token=event.token, drone=self.id))

    @evolve
    def parked(self, event: Parked) -> None:
        self.mode = "parked"
        self.x, self.y, self.z = event.at.x, event.at.y, 0.0
        self.course = None
        self.points = ()
        self.descends = None

    @evolve
    def grounded(self, event: Grounded) -> None:
        self.mode = "grounded"
        self.course = None

    @evolve
    def ended(self, event: JobEnded) -> None:
        if (event.job, event.token) != (self.job, self.token):
            return
        self.job, self.token, self.kg = "", 0, 0.0
        self.carries = self.delivered = False
        self.aborted = ""

    @evolve
    def made_safe(self, event: SafeActionTaken) -> None:
        if self.mode not in PARKED:
            self.mode = "landing"
            self.aborted = self.aborted or event.because

    # ------------------------------------------------------------------ charging

    def _pads(self) -> Pool:
        """The pads of its zone."""
        zone = zone_of(self.id)
        return pool(*(f"pad-{zone}-{number}" for number in range(PADS_PER_ZONE)))

    def _pad_site(self, resource: str) -> Site:
        assert self.area is not None
        _, _, name = resource.partition("-")
        zone, _, number = name.rpartition("-")
        return Site(*pad_of(self.area, zone, int(number)))

    @evolve
    def wants_charge(self, event: ChargeWanted) -> None:
        self.wants_pad = True

    @react
    def claim_pad(self, event: ChargeWanted) -> Effects:
        yield self.pad.claim(of=pool(*event.pads.split("|")), for_s=60, wait_s=1800, renew=True)

    @evolve
    def charging(self, event: ChargingBegan) -> None:
        self.mode = "charging"

    @evolve
    def charged(self, event: Charged) -> None:
        self.wants_pad = False

    # ------------------------------------------------------------------ others in the air

    def _closed_zones(self, t: float) -> Iterator[ClosedZone]:
        seen: list[str] = []
        for zones in self.zones.values():
            for zone in zones:
                if zone.name not in seen and closed(zone, t):
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
        if self.z < FLOOR_M:
            if wants is not None:
                yield replace(wants, begins_t=clear_t)
            elif self.mode == "rising" and course.z > FLOOR_M:
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

    @evolve
    def holds_on(self, event: HoldExtended) -> None:
        self.holds_until_t = event.until_t

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
        return old_s >= SHARE_S or is_off(last, fix.x, fix.y, fix.z, fix.t)

    @evolve
    def told_track(self, event: TrackShared) -> None:
        self.shared = event.track

    @react
    def tell_track(self, event: TrackShared) -> Effects:
        if self.area is not None:
            region = region_of(self.id)
            for zone in self.area.zones_near(event.track.x, event.track.y):
                yield Tell(f"Sector/{zone}@{region}", event)

    @evolve
    def told_ready(self, event: ReadyTold) -> None:
        self.ready, self.ready_t = event.ready, event.t

    @react
    def tell_dispatchers(self, event: ReadyTold) -> Effects:
        for dispatcher in (f"Dispatcher/{zone_of(self.id)}.{desk}" for desk in "ab"):
            if event.ready:
                yield Tell(dispatcher, DroneReady(self.id, self.x, self.y, self.battery, self.capacity_kg))
            else:
                yield Tell(dispatcher, DroneBusy(self.id, self.mode))


def point(site: Site) -> tuple[float, float]:
    """A site as a point."""
    return site.x, site.y


def moved_to(fix: Fix) -> Moved:
    """What is kept of a fix."""
    x, y, z, vx, vy, battery = (round(10 * value) for value in (fix.x, fix.y, fix.z, fix.vx, fix.vy, fix.battery))
    return Moved(fix.t, x, y, z, battery, vx, vy)
