"""A fleet that is fitted out for MAVLink in one line: a whole mission, two vehicles on one node, and who has none."""

import asyncio
from collections.abc import Callable

import pytest

from stigmergy import (
    ActionDone,
    ActionFailed,
    Agent,
    Command,
    Effects,
    Event,
    Events,
    Fleet,
    Live,
    Settings,
    WhenStale,
    decide,
    evolve,
    react,
)
from stigmergy.base.errors import DefinitionError
from stigmergy.devices.mavlink import (
    BatteryRead,
    GoTo,
    Land,
    PositionRead,
    ReturnHome,
    StatusRead,
    TakeOff,
    Vehicle,
    fit,
)
from stigmergy.testing.vehicle import SimulatedVehicle

PLACE = (47.3981, 8.5460)


class Deliver(Command):
    pass


class Begun(Event):
    pass


class Drone(Agent):
    percent: float = 0.0
    height_m: float = 0.0
    landed: str = ""
    done: tuple[str, ...] = ()
    failed: tuple[str, ...] = ()

    silent = WhenStale(BatteryRead, after_s=5.0, then=Land(reason="silent"))

    @decide
    def deliver(self, command: Deliver) -> Events:
        yield Begun()

    @react
    def begin(self, event: Begun) -> Effects:
        yield TakeOff(height_m=8.0)
        yield GoTo(latitude=PLACE[0], longitude=PLACE[1], height_m=12.0)
        yield ReturnHome()

    @evolve
    def battery(self, event: BatteryRead) -> None:
        self.percent = event.percent

    @evolve
    def position(self, event: PositionRead) -> None:
        self.height_m = event.height_m

    @evolve
    def status(self, event: StatusRead) -> None:
        self.landed = event.landed

    @evolve
    def was_done(self, event: ActionDone) -> None:
        self.done = (*self.done, event.action)

    @evolve
    def was_not_done(self, event: ActionFailed) -> None:
        self.failed = (*self.failed, event.reason)


class Deaf(Agent):
    @react
    def begin(self, event: Begun) -> Effects:
        yield Land()


async def until(condition: Callable[[], bool], seconds: float = 240.0) -> None:
    for _ in range(int(seconds / 0.01)):
        if condition():
            return
        await asyncio.sleep(0.01)
    raise AssertionError("it did not come to pass")


def drone_of(live: Live, name: str) -> Drone:
    return live.query(f"Drone/{name}", Drone)


async def test_a_mission_in_order_each_step_seen_before_the_next() -> None:
    fleet = Fleet("drones", agents=[Drone])
    vehicle = Vehicle("udpin://127.0.0.1:0")
    fit(fleet, Drone, vehicle, every_s=0.1)
    running = fleet.running(journal="memory:", agents=["Drone/D-1"])
    async with running as live, SimulatedVehicle("127.0.0.1", vehicle.port, pace=30.0) as simulated:
        await until(lambda: drone_of(live, "D-1").percent == 100.0)
        await live.send("Drone/D-1", Deliver())
        await until(lambda: drone_of(live, "D-1").height_m > 11.0)
        await until(lambda: len(drone_of(live, "D-1").done) == 3)
        drone = drone_of(live, "D-1")
        assert drone.done == ("mavlink.TakeOff", "mavlink.GoTo", "mavlink.ReturnHome")
        assert drone.failed == ()
        assert not simulated.armed
        await until(lambda: drone_of(live, "D-1").landed == "on_ground")


async def test_each_agent_has_its_own_vehicle_and_who_has_none_is_told() -> None:
    fleet = Fleet("drones", agents=[Drone], settings=Settings(drain_s=0.5))
    one, other = Vehicle("udpin://127.0.0.1:0"), Vehicle("udpin://127.0.0.1:0")
    fit(fleet, Drone, {"D-1": one, "D-2": other}, every_s=0.1)
    async with (
        fleet.running(journal="memory:") as live,
        SimulatedVehicle("127.0.0.1", one.port, pace=30.0) as first,
        SimulatedVehicle("127.0.0.1", other.port, pace=30.0) as second,
    ):
        first.battery_percent, second.battery_percent = 60.0, 40.0
        await until(lambda: drone_of(live, "D-1").percent == 60.0 and drone_of(live, "D-2").percent == 40.0)
        await live.send("Drone/D-2", Deliver())
        await until(lambda: drone_of(live, "D-2").done[:1] == ("mavlink.TakeOff",))
        assert not first.armed
        await live.send("Drone/D-3", Deliver())
        await until(lambda: len(drone_of(live, "D-3").failed) == 3)
        assert set(drone_of(live, "D-3").failed) == {"Drone/D-3 has no vehicle on this node"}


def test_only_what_an_agent_has_handlers_for_is_read() -> None:
    fleet = Fleet("deaf", agents=[Deaf])
    fit(fleet, Deaf, Vehicle("udpin://127.0.0.1:0"))
    assert fleet.sensors == {}
    assert len(fleet.attachments) == 1
    both = Fleet("drones", agents=[Drone])
    fit(both, Drone, Vehicle("udpin://127.0.0.1:0"))
    assert sorted(both.sensors) == [
        "mavlink battery of Drone",
        "mavlink position of Drone",
        "mavlink status of Drone",
    ]
    with pytest.raises(DefinitionError, match="Deaf is no agent class"):
        fit(both, Deaf, Vehicle("udpin://127.0.0.1:0"))
