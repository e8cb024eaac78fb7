"""What the map shows of drones, jobs, claims and closed airspace, from their states."""

from __future__ import annotations

from typing import Any

import pytest

from apps.drones.airspace import Airspace
from apps.drones.area import Area, cell_name, centre_of, pad_of, place_of_cell, place_of_pad
from apps.drones.drone import Drone
from apps.drones.job import ENDED, Job
from apps.drones.map import claims, closed_zones, look, next_site, pads, stage, way, zones
from apps.drones.messages import ClosedZone, Site
from stigmergy import Claim

AREA = Area(columns=2, rows=1, zone_m=3000.0, regions=1)
NAME = "r1-0000-003"


def names_of(features: list[dict[str, Any]]) -> list[tuple[str, str]]:
    return [(one["geometry"]["type"], one["properties"]["name"]) for one in features]


def middle_of(feature: dict[str, Any]) -> tuple[float, float]:
    corners = feature["geometry"]["coordinates"]
    ring = corners[0] if feature["geometry"]["type"] == "Polygon" else corners
    return (ring[0][0] + ring[2][0]) / 2, (ring[0][1] + ring[2][1]) / 2


def job(status: str, **fields: Any) -> Job:
    """In this state, with a way from here to there."""
    made = Job(status=status, pickup=Site(90.0, 150.0), drop=Site(690.0, 750.0), kg=1.5, deadline_t=3723.0, **fields)
    made.id = "r1-0000.J1"
    return made


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"status": "arming", "why": "its box is being told"}, ("job open", (90.0, 150.0), "its box is being told")),
        ({"status": "open"}, ("job open", (90.0, 150.0), "open")),
        ({"status": "assigned", "drone": NAME}, ("job assigned", (90.0, 150.0), NAME)),
        ({"status": "flying", "drone": NAME}, ("job assigned", (90.0, 150.0), NAME)),
        ({"status": "picked", "drone": NAME}, ("job carried", (690.0, 750.0), NAME)),
        ({"status": "closing", "drone": NAME, "why": "not needed"}, ("job open", (90.0, 150.0), "not needed")),
        ({"status": "flying", "drone": NAME, "is_late": True}, ("job late", (90.0, 150.0), NAME)),
    ],
)
def test_a_job_is_where_a_drone_has_to_go_next(fields: Any, said: tuple[str, tuple[float, float], str]) -> None:
    one = job(**fields)
    assert (stage(one), next_site(one)) == said[:2]
    line, drop = way(one)
    assert line["properties"]["name"] == f"r1-0000.J1: 1.5 kg by 01:02:03, {said[2]}"
    assert line["geometry"]["coordinates"] == [(90.0, 150.0), (690.0, 750.0)]
    assert drop["geometry"]["coordinates"] == (690.0, 750.0)


@pytest.mark.parametrize("status", ["", *ENDED])
def test_a_job_that_is_not_placed_or_has_ended_is_nowhere(status: str) -> None:
    assert next_site(job(status)) is None
    assert way(job(status)) == []


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"mode": "new"}, "parked"),
        ({"mode": "parked"}, "parked"),
        ({"mode": "parked", "wants_pad": True}, "low battery"),
        ({"mode": "charging", "wants_pad": True}, "charging"),
        ({"mode": "flying", "job": "J"}, "to pick-up"),
        ({"mode": "flying", "job": "J", "carries": True}, "carrying"),
        ({"mode": "flying", "job": "J", "carries": True, "aborted": "no link"}, "carrying"),
        ({"mode": "flying", "job": "J", "delivered": True}, "homeward"),
        ({"mode": "flying", "job": "J", "aborted": "no link"}, "homeward"),
        ({"mode": "flying", "job": ""}, "homeward"),
        ({"mode": "landing", "job": "J", "carries": True}, "emergency"),
        ({"mode": "grounded"}, "emergency"),
    ],
)
def test_how_a_drone_looks(fields: dict[str, Any], said: str) -> None:
    assert look(Drone(**fields)) == said


def test_what_a_drone_holds_and_waits_for() -> None:
    at = Site(*centre_of(1000.0, 2000.0))
    cell = cell_name(at.x, at.y)
    pad = "pad-r1-0100-3"
    drone = Drone(area=AREA, descends=at, asked=cell)
    drone.id = NAME
    assert names_of(claims(drone)) == [("LineString", f"{NAME} waits for {cell}")]
    assert middle_of(claims(drone)[0]) == (at.x, at.y)
    drone.cell = Claim(field="cell", resource=cell, token=1, until_ns=1)
    drone.pad = Claim(field="pad", resource=pad, token=1, until_ns=1)
    assert names_of(claims(drone)) == [("Polygon", f"{cell} held by {NAME}"), ("Polygon", f"{pad} held by {NAME}")]
    assert [middle_of(one) for one in claims(drone)] == [(at.x, at.y), pad_of(AREA, "r1-0100", 3)]
    drone.cell = drone.pad = Claim(field="cell", resource=cell, token=1, until_ns=0)
    drone.descends = None
    assert claims(drone) == []


def test_names_of_cells_and_pads_are_read_again() -> None:
    assert place_of_cell(cell_name(1234.0, 567.0)) == centre_of(1234.0, 567.0)
    assert place_of_pad(AREA, "pad-r1-0100-5") == pad_of(AREA, "r1-0100", 5)


def test_closed_zones_say_how_high_and_when() -> None:
    zone = ClosedZone("Z1", ((0.0, 0.0), (10.0, 0.0), (0.0, 10.0)), 40.0, 120.0, 60.0, 3600.0)
    (feature,) = closed_zones(Airspace(zones=(zone,)))
    assert feature["properties"]["name"] == "Z1: 40 to 120 m, 00:01:00 to 01:00:00"
    assert feature["geometry"]["coordinates"] == [[*zone.corners, zone.corners[0]]]
    assert closed_zones(Airspace()) == []


def test_zones_and_pads_have_their_names() -> None:
    assert [name for _, name in names_of(zones(AREA)) if name] == AREA.zones()
    assert [name for _, name in names_of(pads(AREA))][:2] == ["pad-r1-0000-0", "pad-r1-0000-1"]
