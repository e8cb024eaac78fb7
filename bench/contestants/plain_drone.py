"""The rules of the drone as a program without an agent runtime has them: one plain function, for all alternatives."""

from __future__ import annotations

from collections.abc import Callable

import msgspec

from bench.workload import ALTITUDE_M_MAX, BATTERY_PERCENT_MIN, BatteryMeasured, OrderAcknowledged, Positioned

Reading = Positioned | BatteryMeasured | OrderAcknowledged
State = list[float]
"""North, east, altitude, battery, order. A list is the quickest thing to change in place, and to pickle."""
DESCEND, LAND = "Descend", "Land"

decode: Callable[[bytes], Reading] = msgspec.msgpack.Decoder(Reading).decode
"""An event from its bytes."""


def new_state() -> State:
    """A drone of which nothing is known."""
    return [0.0, 0.0, 0.0, 100.0, 0]


def fold(state: State, event: Reading) -> str | None:
    """Puts an event into the state; the action that follows."""
    if type(event) is Positioned:
        state[0], state[1], state[2] = event.north_m, event.east_m, event.altitude_m
        return DESCEND if event.altitude_m > ALTITUDE_M_MAX else None
    if type(event) is BatteryMeasured:
        state[3] = event.percent
        return LAND if event.percent < BATTERY_PERCENT_MIN else None
    if type(event) is OrderAcknowledged:
        state[4] = event.order
    return None
