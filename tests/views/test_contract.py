"""All view stores do what the port says."""

from __future__ import annotations

from pathlib import Path

import pytest

from stigmergy.testing.view_store_contract import OpenViewStore, ViewStoreContract
from stigmergy.views.memory import MemoryTables, MemoryViewStore
from stigmergy.views.postgres import PostgresViewStore
from stigmergy.views.sqlite import SqliteViewStore


class TestMemoryViewStore(ViewStoreContract):
    @pytest.fixture
    def open_view_store(self) -> OpenViewStore:
        tables = MemoryTables()
        return lambda: MemoryViewStore(tables)


class TestSqliteViewStore(ViewStoreContract):
    @pytest.fixture
    def open_view_store(self, tmp_path: Path) -> OpenViewStore:
        return lambda: SqliteViewStore(str(tmp_path / "fleet.views"))


class TestPostgresViewStore(ViewStoreContract):
    @pytest.fixture
    def open_view_store(self, postgres: str) -> OpenViewStore:
        return lambda: PostgresViewStore(postgres)
