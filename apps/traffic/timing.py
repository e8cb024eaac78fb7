"""When a green ends and who is next: pure rules over what an intersection knows. They never decide what is safe.

How long yellow, clearance and walking last is in `phases.py`, and whatever is said here cannot make them shorter.
"""

from __future__ import annotations

from collections.abc import Iterable

from msgspec import Struct

from apps.traffic.grid import Axis, crossing_of
from apps.traffic.phases import FIXED_GREEN_S, GREEN_OF, GREEN_S_MAX, Geometry, Stage

GAP_S = 11.0
"""A platoon that is so near is waited for: to end this green and come back to it takes longer."""
RECALL_S = 90.0
"""A green ends after so long even if nobody is known to wait: a detector may have missed somebody."""
HEAD_S = 2.0
"""So long before a platoon its green begins: those who stand there have to start first."""


class Platoon(Struct, frozen=True):
    """Vehicles that a neighbour has let go, and when they are here if they are not stopped."""

    source: str
    axis: Axis
    begins_s: float
    ends_s: float

    def passes(self, now_s: float) -> bool:
        """Whether it is here, or nearly."""
        return self.begins_s - GAP_S <= now_s <= self.ends_s


class Demand(Struct, frozen=True):
    """Who wants to go along one road."""

    here: int = 0
    coming: int = 0
    blocked: bool = False
    """Whether there is no room behind the crossing."""


class Situation(Struct, frozen=True):
    """What an intersection knows when it decides about its green."""

    now_s: float
    stage: Stage
    """Who has the way, or had it last."""
    axis: Axis
    """The road that had its turn last."""
    green_s: float
    """How long the present green has lasted."""
    coordinated: bool
    walkers: bool
    demand: dict[Axis, Demand]
    platoons: tuple[Platoon, ...]
    geometry: Geometry


def ends_now(seen: Situation) -> bool:
    """Whether the present green ends."""
    if seen.stage == "walk":
        return True
    axis: Axis = seen.stage
    if not seen.coordinated:
        return seen.green_s >= FIXED_GREEN_S
    if seen.green_s >= RECALL_S:
        return True
    other = crossing_of(axis)
    due = _is_due(seen, other)
    waited_for = seen.walkers or due or seen.demand[other].here > 0
    if not waited_for:
        return False
    if seen.green_s >= GREEN_S_MAX:
        return True
    mine = seen.demand[axis]
    if mine.blocked:
        return True
    if mine.here > 0:
        return False
    passes = mine.coming > 0 and any(one.axis == axis and one.passes(seen.now_s) for one in seen.platoons)
    return not passes


def next_stage(seen: Situation) -> Stage:
    """Who is served after the clearance. Whoever waits is served after at most three others."""
    if seen.walkers and seen.stage != "walk":
        return "walk"
    other = crossing_of(seen.axis)
    if seen.stage != "walk" or not seen.coordinated:
        return other
    # Walkers may have interrupted a green that nobody else waited for.
    theirs, mine = seen.demand[other], seen.demand[seen.axis]
    wanted = theirs.here or _is_due(seen, other) or not (mine.here or mine.coming)
    return other if wanted else seen.axis


def _is_due(seen: Situation, axis: Axis) -> bool:
    """Whether a platoon of this road is so near that its green has to be made ready."""
    if not seen.demand[axis].coming:
        return False
    lead_s = seen.geometry.intergreen_s(GREEN_OF[seen.stage]) + HEAD_S
    return any(one.axis == axis and one.begins_s - lead_s <= seen.now_s <= one.ends_s for one in seen.platoons)


def merge_platoon(platoons: Iterable[Platoon], new: Platoon, now_s: float) -> tuple[Platoon, ...]:
    """The platoons with a new one of the same neighbour, without those that have passed."""
    kept = [one for one in platoons if one.ends_s >= now_s and (one.source, one.axis) != (new.source, new.axis)]
    return (*kept, new)
