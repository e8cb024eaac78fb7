"""Tasks that lose their cancellation are ended all the same, and one that never ends is named."""

import asyncio

import pytest

from stigmergy.base.errors import Bug
from stigmergy.base.tasks import AGAIN_S, TRIES_MAX, end_tasks, where
from stigmergy.sim.loop import run


class Stubborn:
    """Ends only when it was cancelled so many times."""

    def __init__(self, times: int) -> None:
        self.told = 0
        self._times = times

    async def run(self) -> None:
        while self.told < self._times:
            try:
                await self._wait()
            except asyncio.CancelledError:
                self.told += 1
        raise asyncio.CancelledError

    async def _wait(self) -> None:
        await asyncio.sleep(60)


def test_a_task_that_swallows_its_cancellation_is_told_again() -> None:
    stubborn = Stubborn(3)

    async def main() -> None:
        task, other = asyncio.ensure_future(stubborn.run()), asyncio.ensure_future(asyncio.sleep(60))
        await asyncio.sleep(1)
        await end_tasks(task, other)
        assert [task.cancelled(), other.cancelled()] == [True, True]

    run(main(), seed=1)
    assert stubborn.told == 3


def test_one_that_has_ended_or_never_began_is_left_alone() -> None:
    async def fails() -> None:
        raise ValueError("its own affair")

    async def main() -> None:
        await end_tasks(None)
        task = asyncio.ensure_future(fails())
        await asyncio.sleep(1)
        await end_tasks(task)

    run(main(), seed=1)


def test_one_that_cleans_up_is_not_disturbed() -> None:
    cleaned: list[str] = []

    async def careful() -> None:
        try:
            await asyncio.sleep(60)
        finally:
            await asyncio.sleep(1.0)
            cleaned.append("whole")

    async def main() -> None:
        task = asyncio.ensure_future(careful())
        await asyncio.sleep(1)
        await end_tasks(task)

    run(main(), seed=1)
    assert cleaned == ["whole"]


def test_one_that_never_ends_is_named_with_its_stack() -> None:
    async def main() -> None:
        stubborn = Stubborn(TRIES_MAX + 1)
        task = asyncio.get_running_loop().create_task(stubborn.run(), name="session of shard 7")
        await asyncio.sleep(1)
        begun_s = asyncio.get_running_loop().time()
        with pytest.raises(Bug, match=r"'session of shard 7' at base/test_tasks.py:\d+ run > .*:\d+ _wait > .* sleep"):
            await end_tasks(task)
        assert asyncio.get_running_loop().time() - begun_s < TRIES_MAX * AGAIN_S + 1
        await end_tasks(task)
        assert "its start" in where(task)

    run(main(), seed=1)


def test_who_is_cancelled_while_it_ends_others_ends_them_and_then_itself() -> None:
    stubborn = Stubborn(2)

    async def main() -> None:
        task = asyncio.ensure_future(stubborn.run())
        ending = asyncio.ensure_future(end_tasks(task))
        await asyncio.sleep(0.5)
        ending.cancel()
        with pytest.raises(asyncio.CancelledError):
            await ending
        assert task.cancelled()

    run(main(), seed=1)
