"""What a flight takes: pure figures that the drone, the dispatcher and nobody else believes in.

The drone refuses a job by them, and the dispatcher does not offer what would be refused. The physics of the simulated
world is another matter: it drains batteries by its own rules, with wind that nobody here knows.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise

from apps.drones.area import FLOOR_M, Point

CRUISE_M_S = 15.0
CLIMB_M_S = 4.0
SINK_M_S = 3.0
PERCENT_PER_S = 100.0 / (22 * 60)
"""An empty drone is in the air for so long, with wind to spare."""
LOAD_SHARE = 0.12
"""A kilogram takes so much more."""
RESERVE_PERCENT = 20.0
"""It plans to be down with so much."""
STOP_S = 40.0
"""A stop on the way: the wait for the cell, the way down and up again."""


def flight_s(metres: float, stops: int = 0) -> float:
    """How long a flight of so many metres takes, with the way up and down at its ends and at each stop."""
    return metres / CRUISE_M_S + (stops + 1) * 2 * FLOOR_M / SINK_M_S + stops * STOP_S


def needed_percent(metres: float, kg: float = 0.0, stops: int = 0) -> float:
    """The charge that a flight takes, without the reserve."""
    return flight_s(metres, stops) * PERCENT_PER_S * (1.0 + LOAD_SHARE * kg)


def length_m(points: Sequence[Point]) -> float:
    """The length of a way over these points."""
    return sum(math.dist(a, b) for a, b in pairwise(points))
