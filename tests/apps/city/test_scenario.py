"""The simulated city: a seed without faults, one with all of them, and one with a leak beside a broken sensor."""

import pytest
from msgspec import structs

from apps.city.scenario import scenario
from stigmergy.sim import ALL, NONE
from stigmergy.sim.simulation import run_seed


@pytest.mark.parametrize(
    ("faults", "seed"), [(NONE, 1), (ALL, 1), (NONE, 55)], ids=["calm", "faults", "leak-beside-a-broken-sensor"]
)
def test_every_leak_is_one_incident(faults: object, seed: int) -> None:
    outcome = run_seed(structs.replace(scenario.setup, faults=faults), seed, scenario.test)
    assert not outcome.violations, outcome
