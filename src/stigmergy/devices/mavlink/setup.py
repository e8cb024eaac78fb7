"""Sets a fleet up for MAVLink: sensors for what an agent has handlers for, and actuators for what vehicles can do.

    fit(fleet, Drone, Vehicle("udpin://0.0.0.0:14540"))                       # one vehicle on this device
    fit(fleet, Drone, {"D-17": Vehicle(one), "D-18": Vehicle(other)})         # a gateway with several

The agent then handles `BatteryRead`, `PositionRead` and `StatusRead`, and yields `TakeOff`, `GoTo`, `Land` and others.
Each action is carried out behind a fence and is done when the vehicle reports the result. For anything else, write your
own `@fleet.sensor` and `@fleet.actuator`.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, Protocol

from stigmergy.agents.agent import Agent
from stigmergy.agents.effects import Order
from stigmergy.agents.messages import Action, Event, latest, within
from stigmergy.agents.plans import AgentPlan
from stigmergy.base.errors import DefinitionError, DeviceRefused
from stigmergy.devices.fence import Fence
from stigmergy.devices.mavlink.vehicle import Vehicle, check_height

EVERY_S = 0.5
SAFE_TRIES = 1_000
"""Landing and returning are tried until a lost link is back: for two hours, which is longer than a flight."""
HEIGHT_WITHIN_M = 1.0
FLIGHT_S = 600.0
"""A try of what takes a flight lasts so long, confirmation included."""


class BatteryRead(Event, name="mavlink.BatteryRead", keep=within(seconds=1)):
    """How much a vehicle has left."""

    percent: float
    volts: float | None = None


class PositionRead(Event, name="mavlink.PositionRead", keep=latest):
    """Where a vehicle is: degrees and metres; the height is above where it started."""

    latitude: float
    longitude: float
    altitude_m: float
    height_m: float
    climb_m_s: float = 0.0
    speed_m_s: float = 0.0


class StatusRead(Event, name="mavlink.StatusRead", keep=within(seconds=1)):
    """In what state a vehicle is; `landed` is on_ground, in_air, taking_off, landing or undefined."""

    armed: bool
    landed: str
    mode: int = 0


class Arm(Action, name="mavlink.Arm"):
    """Let the motors turn."""


class Disarm(Action, name="mavlink.Disarm"):
    """Stop the motors; refused in the air."""


class TakeOff(Action, name="mavlink.TakeOff"):
    """Arm, and climb to this height above the ground."""

    height_m: float


class GoTo(Action, name="mavlink.GoTo"):
    """Fly to a place, at this height above where the flight began."""

    latitude: float
    longitude: float
    height_m: float


class Land(Action, name="mavlink.Land"):
    """Come down where you are. Fit as a safe action."""

    reason: str = ""


class ReturnHome(Action, name="mavlink.ReturnHome"):
    """Fly to where the flight began, and land there. Fit as a safe action."""

    reason: str = ""


class Fittable(Protocol):
    """A fleet, as far as it is needed here."""

    plans: dict[str, AgentPlan]

    def attach(self, attachment: Any) -> Any:
        """Has it live with the node."""
        ...

    def sensor(self, kind: type[Agent], *, every_s: float, agents: Sequence[str] | None, name: str) -> Any:
        """Registers a sensor."""
        ...

    def actuator(self, action: type[Any], *, tries: int | None, within_s: float | None, confirm: Any) -> Any:
        """Registers an actuator."""
        ...


def fit(
    fleet: Fittable,
    kind: type[Agent],
    vehicles: Vehicle | Mapping[str, Vehicle],
    *,
    every_s: float = EVERY_S,
    fence: Fence | None = None,
) -> None:
    """Declares the sensors and actuators of a vehicle, or of several by the names of their agents.

    Give a `FenceFile` as the fence to have it survive a crash, and attach it yourself.
    """
    hangar = _Hangar(vehicles, fence or Fence())
    for vehicle in hangar.all:
        fleet.attach(vehicle)
    plan = next((plan for plan in fleet.plans.values() if plan.cls is kind), None)
    if plan is None:
        raise DefinitionError(f"{kind.__name__} is no agent class of this fleet; add it there")
    readings: tuple[tuple[type[Event], str, Callable[[str], Awaitable[Event | None]]], ...] = (
        (BatteryRead, "battery", hangar.battery),
        (PositionRead, "position", hangar.position),
        (StatusRead, "status", hangar.status),
    )
    for event, name, read in readings:
        if plan.handles(event):
            fleet.sensor(kind, every_s=every_s, agents=hangar.names, name=f"mavlink {name} of {plan.kind}")(read)
    _fit_actuators(fleet, hangar)


def _fit_actuators(fleet: Fittable, hangar: _Hangar) -> None:
    def register(
        action: type[Action], tries: int, within_s: float, act: Callable[[Vehicle, Any], Awaitable[None]], is_so: _Seen
    ) -> None:
        async def carry_out(order: Order[Any]) -> None:
            hangar.fence.admit(order)
            await act(hangar.vehicle(order.agent), order.effect)

        def confirm(order: Order[Any]) -> bool:
            return is_so(hangar.vehicle(order.agent), order.effect)

        fleet.actuator(action, tries=tries, within_s=within_s, confirm=confirm)(carry_out)

    async def take_off(vehicle: Vehicle, wanted: TakeOff) -> None:
        check_height(wanted.height_m)  # Before it is armed: nothing should stand there with its motors on.
        await vehicle.arm()
        await vehicle.take_off(wanted.height_m)

    register(Arm, 3, 10.0, lambda vehicle, _: vehicle.arm(), lambda vehicle, _: vehicle.is_armed())
    register(Disarm, 3, 10.0, lambda vehicle, _: vehicle.disarm(), lambda vehicle, _: _is_disarmed(vehicle))
    register(TakeOff, 3, 60.0, take_off, lambda vehicle, _: vehicle.is_flying())
    register(
        GoTo,
        3,
        FLIGHT_S,
        lambda vehicle, wanted: vehicle.go_to(wanted.latitude, wanted.longitude, wanted.height_m),
        _has_arrived,
    )
    register(Land, SAFE_TRIES, 60.0, lambda vehicle, _: vehicle.land(), lambda vehicle, _: vehicle.is_landed())
    register(
        ReturnHome,
        SAFE_TRIES,
        FLIGHT_S,
        lambda vehicle, _: vehicle.return_home(),
        lambda vehicle, _: vehicle.is_landed(),
    )


_Seen = Callable[[Vehicle, Any], bool]


class _Hangar:
    """Which agent has which vehicle."""

    def __init__(self, vehicles: Vehicle | Mapping[str, Vehicle], fence: Fence) -> None:
        self._only = vehicles if isinstance(vehicles, Vehicle) else None
        self._by_name = {} if isinstance(vehicles, Vehicle) else dict(vehicles)
        self.fence = fence

    @property
    def all(self) -> list[Vehicle]:
        """Each vehicle once."""
        return [self._only] if self._only is not None else list(dict.fromkeys(self._by_name.values()))

    @property
    def names(self) -> list[str] | None:
        """The agents that have one; None: those that the node runs."""
        return None if self._only is not None else list(self._by_name)

    def vehicle(self, address: str) -> Vehicle:
        """An agent's vehicle. Raises DeviceRefused for one that has none here."""
        found = self._only or self._by_name.get(address.partition("/")[2])
        if found is None:
            raise DeviceRefused(f"{address} has no vehicle on this node")
        return found

    async def battery(self, name: str) -> Event | None:
        told = self.vehicle(f"/{name}").battery()
        return None if told is None else BatteryRead(percent=told.percent, volts=told.volts)

    async def position(self, name: str) -> Event | None:
        told = self.vehicle(f"/{name}").position()
        if told is None:
            return None
        return PositionRead(
            latitude=told.latitude,
            longitude=told.longitude,
            altitude_m=told.altitude_m,
            height_m=told.height_m,
            climb_m_s=told.climb_m_s,
            speed_m_s=told.speed_m_s,
        )

    async def status(self, name: str) -> Event | None:
        told = self.vehicle(f"/{name}").status()
        return None if told is None else StatusRead(armed=told.armed, landed=told.landed.name.lower(), mode=told.mode)


def _is_disarmed(vehicle: Vehicle) -> bool:
    status = vehicle.status()
    return status is not None and not status.armed


def _has_arrived(vehicle: Vehicle, wanted: GoTo) -> bool:
    here = vehicle.position()
    near = here is not None and abs(here.height_m - wanted.height_m) <= HEIGHT_WITHIN_M
    return near and vehicle.is_at(wanted.latitude, wanted.longitude)
