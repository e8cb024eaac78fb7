"""Real servers for the bus on NATS: one for each module, with a listener for MQTT; and buses that are closed again."""

from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from stigmergy.testing.nats import NatsCluster, start_single
from tests.nats.bus.opening import Buses


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[NatsCluster]:
    """One server, for tests that leave it as it is; each has a fleet of its own."""
    with start_single(tmp_path_factory.mktemp("server"), mqtt=True, max_payload_bytes=2 * 1024 * 1024) as single:
        yield single


@pytest.fixture
def own_server(tmp_path: Path) -> Iterator[NatsCluster]:
    """One server, for a test that breaks it."""
    with start_single(tmp_path / "server", mqtt=True) as single:
        yield single


@pytest.fixture
async def buses() -> AsyncIterator[Buses]:
    """Opens buses, and closes them when the test is over."""
    opened = Buses()
    yield opened
    await opened.close()
