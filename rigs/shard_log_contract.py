"""What every log of a shard must do for those who follow and claim it, as tests: inherit them for your own adapter.

    class TestMyShardLog(ShardLogContract):
        @pytest.fixture
        def open_log(self, tmp_path):
            async def open_log(identity):
                return await my_adapter.open_shard_log(f"my:{tmp_path}/log", identity)
            return open_log

`open_log` opens the same log each time within a test, as another process would, and a fresh one for each test. Killed
servers, cut links and full disks are particular to a technology; test those in the adapter's own suite.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from stigmergy.base.errors import JournalConflict
from stigmergy.journal.port import READ_COUNT_MAX, Journal, JournalIdentity, ShardLog, SnapshotPart, StoredCommit
from stigmergy.testing.journal_contract import CommitChain, in_a_loop, make_group, stored

SHARD = 2
IDENTITY = JournalIdentity(fleet="contract", shards=4, incarnation=7, part=(SHARD, SHARD))
WAIT_S = 60.0

OpenLog = Callable[[JournalIdentity], Awaitable[ShardLog]]


class ShardLogContract:
    """Every sentence of the port's docstring, one test or more each."""

    @pytest.fixture
    def open_log(self) -> OpenLog:
        """Opens the log of this test. A subclass gives it."""
        raise NotImplementedError("give the fixture open_log: see the module's docstring")

    @in_a_loop
    async def test_a_new_log_is_empty(self, open_log: OpenLog) -> None:
        log = await open_log(IDENTITY)
        assert log.identity.part == (SHARD, SHARD)
        assert (log.identity.fleet, log.identity.shards) == ("contract", 4)
        assert await log.first_position() == 1
        assert await log.snapshots() == []
        assert list(await log.read_snapshot(1)) == []
        assert list(await log.read(0)) == []
        await log.close()
        await log.close()

    @in_a_loop
    async def test_what_its_owner_writes_others_read_in_order(self, open_log: OpenLog) -> None:
        owner, reader = await open_log(IDENTITY), await open_log(IDENTITY)
        journal, _ = await owner.claim(0, "a")
        chain = CommitChain()
        groups = [make_group(chain.commit(SHARD)) for _ in range(5)]
        for group in groups:
            await journal.append(group)
        assert await read_all(reader, upto=5) == stored(*groups, shard=SHARD)
        assert list(await reader.read(3)) == stored(*groups[3:], shard=SHARD)
        assert len(await reader.read(0, 2)) == 2
        assert list(await reader.read(5)) == []
        await close(owner, reader, journal=journal)

    @in_a_loop
    async def test_long_logs_come_in_portions(self, open_log: OpenLog) -> None:
        log = await open_log(IDENTITY)
        journal, _ = await log.claim(0, "a")
        chain, count = CommitChain(), READ_COUNT_MAX + 20
        for _ in range(0, count, 4):
            await journal.append(make_group(*(chain.commit(SHARD) for _ in range(4))))
        assert len(await log.read(0, 10 * READ_COUNT_MAX)) <= READ_COUNT_MAX
        read = await read_all(log, upto=count)
        assert [one.sealed.position for one in read] == list(range(1, count + 1))
        await close(log, journal=journal)

    @in_a_loop
    async def test_every_claim_has_a_higher_number(self, open_log: OpenLog) -> None:
        numbers = []
        for name in ("a", "b", "a", "c"):
            log = await open_log(IDENTITY)
            journal, number = await log.claim(0, name)
            numbers.append(number)
            await close(log, journal=journal)
        assert numbers == sorted(set(numbers))
        assert numbers[0] > 0

    @in_a_loop
    async def test_a_claim_must_know_the_end_of_the_log(self, open_log: OpenLog) -> None:
        owner, other = await open_log(IDENTITY), await open_log(IDENTITY)
        journal, _ = await owner.claim(0, "a")
        chain = CommitChain()
        await journal.append(make_group(chain.commit(SHARD)))
        with pytest.raises(JournalConflict):
            await other.claim(0, "b")
        with pytest.raises(JournalConflict):
            await other.claim(2, "b")
        await journal.append(make_group(chain.commit(SHARD)))  # a claim that failed fences nobody
        assert len(await read_all(other, upto=2)) == 2
        taken, _ = await other.claim(2, "b")
        await taken.append(make_group(chain.commit(SHARD)))
        await close(owner, other, journal=journal)
        await taken.close()

    @in_a_loop
    async def test_who_was_owner_is_refused_and_nothing_of_it_is_kept(self, open_log: OpenLog) -> None:
        owner, other = await open_log(IDENTITY), await open_log(IDENTITY)
        old, _ = await owner.claim(0, "a")
        chain, fork = CommitChain(), CommitChain()
        first = make_group(chain.commit(SHARD))
        fork.commit(SHARD)
        await old.append(first)
        await read_all(other, upto=1)
        new, _ = await other.claim(1, "b")
        with pytest.raises(JournalConflict):
            await old.append(make_group(fork.commit(SHARD)))
        second = make_group(chain.commit(SHARD))
        await new.append(second)
        with pytest.raises(JournalConflict):
            await old.append(make_group(fork.commit(SHARD)))
        assert await read_all(owner, upto=2) == stored(first, second, shard=SHARD)
        await close(owner, other, journal=new)
        await old.close()

    @in_a_loop
    async def test_a_write_under_way_comes_before_the_claim_or_not_at_all(self, open_log: OpenLog) -> None:
        owner, other = await open_log(IDENTITY), await open_log(IDENTITY)
        old, _ = await owner.claim(0, "a")
        chain = CommitChain()
        writing = asyncio.ensure_future(old.append(make_group(chain.commit(SHARD))))
        position, new = 0, None
        while new is None:
            try:
                new, _ = await other.claim(position, "b")
            except JournalConflict:
                position += len(await other.read(position))
        outcome = (await asyncio.gather(writing, return_exceptions=True))[0]
        assert (outcome is None) == (position == 1), "acknowledged, and then read before the claim; or refused"
        assert len(await read_all(owner, upto=position)) == position
        await close(owner, other, journal=new)
        await old.close()

    @in_a_loop
    async def test_followers_hear_that_the_log_has_grown(self, open_log: OpenLog) -> None:
        owner, follower = await open_log(IDENTITY), await open_log(IDENTITY)
        heard = asyncio.Event()
        follower.watch(heard.set)
        await follower.read(0)
        journal, _ = await owner.claim(0, "a")
        heard.clear()
        await journal.append(make_group(CommitChain().commit(SHARD)))
        async with asyncio.timeout(WAIT_S):
            await heard.wait()
        await close(owner, follower, journal=journal)

    @in_a_loop
    async def test_snapshots_and_drops_of_the_owner_are_seen(self, open_log: OpenLog) -> None:
        owner, other = await open_log(IDENTITY), await open_log(IDENTITY)
        journal, _ = await owner.claim(0, "a")
        chain = CommitChain()
        for _ in range(4):
            await journal.append(make_group(chain.commit(SHARD)))
        parts = [SnapshotPart(0, b"head"), SnapshotPart(1, b"x" * 300_000)]
        await journal.put_snapshot(SHARD, 3, parts)
        await journal.append(make_group(chain.commit(SHARD)))
        await journal.drop(SHARD, 2)
        assert await other.snapshots() == [3]
        assert list(await other.read_snapshot(3)) == parts
        assert await other.first_position() == 3
        assert [one.sealed.position for one in await read_all(other, after=2, upto=5)] == [3, 4, 5]
        await close(owner, other, journal=journal)


async def read_all(log: ShardLog, *, after: int = 0, upto: int) -> list[StoredCommit]:
    """Reads until it has this position: a read may be a little behind."""
    found: list[StoredCommit] = []
    async with asyncio.timeout(WAIT_S):
        while after + len(found) < upto:
            read = list(await log.read(after + len(found)))
            found += read
            if not read:
                await asyncio.sleep(0.01)
    return found


async def close(*logs: ShardLog, journal: Journal) -> None:
    """Closes all that a test has opened."""
    await journal.close()
    for log in logs:
        await log.close()
