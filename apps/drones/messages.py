"""What is said in the swarm: commands, events, actions, work. The units are metres, seconds, kilograms, percent.

`t` is the time of the satellites, in seconds: the same for all drones, whatever the clocks of their computers say.
"""

from __future__ import annotations

from msgspec import Struct

from apps.drones.area import Area
from stigmergy import Action, Command, Event, Work, transient, within

# ------------------------------------------------------------------ values


class Site(Struct, frozen=True, array_like=True):
    """A place on the ground, at the centre of a cell."""

    x: float
    y: float


class Track(Struct, frozen=True, array_like=True):
    """Where a drone was at `t`, and where it was going. Others extrapolate it until they hear the next one."""

    t: float
    x: float
    y: float
    z: float
    vx: float
    vy: float
    vz: float
    mode: str
    """As `Drone.mode`. One that is `parked` or `charging` is on the ground."""
    job: str = ""
    token: int = 0
    to_z: float = -1.0
    """The height that it goes to, or will go to if nobody warns it; -1: it does not say."""


class ClosedZone(Struct, frozen=True, array_like=True):
    """Airspace that nobody may be in: a polygon between two heights, from a time to a time."""

    name: str
    corners: tuple[tuple[float, float], ...]
    """At least three, in order, not closed. The polygon may be concave."""
    floor_m: float
    ceiling_m: float
    from_t: float
    until_t: float


# ------------------------------------------------------------------ a drone: its sensors


class Fix(Event, keep=transient):
    """What the flight controller says, twice a second. Never stored: `Moved` is."""

    t: float
    x: float
    y: float
    z: float
    vx: float
    vy: float
    vz: float
    battery: float
    link: bool = True
    """Whether its radio reaches the zone."""
    down: bool = False
    """On the ground, motors off."""


class Moved(Event, keep=within(seconds=1)):
    """Where the drone is, kept once a second: what state, map and audit know of its way. Small numbers on purpose."""

    t: float
    x: int
    y: int
    z: int
    """In decimetres."""
    battery: int
    """In tenths of a percent."""
    vx: int = 0
    vy: int = 0
    """In decimetres a second."""


class MotorWarned(Event):
    """From the airframe of the drone: this motor draws far too much current. Rare, and reason enough to abort."""

    motor: int
    """1 to 4."""
    current_a: float


# ------------------------------------------------------------------ a drone: what it is told


class Commission(Command):
    """Puts a drone into service: where it is at home, what it may carry."""

    area: Area
    home: Site
    capacity_kg: float = 2.5


class TakeJob(Command):
    """Offers a job. The drone refuses what it cannot fly, and is asked again under the same token without harm."""

    job: str
    token: int
    """Counts how often the job was given away; the customer's box takes the parcel of the highest one only."""
    pickup: Site
    drop: Site
    kg: float


class RevokeJob(Command):
    """The job was given to another drone, or cancelled."""

    job: str
    token: int
    because: str


class AskJob(Command):
    """Does the drone still have this job? One whose log was lost does not, and returns it."""

    job: str
    token: int


class Deliver(Command):
    """Begins a run of the workflow `Delivery`."""

    drone: str
    job: str
    token: int
    pickup: Site
    drop: Site
    home: Site


class FlyLeg(Command):
    """Begins a run of the workflow `Leg`: over the country, to above a place."""

    drone: str
    to: Site


class TakeOff(Command):
    """Rise to the floor of the airways, in the own column, for this job."""

    job: str
    token: int


class AskWay(Command):
    """Say where you are and which zones you know to be closed, for the planner."""

    to: Site


class FlyRoute(Command):
    """Fly these points, one after the other, at the level of the way; wait short of the last one."""

    points: tuple[Site, ...]


class Collect(Command):
    """Go down into the cell below, take the parcel, rise again."""

    job: str
    token: int
    pickup: Site


class Deposit(Command):
    """Go down into the cell below, leave the parcel in the box, rise again."""

    job: str
    token: int
    drop: Site


class Park(Command):
    """Go down on the own stand."""


class BringBack(Command):
    """Compensates `Collect`: the parcel stays on board and is handed in at home."""

    job: str
    token: int


class GoHome(Command):
    """Compensates `TakeOff`: fly home and land, whatever the drone is doing for this job."""

    job: str
    token: int


class GroundDrone(Command):
    """An operator wants this drone down: it lands where it is."""

    because: str


# ------------------------------------------------------------------ a drone: what happened


class Commissioned(Event):
    area: Area
    home: Site
    capacity_kg: float


class JobTaken(Event):
    job: str
    token: int
    pickup: Site
    drop: Site
    kg: float


class JobEnded(Event):
    """The drone has nothing more to do with the job."""

    job: str
    token: int
    why: str


class JobDeclined(Event):
    """The drone does not take a job that it was offered."""

    job: str
    token: int
    why: str
    wait_s: float = 0.0
    """No other drone would take it sooner."""


class LinkChanged(Event):
    """Its radio reaches the zone, or does not any more."""

    up: bool
    t: float


class ReadyTold(Event):
    """It has told its dispatchers that it can take a job, or that it cannot."""

    ready: bool
    t: float


class WayAsked(Event):
    start: Site
    to: Site
    zones: tuple[ClosedZone, ...]


class RouteSet(Event):
    """Where it is going, by which points and at which level, and what for."""

    purpose: str
    points: tuple[Site, ...]
    level_m: float


class DescentWanted(Event):
    """It wants to go down there: it claims the cell."""

    purpose: str
    at: Site


class TouchedDown(Event):
    """It is on the ground, at a customer's."""

    purpose: str


class Airborne(Event):
    """It has left the ground and waits in its column, below the airways."""


class RouteBlocked(Event):
    """A closed zone is in the way: the route has to be planned again."""

    zone: str


class RouteFlown(Event):
    """It is above the last point of its route."""


class Collected(Event):
    job: str
    token: int


class Deposited(Event):
    job: str
    token: int


class DepositRefused(Event):
    """The box does not take the parcel: another one was delivered, or is to be."""

    job: str
    token: int
    why: str


class FlightAborted(Event):
    """The drone has decided on board that it does not go on: low battery, no link, an order to land."""

    because: str
    unfit: bool = False
    """Somebody has to fetch it."""


class Parked(Event):
    """It is on the ground, at home or on a pad."""

    at: Site


class Grounded(Event):
    """It is on the ground where it did not want to be; somebody has to fetch it."""

    at: Site
    because: str


class CourseSet(Event):
    """What the drone is flying now: each is one order to the flight controller."""

    mode: str
    x: float
    y: float
    z: float
    speed: float
    why: str = ""


class HeightAnnounced(Event):
    """It is about to climb or to go down above the floor, there, and begins at this time unless it is warned."""

    mode: str
    x: float
    y: float
    z: float
    begins_t: float


class Avoiding(Event):
    """It leaves its level for good, or waits until `clear_t`, because another one comes too close."""

    of: str
    x: float
    y: float
    level_m: float
    holds: bool
    clear_t: float


class HoldExtended(Event):
    """It has to wait longer."""

    until_t: float


class WayClear(Event):
    """It goes on after it has waited for others."""


class TrackShared(Event):
    """What the drone tells the sectors that it is in."""

    drone: str
    track: Track
    zone: str = ""
    """The zone that the drone is in: the sector of that one warns it and misses it, its neighbours only see it."""


class ZonesHeard(Event):
    """What its sector tells a drone: all closed zones there."""

    sector: str
    zones: tuple[ClosedZone, ...]


class TrafficHeard(Event):
    """What its sector tells a drone that has to give way: those that come too close, the next one first."""

    t: float
    others: tuple[tuple[str, Track], ...]


class ColumnTaken(Event):
    """What its sector tells a drone that wants to go down: another one lies there, and holds no claim on the place."""

    by: str


class ChargeWanted(Event):
    """It wants a charging pad."""

    pads: str
    """The names of those that it would fly to, as a pool."""


class ChargingBegan(Event):
    pad: str


class Charged(Event):
    percent: float


# ------------------------------------------------------------------ orders to the flight controller and to boxes


class Steer(Action):
    """Fly straight there, as fast as this, and stay. With z = 0 it touches down and stops its motors."""

    x: float
    y: float
    z: float
    speed: float


class Land(Action):
    """Come down where you are. The aircraft does that alone: a safe action, and being told twice does no harm."""

    reason: str


class Grip(Action):
    """Take the parcel of the job. The drone must be down at the pick-up."""

    job: str
    token: int


class Release(Action):
    """Leave the parcel in the box of the job. The box refuses a token that is not the one it waits for."""

    job: str
    token: int


BOX_FULL = "the box has its parcel"
"""Part of the reason with which a box refuses a token or a parcel after it has taken one."""


class ArmBox(Action):
    """Tells the customer's box, over the ground, which token it is to take. A box never goes back to a lower one."""

    job: str
    token: int
    drop: Site
    pickup: Site
    kg: float = 1.0


# ------------------------------------------------------------------ slow work


class PlanRoute(Work):
    """A way from here to there around the closed zones."""

    drone: str
    start: Site
    to: Site
    zones: tuple[ClosedZone, ...] = ()


class RoutePlanned(Event):
    points: tuple[Site, ...]
    by: str = "direct"


# ------------------------------------------------------------------ sectors and airspace


class Ticked(Event, keep=transient):
    """The time, once a second, from the receiver of a sector's node."""

    t: float


class CloseZone(Command):
    """An authority closes airspace."""

    area: Area
    zone: ClosedZone


class OpenZone(Command):
    """It is open again before its time."""

    name: str


class ZoneClosed(Event):
    area: Area
    zone: ClosedZone


class ZoneOpened(Event):
    name: str


class DroneSilent(Event):
    """A sector has not heard a drone with a job for too long."""

    drone: str
    job: str
    token: int
    last_t: float


# ------------------------------------------------------------------ jobs and dispatchers


class PlaceJob(Command):
    """A customer's order; over HTTP it is POST /v1/agents/Job/{zone}.{name}/PlaceJob."""

    pickup: Site
    drop: Site
    kg: float
    area: Area
    deadline_s: float = 1800.0
    """From now."""
    priority: int = 1
    """1 to 9; 9 is the most urgent."""


class CancelJob(Command):
    because: str = "the customer does not want it any more"


class JobPlaced(Event):
    pickup: Site
    drop: Site
    kg: float
    area: Area
    deadline_t: float
    priority: int


class JobOpened(Event):
    """The job waits for a drone, under this token. Told to the dispatchers of the zone."""

    job: str
    zone: str
    token: int
    pickup: Site
    drop: Site
    kg: float
    deadline_t: float
    priority: int
    why: str = ""
    since_t: float = 0.0
    """Since when it waits under this token, whichever zone it was in."""
    not_by: tuple[str, ...] = ()
    """Drones that have returned it lately: others are to be asked."""
    silent: str = ""
    """The drone that had it and does not answer: it is not ready, whatever it said before."""


class AssignJob(Command):
    """A dispatcher gives the job away. `desk` is the fencing token of its zone's desk: a lower one than the job has
    seen is refused, and so is a job that has been given away."""

    drone: str
    desk: int
    token: int
    zone: str = ""
    """The zone whose desk it is."""


class JobAssigned(Event):
    job: str
    drone: str
    token: int
    desk: int


class JobClosed(Event):
    """Told to the dispatchers: it is not to be given away any more, under this token."""

    job: str
    token: int


class JobAccepted(Event):
    """From the drone: it flies the job."""

    token: int
    drone: str


class JobPicked(Event):
    """From the drone."""

    token: int
    drone: str


class JobDelivered(Event):
    """From the drone."""

    token: int
    drone: str


class JobReturned(Event):
    """From the drone, or from its refusal: it does not fly this job."""

    token: int
    drone: str
    why: str
    wait_s: float = 0.0
    """No other drone would take it sooner."""


class HandOverJob(Command):
    """A dispatcher without a drone for it gives the job to the dispatchers of another zone."""

    zone: str
    token: int
    desk: int
    of: str = ""
    """The zone whose desk it is."""


class JobHandedOver(Event):
    zone: str
    token: int
    was: str = ""
    """The zone that had it."""


class JobReopened(Event):
    """The drone is silent, has refused, or has brought the parcel back: the job waits again, under a new token."""

    token: int
    why: str
    was: str
    silent_t: float = 0.0
    """When the drone was last heard; 0 if it said so itself."""
    wait_s: float = 0.0
    """No other drone would take it sooner."""


class JobEndedFor(Event):
    """How a job ended: delivered, cancelled, given up."""

    how: str
    why: str = ""
    was: str = ""
    """The status of the job until then."""


class JobClosing(Event):
    """The job is to end, and a drone may be on its way with the parcel: the box is told a token that nobody has."""

    how: str
    why: str
    token: int


class BoxArmed(Event):
    """The customer's box knows the token, and the job waits a moment before it is opened again."""

    token: int


class ArmingFailed(Event):
    """The customer's box could not be told the token; it is told again."""

    token: int
    why: str


class OpenDesk(Command):
    """Puts a dispatcher into service."""

    area: Area


class DeskOpened(Event):
    area: Area


class DroneReady(Event):
    """From a drone to the dispatchers of its zone: it can take a job."""

    drone: str
    x: float
    y: float
    battery: float
    capacity_kg: float


class DroneBusy(Event):
    """From a drone to the dispatchers of its zone: it cannot."""

    drone: str
    why: str


class Match(Work):
    """Which drone for which job: a batch of one zone."""

    zone: str
    round: int
    jobs: tuple[JobOpened, ...]
    drones: tuple[DroneReady, ...]
    now_t: float


class Matched(Event):
    """The answer of the solver, kept: job and drone. What is not in it stays open."""

    round: int
    pairs: tuple[tuple[str, str], ...]
    by: str
    cost: float = 0.0


class RoundBegan(Event):
    """The dispatcher has asked the solver, about so many jobs and drones."""

    round: int
    jobs: int
    drones: int
    complete: bool
    """Whether these were all; the others are for the next round."""


class RoundSkipped(Event):
    """There was nothing new to match, and nothing to hand over."""


class HandOverAsked(Event):
    """No drone of this zone has taken these jobs for too long: the dispatchers of another one are to have them."""

    jobs: tuple[tuple[str, int, str], ...]
    """Each with its token and that zone."""
