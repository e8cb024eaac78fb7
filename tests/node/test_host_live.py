"""A running host as a program sees it."""

import asyncio

import pytest

from stigmergy.base.errors import UnknownKind
from stigmergy.shard.inputs import Refused
from stigmergy.sim.node import SimNode
from tests.node.counting import (
    Add,
    Counter,
    declare,
)
from tests.node.rig import play


class TestLive:
    def test_queries_are_copies_and_know_their_kind(self) -> None:
        async def main(node: SimNode) -> None:
            live = await node.start()
            await live.send("Counter/a", Add(number=1))
            seen = live.query("Counter/a", Counter)
            seen.numbers = ()
            assert live.query("Counter/a", Counter).numbers == (1,)
            assert live.query("Counter/never").numbers == ()
            with pytest.raises(UnknownKind):
                live.query("Nobody/a")
            with pytest.raises(UnknownKind):
                live.agents("Nobody")
            assert live.agents(Counter) == live.agents("Counter") == live.agents() == ["Counter/a"]

        play(declare(), main)

    def test_the_standing_adds_up(self) -> None:
        async def main(node: SimNode) -> None:
            live = await node.start()
            await live.send("Counter/a", Add(number=1))
            await live.send("Counter/a", Add(number=-1))
            standing = live.standing()
            assert (standing.fleet, standing.agents, standing.owed, standing.dead_letters) == ("counters", 1, 0, 0)
            assert standing.counters["accepted"] == standing.counters["refused"] == 1
            assert [head.position for head in standing.heads] == list(node.logbook.positions)
            assert standing.journal_bytes > 0

        play(declare(), main)

    def test_ids_are_made_up_where_none_is_given(self) -> None:
        async def main(node: SimNode) -> None:
            live = await node.start()
            await asyncio.gather(*(live.send("Counter/a", Add(number=n)) for n in range(20)))
            assert sorted(live.query("Counter/a").numbers) == list(range(20))
            assert isinstance(await live.send("Counter/a", Add(number=1), command_id=""), Refused)

        play(declare(), main)
