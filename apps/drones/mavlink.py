"""A drone behind MAVLink: the same sensors and orders as those of the simulated ones, for PX4, ArduPilot and others.

    vehicle = stigmergy.devices.mavlink.Vehicle("udpin://0.0.0.0:14540")
    controllers = fleet.attach(MavlinkDrone("r1-0000-007", vehicle, origin=(47.3977, 8.5456), others=world))

It has what `Controllers` has: it flies one drone by its vehicle and hands on what is for the others. Degrees become
metres on the plane that touches the earth at `origin`, where x and y are 0; that is good for tens of kilometres.

A Steer is more than one command to a vehicle: arm, take off, go there, land. The first is given and acknowledged before
`order` returns, so that a refusal reaches the agent. What follows is given by a task, when the vehicle is so far. If it
is refused then, the vehicle stays where it is, and `problem` says why; the agent sees that it does not arrive.

MAVLink's grippers are not spoken here: parcels are those of a world in the same process, which believes the vehicle
where it is. Without one, Grip and Release are refused.
"""

from __future__ import annotations

import asyncio
import math
from collections import deque
from typing import Protocol

from apps.drones.area import Point
from apps.drones.messages import ArmBox, Fix, Grip, Land, Release, Steer
from apps.drones.parcels import NEAR_M, Parcels
from apps.drones.world import Controllers, OrderBook
from stigmergy import Action, DeviceRefused, StigmergyError, Unreachable

EARTH_M = 6_371_000.0
PILOT_S = 0.1
"""How often the vehicle is looked at."""
ABOVE_M = 3.0
"""So close, seen from above, it must be to its place on the ground before it lands."""
SEEN_MAX = 6
"""The velocity is that between the newest and the oldest of so many positions: MAVLink's own has no direction here."""


class Place(Protocol):
    """Where a vehicle is."""

    @property
    def latitude(self) -> float: ...
    @property
    def longitude(self) -> float: ...
    @property
    def height_m(self) -> float: ...


class Gauge(Protocol):
    """What is left in its battery."""

    @property
    def percent(self) -> float: ...


class Autopilot(Protocol):
    """What is needed of `stigmergy.devices.mavlink.Vehicle`. Commands raise LinkDown or Overloaded: try again; or
    DeviceRefused."""

    def position(self) -> Place | None: ...
    def battery(self) -> Gauge | None: ...
    def is_armed(self) -> bool: ...
    def is_landed(self) -> bool: ...
    def is_flying(self) -> bool: ...
    async def arm(self) -> None: ...
    async def take_off(self, height_m: float) -> None: ...
    async def go_to(self, latitude: float, longitude: float, height_m: float, *, speed_m_s: float = -1.0) -> None: ...
    async def land(self) -> None: ...
    async def open(self) -> None: ...
    async def close(self) -> None: ...


class Plane:
    """The plane around an origin, in metres, and the degrees of its points."""

    def __init__(self, latitude: float, longitude: float) -> None:
        self._origin = (latitude, longitude)
        self._shrink = math.cos(math.radians(latitude))

    def metres(self, latitude: float, longitude: float) -> Point:
        """East and north of the origin."""
        north, east = math.radians(latitude - self._origin[0]), math.radians(longitude - self._origin[1])
        return east * EARTH_M * self._shrink, north * EARTH_M

    def degrees(self, x: float, y: float) -> tuple[float, float]:
        """Latitude and longitude."""
        north, east = math.degrees(y / EARTH_M), math.degrees(x / (EARTH_M * self._shrink))
        return self._origin[0] + north, self._origin[1] + east


class MavlinkDrone:
    """One drone by its vehicle, all others by `others`. `fleet.attach` opens and closes the vehicle with it."""

    def __init__(
        self,
        name: str,
        vehicle: Autopilot,
        origin: tuple[float, float],
        others: Controllers,
        parcels: Parcels | None = None,
        home: Point | None = None,
    ) -> None:
        self.name = name
        self.problem = ""
        """Why it does not fly on; empty if it does."""
        self._vehicle = vehicle
        self._plane = Plane(*origin)
        self._others = others
        self._parcels = parcels
        self._home = home
        self._orders = OrderBook()
        self._course: Steer | None = None
        """What is still to be flown; None if the vehicle has been told all of it."""
        self._armed = False
        """It was armed by us since it was last in the air."""
        self._rises = False
        """It was told to take off for this course."""
        self._flies_over = False
        """It was told to fly to above the place where it is to land."""
        self._lock = asyncio.Lock()
        self._seen: deque[tuple[float, float, float, float]] = deque(maxlen=SEEN_MAX)
        self._task: asyncio.Task[None] | None = None

    async def open(self) -> None:
        """Opens the link to the vehicle."""
        await self._vehicle.open()
        self._task = asyncio.ensure_future(self._pilot())

    async def close(self) -> None:
        """Closes it. The vehicle does what it was told last."""
        task, self._task = self._task, None
        while task is not None and not task.done():
            task.cancel()
            await asyncio.wait([task], timeout=1.0)
        await self._vehicle.close()

    # ------------------------------------------------------------------ what agents see and say

    def fix(self, drone: str) -> Fix | None:
        """What the vehicle said last, on the plane; None if it is silent."""
        if drone != self.name:
            return self._others.fix(drone)
        place, gauge = self._vehicle.position(), self._vehicle.battery()
        if place is None or gauge is None:
            return None
        x, y = self._plane.metres(place.latitude, place.longitude)
        return Fix(self.now_t(), x, y, place.height_m, *self._velocity(), gauge.percent, down=self._is_down())

    def now_t(self) -> float:
        """The time of the satellites, as the others have it."""
        return self._others.now_t()

    async def arm_box(self, action: ArmBox, key: str) -> None:
        """Boxes are no part of a vehicle: the others have them."""
        await self._others.arm_box(action, key)

    async def order(self, drone: str, action: Action, key: str, token: int) -> None:
        """Carries out an order. Raises DeviceRefused, or another StigmergyError: try again."""
        if drone != self.name:
            await self._others.order(drone, action, key, token)
            return
        async with self._lock:
            if self._orders.has(drone, key):
                return
            self._orders.check(drone, key, token)
            match action:
                case Steer():
                    await self._steer(action)
                case Land():
                    await self._vehicle.land()
                    self._course, self._armed = None, False
                case Grip() | Release():
                    self._handle(action)
                case _:
                    raise DeviceRefused(f"a drone cannot {type(action).__name__}; it can steer, land, grip and release")
            self._orders.keep(drone, key, token)
            self.problem = ""

    def _handle(self, action: Grip | Release) -> None:
        if self._parcels is None:
            raise DeviceRefused(f"{self.name} has nothing to carry parcels with")
        at, down = self._here()[:2], self._is_down()
        if isinstance(action, Grip):
            self._parcels.grip(self.name, at, down, action.job, action.token)
        else:
            self._parcels.release(self.name, at, down, action.job, action.token)

    def _is_down(self) -> bool:
        """On the ground, motors off. These are two readings, and the second is late after a landing."""
        return self._vehicle.is_landed() and not self._vehicle.is_armed()

    def _here(self) -> tuple[float, float, float]:
        place = self._vehicle.position()
        if place is None:
            raise Unreachable(f"the vehicle of {self.name} is silent")
        return *self._plane.metres(place.latitude, place.longitude), place.height_m

    def _velocity(self) -> tuple[float, float, float]:
        if len(self._seen) < 2:
            return 0.0, 0.0, 0.0
        (t, x, y, z), (to_t, to_x, to_y, to_z) = self._seen[0], self._seen[-1]
        passed_s = to_t - t
        return (to_x - x) / passed_s, (to_y - y) / passed_s, (to_z - z) / passed_s

    # ------------------------------------------------------------------ flying

    async def _steer(self, steer: Steer) -> None:
        """Gives the first command. If that fails, all is as it was before."""
        before = self._course, self._rises, self._flies_over
        x, y, _ = self._here()
        if self._vehicle.is_landed() and steer.z <= 0.0:
            if math.dist((x, y), (steer.x, steer.y)) > NEAR_M:
                raise DeviceRefused(f"{self.name} is down and has to take off before it can land elsewhere")
            self._course = None
            return
        self._course, self._rises, self._flies_over = steer, False, False
        try:
            await self._next()
        except BaseException:
            self._course, self._rises, self._flies_over = before
            raise

    async def _next(self) -> None:
        """Gives the command that comes next on this course, if it is time for it."""
        course, vehicle = self._course, self._vehicle
        if course is None:
            return
        x, y, z = self._here()
        latitude, longitude = self._plane.degrees(course.x, course.y)
        if course.z <= 0.0:
            if math.dist((x, y), (course.x, course.y)) <= ABOVE_M:
                await vehicle.land()
                self._course, self._armed = None, False
            elif not self._flies_over:
                await vehicle.go_to(latitude, longitude, z, speed_m_s=course.speed)
                self._flies_over = True
        elif vehicle.is_landed():
            if vehicle.is_armed() and not self._armed:
                raise Unreachable(f"the motors of {self.name} have not stopped since it landed; try again")
            if not self._rises:
                self._armed = True  # whatever comes of it: an answer that is lost leaves motors on that are ours
                await vehicle.arm()
                await vehicle.take_off(course.z)
                self._rises = True
        elif vehicle.is_flying() or not self._rises:
            await vehicle.go_to(latitude, longitude, course.z, speed_m_s=course.speed)
            self._course, self._armed = None, False

    async def _pilot(self) -> None:
        while True:
            self._look()
            async with self._lock:
                try:
                    await self._next()
                except DeviceRefused as error:
                    self.problem, self._course = str(error), None
                except StigmergyError:
                    pass  # the link is lost, or the vehicle is busy: the same command once more
            await asyncio.sleep(PILOT_S)

    def _look(self) -> None:
        """Keeps where it is for its velocity, and what it has on board is taken from it at home."""
        place = self._vehicle.position()
        if place is None:
            self._seen.clear()
            return
        x, y = self._plane.metres(place.latitude, place.longitude)
        t = self.now_t()
        if not self._seen or t > self._seen[-1][0]:
            self._seen.append((t, x, y, place.height_m))
        at_home = self._home is not None and math.dist((x, y), self._home) <= NEAR_M
        if at_home and self._parcels is not None and self._is_down():
            self._parcels.hand_in(self.name)
