"""What a seed draws is within its range, ends before the heal, and is the same every time."""

import random

import pytest

from stigmergy.base.errors import ConfigError
from stigmergy.sim import ALL, LOSS, NETWORK, NONE, PARTITION
from stigmergy.sim.faults import BY_NAME, CLOCK_JUMP, EVERY, SKEW_MS_MAX, draw_plan, read_faults

NODES = ["node-1", "node-2", "node-3"]
HAS = ["disk", "versions", "models", "policy", "replicas", "liar"]


@pytest.mark.parametrize("seed", range(30))
def test_a_plan_is_the_seeds(seed: int) -> None:
    plans = [draw_plan(ALL, random.Random(seed), NODES, 30_000, has=HAS) for _ in range(2)]
    assert plans[0] == plans[1]
    assert [one.number for one in plans[0]] == list(range(1, len(plans[0]) + 1))
    for one in plans[0]:
        assert 0 <= one.at_ms < 30_000
        assert one.at_ms + one.for_ms <= 30_000
        assert bool(one.for_ms) == BY_NAME[one.fault].lasts
        assert all(node in NODES for node in one.node.split(","))


def test_every_fault_is_drawn_sooner_or_later() -> None:
    drawn = {one.fault for seed in range(40) for one in draw_plan(EVERY, random.Random(seed), NODES, 9_000, has=HAS)}
    assert drawn == set(BY_NAME)


def test_loss_is_never_more_than_a_third() -> None:
    amounts = [one.amount for seed in range(300) for one in draw_plan([LOSS], random.Random(seed), NODES, 9_000)]
    assert min(amounts) >= 10
    assert 250 < max(amounts) <= 300


def test_a_partition_leaves_somebody_on_the_other_side() -> None:
    sides = [one.node.split(",") for seed in range(99) for one in draw_plan([PARTITION], random.Random(seed), NODES, 9)]
    assert {len(side) for side in sides} == {1}
    many = [f"n{number}" for number in range(10)]
    wide = [one.node.split(",") for seed in range(99) for one in draw_plan([PARTITION], random.Random(seed), many, 9)]
    assert {len(side) for side in wide} == {1, 2, 3, 4, 5}


def test_faults_that_need_something_are_not_drawn_without_it() -> None:
    drawn = [one.fault for seed in range(40) for one in draw_plan(ALL, random.Random(seed), NODES, 9_000)]
    assert not {"bit-flip", "disk-full", "io-error", "versions", "liar"} & set(drawn)


def test_where_state_is_shared_no_clock_is_set_beyond_what_others_accept() -> None:
    plans = [draw_plan([CLOCK_JUMP], random.Random(seed), NODES, 9_000, has=["replicas"]) for seed in range(60)]
    amounts = [one.amount for plan in plans for one in plan]
    assert max(amounts) == SKEW_MS_MAX
    assert min(amounts) == -3_600_000


def test_faults_are_named_by_words() -> None:
    assert read_faults("all") == ALL
    assert read_faults("none") == NONE
    assert read_faults("network") == NETWORK
    assert read_faults(" partition,loss , loss") == (LOSS, PARTITION)
    assert read_faults("all,liar") == EVERY
    with pytest.raises(ConfigError, match="'rain' is no fault; there are all, none, network, loss"):
        read_faults("loss,rain")
