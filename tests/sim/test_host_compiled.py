"""The whole host with compiled agents among the others, fed with column batches, while everything goes wrong."""

import pytest

from rigs.gauges import Gauge, Sound
from rigs.trial import run_trial
from stigmergy.agents.plans import AgentPlan
from tests.agents.plain_table import PlainEngine, compiled

SEEDS = 6
CHUNK = 2


def a_plan() -> AgentPlan:
    return compiled(PlainEngine(Gauge, actions=(Sound,)))


@pytest.mark.parametrize(
    "first", [0, *(pytest.param(one, marks=pytest.mark.prove) for one in range(CHUNK, SEEDS, CHUNK))]
)
def test_no_promise_is_broken_whatever_goes_wrong(first: int) -> None:
    records = sounded = 0
    for seed in range(first, first + CHUNK):
        result = run_trial(seed, in_segments=seed % 2 == 0, gauges=a_plan())
        assert not result.violations, str(result)
        records += result.counts["records read"]
        sounded += result.counts["sounded"]
    assert records > 300
    assert sounded > 30


def test_the_same_seed_gives_the_same_trace() -> None:
    first, second = (run_trial(3, gauges=a_plan()) for _ in range(2))
    assert first.trace_hash == second.trace_hash
    assert first.trace_hash != run_trial(4, gauges=a_plan()).trace_hash


def test_nothing_acknowledged_is_lost_over_losses_of_power() -> None:
    for seed in range(7_000, 7_003):
        result = run_trial(seed, power_only=True, in_segments=True, gauges=a_plan())
        assert not result.violations, str(result)


@pytest.mark.prove
def test_a_disk_that_lies_is_found_out() -> None:
    """Else these trials could not fail."""
    found = [run_trial(seed, sync_lies=True, power_only=True, gauges=a_plan()).violations for seed in range(6)]
    assert any(found)
