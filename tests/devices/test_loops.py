"""Control loops in virtual time: they hold what is wanted, and let go whenever nobody wants it any more."""

import asyncio
from typing import Any

import pytest

from stigmergy.agents.agent import Agent, evolve, react
from stigmergy.agents.effects import ActionDone, ActionFailed, Effects, Order
from stigmergy.agents.messages import Action, Event
from stigmergy.agents.supervision import Supervise
from stigmergy.base.errors import DefinitionError, JournalUnknown, StaleOrder
from stigmergy.devices.loops import SetPoints, Tick
from stigmergy.devices.pid import Pid
from stigmergy.node.declaration import Declaration
from stigmergy.node.settings import Settings
from stigmergy.sim.disk import DiskFault
from stigmergy.sim.node import SimNode
from tests.node.rig import play


class Wanted(Event):
    altitude_m: float


class Broken(Event):
    pass


class Hold(Action):
    altitude_m: float


class Drone(Agent):
    altitude_m: float = 0.0
    failed: tuple[str, ...] = ()
    done: int = 0

    supervision = Supervise(stop_after=1)

    @evolve
    def wanted(self, event: Wanted) -> None:
        self.altitude_m = event.altitude_m

    @react
    def hold(self, event: Wanted) -> Effects:
        yield Hold(altitude_m=event.altitude_m)

    @evolve
    def broken(self, event: Broken) -> None:
        raise ValueError("broken")

    @evolve
    def not_held(self, event: ActionFailed) -> None:
        self.failed = (*self.failed, event.reason)

    @evolve
    def held(self, event: ActionDone) -> None:
        self.done += 1


def now_s() -> float:
    return round(asyncio.get_running_loop().time(), 6)


class Motor:
    """Climbs as it is driven, and knows when it was let go."""

    def __init__(self) -> None:
        self.height_m = 0.0
        self.driven: list[float] = []
        self.safe: list[tuple[str, float]] = []

    def drive(self, climb: float, dt_s: float) -> None:
        self.height_m += climb * dt_s
        self.driven.append(now_s())

    def make_safe(self, agent: str) -> None:
        self.safe.append((agent, now_s()))


def fly(motor: Motor, **options: Any) -> Declaration:
    """A fleet whose loop holds the altitude that is in the agent's durable state."""
    fleet = Declaration("drones", agents=[Drone])
    fleet.actuator(Hold)(lambda order: None)
    pid = Pid(kp=2.0, low=-3.0, high=3.0)

    @fleet.loop(Drone, every_s=0.01, safe=motor.make_safe, **options)
    def hold(tick: Tick[Drone]) -> None:
        assert tick.id == "a"
        motor.drive(pid.step(tick.agent.altitude_m, motor.height_m, tick.dt_s), tick.dt_s)

    return fleet


def counters_of(node: SimNode) -> dict[str, int]:
    assert node.live is not None
    (standing,) = node.live.devices()
    return standing.counters


def test_a_loop_holds_what_the_durable_state_wants() -> None:
    motor = Motor()

    async def main(node: SimNode) -> dict[str, int]:
        live = await node.start()
        await asyncio.sleep(5.0)
        assert motor.driven == [], "nobody is there who wants anything"
        await live.observe("Drone/a", Wanted(altitude_m=10.0))
        await asyncio.sleep(10.0)
        assert motor.height_m == pytest.approx(10.0, abs=0.01)
        await live.observe("Drone/a", Wanted(altitude_m=2.0))
        await asyncio.sleep(10.0)
        return counters_of(node)

    counters = play(fly(motor), main)
    assert motor.height_m == pytest.approx(2.0, abs=0.01)
    assert 1_800 < counters["turns"] <= 2_001
    assert counters["overruns"] == counters["failed"] == 0


def test_no_turn_is_journaled() -> None:
    async def main(node: SimNode) -> None:
        live = await node.start()
        await live.observe("Drone/a", Wanted(altitude_m=1.0))
        await asyncio.sleep(2.0)
        before = live.standing().heads
        await asyncio.sleep(100.0)
        assert live.standing().heads == before

    play(fly(Motor()), main)


def test_a_loop_beats_evenly_and_its_first_step_is_a_period() -> None:
    fleet = Declaration("drones", agents=[Drone])
    ticks: list[tuple[float, float]] = []

    @fleet.loop(Drone, every_s=0.02)
    async def slow_at_times(tick: Tick[Drone]) -> None:
        ticks.append((now_s(), tick.dt_s))
        await asyncio.sleep(0.05 if len(ticks) == 3 else 0.001)

    async def main(node: SimNode) -> dict[str, int]:
        live = await node.start()
        await live.observe("Drone/a", Broken())  # an agent is there, if only for its failure
        await asyncio.sleep(0.2)
        live.resume("Drone/a", by="ada")
        await asyncio.sleep(0.5)
        await live.observe("Drone/a", Wanted(altitude_m=1))
        await asyncio.sleep(1.0)
        return counters_of(node)

    counters = play(fleet, main, agents=["Drone/a"])
    start_s = ticks[0][0]
    grid = [round(at_s - start_s, 6) for at_s, _ in ticks[:5]]
    assert grid == [0.0, 0.02, 0.04, 0.1, 0.12]
    assert [round(dt_s, 6) for _, dt_s in ticks[:5]] == [0.02, 0.02, 0.02, 0.06, 0.02]
    assert counters["overruns"] == 2


def test_a_stopped_agent_is_let_go_and_taken_up_again() -> None:
    motor = Motor()

    async def main(node: SimNode) -> None:
        live = await node.start()
        await live.observe("Drone/a", Wanted(altitude_m=10.0))
        await asyncio.sleep(2.0)
        assert motor.safe == []
        await live.observe("Drone/a", Broken())
        stopped_s = now_s()
        await asyncio.sleep(3.0)
        assert [agent for agent, _ in motor.safe] == ["a"]
        assert motor.safe[0][1] <= stopped_s + 0.011
        assert motor.driven[-1] <= stopped_s + 0.011
        live.resume("Drone/a", by="ada")
        await asyncio.sleep(1.0)
        assert motor.driven[-1] > stopped_s + 3.0

    play(fly(motor), main)


def test_when_the_node_stops_or_its_disk_fails_the_loop_lets_go() -> None:
    motor = Motor()

    async def main(node: SimNode) -> None:
        live = await node.start()
        await live.observe("Drone/a", Wanted(altitude_m=10.0))
        await asyncio.sleep(1.0)
        await node.stop()
        ((agent, safe_s),) = motor.safe
        assert agent == "a"
        assert safe_s == pytest.approx(1.0, abs=0.02)
        live = await node.start()
        await asyncio.sleep(1.0)
        node.disk.fail(node.disk.calls + 1, DiskFault.EIO)
        with pytest.raises(JournalUnknown):
            await live.observe("Drone/a", Wanted(altitude_m=5.0))
        failed_s = now_s()
        await asyncio.sleep(1.0)
        assert len(motor.safe) == 2
        assert motor.safe[1][1] <= failed_s + 0.011
        assert motor.driven[-1] <= failed_s + 0.011
        await node.kill()

    play(fly(motor), main, agents=["Drone/a"])


def test_a_machine_without_power_makes_nothing_safe() -> None:
    motor = Motor()

    async def main(node: SimNode) -> None:
        live = await node.start()
        await live.observe("Drone/a", Wanted(altitude_m=10.0))
        await asyncio.sleep(1.0)
        await node.lose_power()
        last = len(motor.driven)
        await asyncio.sleep(1.0)
        assert len(motor.driven) == last > 50

    play(fly(motor), main, agents=["Drone/a"])
    assert motor.safe == []


def test_a_loop_that_fails_is_made_safe_once_and_tried_at_every_turn() -> None:
    fleet = Declaration("drones", agents=[Drone])
    motor = Motor()
    broken = True

    @fleet.loop(Drone, every_s=0.1, safe=motor.make_safe)
    def hold(tick: Tick[Drone]) -> None:
        if broken:
            raise OSError("no gyroscope")
        motor.drive(0.0, tick.dt_s)

    async def main(node: SimNode) -> dict[str, int]:
        nonlocal broken
        live = await node.start()
        await live.observe("Drone/a", Wanted(altitude_m=1.0))
        await asyncio.sleep(1.95)
        broken = False
        await asyncio.sleep(1.0)
        broken = True
        await asyncio.sleep(0.5)
        return counters_of(node)

    counters = play(fleet, main, agents=["Drone/a"])
    assert len(motor.driven) == 10
    # Each turn that fails may have driven something before it did.
    assert counters["failed"] == counters["made_safe"] >= 20


def test_a_safe_output_that_fails_is_tried_again() -> None:
    fleet = Declaration("drones", agents=[Drone])
    tried: list[float] = []

    async def make_safe(agent: str) -> None:
        tried.append(now_s())
        if len(tried) < 4:
            raise OSError("no answer")

    @fleet.loop(Drone, every_s=0.1, safe=make_safe)
    def hold(tick: Tick[Drone]) -> None:
        return

    async def main(node: SimNode) -> dict[str, int]:
        live = await node.start()
        await live.observe("Drone/a", Wanted(altitude_m=1.0))
        await asyncio.sleep(1.0)
        await live.observe("Drone/a", Broken())
        await asyncio.sleep(2.0)
        return counters_of(node)

    counters = play(fleet, main, agents=["Drone/a"])
    assert len(tried) == 4
    assert counters["safe_failed"] == 3


class Pilot:
    """A fleet whose set-points come from the agent's orders, and go stale."""

    def __init__(self, stale_s: float = 0.5) -> None:
        self.points: SetPoints[float] = SetPoints(stale_s=stale_s)
        self.motor = Motor()
        self.fleet = Declaration("drones", agents=[Drone], settings=Settings(effect_tries=3))
        self.orders: list[Order[Hold]] = []

        @self.fleet.actuator(Hold)
        def hold(order: Order[Hold]) -> None:
            self.orders.append(order)
            self.points.put(order, order.effect.altitude_m)

        @self.fleet.loop(Drone, every_s=0.01, safe=self.motor.make_safe, set_points=self.points)
        def turn(tick: Tick[Drone]) -> None:
            wanted = self.points.get(tick.id)
            assert wanted is not None
            self.motor.drive(wanted - self.motor.height_m, tick.dt_s)


def test_a_stale_set_point_lets_go_within_a_turn() -> None:
    pilot = Pilot()

    async def main(node: SimNode) -> None:
        live = await node.start()
        for _ in range(10):
            await live.observe("Drone/a", Wanted(altitude_m=1.0))
            await asyncio.sleep(0.3)
        last_s = now_s() - 0.3
        assert pilot.motor.safe == []
        await asyncio.sleep(5.0)
        ((_, safe_s),) = pilot.motor.safe
        assert safe_s == pytest.approx(last_s + 0.5, abs=0.02)
        await live.observe("Drone/a", Wanted(altitude_m=1.0))
        await asyncio.sleep(0.1)
        assert pilot.motor.driven[-1] == pytest.approx(now_s(), abs=0.02)

    play(pilot.fleet, main)


def test_an_order_that_a_newer_one_overtook_is_refused_and_its_agent_told() -> None:
    pilot = Pilot()

    async def main(node: SimNode) -> Any:
        live = await node.start()
        await live.observe("Drone/a", Wanted(altitude_m=1.0))
        await asyncio.sleep(0.1)
        newest = Order("Drone/a", Hold(altitude_m=7.0), key="safe", token=2**60, sequence=0)
        pilot.points.put(newest, 7.0)
        await live.observe("Drone/a", Wanted(altitude_m=2.0))
        await asyncio.sleep(0.1)
        assert pilot.points.get("a") == 7.0
        pilot.points.put(newest, 8.0)  # the same order again may pass
        assert pilot.points.get("a") == 8.0
        return live.query("Drone/a")

    drone = play(pilot.fleet, main)
    assert drone.done == 1
    assert len(drone.failed) == 1
    assert "a newer decision overtook it" in drone.failed[0]
    assert len(pilot.orders) == 2, "it is of no use to try that again"


def test_set_points_can_be_taken_away() -> None:
    points: SetPoints[float] = SetPoints(stale_s=10)
    order = Order("Drone/a", Hold(altitude_m=1.0), key="k", token=5, sequence=1)

    async def main(node: SimNode) -> None:
        points.put(order, 1.0)
        points.clear(order)
        assert points.get("a") is None
        with pytest.raises(StaleOrder):
            points.put(Order("Drone/a", Hold(altitude_m=1.0), key="k", token=4, sequence=1), 1.0)
        points.put(Order("Drone/b", Hold(altitude_m=1.0), key="k", token=1, sequence=1), 1.0)
        assert points.get("b") == 1.0

    play(Declaration("drones", agents=[Drone]), main)


def test_one_seed_gives_one_order() -> None:
    def once() -> list[float]:
        motor = Motor()

        async def main(node: SimNode) -> None:
            live = await node.start()
            await live.observe("Drone/a", Wanted(altitude_m=3.0))
            await asyncio.sleep(3.0)

        play(fly(motor), main, seed=3, shuffle=True)
        return [*motor.driven, motor.height_m]

    assert once() == once()


def test_what_is_declared_wrongly_is_refused_at_once() -> None:
    fleet = fly(Motor())
    with pytest.raises(DefinitionError, match="one of this name already"):
        fleet.loop(Drone, every_s=1, name="hold")(lambda tick: None)
    with pytest.raises(DefinitionError, match="every_s=0"):
        fleet.loop(Drone, every_s=0)(lambda tick: None)
    with pytest.raises(DefinitionError, match="stale_s=0"):
        SetPoints(stale_s=0)
