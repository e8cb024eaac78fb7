"""The virtual loop: asyncio's own tools work in it, its order is the seed's, and every way of getting stuck ends."""

import asyncio
import contextlib
import contextvars
import math
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stigmergy.sim.errors import (
    DeadlineExceeded,
    Deadlock,
    FailureIgnored,
    NotSimulated,
    SimulationError,
    StepsExceeded,
)
from stigmergy.sim.loop import _REFUSED, ACTOR, NEVER_NS, NS, VirtualLoop, nanoseconds, run


def virtual() -> VirtualLoop:
    loop = asyncio.get_running_loop()
    assert isinstance(loop, VirtualLoop)
    return loop


# Time.


def test_a_year_passes_at_once() -> None:
    async def main() -> float:
        await asyncio.sleep(365 * 86_400)
        return virtual().time()

    assert run(main(), seed=1, deadline_s=math.inf) == 365 * 86_400


def test_time_stands_still_while_code_runs() -> None:
    async def main() -> tuple[float, float]:
        before = virtual().time()
        for _ in range(1_000):
            await asyncio.sleep(0)
        return before, virtual().time()

    assert run(main(), seed=1) == (0.0, 0.0)


@given(st.floats(min_value=0, max_value=1e8))
def test_a_timer_never_fires_before_its_time(seconds: float) -> None:
    assert nanoseconds(seconds) / NS >= seconds
    assert nanoseconds(seconds) - seconds * NS <= 32  # the spacing of floats at 1e8 seconds


def test_sleeping_towards_a_deadline_gets_there() -> None:
    async def main() -> None:
        loop = virtual()
        deadline = loop.time() + 0.1 + 1e-10
        while loop.time() < deadline:  # noqa: ASYNC110
            await asyncio.sleep((deadline - loop.time()) / 3)

    run(main(), seed=1, steps_max=10_000)


def test_not_a_number_is_no_time() -> None:
    async def main() -> None:
        virtual().call_later(math.nan, print)

    with pytest.raises(ValueError, match="nan"):
        run(main(), seed=1)
    assert nanoseconds(math.inf) == NEVER_NS


def test_pause_makes_timers_late_and_keeps_their_order() -> None:
    async def main() -> list[tuple[str, float]]:
        loop = virtual()
        fired: list[tuple[str, float]] = []
        loop.call_later(3, lambda: fired.append(("three", loop.time())))
        loop.call_later(1, lambda: fired.append(("one", loop.time())))
        loop.call_later(12, lambda: fired.append(("twelve", loop.time())))
        loop.pause(10)
        await asyncio.sleep(5)
        return fired

    assert run(main(), seed=1, shuffle=True) == [("one", 10.0), ("three", 10.0), ("twelve", 12.0)]


def test_pause_does_not_go_back() -> None:
    loop = VirtualLoop(seed=1)
    with pytest.raises(ValueError, match="does not go back"):
        loop.pause(-1)
    loop.close()


# What asyncio promises.


def test_asyncio_tools_work() -> None:
    async def main() -> list[object]:
        results: list[object] = []
        queue: asyncio.Queue[int] = asyncio.Queue(maxsize=1)
        event = asyncio.Event()
        lock = asyncio.Lock()

        async def produce() -> None:
            for number in range(3):
                await queue.put(number)
                await asyncio.sleep(1)
            event.set()

        async def consume() -> None:
            async with lock:
                results.extend([await queue.get() for _ in range(3)])

        await asyncio.gather(produce(), consume())
        await event.wait()
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(5):
                await asyncio.Event().wait()
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(asyncio.sleep(10), 2)
        results.append(await asyncio.wait_for(asyncio.sleep(1, "in time"), 2))
        results.append(virtual().time())
        return results

    assert run(main(), seed=1) == [0, 1, 2, "in time", 11.0]


def test_a_timeout_beats_what_is_due_later_only() -> None:
    async def main() -> str:
        async with asyncio.timeout(1):
            await asyncio.sleep(0.999999999)
        return "done"

    assert run(main(), seed=1) == "done"


def test_runs_under_asyncio_runner() -> None:
    async def main() -> float:
        await asyncio.sleep(9)
        return virtual().time()

    with asyncio.Runner(loop_factory=lambda: VirtualLoop(seed=1)) as runner:
        assert runner.run(main()) == 9.0
        assert runner.run(main()) == 18.0


def test_context_variables_and_names_are_kept() -> None:
    async def main() -> list[str]:
        named = asyncio.create_task(asyncio.sleep(0), name="mine")
        plain = asyncio.create_task(asyncio.sleep(0))
        await asyncio.gather(named, plain)
        return [named.get_name(), plain.get_name()]

    assert run(main(), seed=1) == ["mine", "task-3"]
    assert run(main(), seed=1) == ["mine", "task-3"], "asyncio's own counter would go on"


# Order.


async def race(contenders: int = 8) -> list[str]:
    """Tasks that wake up together, timers of the same instant, and a callback in the midst."""
    loop = asyncio.get_running_loop()
    order: list[str] = []
    gate = asyncio.Event()

    async def contend(name: str) -> None:
        await gate.wait()
        order.append(f"woken {name}")
        await asyncio.sleep(1)
        order.append(f"slept {name}")

    tasks = [asyncio.create_task(contend(str(number))) for number in range(contenders)]
    await asyncio.sleep(0)
    gate.set()
    for number in range(3):
        loop.call_soon(order.append, f"callback {number}")
    for task in tasks:
        await task
    return order


def test_the_default_is_first_in_first_out() -> None:
    expected = [f"woken {n}" for n in range(8)] + [f"callback {n}" for n in range(3)] + [f"slept {n}" for n in range(8)]
    assert run(race(), seed=1) == run(race(), seed=2) == expected


def test_the_default_is_the_order_of_the_real_loop() -> None:
    assert [name for name in asyncio.run(race()) if "slept" not in name] == [
        name for name in run(race(), seed=1) if "slept" not in name
    ]


def test_shuffle_draws_the_order_from_the_seed() -> None:
    orders = {tuple(run(race(), seed=seed, shuffle=True)) for seed in range(20)}
    assert len(orders) == 20
    assert orders == {tuple(run(race(), seed=seed, shuffle=True)) for seed in range(20)}
    for order in orders:
        assert [name for name in order if "callback" in name] == [f"callback {n}" for n in range(3)]
        assert order.index("callback 0") == 8, "callbacks stay behind the wake-ups that came before them"


def test_shuffle_permutes_tasks_that_end_together() -> None:
    async def main() -> list[int]:
        order: list[int] = []

        async def watch(number: int, task: asyncio.Task[None]) -> None:
            await task
            order.append(number)

        tasks = [asyncio.create_task(asyncio.sleep(0)) for _ in range(6)]
        await asyncio.gather(*(watch(number, task) for number, task in enumerate(tasks)))
        return order

    assert len({tuple(run(main(), seed=seed, shuffle=True)) for seed in range(10)}) > 5


def test_shuffle_keeps_plain_callbacks_bound_to_tasks_in_place() -> None:
    async def main() -> list[str]:
        loop = asyncio.get_running_loop()
        order: list[str] = []
        tasks = []
        for number in range(5):
            task = asyncio.create_task(asyncio.sleep(100), name=str(number))
            await asyncio.sleep(0)
            task.add_done_callback(lambda done: order.append(done.get_name()))
            tasks.append(task)
        for task in tasks:
            loop.call_soon(task.cancel)
        await asyncio.sleep(1)
        return order

    runs = [sorted(run(main(), seed=seed, shuffle=True)) for seed in range(5)]
    assert runs == [["0", "1", "2", "3", "4"]] * 5


def test_shuffle_permutes_timers_of_one_instant_only() -> None:
    async def main() -> list[float]:
        order: list[float] = []
        for when in (2.0, 1.0, 2.0, 1.0, 2.0, 1.0):
            asyncio.get_running_loop().call_at(when, order.append, when)
        await asyncio.sleep(3)
        return order

    for seed in range(10):
        assert run(main(), seed=seed, shuffle=True) == [1.0, 1.0, 1.0, 2.0, 2.0, 2.0]


def test_timer_ties_run_in_the_order_of_scheduling() -> None:
    async def main() -> list[int]:
        order: list[int] = []
        for number in range(100):
            asyncio.get_running_loop().call_at(5.0, order.append, number)
        await asyncio.sleep(6)
        return order

    assert run(main(), seed=1) == list(range(100))


def test_many_cancelled_timers_take_no_memory() -> None:
    async def main() -> int:
        loop = virtual()
        for _ in range(10_000):
            loop.call_later(1_000, print).cancel()
        return len(loop._timers._heap)

    assert run(main(), seed=1) <= 1_001


def test_many_finished_tasks_take_no_memory() -> None:
    async def main() -> int:
        for _ in range(10_000):
            await asyncio.create_task(asyncio.sleep(0))
        return len(virtual()._tasks)

    assert run(main(), seed=1) <= 1_001


# Getting stuck.


def test_a_deadlock_names_who_waits_where() -> None:
    async def wait_for_nobody() -> None:
        await asyncio.Event().wait()

    async def main() -> None:
        await asyncio.create_task(wait_for_nobody(), name="the waiter")

    with pytest.raises(Deadlock, match=r"seed 42, at 0 virtual seconds: deadlock") as caught:
        run(main(), seed=42)
    assert "the waiter at Event.wait (locks.py:" in str(caught.value)
    assert "main at " in str(caught.value)


def test_a_cancelled_timer_is_no_way_out_of_a_deadlock() -> None:
    async def main() -> None:
        virtual().call_later(5, print).cancel()
        await asyncio.Event().wait()

    with pytest.raises(Deadlock, match="at 0 virtual seconds"):
        run(main(), seed=1)


def test_the_virtual_deadline_ends_a_run() -> None:
    async def main() -> None:
        while True:  # noqa: ASYNC110
            await asyncio.sleep(7)

    with pytest.raises(DeadlineExceeded, match="deadline of 100 virtual seconds"):
        run(main(), seed=1, deadline_s=100)


def test_a_pause_does_not_slip_past_the_deadline() -> None:
    async def main() -> None:
        virtual().pause(101)
        await asyncio.sleep(0)

    with pytest.raises(DeadlineExceeded):
        run(main(), seed=1, deadline_s=100)


def test_a_busy_loop_ends() -> None:
    async def main() -> None:
        while True:  # noqa: ASYNC110
            await asyncio.sleep(0)

    with pytest.raises(StepsExceeded, match="not done after 1000 callbacks"):
        run(main(), seed=1, steps_max=1_000)


def test_a_moment_that_never_ends_names_whose_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("stigmergy.sim.loop.INSTANT_STEPS_MAX", 1_000)

    async def spin() -> None:
        while True:  # noqa: ASYNC110
            await asyncio.sleep(0)

    async def main() -> None:
        ACTOR.set("node-7")
        task = asyncio.create_task(spin())
        ACTOR.set("")
        await asyncio.sleep(5)
        await task

    with pytest.raises(StepsExceeded, match="node-7: 1,000 callbacks at one moment"):
        run(main(), seed=1)


def test_a_run_that_was_failed_ends_whoever_catches_exceptions() -> None:
    async def main() -> None:
        for number in range(3):
            virtual().fail(SimulationError(f"number {number}"))
            with contextlib.suppress(Exception):
                await asyncio.sleep(1)

    with pytest.raises(SimulationError, match="number 0"):
        run(main(), seed=1)


def test_many_pending_tasks_are_not_all_named() -> None:
    async def main() -> None:
        tasks = [asyncio.create_task(asyncio.Event().wait()) for _ in range(50)]
        await tasks[0]

    with pytest.raises(Deadlock, match="and 31 more"):
        run(main(), seed=1)


# The end of a run.


def test_leftovers_are_cancelled_in_the_order_of_creation() -> None:
    order: list[int] = []

    async def linger(number: int) -> None:
        try:
            await asyncio.sleep(1_000 - number)
        finally:
            await asyncio.sleep(1)
            order.append(number)

    async def main() -> list[asyncio.Task[None]]:
        tasks = [asyncio.create_task(linger(number)) for number in range(20)]
        await asyncio.sleep(0)
        return tasks

    tasks = run(main(), seed=1)
    assert order == list(range(20))
    assert all(task.cancelled() for task in tasks)


def test_what_leftovers_start_while_they_end_is_cancelled_too() -> None:
    started: list[asyncio.Task[Any]] = []

    async def linger() -> None:
        try:
            await asyncio.sleep(1_000)
        finally:
            started.append(asyncio.create_task(asyncio.Event().wait()))

    async def main() -> None:
        started.append(asyncio.create_task(linger()))
        await asyncio.sleep(0)

    run(main(), seed=1)
    assert [task.cancelled() for task in started] == [True, True]


def test_a_leftover_that_will_not_end_is_reported() -> None:
    async def stubborn() -> None:
        while True:
            try:
                await asyncio.sleep(1)
            except asyncio.CancelledError:
                continue

    async def main() -> str:
        task = asyncio.create_task(stubborn(), name="stubborn")
        await asyncio.sleep(0)
        return task.get_name()

    with pytest.raises(FailureIgnored, match=r"stubborn at .* does not end when it is cancelled"):
        run(main(), seed=1)


def test_a_failure_that_nobody_looks_at_fails_the_run() -> None:
    async def fail() -> None:
        raise KeyError("lost")

    async def main() -> None:
        keep = asyncio.create_task(fail(), name="the failing one")
        await asyncio.sleep(1)
        assert keep.done()

    with pytest.raises(FailureIgnored, match=r"the failing one failed: KeyError\('lost'\)") as caught:
        run(main(), seed=1)
    assert isinstance(caught.value.__cause__, KeyError)


def test_a_failure_that_is_handled_does_not() -> None:
    async def fail() -> None:
        raise KeyError("handled")

    async def main() -> None:
        task = asyncio.create_task(fail())
        await asyncio.sleep(1)
        with pytest.raises(KeyError):
            await task

    run(main(), seed=1)


def test_a_failing_callback_fails_the_run() -> None:
    async def main() -> None:
        virtual().call_soon(lambda: 1 // 0)
        await asyncio.sleep(1)

    with pytest.raises(FailureIgnored, match="ZeroDivisionError"):
        run(main(), seed=1)


def test_the_error_of_main_goes_first_and_notes_the_others() -> None:
    async def fail() -> None:
        raise KeyError("background")

    async def main() -> None:
        keep = asyncio.create_task(fail())
        await asyncio.sleep(1)
        raise ValueError(f"main {keep.done()}")

    with pytest.raises(ValueError, match="main True") as caught:
        run(main(), seed=1)
    assert "KeyError('background')" in "".join(caught.value.__notes__)


def test_an_interrupt_passes_through() -> None:
    async def main() -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run(main(), seed=1)


def test_async_generators_are_closed_in_the_order_of_their_first_use() -> None:
    closed: list[int] = []

    async def count(number: int) -> AsyncIterator[int]:
        try:
            while True:
                yield number
        finally:
            await asyncio.sleep(1)
            closed.append(number)

    async def main() -> None:
        for number in range(5):
            async for _ in count(number):
                break

    run(main(), seed=1)
    assert closed == [0, 1, 2, 3, 4]


def test_a_loop_runs_once() -> None:
    loop = VirtualLoop(seed=1)
    loop.run(asyncio.sleep(1))
    assert loop.is_closed()
    assert not loop.is_running()
    late = asyncio.sleep(1)
    with pytest.raises(RuntimeError, match="closed"):
        loop.run(late)
    late.close()


async def test_a_simulation_does_not_start_inside_a_loop() -> None:
    with pytest.raises(SimulationError, match="synchronous code"):
        run(asyncio.sleep(1), seed=1)


# What does not exist in virtual time.


@pytest.mark.parametrize("name", _REFUSED.split())
def test_the_world_is_out_of_reach(name: str) -> None:
    assert hasattr(asyncio.AbstractEventLoop, name)

    async def main() -> None:
        getattr(virtual(), name)("anything", at_all=True)

    with pytest.raises(NotSimulated, match=rf"loop\.{name}: .* simulate the port"):
        run(main(), seed=1)


OUTSIDE: list[Callable[[], Coroutine[Any, Any, Any]]] = [
    lambda: asyncio.to_thread(print),
    lambda: asyncio.open_connection("localhost", 1),
    lambda: asyncio.start_server(print, "localhost", 1),
    lambda: asyncio.create_subprocess_exec("true"),
    lambda: asyncio.create_subprocess_shell("true"),
]


@pytest.mark.parametrize("outside", OUTSIDE)
def test_asyncio_s_ways_into_the_world_are_closed(outside: Callable[[], Awaitable[Any]]) -> None:
    async def main() -> None:
        await outside()

    with pytest.raises(NotSimulated):
        run(main(), seed=1)


@pytest.mark.parametrize("call", ["call_soon", "call_soon_threadsafe", "call_later"])
def test_other_threads_are_refused(call: str) -> None:
    async def main() -> list[BaseException]:
        loop = virtual()
        raised: list[BaseException] = []

        def intrude() -> None:
            try:
                getattr(loop, call)(*([1, print] if call == "call_later" else [print]))
            except NotSimulated as error:
                raised.append(error)

        thread = threading.Thread(target=intrude)
        thread.start()
        thread.join()
        return raised

    assert len(run(main(), seed=1)) == 1


# Actors: one can be held up alone.


def test_an_actor_that_is_held_runs_nothing_and_the_others_go_on() -> None:
    heard: list[tuple[str, float]] = []

    async def beat(name: str) -> None:
        while True:
            await asyncio.sleep(1.0)
            heard.append((name, asyncio.get_running_loop().time()))

    async def main() -> None:
        loop = virtual()
        for name in ("left", "right"):
            context = contextvars.copy_context()
            context.run(ACTOR.set, name)
            _ = loop.create_task(beat(name), context=context)
        await asyncio.sleep(1.5)
        loop.hold("left")
        await asyncio.sleep(3.0)
        loop.release("left")
        await asyncio.sleep(1.0)

    run(main(), seed=1)
    assert heard == [
        ("left", 1.0),
        ("right", 1.0),
        ("right", 2.0),
        ("right", 3.0),
        ("right", 4.0),
        ("left", 4.5),
        ("right", 5.0),
        ("left", 5.5),
    ]


def test_a_run_ends_although_an_actor_is_held() -> None:
    async def main() -> None:
        loop = virtual()
        context = contextvars.copy_context()
        context.run(ACTOR.set, "left")
        _ = loop.create_task(asyncio.sleep(1000), context=context)
        loop.hold("left")
        await asyncio.sleep(1)

    run(main(), seed=1)
