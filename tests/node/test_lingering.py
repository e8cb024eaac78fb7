"""While a write is under way, what comes one by one waits for its end and is stepped in one go."""

import asyncio
from collections.abc import Sequence
from typing import Any

import pytest

from stigmergy.agents.agent import Agent, decide, evolve
from stigmergy.agents.effects import Events
from stigmergy.agents.messages import Command, Event
from stigmergy.node.committer import LINGER_NS
from stigmergy.node.declaration import Declaration
from stigmergy.shard.draft import Stepped
from stigmergy.shard.shard import Shard
from stigmergy.sim.node import SimNode
from stigmergy.sim.run import Run

LINGER_S = LINGER_NS / 1_000_000_000


class Seen(Event):
    number: int


class Add(Command):
    number: int


class Counter(Agent):
    total: int = 0

    @decide
    def add(self, command: Add) -> Events:
        yield Seen(number=command.number)

    @evolve
    def seen(self, event: Seen) -> None:
        self.total += event.number


@pytest.fixture
def steps(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many inputs each step took."""
    taken: list[int] = []
    step = Shard.step

    def counted(self: Shard, inputs: Sequence[Any], now_ns: int) -> Stepped:
        taken.append(len(inputs))
        return step(self, inputs, now_ns)

    monkeypatch.setattr(Shard, "step", counted)
    return taken


def run_beside_a_write(write_s: float, steps: list[int], commands: int = 0) -> list[int]:
    """Sends ten events one by one while a write of this length is under way; the steps that this took."""
    world = Run(1)
    node = SimNode(world, lambda _: Declaration("lingering", agents=[Counter]))
    node.latency.jitter = False

    async def main() -> list[int]:
        live = await node.start()
        await live.observe("Counter/1", Seen(number=1))
        node.latency.before_s = write_s
        told = [asyncio.ensure_future(live.observe("Counter/1", Seen(number=1)))]
        await asyncio.sleep(LINGER_S / 100)
        steps.clear()
        for number in range(10):
            told.append(asyncio.ensure_future(live.observe("Counter/1", Seen(number=1))))
            if number < commands:
                told.append(asyncio.ensure_future(_send(live)))
            await asyncio.sleep(LINGER_S / 100)
        await asyncio.gather(*told)
        taken = list(steps)
        assert live.query("Counter/1", Counter).total == 12 + commands
        await node.stop()
        return taken

    return world.run(main())


async def _send(live: Any) -> None:
    await live.send("Counter/1", Add(number=1))


def test_they_are_stepped_in_one_go(steps: list[int]) -> None:
    assert run_beside_a_write(LINGER_S / 2, steps) == [10]


def test_a_slow_disk_holds_up_no_step_for_long(steps: list[int]) -> None:
    taken = run_beside_a_write(100 * LINGER_S, steps)
    assert taken == [10], "at the end of lingering, long before the write is over"


def test_whoever_asked_for_something_does_not_linger(steps: list[int]) -> None:
    assert len(run_beside_a_write(LINGER_S / 2, steps, commands=3)) > 1
