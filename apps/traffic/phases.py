"""What an intersection can show: one phase at a time, and in each phase at most one signal group has the way.

There is no state in which two groups that conflict are green, because there is no value for it: lamps are looked up in
a table by the phase, and nothing else switches them. From one green to another leads only the way through its yellow,
or the flashing of its crossings, and a clearance in which everything is red. From everywhere leads a way to ALL_RED.
"""

from __future__ import annotations

import math
from enum import Enum
from typing import Literal

from msgspec import Struct

from apps.traffic.grid import Axis

VEHICLE_M = 6.0
REACTION_S = 1.0
BRAKING_M_S2 = 3.0
WALKING_M_S = 1.0
"""How fast the slowest walk who must reach the other side."""
YELLOW_S_MIN = 3.0
CLEARING_S_MIN = 1.5
WALK_S = 6.0
GREEN_S_MIN = 6.0
GREEN_S_MAX = 30.0
FIXED_GREEN_S = 15.0
"""How long a green lasts where neighbours are not heard."""


class Phase(Enum):
    """All that an intersection can show."""

    ALL_RED = "all-red"
    """In doubt, and at the beginning. Held until everything is known again."""
    CLEARING = "clearing"
    """Everything is red, so that whoever is still on the crossing leaves it."""
    STREET_GREEN = "street-green"
    STREET_YELLOW = "street-yellow"
    AVENUE_GREEN = "avenue-green"
    AVENUE_YELLOW = "avenue-yellow"
    WALK = "walk"
    """People may cross every road; no vehicle may."""
    WALK_ENDING = "walk-ending"
    """Who is on a crossing may finish, nobody may begin."""


Aspect = Literal["red", "yellow", "green", "flashing"]
"""What the lamps of one signal group show. For walkers green is walk, and flashing means: do not begin."""
GROUPS: tuple[str, ...] = ("street", "avenue", "walk")
"""Signal groups: vehicles along the street, vehicles along the avenue, people on all crossings. Each conflicts with
each other one: vehicles that turn cross the ways of people, so these walk alone."""


class Lamps(Struct, frozen=True):
    """What all lamps of an intersection show."""

    street: Aspect = "red"
    avenue: Aspect = "red"
    walk: Aspect = "red"


LAMPS: dict[Phase, Lamps] = {
    Phase.ALL_RED: Lamps(),
    Phase.CLEARING: Lamps(),
    Phase.STREET_GREEN: Lamps(street="green"),
    Phase.STREET_YELLOW: Lamps(street="yellow"),
    Phase.AVENUE_GREEN: Lamps(avenue="green"),
    Phase.AVENUE_YELLOW: Lamps(avenue="yellow"),
    Phase.WALK: Lamps(walk="green"),
    Phase.WALK_ENDING: Lamps(walk="flashing"),
}
"""The one place where a phase becomes light."""

Stage = Literal["street", "avenue", "walk"]
"""Whom a green serves."""
STAGES: tuple[Stage, ...] = ("street", "avenue", "walk")
GREEN_OF: dict[Stage, Phase] = {
    "street": Phase.STREET_GREEN,
    "avenue": Phase.AVENUE_GREEN,
    "walk": Phase.WALK,
}
STAGE_OF: dict[Phase, Stage] = {phase: stage for stage, phase in GREEN_OF.items()}

FOLLOWING: dict[Phase, tuple[Phase, ...]] = {
    Phase.ALL_RED: (Phase.CLEARING,),
    Phase.CLEARING: (Phase.STREET_GREEN, Phase.AVENUE_GREEN, Phase.WALK),
    Phase.STREET_GREEN: (Phase.STREET_YELLOW,),
    Phase.STREET_YELLOW: (Phase.CLEARING,),
    Phase.AVENUE_GREEN: (Phase.AVENUE_YELLOW,),
    Phase.AVENUE_YELLOW: (Phase.CLEARING,),
    Phase.WALK: (Phase.WALK_ENDING,),
    Phase.WALK_ENDING: (Phase.CLEARING,),
}
"""What may follow what. ALL_RED may follow everything, and is not listed."""


def may_follow(now: Phase, then: Phase) -> bool:
    """Whether lamps may go from one phase to another."""
    return then is Phase.ALL_RED or then in FOLLOWING[now]


def green_axis(phase: Phase) -> Axis | None:
    """Along which road vehicles have the way."""
    if phase is Phase.STREET_GREEN:
        return "street"
    return "avenue" if phase is Phase.AVENUE_GREEN else None


class Geometry(Struct, frozen=True):
    """An intersection as it was surveyed. All times that make safe follow from it."""

    width_m: float = 14.0
    """The longest way across it."""
    speed_m_s: float = 13.9
    """How fast vehicles come."""
    block_m: float = 140.0
    """How far it is to the next intersection."""

    @property
    def yellow_s(self) -> float:
        """Long enough to stop, for whoever can, and to go on for all others."""
        return max(YELLOW_S_MIN, _up(REACTION_S + self.speed_m_s / (2 * BRAKING_M_S2)))

    @property
    def clearing_s(self) -> float:
        """Long enough for the last vehicle to leave the crossing."""
        return max(CLEARING_S_MIN, _up((self.width_m + VEHICLE_M) / self.speed_m_s))

    @property
    def flashing_s(self) -> float:
        """Long enough to reach the other side for who has just begun to walk."""
        return _up(self.width_m / WALKING_M_S)

    @property
    def recovery_s(self) -> float:
        """How long everything stays red after an end without a warning: as long as that and the clearance together."""
        return max(self.yellow_s + self.clearing_s, self.flashing_s)

    def least_s(self, phase: Phase) -> float:
        """How long a phase lasts at least. Nothing ends it sooner but ALL_RED."""
        match phase:
            case Phase.STREET_GREEN | Phase.AVENUE_GREEN:
                return GREEN_S_MIN
            case Phase.STREET_YELLOW | Phase.AVENUE_YELLOW:
                return self.yellow_s
            case Phase.WALK:
                return WALK_S
            case Phase.WALK_ENDING:
                return self.flashing_s
            case Phase.CLEARING:
                return self.clearing_s
            case Phase.ALL_RED:
                return self.recovery_s

    def intergreen_s(self, phase: Phase) -> float:
        """How long it takes from the end of this green to the beginning of the next."""
        ending = self.flashing_s if phase is Phase.WALK else self.yellow_s
        return ending + self.clearing_s

    def travel_s(self, blocks: int) -> float:
        """How long vehicles take for so many blocks."""
        return blocks * self.block_m / self.speed_m_s


def _up(seconds: float) -> float:
    """To the next tenth."""
    return math.ceil(round(seconds * 10, 6)) / 10
