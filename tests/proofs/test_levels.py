"""A few cuts and kills between four levels, of the 500 in `make prove ARGS=levels`."""

import pytest

from proofs.levels import LEVELS, run
from proofs.tells_routed import BETWEEN_COUNT_MIN
from stigmergy.testing.brokers import NoBroker
from tests.conftest import without_mosquitto

CUTS = 4


@pytest.mark.prove
@pytest.mark.timeout(1800)
def test_commands_and_tells_cross_levels_whatever_is_cut_or_killed() -> None:
    try:
        trial = run(CUTS, seed=20)
    except NoBroker as missing:
        without_mosquitto(str(missing))
    assert trial.violations == []
    # Otherwise it was no test.
    assert (trial.tally.cuts, trial.tally.kills > 0) == (CUTS, True)
    assert trial.tally.told >= CUTS * BETWEEN_COUNT_MIN
    assert trial.tally.links >= len(LEVELS) - 1
