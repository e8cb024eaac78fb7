"""Every log of a shard that we ship keeps the contract."""

from __future__ import annotations

import pytest

from stigmergy.adapters.memory_shard_log import MemoryShard, MemoryShardLog
from stigmergy.ports.following import ShardLog
from stigmergy.ports.journal import JournalIdentity
from stigmergy.testing.shard_log_contract import OpenLog, ShardLogContract


class TestMemoryShardLog(ShardLogContract):
    @pytest.fixture
    def open_log(self) -> OpenLog:
        shards: dict[str, MemoryShard] = {}

        async def open_log(identity: JournalIdentity) -> ShardLog:
            return MemoryShardLog(shards.setdefault(identity.fleet, MemoryShard(identity)))

        return open_log
