"""A drone: it decides on board, on what its own sensors and its sector tell it.

It sees the world through `Fix`, twice a second, and acts through a few orders to its flight controller: fly, land,
take and leave a parcel. Everything else is decided here and kept: which jobs it refuses, how it flies the steps of a
delivery, when it gives way, when it turns round, where it charges.

How it moves, and how it gives way, is in `flyer`.

What it does without anybody: gives way, leaves a zone that closes, turns round when the battery asks for it or the link
is lost for long, and lands where it is if its own sensors fall silent. None of that needs a ledger, a job or a link.
"""

from __future__ import annotations

import math
from collections.abc import Generator, Iterator

from msgspec.structs import replace

from apps.drones.airways import (
    ANNOUNCE_S,
    blocked_by,
    closes_on_way,
    inside,
    is_outside,
    way_out,
)
from apps.drones.area import FLOOR_M, cell_name, centre_of, zone_of
from apps.drones.flight import CRUISE_M_S, RESERVE_PERCENT, STOP_S, length_m, needed_percent
from apps.drones.flyer import (
    HOLD_M,
    NEAR_HEIGHT_M,
    NEAR_M,
    OWN_WAY,
    PARKED,
    Flyer,
    moved_to,
)
from apps.drones.messages import (
    Airborne,
    AskJob,
    AskWay,
    BringBack,
    Charged,
    ChargeWanted,
    ChargingBegan,
    ClosedZone,
    Collect,
    Collected,
    ColumnTaken,
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
    Park,
    Parked,
    ReadyTold,
    Release,
    RevokeJob,
    RouteBlocked,
    RouteFlown,
    RouteSet,
    Site,
    TakeJob,
    TakeOff,
    TouchedDown,
    TrackShared,
    WayAsked,
    WayClear,
)
from apps.drones.routing import KEEP_M
from stigmergy import (
    Denied,
    Done,
    Effects,
    Event,
    Events,
    Failed,
    Granted,
    Lost,
    Pool,
    SafeActionTaken,
    Steps,
    Tell,
    WhenStale,
    decide,
    evolve,
    pool,
    react,
    reject,
)

SILENT_S = 15.0
"""So long it flies by its last orders when its own sensors are silent: to where these end, at a level where it sees
conflicts 25 s ahead. A computer that restarts is silent for 4 to 8 s, a log that elects a leader up to 13 s. Whoever
lands blind crosses the levels of others, and comes down where somebody may lie."""
LINK_S_MAX = 20.0
"""So long it goes on by its last orders without a link."""
READY_S = 180.0
CHARGE_BELOW, CHARGED_AT, CRITICAL = 55.0, 92.0, 6.0
STOP_M = STOP_S * CRUISE_M_S / 2
"""It could fly so far, slowly, while it goes down and comes up again."""


class Drone(Flyer):
    """One drone."""

    steps: Steps = Steps()
    capacity_kg: float = 0.0
    pickup: Site = Site(0.0, 0.0)
    drop: Site = Site(0.0, 0.0)
    asked: str = ""
    """The cell that it has claimed and not given back."""
    ready: bool = False
    ready_t: float = 0.0

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
        yield FlightAborted(because=command.because, unfit=True)
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
        way_m = length_m([point(self.home), point(command.pickup), point(command.drop)])
        zone = self._closes_above(self.t, way_m, command.pickup, command.drop)
        if zone is not None:
            why = f"a site of it is in {zone.name}, which is closed"
            yield JobDeclined(command.job, command.token, why, wait_s=zone.until_t - self.t)
            return
        yield JobTaken(command.job, command.token, command.pickup, command.drop, command.kg)
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
        return ""

    def _closes_above(self, t: float, way_m: float, *sites: Site) -> ClosedZone | None:
        """A zone with one of these sites that is closed before it has flown so far and is up there again."""
        for zone in self._zones_left(t):
            is_in = any(not is_outside(zone, site.x, site.y, KEEP_M) for site in sites)
            if is_in and zone.ceiling_m >= FLOOR_M and closes_on_way(zone, t, way_m + STOP_M):
                return zone
        return None

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
        told = JobReturned(token=event.token, drone=self.id, why=event.why, wait_s=event.wait_s)
        yield Tell(f"Job/{event.job}", told)

    @decide
    def revoke(self, command: RevokeJob) -> Events:
        if command.job != self.job or command.token < self.token or self.delivered or self.aborted:
            return
        yield from self._turn_round(f"revoked: {command.because}")

    @decide
    def still_has(self, command: AskJob) -> Events:
        if (command.job, command.token) != (self.job, self.token):
            yield JobDeclined(command.job, command.token, "it does not have it any more")

    # ------------------------------------------------------------------ the steps of a delivery

    @decide
    def take_off(self, command: TakeOff) -> Events:
        if self.mode != "parked" or (command.job, command.token) != (self.job, self.token):
            reject(f"it is {self.mode}, on {self.job or 'no job'}")
        if self.aborted:
            reject(self.aborted)
        yield RouteSet("take-off", (), HOLD_M)
        yield CourseSet("rising", self.home.x, self.home.y, HOLD_M, CRUISE_M_S, "takes off")

    @decide
    def ask_way(self, command: AskWay) -> Events:
        way_m = 2 * math.hypot(command.to.x - self.x, command.to.y - self.y) + STOP_M
        zones = tuple(zone for zone in self._zones_left(self.t) if closes_on_way(zone, self.t, way_m))
        yield WayAsked(Site(self.x, self.y), command.to, zones)

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

    @evolve
    def aborts(self, event: FlightAborted) -> None:
        self.aborted = event.because
        self.unfit = self.unfit or event.unfit
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
        elif fix.down and self.mode in ("ready", "flying", "above", "leaving"):
            # Its node failed and made it safe: no log knows of that.
            yield FlightAborted(because="is down and does not know why")
            yield CourseSet("landing", fix.x, fix.y, 0.0, CRUISE_M_S)
        else:
            yield from self._in_the_air(fix, looks)
        if fix.link and self._is_share_due(fix):
            yield TrackShared(self.id, self._track(fix), self.area.zone_at(fix.x, fix.y))

    def _on_ground(self, fix: Fix) -> Iterator[Event]:
        if not fix.down and fix.z > HOLD_M / 2 and self.mode != "grounded":
            # Its log says that it is on the ground: that log was lost. It knows no better place than home.
            yield moved_to(fix)
            yield RouteSet("astray", (), fix.z)
            yield CourseSet("above", fix.x, fix.y, fix.z, CRUISE_M_S, "is in the air and does not know why")
            return
        if self.mode == "grounded":
            if self._may_rise_again(fix) and self._closes_above(fix.t, 0.0, Site(fix.x, fix.y)) is None:
                yield moved_to(fix)
                yield from self._go_home()
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
        has_nothing_to_do = not self.job and self.purpose not in OWN_WAY and self.mode in ("ready", "above")
        if self.purpose == "astray" or has_nothing_to_do:
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
            if fix.t < wants.begins_t or math.hypot(fix.x - wants.x, fix.y - wants.y) >= NEAR_M:
                return
            if fix.z < FLOOR_M and self._closes_above(fix.t, 0.0, Site(fix.x, fix.y)) is not None:
                yield replace(wants, begins_t=fix.t + ANNOUNCE_S)  # it stays below, where it is nobody's business
            else:
                yield CourseSet(wants.mode, wants.x, wants.y, wants.z, CRUISE_M_S, "as announced")
        elif self.mode == "rising":
            if abs(fix.z - course.z) < NEAR_HEIGHT_M:
                yield from self._at_level(fix)
        elif self.mode in ("flying", "leaving") and math.hypot(fix.x - course.x, fix.y - course.y) < NEAR_M:
            yield from self._at_point(fix)

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
            for zone in self._zones_left(fix.t):
                if inside(zone, fix.x, fix.y, fix.z, fix.t):
                    x, y = way_out(zone, fix.x, fix.y)
                    if self.descends is not None:
                        yield from self._turn_round(f"{zone.name} is closed")
                    yield CourseSet("leaving", x, y, fix.z, CRUISE_M_S, f"leaves {zone.name}")
                    return True
            if self.mode == "flying":
                way = (Site(fix.x, fix.y), *self.points)
                blocked = blocked_by(way, tuple(self._zones_left(fix.t)), fix.t, self.level_m)
                if blocked and self.purpose in OWN_WAY:
                    yield from self._set_out(self.purpose, self._around(self.points[-1]))
                    return True
                if blocked and self.purpose == "route":
                    x, y = self._stop()
                    yield CourseSet("above", x, y, self.level_m, CRUISE_M_S, f"{blocked} is in its way")
                    yield RouteBlocked(zone=blocked)
                    return True
                if blocked:
                    yield from self._turn_round(f"{blocked} is in its way")
                    return True
        if self.descends is not None and self.mode in ("above", "flying"):
            closes = self._closes_above(fix.t, 0.0, self.descends)
            if closes is not None:
                yield from self._turn_round(f"{closes.name} closes")
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
    def is_unfit(self, event: MotorWarned) -> None:
        self.unfit = True

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
        if self.mode == "grounded":
            return
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

    @decide
    def kept_off(self, heard: ColumnTaken) -> Events:
        """Whoever lies there was put down by its safe action, which no claim could keep away."""
        if self.mode not in ("above", "sinking") or self.z < NEAR_M:
            return
        if self.purpose == "charge":
            yield heard
            yield from self._set_out("home", self._around(self.home))
        elif self.purpose in ("collect", "deposit"):
            yield from self._turn_round(f"{heard.by} lies there")

    @evolve
    def gives_up_pad(self, event: ColumnTaken) -> None:
        self.wants_pad = False

    @react
    def give_back_pad(self, event: ColumnTaken) -> Effects:
        yield self.pad.release()

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
    def ended(self, event: JobEnded) -> None:
        if (event.job, event.token) != (self.job, self.token):
            return
        self.job, self.token, self.kg = "", 0, 0.0
        self.carries = self.delivered = False
        self.aborted = ""

    @evolve
    def made_safe(self, event: SafeActionTaken) -> None:
        if self.mode not in PARKED:
            self.mode, self.announced = "landing", None
            self.course = CourseSet("landing", self.x, self.y, 0.0, CRUISE_M_S, event.because)
            self.course_t = self.t
            self.aborted = self.aborted or event.because
        elif self.mode == "grounded":
            self._sees_anew()

    # ------------------------------------------------------------------ charging

    def _pads(self) -> Pool:
        """The pads of its zone."""
        assert self.area is not None
        zone = zone_of(self.id)
        return pool(*(f"pad-{zone}-{number}" for number in range(self.area.pads)))

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
