"""A few of the histories of compiled agents that `make prove` lives by the thousand, and bugs that they would find."""

from __future__ import annotations

from functools import cache
from typing import Any

import pytest

from proofs.column_histories import check_column_histories, ready_sondes
from stigmergy import Fleet
from stigmergy.compiled.table import CompiledTable


@cache
def fleet() -> Fleet:
    return ready_sondes()


@pytest.mark.prove
def test_replay_and_snapshots_end_in_the_tables_that_were_lived() -> None:
    checked = check_column_histories(24, 20_000, fleet())
    assert checked.histories == 24
    assert checked.events > 8_000
    assert checked.failures > 40
    assert checked.snapshots > 24


@pytest.mark.prove
def test_a_fold_that_forgets_a_record_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    fold = CompiledTable.fold

    def forgetful(table: CompiledTable, records: bytes, layout: Any, now_ns: int) -> None:
        fold(table, records[: -layout.record_bytes], layout, now_ns)

    monkeypatch.setattr(CompiledTable, "fold", forgetful)
    with pytest.raises(AssertionError, match=r"repeat it with check_column_histories\(1, \d+\)"):
        check_column_histories(60, 0, fleet())


def test_a_snapshot_that_adds_to_another_than_it_says_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    begin = CompiledTable.begin_snapshot

    def forgetful(table: CompiledTable, *, full: bool) -> Any:
        parts = list(begin(table, full=full))
        return iter(parts if full else parts[:-1])

    monkeypatch.setattr(CompiledTable, "begin_snapshot", forgetful)
    with pytest.raises(AssertionError, match="snapshot"):
        check_column_histories(200, 0, fleet())
