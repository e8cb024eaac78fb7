"""Every log of a shard that we ship keeps the contract."""

from __future__ import annotations

import pytest

from rigs.shard_log_contract import OpenLog, ShardLogContract
from stigmergy.journal.memory import MemoryShard, MemoryShardLog
from stigmergy.journal.port import JournalIdentity, ShardLog


class TestMemoryShardLog(ShardLogContract):
    @pytest.fixture
    def open_log(self) -> OpenLog:
        shards: dict[str, MemoryShard] = {}

        async def open_log(identity: JournalIdentity) -> ShardLog:
            return MemoryShardLog(shards.setdefault(identity.fleet, MemoryShard(identity)))

        return open_log
