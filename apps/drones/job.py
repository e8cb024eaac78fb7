"""A job: the single point that gives it away.

    arming     the customer's box is told the token; no drone may have it before
    open       the dispatchers of its zone look for a drone
    assigned   a drone was told, and has not answered yet
    flying     it has accepted
    picked     it has the parcel
    closing    it is to end, and the box is told that it takes no parcel any more
    delivered, cancelled, given_up     the ends

A job is given away once for each token: whoever comes second is refused. When a drone declines, falls silent or takes
too long, the token rises, the box is told, and only then is the job open again. A box takes the highest token only, and
one parcel ever. So a drone that comes back does not deliver again, and `JobDelivered`, under whatever token, is the
end: drones say it after the box has confirmed. Before a job that a drone may have with it is cancelled or given up, the
box is told a token that nobody has. If the box is full then, the job was delivered.

Nothing waits without a timer: for the box, for an answer, for the drone, for a dispatcher that has forgotten it.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping

from apps.drones.area import Area, centre_of, is_reserved, zone_of
from apps.drones.messages import (
    BOX_FULL,
    ArmBox,
    ArmingFailed,
    AskJob,
    AssignJob,
    BoxArmed,
    CancelJob,
    DroneSilent,
    HandOverJob,
    JobAccepted,
    JobAssigned,
    JobClosed,
    JobClosing,
    JobDelivered,
    JobEndedFor,
    JobHandedOver,
    JobOpened,
    JobPicked,
    JobPlaced,
    JobReopened,
    JobReturned,
    PlaceJob,
    RevokeJob,
    Site,
    TakeJob,
)
from stigmergy import (
    Agent,
    Done,
    Effects,
    Event,
    Events,
    Failed,
    Tell,
    Timer,
    Woken,
    decide,
    evolve,
    field,
    react,
    reject,
)

TAKEN_S = 15.0
"""A drone that was told has to answer within this time."""
FLY_S_MAX = 1800.0
"""And to deliver within this time."""
ASK_S = 120.0
"""How often it is asked whether it still has the job: it knows nothing of it if its log was lost."""
GRACE_S = 900.0
"""A job without a drone is given up so long after its deadline."""
REOPENED_MAX = 8
"""After so many drones have set out with it in vain, it is given up."""
RETELL_S = 30.0
"""How often dispatchers hear of an open job again: one that was restarted may know nothing of it."""
RETURNED_S = 120.0
"""A drone that has returned a job is not asked again for so long."""
RETURNED_COUNT = 4
"""Of so many drones that is remembered."""
BACKOFF_S_MAX = 60.0
"""The longest pause between two drones that do not take it, and between two tries to tell the box."""
KG_MAX = 5.0
DEADLINE_S_MAX = 86_400.0
NAME_CHARS_MAX = 48
DESKS = ("a", "b")

WAITING = ("arming", "open")
GIVEN = ("assigned", "flying", "picked")
ENDED = ("delivered", "cancelled", "given_up")


class TellAgain(Timer):
    """The dispatchers are to hear of it again."""


class ArmAgain(Timer):
    """The box is to be told again."""


class OpenAgain(Timer):
    """It may be opened again."""


class NoAnswer(Timer):
    """The drone that was told has not answered."""


class AskAgain(Timer):
    """The drone is to be asked whether it still has it."""


class TooLong(Timer):
    """The drone has had it for too long."""


class DeadlinePassed(Timer):
    """The deadline and the grace are over."""


class Job(Agent):
    """A parcel that is to be flown from here to there."""

    status: str = ""
    why: str = ""
    """Why it waits, or how it ended."""
    area: Area | None = None
    pickup: Site = Site(0.0, 0.0)
    drop: Site = Site(0.0, 0.0)
    kg: float = 0.0
    deadline_t: float = 0.0
    priority: int = 1
    zone: str = ""
    """Whose dispatchers have it."""
    token: int = 0
    drone: str = ""
    """That has it, or had it last."""
    desks: Mapping[str, int] = field(default_factory=dict)
    """The highest number of each zone's desk that has given it away or handed it over."""
    since_t: float = 0.0
    """Since when it is open, or assigned."""
    opens_s: float = 0.0
    """It is not opened again before."""
    reopened: int = 0
    """How often a drone had set out with it in vain."""
    unanswered: int = 0
    """How many drones in a row have not taken it."""
    arm_failures: int = 0
    """How often in a row the box could not be told."""
    returned: tuple[tuple[str, float], ...] = ()
    """The drones that did not deliver it, and when that was said."""
    silent: str = ""
    """The last of them, if it did not say so itself."""
    is_late: bool = False
    """The deadline and the grace are over: it is not opened again."""
    ends: str = ""
    """How it ends once the box knows."""
    was: str = ""
    """Its status before it began to close."""

    # ------------------------------------------------------------------ customers

    @decide
    def place(self, command: PlaceJob) -> Events:
        if self.status:
            reject(f"{self.id} is placed already, and {self.status}")
        if wrong := _wrong(self.id, command):
            reject(wrong)
        yield JobPlaced(
            pickup=command.pickup,
            drop=command.drop,
            kg=command.kg,
            area=command.area,
            deadline_t=self.now + command.deadline_s,
            priority=command.priority,
        )

    @decide
    def cancel(self, command: CancelJob) -> Events:
        if not self.status:
            reject(f"there is no job {self.id}")
        if self.status in ENDED or self.status == "closing":
            reject(f"it is {self.ends or self.status} already: {self.why}")
        if self.status == "picked":
            reject(f"{self.drone} has picked it up and brings it")
        yield from self._end("cancelled", command.because)

    @evolve
    def placed(self, event: JobPlaced) -> None:
        self.area, self.pickup, self.drop, self.kg = event.area, event.pickup, event.drop, event.kg
        self.deadline_t, self.priority = event.deadline_t, event.priority
        self.zone = zone_of(self.id)
        self.token = 1
        self.status, self.why = "arming", "its box is being told"

    @react
    def begin(self, event: JobPlaced) -> Effects:
        yield DeadlinePassed.wake(after_s=event.deadline_t - self.now + GRACE_S)
        yield self._arm()

    # ------------------------------------------------------------------ the box

    @decide
    def armed(self, done: Done[ArmBox]) -> Events:
        if done.action.token != self.token:
            return
        if self.status == "closing":
            yield JobEndedFor(how=self.ends, why=self.why, was=self.was)
        elif self.status == "arming" and self.opens_s > self.now:
            yield BoxArmed(token=self.token)
        elif self.status == "arming":
            yield self._opened(self.now, self.silent)

    @decide
    def not_armed(self, failed: Failed[ArmBox]) -> Events:
        if self.status in ("arming", "closing") and failed.action.token == self.token:
            if BOX_FULL in failed.reason:
                yield from self._delivered("the box says so")
            else:
                yield ArmingFailed(token=self.token, why=failed.reason)

    @evolve
    def arming_failed(self, event: ArmingFailed) -> None:
        self.arm_failures += 1
        if self.status == "arming":
            self.why = f"its box cannot be told: {event.why}"

    @react
    def wait_for_box(self, event: ArmingFailed) -> Effects:
        yield ArmAgain.wake(after_s=_pause_s(self.arm_failures))

    @react
    def arm_again(self, woken: Woken[ArmAgain]) -> Effects:
        if self.status in ("arming", "closing"):
            yield self._arm()

    @evolve
    def box_armed(self, event: BoxArmed) -> None:
        self.arm_failures = 0

    @react
    def wait_to_open(self, event: BoxArmed) -> Effects:
        yield OpenAgain.wake(after_s=max(self.opens_s - self.now, 0.1))

    @decide
    def open_again(self, woken: Woken[OpenAgain]) -> Events:
        if self.status == "arming":
            yield self._opened(self.now, self.silent)

    # ------------------------------------------------------------------ dispatchers

    @evolve
    def opened(self, event: JobOpened) -> None:
        self.status, self.since_t, self.arm_failures = "open", event.since_t, 0
        self.why = event.why

    @react
    def offer(self, event: JobOpened) -> Effects:
        yield from self._tell(self.zone, event)
        yield TellAgain.wake(after_s=RETELL_S)

    @react
    def offer_again(self, woken: Woken[TellAgain]) -> Effects:
        if self.status == "open":
            yield from self._tell(self.zone, self._opened(self.since_t))
            yield TellAgain.wake(after_s=RETELL_S)

    @decide
    def assign(self, command: AssignJob) -> Events:
        self._check_desk(command.zone, command.desk, command.token)
        yield JobAssigned(job=self.id, drone=command.drone, token=self.token, desk=command.desk)

    @evolve
    def assigned(self, event: JobAssigned) -> None:
        self.status, self.drone, self.since_t = "assigned", event.drone, self.now
        self.why, self.silent = "", ""
        self.desks = {**self.desks, self.zone: event.desk}

    @react
    def tell_drone(self, event: JobAssigned) -> Effects:
        offer = TakeJob(job=self.id, token=event.token, pickup=self.pickup, drop=self.drop, kg=self.kg)
        yield Tell(f"Drone/{event.drone}", offer)
        yield from self._tell(self.zone, JobClosed(job=self.id, token=event.token))
        yield NoAnswer.wake(after_s=TAKEN_S)
        yield TooLong.wake(after_s=FLY_S_MAX)

    @decide
    def hand_over(self, command: HandOverJob) -> Events:
        self._check_desk(command.of, command.desk, command.token)
        home = zone_of(self.id)
        if self.area is None or command.zone not in (home, *self.area.neighbours(home)):
            reject(f"{command.zone} is not beside {home}")
        if command.zone == self.zone:
            reject(f"{command.zone} has it already")
        yield JobHandedOver(zone=command.zone, token=self.token, was=self.zone)

    @evolve
    def handed_over(self, event: JobHandedOver) -> None:
        self.zone = event.zone

    @react
    def offer_there(self, event: JobHandedOver) -> Effects:
        yield from self._tell(event.was, JobClosed(job=self.id, token=event.token))
        yield from self._tell(self.zone, self._opened(self.since_t))
        yield TellAgain.wake(after_s=RETELL_S)

    # ------------------------------------------------------------------ drones

    @decide
    def accepted(self, event: JobAccepted) -> Events:
        if self._has(event) and self.status == "assigned":
            yield event

    @evolve
    def flies(self, event: JobAccepted) -> None:
        self.status, self.unanswered = "flying", 0

    @react
    def ask_later(self, event: JobAccepted) -> Effects:
        yield AskAgain.wake(after_s=ASK_S)

    @react
    def ask(self, woken: Woken[AskAgain]) -> Effects:
        if self.status in ("flying", "picked"):
            yield Tell(f"Drone/{self.drone}", AskJob(job=self.id, token=self.token))
            yield AskAgain.wake(after_s=ASK_S)

    @decide
    def picked(self, event: JobPicked) -> Events:
        if self._has(event) and self.status in ("assigned", "flying"):
            yield event

    @evolve
    def carried(self, event: JobPicked) -> None:
        self.status, self.unanswered = "picked", 0

    @decide
    def delivered(self, event: JobDelivered) -> Events:
        """Under any token: the box has taken it, and takes no other."""
        if self.status in ENDED or not self.status:
            return
        yield event
        yield from self._delivered(f"by {event.drone}")

    @react
    def revoke_other(self, event: JobDelivered) -> Effects:
        if self.status in GIVEN and not self._has(event):
            yield Tell(f"Drone/{self.drone}", RevokeJob(job=self.id, token=self.token, because="it is delivered"))

    @decide
    def returns(self, event: JobReturned) -> Events:
        if not self._has(event):
            return
        if BOX_FULL in event.why:
            yield from self._delivered(f"the box told {event.drone}")
            return
        yield event
        yield from self._take_back(f"{event.drone}: {event.why}", wait_s=event.wait_s)

    @decide
    def is_silent(self, event: DroneSilent) -> Events:
        if self._has(event):
            yield from self._take_back(f"{event.drone} is silent", event.last_t)

    @decide
    def no_answer(self, woken: Woken[NoAnswer]) -> Events:
        if self.status == "assigned":
            yield from self._take_back(f"{self.drone} did not answer", self.since_t)

    @decide
    def takes_too_long(self, woken: Woken[TooLong]) -> Events:
        if self.status in ("flying", "picked"):
            yield from self._take_back(f"{self.drone} takes longer than {FLY_S_MAX / 60:.0f} minutes")

    @decide
    def is_overdue(self, woken: Woken[DeadlinePassed]) -> Events:
        if self.status in WAITING:
            late = f"no drone was found until {GRACE_S / 60:.0f} minutes after its deadline"
            yield from self._end("given_up", f"{late}; {self.why}" if self.why else late)
        elif self.status in GIVEN:
            yield woken

    @evolve
    def no_time_left(self, woken: Woken[DeadlinePassed]) -> None:
        self.is_late = True

    @evolve
    def reopened_again(self, event: JobReopened) -> None:
        if self.status == "assigned":
            self.unanswered += 1
        else:
            self.reopened += 1
        pause_s = _pause_s(self.unanswered) if self.unanswered > 1 else 0.0
        self.opens_s = self.now + max(pause_s, min(event.wait_s, BACKOFF_S_MAX))
        kept = [one for one in self.returned if one[0] != event.was][1 - RETURNED_COUNT :]
        self.returned = (*kept, (event.was, self.now))
        self.silent = event.was if event.silent_t else ""
        self.status, self.token, self.why = "arming", event.token, event.why

    @react
    def arm_anew(self, event: JobReopened) -> Effects:
        yield self._arm()
        yield Tell(f"Drone/{event.was}", RevokeJob(job=self.id, token=event.token - 1, because=event.why))

    # ------------------------------------------------------------------ the end

    @evolve
    def closing(self, event: JobClosing) -> None:
        self.was = self.status
        self.status, self.ends, self.why, self.token = "closing", event.how, event.why, event.token
        self.arm_failures = 0

    @react
    def close_box(self, event: JobClosing) -> Effects:
        yield self._arm()
        if self.was in GIVEN:
            yield Tell(f"Drone/{self.drone}", RevokeJob(job=self.id, token=event.token - 1, because=event.why))

    @evolve
    def ended(self, event: JobEndedFor) -> None:
        self.status, self.why, self.ends = event.how, event.why, ""
        self.was = event.was

    @react
    def say_ended(self, event: JobEndedFor) -> Effects:
        if event.was == "open":
            yield from self._tell(self.zone, JobClosed(job=self.id, token=self.token))

    # ------------------------------------------------------------------ what several of them do

    def _has(self, event: JobAccepted | JobPicked | JobDelivered | JobReturned | DroneSilent) -> bool:
        """Whether this is from the drone that has the job now, and of this time."""
        return self.status in GIVEN and (event.drone, event.token) == (self.drone, self.token)

    def _take_back(self, why: str, silent_t: float = 0.0, wait_s: float = 0.0) -> Iterator[Event]:
        """The drone does not deliver it: another one, under the next token, or the end."""
        if self.status != "assigned" and self.reopened >= REOPENED_MAX:
            yield from self._end("given_up", f"{REOPENED_MAX + 1} drones set out with it in vain; the last one: {why}")
        elif self.is_late:
            yield from self._end("given_up", f"there is no time left for another drone; {why}")
        else:
            yield JobReopened(self.token + 1, why, was=self.drone, silent_t=silent_t, wait_s=wait_s)

    def _end(self, how: str, why: str) -> Iterator[Event]:
        """Ends it; at once if no drone can have a parcel that the box would take."""
        if self.status == "open" or not self.drone:
            yield JobEndedFor(how=how, why=why, was=self.status)
        else:
            yield JobClosing(how=how, why=why, token=self.token + 1)

    def _delivered(self, why: str) -> Iterator[Event]:
        yield JobEndedFor(how="delivered", why=why, was=self.was if self.status == "closing" else self.status)

    def _arm(self) -> ArmBox:
        return ArmBox(job=self.id, token=self.token, drop=self.drop, pickup=self.pickup, kg=self.kg)

    def _opened(self, since_t: float, silent: str = "") -> JobOpened:
        """What dispatchers hear of it."""
        return JobOpened(
            job=self.id,
            zone=self.zone,
            token=self.token,
            pickup=self.pickup,
            drop=self.drop,
            kg=self.kg,
            deadline_t=self.deadline_t,
            priority=self.priority,
            why=self.why if self.token > 1 else "",
            since_t=since_t,
            not_by=tuple(drone for drone, t in self.returned if self.now - t < RETURNED_S),
            silent=silent,
        )

    def _tell(self, zone: str, message: JobOpened | JobClosed) -> Iterator[Tell]:
        for desk in DESKS:
            yield Tell(f"Dispatcher/{zone}.{desk}", message)

    def _check_desk(self, zone: str, desk: int, token: int) -> None:
        if self.status != "open":
            reject(f"it is not open but {self.status or 'unknown'}")
        if token != self.token:
            reject(f"its token is {self.token}, not {token}")
        if zone != self.zone:
            reject(f"the dispatchers of {self.zone} have it, not those of {zone}")
        if desk < self.desks.get(self.zone, 0):
            reject(f"desk {desk} is closed: {self.desks[self.zone]} was open later")


def _pause_s(times: int) -> float:
    """The pause after so many failures in a row."""
    return min(2.0 ** min(times, 10), BACKOFF_S_MAX)


def _wrong(name: str, job: PlaceJob) -> str:
    """Why a job cannot be placed; empty if it can."""
    numbers = (job.pickup.x, job.pickup.y, job.drop.x, job.drop.y, job.kg, job.deadline_s)
    if not all(map(math.isfinite, numbers)):
        return "places, weight and deadline have to be numbers"
    if not 0.0 < job.kg <= KG_MAX:
        return f"{job.kg:g} kg: a parcel weighs up to {KG_MAX:g} kg"
    if not 1 <= job.priority <= 9:
        return f"priority {job.priority}: give 1 to 9"
    if not 0.0 < job.deadline_s <= DEADLINE_S_MAX:
        return f"a deadline in {job.deadline_s:g} s: give up to {DEADLINE_S_MAX:g}"
    if job.pickup == job.drop:
        return "the pick-up is where it is to be brought"
    side = job.area.zone_m
    for what, site in (("pick-up", job.pickup), ("drop", job.drop)):
        if not (0.0 <= site.x < job.area.columns * side and 0.0 <= site.y < job.area.rows * side):
            return f"the {what} {site.x:g}, {site.y:g} is outside the area"
        if math.dist((site.x, site.y), centre_of(site.x, site.y)) > 0.01:
            return f"the {what} {site.x:g}, {site.y:g} is not at the centre of a cell"
        if is_reserved(job.area, site.x, site.y):
            return f"the {what} {site.x:g}, {site.y:g} is among stands and pads"
    zone = job.area.zone_at(job.pickup.x, job.pickup.y)
    if not name.startswith(f"{zone}.") or not len(zone) + 1 < len(name) <= NAME_CHARS_MAX:
        return f"call it {zone}.NAME, after the zone of its pick-up, with {NAME_CHARS_MAX} characters at most"
    return ""
