"""Readers of a running node's log: everything that is durable, in order, once, and nothing before it is durable."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import pytest

from stigmergy.agents.agent import Agent, evolve
from stigmergy.agents.messages import Event
from stigmergy.audit.directories import Directories
from stigmergy.base.errors import ConfigError, LogCut, NotRunning
from stigmergy.control.live import Live
from stigmergy.journal.memory import MemoryShard, MemoryShardLog
from stigmergy.journal.port import JournalIdentity, StoredCommit
from stigmergy.node import feed as feeds
from stigmergy.node.declaration import Declaration
from stigmergy.node.feed import FeedEntry, FeedPosition, FeedReader, FollowedLog, read_positions, write_positions
from stigmergy.node.settings import Retention, Settings, Snapshots
from stigmergy.shard.commit import Group
from stigmergy.sim.node import SimNode
from tests.agents import meters
from tests.node.columns import stage
from tests.node.rig import play


class Counted(Event):
    number: int


class Counter(Agent):
    count: int = 0

    @evolve
    def counted(self, event: Counted) -> None:
        self.count += 1


def declare(shards: int = 1) -> Declaration:
    return Declaration("counters", agents=[Counter], shards=shards)


async def count(live: Live, numbers: range, agents: int = 8) -> None:
    """Several at a time, so that a commit has several events."""
    await asyncio.gather(*(live.observe(f"Counter/{number % agents}", Counted(number=number)) for number in numbers))


async def drain(reader: FeedReader, limit: int = 7) -> list[FeedEntry]:
    found: list[FeedEntry] = []
    while entries := await reader.read(limit, 1.0):
        assert len(entries) <= limit
        found += entries
    return found


def numbers(entries: list[FeedEntry]) -> list[int]:
    return [entry.fields["number"] for entry in entries if entry.agent]


def check_order(entries: list[FeedEntry]) -> None:
    """Per shard each event once, in order."""
    for shard in sorted({entry.shard for entry in entries}):
        places = [(entry.position, entry.index) for entry in entries if entry.shard == shard]
        assert places == sorted(set(places))


@pytest.mark.parametrize("shards", [1, 3])
@pytest.mark.parametrize("in_memory", [False, True])
def test_a_reader_gets_the_past_and_then_what_becomes_durable(shards: int, in_memory: bool) -> None:
    async def main(node: SimNode) -> None:
        live = await node.start()
        await count(live, range(100))
        reader = live.host.feed.reader({})
        found = await reader.read(30)
        writing = asyncio.ensure_future(count(live, range(100, 300)))
        found += await drain(reader)
        await writing
        found += await drain(reader)
        check_order(found)
        assert sorted(numbers(found)) == list(range(300))
        assert reader.positions == live.host.feed.positions()
        assert await reader.read(10, 0.5) == []
        await reader.close()

    play(declare(shards), main, in_memory=in_memory)


def test_a_reader_goes_on_within_a_commit_where_another_stopped() -> None:
    async def main(node: SimNode) -> None:
        live = await node.start()
        await count(live, range(50))
        reader = live.host.feed.reader({})
        found: list[FeedEntry] = []
        while entries := await reader.read(3):
            found += entries
            positions = reader.positions
            await reader.close()
            reader = live.host.feed.reader(positions)
        check_order(found)
        assert sorted(numbers(found)) == list(range(50))

    play(declare(shards=2), main)


def test_a_commit_that_was_read_to_its_end_is_whole() -> None:
    """A reader that begins behind the last event of a commit is level with the log, and says so."""

    async def main(node: SimNode) -> None:
        live = await node.start()
        await count(live, range(20))
        feed = live.host.feed
        last = (await drain(feed.reader({})))[-1]
        behind = {**feed.positions(), last.shard: FeedPosition(last.position, last.index)}
        reader = feed.reader(behind)
        assert await reader.read(10) == []
        assert reader.positions == feed.positions()

    play(declare(shards=2), main)


def test_a_commit_that_is_yet_to_be_read_once_more_stays_where_it_was(monkeypatch: pytest.MonkeyPatch) -> None:
    """Other shards may fill a whole portion before it is its turn."""
    monkeypatch.setattr(feeds, "BATCH_COMMITS", 1)

    async def main(node: SimNode) -> None:
        live = await node.start()
        await count(live, range(60))
        feed = live.host.feed
        partly = {shard: FeedPosition(at.position, 0) for shard, at in feed.positions().items()}
        expected = numbers(await drain(feed.reader(partly)))
        found: list[int] = []
        while entries := await (reader := feed.reader(partly)).read(100):
            found += numbers(entries)
            partly = reader.positions
        assert sorted(found) == sorted(expected)

    play(declare(shards=3), main)


def test_positions_are_a_text() -> None:
    positions = {"1@a": FeedPosition(17, 2), "0@5f3a9c1e": FeedPosition(41), "0": FeedPosition(4)}
    assert write_positions(positions) == "0:4,0@5f3a9c1e:41,1@a:17.2"
    assert read_positions(write_positions(positions)) == positions
    assert read_positions("") == {}
    for wrong in ("7", "0:1,0:2", "0@:1", "0@5f3a9c1e0:1", "0@A:1", "0:-1", "0:1.x", "0:1,,1:2", "\u0661:1"):
        with pytest.raises(ConfigError):
            read_positions(wrong)


def test_a_cancelled_read_loses_nothing() -> None:
    async def main(node: SimNode) -> None:
        live = await node.start()
        await count(live, range(400))
        reader = live.host.feed.reader({})
        found: list[FeedEntry] = []
        for turns in range(2_000):
            task = asyncio.ensure_future(reader.read(5))
            for _ in range(turns % 7):
                await asyncio.sleep(0)
            if not task.done():
                task.cancel()
            (result,) = await asyncio.gather(task, return_exceptions=True)
            if isinstance(result, list):
                found += result
            if len(numbers(found)) == 400:
                break
        check_order(found)
        assert sorted(numbers(found)) == list(range(400))

    play(declare(shards=3), main)


def test_recent_commits_are_read_from_memory_and_older_ones_from_the_journal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(feeds, "RECENT_COMMITS_MAX", 5)

    async def main(node: SimNode) -> None:
        live = await node.start()
        reads: list[int] = []
        journal_read = live.host.journal.read

        def read(shard: int, after: int = 0) -> Iterator[StoredCommit]:
            reads.append(after)
            return journal_read(shard, after)

        monkeypatch.setattr(live.host.journal, "read", read)
        quick, slow = live.host.feed.reader(), live.host.feed.reader()
        found: list[FeedEntry] = []
        for number in range(40):
            await live.observe("Counter/0", Counted(number=number))
            found += await quick.read(100)
        assert numbers(found) == list(range(40))
        assert not reads
        assert numbers(await drain(slow)) == list(range(40))
        assert reads

    play(declare(), main)


def test_nothing_is_read_before_it_is_durable() -> None:
    async def main(node: SimNode) -> None:
        live = await node.start()
        await count(live, range(3))
        reader = live.host.feed.reader()
        node.latency.before_s = 5.0
        writing = asyncio.ensure_future(live.observe("Counter/0", Counted(number=77)))
        assert await reader.read(10, 1.0) == []
        assert not writing.done()
        assert numbers(await reader.read(10, 10.0)) == [77]

    play(declare(), main)


def test_a_reader_may_begin_now_or_at_a_time() -> None:
    async def main(node: SimNode) -> None:
        live = await node.start()
        await count(live, range(20))
        await asyncio.sleep(5.0)
        time_ns = live.host.clock.wall_ns()
        await asyncio.sleep(5.0)
        now = live.host.feed.reader()
        await count(live, range(20, 40))
        assert sorted(numbers(await drain(now))) == list(range(20, 40))
        since = live.host.feed.reader(live.host.feed.positions_at(time_ns))
        assert sorted(numbers(await drain(since))) == list(range(20, 40))

    play(declare(shards=3), main)


def test_a_dropped_position_is_refused_with_the_first_that_is_left() -> None:
    rules = Settings(
        snapshots=Snapshots(every_events=10, every_s=1e9, tail_ratio=0.0, share_max=1.0),
        retention=Retention(reserve_bytes=0, check_every_s=0.1, keep_bytes=1),
    )

    async def main(node: SimNode) -> None:
        live = await node.start()
        slow = live.host.feed.reader({})
        assert await slow.read(1, 10.0)
        for number in range(60):
            await live.observe("Counter/0", Counted(number=number))
        await asyncio.sleep(5.0)
        first = live.host.journal.first_position(0)
        assert first > 2
        feed = live.host.feed
        with pytest.raises(LogCut, match=f"begins at {first}") as refused:
            feed.reader({0: FeedPosition(first - 2)})
        assert refused.value.first_position == first
        assert numbers(await drain(feed.reader(feed.first_positions())))[-1] == 59
        feed.unwatch(0, feed._watchers[0][0])
        feed._recent.clear()
        with pytest.raises(LogCut, match="was dropped by retention"):
            await drain(slow)

    play(declare(), main, settings=rules)


def test_a_position_that_the_log_does_not_have_is_refused() -> None:
    async def main(node: SimNode) -> None:
        live = await node.start()
        await count(live, range(3))
        end = live.host.durable_position(0)
        with pytest.raises(ConfigError, match="beyond the end of the log"):
            live.host.feed.reader({0: FeedPosition(end + 1)})
        with pytest.raises(ConfigError, match="this node has shards 0"):
            live.host.feed.reader({4: FeedPosition(0)})

    play(declare(), main)


def test_a_reader_is_told_that_the_node_has_ended() -> None:
    async def main(node: SimNode) -> None:
        live = await node.start()
        await count(live, range(3))
        reader = live.host.feed.reader()
        reading = asyncio.ensure_future(reader.read(1, 1_000.0))
        await asyncio.sleep(1.0)
        await node.stop()
        with pytest.raises(NotRunning):
            await reading

    play(declare(), main)


def test_events_of_compiled_agents_are_read_too() -> None:
    async def main(node: SimNode) -> None:
        live = await node.start()
        await live.enroll("Meter", ["a", "b"])
        reader = live.host.feed.reader({})
        radio = stage.Radio(live)
        for by in range(5):
            await radio.send(("a", meters.Counted(by=by)), ("b", meters.Counted(by=7)))
        found = await drain(reader)
        measured = [entry for entry in found if entry.agent == "Meter/a" and entry.type == "Counted@1"]
        assert [entry.fields["by"] for entry in measured] == list(range(5))
        live.host.feed._recent.clear()
        assert await drain(live.host.feed.reader({})) == found

    stage.play(stage.declare(lambda _: None, lambda _: None), main)


def test_the_log_of_another_process_is_followed_the_same_way() -> None:
    """A shard's log on shared storage: read from its beginning, and then as its owner writes."""

    async def write(node: SimNode) -> list[StoredCommit]:
        live = await node.start()
        for number in range(30):
            await live.observe("Counter/0", Counted(number=number))
        return list(live.host.journal.read(0))

    async def follow() -> None:
        shard = MemoryShard(JournalIdentity("counters", 1, 1, part=(0, 0)))
        written, log = MemoryShardLog(shard), MemoryShardLog(shard)
        journal, _ = await written.claim(0, "owner")

        async def append(some: list[StoredCommit]) -> None:
            for stored in some:
                assert stored.signature is not None
                await journal.append(Group((stored.sealed,), stored.signature))

        await append(commits[:10])
        reader = FeedReader([FollowedLog(log, Directories(journal))], {})
        found = await drain(reader)
        assert numbers(found) == list(range(len(numbers(found))))
        reading = asyncio.ensure_future(reader.read(1_000, 240.0))
        await asyncio.sleep(0)
        await append(commits[10:])
        found += await reading
        found += await drain(reader)
        assert numbers(found) == list(range(30))
        await journal.drop(0, 5)
        with pytest.raises(LogCut, match="begins at 6"):
            await FeedReader([FollowedLog(log, Directories(journal))], {}).read(1)
        await reader.close()

    commits = play(declare(), write)
    asyncio.run(follow())
