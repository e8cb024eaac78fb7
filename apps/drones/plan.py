"""How large a swarm is, and what its customers want: area, drones and jobs, all from one number and one seed. Pure."""

from __future__ import annotations

import math
import random
from collections.abc import Iterator
from pathlib import Path

import msgspec
from msgspec import Struct

from apps.drones.area import CELL_M, Area, Point, centre_of, is_reserved, stand_of, zone_of
from apps.drones.flight import flight_s
from apps.drones.messages import Commission, OpenDesk, PlaceJob, Site

PER_ZONE = 40
STANDS_MIN, STANDS_MAX = 3, 8
"""Stands in a row. A zone has pads beside as many of them."""
AROUND_M = 600.0
"""So wide is the ring around the stands in which customers live."""
BUSY_SHARE = 0.25
"""Of the drones that are to have a job at a time: the others charge, or are there for the peak."""
WAY_M = 3000.0
"""About what a drone flies for a job."""
HEAVY_SHARE, HEAVY_KG = 0.01, 6.0
"""Jobs that no drone can carry: they are to be refused."""
NEIGHBOUR_SHARE = 0.25
"""Jobs whose drop is in a zone next to that of the pick-up."""
FILE = "plan.json"


class Plan(Struct, frozen=True):
    """A swarm: what all processes of a run know of it before they begin."""

    area: Area
    names: tuple[str, ...]
    seed: int
    start_t: float

    def save(self, folder: Path) -> None:
        """For the other processes."""
        (folder / FILE).write_bytes(msgspec.json.encode(self))

    def zones(self) -> list[str]:
        """The zones that have drones."""
        return list(dict.fromkeys(map(zone_of, self.names)))

    def commissions(self, prefix: str = "") -> Iterator[tuple[str, Commission]]:
        """What puts the drones whose names begin so into service."""
        for name in self.names:
            if name.startswith(prefix):
                yield f"Drone/{name}", Commission(area=self.area, home=Site(*home_of(self.area, name)))

    def desks(self, letters: str = "ab") -> Iterator[tuple[str, OpenDesk]]:
        """What puts the dispatchers into service: those called so, in each zone."""
        for zone in self.zones():
            for letter in letters:
                yield f"Dispatcher/{zone}.{letter}", OpenDesk(area=self.area)

    def jobs_per_s(self, share: float = BUSY_SHARE) -> float:
        """So many jobs keep this share of the drones busy."""
        return share * len(self.names) / flight_s(WAY_M, stops=2)


def load_plan(folder: Path) -> Plan:
    """What `save` has written."""
    return msgspec.json.decode((folder / FILE).read_bytes(), type=Plan)


def make_plan(drones: int, seed: int, start_t: float, regions: int = 2, around_m: float = AROUND_M) -> Plan:
    """A plan for so many drones. Customers live in a ring of this width around the stands of a zone."""
    zones = max(regions, math.ceil(drones / PER_ZONE))
    columns = regions * math.ceil(math.sqrt(zones) / regions)
    rows = math.ceil(zones / columns)
    stands = min(max(math.ceil(math.sqrt(drones / (columns * rows))), STANDS_MIN), STANDS_MAX)
    zone_m = 2 * ((stands + 1) * CELL_M + around_m)
    area = Area(columns, rows, zone_m, regions, stands)
    names = area.zones()
    return Plan(area, tuple(f"{names[i % len(names)]}-{i // len(names):03d}" for i in range(drones)), seed, start_t)


def home_of(area: Area, name: str) -> Point:
    """The stand of a drone."""
    return stand_of(area, zone_of(name), int(name.rpartition("-")[2]))


class Customers:
    """What customers order, one job after the other; the same seed gives the same jobs."""

    def __init__(self, plan: Plan) -> None:
        self._area = plan.area
        self._zones = plan.zones()
        self._chance = random.Random(plan.seed)
        self._count = 0

    def next_job(self) -> tuple[str, PlaceJob]:
        """The name of a job, without its kind, and the command that places it."""
        chance, area = self._chance, self._area
        self._count += 1
        zone = chance.choice(self._zones)
        to = chance.choice(area.neighbours(zone)) if chance.random() < NEIGHBOUR_SHARE else zone
        heavy = chance.random() < HEAVY_SHARE
        pickup = drop = self._site(zone)
        while drop == pickup:
            drop = self._site(to)
        job = PlaceJob(
            pickup=pickup,
            drop=drop,
            kg=HEAVY_KG if heavy else round(chance.uniform(0.2, 2.4), 1),
            area=area,
            deadline_s=float(chance.randrange(900, 1800)),
            priority=chance.randrange(1, 10),
        )
        return f"{zone}.J{self._count}", job

    def _site(self, zone: str) -> Site:
        x, y = self._area.corner(zone)
        while True:
            place = centre_of(
                x + self._chance.random() * self._area.zone_m, y + self._chance.random() * self._area.zone_m
            )
            if not is_reserved(self._area, *place):
                return Site(*place)
