"""A worker that has seen more of a log than is left of it."""

import asyncio

import pytest

from stigmergy.base.errors import DataLost, JournalForeign, JournalFull
from stigmergy.cluster.supervisor import SeenLogs
from stigmergy.shard.homes import shard_of
from tests.cluster.town import SHARDS, Town, play


def test_a_log_that_lost_its_end_is_not_gone_on_with() -> None:
    async def main(town: Town) -> None:
        [alone] = await town.start("a")
        await town.settled()
        for number in range(6):
            await town.send("Meter/x", number)
        await asyncio.sleep(1)
        shard = shard_of("Meter/x", SHARDS)
        town.may_land = True
        assert alone.worker is not None
        alone.worker.live(shard).host.fail(JournalFull("no room"))
        await asyncio.sleep(0.02)  # what was under way is over, and it has not begun to read again
        kept = town.shards[shard].store.commits[shard]
        lost = kept[-3:]
        del kept[-3:]
        await asyncio.sleep(5)
        assert shard not in alone.owned
        assert "the end of it is lost; restore it" in alone.events("lost")[-1]["reason"]
        kept.extend(lost)
        await town.settled(60)

    play(main, load=0)


def test_a_log_that_another_has_gone_on_with_is_no_shorter() -> None:
    logs = SeenLogs()
    logs.reached(3, 9)  # of a log that was never opened nothing is known
    logs.check_same(3, 77)
    logs.check_end(3, 4)
    logs.reached(3, 6)
    logs.reached(3, 5)
    with pytest.raises(DataLost, match="ends at position 5, and had come to 6"):
        logs.check_end(3, 5)
    logs.check_end(3, 8)
    logs.check_same(3, 77)
    with pytest.raises(JournalForeign, match="another one than it was"):
        logs.check_same(3, 78)
    logs.check_same(4, 78)
