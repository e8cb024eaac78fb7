"""The fleet: all kinds of agents, their workflows and views, and what fits them to a world.

    DRONES_WORLD=tcp://127.0.0.1:7000 stigmergy up apps.drones.fleet:fleet --nodes 3 --workers 2

A node or worker reaches the world through `Controllers`. Where thousands of drones share a process, that process
delivers whole frames of fixes (see node.py); with `sensors` each drone has a sensor of its own, as on an aircraft.
"""

from __future__ import annotations

import math
import os
import re
from pathlib import Path
from typing import Any

import msgspec

from apps.drones import matching, routing
from apps.drones.airspace import Airspace
from apps.drones.area import Area, pad_of
from apps.drones.delivery import delivery, leg
from apps.drones.dispatcher import Dispatcher
from apps.drones.drone import PADS_PER_ZONE, Drone
from apps.drones.job import Job
from apps.drones.link import RemoteWorld
from apps.drones.messages import (
    ArmBox,
    ClosedZone,
    Fix,
    Grip,
    Land,
    Match,
    Matched,
    PlanRoute,
    Release,
    RoutePlanned,
    Steer,
    Ticked,
)
from apps.drones.plan import load_plan
from apps.drones.sector import Sector
from apps.drones.views import VIEWS
from apps.drones.world import Controllers
from stigmergy import Agent, Fleet, Order, Settings

FLEET = "drones"
FIX_S, TICK_S = 0.5, 1.0
SHARDS = 16
"""Of a cluster; a node has one."""
WORLD, FOLDER = "DRONES_WORLD", "DRONES_FOLDER"
"""In the environment: the address of the world, and the folder with the plan of the run."""
_ZONE = re.compile(r"r\d+-\d{4}")
SETTINGS = msgspec.convert(
    {
        "tells": {"kept_all_max": 100_000},
        "effects_in_flight_max": 4096,
        "bus": {"in_flight_max": 1024},
        "write_within_s": 30.0,
    },
    Settings,
)
"""Thousands of drones of one node tell their dispatchers that they are ready, at the same moment."""


def zone_in(address: str) -> str:
    """What keeps agents of one zone together on a cluster: the zone in the address; else the address itself."""
    found = _ZONE.search(address)
    return address if found is None else found.group()


class Layers:
    """What the map shows beneath the drones."""

    def __init__(self, area: Area | None = None) -> None:
        self.area = area
        self.closed: tuple[ClosedZone, ...] = ()
        """Whoever runs the airspace keeps it up to date."""

    def zones(self) -> dict[str, Any]:
        """The squares that zones are."""
        area = self.area
        if area is None:
            return _collection([])
        right, top = area.columns * area.zone_m, area.rows * area.zone_m
        lines = [[(column * area.zone_m, 0.0), (column * area.zone_m, top)] for column in range(area.columns + 1)]
        lines += [[(0.0, row * area.zone_m), (right, row * area.zone_m)] for row in range(area.rows + 1)]
        return _collection([_feature("", "LineString", line) for line in lines])

    def pads(self) -> dict[str, Any]:
        """The charging pads, as small squares."""
        area = self.area
        if area is None:
            return _collection([])
        found = []
        for zone in area.zones():
            for number in range(PADS_PER_ZONE):
                x, y = pad_of(area, zone, number)
                corners = [(x - 15, y - 15), (x + 15, y - 15), (x + 15, y + 15), (x - 15, y + 15), (x - 15, y - 15)]
                found.append(_feature(f"pad-{zone}-{number}", "Polygon", [corners]))
        return _collection(found)

    def closed_zones(self) -> dict[str, Any]:
        """Where nobody may fly now."""
        return _collection([_feature(zone.name, "Polygon", [[*zone.corners, zone.corners[0]]]) for zone in self.closed])


def _feature(name: str, kind: str, coordinates: Any) -> dict[str, Any]:
    return {"type": "Feature", "properties": {"name": name}, "geometry": {"type": kind, "coordinates": coordinates}}


def _collection(features: list[dict[str, Any]]) -> dict[str, Any]:
    return {"type": "FeatureCollection", "features": features}


def where(drone: Drone) -> tuple[float, float] | None:
    """Its place on the map."""
    return None if drone.area is None else (drone.x, drone.y)


def heading(drone: Drone) -> float:
    """Where it flies, in degrees from north."""
    track = drone.shared
    return 0.0 if track is None else math.degrees(math.atan2(track.vx, track.vy)) % 360


def make_fleet(
    controllers: Controllers,
    *,
    sensors: bool = False,
    shards: int = 1,
    layers: Layers | None = None,
    drone: type[Drone] = Drone,
    more: tuple[type[Agent], ...] = (),
) -> Fleet:
    """The fleet, fitted to a world. `more` are compiled kinds that run beside it."""
    layers = layers or Layers()
    fleet = Fleet(
        FLEET,
        agents=[drone, Sector, Airspace, Job, Dispatcher, *more],
        workflows=[delivery, leg],
        views=VIEWS,
        shards=shards,
        shard_by=zone_in if shards > 1 else None,
        compiled=list(more) if more else False,
        settings=SETTINGS,
    )
    fleet.map(drone, at=where, heading=heading, colour=lambda one: one.mode, plane="xy", trail_s=20)
    fleet.layer("zones", layers.zones)
    fleet.layer("pads", layers.pads)
    fleet.layer("closed-zones", layers.closed_zones)
    _fit_actuators(fleet, controllers)
    _fit_workers(fleet)
    if sensors:
        _fit_sensors(fleet, controllers, drone)
    return fleet


def _fit_actuators(fleet: Fleet, controllers: Controllers) -> None:
    async def carry_out(order: Order[Any]) -> None:
        await controllers.order(order.agent.partition("/")[2], order.effect, order.key, order.token)

    @fleet.actuator(Steer, tries=5, within_s=2.0)
    async def steer(order: Order[Steer]) -> None:
        await carry_out(order)

    @fleet.actuator(Land, tries=20, within_s=2.0)
    async def land(order: Order[Land]) -> None:
        await carry_out(order)

    @fleet.actuator(Grip, tries=8, within_s=2.0)
    async def grip(order: Order[Grip]) -> None:
        await carry_out(order)

    @fleet.actuator(Release, tries=8, within_s=2.0)
    async def release(order: Order[Release]) -> None:
        await carry_out(order)

    @fleet.actuator(ArmBox, tries=20, within_s=2.0)
    async def arm_box(order: Order[ArmBox]) -> None:
        await controllers.arm_box(order.effect, order.key)


def _fit_workers(fleet: Fleet) -> None:
    @fleet.worker(Match, within_s=5.0)
    async def match(order: Order[Match]) -> Matched:
        return await matching.match(order)

    @fleet.worker(PlanRoute, within_s=5.0)
    def plan(order: Order[PlanRoute]) -> RoutePlanned:
        """The ground has the better planner; a drone plans itself if the ground does not answer. On a thread."""
        if order.agent.startswith("Place/gateway"):
            return routing.plan_now(order.effect)
        return routing.plan_on_board(order.effect)


def _fit_sensors(fleet: Fleet, controllers: Controllers, drone: type[Drone]) -> None:
    @fleet.sensor(drone, every_s=FIX_S)
    async def fix(name: str) -> Fix | None:
        return controllers.fix(name)

    @fleet.sensor(Sector, every_s=TICK_S)
    async def clock(_: str) -> Ticked:
        return Ticked(t=controllers.now_t())


def find_world() -> RemoteWorld:
    """The world whose address is in the environment."""
    return RemoteWorld(os.environ.get(WORLD, "tcp://127.0.0.1:7000"))


def make_cluster_fleet() -> Fleet:
    """The fleet of a cluster: every worker has its own connection to the world."""
    world, folder = find_world(), os.environ.get(FOLDER)
    layers = Layers(None if folder is None else load_plan(Path(folder)).area)
    made = make_fleet(world, sensors=True, shards=SHARDS, layers=layers)
    made.attach(world)
    return made


fleet = make_cluster_fleet()
