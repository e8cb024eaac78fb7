"""Tasks that lose their cancellation are ended all the same."""

import asyncio

from stigmergy.cluster.membership import end_task
from stigmergy.sim.loop import run


def test_a_task_that_swallows_its_cancellation_is_told_again() -> None:
    told = 0

    async def stubborn() -> None:
        nonlocal told
        while True:
            try:
                await asyncio.sleep(60)
            except asyncio.CancelledError:
                told += 1
                if told == 3:
                    raise

    async def main() -> None:
        task = asyncio.ensure_future(stubborn())
        await asyncio.sleep(1)
        await end_task(task)
        assert task.cancelled()

    run(main(), seed=1)
    assert told == 3


def test_one_that_has_ended_or_never_began_is_left_alone() -> None:
    async def fails() -> None:
        raise ValueError("its own affair")

    async def main() -> None:
        await end_task(None)
        task = asyncio.ensure_future(fails())
        await asyncio.sleep(1)
        await end_task(task)

    run(main(), seed=1)
