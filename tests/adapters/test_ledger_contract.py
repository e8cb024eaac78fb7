"""The ledger contract, on every ledger we have."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from stigmergy.adapters import memory_ledger, sqlite_ledger
from stigmergy.testing.ledger_contract import LedgerContract, OpenLedger


class TestMemoryLedger(LedgerContract):
    @pytest.fixture
    def open_ledger(self, request: pytest.FixtureRequest) -> Iterator[OpenLedger]:
        place = request.node.name
        yield lambda name: memory_ledger.open_ledger(f"memory:{place}", name)
        memory_ledger.forget_ledger(place)


class TestSqliteLedger(LedgerContract):
    @pytest.fixture
    def open_ledger(self, tmp_path: Path) -> OpenLedger:
        return lambda name: sqlite_ledger.open_ledger(f"sqlite:{tmp_path}/ledger.db", name)
