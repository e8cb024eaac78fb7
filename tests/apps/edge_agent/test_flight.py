"""Drone and ground station together, in virtual time: missions, silence, cut links, crashes."""

from __future__ import annotations

import asyncio

import pytest

from apps.edge_agent import ground
from apps.edge_agent.airframe import Airframe
from apps.edge_agent.cockpit import OnBoard
from apps.edge_agent.drone import SILENCE_S, Drone, make_fleet
from apps.edge_agent.ground import Launch, Pilot, Recall, RepeatOrder, Watch
from apps.edge_agent.messages import StartMission
from stigmergy import Command, Refused
from stigmergy.bus.memory import MemoryBroker
from stigmergy.sim.node import SimNode
from stigmergy.sim.run import Run


class Field:
    """A drone with its aircraft, a ground station, and a broker between them."""

    def __init__(self, seed: int = 1, battery: float = 100.0) -> None:
        self.world = Run(seed, deadline_s=3600.0)
        self.broker = MemoryBroker()
        self.cockpit = OnBoard(Airframe(seed=seed, battery=battery))
        self.node = SimNode(
            self.world,
            lambda _: make_fleet(self.cockpit),
            name="drone",
            in_memory=True,
            broker=self.broker,
            agents=["Drone/D-17"],
        )
        self.ground = SimNode(self.world, lambda _: ground.fleet, name="ground", in_memory=True, broker=self.broker)

    @property
    def drone(self) -> Drone:
        assert self.node.live is not None
        return self.node.live.query("Drone/D-17", Drone)

    @property
    def pilot(self) -> Pilot:
        assert self.ground.live is not None
        return self.ground.live.query("Pilot/D-17", Pilot)

    async def open(self) -> None:
        await self.node.start()
        await self.ground.start()
        await self.order(Watch())
        await asyncio.sleep(2)

    async def order(self, command: Command) -> None:
        assert self.ground.live is not None
        assert await self.ground.live.send("Pilot/D-17", command)

    async def wait_for(self, phase: str, within_s: float = 60.0) -> float:
        """Returns after how many seconds the drone was so."""
        for tenths in range(round(within_s * 10)):
            if self.drone.phase == phase:
                return tenths / 10
            await asyncio.sleep(0.1)
        raise AssertionError(f"still {self.drone.phase} after {within_s} s, not {phase}")

    async def close(self) -> None:
        """Both stop in order; what the drone has published is what the pilot has counted."""
        await asyncio.sleep(3)
        assert self.node.live is not None
        published = self.node.live.standing().counters["published"]
        told = self.pilot.reports
        if self.node.lives == 1:
            assert told == published
        await self.node.stop()
        await self.ground.stop()
        assert not self.node.logbook.findings
        assert not self.ground.logbook.findings


def test_a_mission_ordered_over_the_broker() -> None:
    field = Field()

    async def scene() -> None:
        await field.open()
        await field.order(Launch(mission="M1", distance_m=60))
        await field.wait_for("flying")
        await field.wait_for("returning")
        assert 9 < field.cockpit.airframe.height_m < 11, "the loop holds the height"
        await field.wait_for("landing")
        await field.wait_for("parked")
        await asyncio.sleep(2)
        pilot, drone = field.pilot, field.drone
        assert (pilot.accepted, pilot.deliveries) == (True, 1)
        assert pilot.doing.endswith("m out: home")
        assert abs((drone.battery or 0) - field.cockpit.airframe.battery) < 1
        assert pilot.reports >= 30
        await field.close()

    field.world.run(scene())


def test_refusals_reach_the_ground_and_repetitions_change_nothing() -> None:
    field = Field(battery=30)

    async def scene() -> None:
        await field.open()
        await field.order(Launch(mission="M1", distance_m=60))
        await asyncio.sleep(1)
        assert field.pilot.accepted is False
        assert field.pilot.refused_because == "battery at 30 %, 34 % needed for 60 m and back"
        await field.order(Launch(mission="M2", distance_m=20))
        await field.wait_for("flying")
        await asyncio.sleep(2)
        await field.order(RepeatOrder())
        await asyncio.sleep(1)
        assert (field.pilot.accepted, field.pilot.answers) == (True, 3), "the answer of before, not 'flying, on M2'"
        assert field.cockpit.airframe.take_offs == 1
        await field.order(Recall(reason="storm"))
        await field.wait_for("parked")
        await asyncio.sleep(1)
        assert field.pilot.deliveries == 0
        assert field.pilot.doing.endswith("storm")
        await field.close()

    field.world.run(scene())


def test_returns_when_low() -> None:
    field = Field(battery=40)

    async def scene() -> None:
        await field.open()
        await field.order(Launch(mission="M1", distance_m=80))
        await field.wait_for("flying")
        field.cockpit.airframe.battery = 24.0  # a cell breaks
        await field.wait_for("returning")
        assert "needed for home" in field.drone.because
        await field.wait_for("parked")
        assert field.drone.deliveries == 0
        assert field.cockpit.airframe.distance_m < 2
        await field.close()

    field.world.run(scene())


@pytest.mark.parametrize("trouble", ["link", "ground", "gauge"])
def test_lands_when_it_hears_nothing(trouble: str) -> None:
    field = Field()

    async def scene() -> None:
        await field.open()
        await field.order(Launch(mission="M1", distance_m=200))
        await field.wait_for("flying")
        await asyncio.sleep(5)
        match trouble:
            case "link":
                field.broker.cut("drone")
            case "ground":
                await field.ground.kill()
            case _:
                field.cockpit.is_silent = True
        after_s = await field.wait_for("landing", within_s=SILENCE_S + 2)
        assert SILENCE_S - 0.6 <= after_s <= SILENCE_S + 0.3
        await asyncio.sleep(8)
        assert field.cockpit.airframe.mode == "parked"
        assert field.cockpit.airframe.distance_m > 10, "where it was, not at home"
        if trouble == "gauge":
            return  # nobody can tell the drone that it has landed
        assert field.drone.phase == "parked"
        live = field.node.live
        assert live is not None
        assert isinstance(await live.send("Drone/D-17", StartMission(mission="M2", distance_m=60)), Refused)
        if trouble == "link":
            assert field.pilot.doing == "flies M1, 200 m out"
            field.broker.restore("drone")
        else:
            await field.ground.start()
        await asyncio.sleep(5)
        assert field.pilot.doing.endswith("no GroundHeard for 3 s")
        assert field.drone.phase == "parked", "the ground is back, but nobody has ordered anything"
        await field.close()

    field.world.run(scene())


def test_survives_a_kill_with_battery_and_mission_intact() -> None:
    field = Field()

    async def scene() -> None:
        await field.open()
        await field.order(Launch(mission="M1", distance_m=60))
        await field.wait_for("flying")
        await asyncio.sleep(5)
        before = field.drone
        await field.node.kill()
        await field.node.start()
        after = field.drone
        assert (after.mission, after.phase, after.goal_m) == ("M1", "flying", 60)
        assert after.battery is not None
        assert before.battery is not None
        assert abs(after.battery - before.battery) < 1
        await field.wait_for("returning")
        await field.wait_for("parked")
        assert field.cockpit.airframe.take_offs == 1, "it went on, and did not begin again"
        await asyncio.sleep(2)
        assert field.pilot.deliveries == 1
        await field.close()

    field.world.run(scene())


@pytest.mark.parametrize("seed", range(3))
def test_random_kills_lose_and_double_nothing(seed: int) -> None:
    field = Field(seed)
    chance = field.world.chance("kills")

    async def scene() -> None:
        await field.open()
        await field.order(Launch(mission="M1", distance_m=60))
        await field.wait_for("flying")
        for _ in range(6):
            await asyncio.sleep(chance.uniform(0.3, 2.5))
            node = chance.choice([field.node, field.ground])
            await node.kill()
            await node.start()
        await field.wait_for("parked", within_s=120)
        await asyncio.sleep(5)
        assert (field.pilot.deliveries, field.drone.deliveries) == (1, 1)
        assert field.pilot.battery == field.drone.reported
        await field.close()

    field.world.run(scene())


def test_two_drones_do_not_disturb_each_other() -> None:
    field = Field()
    cockpit = OnBoard(Airframe(seed=2))
    other = SimNode(
        field.world,
        lambda _: make_fleet(cockpit),
        name="other",
        in_memory=True,
        broker=field.broker,
        agents=["Drone/D-18"],
    )

    async def scene() -> None:
        live = await other.start()
        await field.open()
        assert field.ground.live is not None
        await field.ground.live.send("Pilot/D-18", Watch())
        await field.order(Launch(mission="M1", distance_m=60))
        await field.wait_for("flying")
        field.broker.cut("other")
        await asyncio.sleep(SILENCE_S + 2)
        assert field.drone.phase == "flying", "the other's silence is not ours"
        assert live.agents() == ["Drone/D-18"]
        assert live.query("Drone/D-18", Drone).phase == "parked"
        assert cockpit.airframe.take_offs == 0
        await field.wait_for("parked")
        await other.stop()
        await field.close()

    field.world.run(scene())
