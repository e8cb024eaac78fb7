"""The ledger on JetStream, against real servers: the contract, and what is particular to signed logs on a cluster."""

import itertools
from collections.abc import Iterator
from pathlib import Path

import pytest

from stigmergy.adapters.ed25519 import Ed25519Signer
from stigmergy.adapters.nats_ledger import open_ledger
from stigmergy.testing.ledger_contract import LedgerContract, OpenLedger
from stigmergy.testing.nats_rig import NatsCluster, start_single

SIGNER = Ed25519Signer(b"\x01" * 32)
places = itertools.count(1)


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[NatsCluster]:
    with start_single(Path(tmp_path_factory.mktemp("nats"))) as cluster:
        yield cluster


class TestNatsLedger(LedgerContract):
    @pytest.fixture
    def open_ledger(self, server: NatsCluster) -> OpenLedger:
        url = f"{server.url}/place-{next(places)}"
        return lambda name: open_ledger(url, name, signer=SIGNER)
