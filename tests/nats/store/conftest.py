"""Real servers for the tests of the store on NATS: one for each module, and one that a test may break."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from stigmergy.testing.nats import NatsCluster, start_single


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[NatsCluster]:
    """One server, for tests that leave it as it is."""
    with start_single(tmp_path_factory.mktemp("server")) as single:
        yield single


@pytest.fixture
def own_server(tmp_path: Path) -> Iterator[NatsCluster]:
    """One server, for a test that breaks it."""
    with start_single(tmp_path / "server") as single:
        yield single
