"""The fleet: all kinds of agents, their workflows and views, and what fits them to a world.

    python -m apps.drones --drones 40 --minutes 2 --cluster --by-hand     # flies the world, and says what to type:
    DRONES_WORLD=tcp://127.0.0.1:7000 DRONES_FOLDER=… stigmergy up apps.drones.fleet:fleet --nodes 3 --workers 2 …

A node or worker reaches the world through `Controllers`. Where thousands of drones share a process, that process
delivers whole frames of fixes (see node.py); with `sensors` each drone has a sensor of its own, as on an aircraft.
"""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Any

import msgspec

from apps.drones import matching, routing
from apps.drones.airspace import Airspace
from apps.drones.area import Area
from apps.drones.delivery import delivery, leg
from apps.drones.dispatcher import Dispatcher
from apps.drones.drone import Drone
from apps.drones.job import Job
from apps.drones.link import RemoteWorld
from apps.drones.map import fit_map
from apps.drones.messages import (
    ArmBox,
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


def make_fleet(
    controllers: Controllers,
    *,
    sensors: bool = False,
    shards: int = 1,
    area: Area | None = None,
    more: tuple[type[Agent], ...] = (),
) -> Fleet:
    """The fleet, fitted to a world. `area` is for the map; `more` are compiled kinds that run beside it."""
    fleet = Fleet(
        FLEET,
        agents=[Drone, Sector, Airspace, Job, Dispatcher, *more],
        workflows=[delivery, leg],
        views=VIEWS,
        shards=shards,
        shard_by=zone_in if shards > 1 else None,
        compiled=list(more) if more else False,
        settings=SETTINGS,
    )
    fit_map(fleet, area)
    _fit_actuators(fleet, controllers)
    _fit_workers(fleet)
    if sensors:
        _fit_sensors(fleet, controllers)
    return fleet


def _fit_actuators(fleet: Fleet, controllers: Controllers) -> None:
    async def carry_out(order: Order[Any]) -> None:
        await controllers.order(order.agent.partition("/")[2], order.effect, order.key, order.token)

    for kind, tries in ((Steer, 5), (Land, 20), (Grip, 8), (Release, 8)):
        fleet.actuator(kind, tries=tries, within_s=2.0)(carry_out)

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


def _fit_sensors(fleet: Fleet, controllers: Controllers) -> None:
    @fleet.sensor(Drone, every_s=FIX_S)
    async def fix(name: str) -> Fix | None:
        return controllers.fix(name)

    @fleet.sensor(Sector, every_s=TICK_S)
    async def clock(_: str) -> Ticked:
        return Ticked(t=controllers.now_t())


class NamedWorld(RemoteWorld):
    """The world whose address is in the environment. Without one the fleet can be looked at, and not be run."""

    def __init__(self) -> None:
        self._is_named = WORLD in os.environ
        super().__init__(os.environ.get(WORLD, "tcp://127.0.0.1:7000"))

    async def open(self) -> None:
        """Connects. Raises ValueError where no address is given: nobody would hear what the drones decide.

        It also imports what computes: a worker whose first match had to do that stood still until its lease was over.
        """
        if not self._is_named:
            raise ValueError(
                f"{WORLD} is not set, so there is no world to fly in; "
                "python -m apps.drones --cluster --by-hand starts one, and says what to type"
            )
        matching.load()
        routing.load()
        await super().open()


def make_cluster_fleet() -> Fleet:
    """The fleet of a cluster: every worker has its own connection to the world."""
    area, folder = None, os.environ.get(FOLDER)
    if folder is not None:
        try:
            area = load_plan(Path(folder)).area
        except FileNotFoundError:
            raise ValueError(f"{FOLDER} is {folder}, which has no plan.json; name the folder of the run") from None
    world = NamedWorld()
    made = make_fleet(world, sensors=True, shards=SHARDS, area=area)
    made.attach(world)
    return made


fleet = make_cluster_fleet()
