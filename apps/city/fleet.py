"""The fleet: sensors, districts and desks, how readings come in, how notices go out, what the page shows."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Any

import msgspec

from apps.city.desk import Desk, Known
from apps.city.district import District
from apps.city.layouts import LEVEL, READING
from apps.city.messages import Levelled, Notify, Sampled, Sound, incidents
from apps.city.notify import Notifier
from apps.city.plan import SPACING_M, City, corner_of, degrees_of, place_of
from apps.city.sensor import GasSensor, Meter, Watch
from stigmergy import Fleet, Order, Settings

FLEET = "city"
SETTINGS = msgspec.convert({"write_within_s": 30.0, "effects_in_flight_max": 1024}, Settings)
TINTS = ((0, "#30a060"), (5, "#d0b030"), (50, "#d06020"), (500, "#b01020"))
"""From so many readings over a limit on, a district has this colour."""


def make_fleet(
    sound: Callable[[Sound], None], notifiers: Sequence[Notifier], *, city: City | None = None, devices: bool = True
) -> Fleet:
    """The fleet of a gateway: `sound` switches sirens, `notifiers` tell people. `city` is for the map; without
    `devices` nothing comes in by itself."""
    fleet = Fleet(FLEET, agents=[GasSensor, Meter, District, Desk], ledgers=[incidents], settings=SETTINGS)

    @fleet.actuator(Sound, tries=20)
    async def siren(order: Order[Sound]) -> None:
        sound(order.effect)

    @fleet.actuator(Notify, tries=1_000, within_s=30.0)
    async def notify(order: Order[Notify]) -> None:
        for notifier in notifiers:
            await asyncio.to_thread(notifier.send, order.effect)

    if devices:
        fleet.device("sensor/{id}/raw", to="GasSensor/{id}", event=Sampled, layout=READING)
        fleet.device("sensor/{id}/level", to="Meter/{id}", event=Levelled, layout=LEVEL)
    fleet.map(GasSensor, at=_where, colour=_look, trail_s=0)
    fleet.map(Meter, at=_where, colour=_look, trail_s=0)
    fleet.map(Desk, at=lambda _: None, trail_s=0, draw=exposure_map)
    if city is not None:
        fleet.layer("districts", lambda: {"type": "FeatureCollection", "features": _districts(city)})
    return fleet


# ---------------------------------------------------------------------- what the page shows


def _where(sensor: Watch) -> tuple[float, float]:
    return degrees_of(place_of(sensor.id))


def _look(sensor: Watch) -> str:
    return sensor.over or "calm"


def exposure_map(desk: Desk) -> list[dict[str, Any]]:
    """Each district that was exposed, as dark as it was, and each incident that is open."""
    readings: dict[str, int] = {}
    for place, counter in desk.exposure.items():
        district, _, pollutant = place.partition("/")
        readings[district] = readings.get(district, 0) + counter.value
        del pollutant
    found = []
    for district, count in sorted(readings.items()):
        colour = next(colour for least, colour in reversed(TINTS) if count >= least)
        found.append(_feature(f"{district}: {count} readings over a limit", "Polygon", [_square(district)], colour))
    return found + [_incident(one) for one in desk.known if one.position and not one.cleared]


def _incident(known: Known) -> dict[str, Any]:
    entry = known.entry
    state = "acknowledged" if known.acknowledged else "open"
    name = f"{entry.kind}, severity {known.severity}, {state}, at {entry.source_node}"
    return _feature(name, "Point", [entry.payload.location.lon, entry.payload.location.lat], "#c02020")


def _districts(city: City) -> list[dict[str, Any]]:
    return [_feature(district, "Polygon", [_square(district)], "#8090a0") for district in city.districts()]


def _square(district: str) -> list[tuple[float, float]]:
    x, y = corner_of(district)
    side = SPACING_M * 10
    corners = [(x, y), (x + side, y), (x + side, y + side), (x, y + side), (x, y)]
    return [(lon, lat) for lat, lon in map(degrees_of, corners)]


def _feature(name: str, kind: str, coordinates: Any, colour: str) -> dict[str, Any]:
    properties = {"name": name, "colour": colour}
    return {"type": "Feature", "properties": properties, "geometry": {"type": kind, "coordinates": coordinates}}
