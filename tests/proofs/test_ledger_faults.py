"""A round of the proof of the ledger, small: processes that are killed while they append, read and hold."""

import asyncio

import pytest

from proofs import ledger_faults
from stigmergy.testing.linearizability import OperationOutcome


@pytest.mark.prove
def test_what_killed_processes_saw_of_a_ledger_has_one_order(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, seconds in (("CALM_S", 0.5), ("FAULT_S", 2.0), ("HEALED_S", 0.5)):
        monkeypatch.setattr(ledger_faults, name, seconds)
    (found,) = asyncio.run(ledger_faults.run(1, faults=["clients killed"]))
    assert found.violations == []
    assert found.operations[OperationOutcome.COMMITTED.value] > 10
    assert found.operations["reads"] > 10
    assert found.holds > 0
