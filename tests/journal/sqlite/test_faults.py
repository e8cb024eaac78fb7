"""Scorecard rows 1 to 3 at the journal: kill, power loss, full and failing disks, in small numbers. Proofs run more."""

import pytest

from rigs.journal_trial import try_fault_at, try_full_disk, try_power_loss
from stigmergy.sim.disk import DiskFault, SimDisk

PARTS = 3
"""Of the calls that can fail every third does in each run; the long proofs try the others."""


@pytest.mark.parametrize("seeds", [40, pytest.param(150, marks=pytest.mark.prove)])
def test_power_loss_and_kill_lose_nothing_acknowledged(seeds: int) -> None:
    for seed in range(seeds):
        assert try_power_loss(seed) == []


def test_the_same_test_fails_on_a_disk_that_lies_about_sync() -> None:
    assert sum(bool(try_power_loss(seed, sync_lies=True)) for seed in range(20)) >= 15


@pytest.mark.parametrize("part", [0, *(pytest.param(part, marks=pytest.mark.prove) for part in range(1, PARTS))])
@pytest.mark.parametrize("fault", DiskFault)
def test_fault_at_every_call_in_turn(fault: DiskFault, part: int) -> None:
    call, reached = 1 + part, True
    while reached:
        findings, reached = try_fault_at(call, fault, steps=10)
        assert findings == []
        call += PARTS
    assert call > 100


@pytest.mark.parametrize("seeds", [5, pytest.param(15, marks=pytest.mark.prove)])
def test_full_disk_loses_nothing_and_refuses_cleanly(seeds: int) -> None:
    refused = 0
    for seed in range(seeds):
        findings, count = try_full_disk(seed)
        assert findings == []
        refused += count
    assert refused > 3 * seeds


@pytest.mark.parametrize("seed", [34, 42])
def test_reopening_without_writing_the_wal_again_would_lose_what_was_shown(
    seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A killed process leaves commits that are visible and not durable; who acts on them must sync them first."""
    assert try_power_loss(seed) == []
    monkeypatch.setattr(SimDisk, "rewrite", lambda *_: None)
    assert try_power_loss(seed) != []
