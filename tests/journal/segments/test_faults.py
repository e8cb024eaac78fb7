"""Scorecard rows 1 to 3 at the journal in segments: kill, power loss, full and failing disks, in small numbers."""

import pytest

from rigs.journal_trial import open_segments, try_fault_at, try_full_disk, try_power_loss
from stigmergy.sim.disk import DiskFault, SimFile

PARTS = 3
"""Of the calls that can fail every third does in each run; the long proofs try the others."""


@pytest.mark.parametrize("seeds", [20, pytest.param(60, marks=pytest.mark.prove)])
def test_power_loss_and_kill_lose_nothing_acknowledged(seeds: int) -> None:
    for seed in range(seeds):
        assert try_power_loss(seed, open_on=open_segments) == []


@pytest.mark.parametrize("seed", [132])
def test_seeds_that_found_something(seed: int) -> None:
    """132: the power went between keeping the rest of a segment and removing it, and the rest was kept twice."""
    assert try_power_loss(seed, open_on=open_segments) == []


def test_the_same_test_fails_on_a_disk_that_lies_about_sync() -> None:
    caught = sum(bool(try_power_loss(seed, sync_lies=True, open_on=open_segments)) for seed in range(20))
    assert caught >= 15


@pytest.mark.parametrize("part", [0, *(pytest.param(part, marks=pytest.mark.prove) for part in range(1, PARTS))])
@pytest.mark.parametrize("fault", DiskFault)
def test_fault_at_every_call_in_turn(fault: DiskFault, part: int) -> None:
    call, reached = 1 + part, True
    while reached:
        findings, reached = try_fault_at(call, fault, steps=20, open_on=open_segments)
        assert findings == []
        call += PARTS
    assert call > 80


@pytest.mark.parametrize("seeds", [5, pytest.param(15, marks=pytest.mark.prove)])
def test_full_disk_loses_nothing_and_refuses_cleanly(seeds: int) -> None:
    refused = 0
    for seed in range(seeds):
        findings, count = try_full_disk(seed, open_on=open_segments)
        assert findings == []
        refused += count
    assert refused > 3 * seeds


def test_reopening_without_writing_the_last_frame_again_would_lose_what_was_shown(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """After a failed sync the system shows what the disk has lost; who acts on it must write it again first."""
    write_at = SimFile.write_at

    def write_nothing_twice(file: SimFile, offset: int, data: bytes) -> None:
        if bytes(file.inode.seen[offset : offset + len(data)]) != data:
            write_at(file, offset, data)

    def losses() -> int:
        calls = ((call, seed) for seed in range(3) for call in range(10, 70))
        return sum(
            bool(try_fault_at(call, DiskFault.EIO, seed=seed, steps=12, open_on=open_segments)[0])
            for call, seed in calls
        )

    assert losses() == 0
    monkeypatch.setattr(SimFile, "write_at", write_nothing_twice)
    assert losses() > 0
