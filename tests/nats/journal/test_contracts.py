"""The journal on NATS keeps the contracts of journals and of logs that several see, on one server and on three."""

from __future__ import annotations

import pytest

from rigs.shard_log_contract import OpenLog, ShardLogContract
from stigmergy.journal.port import JournalIdentity, ShardLog
from stigmergy.nats.address import parse_address
from stigmergy.nats.journal import open_journal as open_nats
from stigmergy.nats.journal.shard_log import open_shard_log
from stigmergy.nats.link import NatsLink
from stigmergy.testing.journal_contract import JournalContract, OpenJournal
from stigmergy.testing.nats import NatsCluster


class TestJournal(JournalContract):
    @pytest.fixture
    def open_journal(self, server: NatsCluster, place: str) -> OpenJournal:
        return lambda identity: open_nats(f"{server.url}/{place}", identity)


class TestJournalOnThreeServers(JournalContract):
    """As it ships, with what was written last in memory."""

    @pytest.fixture
    def from_the_server(self) -> None:
        pass

    @pytest.fixture
    def open_journal(self, cluster: NatsCluster, place: str) -> OpenJournal:
        return lambda identity: open_nats(f"{cluster.url}/{place}?replicas=3", identity)


class TestShardLog(ShardLogContract):
    @pytest.fixture
    def open_log(self, server: NatsCluster, place: str) -> OpenLog:
        async def open_log(identity: JournalIdentity) -> ShardLog:
            link = await NatsLink.open(parse_address(f"{server.url}/{place}"), name="log")
            return await open_shard_log(link, identity)

        return open_log
