"""A fleet that flies a vehicle: readings in, orders out, refusals as inputs, a lost link as a safe action."""

import asyncio
from collections.abc import Callable
from pathlib import Path

from stigmergy import (
    Accepted,
    Action,
    ActionDone,
    ActionFailed,
    Agent,
    Command,
    Effects,
    Event,
    Events,
    Fence,
    Fleet,
    Live,
    Order,
    SafeActionTaken,
    WhenStale,
    decide,
    evolve,
    react,
    within,
)
from stigmergy.devices.mavlink import MavResult, Vehicle
from stigmergy.devices.mavlink.messages import MavCommand as MavOrder
from stigmergy.testing.vehicle import SimulatedVehicle


class Fly(Command):
    height_m: float


class Flown(Event):
    height_m: float


class BatteryMeasured(Event, keep=within(seconds=0.05)):
    percent: float


class TakeOff(Action):
    height_m: float


class Land(Action):
    reason: str


class Drone(Agent):
    battery: float = 0.0
    done: tuple[str, ...] = ()
    failed: tuple[str, ...] = ()
    made_safe: tuple[str, ...] = ()

    silent = WhenStale(BatteryMeasured, after_s=1.5, then=Land(reason="its gauge is silent"))

    @decide
    def fly(self, command: Fly) -> Events:
        yield Flown(height_m=command.height_m)

    @react
    def take_off(self, event: Flown) -> Effects:
        yield TakeOff(height_m=event.height_m)

    @evolve
    def measured(self, event: BatteryMeasured) -> None:
        self.battery = event.percent

    @evolve
    def was_done(self, event: ActionDone) -> None:
        self.done = (*self.done, event.action)

    @evolve
    def was_not_done(self, event: ActionFailed) -> None:
        self.failed = (*self.failed, event.reason)

    @evolve
    def was_made_safe(self, event: SafeActionTaken) -> None:
        self.made_safe = (*self.made_safe, event.because)


def declare() -> tuple[Fleet, Vehicle]:
    fleet = Fleet("drones", agents=[Drone])
    vehicle = fleet.attach(Vehicle("udpin://127.0.0.1:0", fresh_s=1.0))
    fence = Fence()

    @fleet.sensor(Drone, every_s=0.1, agents=["D-1"])
    async def battery(name: str) -> BatteryMeasured | None:
        told = vehicle.battery()
        return None if told is None else BatteryMeasured(percent=told.percent)

    @fleet.actuator(TakeOff, tries=3, within_s=10, confirm=lambda order: vehicle.is_flying())
    async def take_off(order: Order[TakeOff]) -> None:
        fence.admit(order)
        await vehicle.arm()
        await vehicle.take_off(order.effect.height_m)

    @fleet.actuator(Land, tries=20, within_s=10, confirm=lambda order: vehicle.is_landed())
    async def land(order: Order[Land]) -> None:
        fence.admit(order)
        await vehicle.land()

    return fleet, vehicle


async def until(condition: Callable[[], bool], seconds: float = 240.0) -> None:
    for _ in range(int(seconds / 0.01)):
        if condition():
            return
        await asyncio.sleep(0.01)
    raise AssertionError("it did not come to pass")


def drone_of(live: Live) -> Drone:
    return live.query("Drone/D-1", Drone)


async def test_a_drone_flies_and_lands_when_its_link_is_lost(tmp_path: Path) -> None:
    fleet, vehicle = declare()
    running = fleet.running(journal=f"sqlite:{tmp_path}/drones.db")
    async with running as live, SimulatedVehicle("127.0.0.1", vehicle.port, pace=30.0) as simulated:
        await until(lambda: drone_of(live).battery == 100.0)
        assert isinstance(await live.send("Drone/D-1", Fly(height_m=10.0)), Accepted)
        await until(lambda: drone_of(live).done == ("TakeOff",))
        assert simulated.height_m > 9
        simulated.faults.silent = True
        await until(lambda: bool(drone_of(live).made_safe))
        assert drone_of(live).made_safe == ("no BatteryMeasured for 1.5 s",)
        assert simulated.height_m > 9, "it heard nothing"
        simulated.faults.silent = False
        await until(lambda: simulated.height_m == 0.0)
        assert simulated.acted.count(MavOrder.LAND) >= 1
        await until(lambda: live.standing().owed == 0)
    assert live.standing().counters["safe_failed"] == 0


async def test_what_the_vehicle_refuses_its_agent_hears() -> None:
    fleet, vehicle = declare()
    async with fleet.running(journal="memory:") as live, SimulatedVehicle("127.0.0.1", vehicle.port) as simulated:
        simulated.refuse[MavOrder.ARM] = MavResult.DENIED
        await until(lambda: drone_of(live).battery == 100.0)
        await live.send("Drone/D-1", Fly(height_m=10.0))
        await until(lambda: bool(drone_of(live).failed))
        assert drone_of(live).failed == ("ARM was refused (denied)",)
        assert len([one for one in simulated.heard if getattr(one, "command", 0) == MavOrder.ARM]) == 1
