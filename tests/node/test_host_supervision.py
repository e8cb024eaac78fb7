"""Agents that fail, and are stopped and resumed."""

import asyncio

from stigmergy.agents.effects import Order
from stigmergy.shard.inputs import Accepted, Refused
from stigmergy.sim.node import SimNode
from tests.node.counting import (
    Add,
    Counted,
    Land,
    Spoilt,
    declare,
)
from tests.node.rig import play


class TestSupervision:
    def test_a_stopped_agent_is_made_safe_now_and_after_every_start(self) -> None:
        fleet = declare()
        keys: list[str] = []

        @fleet.actuator(Land)
        def land(order: Order[Land]) -> None:
            keys.append(order.key)

        async def main(node: SimNode) -> None:
            live = await node.start()
            await live.observe("Counter/a", Counted(number=1))
            for number in range(2):
                await live.observe("Counter/a", Spoilt(number=number))
            await asyncio.sleep(0.1)
            assert len(keys) == 1
            assert list(live.standing().stopped) == ["Counter/a"]
            refused = await live.send("Counter/a", Add(number=1))
            assert isinstance(refused, Refused)
            await node.lose_power()
            live = await node.start()
            await asyncio.sleep(0.1)
            assert len(set(keys)) == 2
            live.resume("Counter/a", by="me")
            assert isinstance(await live.send("Counter/a", Add(number=7)), Accepted)
            assert live.query("Counter/a").numbers == (1, 7)

        play(fleet, main)

    def test_dead_letters_are_retried_and_dropped(self) -> None:
        async def main(node: SimNode) -> None:
            live = await node.start()
            await live.observe("Counter/a", Counted(number=1))
            await live.observe("Counter/a", Spoilt(number=1))
            await live.observe("Nobody/a", Counted(number=1))
            letters = live.dead_letters()
            assert [letter.agent for letter in letters] == ["Counter/a", "Nobody/a"]
            live.drop(letters[1])
            live.retry(letters[0])
            await asyncio.sleep(0.1)
            (again,) = live.dead_letters()
            assert again.letter != letters[0].letter

        play(declare(), main)
