"""The ledger contract, on every ledger we have."""

import random
from collections.abc import Iterator
from pathlib import Path

import pytest

from rigs.ledger import SimLedger
from stigmergy.base.errors import LedgerForeign
from stigmergy.claims import memory_ledger, sqlite_ledger
from stigmergy.claims.port import check_name
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


class TestSimulatedLedger(LedgerContract):
    """On a line with delays; what it does when things go wrong is in tests/sim/test_ledger.py."""

    @pytest.fixture
    def open_ledger(self) -> OpenLedger:
        stores: list[memory_ledger.MemoryLedgerStore] = []

        def open_same(name: str) -> SimLedger:
            if not stores:
                stores.append(memory_ledger.MemoryLedgerStore(check_name(name)))
            if stores[0].name != name:
                raise LedgerForeign(f"the ledger {stores[0].name!r}, not {name!r}")
            return SimLedger(stores[0], random.Random(1))

        return open_same
