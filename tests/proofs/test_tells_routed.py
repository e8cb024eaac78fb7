"""A few cuts and kills in every test run, 500 in `make prove`; and the agents' own check must be able to fail."""

import pytest

from proofs.tells_routed import BETWEEN_COUNT_MIN, NODES, run
from proofs.tells_routed_node import Cart, Got
from stigmergy.testing import given
from stigmergy.testing.brokers import NoBroker
from tests.conftest import without_mosquitto

CUTS = 5


@pytest.mark.timeout(1800)
def test_tells_cross_nodes_and_fleets_whatever_is_cut_or_killed() -> None:
    try:
        trial = run(CUTS, seed=2)
    except NoBroker as missing:
        without_mosquitto(str(missing))
    assert trial.violations == []
    # Otherwise it was no test.
    assert (trial.tally.cuts, trial.tally.kills > 0) == (CUTS, True)
    assert trial.tally.told >= CUTS * BETWEEN_COUNT_MIN
    assert trial.tally.links > len(NODES)


@pytest.mark.parametrize("numbers", [(1, 3), (1, 1), (1, 2, 1)])
def test_agents_notice_what_is_lost_doubled_or_out_of_order(numbers: tuple[int, ...]) -> None:
    scenario = given(Cart)
    for number in numbers:
        scenario = scenario.when(Got(by="Cart/x", number=number))
    assert len(scenario.agent.wrong) == 1
