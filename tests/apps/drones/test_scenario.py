"""The swarm in the simulator: one seed here, many in `stigmergy sim drones`; and a witness who is not deceived."""

from __future__ import annotations

import pytest
from msgspec import structs

from apps.drones.parcels import Parcels
from apps.drones.scenario import scenario
from stigmergy.sim.faults import read_faults
from stigmergy.sim.simulation import Outcome, run_seed


def play(seed: int, faults: str, jobs: int = 2, for_s: float = 20.0) -> Outcome:
    small = scenario.with_agents(jobs).setup
    return run_seed(structs.replace(small, faults=read_faults(faults), for_s=for_s), seed, scenario.test)


@pytest.mark.parametrize(("seed", "faults"), [(3, "all"), pytest.param(2, "network,crash", marks=pytest.mark.prove)])
def test_whatever_breaks_nobody_is_too_close_and_jobs_end(seed: int, faults: str) -> None:
    assert play(seed, faults).violations == []


def test_a_delivery_that_was_none_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """A drone that says delivered while the parcel is on board: the witness looks into the box."""

    def forget(self: Parcels, *_: object) -> None:
        """The box stays empty, and says that it took the parcel."""

    monkeypatch.setattr(Parcels, "release", forget)
    (violation, *_) = play(1, "none", jobs=1).violations
    assert "says that it was delivered, and was not" in violation
