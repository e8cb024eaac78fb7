"""The waker: a timer that goes off a little early by the node's own clock is set again, and nothing is missed."""

import asyncio

from stigmergy.runtime.waking import Waker
from stigmergy.sim.clock import SimClock
from stigmergy.sim.loop import VirtualLoop

SECOND_NS = 1_000_000_000


def test_a_timer_that_comes_too_early_by_the_nodes_clock_is_set_again() -> None:
    """Found by the simulator: with a clock 65 ppm slow the safe action of a silent agent never went out."""
    loop = VirtualLoop(seed=1)
    clock = SimClock(loop)
    clock.set_monotonic_drift(-65)
    turns: list[int] = []
    due_ns = 2 * SECOND_NS

    def turn() -> None:
        now_ns = clock.monotonic_ns()
        turns.append(now_ns)
        if now_ns < due_ns:
            waker.arm(now_ns, due_ns)

    waker = Waker(turn)

    async def main() -> None:
        waker.arm(clock.monotonic_ns(), due_ns)
        await asyncio.sleep(10)

    loop.run(main())
    assert turns[0] < due_ns
    assert turns[-1] >= due_ns
    assert turns[-1] - due_ns < 1_000_000
