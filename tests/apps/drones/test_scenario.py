"""The swarm in the simulator: one seed here, many in `stigmergy sim drones`; and a witness who is not deceived."""

from __future__ import annotations

import pytest
from msgspec import structs

from apps.drones import scenario as scenarios
from apps.drones.drone import Drone
from apps.drones.parcels import Parcels
from apps.drones.physics import Kind
from apps.drones.scenario import Flight, scenario
from stigmergy.sim.faults import read_faults
from stigmergy.sim.simulation import Outcome, run_seed


def play(seed: int, faults: str, jobs: int = 2, for_s: float = 20.0) -> Outcome:
    small = scenario.with_agents(jobs).setup
    return run_seed(structs.replace(small, faults=read_faults(faults), for_s=for_s), seed, scenario.test)


@pytest.mark.parametrize(("seed", "faults"), [(3, "all"), pytest.param(2, "network,crash", marks=pytest.mark.prove)])
def test_whatever_breaks_nobody_is_too_close_and_jobs_end(seed: int, faults: str) -> None:
    assert play(seed, faults).violations == []


@pytest.mark.parametrize("kind", ["radio", pytest.param("motor", marks=pytest.mark.prove)])
def test_a_failure_is_noticed_soon(kind: Kind, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every drone fails, one after the other, with nothing else broken."""
    noted: list[str] = []
    note = Flight._note_failure

    def count(self: Flight, name: str) -> None:
        note(self, name)
        noted.extend(name for _, failed, _, _ in self._failed if failed == name)

    monkeypatch.setattr(Flight, "_note_failure", count)
    monkeypatch.setattr(scenarios, "FAILING", 1.0)
    monkeypatch.setattr(scenarios, "BREAKS", {kind: scenarios.BREAKS[kind]})
    assert [one for one in play(1, "none", jobs=5).violations if "does not know" in one] == []
    assert len(noted) >= 2


def test_drones_that_were_blind_come_home_by_themselves(monkeypatch: pytest.MonkeyPatch) -> None:
    """All computers restart in the air, one after the other: their drones are put down where they are."""
    lay: set[str] = set()
    modes: dict[str, str] = {}
    look = Flight._look

    def watch(self: Flight) -> None:
        look(self)
        modes.update((drone.id, drone.mode) for drone in self._simulated.states(Drone))
        lay.update(name for name, mode in modes.items() if mode == "grounded")

    monkeypatch.setattr(Flight, "_look", watch)
    monkeypatch.setattr(scenarios, "FAILING", 1.0)
    monkeypatch.setattr(scenarios, "LOW", 0.0)
    monkeypatch.setattr(scenarios, "BREAKS", {"computer": scenarios.BREAKS["computer"]})
    assert play(1, "none", jobs=5).violations == []
    assert lay, "nobody was put down"
    assert {modes[name] for name in lay} & {"parked", "charging"}, "some lie too near to the next cell, not all"


def test_a_delivery_that_was_none_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """A drone that says delivered while the parcel is on board: the witness looks into the box."""

    def forget(self: Parcels, *_: object) -> None:
        """The box stays empty, and says that it took the parcel."""

    monkeypatch.setattr(Parcels, "release", forget)
    (violation, *_) = play(1, "none", jobs=1).violations
    assert "says that it was delivered, and was not" in violation
