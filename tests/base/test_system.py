"""The machine's threads: what blocks there blocks nobody here, hangs hurt nobody, and a process can end."""

import asyncio
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from stigmergy.agents.agent import Agent, evolve
from stigmergy.agents.messages import Event, transient
from stigmergy.app.fleet import Fleet
from stigmergy.base.system import SystemThreads, place_of


async def test_a_call_runs_elsewhere_and_its_result_comes_back() -> None:
    threads = SystemThreads()
    assert await threads.run(threading.get_ident) != threading.get_ident()


async def test_threads_are_kept_and_never_more_than_so_many() -> None:
    threads = SystemThreads(count_max=2)
    seen: list[int] = []
    under_way = 0
    most = 0

    def call() -> None:
        nonlocal under_way, most
        under_way += 1
        most = max(most, under_way)
        seen.append(threading.get_ident())
        time.sleep(0.005)
        under_way -= 1

    await asyncio.gather(*(asyncio.ensure_future(threads.run(call)) for _ in range(20)))
    assert len(seen) == 20
    assert len(set(seen)) <= 2
    assert most == 2


@pytest.mark.parametrize("error", [ValueError("bad"), StopIteration(3), KeyboardInterrupt(), SystemExit(2)])
async def test_what_it_raises_comes_back_and_ends_nothing(error: BaseException) -> None:
    threads = SystemThreads(count_max=1)

    def call() -> None:
        raise error

    with pytest.raises(type(error) if isinstance(error, ValueError) else RuntimeError):
        await threads.run(call)
    assert await threads.run(lambda: 1) == 1


async def test_who_waits_may_go_away_meanwhile() -> None:
    threads = SystemThreads(count_max=1)
    go = threading.Event()
    waiting = asyncio.ensure_future(threads.run(go.wait))
    await asyncio.sleep(0)
    waiting.cancel()
    go.set()
    assert await threads.run(lambda: 1) == 1


HANGS = """
import asyncio, time
from stigmergy.base.system import SystemThreads

async def main():
    waiting = asyncio.ensure_future(SystemThreads().run(lambda: time.sleep(600)))
    await asyncio.sleep(0.05)
    waiting.cancel()

asyncio.run(main())
print("ended")
"""


def test_a_thread_that_hangs_does_not_keep_the_process() -> None:
    ran = subprocess.run([sys.executable, "-c", HANGS], capture_output=True, text=True, timeout=30, check=False)
    assert (ran.stdout, ran.returncode) == ("ended\n", 0), ran.stderr


class Read(Event, keep=transient):
    thread: int


class Kept(Event):
    pass


class Gauge(Agent):
    kept: int = 0

    @evolve
    def keep(self, event: Kept) -> None:
        self.kept += 1


async def test_a_plain_sensor_that_blocks_does_not_hold_up_the_node() -> None:
    fleet = Fleet("blocking", agents=[Gauge])
    calls: list[int] = []
    go = threading.Event()

    @fleet.sensor(Gauge, every_s=0.01, within_s=0.02, agents=["a"])
    def blocks(gauge: str) -> Kept:
        calls.append(threading.get_ident())
        go.wait(30)
        return Kept()

    async with fleet.running(journal="memory:") as live:
        for _ in range(20):
            await live.observe("Gauge/b", Kept())
            await asyncio.sleep(0.01)
        (standing,) = live.devices()
        assert len(calls) == 1, "it is not asked again before it has returned"
        assert calls[0] != threading.get_ident()
        assert standing.counters["failed"] == 1
        assert standing.counters["overruns"] > 3
        assert live.query("Gauge/b", Gauge).kept == 20
        go.set()
        for _ in range(500):
            await asyncio.sleep(0.01)
            if live.query("Gauge/a", Gauge).kept:
                break
        assert len(calls) > 1
        assert live.query("Gauge/a", Gauge).kept >= 1


def test_a_copy_of_a_file_is_in_another_place(tmp_path: Path) -> None:
    one, two = tmp_path / "one", tmp_path / "two"
    one.write_bytes(b"journal")
    two.write_bytes(b"journal")
    assert place_of(one) == place_of(one)
    assert place_of(one) != place_of(two)
    one.rename(tmp_path / "moved")
    assert place_of(tmp_path / "moved") != place_of(two)
