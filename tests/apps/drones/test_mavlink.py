"""A drone behind MAVLink, over UDP with a vehicle that speaks it: an agent's orders fly it, and its fixes come back."""

from __future__ import annotations

import asyncio
import contextlib
import math
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest

from apps.drones.area import Area, stand_of
from apps.drones.drone import Drone
from apps.drones.fleet import make_fleet
from apps.drones.mavlink import MavlinkDrone, Plane
from apps.drones.messages import ArmBox, Commission, Fix, Grip, Land, Release, Site, Steer, TakeJob
from apps.drones.parcels import NEAR_M
from apps.drones.world import World
from stigmergy import (
    Action,
    ActionFailed,
    Agent,
    Command,
    DeviceRefused,
    Effects,
    Event,
    Events,
    Fleet,
    Order,
    StaleOrder,
    StigmergyError,
    Unreachable,
    decide,
    evolve,
    react,
)
from stigmergy.base.errors import LinkDown
from stigmergy.devices.mavlink import Vehicle
from stigmergy.devices.mavlink.messages import MavCommand, MavResult
from stigmergy.testing.vehicle import SimulatedVehicle

AREA = Area(columns=1, rows=1, zone_m=3000.0, regions=1)
NAME, SIMULATED = "r1-0000-007", "r1-0000-001"
ORIGIN = (47.3977, 8.5456)
HOME = stand_of(AREA, "r1-0000", 7)
PACE = 30.0
START_T = 1000.0
JOB = "r1-0000.J1"
PICKUP, DROP = (HOME[0] + 300.0, HOME[1]), (HOME[0] + 300.0, HOME[1] + 240.0)


async def until(condition: Callable[[], object], seconds: float = 60.0) -> None:
    for _ in range(int(seconds / 0.01)):
        if condition():
            return
        await asyncio.sleep(0.01)
    raise AssertionError("it did not come to pass")


class Rig:
    """A world with a simulated drone, and beside it a vehicle that speaks MAVLink, both `PACE` times as fast as we."""

    def __init__(self) -> None:
        self.world = World(AREA, [SIMULATED], 1, START_T)
        self.vehicle = Vehicle("udpin://127.0.0.1:0")
        self.drone = MavlinkDrone(NAME, self.vehicle, ORIGIN, self.world, self.world.parcels, HOME)
        self.count = 0

    async def run(self) -> None:
        loop = asyncio.get_running_loop()
        began_s = loop.time()
        while True:
            self.world.advance(START_T + (loop.time() - began_s) * PACE)
            await asyncio.sleep(0.01)

    def simulated(self) -> SimulatedVehicle:
        place = (*Plane(*ORIGIN).degrees(*HOME), 488.0)
        return SimulatedVehicle("127.0.0.1", self.vehicle.port, pace=PACE, home=place)

    @property
    def fix(self) -> Fix:
        fix = self.drone.fix(NAME)
        assert fix is not None
        return fix

    def is_down(self) -> bool:
        return self.fix.down

    def is_at(self, x: float, y: float, z: float) -> bool:
        return math.dist((self.fix.x, self.fix.y, self.fix.z), (x, y, z)) < 1.0

    async def order(self, action: Action, drone: str = NAME) -> None:
        self.count += 1
        await self.drone.order(drone, action, f"k{self.count}", self.count)

    async def take_down(self, x: float, y: float) -> None:
        await self.order(Steer(x, y, 45.0, 12.0))
        await until(lambda: self.is_at(x, y, 45.0))
        await self.order(Steer(x, y, 0.0, 12.0))
        await until(self.is_down)


@contextlib.asynccontextmanager
async def in_the_air() -> AsyncIterator[tuple[Rig, SimulatedVehicle]]:
    rig = Rig()
    await rig.drone.open()
    running = asyncio.ensure_future(rig.run())
    try:
        async with rig.simulated() as simulated:
            await until(lambda: rig.drone.fix(NAME) is not None)
            yield rig, simulated
    finally:
        running.cancel()
        await rig.drone.close()


def test_the_plane_and_the_degrees_are_the_same_places() -> None:
    plane = Plane(*ORIGIN)
    assert plane.metres(*ORIGIN) == (0.0, 0.0)
    assert plane.metres(ORIGIN[0] + 0.01, ORIGIN[1]) == pytest.approx((0.0, 1111.9), abs=0.1)
    assert plane.metres(ORIGIN[0], ORIGIN[1] + 0.01) == pytest.approx((752.7, 0.0), abs=0.5)
    for place in [(0.0, 0.0), (12_345.6, -789.0), (-20_000.0, 30_000.0)]:
        assert plane.metres(*plane.degrees(*place)) == pytest.approx(place, abs=1e-6)


async def test_it_takes_off_flies_there_and_lands() -> None:
    async with in_the_air() as (rig, simulated):
        assert rig.is_down()
        assert rig.is_at(*HOME, 0.0)
        assert rig.fix.battery == 100.0
        await rig.order(Steer(*HOME, 45.0, 12.0))
        await until(lambda: rig.is_at(*HOME, 45.0))
        assert not rig.is_down()
        await rig.order(Steer(HOME[0] + 400.0, HOME[1] + 300.0, 55.0, 12.0))
        await until(lambda: math.hypot(rig.fix.vx, rig.fix.vy) > 5.0)
        assert rig.fix.vx / rig.fix.vy == pytest.approx(4 / 3, rel=0.2)
        await until(lambda: rig.is_at(HOME[0] + 400.0, HOME[1] + 300.0, 55.0))
        await rig.order(Steer(HOME[0] + 400.0, HOME[1] + 300.0, 0.0, 12.0))
        await until(rig.is_down)
        await until(lambda: rig.is_at(HOME[0] + 400.0, HOME[1] + 300.0, 0.0))
        assert not simulated.armed
        assert simulated.acted[:2] == [MavCommand.ARM, MavCommand.TAKE_OFF]
        assert simulated.acted[-1] == MavCommand.LAND
        assert rig.fix.battery < 100.0


async def test_one_course_from_the_ground_goes_up_and_then_there_and_a_landing_first_there() -> None:
    async with in_the_air() as (rig, _):
        await rig.order(Steer(HOME[0] + 200.0, HOME[1], 30.0, 12.0))
        lowest = math.inf
        while not rig.is_at(HOME[0] + 200.0, HOME[1], 30.0):
            if rig.fix.x > HOME[0] + 20.0:
                lowest = min(lowest, rig.fix.z)
            await asyncio.sleep(0.01)
        assert lowest > 28.0, "it left its column before it was up"
        await rig.order(Steer(*HOME, 0.0, 12.0))
        while not rig.is_down():
            if rig.fix.x > HOME[0] + 20.0:
                assert rig.fix.z > 28.0, "it goes down on the way"
            await asyncio.sleep(0.01)
        # It is `PACE` times as fast as we are: what we saw last of it may be some metres old.
        assert math.dist((rig.fix.x, rig.fix.y), HOME) < NEAR_M
        assert rig.drone.problem == ""


async def test_told_to_land_it_lands_where_it_is_and_forgets_where_it_was_going() -> None:
    async with in_the_air() as (rig, _):
        await rig.order(Steer(HOME[0] + 3000.0, HOME[1], 30.0, 12.0))
        await until(lambda: rig.fix.x > HOME[0] + 100.0)
        await rig.order(Land(reason="enough"))
        await until(rig.is_down)
        assert rig.fix.x < HOME[0] + 2000.0
        await asyncio.sleep(0.5)
        assert rig.is_down()


async def test_the_same_order_again_does_nothing_and_a_stale_one_is_refused() -> None:
    async with in_the_air() as (rig, _):
        up = Steer(*HOME, 45.0, 12.0)
        await rig.drone.order(NAME, up, "a", 5)
        await until(lambda: rig.is_at(*HOME, 45.0))
        await rig.drone.order(NAME, Steer(*HOME, 0.0, 12.0), "b", 6)
        await until(rig.is_down)
        await rig.drone.order(NAME, up, "a", 5)
        with pytest.raises(StaleOrder, match="token 5, and 6"):
            await rig.drone.order(NAME, up, "c", 5)
        await asyncio.sleep(0.3)
        assert rig.is_down()
        with pytest.raises(DeviceRefused, match="has to take off"):
            await rig.drone.order(NAME, Steer(0.0, 0.0, 0.0, 12.0), "d", 7)


async def test_a_refusal_of_the_vehicle_reaches_who_has_ordered_it() -> None:
    async with in_the_air() as (rig, simulated):
        simulated.battery_percent = 5.0
        with pytest.raises(DeviceRefused, match="battery low"):
            await rig.order(Steer(*HOME, 45.0, 12.0))
        simulated.battery_percent = 90.0
        simulated.refuse[MavCommand.ARM] = MavResult.TEMPORARILY_REJECTED
        with pytest.raises(StigmergyError, match="temporarily") as busy:
            await rig.order(Steer(*HOME, 45.0, 12.0))
        assert not isinstance(busy.value, DeviceRefused)
        await asyncio.sleep(0.3)
        assert rig.is_down(), "it flies what was refused"
        simulated.refuse.clear()
        simulated.refuse[MavCommand.REPOSITION] = MavResult.DENIED
        await rig.order(Steer(HOME[0] + 100.0, HOME[1], 45.0, 12.0))
        await until(lambda: rig.drone.problem)
        assert "REPOSITION was refused" in rig.drone.problem
        assert abs(rig.fix.x - HOME[0]) < 1.0
        simulated.refuse.clear()
        await rig.order(Steer(HOME[0] + 100.0, HOME[1], 45.0, 12.0))
        await until(lambda: rig.is_at(HOME[0] + 100.0, HOME[1], 45.0))
        assert rig.drone.problem == ""


async def test_over_a_link_that_loses_a_third_of_all_datagrams_it_still_arrives() -> None:
    async with in_the_air() as (rig, simulated):
        simulated.faults.drop = 0.33
        for _ in range(5):  # as an actuator does
            with contextlib.suppress(LinkDown):
                await rig.drone.order(NAME, Steer(HOME[0] + 100.0, HOME[1], 30.0, 12.0), "a", 1)
        await until(lambda: rig.drone.fix(NAME) is not None and rig.is_at(HOME[0] + 100.0, HOME[1], 30.0))


async def test_a_lost_link_is_silence() -> None:
    async with in_the_air() as (rig, simulated):
        simulated.faults.silent = True
        await until(lambda: rig.drone.fix(NAME) is None)
        with pytest.raises(Unreachable, match="is silent"):
            await rig.order(Steer(*HOME, 45.0, 12.0))
        assert rig.drone.fix(SIMULATED) is not None


async def test_it_delivers_a_parcel_among_the_simulated_ones() -> None:
    async with in_the_air() as (rig, _):
        await rig.drone.arm_box(ArmBox(JOB, 1, Site(*DROP), Site(*PICKUP)), "arm")
        await rig.take_down(*PICKUP)
        await rig.order(Grip(JOB, 1))
        with pytest.raises(DeviceRefused, match="not down at the box"):
            await rig.order(Release(JOB, 1))
        await rig.take_down(*DROP)
        await rig.order(Release(JOB, 1))
        facts = [(one.fact, one.drone) for one in rig.world.facts if one.fact in ("taken", "dropped")]
        assert facts == [("taken", NAME), ("dropped", NAME)]
        await rig.drone.arm_box(ArmBox("J2", 1, Site(*DROP), Site(*DROP)), "arm2")
        await rig.order(Grip("J2", 1))
        await rig.take_down(*HOME)
        await until(lambda: rig.world.parcels.aboard(NAME) is None)
        await rig.order(Steer(500.0, 500.0, 50.0, 12.0), SIMULATED)
        await until(lambda: rig.world.physics.position[2, 0] > 40.0)


# ------------------------------------------------------------------ by an agent


class Visit(Command):
    x: float
    y: float


class VisitBegan(Event):
    x: float
    y: float


class Reached(Event):
    stage: int


class Courier(Agent):
    """Flies somewhere and lands there: it takes off, crosses and goes down when its fixes say that it is so far."""

    x: float = 0.0
    y: float = 0.0
    stage: int = 0
    began: bool = False
    problem: str = ""

    @decide
    def visit(self, command: Visit) -> Events:
        yield VisitBegan(command.x, command.y)

    @evolve
    def begins(self, event: VisitBegan) -> None:
        self.x, self.y, self.began = event.x, event.y, True

    @react
    def take_off(self, event: VisitBegan) -> Effects:
        yield Steer(*HOME, 45.0, 12.0)

    @decide
    def hear(self, fix: Fix) -> Events:
        near = math.dist((fix.x, fix.y), (self.x, self.y)) < 5.0
        reached = (fix.z > 44.0, near, near and fix.down)
        if self.began and self.stage < 3 and reached[self.stage]:
            yield Reached(self.stage + 1)

    @evolve
    def reached(self, event: Reached) -> None:
        self.stage = event.stage

    @react
    def go_on(self, event: Reached) -> Effects:
        if event.stage < 3:
            yield Steer(self.x, self.y, 45.0 if event.stage == 1 else 0.0, 12.0)

    @evolve
    def failed(self, event: ActionFailed) -> None:
        self.problem = event.reason


async def test_an_agent_flies_it_by_its_orders_and_fixes() -> None:
    rig = Rig()
    fleet = Fleet("couriers", agents=[Courier])
    drone = fleet.attach(rig.drone)

    @fleet.sensor(Courier, every_s=0.05)
    async def receiver(name: str) -> Fix | None:
        return drone.fix(name)

    @fleet.actuator(Steer, tries=5, within_s=5.0)
    async def steer(order: Order[Steer]) -> None:
        await drone.order(order.agent.partition("/")[2], order.effect, order.key, order.token)

    running = asyncio.ensure_future(rig.run())
    async with fleet.running(journal="memory:", agents=[f"Courier/{NAME}"]) as live, rig.simulated() as simulated:
        await until(lambda: drone.fix(NAME) is not None)
        await live.send(f"Courier/{NAME}", Visit(x=PICKUP[0], y=PICKUP[1]))
        await until(lambda: live.query(f"Courier/{NAME}", Courier).stage == 3)
        assert live.query(f"Courier/{NAME}", Courier).problem == ""
        assert not simulated.armed
        await until(lambda: rig.is_at(*PICKUP, 0.0))
    running.cancel()


async def test_the_drone_of_the_swarm_delivers_with_it_as_with_any_other(tmp_path: Path) -> None:
    rig = Rig()
    fleet = make_fleet(rig.drone)
    drone = fleet.attach(rig.drone)

    @fleet.sensor(Drone, every_s=0.5 / PACE)
    async def receiver(name: str) -> Fix | None:
        return drone.fix(name)

    address = f"Drone/{NAME}"
    running = asyncio.ensure_future(rig.run())
    node = fleet.running(journal="memory:", ledger="memory:mavlink", views="memory:", key=tmp_path / "key")
    async with node as live, rig.simulated() as simulated:
        await until(lambda: drone.fix(NAME) is not None)
        await live.send(address, Commission(AREA, Site(*HOME)))
        await until(lambda: live.query(address, Drone).battery > 90.0)
        await drone.arm_box(ArmBox(JOB, 1, Site(*DROP), Site(*PICKUP)), "arm")
        await live.send(address, TakeJob(JOB, 1, Site(*PICKUP), Site(*DROP), 1.0))
        await until(lambda: any(one.fact == "dropped" for one in rig.world.facts))
        await until(lambda: live.query(address, Drone).mode == "parked")
        assert live.query(address, Drone).job == ""
        assert not simulated.armed
    facts = [(one.fact, one.drone) for one in rig.world.facts if one.fact in ("taken", "dropped", "drop_refused")]
    assert facts == [("taken", NAME), ("dropped", NAME)]
    running.cancel()
