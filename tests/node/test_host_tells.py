"""Agents that tell each other something, within a shard and between shards."""

import asyncio

import pytest

from stigmergy.base.errors import StigmergyError
from stigmergy.node.settings import Settings
from stigmergy.sim.disk import DiskFault
from stigmergy.sim.node import SimNode
from tests.node.counting import (
    Add,
    declare,
)
from tests.node.rig import play


class TestTells:
    @pytest.mark.parametrize(("shards", "batch"), [(1, 1_000), (4, 1_000), (4, 1)])
    def test_tells_arrive_once_and_in_order_over_crashes(self, shards: int, batch: int) -> None:
        """In batches of one, what a shard tells and that it is settled are never in one group by chance."""

        async def main(node: SimNode) -> None:
            live = await node.start()
            number = 100
            for _ in range(30):
                chance = node.world.chance(f"crash {number}")
                node.disk.fail(
                    node.disk.calls + chance.randint(1, 40), chance.choice((DiskFault.POWER_LOSS, DiskFault.KILL))
                )
                for _ in range(10):
                    number += 1
                    try:
                        await live.send(f"Counter/{number % 3}", Add(number=number), command_id=str(number))
                    except StigmergyError:
                        break
                await node.lose_power()
                node.disk.forgive()
                live = await node.start()
            await asyncio.sleep(2.0)
            told = {
                (f"Counter/{source}", f"Counter/t{target}"): [
                    n for n in live.query(f"Counter/{source}").numbers if n % 5 == target
                ]
                for source in range(3)
                for target in range(5)
            }
            for (source, target), numbers in told.items():
                assert [n for by, n in live.query(target).greeted if by == source] == numbers
            assert sum(map(len, told.values())) > 20

        play(declare(shards), main, settings=Settings(batch_events_max=batch))

    @pytest.mark.parametrize("shards", [1, 4])
    def test_what_one_commit_tells_arrives_in_order(self, shards: int) -> None:
        async def main(node: SimNode) -> None:
            node.latency.before_s = 0.1
            live = await node.start()
            numbers = [*range(100, 200, 5)]
            asked = [live.send("Counter/a", Add(number=number)) for number in numbers]
            await asyncio.gather(*asked)
            commits = sum(shard.state.position for shard in live.host.shards)
            await asyncio.sleep(2.0)
            assert [n for by, n in live.query("Counter/t0").greeted if by == "Counter/a"] == numbers
            assert commits < len(numbers), "several went into one commit"

        play(declare(shards), main)
