"""The simulated aircraft, and the loop that flies it."""

from apps.edge_agent.airframe import NOISE_PERCENT, SPEED_M_S_MAX, Airframe
from apps.edge_agent.drone import CRUISE_M, make_height_pid
from stigmergy import Pid

STEP_S = 0.02


def fly(airframe: Airframe, seconds: float, pid: Pid, speed_m_s: float = 0.0) -> list[float]:
    heights: list[float] = []
    for _ in range(round(seconds / STEP_S)):
        airframe.drive(pid.step(CRUISE_M, airframe.height_m, STEP_S), speed_m_s)
        airframe.step(STEP_S)
        heights.append(airframe.height_m)
    return heights


def test_the_pid_holds_the_height() -> None:
    airframe = Airframe()
    airframe.take_off("1")
    heights = fly(airframe, 15, make_height_pid(), 3.0)
    assert max(heights) < CRUISE_M * 1.05
    assert all(abs(height - CRUISE_M) < 0.5 for height in heights[-500:])
    assert abs(airframe.distance_m - 45) < 0.1


def test_a_take_off_is_done_once_per_key() -> None:
    airframe = Airframe()
    airframe.take_off("1")
    airframe.land()
    airframe.step(STEP_S)
    airframe.take_off("1")
    assert (airframe.mode, airframe.take_offs, airframe.seen().repeats) == ("parked", 1, 1)
    airframe.take_off("2")
    assert (airframe.mode, airframe.take_offs) == ("guided", 2)


def test_left_alone_it_hovers_and_then_lands() -> None:
    airframe = Airframe()
    airframe.take_off("1")
    fly(airframe, 8, make_height_pid(), 100.0)
    assert abs(airframe.distance_m - 8 * SPEED_M_S_MAX) < 1
    height, distance = airframe.height_m, airframe.distance_m
    for _ in range(100):
        airframe.step(STEP_S)
    assert airframe.seen().mode == "hovering"
    assert abs(airframe.height_m - height) < 3
    assert airframe.distance_m - distance < 0.6 * SPEED_M_S_MAX
    for _ in range(1000):
        airframe.step(STEP_S)
    assert (airframe.mode, airframe.height_m) == ("parked", 0.0)
    airframe.drive(1.0, 1.0)
    assert airframe.mode == "parked"


def test_the_gauge_is_noisy_and_its_seed_repeats() -> None:
    first, again, other = Airframe(seed=1, battery=50), Airframe(seed=1, battery=50), Airframe(seed=2, battery=50)
    readings = [first.seen().battery for _ in range(200)]
    assert readings == [again.seen().battery for _ in range(200)]
    assert readings != [other.seen().battery for _ in range(200)]
    assert 0.5 * NOISE_PERCENT < (sum((one - 50) ** 2 for one in readings) / 200) ** 0.5 < 1.5 * NOISE_PERCENT


def test_an_empty_battery_brings_it_down() -> None:
    airframe = Airframe(battery=1)
    airframe.take_off("1")
    fly(airframe, 10, make_height_pid())
    assert (airframe.mode, airframe.height_m, airframe.battery) == ("parked", 0.0, 0.0)
