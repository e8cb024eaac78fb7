"""A fleet to look at: drones above a town, which a test can fly, refuse, break and stop."""

from __future__ import annotations

import json
from pathlib import Path

SOURCE = '''
from typing import Literal

import stigmergy as st


class Moved(st.Event):
    lat: float
    lon: float
    heading: float = 0.0
    battery: float = 100.0


class StartMission(st.Command):
    """Fly this mission, if the battery allows."""

    mission: str
    priority: Literal["low", "normal", "high"] = "normal"
    height_m: float = 60.0
    legs: int = 1
    return_home: bool = True
    note: str | None = None


class MissionStarted(st.Event):
    mission: str


class Stumbled(st.Event):
    """Its handler fails."""


class Drained(st.Event, keep=st.within(seconds=1)):
    """Is kept a second late."""

    battery: float


class TakeOff(st.Action):
    height_m: float


class Drone(st.Agent):
    lat: float = 0.0
    lon: float = 0.0
    heading: float = 0.0
    battery: float = 100.0
    mission: str | None = None

    supervision = st.Supervise(stop_after=3, within_s=3600)

    @st.evolve
    def moved(self, event: Moved) -> None:
        self.lat, self.lon, self.heading, self.battery = event.lat, event.lon, event.heading, event.battery

    @st.decide
    def start(self, command: StartMission) -> st.Events:
        if self.battery < 20:
            st.reject(f"battery at {self.battery:.0f} %, 20 % needed")
        yield MissionStarted(mission=command.mission)

    @st.evolve
    def started(self, event: MissionStarted) -> None:
        self.mission = event.mission

    @st.react
    def take_off(self, event: MissionStarted) -> st.Effects:
        yield TakeOff(height_m=60.0)

    @st.evolve
    def drained(self, event: Drained) -> None:
        self.battery = event.battery

    @st.evolve
    def stumbled(self, event: Stumbled) -> None:
        raise ValueError("no ground under the feet")


class Depot(st.Agent):
    """Has no place on the map, and shares what it has with all depots."""

    stock: int = 0
    known: st.Shared[st.ORSet[str]] = st.shared(by="town")

    @st.decide
    def move(self, event: Moved) -> st.Events:
        yield event
        yield self.known.add(self.id)

    @st.evolve
    def moved(self, event: Moved) -> None:
        self.stock += 1


def colour(drone: Drone) -> str:
    names = {1.0: "all-red", 2.0: "red", 3.0: "amber", 4.0: "late", 5.0: "on call"}
    return names.get(drone.battery) or ("low" if drone.battery < 20 else "ok")


fleet = st.Fleet("town", shards=4, agents=[Drone, Depot])
fleet.map(
    Drone,
    at=lambda drone: (drone.lat, drone.lon),
    heading=lambda drone: drone.heading,
    colour=colour,
    trail_s=30,
)
fleet.layer("zones", "zones.geojson")


@fleet.actuator(TakeOff)
async def take_off(order: st.Order[TakeOff]) -> None:
    pass
'''

RING = [[4.30, 52.00], [4.40, 52.00], [4.40, 52.08], [4.35, 52.04], [4.30, 52.08], [4.30, 52.00]]
ZONES = {
    "type": "FeatureCollection",
    "features": [
        {"type": "Feature", "properties": {"name": "No-fly"}, "geometry": {"type": "Polygon", "coordinates": [RING]}},
        {
            "type": "Feature",
            "properties": {"name": "A4"},
            "geometry": {"type": "LineString", "coordinates": [[4.2, 52.1], [4.5, 52.0]]},
        },
    ],
}


def make_town(folder: Path, *, xy: bool = False) -> Path:
    """Writes the fleet into a folder; with `xy` its drones drive on a plane, `lon` east and `lat` north in metres."""
    source = SOURCE.replace("(drone.lat, drone.lon),", '(drone.lon, drone.lat), plane="xy",') if xy else SOURCE
    (folder / "town.py").write_text(source, encoding="utf-8")
    (folder / "zones.geojson").write_text(json.dumps(ZONES), encoding="utf-8")
    return folder
