"""What the views say of jobs."""

from __future__ import annotations

from apps.drones.area import Area
from apps.drones.messages import (
    ArmingFailed,
    JobAccepted,
    JobAssigned,
    JobClosing,
    JobDelivered,
    JobEndedFor,
    JobHandedOver,
    JobOpened,
    JobPicked,
    JobPlaced,
    JobReopened,
    Site,
)
from apps.drones.views import Jobs, ZoneLoad
from stigmergy import Event
from stigmergy.testing import given

AREA = Area(columns=4, rows=4, zone_m=3000.0, regions=2)
PICKUP, DROP = Site(3030.0, 3030.0), Site(3330.0, 3030.0)
ZONE = "r1-0101"
D1, D2 = f"{ZONE}-001", f"{ZONE}-002"


def of(name: str, *events: Event) -> list[tuple[str, Event]]:
    return [(f"Job/{ZONE}.{name}", event) for event in events]


def placed() -> JobPlaced:
    return JobPlaced(PICKUP, DROP, 1.5, AREA, deadline_t=9000.0, priority=3)


def opened(name: str, token: int = 1, why: str = "") -> JobOpened:
    return JobOpened(f"{ZONE}.{name}", ZONE, token, PICKUP, DROP, 1.5, 9000.0, 3, why)


def assigned(name: str, drone: str, token: int = 1) -> JobAssigned:
    return JobAssigned(f"{ZONE}.{name}", drone, token, desk=1)


DELIVERED = of(
    "J1",
    placed(),
    ArmingFailed(1, "no answer"),
    opened("J1"),
    JobHandedOver("r1-0001", 1, ZONE),
    assigned("J1", D1),
    JobAccepted(1, D1),
    JobReopened(2, f"{D1} is silent", D1, 5.0),
    opened("J1", 2, f"{D1} is silent"),
    assigned("J1", D2, 2),
    JobAccepted(2, D2),
    JobPicked(2, D2),
    JobDelivered(2, D2),
    JobEndedFor("delivered", f"by {D2}", "picked"),
)


def test_a_row_for_each_job() -> None:
    (row,) = given(*DELIVERED).project(Jobs)
    assert (row.job, row.status, row.drone, row.token) == (f"{ZONE}.J1", "delivered", D2, 2)
    assert (row.zone, row.why, row.reopened, row.priority, row.kg) == ("r1-0001", f"by {D2}", 1, 3, 1.5)
    assert None not in (row.assigned_s, row.picked_s, row.ended_s)
    assert row.deadline_s == 9000.0


def test_a_row_follows_its_job() -> None:
    seen = [given(*DELIVERED[:count]).project(Jobs)[0].status for count in range(1, len(DELIVERED) + 1)]
    waiting = ["arming", "arming", "open", "open", "assigned", "flying"]
    assert seen == [*waiting, "arming", "open", "assigned", "flying", "picked", "picked", "delivered"]
    (closing,) = given(*of("J2", placed(), opened("J2"), JobClosing("cancelled", "no", 2))).project(Jobs)
    assert (closing.status, closing.token, closing.why) == ("closing", 2, "no")


def test_what_dispatchers_keep_is_not_counted() -> None:
    heard = [(f"Dispatcher/{ZONE}.a", opened("J1"))]
    assert given(*heard).project(Jobs) == []
    assert given(*heard).project(ZoneLoad) == []


def test_the_load_of_a_zone_adds_up() -> None:
    log = [
        *DELIVERED,
        *of("J2", placed()),
        *of("J3", placed(), opened("J3"), assigned("J3", D1)),
        *of("J4", placed(), opened("J4"), JobEndedFor("cancelled", "no", "open")),
        *of("J5", placed(), assigned("J5", D1), JobReopened(2, "x", D1), JobEndedFor("given_up", "x", "arming")),
        *of("J6", placed(), assigned("J6", D1), JobAccepted(1, D1), JobClosing("cancelled", "no", 2)),
    ]
    (row,) = given(*log).project(ZoneLoad)
    assert (row.zone, row.open, row.flying) == (ZONE, 1, 2)
    assert (row.delivered, row.cancelled, row.given_up) == (1, 1, 1)
    (row,) = given(*log, *of("J6", JobEndedFor("cancelled", "no", "flying"))).project(ZoneLoad)
    assert (row.open, row.flying, row.cancelled) == (1, 1, 2)
