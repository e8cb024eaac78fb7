"""The fleet: intersections fitted with the cabinets at their roadside, and the traffic between them.

    stigmergy run apps.traffic.city:fleet --bus mqtt://gateway:1883 --node west

Which intersections a node has is said in its configuration: `[fleet] agents = ["Intersection/r0c0", …]`.
"""

from __future__ import annotations

import asyncio
import contextlib
from functools import partial

from apps.traffic.cabinet import Cabinet
from apps.traffic.grid import grid, place_of
from apps.traffic.intersection import SILENCE_S, Intersection
from apps.traffic.messages import AllRed, ClearMonitor, DetectorsHeard, ShowPhase
from apps.traffic.phases import Geometry
from apps.traffic.traffic import Rates, Traffic
from stigmergy import Agent, Event, Feed, Fleet, Order, StigmergyError, Tick

FLEET = "traffic"
HEARTBEAT_S = 1.0
"""How often detectors and lamps are heard."""
ALIVE_S = 0.5
"""How often the monitor hears its controller."""
STEP_S = 0.1
"""How often traffic moves and monitors look at their clocks."""
PAUSE_S = 0.1


class Roadside:
    """All cabinets, by the names of their intersections. They are there before their controllers and after them.

    Each event loop has its own: a simulation begins with new ones for each seed.
    """

    def __init__(self, geometry: Geometry | None = None) -> None:
        self._geometry = geometry or Geometry()
        self._by_loop: dict[asyncio.AbstractEventLoop, dict[str, Cabinet]] = {}

    def __getitem__(self, name: str) -> Cabinet:
        loop = asyncio.get_running_loop()
        cabinets = self._by_loop.get(loop)
        if cabinets is None:
            # Cabinets hold on to their loop, and with it to all of a simulated town: those of towns that are over go.
            self._by_loop = {one: kept for one, kept in self._by_loop.items() if not one.is_closed()}
            cabinets = self._by_loop[loop] = {}
        if name not in cabinets:
            cabinets[name] = Cabinet(name, loop.time, self._geometry)
        return cabinets[name]

    def all(self) -> list[Cabinet]:
        """Those that anybody has asked for."""
        return list(self._by_loop.get(asyncio.get_running_loop(), {}).values())

    def of(self, order: Order[ShowPhase] | Order[AllRed] | Order[ClearMonitor]) -> Cabinet:
        """The one that an order is for."""
        return self[order.agent.partition("/")[2]]

    def detect(self, name: str, event: Event) -> None:
        """A detector of one of them has something to say."""
        self[name].detect(event)

    async def run(self, traffic: Traffic | None = None) -> None:
        """Lets traffic move, and monitors look at their clocks."""
        while True:
            for cabinet in self.all():
                cabinet.tick()
            if traffic is not None:
                traffic.step(asyncio.get_running_loop().time())
            await asyncio.sleep(STEP_S)

    def traffic(self, rows: int, columns: int, seed: int, rates: Rates | None = None) -> Traffic:
        """The vehicles of a grid of them."""
        cabinets = {name: self[name] for name in grid(rows, columns)}
        traffic = Traffic(rows, columns, seed, lambda name: cabinets[name].lamps, self.detect, rates, self._geometry)
        for name, cabinet in cabinets.items():
            cabinet.standing = partial(traffic.standing_at, name)
        return traffic


class Watchman:
    """Runs the clocks of the cabinets where nobody else does."""

    def __init__(self, roadside: Roadside) -> None:
        self._roadside = roadside
        self._task: asyncio.Task[None] | None = None

    async def open(self) -> None:
        """Begins."""
        self._task = asyncio.ensure_future(self._roadside.run())

    async def close(self) -> None:
        """Ends."""
        if self._task is not None:
            self._task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._task


def on_plane(crossing: Intersection) -> tuple[float, float]:
    """Where an intersection is, in metres: columns to the right, rows downwards."""
    row, column = place_of(crossing.id)
    return column * crossing.geometry.block_m, -row * crossing.geometry.block_m


def roads(rows: int, columns: int) -> dict[str, object]:
    """The streets and avenues of a grid, as GeoJSON."""
    block_m = Geometry().block_m
    right, bottom = (columns - 0.5) * block_m, -(rows - 0.5) * block_m
    streets = [[(-block_m / 2, -row * block_m), (right, -row * block_m)] for row in range(rows)]
    avenues = [[(column * block_m, block_m / 2), (column * block_m, bottom)] for column in range(columns)]
    features = [
        {"type": "Feature", "properties": {}, "geometry": {"type": "LineString", "coordinates": line}}
        for line in (*streets, *avenues)
    ]
    return {"type": "FeatureCollection", "features": features}


def make_fleet(roadside: Roadside, kind: type[Intersection] = Intersection, rows: int = 0, columns: int = 0) -> Fleet:
    """The fleet, fitted with these cabinets; with a grid of so many its roads are on the map."""
    agents: list[type[Agent]] = [kind]
    fleet = Fleet(FLEET, agents=agents)
    fleet.map(kind, at=on_plane, colour=lambda crossing: crossing.phase.value, plane="xy", trail_s=0)
    if rows and columns:
        fleet.layer("roads", partial(roads, rows, columns))

    @fleet.sensor(kind, every_s=HEARTBEAT_S)
    async def detectors(name: str) -> DetectorsHeard | None:
        return roadside[name].heard()

    @fleet.sensor(kind)
    async def lamps(feed: Feed) -> None:
        """Says what is shown: at once when it changes, and often."""
        cabinet, first = roadside[feed.agent], True
        while True:
            seen = cabinet.seen(first=first)
            if seen is not None and first:
                first = not await is_kept(feed, seen)
            elif seen is not None:
                feed.push(seen)
            await cabinet.wait_changed(HEARTBEAT_S)

    @fleet.sensor(kind)
    async def vehicles(feed: Feed) -> None:
        """Hands on what detectors have seen, one after the other: none of it may be lost."""
        cabinet = roadside[feed.agent]
        while True:
            event = await cabinet.wait_detected()
            if await is_kept(feed, event):
                cabinet.taken(event)
            else:
                await asyncio.sleep(PAUSE_S)

    @fleet.loop(kind, every_s=ALIVE_S, safe=lambda name: roadside[name].make_safe())
    def alive(tick: Tick[Intersection]) -> None:
        """As long as this turns, the monitor knows that its controller is there. Without it everything is red."""
        roadside[tick.id].alive()

    @fleet.actuator(ShowPhase, tries=2, within_s=1.0)
    async def show(order: Order[ShowPhase]) -> None:
        roadside.of(order).show(order)

    @fleet.actuator(AllRed, tries=20, within_s=SILENCE_S)
    async def all_red(order: Order[AllRed]) -> None:
        roadside.of(order).make_safe(order)

    @fleet.actuator(ClearMonitor)
    async def clear(order: Order[ClearMonitor]) -> None:
        roadside.of(order).clear()

    return fleet


async def is_kept(feed: Feed, event: Event) -> bool:
    """Hands on what must not be lost. If not: stopped, or overloaded, or nobody knows; it is to be said once more."""
    try:
        await feed.send(event)
    except StigmergyError:
        return False
    return True


roadside = Roadside()
fleet = make_fleet(roadside)
fleet.attach(Watchman(roadside))
