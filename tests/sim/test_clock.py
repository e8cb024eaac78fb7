"""Simulated clocks: a device's wall clock may do anything, its monotonic clock never goes back."""

import asyncio

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stigmergy.base.clock import Clock, Entropy
from stigmergy.base.system import SystemClock, SystemEntropy
from stigmergy.sim.loop import NS, WALL_START_NS, SimClock, SimEntropy, VirtualLoop, run


def clock_on_a_loop(**options: int) -> tuple[VirtualLoop, SimClock]:
    loop = VirtualLoop(seed=1)
    clock = SimClock(loop, **options)
    loop.close()  # a closed loop still has a time, and `pause` moves it
    return loop, clock


def test_the_adapters_fit_their_ports() -> None:
    _, simulated = clock_on_a_loop()
    clocks: list[Clock] = [simulated, SystemClock()]
    entropies: list[Entropy] = [SimEntropy(1), SystemEntropy()]
    for clock in clocks:
        assert clock.monotonic_ns() <= clock.monotonic_ns()
        assert clock.wall_ns() > 1_600_000_000 * NS
    for entropy in entropies:
        assert [len(entropy.token(size)) for size in (0, 1, 32)] == [0, 1, 32]
        assert entropy.token(16) != entropy.token(16)


def test_both_clocks_follow_virtual_time() -> None:
    async def main() -> tuple[int, int]:
        loop = asyncio.get_running_loop()
        assert isinstance(loop, VirtualLoop)
        clock = SimClock(loop)
        await asyncio.sleep(1.5)
        return clock.wall_ns(), clock.monotonic_ns()

    assert run(main(), seed=1) == (WALL_START_NS + 1_500_000_000, 1_500_000_000)
    assert run(main(), seed=1, wall_start_ns=7) == (7 + 1_500_000_000, 1_500_000_000)


def test_a_clock_made_later_agrees_with_one_made_earlier() -> None:
    loop, early = clock_on_a_loop()
    loop.pause(5)
    late = SimClock(loop)
    assert (late.wall_ns(), late.monotonic_ns()) == (early.wall_ns(), early.monotonic_ns())


@pytest.mark.parametrize("seconds", [3600, -3600, 0.25])
def test_a_jump_moves_the_wall_clock_only(seconds: float) -> None:
    loop, clock = clock_on_a_loop()
    loop.pause(10)
    clock.jump(seconds)
    loop.pause(1)
    assert clock.wall_ns() == WALL_START_NS + 11 * NS + round(seconds * NS)
    assert clock.monotonic_ns() == 11 * NS


def test_drift_counts_from_the_moment_it_is_set() -> None:
    loop, clock = clock_on_a_loop()
    loop.pause(1_000)
    clock.set_drift(50)
    loop.pause(1_000)
    assert clock.wall_ns() == WALL_START_NS + 2_000 * NS + 50_000_000
    clock.set_drift(-50)
    loop.pause(1_000)
    assert clock.wall_ns() == WALL_START_NS + 3_000 * NS
    assert clock.monotonic_ns() == 3_000 * NS


def test_the_monotonic_clock_can_drift_too() -> None:
    loop, clock = clock_on_a_loop()
    clock.set_monotonic_drift(100)
    loop.pause(1_000)
    assert clock.monotonic_ns() == 1_000 * NS + 100_000_000
    assert clock.wall_ns() == WALL_START_NS + 1_000 * NS


def test_a_frozen_wall_clock_stands_still_and_goes_on_with_its_drift() -> None:
    loop, clock = clock_on_a_loop()
    clock.set_drift(1_000)
    clock.freeze()
    loop.pause(60)
    assert clock.wall_ns() == WALL_START_NS
    assert clock.monotonic_ns() == 60 * NS
    clock.jump(5)
    assert clock.wall_ns() == WALL_START_NS + 5 * NS, "a person can set a clock that stands"
    clock.thaw()
    loop.pause(1)
    assert clock.wall_ns() == WALL_START_NS + 6 * NS + 1_000_000


def test_boot_in_1970() -> None:
    loop, clock = clock_on_a_loop()
    loop.pause(9)
    clock.boot_in_1970()
    loop.pause(1)
    assert clock.wall_ns() == NS
    clock.jump(-3600)
    assert clock.wall_ns() == 0, "Linux has no time before 1970"
    assert clock.monotonic_ns() == 10 * NS
    _, other = clock_on_a_loop(wall_start_ns=0)
    assert other.wall_ns() == 0


@pytest.mark.parametrize("ppm", [500_001, -500_001])
def test_absurd_drift_is_refused(ppm: int) -> None:
    _, clock = clock_on_a_loop()
    with pytest.raises(ValueError, match="ppm"):
        clock.set_drift(ppm)
    with pytest.raises(ValueError, match="ppm"):
        clock.set_monotonic_drift(ppm)


FAULTS = st.one_of(
    st.tuples(st.just("pause"), st.floats(0, 1e5)),
    st.tuples(st.just("jump"), st.floats(-1e6, 1e6)),
    st.tuples(st.just("drift"), st.integers(-500_000, 500_000)),
    st.tuples(st.just("monotonic drift"), st.integers(-500_000, 500_000)),
    st.tuples(st.sampled_from(["freeze", "thaw", "boot"]), st.just(0)),
)


@given(st.lists(FAULTS, max_size=30))
def test_no_fault_turns_the_monotonic_clock_back(faults: list[tuple[str, float]]) -> None:
    loop, clock = clock_on_a_loop()
    last = clock.monotonic_ns()
    for fault, amount in faults:
        match fault:
            case "pause":
                loop.pause(amount)
            case "jump":
                clock.jump(amount)
            case "drift":
                clock.set_drift(int(amount))
            case "monotonic drift":
                clock.set_monotonic_drift(int(amount))
            case "freeze":
                clock.freeze()
            case "thaw":
                clock.thaw()
            case _:
                clock.boot_in_1970()
        assert clock.monotonic_ns() >= last
        assert clock.wall_ns() >= 0
        last = clock.monotonic_ns()


def test_entropy_is_the_seed_s() -> None:
    assert SimEntropy(7).token(32) == SimEntropy(7).token(32)
    tokens = {SimEntropy(seed, stream).token(16) for seed in range(50) for stream in ("", "drone/1", "drone/2")}
    assert len(tokens) == 150


def test_entropy_is_fixed() -> None:
    """A seed in a bug report must give the same bytes in later versions."""
    assert SimEntropy(7, "drone/1").token(8).hex() == "efcd0a7852ec879d"
