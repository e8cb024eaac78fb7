"""The pytest plugin of stigmergy: the fixture `simulation`, and options that say which seeds simulated tests run.

    pytest --sim-seed 8123            see a failure again
    pytest --sim-seeds 1000           more seeds than the tests ask for, or fewer

pytest loads it in every run of every project where stigmergy is installed. So it imports nothing of stigmergy before
its fixture is used, and it is no part of that package.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from stigmergy.sim.simulation import Simulation


def pytest_addoption(parser: pytest.Parser) -> None:
    """Adds the options."""
    group = parser.getgroup("stigmergy", "simulated fleets")
    group.addoption("--sim-seed", type=int, metavar="SEED", help="run simulated tests with this seed only")
    group.addoption("--sim-seeds", type=int, metavar="COUNT", help="run simulated tests with so many seeds")


def pytest_configure(config: pytest.Config) -> None:
    """Hands the options on, in each worker too where there are several."""
    for option, variable in (("--sim-seed", "STIGMERGY_SIM_SEED"), ("--sim-seeds", "STIGMERGY_SIM_SEEDS")):
        value = config.getoption(option)
        if value is not None:
            os.environ[variable] = str(value)


@pytest.fixture
def simulation(request: pytest.FixtureRequest) -> Simulation:
    """Runs a function that takes a World in a simulated fleet: `simulation(fleet, watch, agents=16, seeds=20)`."""
    from stigmergy.sim.simulation import Simulation

    return Simulation(request.node.nodeid)
