"""The whole host on a journal in segments: the trials that the one on SQLite passes."""

import itertools

import pytest

from rigs.io_trial import run_io_trial
from rigs.trial import run_trial
from stigmergy.sim.disk import AfterFailedSync, DiskFault

SEEDS = 12
CHUNK = 6
PARTS = 4
EVERY = 3
"""Proofs let every call fail; here it is one of so many, each in its own way."""


@pytest.mark.parametrize(
    "first", [0, *(pytest.param(one, marks=pytest.mark.prove) for one in range(CHUNK, SEEDS, CHUNK))]
)
def test_no_promise_is_broken_whatever_goes_wrong(first: int) -> None:
    for seed in range(first, first + CHUNK):
        result = run_trial(seed, in_segments=True)
        assert not result.violations, str(result)
        assert result.counts["acknowledged"] > 0


def test_the_same_seed_gives_the_same_trace() -> None:
    first, second = (run_trial(3, in_segments=True) for _ in range(2))
    assert first.trace_hash == second.trace_hash
    assert first.trace_hash != run_trial(4, in_segments=True).trace_hash


def test_nothing_acknowledged_is_lost_over_losses_of_power() -> None:
    losses = 0
    for seed in itertools.count(5_000):
        result = run_trial(seed, power_only=True, in_segments=True)
        assert not result.violations, str(result)
        losses += result.counts["power losses"]
        if losses >= 15:
            return


def test_on_a_disk_that_lies_about_syncs_the_same_trial_finds_a_loss() -> None:
    assert all(
        run_trial(seed, power_only=True, sync_lies=True, in_segments=True).violations for seed in range(5_000, 5_003)
    )


@pytest.mark.parametrize("part", [0, *(pytest.param(part, marks=pytest.mark.prove) for part in range(1, PARTS))])
@pytest.mark.parametrize("fault", [DiskFault.EIO, DiskFault.ENOSPC], ids=lambda fault: fault.name)
def test_a_fault_at_every_call_in_turn(fault: DiskFault, part: int) -> None:
    stopped = reached = 0
    for call in range(1 + part * EVERY, run_io_trial(0, None, in_segments=True).calls, PARTS * EVERY):
        after = AfterFailedSync.STALE_CACHE if call % 2 else AfterFailedSync.DROPPED_CACHE
        result = run_io_trial(call, fault, after_failed_sync=after, in_segments=True)
        assert not result.violations, "\n".join(result.violations)
        if not result.reached:
            break
        reached += 1
        stopped += result.stopped
    assert reached > 5
    assert stopped > 0 or fault is DiskFault.ENOSPC  # many calls need no room
