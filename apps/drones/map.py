"""What the map shows: drones, jobs, who holds which cell and pad, closed airspace, zones and pads. Pure.

Everything but zones and pads is drawn from the states of agents, so a moment of the past has what was so then.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from typing import Any

from apps.drones.airspace import Airspace
from apps.drones.area import CELL_M, Area, Point, centre_of, pad_of, place_of_cell, place_of_pad
from apps.drones.drone import Drone
from apps.drones.flyer import PARKED
from apps.drones.job import ENDED, GIVEN, Job
from apps.drones.messages import ClosedZone
from stigmergy import Fleet

PAD_M = 30.0
CLOSED = "#c02020"
Features = list[dict[str, Any]]


def fit_map(fleet: Fleet, area: Area | None) -> None:
    """Declares all of it. Without an area there are no zones and pads."""
    fleet.map(Drone, at=where, heading=heading, colour=look, plane="xy", trail_s=20, draw=claims)
    fleet.map(Job, at=next_site, colour=stage, plane="xy", trail_s=0, draw=way)
    fleet.map(Airspace, at=lambda _: None, plane="xy", trail_s=0, draw=closed_zones)
    fleet.layer("zones", _collection(area, zones))
    fleet.layer("pads", _collection(area, pads))


# ---------------------------------------------------------------------- agents


def where(drone: Drone) -> Point | None:
    """Its place on the map."""
    return None if drone.area is None else (drone.x, drone.y)


def heading(drone: Drone) -> float:
    """Where it flies, in degrees from north."""
    track = drone.shared
    return 0.0 if track is None else math.degrees(math.atan2(track.vx, track.vy)) % 360


def look(drone: Drone) -> str:
    """What it does, in the words of who watches."""
    if drone.mode in ("landing", "grounded"):
        return "emergency"
    if drone.mode == "charging":
        return "charging"
    if drone.mode in PARKED:
        return "low battery" if drone.wants_pad else "parked"
    if drone.carries:
        return "carrying"
    return "to pick-up" if drone.job and not (drone.delivered or drone.aborted) else "homeward"


def claims(drone: Drone) -> Features:
    """The cell and the pad that it holds, and the cell that it waits for."""
    found: Features = []
    if drone.cell.until_ns:
        place = place_of_cell(drone.cell.resource)
        found.append(_feature(f"{drone.cell.resource} held by {drone.id}", "Polygon", [_square(place, CELL_M)]))
    elif drone.descends is not None:
        place = centre_of(drone.descends.x, drone.descends.y)
        found.append(_feature(f"{drone.id} waits for {drone.asked}", "LineString", _square(place, CELL_M)))
    if drone.pad.until_ns and drone.area is not None:
        place = place_of_pad(drone.area, drone.pad.resource)
        found.append(_feature(f"{drone.pad.resource} held by {drone.id}", "Polygon", [_square(place, PAD_M)]))
    return found


def next_site(job: Job) -> Point | None:
    """Where a drone has to go for it next."""
    if not job.status or job.status in ENDED:
        return None
    site = job.drop if job.status == "picked" else job.pickup
    return site.x, site.y


def stage(job: Job) -> str:
    """How far it is."""
    if job.is_late:
        return "job late"
    if job.status == "picked":
        return "job carried"
    return "job assigned" if job.status in ("assigned", "flying") else "job open"


def way(job: Job) -> Features:
    """From its pick-up to its drop, with what is to be known of it."""
    if next_site(job) is None:
        return []
    pickup, drop = (job.pickup.x, job.pickup.y), (job.drop.x, job.drop.y)
    who = job.drone if job.status in GIVEN else job.why or job.status
    name = f"{job.id}: {job.kg:g} kg by {_clock(job.deadline_t)}, {who}"
    return [_feature(name, "LineString", [pickup, drop]), _feature("", "Point", drop)]


def closed_zones(airspace: Airspace) -> Features:
    """Where nobody may fly."""
    return [_closed(zone) for zone in airspace.zones]


def _closed(zone: ClosedZone) -> dict[str, Any]:
    heights = f"{zone.floor_m:g} to {zone.ceiling_m:g} m"
    name = f"{zone.name}: {heights}, {_clock(zone.from_t)} to {_clock(zone.until_t)}"
    return _feature(name, "Polygon", [[*zone.corners, zone.corners[0]]], CLOSED)


# ---------------------------------------------------------------------- layers


def zones(area: Area) -> Features:
    """The squares that zones are; each has its name above its lower border."""
    right, top, side = area.columns * area.zone_m, area.rows * area.zone_m, area.zone_m
    lines = [[(column * side, 0.0), (column * side, top)] for column in range(area.columns + 1)]
    found = [_feature("", "LineString", line) for line in [*lines, [(0.0, top), (right, top)]]]
    for zone in area.zones():
        x, y = area.corner(zone)
        found.append(_feature(zone, "LineString", [(x, y), (x + side / 2, y), (x + side, y)]))
    return found


def pads(area: Area) -> Features:
    """The charging pads."""
    return [
        _feature(f"pad-{zone}-{number}", "Polygon", [_square(pad_of(area, zone, number), PAD_M)])
        for zone in area.zones()
        for number in range(area.pads)
    ]


def _collection(area: Area | None, made: Callable[[Area], Features]) -> Callable[[], dict[str, Any]]:
    found = {"type": "FeatureCollection", "features": [] if area is None else made(area)}
    return lambda: found


def _square(middle: Point, side_m: float) -> list[Point]:
    (x, y), half = middle, side_m / 2
    return [
        (x - half, y - half),
        (x + half, y - half),
        (x + half, y + half),
        (x - half, y + half),
        (x - half, y - half),
    ]


def _feature(name: str, kind: str, coordinates: Any, colour: str = "") -> dict[str, Any]:
    properties = {"name": name, "colour": colour} if colour else {"name": name}
    return {"type": "Feature", "properties": properties, "geometry": {"type": kind, "coordinates": coordinates}}


def _clock(t: float) -> str:
    return time.strftime("%H:%M:%S", time.gmtime(t))
