"""Synthetic readings of the layout of the real ones, with leaks whose truth is known. Seeded; no clock, no I/O.

`RESPONSE` is a log-linear fit of the raw channels of the real data (see train.py for its source) to carbon monoxide,
nitrogen dioxide, temperature and humidity: a metal-oxide sensor answers to several gases at once, and to the weather.
`HOURS_CO` and `HOURS_NO2` are the medians of the hours of a day there. On top come the drift, gain and noise of each
sensor, and leaks: a place, a beginning, an end, and how much gas there is at the middle.
"""

from __future__ import annotations

import math
import random
from collections.abc import Iterator

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from apps.city.layouts import CHANNELS, LEVEL, READING, STEPS
from apps.city.plan import City, Point, distance_m, district_of, kind_of, place_of

LEAK = {"co": (30.0, 0.0), "no2": (3.0, 1800.0)}
"""What a leak adds at its middle: CO in mg/m3, NO2 in ug/m3. The second is a plume of exhaust: sensors of the data that
see NO2 without any CO have never been trained on that, and the net does not alarm."""
TYPICAL = (2.0, 110.0)
RESPONSE = np.array(
    [
        [6.017, 0.221, 0.121, 0.045, 0.032],
        [5.588, 0.359, 0.146, 0.099, 0.018],
        [9.080, -0.224, -0.361, -0.112, -0.063],
        [6.794, 0.276, -0.090, 0.220, 0.061],
        [4.074, 0.377, 0.417, 0.092, 0.072],
    ]
)
"""[channel][1, log(CO + 0.3), log(NO2 + 20), temperature / 10, humidity / 10] -> log of the raw value."""


def channels_of(co: float, no2: float, temperature: float, humidity: float) -> NDArray[np.float64]:
    """The five raw values of a perfect sensor."""
    terms = np.array([1.0, math.log(co + 0.3), math.log(no2 + 20.0), temperature / 10.0, humidity / 10.0])
    return np.asarray(np.exp(RESPONSE @ terms))


def leak_factors(output: str, share: float) -> NDArray[np.float64]:
    """By what a leak of this gas multiplies the channels, at such a share of its strength."""
    if share <= 0.0:
        return np.ones(len(CHANNELS))
    (co, no2), (more_co, more_no2) = TYPICAL, LEAK[output]
    leaking = channels_of(co + share * more_co, no2 + share * more_no2, 20.0, 50.0)
    return np.append(leaking / channels_of(co, no2, 20.0, 50.0), [1.0, 1.0])


# ---------------------------------------------------------------------- a city of them

HOURS_CO = (
    1.6,
    1.3,
    0.9,
    0.7,
    0.6,
    0.6,
    0.9,
    1.5,
    2.8,
    2.9,
    2.4,
    2.1,
    2.0,
    2.0,
    2.0,
    1.9,
    2.1,
    2.6,
    3.2,
    3.5,
    3.3,
    2.3,
    1.9,
    1.7,
)
HOURS_NO2 = (
    100,
    83,
    70,
    80,
    55,
    57,
    68,
    95,
    118,
    125,
    126,
    122,
    119,
    118,
    117,
    116,
    121,
    132,
    144,
    144,
    140,
    124,
    110,
    105,
)
"""Medians of the hours of a day, in mg/m3 and ug/m3. A reading is the mean of an hour, as in the data."""
AIR = 0.6
"""A synthetic city is so much cleaner: in the real one the limits are exceeded on many evenings without any leak."""
GAIN, NOISE, DRIFT = 0.02, 0.015, 2e-5
"""Relative: between sensors, between readings, and for each reading that a sensor has made."""
REACH_M = {"co": 150.0, "no2": 150.0, "noise": 800.0, "flow": 800.0, "crowd": 800.0}
RAMP = 2
"""Readings until a leak is at its full strength."""
BROKEN = (1900.0, 2100.0, 330.0, 2600.0, 2450.0)
"""What a sensor says whose heater has failed."""
CALM_LEVEL = {"noise": (62.0, 4.0), "flow": (0.8, 0.08), "crowd": (1.2, 0.4)}
HIGH_LEVEL = {"noise": 108.0, "flow": 0.05, "crowd": 6.5}


class Leak(Struct, frozen=True):
    """What really happens: gas, noise, a jam or a crowd. Steps are readings."""

    name: str
    what: str
    district: str
    x: float
    y: float
    begin: int
    end: int
    """The first step without it."""

    def share(self, place: Point, step: int) -> float:
        """How much of its strength a sensor at this place gets."""
        if not self.begin <= step < self.end:
            return 0.0
        near = math.exp(-((distance_m(place, (self.x, self.y)) / REACH_M[self.what]) ** 2))
        return near * min((step - self.begin + 1) / RAMP, 1.0)


class Readings:
    """What all sensors of some districts say, step by step. The same seed gives the same bytes."""

    def __init__(self, city: City, districts: list[str], seed: int, leaks: list[Leak]) -> None:
        self.leaks = leaks
        self.broken: dict[str, int] = {}
        """Sensors that fail, and at which step."""
        sensors = [sensor for district in districts for sensor in city.sensors_of(district)]
        self.gas = [sensor for sensor in sensors if kind_of(sensor) == "gas"]
        self.meters = [sensor for sensor in sensors if kind_of(sensor) != "gas"]
        self._seed = seed
        chance = np.random.default_rng([seed, 1])
        self._gain = np.exp(chance.normal(0.0, GAIN, (len(self.gas), 5)))
        self._drift = chance.normal(0.0, DRIFT, (len(self.gas), 5))
        self._places = {sensor: place_of(sensor) for sensor in sensors}

    def at(self, step: int) -> Iterator[tuple[str, bytes]]:
        """The sensors and their payloads."""
        yield from zip(self.gas, self._gas_at(step), strict=True)
        chance = np.random.default_rng([self._seed, 3, step])
        for sensor in self.meters:
            what = kind_of(sensor)
            middle, spread = CALM_LEVEL[what]
            share = self._share(sensor, step, what)
            value = middle + spread * float(np.clip(chance.normal(), -2.0, 2.0))
            value += share * (HIGH_LEVEL[what] - middle) * 1.5 if share > 0.3 else 0.0
            yield sensor, LEVEL.write(number=step, value=max(value, 0.0))

    def _share(self, sensor: str, step: int, what: str) -> float:
        place, district = self._places[sensor], district_of(sensor)
        found = [one.share(place, step) for one in self.leaks if one.what == what and one.district == district]
        return max(found, default=0.0)

    def _gas_at(self, step: int) -> Iterator[bytes]:
        chance = np.random.default_rng([self._seed, 2, step])
        hour = step % 24
        co = np.full(len(self.gas), AIR * HOURS_CO[hour])
        no2 = np.full(len(self.gas), AIR * HOURS_NO2[hour])
        for row, sensor in enumerate(self.gas):
            co[row] += self._share(sensor, step, "co") * LEAK["co"][0]
            no2[row] += self._share(sensor, step, "no2") * LEAK["no2"][1]
        temperature = 16.0 + 6.0 * math.sin((hour - 9) / 24 * 2 * math.pi)
        humidity = 55.0 - 15.0 * math.sin((hour - 9) / 24 * 2 * math.pi)
        terms = np.stack(
            [
                np.ones(len(co)),
                np.log(co + 0.3),
                np.log(no2 + 20.0),
                np.full(len(co), temperature / 10.0),
                np.full(len(co), humidity / 10.0),
            ]
        )
        noise = chance.normal(0.0, NOISE, (len(self.gas), 5))
        raw = np.exp((RESPONSE @ terms).T + self._drift * step + noise) * self._gain
        for row, sensor in enumerate(self.gas):
            if self.broken.get(sensor, step + 1) <= step:
                raw[row] = BROKEN
            values = dict(zip(CHANNELS, [*raw[row].tolist(), temperature, humidity], strict=True))
            yield READING.write(number=step, **values)


def plan_leaks(city: City, seed: int, count: int, steps: int, first: int = STEPS + 2, lasts: int = 12) -> list[Leak]:
    """So many leaks, spread over districts and time, each in the middle of four gas sensors, or among its kind."""
    chance = random.Random(f"leaks.{seed}")
    districts = city.districts()
    whats = ("co", "no2", "co", "no2", "crowd", "noise", "flow")
    last = max(first + 1, steps - lasts - 4)
    found: list[Leak] = []
    for number in range(count):
        what = whats[number % len(whats)]
        district = districts[(number * 7 + seed) % len(districts)]
        own = [one for one in city.sensors_of(district) if kind_of(one) == ("gas" if what in LEAK else what)]
        anchor = chance.choice([one for one in own if city.near(one)])
        (x, y), (other_x, other_y) = place_of(anchor), place_of(city.near(anchor)[0])
        begin = first + (last - first) * number // max(count, 1)
        if any(one.what == what and one.district == district and begin < one.end + 2 * lasts for one in found):
            continue
        found.append(
            Leak(f"leak-{number:03d}", what, district, (x + other_x) / 2, (y + other_y) / 2, begin, begin + lasts)
        )
    return found
