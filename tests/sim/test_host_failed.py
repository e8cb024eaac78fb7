"""A node that has failed has told everybody that nothing more is kept: it must not write when the disk comes back."""

import asyncio
from typing import Any

import pytest

from stigmergy.core.agent import Agent, evolve
from stigmergy.core.errors import JournalUnknown
from stigmergy.core.messages import Event
from stigmergy.runtime.committer import Committer
from stigmergy.runtime.declaration import Declaration
from stigmergy.sim.node import SimNode, World


class Seen(Event):
    number: int


class Counter(Agent):
    total: int = 0

    @evolve
    def seen(self, event: Seen) -> None:
        self.total += event.number


def go_on_writing(patch: pytest.MonkeyPatch) -> None:
    abandon = Committer.abandon

    def forget(self: Any, error: Exception) -> None:
        abandon(self, error)
        self._over = False

    patch.setattr(Committer, "abandon", forget)


@pytest.mark.parametrize("planted", [False, True])
def test_nothing_is_written_once_a_node_has_failed(planted: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    if planted:
        go_on_writing(monkeypatch)
    world = World(1)
    node = SimNode(world, lambda _: Declaration("failed", agents=[Counter]))

    async def main() -> None:
        live = await node.start()
        await live.observe("Counter/1", Seen(number=0))
        node.latency.jitter = False
        node.latency.before_s = node.settings.write_within_s + 1.0
        told = [asyncio.ensure_future(live.observe("Counter/1", Seen(number=number))) for number in range(3)]
        await asyncio.sleep(0.1)
        told += [asyncio.ensure_future(live.observe("Counter/1", Seen(number=number))) for number in range(3)]
        outcomes = await asyncio.gather(*told, return_exceptions=True)
        assert all(isinstance(outcome, JournalUnknown) for outcome in outcomes)
        await asyncio.sleep(20.0)
        await node.kill()

    world.run(main())
    assert bool(node.logbook.findings) == planted
