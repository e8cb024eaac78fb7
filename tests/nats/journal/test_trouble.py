"""A journal on NATS when servers die or hang, links are cut in the middle of a write, and others claim the log."""

from __future__ import annotations

import asyncio

import pytest

from stigmergy.base.errors import JournalConflict, JournalLocked, JournalUnknown
from stigmergy.journal.port import JournalIdentity
from stigmergy.nats.address import parse_address
from stigmergy.nats.errors import CLUSTER_NOT_AVAILABLE, JetStreamRefused, Unanswered
from stigmergy.nats.journal import inspect_journals, open_journal, stream
from stigmergy.nats.journal import opener as opening
from stigmergy.nats.journal.journal import NatsJournal
from stigmergy.nats.journal.messages import GROUP, NOTE, PIECE, LogMessage
from stigmergy.nats.journal.shard_log import open_shard_log
from stigmergy.nats.journal.stream import LogPlace, LogStream
from stigmergy.nats.link import NatsLink
from stigmergy.testing.journal_contract import CommitChain, stored
from stigmergy.testing.nats import NatsCluster
from stigmergy.testing.proxy import LinkProxy
from tests.nats.journal.writing import IDENTITY, Owner, outcome_of

PATIENCE_S = 1.5


def usurped(url: str, monkeypatch: pytest.MonkeyPatch) -> NatsJournal:
    """Opens a log although its owner lives, as if that did not answer in time."""
    with monkeypatch.context() as patched:
        patched.setattr("stigmergy.nats.journal.opener._check_free", _free)
        return open_journal(url, IDENTITY)


async def _free(*_given: object) -> None:
    return None


def check_all_there(journal: NatsJournal, owner: Owner) -> None:
    """All that was acknowledged is there, once and in order; behind it at most what was under way."""
    found = list(journal.read(0))
    wanted = stored(*owner.acknowledged, shard=0)
    assert found[: len(wanted)] == wanted
    assert len(found) <= len(wanted) + 1


# ---------------------------------------------------------------------- three servers


@pytest.mark.parametrize("how", ["kill", pytest.param("pause", marks=pytest.mark.prove)])
async def test_nothing_acknowledged_is_lost_with_the_leader(cluster: NatsCluster, place: str, how: str) -> None:
    journal = open_journal(f"{cluster.url}/{place}?replicas=3", IDENTITY)
    owner = Owner(journal)
    await owner.wait_for(30)
    leader = await cluster.leader_of(LogPlace(place, 0, 0).stream)
    assert leader is not None
    getattr(cluster, how)(leader)
    await owner.wait_for(30)
    if how == "kill":
        cluster.start_again(leader)
    else:
        cluster.resume(leader)
    await owner.wait_for(10)
    await owner.stop()
    assert owner.refused is None
    assert list(journal.read(0)) == stored(*owner.acknowledged, shard=0)
    await journal.close()


async def test_without_a_majority_it_is_unknown_and_the_next_start_tells(
    cluster: NatsCluster, place: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    url = f"{cluster.url}/{place}?replicas=3"
    journal = open_journal(url, IDENTITY)
    owner = Owner(journal)
    await owner.wait_for(10)
    monkeypatch.setattr(stream, "WRITE_WITHIN_S", PATIENCE_S)
    for number in (0, 1):
        cluster.pause(number)
    await owner._task
    assert isinstance(owner.refused, JournalUnknown)
    assert "majority" in str(owner.refused)
    for number in (0, 1):
        cluster.resume(number)
    assert isinstance(await outcome_of(journal.append(owner.chain.group([0]))), JournalUnknown)
    await journal.close()
    monkeypatch.undo()
    reopened = await asyncio.to_thread(open_journal, url, IDENTITY)
    check_all_there(reopened, owner)
    await reopened.close()


async def test_a_write_that_may_have_arrived_is_unknown_while_the_servers_find_no_leader(
    server: NatsCluster, place: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They answer, that they are not available for the moment: also when they are asked what became of it."""
    journal = open_journal(f"{server.url}/{place}", IDENTITY)
    chain, answers = CommitChain(), iter([Unanswered("no answer")])
    monkeypatch.setattr(stream, "WRITE_WITHIN_S", PATIENCE_S)
    monkeypatch.setattr(stream, "TRY_S", PATIENCE_S / 5)

    async def not_now(*_given: object, **_options: object) -> None:
        raise next(answers, JetStreamRefused(CLUSTER_NOT_AVAILABLE, "temporarily unavailable"))

    with monkeypatch.context() as patched:
        patched.setattr(NatsLink, "publish", not_now)
        patched.setattr(NatsLink, "api", not_now)
        assert isinstance(await outcome_of(journal.append(chain.group([0]))), JournalUnknown)
    assert isinstance(await outcome_of(journal.append(chain.group([0]))), JournalUnknown), "until a restart has read it"
    await journal.close()


async def test_an_owner_that_was_replaced_is_refused_with_its_write_under_way(
    cluster: NatsCluster, place: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    url = f"{cluster.url}/{place}?replicas=3"
    owner = Owner(open_journal(url, IDENTITY), pause_s=0.02)
    await owner.wait_for(20)
    successor = await asyncio.to_thread(usurped, url, monkeypatch)
    kept = stored(*owner.acknowledged, shard=0)
    await asyncio.wait([owner._task])
    assert isinstance(owner.refused, JournalConflict)
    assert "claim of" in str(owner.refused)
    assert len(owner.acknowledged) == successor.heads()[0].position
    chain = CommitChain()
    chain.continue_from(owner.acknowledged[-1].commits[-1])
    group = chain.group([0])
    await successor.append(group)
    assert isinstance(await outcome_of(owner.journal.append(owner.chain.group([0]))), JournalConflict)
    assert list(successor.read(0))[: len(kept)] == kept
    assert list(successor.read(0)) == stored(*owner.acknowledged, group, shard=0)
    await successor.close()
    await owner.journal.close()


# ---------------------------------------------------------------------- one server


@pytest.mark.parametrize("how", ["drop", "mute", "stall"])
async def test_a_write_whose_link_breaks_is_found_out(
    server: NatsCluster, place: str, how: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stream, "TRY_S", 0.3)
    proxy = LinkProxy(server.servers[0].plan.port)
    journal = open_journal(f"{server.url}/{place}", IDENTITY)
    await journal.close()
    url = f"nats://127.0.0.1:{await proxy.start()}/{place}"
    journal = await asyncio.to_thread(open_journal, url, IDENTITY)
    owner = Owner(journal)
    await owner.wait_for(5)
    if how == "mute":
        proxy.mute_server()
    elif how == "stall":
        proxy.stall()
    if how != "drop":
        await asyncio.sleep(0.5)
    if how != "stall":
        proxy.drop()
    proxy.restore()
    await owner.wait_for(5)
    await owner.stop()
    assert owner.refused is None
    found = await asyncio.to_thread(lambda: list(journal.read(0)))
    assert found == stored(*owner.acknowledged, shard=0)
    await journal.close()
    await proxy.close()


async def test_a_server_that_is_killed_and_comes_back_has_all(server: NatsCluster, place: str) -> None:
    journal = open_journal(f"{server.url}/{place}", IDENTITY)
    owner = Owner(journal)
    await owner.wait_for(50)
    server.kill(0)
    await asyncio.sleep(0.2)
    server.start_again(0)
    await owner.wait_for(20)
    await owner.stop()
    assert owner.refused is None
    assert list(journal.read(0)) == stored(*owner.acknowledged, shard=0)
    await journal.close()


async def test_a_server_that_says_nothing_has_kept_nothing_as_far_as_we_know(
    server: NatsCluster, place: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stream, "WRITE_WITHIN_S", 1.0)
    monkeypatch.setattr(stream, "TRY_S", 0.3)
    journal, chain = open_journal(f"{server.url}/{place}", IDENTITY), CommitChain()
    await journal.append(chain.group([0]))
    server.pause(0)
    outcome = await outcome_of(journal.append(chain.group([0])))
    server.resume(0)
    assert isinstance(outcome, JournalUnknown)
    await journal.close()


async def test_what_another_has_put_there_is_a_conflict_and_our_own_is_success(server: NatsCluster, place: str) -> None:
    """The two answers to the same refusal, as after an acknowledgement that was lost."""
    journal = open_journal(f"{server.url}/{place}", IDENTITY)
    log = await journal._log()
    await log.write(GROUP, b"ours", 1)
    await log.write(GROUP, b"ours", 1)
    with pytest.raises(JournalConflict):
        await log.write(GROUP, b"another's", 1)
    with pytest.raises(JournalConflict):
        await log.write(PIECE, b"ours", 1)
    assert await log.get(2) == LogMessage(2, GROUP, b"ours")
    assert await log.get(3) is None
    await journal.close()


async def test_a_lock_passes_when_its_owner_is_gone(server: NatsCluster, place: str) -> None:
    url = f"{server.url}/{place}"
    journal = open_journal(url, IDENTITY)
    with pytest.raises(JournalLocked, match="process"):
        open_journal(url, IDENTITY)
    assert journal._reader is not None
    journal._reader.close()  # as when its process was killed
    successor = open_journal(url, IDENTITY)
    assert isinstance(await outcome_of(journal.append(CommitChain().group([0]))), JournalConflict)
    await successor.close()
    journal._reader = None
    await journal.close()


async def test_two_that_open_at_once_leave_one_owner(
    server: NatsCluster, place: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    url = f"{server.url}/{place}"
    first = open_journal(url, IDENTITY)
    second = usurped(url, monkeypatch)
    assert second.epoch > first.epoch
    group = CommitChain().group([0])
    await second.append(group)
    assert isinstance(await outcome_of(first.append(CommitChain().group([0]))), JournalConflict)
    assert list(second.read(0)) == stored(group, shard=0)
    await second.close()
    monkeypatch.setattr(opening, "OWNER_ANSWERS_S", 0.2)
    await open_journal(url, IDENTITY).close()  # whoever has lost a log does not keep others from it
    await first.close()


async def test_a_log_that_is_written_can_be_looked_at(server: NatsCluster, place: str) -> None:
    journal = open_journal(f"{server.url}/{place}", IDENTITY)
    owner = Owner(journal)
    await owner.wait_for(20)
    (looked_at,) = await asyncio.to_thread(inspect_journals, f"{server.url}/{place}")
    found = await asyncio.to_thread(lambda: list(looked_at.read(0)))
    assert len(found) >= 20
    await looked_at.close()
    await owner.stop()
    assert owner.refused is None
    assert found == stored(*owner.acknowledged, shard=0)[: len(found)]
    await journal.close()


async def test_pieces_without_their_end_count_for_nothing(
    server: NatsCluster, place: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    url = f"{server.url}/{place}"
    journal, chain = open_journal(url, IDENTITY), CommitChain()
    small, large = chain.group([0], b"small"), chain.group([0, 0, 0], b"x" * 900_000)
    await journal.append(small)
    writes: list[str] = []
    write = LogStream.write

    async def breaking(self: LogStream, kind: str, payload: bytes, after: int) -> None:
        writes.append(kind)
        if len(writes) == 3:
            raise JournalUnknown("the process was killed here")
        await write(self, kind, payload, after)

    with monkeypatch.context() as patched:
        patched.setattr(LogStream, "write", breaking)
        assert isinstance(await outcome_of(journal.append(large)), JournalUnknown)
    assert writes == [PIECE, PIECE, "end"]
    await journal.close()
    journal = open_journal(url, IDENTITY)
    assert list(journal.read(0)) == stored(small, shard=0)
    await journal.append(large)
    assert list(journal.read(0)) == stored(small, large, shard=0)
    await journal.close()
    journal = open_journal(url, IDENTITY)
    assert list(journal.read(0)) == stored(small, large, shard=0)
    assert (await (await journal._log()).last_note()) is not None
    assert (await (await journal._log()).last_note()).kind == NOTE  # type: ignore[union-attr]
    await journal.close()


async def test_who_does_not_wait_for_a_write_that_nobody_answers_lets_go_all_the_same(
    server: NatsCluster, place: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stream, "WRITE_WITHIN_S", PATIENCE_S)
    address = parse_address(f"{server.url}/{place}")
    link = await NatsLink.open(address, name="worker")
    log = await open_shard_log(link, JournalIdentity("fleet", 1, 7, (0, 0)))
    journal, _ = await log.claim(0, "a")
    await log.close()
    server.pause(0)
    try:
        writing = asyncio.ensure_future(outcome_of(journal.append(CommitChain().group([0]))))
        await asyncio.sleep(0.05)
        assert link._subscriptions, "it says that the log is its own"
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.2):
                await journal.close()
        assert not link._subscriptions, "each worker that was cut off would leave one more for each of its shards"
    finally:
        server.resume(0)
    await link.close()
    await writing
