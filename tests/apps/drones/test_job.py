"""A job: given away once for each token, never stuck, and ended by what the box has."""

from __future__ import annotations

import random
from collections import Counter
from typing import Any

import pytest

from apps.drones.area import CELL_M, Area
from apps.drones.job import (
    ASK_S,
    BACKOFF_S_MAX,
    FLY_S_MAX,
    GRACE_S,
    REOPENED_MAX,
    RETELL_S,
    RETURNED_COUNT,
    RETURNED_S,
    TAKEN_S,
    ArmAgain,
    AskAgain,
    DeadlinePassed,
    Job,
    NoAnswer,
    OpenAgain,
    TellAgain,
    TooLong,
)
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
from stigmergy import Command, Done, Effect, Event, Failed, Tell, Woken
from stigmergy.testing import Scenario, given

AREA = Area(columns=4, rows=4, zone_m=3000.0, regions=2)
NAME = "r1-0101.J7"
ZONE = "r1-0101"
D1, D2 = "r1-0101-001", "r1-0101-002"
PICKUP, DROP = Site(3000.0 + 1.5 * CELL_M, 3000.0 + 0.5 * CELL_M), Site(3000.0 + 20.5 * CELL_M, 3000.0 + 1.5 * CELL_M)
START = 1000.0
DEADLINE_S = 1200.0


def order(**more: Any) -> PlaceJob:
    known: dict[str, Any] = {"pickup": PICKUP, "drop": DROP, "kg": 1.5, "area": AREA, "deadline_s": DEADLINE_S}
    return PlaceJob(**known | more)


def box(token: int) -> ArmBox:
    return ArmBox(job=NAME, token=token, drop=DROP, pickup=PICKUP, kg=1.5)


def opened(token: int = 1, **more: Any) -> JobOpened:
    known: dict[str, Any] = {"zone": ZONE, "deadline_t": START + DEADLINE_S, "priority": 1, "since_t": START}
    return JobOpened(job=NAME, token=token, pickup=PICKUP, drop=DROP, kg=1.5, **known | more)


def told(message: JobOpened | JobClosed, zone: str = ZONE) -> list[Tell]:
    return [Tell(f"Dispatcher/{zone}.{desk}", message) for desk in "ab"]


def placed() -> Scenario[Job]:
    return given(Job, id=NAME, at=START).when(order())


def is_open(token: int = 1) -> Scenario[Job]:
    """Open under its first token."""
    return placed().when(Done(box(token)))


def assigned(drone: str = D1) -> Scenario[Job]:
    return is_open().when(assign(drone))


def flying() -> Scenario[Job]:
    return assigned().when(JobAccepted(token=1, drone=D1))


def assign(drone: str = D1, desk: int = 5, token: int = 1, zone: str = ZONE) -> AssignJob:
    return AssignJob(drone=drone, desk=desk, token=token, zone=zone)


def again(job: Scenario[Job], drone: str) -> Scenario[Job]:
    """It is opened under its next token, and given to this drone."""
    token = job.agent.token
    return job.when(Done(box(token))).when(assign(drone, token=token))


def revoke(drone: str, token: int, because: str) -> Tell:
    return Tell(f"Drone/{drone}", RevokeJob(job=NAME, token=token, because=because))


# ------------------------------------------------------------------ placing


def test_no_drone_hears_of_a_job_before_its_box_knows_the_token() -> None:
    job = placed()
    kept = JobPlaced(PICKUP, DROP, 1.5, AREA, START + DEADLINE_S, 1)
    job.then(kept, DeadlinePassed.wake(after_s=DEADLINE_S + GRACE_S), box(1)).state(status="arming", token=1)
    job.when(assign()).refused("it is not open but arming")
    job.when(Done(box(1))).then(opened(), *told(opened()), TellAgain.wake(after_s=RETELL_S)).state(status="open")


def test_a_box_that_cannot_be_told_is_told_again_with_growing_pauses() -> None:
    job = placed()
    for pause_s in (2, 4, 8, 16, 32, 60, 60):
        job = job.when(Failed(box(1), reason="no answer"))
        job.then(ArmingFailed(token=1, why="no answer"), ArmAgain.wake(after_s=pause_s))
        job.state(status="arming", why="its box cannot be told: no answer")
        job = job.later(seconds=pause_s)
        job.then(box(1))
    job.when(Done(box(1))).state(status="open", why="", arm_failures=0)


@pytest.mark.parametrize(
    ("more", "why"),
    [
        ({"kg": 5.1}, "5.1 kg"),
        ({"kg": 0.0}, "0 kg"),
        ({"kg": float("nan")}, "numbers"),
        ({"priority": 10}, "priority 10"),
        ({"deadline_s": 0.0}, "a deadline in 0 s"),
        ({"deadline_s": float("inf")}, "numbers"),
        ({"drop": PICKUP}, "where it is to be brought"),
        ({"drop": Site(-30.0, 30.0)}, "the drop -30, 30 is outside"),
        ({"drop": Site(DROP.x + 1.0, DROP.y)}, "not at the centre of a cell"),
        ({"drop": Site(4530.0, 4530.0)}, "among stands and pads"),
        ({"pickup": Site(30.0, 30.0)}, "call it r1-0000.NAME"),
    ],
)
def test_what_cannot_be_flown_is_refused_at_once(more: dict[str, Any], why: str) -> None:
    given(Job, id=NAME).when(order(**more)).refused(why).state(status="")


@pytest.mark.parametrize("name", ["J7", "r1-0101", "r1-0101.", "r1-0101." + "x" * 48])
def test_a_job_is_called_after_its_zone(name: str) -> None:
    given(Job, id=name).when(order()).refused("call it r1-0101.NAME")


def test_a_job_is_placed_once() -> None:
    is_open().when(order()).refused("placed already, and open")


# ------------------------------------------------------------------ giving away


def test_the_first_dispatcher_gets_it_and_the_second_is_refused() -> None:
    job = is_open().when(assign(D1))
    job.then(
        JobAssigned(job=NAME, drone=D1, token=1, desk=5),
        Tell(f"Drone/{D1}", TakeJob(NAME, 1, PICKUP, DROP, 1.5)),
        *told(JobClosed(job=NAME, token=1)),
        NoAnswer.wake(after_s=TAKEN_S),
        TooLong.wake(after_s=FLY_S_MAX),
    ).state(status="assigned", drone=D1)
    job.when(assign(D2)).refused("it is not open but assigned").state(drone=D1)
    job.when(assign(D1)).refused("it is not open")


def test_old_tokens_old_desks_and_other_zones_are_refused() -> None:
    job = again(flying().when(JobReturned(token=1, drone=D1, why="no")), D2)
    job = job.when(JobAccepted(token=2, drone=D2), JobReturned(token=2, drone=D2, why="no")).when(Done(box(3)))
    job.state(status="open", token=3)
    job.when(assign(token=2)).refused("its token is 3, not 2")
    job.when(assign(token=3, desk=4)).refused("desk 4 is closed: 5 was open later")
    job.when(assign(token=3, zone="r1-0100")).refused("the dispatchers of r1-0101 have it")
    job.when(assign(token=3, desk=5)).state(status="assigned")


def test_two_dispatchers_never_give_away_one_token_twice() -> None:
    """Whatever the order of all that two desks say, there is one JobAssigned for each token."""
    job = is_open()
    given_away: list[tuple[int, str]] = []
    for token in range(1, 7):
        for desk in (7, 6, 7, 8):
            for drone in (D1, D2):
                job = job.when(assign(drone, desk=desk + token, token=token))
                if job.agent.status == "assigned" and len(given_away) < token:
                    given_away.append((token, job.agent.drone))
        job = job.when(JobReturned(token=token, drone=job.agent.drone, why="no"))
        job = job.when(Done(box(token + 1))).later(seconds=BACKOFF_S_MAX)
    assert given_away == [(token, D1) for token in range(1, 7)]


def test_dispatchers_hear_of_an_open_job_again_and_again() -> None:
    job = is_open().later(seconds=RETELL_S)
    job.then(*told(opened()), TellAgain.wake(after_s=RETELL_S))
    job = job.later(seconds=RETELL_S)
    job.then(*told(opened()), TellAgain.wake(after_s=RETELL_S))
    job.when(assign(), JobAccepted(token=1, drone=D1)).later(seconds=2 * RETELL_S).then_nothing()


def test_a_job_is_handed_over_to_a_zone_beside_its_own_and_back() -> None:
    there = "r1-0001"
    job = is_open().when(HandOverJob(zone=there, token=1, desk=5, of=ZONE))
    handed = JobHandedOver(zone=there, token=1, was=ZONE)
    told_there = told(opened(zone=there), there)
    job.then(handed, *told(JobClosed(NAME, 1)), *told_there, TellAgain.wake(after_s=RETELL_S)).state(zone=there)
    job.when(assign()).refused("the dispatchers of r1-0001 have it, not those of r1-0101")
    job.when(HandOverJob(zone="r1-0000", token=1, desk=1, of=there)).refused("r1-0000 is not beside r1-0101")
    job.when(HandOverJob(zone=there, token=1, desk=1, of=there)).refused("has it already")
    job.later(seconds=RETELL_S).then(*told_there, TellAgain.wake(after_s=RETELL_S))
    job.when(assign(zone=there, desk=1)).state(status="assigned", desks={there: 1})


# ------------------------------------------------------------------ flying


def test_a_delivery() -> None:
    job = flying().state(status="flying")
    job = job.when(JobPicked(token=1, drone=D1)).state(status="picked")
    job = job.when(JobDelivered(token=1, drone=D1))
    job.then(JobDelivered(token=1, drone=D1), JobEndedFor("delivered", f"by {D1}", "picked")).state(status="delivered")
    job.when(JobDelivered(token=1, drone=D1), JobReturned(1, D1, "no"), DroneSilent(D1, NAME, 1, 5.0)).then_nothing()
    job.later(seconds=2 * FLY_S_MAX).then_nothing().state(status="delivered")


def test_a_drone_that_declines_is_left_out_for_a_while() -> None:
    why = f"{D1}: battery at 30 %"
    job = assigned().when(JobReturned(token=1, drone=D1, why="battery at 30 %"))
    job.then(JobReturned(1, D1, "battery at 30 %"), JobReopened(2, why, D1), box(2), revoke(D1, 1, why))
    job.state(status="arming", token=2, reopened=0, unanswered=1)
    job = job.when(Done(box(2)))
    second = opened(2, why=why, not_by=(D1,))
    job.then(second, *told(second), TellAgain.wake(after_s=RETELL_S))
    for _ in range(int(RETURNED_S / RETELL_S) - 1):
        job = job.later(seconds=RETELL_S)
        job.then(*told(opened(2, why=why, not_by=(D1,))), TellAgain.wake(after_s=RETELL_S))
    job.later(seconds=RETELL_S).then(*told(opened(2, why=why)), TellAgain.wake(after_s=RETELL_S))


def test_those_who_decline_one_after_the_other_are_asked_ever_more_slowly() -> None:
    """A site in a closed zone is declined by all of them: that must not use up what is left of the job."""
    job = is_open()
    for token, pause_s in enumerate((0.0, 4.0, 8.0, 16.0, 32.0, 60.0, 60.0), 1):
        drone = f"r1-0101-{token:03d}"
        job = job.when(assign(drone, token=token), JobReturned(token=token, drone=drone, why="closed"))
        job = job.when(Done(box(token + 1)))
        if pause_s:
            job.then(BoxArmed(token=token + 1), OpenAgain.wake(after_s=pause_s)).state(status="arming")
            job = job.later(seconds=pause_s - 0.1).state(status="arming").later(seconds=0.1)
        job.state(status="open")
    assert len(job.agent.returned) == RETURNED_COUNT
    job.when(assign(D2, token=8), JobAccepted(token=8, drone=D2)).state(status="flying", unanswered=0, reopened=0)


def test_a_job_that_nobody_would_take_sooner_waits_for_so_long() -> None:
    for said_s, wait_s in ((25.0, 25.0), (3600.0, BACKOFF_S_MAX)):
        job = assigned().when(JobReturned(token=1, drone=D1, why="closed", wait_s=said_s)).when(Done(box(2)))
        job.then(BoxArmed(token=2), OpenAgain.wake(after_s=wait_s)).state(status="arming")
        job.later(seconds=wait_s).state(status="open")


def test_a_drone_that_does_not_answer_is_taken_for_silent() -> None:
    job = assigned().later(seconds=TAKEN_S - 1).then_nothing().later(seconds=1)
    why = f"{D1} did not answer"
    job.then(JobReopened(2, why, D1, START), box(2), revoke(D1, 1, why))
    job = job.when(Done(box(2)))
    second = opened(2, why=why, not_by=(D1,), silent=D1, since_t=START + TAKEN_S)
    job.then(second, *told(second), TellAgain.wake(after_s=RETELL_S))
    flying().later(seconds=TAKEN_S).then_nothing()


def test_silence_reopens_it_once() -> None:
    silent = DroneSilent(drone=D1, job=NAME, token=1, last_t=990.0)
    job = flying().when(silent)
    why = f"{D1} is silent"
    job.then(JobReopened(2, why, D1, 990.0), box(2), revoke(D1, 1, why)).state(token=2, reopened=1)
    job.when(silent).then_nothing()
    again(job, D2).when(silent).then_nothing().state(status="assigned", drone=D2)


def test_a_drone_is_asked_whether_it_still_has_it() -> None:
    asked = (Tell(f"Drone/{D1}", AskJob(NAME, 1)), AskAgain.wake(after_s=ASK_S))
    job = flying().later(seconds=ASK_S)
    job.then(*asked)
    job = job.when(JobPicked(token=1, drone=D1)).later(seconds=ASK_S)
    job.then(*asked)
    job.when(JobDelivered(token=1, drone=D1)).later(seconds=ASK_S).then_nothing()


def test_a_drone_that_takes_too_long_loses_it() -> None:
    job = flying().later(seconds=FLY_S_MAX)
    job.state(status="arming", token=2, why=f"{D1} takes longer than 30 minutes")
    picked = flying().when(JobPicked(token=1, drone=D1)).later(seconds=FLY_S_MAX)
    picked.state(status="arming", token=2)


def test_what_an_earlier_drone_says_changes_nothing() -> None:
    job = again(flying().when(DroneSilent(D1, NAME, 1, 990.0)), D2)
    for late in (JobAccepted(1, D1), JobPicked(1, D1), JobReturned(1, D1, "revoked")):
        job = job.when(late)
        job.then_nothing().state(status="assigned", drone=D2, token=2)
    job.when(JobAccepted(2, D2)).then(JobAccepted(2, D2), AskAgain.wake(after_s=ASK_S)).state(status="flying")


@pytest.mark.parametrize("met", ["arming", "open", "assigned", "flying", "picked"])
def test_a_delivery_under_an_earlier_token_is_the_delivery(met: str) -> None:
    """The box has taken it: the drone says so only then. The other one is called back."""
    job = flying().when(DroneSilent(D1, NAME, 1, 990.0))
    calls: list[Tell] = []
    if met != "arming":
        job = job.when(Done(box(2)))
    if met == "open":
        calls = told(JobClosed(NAME, 2))
    if met in ("assigned", "flying", "picked"):
        job = job.when(assign(D2, token=2))
        calls = [revoke(D2, 2, "it is delivered")]
    if met in ("flying", "picked"):
        job = job.when(JobAccepted(2, D2))
    if met == "picked":
        job = job.when(JobPicked(2, D2))
    job = job.state(status=met).when(JobDelivered(token=1, drone=D1))
    end = JobEndedFor("delivered", f"by {D1}", met)
    then: list[Event | Effect] = [end, *calls] if met == "open" else [*calls, end]
    job.then(JobDelivered(1, D1), *then).state(status="delivered")
    job.when(
        JobDelivered(2, D2), JobReturned(2, D2, "revoked"), Done(box(2)), Failed(box(2), reason="x")
    ).then_nothing()


def test_a_full_box_says_that_it_was_delivered() -> None:
    """The first drone has died right after it put the parcel in."""
    job = flying().when(DroneSilent(D1, NAME, 1, 990.0))
    job = job.when(Failed(box(2), reason=f"r1: {BOX_FULL}"))
    job.then(JobEndedFor("delivered", "the box says so", "arming")).state(status="delivered")
    other = again(flying().when(DroneSilent(D1, NAME, 1, 990.0)), D2)
    other = other.when(JobReturned(2, D2, f"the box: {BOX_FULL}"))
    other.then(JobEndedFor("delivered", f"the box told {D2}", "assigned"))


# ------------------------------------------------------------------ the end


def test_nine_drones_in_vain_and_it_is_given_up() -> None:
    job = is_open()
    for token in range(1, REOPENED_MAX + 2):
        job = job.when(assign(token=token), JobAccepted(token, D1)).state(status="flying")
        job = job.when(JobReturned(token, D1, "low battery"))
        if token <= REOPENED_MAX:
            job = job.state(status="arming", reopened=token).when(Done(box(token + 1)))
    why = f"9 drones set out with it in vain; the last one: {D1}: low battery"
    closing = REOPENED_MAX + 2
    job.then(
        JobReturned(closing - 1, D1, "low battery"),
        JobClosing("given_up", why, closing),
        box(closing),
        revoke(D1, closing - 1, why),
    )
    job.when(Done(box(closing))).then(JobEndedFor("given_up", why, "flying")).state(status="given_up", why=why)


def test_a_job_that_nobody_takes_is_given_up_after_its_deadline() -> None:
    job = is_open().later(seconds=DEADLINE_S + GRACE_S - 1).state(status="open").later(seconds=2)
    job.state(status="given_up", why="no drone was found until 15 minutes after its deadline")
    stuck = placed().when(Failed(box(1), reason="no answer")).later(seconds=DEADLINE_S + GRACE_S)
    stuck.state(status="given_up")
    assert "its box cannot be told: no answer" in stuck.agent.why


def test_a_job_that_comes_back_after_its_deadline_is_not_opened_again() -> None:
    job = is_open().later(seconds=DEADLINE_S + GRACE_S - 60).when(assign(), JobAccepted(1, D1)).later(seconds=120)
    job = job.state(status="flying").when(JobReturned(1, D1, "low battery"))
    job.state(status="closing", ends="given_up")
    assert "no time left" in job.agent.why
    # On time, it is delivered however late.
    late = is_open().later(seconds=DEADLINE_S + GRACE_S - 60).when(assign(), JobAccepted(1, D1)).later(seconds=120)
    late.when(JobDelivered(1, D1)).state(status="delivered")


def test_a_customer_cancels_what_is_not_picked_up() -> None:
    is_open().when(CancelJob("no")).then(JobEndedFor("cancelled", "no", "open"), *told(JobClosed(NAME, 1))).state(
        status="cancelled"
    )
    placed().when(CancelJob("no")).then(JobEndedFor("cancelled", "no", "arming")).when(Done(box(1))).then_nothing()
    job = flying().when(CancelJob("no"))
    job.then(JobClosing("cancelled", "no", 2), box(2), revoke(D1, 1, "no")).state(status="closing")
    job.when(CancelJob("no")).refused("it is cancelled already")
    job.when(Done(box(2))).then(JobEndedFor("cancelled", "no", "flying")).state(status="cancelled")
    flying().when(JobPicked(1, D1), CancelJob("no")).refused(f"{D1} has picked it up").state(status="picked")
    given(Job, id=NAME).when(CancelJob("no")).refused("there is no job")
    is_open().when(CancelJob("no"), CancelJob("no")).refused("it is cancelled already: no")


def test_a_cancelled_job_that_was_in_the_box_before_is_delivered() -> None:
    job = flying().when(CancelJob("no")).when(Failed(box(2), reason=BOX_FULL))
    job.then(JobEndedFor("delivered", "the box says so", "flying")).state(status="delivered")
    job.when(JobDelivered(1, D1)).then_nothing()
    told_in_time = flying().when(CancelJob("no")).when(JobDelivered(1, D1))
    told_in_time.then(JobDelivered(1, D1), JobEndedFor("delivered", f"by {D1}", "flying"))
    told_in_time.when(Done(box(2))).then_nothing()


def test_a_closing_job_waits_for_its_box_as_well() -> None:
    job = flying().when(CancelJob("no")).when(Failed(box(2), reason="no answer"))
    job.then(ArmingFailed(2, "no answer"), ArmAgain.wake(after_s=2.0)).state(status="closing", why="no")
    job.later(seconds=2).then(box(2)).when(Done(box(2))).state(status="cancelled")


def test_a_job_that_closes_waits_for_the_last_token_and_not_for_an_earlier_one() -> None:
    """The first drone may still bring it under token 1 while the box has not heard of 2."""
    job = flying().when(DroneSilent(D1, NAME, 1, 990.0)).when(CancelJob("no"))
    job.then(JobClosing("cancelled", "no", 3), box(3)).state(status="closing")
    job.when(Done(box(2)), Failed(box(2), reason="no answer")).then_nothing()
    job.when(Done(box(3))).then(JobEndedFor("cancelled", "no", "arming")).state(status="cancelled")


def test_no_timer_of_an_earlier_time_harms() -> None:
    job = again(flying().when(JobReturned(1, D1, "no")), D2)
    job.when(Woken[TooLong](name="TooLong")).then_nothing().state(status="assigned")
    job.when(Woken[OpenAgain](name="OpenAgain")).then_nothing()
    is_open().when(Woken[NoAnswer](name="NoAnswer"), Woken[OpenAgain](name="OpenAgain")).then_nothing()


# ------------------------------------------------------------------ whatever happens


class Courier:
    """A drone in the world around a job: what it has been told, and what it says, in that order."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.token = 0
        self.stage = ""
        self.is_dead = False
        self.said: list[Event] = []


class Around:
    """A job and the world around it, where everything may come late, in any order, or not at all.

    What one party says to another stays in order; nothing else does. The box is the truth.
    """

    def __init__(self, seed: int) -> None:
        self.draw = random.Random(seed)
        self.job = placed()
        self.drones = [Courier(f"{ZONE}-{number:03d}") for number in range(1, 5)]
        self.told: list[tuple[Courier, TakeJob | RevokeJob]] = []
        self.arming: list[ArmBox] = []
        self.armed = 0
        self.full = ""
        self.given: Counter[int] = Counter()
        self.ends: list[str] = []
        self.desk = 1
        self._look()

    def when(self, message: Command | Event) -> None:
        self.job.when(message)
        self._look()

    def pass_time(self, seconds: float) -> None:
        self.job.later(seconds=seconds)
        self._look()

    def _look(self) -> None:
        """Takes up what the job has decided and told."""
        for one in self.job.happened:
            match one:
                case ArmBox():
                    self.arming.append(one)
                case JobAssigned(token=token):
                    self.given[token] += 1
                case JobEndedFor(how=how):
                    self.ends.append(how)
                case Tell(to=to, message=(TakeJob() | RevokeJob()) as message):
                    drone = next(drone for drone in self.drones if to == f"Drone/{drone.name}")
                    self.told.append((drone, message))
                    assert isinstance(message, RevokeJob) or message.token <= self.armed, "the box does not know it yet"
                case _:
                    pass

    def step(self) -> None:
        often = (self.hear, self.fly, self.fly, self.speak, self.arm)
        self.draw.choice((*often, *often, self.assign, self.kill, self.call_silent, self.cancel, self.wait))()

    def assign(self) -> None:
        """By any dispatcher, with what it believes: mostly right."""
        known = self.job.agent
        self.desk += self.draw.random() < 0.1
        token = known.token - (self.draw.random() < 0.2)
        desk = self.desk - (self.draw.random() < 0.1)
        self.when(assign(self.draw.choice(self.drones).name, desk, token, known.zone or ZONE))

    def hear(self) -> None:
        """A drone hears what it was told first."""
        drone = self.draw.choice(self.drones)
        mine = next((one for one in self.told if one[0] is drone), None)
        if mine is None or drone.is_dead:
            return
        self.told.remove(mine)
        message = mine[1]
        if isinstance(message, RevokeJob):
            if message.token == drone.token and drone.stage in ("taken", "picked"):
                drone.said.append(JobReturned(drone.token, drone.name, "revoked"))
                drone.stage = ""
        elif drone.stage or self.draw.random() < 0.3:
            drone.said.append(JobReturned(message.token, drone.name, "not today"))
        else:
            drone.token, drone.stage = message.token, "taken"
            drone.said.append(JobAccepted(message.token, drone.name))

    def fly(self) -> None:
        drone = self.draw.choice(self.drones)
        if drone.is_dead or not drone.stage:
            return
        if self.draw.random() < 0.1:
            drone.said.append(JobReturned(drone.token, drone.name, "low battery"))
            drone.stage = ""
        elif drone.stage == "taken":
            drone.said.append(JobPicked(drone.token, drone.name))
            drone.stage = "picked"
        else:
            if self.full:
                drone.said.append(JobReturned(drone.token, drone.name, f"the box: {BOX_FULL}"))
            elif drone.token != self.armed:
                drone.said.append(JobReturned(drone.token, drone.name, "the box: another token"))
            else:
                self.full = drone.name
                drone.said.append(JobDelivered(drone.token, drone.name))
            drone.stage = ""

    def speak(self) -> None:
        """The job hears what a drone said first; of a dead one too, for it was on its way."""
        drone = self.draw.choice(self.drones)
        if drone.said:
            self.when(drone.said.pop(0))

    def arm(self) -> None:
        if not self.arming:
            return
        order = self.arming.pop(0)
        if self.full:
            self.when(Failed(order, reason=f"refused: {BOX_FULL}"))
        elif self.draw.random() < 0.3:
            self.when(Failed(order, reason="no answer"))
        else:
            self.armed = max(self.armed, order.token)
            self.when(Done(order))

    def kill(self) -> None:
        """With what it has not said yet; a new one takes its place."""
        if self.draw.random() < 0.2:
            drone = self.draw.choice(self.drones)
            if self.draw.random() < 0.5:
                drone.said.clear()
            drone.is_dead, drone.stage = True, ""
            self.drones.append(Courier(f"{ZONE}-{len(self.drones) + 1:03d}"))

    def call_silent(self) -> None:
        """Rightly or not."""
        known = self.job.agent
        if known.drone and self.draw.random() < 0.3:
            token = known.token - (self.draw.random() < 0.3)
            self.when(DroneSilent(known.drone, NAME, token, START))

    def cancel(self) -> None:
        if self.draw.random() < 0.03:
            self.when(CancelJob())

    def wait(self) -> None:
        self.pass_time(self.draw.choice((1.0, 5.0, 20.0, 20.0, 300.0)))

    def finish(self) -> None:
        """No more drones come; the box answers. Then the job has to end by itself."""
        for drone in self.drones:
            drone.is_dead = True
            while drone.said:
                self.when(drone.said.pop(0))
        for _ in range(200):
            while self.arming:
                self.arm()
            if self.ends:
                return
            self.pass_time(60.0)


@pytest.mark.parametrize("seed", range(40))
def test_whatever_happens_a_job_is_given_away_once_and_ends_once_as_its_box_says(seed: int) -> None:
    around = Around(seed)
    for _ in range(150):
        around.step()
        if around.ends and around.draw.random() < 0.1:
            break
    around.finish()
    assert max(around.given.values(), default=1) == 1
    assert len(around.ends) == 1, "it is stuck" if not around.ends else around.ends
    assert (around.ends == ["delivered"]) == bool(around.full)
    assert around.job.agent.status == around.ends[0]
