"""The world: orders by key and token, parcels and boxes, pads, failures, and what the witness writes down."""

from __future__ import annotations

import asyncio
import json
import math
from pathlib import Path

import numpy as np
import pytest

from apps.drones.area import Area, pad_of, stand_of
from apps.drones.messages import BOX_FULL, ArmBox, ClosedZone, Grip, Land, Release, Site, Steer
from apps.drones.physics import Conditions
from apps.drones.world import HEIGHT_M_MAX, KEYS_PER_DRONE, TICK_S, World
from stigmergy import Action, DeviceRefused, StaleOrder, Unreachable
from stigmergy.sim.run import Run

AREA = Area(columns=2, rows=1, zone_m=3000.0, regions=2)
ONE, OTHER, FAR = "r1-0000-000", "r1-0000-001", "r2-0100-000"
START_T = 1000.0
CALM = Conditions(wind_m_s=2.0, link_lost_per_h=0.0)
PICKUP, DROP = Site(330.0, 330.0), Site(630.0, 330.0)
JOB = "r1-0000.J1"


class Flight:
    """A world, and someone who gives orders: keys and tokens count up by themselves."""

    def __init__(self, folder: Path | None = None, seed: int = 1, conditions: Conditions = CALM) -> None:
        self.world = World(AREA, [ONE, OTHER, FAR], seed, START_T, folder, conditions=conditions)
        self.count = 0

    def order(self, drone: str, action: Action, key: str = "", token: int = 0) -> None:
        self.count += 1
        asyncio.run(self.world.order(drone, action, key or f"k{self.count}", token or self.count))

    def arm(self, token: int, key: str = "", job: str = JOB) -> None:
        self.count += 1
        action = ArmBox(job, token, DROP, PICKUP, kg=2.0)
        asyncio.run(self.world.arm_box(action, key or f"a{self.count}"))

    def pass_s(self, seconds: float) -> None:
        self.world.advance(self.world.now_t() + seconds)

    def take_down(self, drone: str, x: float, y: float) -> None:
        """Flies there and lands."""
        self.order(drone, Steer(x, y, 45.0, 15.0))
        self.pass_s(30)
        self.order(drone, Steer(x, y, 0.0, 15.0))
        for _ in range(600):
            self.pass_s(1)
            fix = self.world.fix(drone)
            if fix is not None and fix.down:
                return
        raise AssertionError(f"{drone} is not down")

    def facts(self, *names: str) -> list[str]:
        """What happened, as `fact drone`."""
        return [f"{one.fact} {one.drone}" for one in self.world.facts if one.fact in names]


# ------------------------------------------------------------------ flying by orders


def test_it_begins_at_home_on_the_ground_and_flies_where_it_is_steered() -> None:
    flight = Flight()
    fix, (x, y) = flight.world.fix(ONE), stand_of(AREA, "r1-0000", 0)
    assert fix is not None
    assert fix.down
    assert fix.t == START_T
    assert math.dist((fix.x, fix.y), (x, y)) < 3.0
    flight.order(ONE, Steer(x, y, 45.0, 15.0))
    flight.pass_s(20)
    fix = flight.world.fix(ONE)
    assert fix is not None
    assert fix.t == flight.world.now_t() == START_T + 20
    assert not fix.down
    assert fix.z == pytest.approx(45.0, abs=1.0)
    flight.order(ONE, Land(reason="enough"))
    flight.pass_s(60)
    assert flight.facts("took_off", "landed") == [f"took_off {ONE}", f"landed {ONE}"]


def test_fixes_come_twice_a_second_and_not_in_between() -> None:
    flight = Flight()
    frames: list[float] = []
    flight.world.each_frame(lambda t, names, frame: frames.append(t))
    flight.world.advance(START_T + 0.44)
    assert flight.world.now_t() == pytest.approx(START_T + 0.4)
    assert frames == []
    flight.world.advance(START_T + 1.6)
    assert frames == pytest.approx([START_T + 0.5, START_T + 1.0, START_T + 1.5])
    assert flight.world.frame()[0] == frames[-1]
    flight.world.advance(START_T)
    assert flight.world.now_t() == pytest.approx(START_T + 1.6), "time went back"


def test_the_same_key_again_does_nothing_and_succeeds() -> None:
    flight = Flight()
    flight.order(ONE, Steer(0.0, 0.0, 45.0, 15.0), key="a", token=1)
    flight.order(ONE, Steer(900.0, 900.0, 45.0, 15.0), key="b", token=2)
    flight.order(ONE, Steer(0.0, 0.0, 45.0, 15.0), key="a", token=1)
    assert flight.world.physics.target[:, 0].tolist() == [900.0, 900.0, 45.0]


def test_a_lower_token_is_refused_for_this_drone_only_and_memory_is_bounded() -> None:
    flight = Flight()
    flight.order(ONE, Steer(0.0, 0.0, 45.0, 15.0), token=5)
    with pytest.raises(StaleOrder, match="token 4"):
        flight.order(ONE, Steer(900.0, 0.0, 45.0, 15.0), token=4)
    flight.order(ONE, Steer(30.0, 0.0, 45.0, 15.0), token=5)
    flight.order(OTHER, Steer(0.0, 0.0, 45.0, 15.0), token=4)
    assert flight.world.physics.target[0, 0] == 30.0
    for token in range(6, 6 + 2 * KEYS_PER_DRONE):
        flight.order(ONE, Steer(0.0, 0.0, 45.0, 15.0), key=f"x{token}", token=token)
    assert len(flight.world._orders._keys[ONE]) == KEYS_PER_DRONE
    with pytest.raises(StaleOrder):
        flight.order(ONE, Steer(900.0, 0.0, 45.0, 15.0), key="x6", token=6)


def test_a_refused_order_changes_nothing_and_may_be_given_again() -> None:
    flight = Flight()
    with pytest.raises(DeviceRefused, match="no course"):
        flight.order(ONE, Steer(math.nan, 0.0, 45.0, 15.0), key="a", token=9)
    with pytest.raises(DeviceRefused, match="no course"):
        flight.order(ONE, Steer(0.0, 0.0, HEIGHT_M_MAX + 1, 15.0), key="a", token=9)
    with pytest.raises(DeviceRefused, match="has to take off"):
        flight.order(ONE, Steer(0.0, 0.0, 0.0, 15.0), key="a", token=9)
    flight.order(ONE, Steer(0.0, 0.0, 45.0, 15.0), key="a", token=8)
    with pytest.raises(DeviceRefused, match="cannot ArmBox"):
        flight.order(ONE, ArmBox(JOB, 1, DROP, PICKUP), token=10)
    with pytest.raises(DeviceRefused, match="no drone D-1"):
        flight.order("D-1", Land(reason=""))
    assert flight.world.fix("D-1") is None


# ------------------------------------------------------------------ parcels


def test_a_parcel_goes_from_the_pick_up_into_the_box_and_weighs_something() -> None:
    flight = Flight()
    flight.arm(1)
    flight.take_down(ONE, PICKUP.x, PICKUP.y)
    flight.order(ONE, Grip(JOB, 1))
    assert flight.world.physics.payload_kg[0] == 2.0
    flight.take_down(ONE, DROP.x, DROP.y)
    flight.order(ONE, Release(JOB, 1), key="release")
    assert flight.world.physics.payload_kg[0] == 0.0
    flight.order(ONE, Release(JOB, 1), key="release")
    assert flight.facts("taken", "dropped", "drop_refused") == [f"taken {ONE}", f"dropped {ONE}"]
    box = flight.world.parcels.box(JOB)
    assert box is not None
    assert box.dropped == (1, ONE)


def test_a_drone_must_be_down_where_the_parcel_is() -> None:
    flight = Flight()
    flight.arm(1)
    with pytest.raises(DeviceRefused, match="not down at the pick-up"):
        flight.order(ONE, Grip(JOB, 1))
    flight.order(ONE, Steer(PICKUP.x, PICKUP.y, 45.0, 15.0))
    flight.pass_s(120)
    with pytest.raises(DeviceRefused, match="in the air"):
        flight.order(ONE, Grip(JOB, 1))
    flight.take_down(ONE, PICKUP.x + 20.0, PICKUP.y)
    with pytest.raises(DeviceRefused, match=r"20 m away|19 m away|21 m away"):
        flight.order(ONE, Grip(JOB, 1))
    flight.take_down(ONE, PICKUP.x, PICKUP.y)
    flight.order(ONE, Grip(JOB, 1))
    with pytest.raises(DeviceRefused, match="not down at the box"):
        flight.order(ONE, Release(JOB, 1))
    assert flight.world.parcels.aboard(ONE) == (JOB, 1)


def test_the_parcel_of_a_lower_token_is_not_given_out_and_that_of_a_higher_one_not_yet() -> None:
    flight = Flight()
    flight.take_down(ONE, PICKUP.x, PICKUP.y)
    with pytest.raises(Unreachable, match="not been armed"):
        flight.order(ONE, Grip(JOB, 1))
    flight.arm(2)
    with pytest.raises(DeviceRefused, match="for token 2 now, not for 1"):
        flight.order(ONE, Grip(JOB, 1))
    with pytest.raises(Unreachable, match="token 3"):
        flight.order(ONE, Grip(JOB, 3))
    flight.order(ONE, Grip(JOB, 2))
    flight.take_down(OTHER, PICKUP.x, PICKUP.y)
    with pytest.raises(DeviceRefused, match=f"{ONE} has taken"):
        flight.order(OTHER, Grip(JOB, 2))


def test_the_box_takes_the_highest_token_only_and_once() -> None:
    flight = Flight()
    flight.arm(1)
    flight.take_down(ONE, PICKUP.x, PICKUP.y)
    flight.order(ONE, Grip(JOB, 1))
    flight.arm(2)
    with pytest.raises(StaleOrder, match="never goes back"):
        flight.arm(1)
    flight.take_down(OTHER, PICKUP.x, PICKUP.y)
    flight.order(OTHER, Grip(JOB, 2))
    flight.take_down(ONE, DROP.x, DROP.y)
    with pytest.raises(DeviceRefused, match="waits for token 2"):
        flight.order(ONE, Release(JOB, 1))
    with pytest.raises(DeviceRefused, match="does not have the parcel"):
        flight.order(ONE, Release(JOB, 2))
    flight.take_down(OTHER, DROP.x, DROP.y)
    flight.order(OTHER, Release(JOB, 2))
    with pytest.raises(DeviceRefused, match=f"{BOX_FULL}: {OTHER} has delivered {JOB} under token 2"):
        flight.order(ONE, Release(JOB, 1))
    flight.arm(2)
    with pytest.raises(DeviceRefused, match=BOX_FULL):
        flight.arm(3)
    flight.take_down(FAR, PICKUP.x, PICKUP.y)
    with pytest.raises(DeviceRefused, match=BOX_FULL):
        flight.order(FAR, Grip(JOB, 3))
    assert flight.facts("dropped") == [f"dropped {OTHER}"]
    assert flight.facts("drop_refused") == [f"drop_refused {ONE}"] * 3


def test_what_was_not_delivered_is_handed_in_at_home() -> None:
    flight = Flight()
    flight.arm(1)
    flight.arm(1, job="r1-0000.J2")
    flight.take_down(ONE, PICKUP.x, PICKUP.y)
    flight.order(ONE, Grip(JOB, 1))
    with pytest.raises(DeviceRefused, match=f"parcel of {JOB} on board"):
        flight.order(ONE, Grip("r1-0000.J2", 1))
    flight.take_down(ONE, *stand_of(AREA, "r1-0000", 0))
    assert flight.facts("handed_in") == [f"handed_in {ONE}"]
    assert flight.world.physics.payload_kg[0] == 0.0
    assert flight.world.parcels.aboard(ONE) is None


def test_a_box_is_armed_once_for_each_key_and_token() -> None:
    flight = Flight()
    flight.arm(1, key="a")
    flight.arm(2, key="b")
    flight.arm(1, key="a")
    flight.arm(2, key="c")
    assert [one.token for one in flight.world.facts if one.fact == "armed"] == [1, 2]


# ------------------------------------------------------------------ pads


def test_it_charges_on_a_pad_and_nowhere_else() -> None:
    flight = Flight()
    flight.world.physics.battery[:] = 50.0
    flight.take_down(ONE, *pad_of(AREA, "r1-0000", 3))
    before = flight.world.physics.battery.copy()
    flight.pass_s(60)
    assert flight.world.physics.battery[0] == pytest.approx(before[0] + 20.0, abs=0.1)
    assert flight.world.physics.battery[1] == 50.0, "a stand is no pad"
    flight.world.fail(ONE, "motor", for_s=10.0)
    left = flight.world.physics.battery[0]
    flight.pass_s(9)
    assert flight.world.physics.battery[0] == left
    flight.pass_s(10)
    assert flight.world.physics.battery[0] > left
    flight.order(ONE, Steer(0.0, 0.0, 45.0, 15.0))
    flight.pass_s(1)
    assert flight.facts("docked", "undocked") == [f"docked {ONE}", f"undocked {ONE}"]
    assert {one.pad for one in flight.world.facts if one.fact == "docked"} == {"pad-r1-0000-3"}


# ------------------------------------------------------------------ failures


def test_with_failed_motors_it_is_silent_and_obeys_nobody_until_it_is_repaired() -> None:
    flight = Flight()
    flight.order(ONE, Steer(500.0, 500.0, 100.0, 15.0))
    flight.pass_s(40)
    flight.world.fail(ONE, "motor", for_s=2.0)
    flight.pass_s(1)
    assert flight.world.fix(ONE) is None
    with pytest.raises(DeviceRefused, match="fetch it"):
        flight.order(ONE, Land(reason=""))
    flight.pass_s(10)
    assert flight.facts("repaired") == [], "it was repaired on its parachute"
    flight.pass_s(60)
    assert flight.facts("failed", "landed", "repaired") == [f"failed {ONE}", f"landed {ONE}", f"repaired {ONE}"]
    fix = flight.world.fix(ONE)
    assert fix is not None
    assert fix.down
    flight.order(ONE, Steer(500.0, 500.0, 45.0, 15.0))
    flight.pass_s(20)
    assert flight.world.physics.position[2, 0] > 30.0


def test_without_radio_it_flies_on_by_orders_and_has_no_link() -> None:
    flight = Flight()
    flight.world.fail(ONE, "radio", for_s=5.0)
    flight.order(ONE, Steer(500.0, 500.0, 60.0, 15.0))
    flight.pass_s(3)
    fix, other = flight.world.fix(ONE), flight.world.fix(OTHER)
    assert fix is not None
    assert other is not None
    assert (fix.link, other.link) == (False, True)
    flight.pass_s(4)
    fix = flight.world.fix(ONE)
    assert fix is not None
    assert fix.link


def test_while_its_computer_restarts_it_is_silent_and_flies_on() -> None:
    flight = Flight()
    flight.order(ONE, Steer(500.0, 500.0, 60.0, 15.0))
    flight.pass_s(20)
    flight.world.fail(ONE, "computer", for_s=5.0)
    before = flight.world.physics.position[:, 0].copy()
    flight.pass_s(4)
    assert flight.world.fix(ONE) is None
    assert np.abs(flight.world.physics.position[:, 0] - before).max() > 20.0
    with pytest.raises(Unreachable, match="restarting"):
        flight.order(ONE, Land(reason=""), key="land", token=99)
    flight.pass_s(2)
    assert flight.world.fix(ONE) is not None
    flight.order(ONE, Land(reason=""), key="land", token=99)


def test_what_fails_twice_is_repaired_when_the_longer_time_is_over() -> None:
    flight = Flight()
    flight.world.fail(ONE, "computer", for_s=20.0)
    flight.pass_s(1)
    flight.world.fail(ONE, "computer", for_s=5.0)
    flight.world.fail(ONE, "computer", for_s=30.0)
    flight.pass_s(25)
    assert flight.world.fix(ONE) is None
    flight.pass_s(6)
    assert flight.world.fix(ONE) is not None
    assert flight.facts("repaired") == [f"repaired {ONE}"]


def test_above_a_jammed_zone_nobody_has_a_link_for_that_time() -> None:
    flight = Flight()

    def links() -> list[bool | None]:
        fixes = [flight.world.fix(name) for name in (ONE, OTHER, FAR)]
        return [None if fix is None else fix.link for fix in fixes]

    flight.world.jam("r1-0000", 5.0)
    flight.pass_s(2)
    assert links() == [False, False, True]
    flight.pass_s(4)
    assert links() == [True, True, True]


def test_what_breaks_by_itself_is_written_down_and_repaired() -> None:
    flight = Flight(conditions=Conditions(failures_per_h=600.0))
    for name in (ONE, OTHER, FAR):
        flight.order(name, Steer(500.0, 500.0, 60.0, 15.0))
    flight.pass_s(300)
    kinds = [one.kind for one in flight.world.facts if one.fact == "failed"]
    assert len(kinds) >= 3
    repaired = [one.kind for one in flight.world.facts if one.fact == "repaired"]
    assert "motor" not in repaired, "nobody fetches it"


def test_an_empty_battery_in_the_air_is_a_fact() -> None:
    flight = Flight()
    flight.order(ONE, Steer(500.0, 500.0, 60.0, 15.0))
    flight.pass_s(30)
    flight.world.physics.battery[0] = 0.1
    flight.pass_s(60)
    assert flight.facts("battery_empty", "landed") == [f"battery_empty {ONE}", f"landed {ONE}"]
    with pytest.raises(DeviceRefused, match="battery is empty"):
        flight.order(ONE, Steer(500.0, 500.0, 60.0, 15.0))


# ------------------------------------------------------------------ the witness


def test_the_witness_writes_down_where_everybody_really_was(tmp_path: Path) -> None:
    flight = Flight(tmp_path)
    true = [flight.world.physics.position.T.copy()]
    flight.world.each_frame(lambda t, names, frame: true.append(flight.world.physics.position.T.copy()))
    flight.order(ONE, Steer(500.0, 500.0, 60.0, 15.0))
    corners = ((0.0, 0.0), (100.0, 0.0), (0.0, 100.0))
    flight.world.announce(ClosedZone("fire", corners, 0.0, 120.0, START_T, START_T + 60))
    flight.world.announce_open("fire")
    flight.pass_s(20.3)
    written = np.memmap(tmp_path / "world.f4", dtype="<f4", mode="r").reshape(-1, 3, 3)
    assert np.allclose(written, np.array(true), atol=0.01)
    assert len(written) == 1 + 20 / TICK_S
    facts = [json.loads(line) for line in (tmp_path / "world.jsonl").read_text().splitlines()]
    assert facts[0] == {"t": START_T, "fact": "world", "seed": 1, "drones": 3, "tick_s": TICK_S}
    drones = [one for one in facts if one["fact"] == "commissioned"]
    assert [(one["drone"], one["index"]) for one in drones] == [(ONE, 0), (OTHER, 1), (FAR, 2)]
    assert sum(one["fact"] == "pad" for one in facts) == 16
    closed = next(one for one in facts if one["fact"] == "zone_closed")
    assert (closed["name"], closed["corners"][1], closed["until_t"]) == ("fire", [100.0, 0.0], START_T + 60)
    assert [one["fact"] for one in facts[-3:]] == ["took_off", "zone_closed", "zone_opened"]
    flight.world.close()


def test_the_same_seed_and_orders_leave_the_same_files(tmp_path: Path) -> None:
    def files(name: str, seed: int) -> tuple[bytes, bytes]:
        flight = Flight(tmp_path / name, seed, Conditions(failures_per_h=20.0))
        flight.arm(1)
        flight.take_down(ONE, PICKUP.x, PICKUP.y)
        flight.world.close()
        return (tmp_path / name / "world.f4").read_bytes(), (tmp_path / name / "world.jsonl").read_bytes()

    assert files("a", 3) == files("b", 3)
    assert files("a", 3) != files("c", 4)


def test_it_runs_on_the_loop_of_the_simulator() -> None:
    run = Run(1, deadline_s=600.0)

    async def scene() -> float:
        world = World(AREA, [ONE], 1, START_T)
        await world.order(ONE, Steer(500.0, 500.0, 60.0, 15.0), "k", 1)
        loop = asyncio.get_running_loop()
        began_s = loop.time()
        for _ in range(200):
            await asyncio.sleep(0.1)
            world.advance(START_T + loop.time() - began_s)
        fix = world.fix(ONE)
        assert fix is not None
        return fix.z

    assert run.run(scene()) > 40.0
