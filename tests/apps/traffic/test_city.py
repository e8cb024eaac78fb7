"""The fleet on the shipping runtime, in virtual time: controllers, cabinets, a node that dies, devices that fail."""

from __future__ import annotations

import asyncio

import pytest

from apps.traffic.city import Roadside, fleet, make_fleet
from apps.traffic.intersection import SILENCE_S, TICK_S, Intersection
from apps.traffic.messages import ShowPhase, StopAll
from apps.traffic.monitor import SILENCE_S_MAX
from apps.traffic.phases import Phase
from stigmergy import DeviceRefused, Order
from stigmergy.sim.node import SimNode
from stigmergy.sim.run import Run

NAME = "r0c0"
ADDRESS = f"Intersection/{NAME}"


class Corner:
    """One node with one intersection."""

    def __init__(self, seed: int = 1) -> None:
        self.run = Run(seed, deadline_s=3600.0)
        self.roadside = Roadside()
        self.node = SimNode(
            self.run, lambda _: make_fleet(self.roadside), name="corner", in_memory=True, agents=[ADDRESS]
        )

    @property
    def agent(self) -> Intersection:
        assert self.node.live is not None
        return self.node.live.query(ADDRESS, Intersection)

    @property
    def shown(self) -> Phase:
        return self.roadside[NAME].phase

    async def wait_for(self, phase: Phase, within_s: float = 120.0) -> float:
        for tenths in range(round(within_s * 10)):
            if self.shown is phase:
                return tenths / 10
            await asyncio.sleep(0.1)
        raise AssertionError(f"still {self.shown} after {within_s} s, not {phase}")

    async def start(self) -> asyncio.Task[None]:
        clocks = asyncio.ensure_future(self.roadside.run(self.roadside.traffic(1, 1, 1)))
        await self.node.start()
        return clocks

    async def stop(self, clocks: asyncio.Task[None]) -> None:
        clocks.cancel()
        await self.node.stop()
        assert not self.node.logbook.findings


def test_somebody_carries_out_what_makes_safe() -> None:
    fleet.check_safe_actions()


def test_comes_up_and_serves() -> None:
    corner = Corner()

    async def scene() -> None:
        clocks = await corner.start()
        await corner.wait_for(Phase.STREET_GREEN)
        await corner.wait_for(Phase.AVENUE_GREEN)
        await asyncio.sleep(120)
        assert corner.agent.served > 20
        assert corner.roadside[NAME].monitor.trips == 0
        await corner.stop(clocks)

    corner.run.run(scene())


@pytest.mark.parametrize("fault", ["blind", "dark"])
def test_silence_is_red_within_its_time_and_a_tick(fault: str) -> None:
    corner = Corner()

    async def scene() -> None:
        clocks = await corner.start()
        await corner.wait_for(Phase.STREET_GREEN)
        setattr(corner.roadside[NAME], fault, True)
        after_s = await corner.wait_for(Phase.ALL_RED)
        assert SILENCE_S - 0.6 <= after_s <= SILENCE_S + TICK_S
        await asyncio.sleep(30)
        assert corner.shown is Phase.ALL_RED
        setattr(corner.roadside[NAME], fault, False)
        await corner.wait_for(Phase.CLEARING)
        await corner.wait_for(Phase.STREET_GREEN)
        await corner.stop(clocks)

    corner.run.run(scene())


@pytest.mark.parametrize("seed", [0, *(pytest.param(seed, marks=pytest.mark.prove) for seed in range(1, 4))])
def test_a_node_that_dies_leaves_red_lamps_and_goes_on_in_order(seed: int) -> None:
    corner = Corner(seed)
    chance = corner.run.chance("kills")

    async def scene() -> None:
        clocks = await corner.start()
        await corner.wait_for(Phase.STREET_GREEN)
        for _ in range(4):
            await asyncio.sleep(chance.uniform(0.1, 25.0))
            await corner.node.kill()
            down_s = chance.choice((0.2, 1.0, 3.0))
            await asyncio.sleep(down_s)
            if down_s > SILENCE_S_MAX + 0.5:
                assert corner.shown in (Phase.ALL_RED, Phase.CLEARING)
            await corner.node.start()
        await corner.wait_for(Phase.STREET_GREEN)
        await corner.wait_for(Phase.AVENUE_GREEN)
        assert not corner.roadside[NAME].monitor.latched
        await corner.stop(clocks)

    corner.run.run(scene())


def test_a_node_that_stops_leaves_red_lamps() -> None:
    corner = Corner()

    async def scene() -> None:
        clocks = await corner.start()
        await corner.wait_for(Phase.STREET_GREEN)
        await corner.node.stop()
        assert corner.shown is Phase.ALL_RED
        clocks.cancel()

    corner.run.run(scene())


def test_orders_that_must_not_be_obeyed() -> None:
    corner = Corner()

    async def scene() -> None:
        clocks = await corner.start()
        await corner.wait_for(Phase.STREET_GREEN)
        cabinet = corner.roadside[NAME]
        wrong = ShowPhase(phase=Phase.AVENUE_GREEN, number=99)
        order: Order[ShowPhase] = Order(agent=ADDRESS, effect=wrong, key="x", token=1 << 60, sequence=1)
        with pytest.raises(DeviceRefused, match="green ended without yellow"):
            cabinet.show(order)
        assert corner.shown is Phase.ALL_RED
        await asyncio.sleep(2)
        assert corner.agent.phase is Phase.ALL_RED
        cabinet.make_safe()
        with pytest.raises(DeviceRefused, match="made safe a moment ago"):
            cabinet.show(order)
        await corner.stop(clocks)

    corner.run.run(scene())


def test_people_stop_it() -> None:
    corner = Corner()

    async def scene() -> None:
        clocks = await corner.start()
        await corner.wait_for(Phase.STREET_GREEN)
        assert corner.node.live is not None
        assert await corner.node.live.send(ADDRESS, StopAll(reason="accident"))
        await corner.wait_for(Phase.ALL_RED, within_s=0.5)
        await corner.stop(clocks)

    corner.run.run(scene())


def test_a_town_that_is_over_is_not_kept() -> None:
    roadside = Roadside()

    async def ask() -> None:
        _ = roadside["r0c0"]
        assert len(roadside.all()) == 1

    for _ in range(3):
        asyncio.run(ask())
    assert len(roadside._by_loop) == 1
