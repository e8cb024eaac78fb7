"""The beat: a grid that does not shift, however long each turn takes and however the clocks run."""

import asyncio

import pytest

from stigmergy.base.errors import DefinitionError
from stigmergy.devices.sensors import Ticker, check_every
from stigmergy.sim.loop import SimClock, VirtualLoop


def beat(every_s: float, busy_s: list[float], *, drift_ppm: int = 0) -> tuple[list[float], list[float], int]:
    """The moments of the ticks, when they were taken, and how many were missed."""
    loop = VirtualLoop(seed=1)
    clock = SimClock(loop)
    clock.set_monotonic_drift(drift_ppm)
    ticker = Ticker(clock, every_s)
    due: list[float] = []
    taken: list[float] = []

    async def main() -> None:
        for seconds in busy_s:
            due.append(await ticker.wait_tick() / 1e9)
            taken.append(clock.monotonic_ns() / 1e9)
            await asyncio.sleep(seconds)

    loop.run(main())
    return due, taken, ticker.overruns


def test_the_first_tick_is_at_once_and_the_rest_on_the_grid() -> None:
    due, taken, overruns = beat(0.1, [0.01, 0.09, 0.0, 0.05, 0.0])
    assert due == pytest.approx([0.0, 0.1, 0.2, 0.3, 0.4])
    assert taken == pytest.approx(due)
    assert overruns == 0


def test_what_takes_too_long_costs_the_ticks_it_covers_and_no_other() -> None:
    due, taken, overruns = beat(0.1, [0.25, 0.0, 0.1, 0.1001, 0.0])
    assert due == pytest.approx([0.0, 0.3, 0.4, 0.5, 0.7])
    assert taken == pytest.approx(due)
    assert overruns == 3


def test_ten_thousand_ticks_have_not_drifted() -> None:
    due, taken, overruns = beat(0.01, [0.003] * 10_000)
    assert taken[-1] == pytest.approx(99.99, abs=1e-5)
    assert due[-1] == pytest.approx(99.99, abs=1e-5)
    assert overruns == 0


@pytest.mark.parametrize("ppm", [-400_000, -1, 1, 400_000])
def test_the_devices_monotonic_clock_counts_and_not_the_timers(ppm: int) -> None:
    due, taken, _ = beat(0.1, [0.0] * 50, drift_ppm=ppm)
    assert due == pytest.approx([number / 10 for number in range(50)], abs=1e-6)
    for at, moment in zip(taken, due, strict=True):
        assert at >= moment - 1e-6


def test_a_loop_that_is_always_too_slow_lets_others_run() -> None:
    loop = VirtualLoop(seed=1)
    ticker = Ticker(SimClock(loop), 0.01)
    others = 0

    async def other() -> None:
        nonlocal others
        while True:
            others += 1
            await asyncio.sleep(0)

    async def main() -> None:
        task = asyncio.ensure_future(other())
        for _ in range(10):
            await ticker.wait_tick()
            loop.pause(1.0)
        task.cancel()

    loop.run(main())
    assert others >= 9
    assert ticker.overruns >= 9 * 99


@pytest.mark.parametrize("every_s", [0.0, -1.0, 0.0001, 1e9, float("nan")])
def test_periods_that_cannot_be_kept_are_refused(every_s: float) -> None:
    with pytest.raises(DefinitionError, match="battery: every_s="):
        check_every("battery", every_s)
