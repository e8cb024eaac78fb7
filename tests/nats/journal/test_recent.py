"""The newest commits of a log are read from memory, and a server that is away holds nobody up for long."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator

import pytest

from stigmergy.base.errors import LinkDown
from stigmergy.journal.port import JournalIdentity
from stigmergy.nats.journal import journal as module
from stigmergy.nats.journal import open_journal
from stigmergy.nats.journal.journal import Ahead, Recent
from stigmergy.nats.journal.messages import LogMessage
from stigmergy.nats.link import NatsLink
from stigmergy.testing.journal_contract import CommitChain, stored
from stigmergy.testing.nats import NatsCluster, start_single
from tests.nats.journal.writing import IDENTITY

LOOSE_S = 60.0


@pytest.fixture
def from_the_server(monkeypatch: pytest.MonkeyPatch) -> None:
    """Room for some commits in memory."""
    monkeypatch.setattr(module, "Recent", lambda: Recent(bytes_max=2_000))


@pytest.fixture
def own_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[NatsCluster]:
    with start_single(tmp_path_factory.mktemp("nats")) as single:
        yield single


async def test_followers_of_a_running_node_wait_for_no_server(
    own_server: NatsCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "LIVE_READ_S", 0.3)
    journal, chain = open_journal(own_server.url, IDENTITY), CommitChain()
    groups = [chain.group([0, 0], b"x" * 150) for _ in range(20)]
    for group in groups:
        await journal.append(group)
    whole = stored(*groups, shard=0)
    assert list(journal.read(0)) == whole, "first from the server, then from memory"
    assert list(journal.read(0, after=17)) == whole[17:]
    own_server.pause(0)
    assert list(journal.read(0, after=36)) == whole[36:]
    began_s = time.monotonic()
    with pytest.raises(LinkDown):
        list(journal.read(0))
    assert time.monotonic() - began_s < LOOSE_S
    own_server.resume(0)
    await asyncio.sleep(0)
    assert list(journal.read(0)) == whole
    await journal.close()


async def test_shards_that_share_a_log_are_fetched_once(server: NatsCluster, place: str) -> None:
    four = JournalIdentity(fleet="delivery", shards=4, incarnation=7)
    url = f"{server.url}/{place}"
    journal, chain = open_journal(url, four), CommitChain()
    groups = [chain.group([0, 1, 2, 3], b"x" * 100) for _ in range(600)]
    for group in groups:
        await journal.append(group)
    await journal.close()
    journal = open_journal(url, four)
    fetched: list[int] = []
    fetch = journal._fetch

    async def counted(sequence: int, link: NatsLink) -> list[LogMessage]:
        fetched.append(sequence)
        return await fetch(sequence, link)

    journal._fetch = counted  # type: ignore[method-assign]
    for shard in range(4):
        assert list(journal.read(shard)) == stored(*groups, shard=shard)
    assert len(fetched) < 10
    await journal.append(chain.group([0]))
    assert list(journal.read(1)) == stored(*groups, shard=1)
    await journal.close()


def test_what_came_with_other_shards_is_given_out_once() -> None:
    ahead, group = Ahead(bytes_max=700), CommitChain().group([0, 1, 2], b"x" * 200)
    commits = [stored(group, shard=shard)[0] for shard in range(3)]
    for one in (*commits, commits[0]):
        ahead.put(one)
    assert ahead.take(0, 1) == commits[0]
    assert ahead.take(0, 1) is None
    assert ahead.take(2, 1) is None, "there was no room for it"
    ahead.put(commits[2])
    assert ahead.take(2, 1) == commits[2]
    ahead.clear()
    ahead.put(commits[0])
    assert ahead.take(1, 1) is None
    assert ahead.take(0, 1) is None


def test_only_what_fits_is_kept_and_the_newest_stays() -> None:
    recent, chain = Recent(bytes_max=1_000), CommitChain()
    groups = [chain.group([0, 1], b"x" * 100) for _ in range(10)]
    for group in groups:
        recent.take(group)
    newest = stored(groups[-1], shard=1)[0]
    assert recent.find(1, 10) == newest
    assert newest.signature is not None
    assert recent.find(0, 1) is None
    assert recent.find(0, 10) is not None
    assert sum(recent.find(shard, position) is not None for shard in (0, 1) for position in range(1, 11)) < 10
    recent.take(chain.group([0], b"x" * 5_000))
    assert recent.find(0, 11) is None
