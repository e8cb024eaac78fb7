"""The store contract on a real server. Tests share it; each begins with a server that holds nothing."""

import asyncio
from collections.abc import Iterator

import pytest

from stigmergy.base.system import SystemClock
from stigmergy.nats.address import parse_address
from stigmergy.nats.link import NatsLink
from stigmergy.nats.store import open_store
from stigmergy.testing.nats import NatsCluster
from stigmergy.testing.store_contract import OpenStore, StoreContract


async def delete_all_streams(url: str) -> None:
    """Leaves a server as it was at the beginning."""
    link = await NatsLink.open(parse_address(url), name="test")
    for stream in (await link.api("STREAM.NAMES")).get("streams") or ():
        await link.api(f"STREAM.DELETE.{stream}")
    await link.close()


class TestNatsStore(StoreContract):
    @pytest.fixture
    def open_store(self, server: NatsCluster) -> Iterator[OpenStore]:
        yield lambda: open_store(server.url, SystemClock())
        asyncio.run(delete_all_streams(server.url))
