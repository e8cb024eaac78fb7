"""The simulated city: a seed without faults and one with all of them."""

import pytest
from msgspec import structs

from apps.city.scenario import scenario
from stigmergy.sim import ALL, NONE
from stigmergy.sim.simulation import run_seed


@pytest.mark.parametrize("faults", [NONE, ALL], ids=["calm", "faults"])
def test_every_leak_is_one_incident(faults: object) -> None:
    outcome = run_seed(structs.replace(scenario.setup, faults=faults), 1, scenario.test)
    assert not outcome.violations, outcome
