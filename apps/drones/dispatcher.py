"""A dispatcher: finds drones for the open jobs of a zone, in batches.

There are two for each zone, on two nodes. Both hear of all jobs and drones of their zone; the one that holds the zone's
desk gives jobs away. It never decides who has a job: it tells the `Job`, which takes the first one and refuses others.
So two that both believe to hold the desk do no harm, and one that is killed leaves nothing behind.

A round asks the solver, as slow work, and what it answers is kept. If it is late or fails, the greedy rule decides. A
pair that was told is left out of the next rounds until more is heard of it: `JobClosed`, `DroneBusy`, or `HOLD_S`.

There are no timers where there is nothing to do. A round is planned when something new may be matched, when a pair was
held for long enough, or when a job has waited so long that the zone beside it is to have it.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import TypeVar

from msgspec import Struct
from msgspec.structs import replace

from apps.drones.area import Area, zone_of
from apps.drones.matching import GREEDY_JOBS_MAX, can_fly, greedy, urgency_s
from apps.drones.messages import (
    AssignJob,
    DeskOpened,
    DroneBusy,
    DroneReady,
    HandOverAsked,
    HandOverJob,
    JobClosed,
    JobOpened,
    Match,
    Matched,
    OpenDesk,
    RoundBegan,
    RoundSkipped,
)
from stigmergy import (
    Agent,
    Claim,
    Denied,
    Effect,
    Effects,
    Event,
    Events,
    Failed,
    Granted,
    Lost,
    Ordered,
    Tell,
    Timer,
    Woken,
    decide,
    evolve,
    field,
    ordered,
    react,
)

ROUND_S = 2.0
"""From one round to the next, unless a drone has fallen silent: its job waits `SOON_S` only."""
SOON_S = 0.2
"""The first round after a pause waits so long for more jobs and drones."""
SOLVER_S = 3.0
"""After this time the greedy rule decides."""
HOLD_S = 10.0
"""A pair that was told is left out for so long if nothing is heard of it."""
OFFERS_MAX = 3
"""A job that was offered so often and says nothing is offered again only when it says that it is open."""
STALE_S = 60.0
"""And is forgotten after so long."""
PATIENCE_S = 15.0
"""A job that has no drone for so long is handed over."""
PATIENCE_S_MAX = 240.0
JOBS_MAX, DRONES_MAX = 500, 500
"""More are not listened to. Both say again that they are there."""
ROUND_JOBS_MAX, ROUND_DRONES_MAX = 150, 200
"""Of one round; a message has 64 KiB. The rest waits for the next one."""
HAND_OVERS_MAX = 50
"""Of one round."""
DESK_S, DESK_WAIT_S = 3.0, 86_400.0
"""When a dispatcher dies the jobs of its zone wait for so long. Renewals come three times as often."""
AGAIN_S = 1.0
"""The pause before the desk is claimed again."""
MOVED_M, CHARGED_PERCENT = 5.0, 2.0
"""A drone that says that it is ready and differs by less says nothing new."""

T = TypeVar("T")


class RoundDue(Timer):
    """Something is to be matched or handed over."""


class SolverLate(Timer):
    """The solver has not answered."""


class ClaimAgain(Timer):
    """The desk is to be claimed again."""


class OpenJob(Struct, frozen=True):
    """A job as a dispatcher knows it."""

    job: JobOpened
    since_s: float
    """Since when it is in this zone."""
    until_s: float = 0.0
    """It is left out until then."""
    offers: int = 0
    """How often it was, and said nothing."""

    @property
    def is_offered(self) -> bool:
        """Whether there is any use in offering it."""
        return self.offers < OFFERS_MAX

    @property
    def patient_until_s(self) -> float:
        """From then on another zone is to have it. The longer it has waited elsewhere, the longer it stays."""
        patience_s = min(max((self.since_s - self.job.since_t) / 2, PATIENCE_S), PATIENCE_S_MAX)
        return max(self.since_s + patience_s, self.until_s)

    def is_stale(self, now_s: float) -> bool:
        """Whether it would have said so by now if it were open."""
        return not self.is_offered and self.until_s + STALE_S < now_s


class ReadyDrone(Struct, frozen=True):
    """A drone as a dispatcher knows it."""

    drone: DroneReady
    until_s: float = 0.0


def desk_of(name: str) -> str:
    """What a dispatcher holds while it gives away the jobs of its zone."""
    return f"desk-{zone_of(name)}"


class Dispatcher(Agent):
    """One of two for a zone."""

    area: Area | None = None
    jobs: Mapping[str, OpenJob] = field(default_factory=dict)
    drones: Mapping[str, ReadyDrone] = field(default_factory=dict)
    desk: Ordered[Claim] = ordered(of=desk_of)
    round: int = 0
    round_s: float = 0.0
    """When the last round began."""
    solving: bool = False
    news: bool = False
    """Something has come since the last round, or was left out of it."""
    hurry: bool = False
    """A drone has fallen silent, and another one has to have its job."""
    next_s: float = 0.0
    """When the next round is due; 0: not at all."""
    planned_s: float = 0.0
    """When that was found out."""
    handed_over: int = 0

    # ------------------------------------------------------------------ the desk

    @decide
    def open_desk(self, command: OpenDesk) -> Events:
        if command.area != self.area:
            yield DeskOpened(area=command.area)

    @evolve
    def desk_opened(self, event: DeskOpened) -> None:
        self.area = event.area

    @react
    def claim_desk(self, event: DeskOpened | Woken[ClaimAgain]) -> Effects:
        yield self.desk.claim(for_s=DESK_S, wait_s=DESK_WAIT_S, renew=True)

    @react
    def begin(self, verdict: Granted) -> Effects:
        if self.next_s:
            yield RoundDue.wake(after_s=max(self.next_s - self.now, SOON_S))

    @react
    def desk_lost(self, verdict: Lost | Denied) -> Effects:
        yield ClaimAgain.wake(after_s=AGAIN_S)

    # ------------------------------------------------------------------ jobs and drones

    @decide
    def job_opened(self, event: JobOpened) -> Events:
        known = self.jobs.get(event.job)
        if known is None:
            if len(self.jobs) < JOBS_MAX and event.zone == zone_of(self.id):
                yield event
        elif (known.job.token, known.job.not_by) != (event.token, event.not_by) or not known.is_offered:
            yield event

    @evolve
    def has_job(self, event: JobOpened) -> None:
        known = self.jobs.get(event.job)
        job = replace(event, why="", silent="")
        if known is not None and known.job.token == event.token:
            self.jobs = {**self.jobs, event.job: replace(known, job=job, offers=0)}
        else:
            self.jobs = {**self.jobs, event.job: OpenJob(job, since_s=self.now)}
        if event.silent in self.drones:
            self.drones = _without(self.drones, event.silent)
        if event.silent:
            self.hurry = True
        self.news = True
        self._plan()

    @decide
    def job_closed(self, event: JobClosed) -> Events:
        known = self.jobs.get(event.job)
        if known is not None and known.job.token <= event.token:
            yield event

    @evolve
    def has_no_job(self, event: JobClosed) -> None:
        self.jobs = _without(self.jobs, event.job)

    @decide
    def drone_ready(self, event: DroneReady) -> Events:
        known = self.drones.get(event.drone)
        if known is None:
            if len(self.drones) < DRONES_MAX:
                yield event
        elif _differ(known.drone, event):
            yield event

    @evolve
    def has_drone(self, event: DroneReady) -> None:
        known = self.drones.get(event.drone)
        # It may have said so before it heard of the job that it was just matched with.
        self.drones = {**self.drones, event.drone: ReadyDrone(event, 0.0 if known is None else known.until_s)}
        self.news = True
        self._plan()

    @decide
    def drone_busy(self, event: DroneBusy) -> Events:
        if event.drone in self.drones:
            yield event

    @evolve
    def has_no_drone(self, event: DroneBusy) -> None:
        self.drones = _without(self.drones, event.drone)

    # ------------------------------------------------------------------ rounds

    @react
    def set_timer(self, event: JobOpened | DroneReady | RoundSkipped) -> Effects:
        yield from self._timer()

    @decide
    def begin_round(self, woken: Woken[RoundDue]) -> Events:
        if not self.desk.held or self.solving:
            return
        jobs, drones = self._free()
        if jobs and drones and (self.news or self._was_held()):
            complete = len(jobs) <= ROUND_JOBS_MAX and len(drones) <= ROUND_DRONES_MAX
            yield RoundBegan(
                round=self.round + 1,
                jobs=min(len(jobs), ROUND_JOBS_MAX),
                drones=min(len(drones), ROUND_DRONES_MAX),
                complete=complete,
            )
        elif overdue := self._overdue(()):
            yield HandOverAsked(jobs=overdue)
        else:
            yield RoundSkipped()

    @evolve
    def round_began(self, event: RoundBegan) -> None:
        self.round, self.round_s = event.round, self.now
        self.solving, self.news, self.hurry, self.next_s = True, not event.complete, False, 0.0
        if any(one.is_stale(self.now) for one in self.jobs.values()):
            self.jobs = {name: one for name, one in self.jobs.items() if not one.is_stale(self.now)}

    @react
    def ask_solver(self, event: RoundBegan) -> Effects:
        jobs, drones = self._free()
        yield Match(
            zone=zone_of(self.id),
            round=event.round,
            jobs=tuple(jobs[: event.jobs]),
            drones=tuple(drones[: event.drones]),
            now_t=self.now,
        )
        yield SolverLate.wake(after_s=SOLVER_S)

    @decide
    def matched(self, event: Matched) -> Events:
        if self.solving and event.round == self.round:
            yield from self._decided(event)

    @decide
    def solver_late(self, woken: Woken[SolverLate]) -> Events:
        if self.solving:
            yield from self._decided(self._greedily())

    @decide
    def solver_failed(self, failed: Failed[Match]) -> Events:
        if self.solving and failed.action.round == self.round:
            yield from self._decided(self._greedily())

    @evolve
    def round_decided(self, event: Matched) -> None:
        if event.by == "greedy" and len(self.jobs) > GREEDY_JOBS_MAX:
            self.news = True  # that rule has not seen them all
        jobs, drones = dict(self.jobs), dict(self.drones)
        for job, drone in event.pairs:
            jobs[job] = replace(jobs[job], until_s=self.now + HOLD_S, offers=jobs[job].offers + 1)
            drones[drone] = replace(drones[drone], until_s=self.now + HOLD_S)
        self.jobs, self.drones, self.solving = jobs, drones, False
        self._plan()

    @react
    def give_away(self, event: Matched) -> Effects:
        zone = zone_of(self.id)
        for job, drone in event.pairs:
            assign = AssignJob(drone=drone, desk=self.desk.token, token=self.jobs[job].job.token, zone=zone)
            yield Tell(f"Job/{job}", assign)
        yield SolverLate.cancel()
        yield from self._timer()

    @evolve
    def asked_hand_over(self, event: HandOverAsked) -> None:
        jobs = dict(self.jobs)
        for job, _, _ in event.jobs:
            known = jobs[job]
            jobs[job] = replace(known, since_s=self.now, until_s=self.now + HOLD_S, offers=known.offers + 1)
        self.jobs = jobs
        self.handed_over += len(event.jobs)
        self.next_s = 0.0
        self._plan()

    @react
    def hand_over(self, event: HandOverAsked) -> Effects:
        for job, token, zone in event.jobs:
            yield Tell(f"Job/{job}", HandOverJob(zone=zone, token=token, desk=self.desk.token, of=zone_of(self.id)))
        yield from self._timer()

    @evolve
    def round_skipped(self, event: RoundSkipped) -> None:
        self.next_s = 0.0
        self._plan()

    # ------------------------------------------------------------------ what several of them do

    def _free(self) -> tuple[list[JobOpened], list[DroneReady]]:
        """What may be matched now: the most urgent jobs first."""
        jobs = [one.job for one in self.jobs.values() if one.is_offered and one.until_s <= self.now]
        jobs.sort(key=lambda job: (-urgency_s(job, self.now), job.job))
        return jobs, [one.drone for _, one in sorted(self.drones.items()) if one.until_s <= self.now]

    def _was_held(self) -> bool:
        """Whether a pair was told and nothing was heard of it: job or drone are there again."""
        held_s = [*(one.until_s for one in self.jobs.values()), *(one.until_s for one in self.drones.values())]
        return any(self.round_s < until_s <= self.now for until_s in held_s)

    def _greedily(self) -> Matched:
        pairs, cost = greedy(*self._free(), self.now)
        return Matched(round=self.round, pairs=pairs, by="greedy", cost=cost)

    def _decided(self, found: Matched) -> Iterator[Event]:
        """What of it still holds; nothing, if the desk is another's by now."""
        pairs: list[tuple[str, str]] = []
        if self.desk.held:
            jobs, drones = self._free()
            by_job, by_drone = {one.job: one for one in jobs}, {one.drone: one for one in drones}
            for name, other in found.pairs:
                job, drone = by_job.get(name), by_drone.get(other)
                if job is not None and drone is not None and can_fly(job, drone):
                    pairs.append((name, other))
        yield Matched(round=self.round, pairs=tuple(pairs), by=found.by, cost=found.cost)
        if self.desk.held and (overdue := self._overdue([job for job, _ in pairs])):
            yield HandOverAsked(jobs=overdue)

    def _overdue(self, taken: Sequence[str]) -> tuple[tuple[str, int, str], ...]:
        """The jobs that another zone is to have, their tokens, and that zone."""
        found: list[tuple[str, int, str]] = []
        for name, one in self.jobs.items():
            if name not in taken and one.is_offered and one.patient_until_s <= self.now:
                zone = self._beside(name, len(found))
                if zone and len(found) < HAND_OVERS_MAX:
                    found.append((name, one.job.token, zone))
        return tuple(found)

    def _beside(self, job: str, more: int = 0) -> str:
        """The zone that is to have a job next: its own, if that is another one, else one beside it after the other."""
        home, here = zone_of(job), zone_of(self.id)
        if home != here:
            return home
        around = [] if self.area is None else self.area.neighbours(here)
        return around[(self.handed_over + more) % len(around)] if around else ""

    def _plan(self) -> None:
        """Finds out when the next round is due. Only for @evolve handlers: it changes the state."""
        if self.solving or self.now < self.next_s <= self._soonest_s():
            return  # it cannot be due earlier
        due_s = self._due_s()
        if due_s and not self.now < self.next_s <= due_s:
            self.next_s, self.planned_s = due_s, self.now

    def _due_s(self) -> float:
        jobs = [one for one in self.jobs.values() if one.is_offered]
        jobs_s, drones_s = [one.until_s for one in jobs], [one.until_s for one in self.drones.values()]
        held_s = [until_s for until_s in (*jobs_s, *drones_s) if until_s > self.now]
        moments: list[float] = []
        if jobs_s and drones_s and self.news:
            moments.append(max(min(jobs_s), min(drones_s)))
        elif jobs_s and drones_s and held_s:
            moments.append(min(held_s))
        if self.area is not None and self.area.neighbours(zone_of(self.id)):
            moments += [one.patient_until_s for one in jobs]
        return max(min(moments), self._soonest_s()) if moments else 0.0

    def _soonest_s(self) -> float:
        return self.now + SOON_S if self.hurry else max(self.now + SOON_S, self.round_s + ROUND_S)

    def _timer(self) -> Iterator[Effect]:
        if self.next_s and self.planned_s == self.now and self.desk.held:
            yield RoundDue.wake(after_s=max(self.next_s - self.now, SOON_S))


def _without(names: Mapping[str, T], name: str) -> dict[str, T]:
    return {known: value for known, value in names.items() if known != name}


def _differ(known: DroneReady, now: DroneReady) -> bool:
    """Whether a drone that is known to be ready says something new."""
    return (
        math.dist((known.x, known.y), (now.x, now.y)) > MOVED_M
        or abs(known.battery - now.battery) > CHARGED_PERCENT
        or known.capacity_kg != now.capacity_kg
    )
