"""Where everything is: gateways, their districts, sensors on a grid. All of it follows from names. Pure.

`g2d3-017` is the 17th sensor of the third district of gateway g2. Each district is a square of its own, with a
kilometre of park to the next one, so that no leak is in two districts. What a sensor measures follows from its number.
"""

from __future__ import annotations

import math
from functools import lru_cache

from msgspec import Struct

SPACING_M = 150.0
APART_M = 1_000.0
NEAR_M, NEAR_COUNT_MAX = 260.0, 6
"""Sensors so near are asked whether they see it too, and at most so many."""
JOIN_GAS_M, JOIN_M = 450.0, 2_000.0
"""Suspicions of gas within the first distance are one incident; noise, jams and crowds fill a district."""
ORIGIN = (45.4642, 9.19)
"""Latitude and longitude of the corner of the city."""
METRES_PER_DEGREE = 111_320.0
OTHERS = ("noise", "flow", "crowd")
"""Of ten sensors one is each of these, and the rest measure gas."""


class City(Struct, frozen=True):
    """The size of a city; what is where follows from it."""

    sensors: int
    gateways: int
    districts_each: int = 4
    """Of each gateway."""

    def gateway_names(self) -> list[str]:
        """g1, g2, …"""
        return [f"g{number + 1}" for number in range(self.gateways)]

    def districts_of(self, gateway: str) -> list[str]:
        """Those of a gateway."""
        return [f"{gateway}d{number + 1}" for number in range(self.districts_each)]

    def districts(self) -> list[str]:
        """All of them."""
        return [district for gateway in self.gateway_names() for district in self.districts_of(gateway)]

    def sensors_of(self, district: str) -> list[str]:
        """Those of a district. The first districts have one more where it does not come out even."""
        districts = self.districts()
        count, more = divmod(self.sensors, len(districts))
        return [f"{district}-{number:03d}" for number in range(count + (districts.index(district) < more))]

    def near(self, sensor: str) -> list[str]:
        """Sensors of the same kind beside this one, the nearest first."""
        return list(_near(self, sensor))


@lru_cache(maxsize=4096)
def _near(city: City, sensor: str) -> tuple[str, ...]:
    kind, limit_m = kind_of(sensor), NEAR_M if kind_of(sensor) == "gas" else math.inf
    others = [one for one in city.sensors_of(district_of(sensor)) if one != sensor and kind_of(one) == kind]
    apart = sorted((distance_m(place_of(sensor), place_of(one)), one) for one in others)
    return tuple(one for metres, one in apart if metres <= limit_m)[:NEAR_COUNT_MAX]


Point = tuple[float, float]


def district_of(sensor: str) -> str:
    """g2d3 of g2d3-017."""
    return sensor.partition("-")[0]


def gateway_of(name: str) -> str:
    """g2 of a sensor or of a district."""
    return name.partition("d")[0]


def kind_of(sensor: str) -> str:
    """gas, noise, flow or crowd."""
    number = int(sensor.rpartition("-")[2]) % 10
    return OTHERS[number - 7] if number >= 7 else "gas"


def corner_of(district: str) -> Point:
    """The south-west corner of a district, in metres from the corner of the city."""
    gateway, _, number = district.partition("d")
    return (int(gateway[1:]) - 1) * (APART_M + 2_000.0), (int(number) - 1) * (APART_M + 2_000.0)


def place_of(sensor: str) -> Point:
    """Where a sensor is. Ten in a row, each row shifted, so that every kind is spread."""
    x, y = corner_of(district_of(sensor))
    row, column = divmod(int(sensor.rpartition("-")[2]), 10)
    return x + (column + row * 3) % 10 * SPACING_M, y + row * SPACING_M


def distance_m(one: Point, two: Point) -> float:
    """Between two places."""
    return math.hypot(one[0] - two[0], one[1] - two[1])


def are_near(one: str, two: str) -> bool:
    """Whether two sensors of one kind may see one thing."""
    limit_m = JOIN_GAS_M if kind_of(one) == "gas" else JOIN_M
    return district_of(one) == district_of(two) and distance_m(place_of(one), place_of(two)) <= limit_m


def degrees_of(place: Point) -> Point:
    """Latitude and longitude of a place."""
    lat = ORIGIN[0] + place[1] / METRES_PER_DEGREE
    return round(lat, 6), round(ORIGIN[1] + place[0] / (METRES_PER_DEGREE * math.cos(math.radians(ORIGIN[0]))), 6)
