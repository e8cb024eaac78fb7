"""What is asked about all jobs: where each of them stands, and how much there is to do in each zone.

Both are folded from the events of jobs alone. Dispatchers keep some of the same events, so handlers look at whose an
event is. A job is counted in the zone of its pick-up, whichever dispatchers have it.
"""

from __future__ import annotations

from typing import Any

from apps.drones.area import zone_of
from apps.drones.messages import (
    ArmingFailed,
    JobAccepted,
    JobAssigned,
    JobClosing,
    JobEndedFor,
    JobHandedOver,
    JobOpened,
    JobPicked,
    JobPlaced,
    JobReopened,
)
from stigmergy import Key, Origin, View, project


def job_of(_: Any, origin: Origin) -> str | None:
    """The job that an event is of."""
    return origin.id if origin.agent.startswith("Job/") else None


def zone_of_job(_: Any, origin: Origin) -> str | None:
    """The zone in which the parcel of a job is picked up."""
    return zone_of(origin.id) if origin.agent.startswith("Job/") else None


class Jobs(View):
    """A row for each job that was placed."""

    job: Key[str]
    status: str = ""
    drone: str = ""
    """That has it, or had it last."""
    token: int = 0
    zone: str = ""
    """Whose dispatchers have it."""
    why: str = ""
    kg: float = 0.0
    priority: int = 0
    reopened: int = 0
    placed_s: float = 0.0
    deadline_s: float = 0.0
    assigned_s: float | None = None
    """For the last time."""
    picked_s: float | None = None
    ended_s: float | None = None

    @project(key=job_of)
    def placed(self, event: JobPlaced, origin: Origin) -> None:
        self.status, self.token, self.zone = "arming", 1, zone_of(origin.id)
        self.kg, self.priority = event.kg, event.priority
        self.placed_s, self.deadline_s = origin.time, event.deadline_t

    @project(key=job_of)
    def not_armed(self, event: ArmingFailed) -> None:
        self.why = event.why

    @project(key=job_of)
    def opened(self, event: JobOpened) -> None:
        self.status, self.why = "open", event.why

    @project(key=job_of)
    def handed_over(self, event: JobHandedOver) -> None:
        self.zone = event.zone

    @project(key=job_of)
    def assigned(self, event: JobAssigned, origin: Origin) -> None:
        self.status, self.drone, self.why = "assigned", event.drone, ""
        self.assigned_s = origin.time

    @project(key=job_of)
    def accepted(self, event: JobAccepted) -> None:
        self.status = "flying"

    @project(key=job_of)
    def picked(self, event: JobPicked, origin: Origin) -> None:
        self.status, self.picked_s = "picked", origin.time

    @project(key=job_of)
    def reopened_again(self, event: JobReopened) -> None:
        self.status, self.token, self.why = "arming", event.token, event.why
        self.reopened += 1
        self.picked_s = None

    @project(key=job_of)
    def closing(self, event: JobClosing) -> None:
        self.status, self.token, self.why = "closing", event.token, event.why

    @project(key=job_of)
    def ended(self, event: JobEndedFor, origin: Origin) -> None:
        self.status, self.why, self.ended_s = event.how, event.why, origin.time


class ZoneLoad(View):
    """A row for each zone that ever had a job."""

    zone: Key[str]
    open: int = 0
    """Without a drone."""
    flying: int = 0
    """With one, from the moment it was assigned."""
    delivered: int = 0
    cancelled: int = 0
    given_up: int = 0

    @project(key=zone_of_job)
    def placed(self, event: JobPlaced) -> None:
        self.open += 1

    @project(key=zone_of_job)
    def assigned(self, event: JobAssigned) -> None:
        self.open -= 1
        self.flying += 1

    @project(key=zone_of_job)
    def reopened(self, event: JobReopened) -> None:
        self.open += 1
        self.flying -= 1

    @project(key=zone_of_job)
    def ended(self, event: JobEndedFor) -> None:
        if event.was in ("assigned", "flying", "picked"):
            self.flying -= 1
        else:
            self.open -= 1
        if event.how == "delivered":
            self.delivered += 1
        elif event.how == "cancelled":
            self.cancelled += 1
        else:
            self.given_up += 1


VIEWS = (Jobs, ZoneLoad)
