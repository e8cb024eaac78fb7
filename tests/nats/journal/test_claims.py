"""Claims on three servers against writes that are under way, and followers that catch up."""

from __future__ import annotations

import asyncio
import time

import pytest

from stigmergy.app.journals import open_journal
from stigmergy.base.errors import JournalConflict, JournalLocked, StigmergyError
from stigmergy.journal.port import Journal, JournalIdentity, StoredCommit
from stigmergy.nats.address import parse_address
from stigmergy.nats.journal.shard_log import NatsShardLog, open_shard_log
from stigmergy.nats.journal.stream import READ_BYTES_MAX, READ_COUNT_MAX
from stigmergy.nats.link import NatsLink
from stigmergy.shard.commit import Group
from stigmergy.testing.journal_contract import CommitChain, stored
from stigmergy.testing.nats import NatsCluster
from tests.nats.journal.writing import outcome_of, until

IDENTITY = JournalIdentity(fleet="delivery", shards=1, incarnation=7, part=(0, 0))
MOVES = 40


async def catch_up(log: NatsShardLog, after: int) -> list[StoredCommit]:
    found: list[StoredCommit] = []
    while read := await log.read(after + len(found)):
        found += read
    return found


async def write_later(
    journal: Journal, group: Group, pause_s: float, behind: asyncio.Event | None = None
) -> StigmergyError | None:
    await asyncio.sleep(pause_s)
    if behind is not None:
        await behind.wait()
    return await outcome_of(journal.append(group))


async def test_a_shard_that_moves_while_it_is_written_keeps_each_acknowledged_commit_once(
    cluster: NatsCluster, place: str
) -> None:
    address = parse_address(f"{cluster.url}/{place}?replicas=3")
    links = [await NatsLink.open(address, name=f"worker {number}") for number in range(2)]
    logs = [await open_shard_log(link, IDENTITY) for link in links]
    known: list[StoredCommit] = []
    acknowledged: list[Group] = []
    refused = numbers = 0
    owner: Journal | None = None
    for move in range(MOVES):
        writing, group, claimed = None, None, asyncio.Event()
        if owner is not None:
            chain = CommitChain()
            if known:
                chain.continue_from(known[-1].sealed)
            group = chain.group([0], str(move).encode())
            # Beside the claim, and now and then surely before it and surely behind it, however long a claim takes.
            behind = claimed if move % 10 == 9 else None
            writing = asyncio.ensure_future(write_later(owner, group, move % 10 * 0.001, behind))
            if move % 10 == 0:
                await asyncio.wait([writing])
        log = logs[move % 2]
        while True:
            known += await catch_up(log, len(known))
            try:
                new, number = await log.claim(len(known), f"worker {move % 2}")
                break
            except JournalConflict:
                continue
        assert number > numbers
        numbers = number
        claimed.set()
        if writing is not None and group is not None:
            error = await writing
            if error is None:
                acknowledged.append(group)
            else:
                assert isinstance(error, JournalConflict)
                refused += 1
            is_there = stored(group, shard=0)[0] in known
            assert is_there == (error is None), "an outcome that is told is the outcome"
        if owner is not None:
            await owner.close()
        owner = new
    assert owner is not None
    await owner.close()
    assert known == stored(*acknowledged, shard=0)
    assert refused, "no claim came before a write; the test has tried nothing"
    assert acknowledged, "no write came before a claim; the test has tried nothing"
    for log, link in zip(logs, links, strict=True):
        await log.close()
        await link.close()


async def test_a_shard_that_a_worker_owns_is_locked_for_others(server: NatsCluster, place: str) -> None:
    address = parse_address(f"{server.url}/{place}")
    link = await NatsLink.open(address, name="worker")
    log = await open_shard_log(link, IDENTITY)
    journal, _ = await log.claim(0, "worker 7")
    with pytest.raises(JournalLocked, match="worker 7"):
        await asyncio.to_thread(open_journal, f"{server.url}/{place}", "delivery", 1, (0, 0))
    await journal.close()
    await open_journal(f"{server.url}/{place}", "delivery", 1, (0, 0)).close()
    await log.close()
    await link.close()


async def test_followers_catch_up_in_portions_and_let_others_have_their_turn(server: NatsCluster, place: str) -> None:
    address = parse_address(f"{server.url}/{place}")
    link, other = [await NatsLink.open(address, name="worker") for _ in range(2)]
    log, follower = await open_shard_log(link, IDENTITY), await open_shard_log(other, IDENTITY)
    grown: list[float] = []
    follower.watch(lambda: grown.append(time.monotonic()))
    journal, _ = await log.claim(0, "worker")
    chain = CommitChain()
    groups = [chain.group([0] * 4, b"x" * 20_000) for _ in range(200)]
    for group in groups:
        await journal.append(group)
    await until(lambda: len(grown) == len(groups))
    turns = 0

    async def live() -> None:
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    living = asyncio.ensure_future(live())
    assert await catch_up(follower, 0) == stored(*groups, shard=0)
    living.cancel()
    size_bytes = sum(len(one.body) for group in groups for one in group.commits)
    assert turns > size_bytes / READ_BYTES_MAX
    assert len(groups) < READ_COUNT_MAX
    assert list(await follower.read(795)) == stored(*groups, shard=0)[795:]
    assert list(await follower.read(0, 3)) == stored(*groups, shard=0)[:3]
    await journal.drop(0, 400)
    assert [one.sealed.position for one in await follower.read(0, 2)] == [401, 402]
    assert await follower.first_position() == 401
    await journal.close()
    for one in (log, follower):
        await one.close()
    for each in (link, other):
        await each.close()
