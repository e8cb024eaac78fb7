"""The waker: what is due sets the clock, but not what no turn can serve; and no timer that goes off early is missed."""

import asyncio

import pytest
from msgspec import Struct

from stigmergy.node.wakeups import Waker
from stigmergy.sim.loop import SimClock, VirtualLoop

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


class Due(Struct):
    """A watch."""

    next_ns: int | None = None


NAMES = ("alarms", "staleness", "ingress", "columns", "committer", "claims")


def turns_in_a_second(due: dict[str, int], *, could_step: bool, turns_max: int = 1_000) -> list[int]:
    """When a host whose watches stay due takes its turns, in a second after one at 0."""
    loop = VirtualLoop(seed=1)
    turns: list[int] = []

    def turn() -> None:
        turns.append(loop.time_ns())
        if len(turns) < turns_max:
            waker.plan(loop.time_ns(), loop.time_ns() + 10 * SECOND_NS, could_step=could_step)

    waker = Waker(turn)
    waker.watches = {name: Due(due.get(name)) for name in NAMES}

    async def main() -> None:
        waker.wake()
        await asyncio.sleep(1)

    loop.run(main())
    return turns


@pytest.mark.parametrize("name", NAMES)
def test_what_only_a_step_serves_brings_no_turn_while_none_is_possible(name: str) -> None:
    assert turns_in_a_second({name: 0}, could_step=False) == [0]
    later_ns = SECOND_NS // 2
    assert turns_in_a_second({name: later_ns}, could_step=False) == [0, later_ns], "one when its time comes"
    others = {other: later_ns for other in NAMES if other != name}
    assert turns_in_a_second({name: 0, **others}, could_step=False) == [0, later_ns], "others are not held up"


def test_what_a_turn_leaves_due_although_it_could_step_is_told_with_its_name() -> None:
    told: list[tuple[str, int]] = []
    due = Due(0)
    loop = VirtualLoop(seed=1)

    async def main() -> None:
        waker = Waker(lambda: None, lambda name, turns: told.append((name, turns)))
        waker.watches = {"alarms": Due(SECOND_NS), "claims": due}
        for now_ns, next_ns in ((1, 1), (2, 2), (3, 4), (5, 5)):
            due.next_ns = next_ns
            waker.plan(now_ns, SECOND_NS, could_step=True)
        waker.plan(6, SECOND_NS, could_step=False)

    loop.run(main())
    assert told == [("claims", 1), ("claims", 2), ("claims", 1)], "in a row"
