"""A small source of traffic: vehicles come, drive from one intersection to the next, and wait where it is not green.

Everything comes from one seed. It knows the lamps and nothing else, as vehicles do: who controls them, and whether that
works, is not its business. Each vehicle is in one place at every moment; that is what controllers are held against.
"""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Callable, Mapping

from msgspec import Struct

from apps.traffic.grid import Axis, name_of
from apps.traffic.messages import CrossingRequested, VehicleArrived, VehicleLeft
from apps.traffic.phases import Geometry, Lamps
from stigmergy import Event

HEADWAY_S = 2.0
"""Between two vehicles that leave one approach."""
TURNING_SHARE = 0.2
STOPPED_S = 1.0
"""Who waits longer than this was stopped."""
Detect = Callable[[str, Event], None]
LampsOf = Callable[[str], Lamps]
Approach = tuple[str, str]
"""An intersection, and the direction in which vehicles come to it: E, W, S or N."""
AXIS_OF: Mapping[str, Axis] = {"E": "street", "W": "street", "S": "avenue", "N": "avenue"}
WAYS_OF: Mapping[Axis, str] = {"street": "EW", "avenue": "SN"}
STEP_OF: Mapping[str, tuple[int, int]] = {"E": (0, 1), "W": (0, -1), "S": (1, 0), "N": (-1, 0)}


class Rates(Struct, frozen=True):
    """How much traffic there is: a minute, for each way into the grid, and for each intersection."""

    street_per_min: float = 8.0
    avenue_per_min: float = 4.0
    walkers_per_min: float = 0.5
    back_share: float = 1.0
    """How much of it comes the other way, westward and northward: little in the rush hour."""


class Vehicle(Struct):
    """A vehicle on its trip."""

    name: str
    route: tuple[Approach, ...]
    leg: int
    """From 1: at or on the way to this part of the route."""
    waits_since_s: float
    stops: int = 0
    waited_s: float = 0.0

    @property
    def at(self) -> Approach:
        """Where it is, or is on its way to."""
        return self.route[self.leg - 1]


class Figures(Struct):
    """How well it flows."""

    entered: int = 0
    trips: int = 0
    crossed: int = 0
    stops: int = 0
    waited_s: float = 0.0
    followed: int = 0
    """Crossings of vehicles that came from another intersection: a wave can only help those."""
    followed_stops: int = 0

    @property
    def stops_per_crossing(self) -> float:
        """The share of crossings at which a vehicle had to stop that came from another intersection."""
        return self.followed_stops / self.followed if self.followed else 0.0

    @property
    def waited_per_crossing_s(self) -> float:
        """How long a vehicle waits at an intersection, on average."""
        return self.waited_s / self.crossed if self.crossed else 0.0


class Traffic:
    """All vehicles of a grid. Let time pass with `step`."""

    def __init__(
        self,
        rows: int,
        columns: int,
        seed: int,
        lamps_of: LampsOf,
        detect: Detect,
        rates: Rates | None = None,
        geometry: Geometry | None = None,
    ) -> None:
        self._rows = rows
        self._columns = columns
        self._chance = random.Random(seed)
        self._lamps_of = lamps_of
        self._detect = detect
        self._rates = rates or Rates()
        self._travel_s = (geometry or Geometry()).travel_s(1)
        self._queues: dict[Approach, deque[Vehicle]] = {}
        self._free_at_s: dict[Approach, float] = {}
        self._driving: list[tuple[float, int, Vehicle]] = []
        self._count = 0
        self._next_in_s: dict[Approach, float] = {}
        self._next_walker_s: dict[str, float] = {}
        self.figures = Figures()
        self.open = True
        """Whether new ones come."""
        self._names = [name_of(row, column) for row in range(rows) for column in range(columns)]

    # ------------------------------------------------------------------ time

    def step(self, now_s: float) -> None:
        """Lets everything happen that is due."""
        self._arrive(now_s)
        if self.open:
            self._enter(now_s)
            self._press(now_s)
        for approach in self._queues:
            self._cross(approach, now_s)

    def places(self) -> dict[str, str]:
        """Each vehicle that is under way, with its leg, and the intersection that it is at or on its way to."""
        waiting = [vehicle for queue in self._queues.values() for vehicle in queue]
        driving = [vehicle for _, _, vehicle in self._driving]
        return {f"{one.name}.{one.leg}": one.at[0] for one in (*waiting, *driving)}

    def standing_at(self, name: str, axis: Axis) -> bool:
        """Whether somebody stands at a stop line."""
        return any(self._queues.get((name, way)) for way in WAYS_OF[axis])

    # ------------------------------------------------------------------ vehicles

    def _enter(self, now_s: float) -> None:
        for entry in self._entries():
            due_s = self._next_in_s.get(entry)
            if due_s is None:
                self._next_in_s[entry] = now_s + self._pause_s(entry)
            elif now_s >= due_s:
                self._next_in_s[entry] = now_s + self._pause_s(entry)
                self._count += 1
                self.figures.entered += 1
                vehicle = Vehicle(f"V{self._count}", self._route(entry), 1, now_s)
                self._queue(vehicle, now_s, entering=True)

    def _entries(self) -> list[Approach]:
        rows, columns = range(self._rows), range(self._columns)
        return [
            *((name_of(row, 0), "E") for row in rows),
            *((name_of(row, self._columns - 1), "W") for row in rows),
            *((name_of(0, column), "S") for column in columns),
            *((name_of(self._rows - 1, column), "N") for column in columns),
        ]

    def _pause_s(self, entry: Approach) -> float:
        street = AXIS_OF[entry[1]] == "street"
        rate = self._rates.street_per_min if street else self._rates.avenue_per_min
        rate *= self._rates.back_share if entry[1] in "WN" else 1.0
        return self._chance.expovariate(rate / 60) if rate else 1e12

    def _route(self, entry: Approach) -> tuple[Approach, ...]:
        """Straight on, or with one turn somewhere on the way."""
        straight = self._straight(entry)
        if self._chance.random() >= TURNING_SHARE:
            return straight
        place = self._chance.randrange(len(straight))
        corner, way = straight[place]
        turned = self._chance.choice("SN" if AXIS_OF[way] == "street" else "EW")
        behind = self._straight((corner, turned))[1:]
        return (*straight[: place + 1], *behind)

    def _straight(self, start: Approach) -> tuple[Approach, ...]:
        name, way = start
        row, column = (int(part) for part in name[1:].split("c"))
        down, right = STEP_OF[way]
        legs: list[Approach] = []
        while 0 <= row < self._rows and 0 <= column < self._columns:
            legs.append((name_of(row, column), way))
            row, column = row + down, column + right
        return tuple(legs)

    def _queue(self, vehicle: Vehicle, now_s: float, *, entering: bool = False) -> None:
        vehicle.waits_since_s = now_s
        name, way = vehicle.at
        self._queues.setdefault(vehicle.at, deque()).append(vehicle)
        self._detect(name, VehicleArrived(vehicle.name, vehicle.leg, AXIS_OF[way], entering))

    def _arrive(self, now_s: float) -> None:
        due = [one for one in self._driving if one[0] <= now_s]
        if due:
            self._driving = [one for one in self._driving if one[0] > now_s]
            for _, _, vehicle in sorted(due, key=lambda one: one[:2]):
                self._queue(vehicle, now_s)

    def _cross(self, approach: Approach, now_s: float) -> None:
        queue, (name, way) = self._queues[approach], approach
        lamps = self._lamps_of(name)
        green = lamps.street if AXIS_OF[way] == "street" else lamps.avenue
        if not queue or green != "green" or now_s < self._free_at_s.get(approach, 0.0):
            return
        self._free_at_s[approach] = now_s + HEADWAY_S
        vehicle = queue.popleft()
        waited_s = now_s - vehicle.waits_since_s
        figures = self.figures
        figures.crossed += 1
        figures.waited_s += waited_s
        stopped = 1 if waited_s > STOPPED_S else 0
        figures.stops += stopped
        if vehicle.leg > 1:
            figures.followed += 1
            figures.followed_stops += stopped
        leg, axis = vehicle.leg, AXIS_OF[way]
        if leg == len(vehicle.route):
            figures.trips += 1
            self._detect(name, VehicleLeft(vehicle.name, leg, axis))
            return
        vehicle.leg += 1
        to, onto = vehicle.at
        self._detect(name, VehicleLeft(vehicle.name, leg, axis, to, AXIS_OF[onto]))
        self._driving.append((now_s + self._travel_s, self._count, vehicle))

    # ------------------------------------------------------------------ people

    def _press(self, now_s: float) -> None:
        rate = self._rates.walkers_per_min
        for name in self._names if rate else ():
            due_s = self._next_walker_s.get(name)
            if due_s is None or now_s >= due_s:
                self._next_walker_s[name] = now_s + self._chance.expovariate(rate / 60)
                if due_s is not None:
                    self._detect(name, CrossingRequested())
