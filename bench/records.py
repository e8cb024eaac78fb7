"""The drone workload as records of fixed width: what compiled agents read, and what their limit reads. Needs numpy.

A record is 32 bytes: agent u4, form u2, two zero bytes, and room for three numbers, of which a form uses as many as it
has fields, from the left; the rest is zero. The proportions are those of `bench/workload.py`, and the same seed makes
the same bytes; but they are drawn at once for all events, so they are other events than those of `reports`.
`from_reports` has the very same ones, for comparisons.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import msgspec
import numpy as np
from numpy.typing import NDArray

from bench.workload import (
    ACTING,
    ALTITUDE_M_MAX,
    BATTERIES,
    BATTERY_PERCENT_MIN,
    DRONES,
    POSITIONS,
    BatteryMeasured,
    OrderAcknowledged,
    Positioned,
    Report,
    address_of,
)

FORMS = (Positioned, BatteryMeasured, OrderAcknowledged)
"""A form's number is its place here."""
POSITIONED, MEASURED, ACKNOWLEDGED = range(3)
RECORD_BYTES = 32
HALF_M = 5e3
ORDERS = 1_000_000

RECORD = np.dtype(
    {
        # The payload of each form under the names of its fields: they share their places.
        "names": ["agent", "form", "zero", "north_m", "east_m", "altitude_m", "percent", "order"],
        "formats": ["<u4", "<u2", "<u2", "<f8", "<f8", "<f8", "<f8", "<i8"],
        "offsets": [0, 4, 6, 8, 16, 24, 8, 8],
        "itemsize": RECORD_BYTES,
    }
)

Records = NDArray[np.void]


def records(seed: int, count: int, *, drones: int = DRONES, acting: float = ACTING) -> Records:
    """So many events of random drones."""
    chance = np.random.default_rng(seed)
    return _records(chance, chance.integers(0, drones, count, dtype=np.uint32), acting)


def roll_call(seed: int, drones: int, first: int = 0) -> Records:
    """One event of each of these drones, in order."""
    return _records(np.random.default_rng(seed), np.arange(first, first + drones, dtype=np.uint32), ACTING)


def from_reports(reports: Sequence[Report]) -> Records:
    """The same events as these, in their order; the agent's index is the number in its name."""
    decode: Callable[[bytes], Positioned | BatteryMeasured | OrderAcknowledged] = msgspec.msgpack.Decoder(
        Positioned | BatteryMeasured | OrderAcknowledged
    ).decode
    start = len(address_of(0)) - 1
    made = np.zeros(len(reports), RECORD)
    for row, report in zip(made, reports, strict=True):
        row["agent"] = int(report.address[start:])
        match decode(report.body):
            case Positioned(north_m=north_m, east_m=east_m, altitude_m=altitude_m):
                row["form"] = POSITIONED
                row["north_m"], row["east_m"], row["altitude_m"] = north_m, east_m, altitude_m
            case BatteryMeasured(percent=percent):
                row["form"], row["percent"] = MEASURED, percent
            case OrderAcknowledged(order=order):
                row["form"], row["order"] = ACKNOWLEDGED, order
    return made


def acting(made: Records) -> NDArray[np.bool_]:
    """Which of these events cause an action."""
    high = (made["form"] == POSITIONED) & (made["altitude_m"] > ALTITUDE_M_MAX)
    low = (made["form"] == MEASURED) & (made["percent"] < BATTERY_PERCENT_MIN)
    return np.asarray(high | low)


def _records(chance: np.random.Generator, agents: NDArray[np.uint32], acting: float) -> Records:
    count = len(agents)
    made = np.zeros(count, RECORD)
    made["agent"] = agents
    kind = chance.random(count)
    positions = np.flatnonzero(kind < POSITIONS)
    batteries = np.flatnonzero((kind >= POSITIONS) & (kind < POSITIONS + BATTERIES))
    orders = np.flatnonzero(kind >= POSITIONS + BATTERIES)
    acts = chance.random(count) < acting / (POSITIONS + BATTERIES)
    share = chance.random(count)

    high = ALTITUDE_M_MAX + 1 + share * 19
    made["north_m"][positions] = chance.uniform(-HALF_M, HALF_M, len(positions))
    made["east_m"][positions] = chance.uniform(-HALF_M, HALF_M, len(positions))
    made["altitude_m"][positions] = np.where(acts, high, share * ALTITUDE_M_MAX)[positions]

    low = 1.0 + share * (BATTERY_PERCENT_MIN - 2)
    full = BATTERY_PERCENT_MIN + share * (100.0 - BATTERY_PERCENT_MIN)
    made["form"][batteries] = MEASURED
    made["percent"][batteries] = np.where(acts, low, full)[batteries]

    made["form"][orders] = ACKNOWLEDGED
    made["order"][orders] = chance.integers(0, ORDERS, len(orders))
    return made
