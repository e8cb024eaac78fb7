"""A fleet whose drones all move, with its page: `python -m rigs.moving_fleet --agents 10000 --listen 127.0.0.1:8091`.

For people who work on the page, and for its benchmark. The drones fly circles above a town, each moves twice a second,
some run low. With `--xy` they drive on a plane instead; with `--plain` they are interpreted instead of compiled. The
journal is in memory unless `--journal` names one.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import math
import random
import sys
import time
from pathlib import Path

import stigmergy as st
from stigmergy.serve.asker import NodeAsker
from stigmergy.serve.listener import read_address
from stigmergy.serve.server import ApiServer, Serving

BATCH = 500
TOWN = (52.52, 13.40)
METRE = 1 / 111_320
"""Degrees of latitude."""


class Moved(st.Event, keep=st.within(seconds=1)):
    """Where a drone is."""

    lat: float
    lon: float
    heading: float
    battery: float


class SetSpeed(st.Command):
    """Fly at this speed."""

    speed: float


class SpeedSet(st.Event):
    """It flies at this speed from now on."""

    speed: float


class Drone(st.Agent):
    """A drone on its circle."""

    lat: float = 0.0
    lon: float = 0.0
    heading: float = 0.0
    battery: float = 100.0
    speed: float = 10.0

    @st.decide
    def set_speed(self, command: SetSpeed) -> st.Events:
        """Refuses what the drone cannot do."""
        if command.speed > 30.0:
            st.reject("30 m/s at most")
        yield SpeedSet(speed=command.speed)

    @st.evolve
    def sped(self, event: SpeedSet) -> None:
        """As ordered."""
        self.speed = event.speed

    @st.evolve
    def moved(self, event: Moved) -> None:
        """As measured."""
        self.lat = event.lat
        self.lon = event.lon
        self.heading = event.heading
        self.battery = event.battery


class Station(st.Agent):
    """A charging station, which stays where it is, and is not compiled."""

    lat: float = 0.0
    lon: float = 0.0

    @st.evolve
    def moved(self, event: Moved) -> None:
        """It was built here."""
        self.lat = event.lat
        self.lon = event.lon


def zones() -> dict[str, object]:
    """Four quarters of the town, as GeoJSON."""
    features = []
    for number, (north, east) in enumerate(((0, 0), (0, 1), (1, 0), (1, 1))):
        south, west = TOWN[0] + (north - 1) * 0.04, TOWN[1] + (east - 1) * 0.06
        ring = [(west, south), (west + 0.06, south), (west + 0.06, south + 0.04), (west, south + 0.04), (west, south)]
        geometry = {"type": "Polygon", "coordinates": [ring]}
        features.append({"type": "Feature", "properties": {"name": f"zone {number + 1}"}, "geometry": geometry})
    return {"type": "FeatureCollection", "features": features}


def make_fleet(*, compiled: bool, xy: bool) -> st.Fleet:
    """The fleet, compiled or not, on the earth or on a plane."""
    fleet = st.Fleet("moving", agents=[Drone, Station], shards=2, compiled=[Drone] if compiled else False)
    if xy:
        fleet.map(Drone, at=lambda d: (d.lon, d.lat), heading=lambda d: d.heading, colour=colour_of, plane="xy")
        fleet.map(Station, at=lambda s: (s.lon, s.lat), plane="xy", trail_s=0)
    else:
        fleet.map(Drone, at=lambda d: (d.lat, d.lon), heading=lambda d: d.heading, colour=colour_of)
        fleet.map(Station, at=lambda s: (s.lat, s.lon), trail_s=0)
        fleet.layer("zones", zones)
    return fleet


def colour_of(drone: Drone) -> str:
    """What the drone is like."""
    return "ok" if drone.battery > 20 else "low" if drone.battery > 5 else "error"


class Circles:
    """Where the drones are at a time."""

    def __init__(self, count: int, seed: int, *, xy: bool) -> None:
        chance = random.Random(seed)
        self.names = [f"D-{number}" for number in range(count)]
        self._xy = xy
        spread_m = 4_000.0
        self._circles = [
            (
                chance.uniform(-spread_m, spread_m),
                chance.uniform(-spread_m, spread_m),
                chance.uniform(50, 600),
                chance.uniform(0, math.tau),
                chance.uniform(5, 20) * chance.choice((-1, 1)),
                chance.uniform(0, 100),
            )
            for _ in range(count)
        ]

    def at(self, number: int, t_s: float) -> Moved:
        """One drone: where it is, where it looks, what is left."""
        east_m, north_m, radius_m, phase, speed, full = self._circles[number]
        angle = phase + speed / radius_m * t_s
        east_m, north_m = east_m + radius_m * math.sin(angle), north_m + radius_m * math.cos(angle)
        heading = (math.degrees(angle) + (90 if speed > 0 else -90)) % 360
        battery = (full - t_s / 30) % 100
        if self._xy:
            return Moved(lat=north_m, lon=east_m, heading=heading, battery=battery)
        lon = TOWN[1] + east_m * METRE / math.cos(math.radians(TOWN[0]))
        return Moved(lat=TOWN[0] + north_m * METRE, lon=lon, heading=heading, battery=battery)


async def fly(live: st.Live, circles: Circles, rate_hz: float, *, compiled: bool) -> None:
    """Moves all drones so often, spread over the time, until it is cancelled."""
    batcher = None
    if compiled:
        from stigmergy.columns import Batcher

        batcher = Batcher(await live.enroll(Drone, circles.names), source="radio", incarnation=time.time_ns() // 10**9)
    began_s = time.monotonic()
    count, sent = len(circles.names), 0
    while True:
        due = int((time.monotonic() - began_s) * rate_hz * count)
        while sent < due:
            numbers = [(sent + one) % count for one in range(min(BATCH, due - sent))]
            sent += len(numbers)
            moves = [circles.at(number, time.monotonic() - began_s) for number in numbers]
            if batcher is None:
                pairs = zip(numbers, moves, strict=True)
                await asyncio.gather(*(live.observe(f"Drone/{circles.names[number]}", one) for number, one in pairs))
            else:
                columns = {name: [getattr(one, name) for one in moves] for name in Moved.__struct_fields__}
                batcher.add(Moved, [circles.names[number] for number in numbers], **columns)
                await asyncio.gather(*(live.deliver(one) for one in batcher.take()))
        await asyncio.sleep(0.02)


async def main(arguments: argparse.Namespace) -> None:
    """Runs and serves until it is stopped."""
    compiled = not arguments.plain
    fleet = make_fleet(compiled=compiled, xy=arguments.xy)
    circles = Circles(arguments.agents, 1, xy=arguments.xy)
    running = fleet.running(journal=arguments.journal)
    async with running as live:
        for number in range(min(4, arguments.agents)):
            await live.observe(f"Station/S-{number}", circles.at(number, 0.0))
        service = running.service(live, "", lambda: None)
        serving = Serving(read_address(arguments.listen), arguments.tokens)
        server = ApiServer(fleet, NodeAsker(service), serving, live.blobs)
        print((await server.start())[0], flush=True)
        try:
            await fly(live, circles, arguments.rate, compiled=compiled)
        finally:
            await server.close()


def parse(given: list[str]) -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--agents", type=int, default=10_000)
    parser.add_argument("--rate", type=float, default=2.0, help="moves of each drone in a second")
    parser.add_argument("--listen", default="127.0.0.1:0")
    parser.add_argument("--journal", default="memory:")
    parser.add_argument("--tokens", type=Path, default=Path("moving.tokens"))
    parser.add_argument("--plain", action="store_true")
    parser.add_argument("--xy", action="store_true")
    return parser.parse_args(given)


if __name__ == "__main__":
    with contextlib.suppress(KeyboardInterrupt):
        asyncio.run(main(parse(sys.argv[1:])))
