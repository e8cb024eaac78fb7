"""The controller: it reaches what is wanted, never leaves its limits, does not wind up, and takes no nonsense."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stigmergy.base.errors import DefinitionError
from stigmergy.devices.pid import Pid

DT_S = 0.01


def simulate(pid: Pid, wanted: float, seconds: float, *, start: float = 0.0, lag_s: float = 0.5) -> list[float]:
    """A first-order plant that follows the output with a lag; what it measured at every step."""
    value, seen = start, []
    for _ in range(int(seconds / DT_S)):
        value += (pid.step(wanted, value, DT_S) - value) * DT_S / lag_s
        seen.append(value)
    return seen


def test_a_proportional_controller_is_a_gain() -> None:
    assert Pid(kp=2.0).step(3.0, 1.0, DT_S) == 4.0
    assert Pid(kp=2.0).step(3.0, -1.0, DT_S) == 8.0
    unlimited = Pid(kp=1.0)
    assert (unlimited.low, unlimited.high, unlimited.ki, unlimited.kd) == (-math.inf, math.inf, 0.0, 0.0)


def test_the_integral_takes_the_lasting_error_away() -> None:
    without = simulate(Pid(kp=2.0), 1.0, 20.0)[-1]
    with_it = simulate(Pid(kp=2.0, ki=1.0), 1.0, 20.0)[-1]
    assert without == pytest.approx(2 / 3, abs=0.01)
    assert with_it == pytest.approx(1.0, abs=0.001)


def test_the_integral_does_not_wind_up_at_a_limit() -> None:
    pid = Pid(kp=1.0, ki=2.0, low=0.0, high=1.0)
    for _ in range(10_000):
        assert pid.step(100.0, 0.0, DT_S) == 1.0  # it can never get there
    assert 0.0 <= pid.integral <= 1.0
    # At once when the wish is modest again, and not after the hundred seconds that it was not.
    assert pid.step(0.0, 5.0, DT_S) == 0.0


def test_the_integral_comes_back_from_either_limit() -> None:
    pid = Pid(kp=0.0, ki=1.0, low=-1.0, high=1.0)
    for sign in (1.0, -1.0, 1.0):
        for _ in range(1_000):
            pid.step(sign, 0.0, DT_S)
        assert pid.integral == pytest.approx(sign, abs=0.02)


def test_at_a_limit_the_integral_still_moves_back_from_it() -> None:
    high = Pid(kp=1.0, ki=1.0, low=-10.0, high=1.0)
    high.reset(output=1.0)
    low = Pid(kp=1.0, ki=1.0, low=-1.0, high=10.0)
    low.reset(output=-1.0)
    high.kd, low.kd = 1.0, 1.0
    for pid, way in ((high, 1.0), (low, -1.0)):
        pid.step(0.0, 10 * way, 1.0)
        before = pid.integral
        pid.step(0.0, way, 1.0)  # the measurement falls fast: the derivative holds the output at its limit
        assert abs(pid.integral) < abs(before) or pid.integral * way < 0


def test_every_term_of_the_output_is_what_the_formula_says() -> None:
    pid = Pid(kp=3.0, ki=0.5, kd=0.25, smooth_s=1.5)
    # The first measurement has no rate: 3 * (10 - 4) + 0.5 * 6 * 2.
    assert pid.step(10.0, 4.0, 2.0) == 18.0 + 6.0
    assert pid.integral == 6.0
    # Then the rate is (7 - 4) / 0.5, of which the filter lets 0.5 / (1.5 + 0.5) through.
    assert pid.step(10.0, 7.0, 0.5) == 9.0 - 0.25 * 1.5 + (6.0 + 0.75)
    assert pid.integral == 6.75
    # And then what the filter held goes on: 1.5 + (-4 - 1.5) / 4.
    assert pid.step(10.0, 5.0, 0.5) == 15.0 - 0.25 * 0.125 + (6.75 + 1.25)


def test_the_integral_takes_all_that_the_output_can_use() -> None:
    for way in (1.0, -1.0):
        pid = Pid(kp=0.0, ki=1.0, low=-1.0, high=1.0)
        assert pid.step(way, 0.0, 0.5) == 0.5 * way
        assert pid.step(way, 0.0, 0.5) == way, "exactly to its limit"
        assert pid.step(way, 0.0, 0.25) == way
        assert pid.integral == way
        assert pid.step(-way, 0.0, 0.25) == 0.75 * way


def test_beyond_a_limit_the_integral_takes_nothing_that_leads_further() -> None:
    for way in (1.0, -1.0):
        pid = Pid(kp=1.0, ki=1.0, low=-3.0, high=3.0)
        assert pid.step(way, 0.0, 1.0) == 2 * way
        assert pid.integral == way
        assert pid.step(2 * way, 0.0, 1.0) == 3 * way, "2 + 1 + 2 is beyond it"
        assert pid.integral == way
        assert pid.step(way, 0.0, 1.0) == 3 * way, "1 + 1 + 1 is not"
        assert pid.integral == 2 * way


def test_beyond_a_limit_the_integral_goes_back() -> None:
    for way in (1.0, -1.0):
        pid = Pid(kp=0.0, ki=1.0, kd=10.0, low=-2.0, high=2.0)
        pid.reset(output=way)
        assert pid.step(0.0, 0.0, 1.0) == way
        # The measurement falls by a half: the derivative gives 5, the error takes a quarter from the integral.
        assert pid.step(-0.75 * way, -0.5 * way, 1.0) == 2 * way
        assert pid.integral == 0.75 * way


def test_a_new_set_point_gives_no_kick() -> None:
    pid = Pid(kp=0.0, kd=10.0)
    pid.step(0.0, 5.0, DT_S)
    assert pid.step(1_000.0, 5.0, DT_S) == 0.0
    assert pid.step(1_000.0, 5.1, DT_S) == pytest.approx(-100.0)


def test_the_derivative_is_smoothed() -> None:
    rough, smooth = Pid(kp=0.0, kd=1.0), Pid(kp=0.0, kd=1.0, smooth_s=0.09)
    for pid in (rough, smooth):
        pid.step(0.0, 0.0, DT_S)
    assert rough.step(0.0, 1.0, DT_S) == pytest.approx(-100.0)
    assert smooth.step(0.0, 1.0, DT_S) == pytest.approx(-10.0)


@pytest.mark.parametrize("bad", [math.nan, float("inf"), -math.inf])
def test_of_what_is_no_number_nothing_is_remembered(bad: float) -> None:
    pid, other = Pid(kp=1.0, ki=1.0, kd=1.0), Pid(kp=1.0, ki=1.0, kd=1.0)
    last = pid.step(1.0, 0.5, DT_S)
    other.step(1.0, 0.5, DT_S)
    assert pid.step(bad, 0.5, DT_S) == pid.step(1.0, bad, DT_S) == pid.step(1.0, 0.5, bad) == last
    assert pid.step(1.0, 0.6, DT_S) == other.step(1.0, 0.6, DT_S)


@pytest.mark.parametrize("dt_s", [0.0, -1.0])
def test_time_that_does_not_pass_changes_nothing(dt_s: float) -> None:
    pid = Pid(kp=1.0, ki=1.0)
    last = pid.step(1.0, 0.0, DT_S)
    assert pid.step(5.0, 0.0, dt_s) == last


def test_an_output_that_overflows_is_not_given() -> None:
    pid = Pid(kp=1e308)
    last = pid.step(1.0, 0.0, DT_S)
    assert pid.step(1e308, -1e308, DT_S) == last
    assert math.isfinite(pid.step(2.0, 0.0, DT_S))


def test_reset_forgets_and_can_begin_without_a_jump() -> None:
    pid = Pid(kp=1.0, ki=1.0, kd=1.0, low=0.0, high=10.0)
    first = pid.step(1.0, 0.0, DT_S)
    pid.step(5.0, 2.0, DT_S)
    pid.reset()
    assert pid.step(1.0, 0.0, DT_S) == first
    pid.reset(output=4.0)
    assert pid.step(1.0, 1.0, DT_S) == 4.0
    pid.reset(output=40.0)
    assert pid.integral == 10.0
    assert pid.step(math.nan, 0.0, DT_S) == 10.0, "where it began, until there is a measurement"
    pid.reset(output=-40.0)
    assert pid.integral == 0.0
    low = Pid(kp=1.0, low=2.0, high=3.0)
    assert (low.integral, low.step(math.nan, 0.0, DT_S)) == (0.0, 2.0)


@pytest.mark.parametrize(
    "wrong",
    [
        {"kp": math.nan},
        {"kp": 1.0, "ki": math.inf},
        {"kp": 1.0, "low": 1.0, "high": 1.0},
        {"kp": 1.0, "low": math.nan},
        {"kp": 1.0, "kd": math.nan},
        {"kp": 1.0, "low": 2.0, "high": 1.0},
        {"kp": 1.0, "smooth_s": -1.0},
        {"kp": 1.0, "smooth_s": -0.001},
        {"kp": 1.0, "smooth_s": float("inf")},
        {"kp": 1.0, "smooth_s": math.nan},
    ],
)
def test_what_cannot_be_meant_is_refused(wrong: dict[str, float]) -> None:
    with pytest.raises(DefinitionError):
        Pid(**wrong)


numbers = st.floats(allow_nan=True, allow_infinity=True)


@given(st.lists(st.tuples(numbers, numbers, numbers), max_size=50))
def test_whatever_comes_the_output_stays_in_its_limits(steps: list[tuple[float, float, float]]) -> None:
    pid = Pid(kp=3.0, ki=2.0, kd=1.0, low=-1.0, high=2.0, smooth_s=0.1)
    for wanted, measured, dt_s in steps:
        assert -1.0 <= pid.step(wanted, measured, dt_s) <= 2.0
        assert -1.0 <= pid.integral <= 2.0
