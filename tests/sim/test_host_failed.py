"""A node that has failed has told everybody that nothing more is kept: it must not write when the disk comes back.

And a node whose journal somebody has taken away has failed, whether it writes or not.
"""

import asyncio
from typing import Any

import pytest

from stigmergy.agents.agent import Agent, evolve
from stigmergy.agents.effects import Order
from stigmergy.agents.messages import Action, Event
from stigmergy.agents.supervision import SafeAction
from stigmergy.base.errors import JournalCorrupt, JournalUnknown
from stigmergy.node.committer import Committer
from stigmergy.node.declaration import Declaration
from stigmergy.sim.node import SimNode
from stigmergy.sim.run import Run


class Seen(Event):
    number: int


class Counter(Agent):
    total: int = 0

    @evolve
    def seen(self, event: Seen) -> None:
        self.total += event.number


def test_a_stop_that_its_disk_does_not_let_end_accuses_nobody() -> None:
    world = Run(1)
    node = SimNode(world, lambda _: Declaration("slow", agents=[Counter]))

    async def main() -> None:
        live = await node.start()
        await live.observe("Counter/1", Seen(number=1))
        node.latency.jitter = False
        node.latency.before_s = node.settings.write_within_s + 1.0
        told = asyncio.ensure_future(live.observe("Counter/1", Seen(number=2)))
        await asyncio.sleep(0.1)
        await node.stop()
        with pytest.raises(JournalUnknown):
            await told
        node.latency.before_s = 0.0
        live = await node.start()
        await live.observe("Counter/1", Seen(number=3))
        await node.stop()

    world.run(main())
    assert node.logbook.findings == []


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
    world = Run(1)
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


class Halt(Action):
    pass


class Cart(Counter):
    safe = SafeAction(then=Halt())

    @evolve
    def seen(self, event: Seen) -> None:
        self.total += event.number


@pytest.mark.parametrize("writing", [False, True])
@pytest.mark.parametrize("renamed", [False, True])
@pytest.mark.parametrize("in_segments", [False, True])
def test_a_journal_that_is_taken_away_stops_the_node(in_segments: bool, renamed: bool, writing: bool) -> None:
    world = Run(1)
    fleet = Declaration("failed", agents=[Cart])
    halted: list[float] = []

    @fleet.actuator(Halt)
    async def halt(order: Order[Halt]) -> None:
        halted.append(asyncio.get_running_loop().time())

    node = SimNode(world, lambda _: fleet, in_segments=in_segments)

    async def main() -> None:
        live = await node.start()
        await live.observe("Cart/1", Seen(number=1))
        await asyncio.sleep(30.0)
        assert live.failure is None
        began_s = asyncio.get_running_loop().time()
        for path in node.disk.paths():
            node.disk.take_away(path, f"old-{path}" if renamed else None)
        if writing:
            with pytest.raises(JournalUnknown, match="put the file back, or restore"):
                await live.observe("Cart/1", Seen(number=2))
        failure = await asyncio.wait_for(live.wait_failure(), 1.0)
        assert isinstance(failure, JournalUnknown)
        await asyncio.sleep(0.1)
        assert len(halted) == 1
        assert halted[0] - began_s < 1.0
        await node.kill()

    world.run(main())
    assert not node.logbook.findings


@pytest.mark.parametrize("in_segments", [False, True])
def test_a_node_does_not_begin_anew_where_its_journal_was_taken_away(in_segments: bool) -> None:
    world = Run(1)
    node = SimNode(world, lambda _: Declaration("failed", agents=[Counter]), in_segments=in_segments)

    async def main() -> None:
        live = await node.start()
        await live.observe("Counter/1", Seen(number=1))
        await node.stop()
        for path in node.disk.paths():
            if not path.endswith("-mark"):
                node.disk.take_away(path)
        node.disk.restart()
        with pytest.raises(JournalCorrupt, match="restore"):
            await node.start()

    world.run(main())
