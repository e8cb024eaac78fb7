"""One server, and one cluster, for all tests of journals on NATS."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from stigmergy.nats.journal import journal
from stigmergy.nats.journal.journal import Recent
from stigmergy.testing.nats import NatsCluster, start_single


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[NatsCluster]:
    """One server alone."""
    with start_single(tmp_path_factory.mktemp("nats")) as single:
        yield single


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[NatsCluster]:
    """Three servers."""
    with NatsCluster.start(tmp_path_factory.mktemp("nats"), nodes=3) as three:
        yield three


@pytest.fixture(autouse=True)
def from_the_server(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is read comes from the servers, and not from what was written a moment before."""
    monkeypatch.setattr(journal, "Recent", lambda: Recent(bytes_max=0))


@pytest.fixture
def place(request: pytest.FixtureRequest) -> str:
    """A name for the log of this test alone."""
    return f"{request.node.name}"
