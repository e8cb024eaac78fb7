"""Parcels and the boxes of customers, as things in the world: they know tokens, and no agent.

A box is armed with a token and never goes back to a lower one. There is one parcel for each job and token. A parcel is
taken by one drone, at the pick-up. The box takes one parcel, once: that of the highest token it was armed with.
"""

from __future__ import annotations

import math
from collections.abc import Callable

from msgspec import UNSET, Struct, UnsetType

from apps.drones.area import Point
from apps.drones.messages import BOX_FULL, ArmBox
from stigmergy import DeviceRefused, Overloaded, StaleOrder, Unreachable

NEAR_M = 10.0
"""So near to a place a drone must be down to take or leave a parcel there."""
BOXES_MAX = 1_000_000


class Fact(Struct, frozen=True, omit_defaults=True):
    """A line of world.jsonl: what happened, for whoever judges the swarm. Fields that say nothing are left out."""

    t: float
    fact: str
    drone: str | UnsetType = UNSET
    index: int | UnsetType = UNSET
    x: float | UnsetType = UNSET
    y: float | UnsetType = UNSET
    job: str | UnsetType = UNSET
    token: int | UnsetType = UNSET
    why: str | UnsetType = UNSET
    kind: str | UnsetType = UNSET
    for_s: float | UnsetType = UNSET
    pad: str | UnsetType = UNSET
    battery: float | UnsetType = UNSET
    name: str | UnsetType = UNSET
    corners: tuple[Point, ...] | UnsetType = UNSET
    floor_m: float | UnsetType = UNSET
    ceiling_m: float | UnsetType = UNSET
    from_t: float | UnsetType = UNSET
    until_t: float | UnsetType = UNSET
    seed: int | UnsetType = UNSET
    drones: int | UnsetType = UNSET
    tick_s: float | UnsetType = UNSET


class Box(Struct):
    """The box of a customer, and what lies ready for it at the pick-up."""

    token: int
    drop: Point
    pickup: Point
    kg: float
    taken: dict[int, str] = {}
    """Which drone has taken the parcel of a token."""
    dropped: tuple[int, str] | None = None
    """The token and the drone of the parcel that is in it."""


class Parcels:
    """All boxes and parcels. `record` is told what happened; `now_t` is the time of the satellites."""

    def __init__(self, record: Callable[[Fact], None], now_t: Callable[[], float]) -> None:
        self._record = record
        self._now_t = now_t
        self._boxes: dict[str, Box] = {}
        self._aboard: dict[str, tuple[str, int]] = {}
        """The parcel that each drone has on board, by job and token."""
        self.delivered = 0
        """So many boxes have their parcel."""

    def box(self, job: str) -> Box | None:
        """The box of a job; None if nobody has armed it."""
        return self._boxes.get(job)

    def aboard(self, drone: str) -> tuple[str, int] | None:
        """The job and token of the parcel that a drone carries."""
        return self._aboard.get(drone)

    def arm(self, action: ArmBox) -> None:
        """Waits for this token from now on. Raises StaleOrder for a lower one than it has heard of, and DeviceRefused
        with BOX_FULL if it waits for nothing any more."""
        box = self._boxes.get(action.job)
        if box is None and len(self._boxes) >= BOXES_MAX:
            raise Overloaded(f"there are {BOXES_MAX} boxes already; none is left for {action.job}")
        if box is None:
            drop, pickup = (action.drop.x, action.drop.y), (action.pickup.x, action.pickup.y)
            self._boxes[action.job] = Box(action.token, drop, pickup, action.kg)
        elif action.token < box.token:
            raise StaleOrder(f"the box of {action.job} waits for token {box.token}, and never goes back to a lower one")
        elif action.token == box.token:
            return
        elif box.dropped is not None:
            raise DeviceRefused(_full(action.job, box.dropped))
        else:
            box.token = action.token
        self._say("armed", "", action.job, action.token)

    def grip(self, drone: str, at: Point, down: bool, job: str, token: int) -> float:
        """Takes the parcel on board; returns its weight. Raises DeviceRefused, or Unreachable: try again."""
        box = self._boxes.get(job)
        if box is None or (token > box.token and box.dropped is None):
            raise Unreachable(f"nothing lies ready for {job} under token {token} yet: its box has not been armed")
        if self._aboard.get(drone) == (job, token):
            return box.kg
        why = ""
        if box.dropped is not None:
            why = _full(job, box.dropped)
        elif token < box.token:
            why = f"the parcel of {job} is for token {box.token} now, not for {token}"
        elif not down or math.dist(at, box.pickup) > NEAR_M:
            why = f"it is not down at the pick-up of {job}: {_where(at, down, box.pickup)}"
        elif token in box.taken:
            why = f"{box.taken[token]} has taken the parcel of {job} under token {token}"
        elif drone in self._aboard:
            why = f"it has the parcel of {self._aboard[drone][0]} on board"
        if why:
            self._say("grip_refused", drone, job, token, why)
            raise DeviceRefused(why)
        box.taken[token] = drone
        self._aboard[drone] = (job, token)
        self._say("taken", drone, job, token)
        return box.kg

    def release(self, drone: str, at: Point, down: bool, job: str, token: int) -> None:
        """Leaves the parcel in the box. Raises DeviceRefused with the reason, and keeps it on board then."""
        box = self._boxes.get(job)
        if box is not None and box.dropped == (token, drone):
            return
        why = ""
        if box is None or self._aboard.get(drone) != (job, token):
            why = f"it does not have the parcel of {job} under token {token} on board"
        elif not down or math.dist(at, box.drop) > NEAR_M:
            why = f"it is not down at the box of {job}: {_where(at, down, box.drop)}"
        elif box.dropped is not None:
            why = _full(job, box.dropped)
        elif token != box.token:
            why = f"the box of {job} waits for token {box.token} and does not take {token}"
        if why or box is None:
            self._say("drop_refused", drone, job, token, why)
            raise DeviceRefused(why)
        box.dropped = (token, drone)
        del self._aboard[drone]
        self.delivered += 1
        self._say("dropped", drone, job, token)

    def hand_in(self, drone: str) -> bool:
        """At home somebody takes what the drone has on board; whether there was anything."""
        parcel = self._aboard.pop(drone, None)
        if parcel is None:
            return False
        self._say("handed_in", drone, *parcel)
        return True

    def _say(self, fact: str, drone: str, job: str, token: int, why: str = "") -> None:
        self._record(Fact(self._now_t(), fact, drone=drone or UNSET, job=job, token=token, why=why or UNSET))


def _full(job: str, dropped: tuple[int, str]) -> str:
    return f"{BOX_FULL}: {dropped[1]} has delivered {job} under token {dropped[0]}"


def _where(at: Point, down: bool, place: Point) -> str:
    return f"{math.dist(at, place):.0f} m away, {'down' if down else 'in the air'}"
