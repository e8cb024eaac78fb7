"""Whoever looks at a node sees what is on disk, and nothing that a loss of power could take back."""

from __future__ import annotations

import asyncio

from stigmergy.agents.agent import Agent, react
from stigmergy.agents.effects import Effects
from stigmergy.agents.messages import Action, Event
from stigmergy.agents.supervision import Supervise
from stigmergy.control.live import Live
from stigmergy.node.declaration import Declaration
from stigmergy.sim.node import SimNode
from tests.node.rig import play


class Bumped(Event):
    hard: bool = False


class Brake(Action):
    pass


class Cart(Agent):
    supervision = Supervise(stop_after=1)

    @react
    def brake(self, event: Bumped) -> Effects:
        if event.hard:
            raise RuntimeError("crashed")
        yield Brake()


SLOW_S = 1.0
STEPPED_S = 0.3
"""Long enough for a step, and too short for the disk."""


def seen(live: Live) -> tuple[list[str], list[str], int, int, int, list[str], int, list[int]]:
    standing = live.standing()
    return (
        [letter.agent for letter in live.dead_letters()],
        live.agents(),
        standing.agents,
        standing.dead_letters,
        standing.owed,
        list(standing.stopped),
        standing.events,
        [head.position for head in standing.heads],
    )


def fleet() -> Declaration:
    declared = Declaration("carts", agents=[Cart])

    @declared.actuator(Brake)
    async def brake(order: object) -> None:
        await asyncio.sleep(100)

    return declared


def test_what_is_stepped_or_on_its_way_is_not_seen_before_it_is_durable() -> None:
    async def main(node: SimNode) -> None:
        live = await node.start()
        await live.observe("Cart/a", Bumped())
        before = seen(live)
        assert before[:6] == ([], ["Cart/a"], 1, 0, 1, [])
        node.latency.before_s, node.latency.jitter = SLOW_S, False
        first = asyncio.ensure_future(live.observe("Cart/b", Bumped(hard=True)))
        await asyncio.sleep(STEPPED_S)
        second = asyncio.ensure_future(live.observe("Cart/c", Bumped()))
        await asyncio.sleep(STEPPED_S)
        state = live.host.shards[0].state
        assert (len(state.letters.all()), list(state.stopped), len(state.agents)) == (1, ["Cart/b"], 3)
        assert not first.done()
        assert seen(live) == before
        await first
        assert seen(live)[:6] == (["Cart/b"], ["Cart/a", "Cart/b"], 2, 1, 1, ["Cart/b"])
        await second
        assert seen(live)[:6] == (["Cart/b"], ["Cart/a", "Cart/b", "Cart/c"], 3, 1, 2, ["Cart/b"])
        await node.kill()

    play(fleet(), main)


def test_what_was_taken_is_seen_until_that_is_durable() -> None:
    async def main(node: SimNode) -> None:
        live = await node.start()
        await live.observe("Cart/b", Bumped(hard=True))
        (letter,) = live.dead_letters()
        node.latency.before_s, node.latency.jitter = SLOW_S, False
        live.drop(letter)
        live.resume("Cart/b", by="me")
        await asyncio.sleep(STEPPED_S)
        assert not live.host.shards[0].state.letters.all()
        assert live.dead_letters() == [letter]
        assert list(live.standing().stopped) == ["Cart/b"]
        await asyncio.sleep(2 * SLOW_S)
        assert live.dead_letters() == []
        assert live.standing().stopped == {}
        await node.kill()

    play(fleet(), main)


def test_a_node_whose_journal_is_closed_can_be_looked_at() -> None:
    async def main(node: SimNode) -> None:
        live = await node.start()
        await live.observe("Cart/b", Bumped(hard=True))
        positions = seen(live)[7]
        await node.stop()
        assert seen(live)[0] == ["Cart/b"]
        assert seen(live)[7] >= positions

    play(fleet(), main)
