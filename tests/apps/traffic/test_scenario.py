"""The grid in the simulator: few seeds here, many in `stigmergy sim traffic`; and a witness who is not deceived."""

from __future__ import annotations

import pytest
from msgspec import structs

from apps.traffic import scenario as traffic
from apps.traffic.cabinet import Cabinet
from apps.traffic.messages import ShowPhase
from apps.traffic.monitor import Limits, Monitor
from apps.traffic.phases import LAMPS, Geometry, Lamps, Phase
from apps.traffic.scenario import Witness, addresses, scenario
from stigmergy import Order
from stigmergy.sim.faults import read_faults
from stigmergy.sim.simulation import Outcome, run_seed

SIZE = Geometry()


def play(seed: int, faults: str, for_s: float = 40.0) -> Outcome:
    small = scenario.with_agents(4).setup
    setup = structs.replace(small, faults=read_faults(faults), for_s=for_s, nodes=2)
    return run_seed(setup, seed, scenario.test)


@pytest.mark.parametrize(("seed", "faults"), [(1, "all"), pytest.param(2, "network,crash", marks=pytest.mark.prove)])
def test_lamps_are_lawful_and_traffic_flows_again(seed: int, faults: str) -> None:
    outcome = play(seed, faults)
    assert outcome.violations == []
    assert outcome.counts["between nodes"] > 300, "neighbours have spoken"


def test_a_controller_in_a_hurry_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """Yellows that are too short: the monitor turns everything red, so nothing flows; without it the witness sees."""
    monkeypatch.setattr(Geometry, "yellow_s", property(lambda _: 1.0))
    honest = Geometry(speed_m_s=13.9)
    assert honest.yellow_s == 1.0
    monkeypatch.setattr(traffic, "Witness", lambda name, _, now_s: Witness(name, Slow(), now_s))
    monkeypatch.setattr(traffic, "FLOWS_S", 5.0)
    outcome = play(3, "none")
    assert any("lamps_are_lawful" in violation for violation in outcome.violations)


class Slow(Geometry, frozen=True):
    """An intersection as the law sees it."""

    @property
    def yellow_s(self) -> float:
        return 3.4


def test_lamps_that_do_not_turn_red_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    show = Cabinet.show

    def show_greens(self: Cabinet, order: Order[ShowPhase]) -> None:
        if order.effect.phase is not Phase.ALL_RED or self.lamps == Lamps():
            show(self, order)

    monkeypatch.setattr(Cabinet, "make_safe", lambda self, order=None: None)
    monkeypatch.setattr(Cabinet, "show", show_greens)
    monkeypatch.setattr(traffic, "FLOWS_S", 5.0)
    outcome = play(1, "none", for_s=50.0)
    assert any("blind since" in violation or "dark since" in violation for violation in outcome.violations)


def test_a_monitor_that_is_asleep_is_no_excuse() -> None:
    monitor = Monitor(Limits(0.0, 0.0, 0.0, 0.0), 0.0)
    assert monitor.show(LAMPS[Phase.STREET_GREEN], 1.0) == Lamps(street="green")


def see(*shown: tuple[Phase, float]) -> list[str]:
    """What a witness finds when these are shown, each for so long."""
    now_s = 1_000.0
    witness = Witness("r0c0", SIZE, now_s - 60.0)
    for phase, lasts_s in shown:
        witness.see(LAMPS[phase], now_s)
        now_s += lasts_s
    return witness.findings


ROUND = (
    (Phase.STREET_GREEN, 6.0),
    (Phase.STREET_YELLOW, SIZE.yellow_s),
    (Phase.CLEARING, SIZE.clearing_s),
    (Phase.WALK, 6.0),
    (Phase.WALK_ENDING, SIZE.flashing_s),
    (Phase.CLEARING, SIZE.clearing_s),
    (Phase.AVENUE_GREEN, 6.0),
    (Phase.ALL_RED, SIZE.recovery_s),
    (Phase.STREET_GREEN, 6.0),
)


def test_a_witness_finds_nothing_wrong_with_the_law() -> None:
    assert see(*ROUND) == []


@pytest.mark.parametrize("place", [1, 2, 4, 5, 7])
def test_a_witness_sees_what_is_too_short(place: int) -> None:
    shown = list(ROUND)
    shown[place] = (shown[place][0], shown[place][1] * 0.8)
    assert see(*shown) != []


def test_a_witness_sees_two_at_once() -> None:
    witness = Witness("r0c0", SIZE, 0.0)
    witness.see(Lamps(street="green", walk="green"), 100.0)
    assert "street and walk at once" in witness.findings[0]


@pytest.mark.parametrize(("count", "last"), [(1, "r0c0"), (6, "r1c2"), (7, "r0c6"), (16, "r3c3")])
def test_grids_of_any_size(count: int, last: str) -> None:
    names = addresses(count)
    assert len(names) == count
    assert names[-1] == f"Intersection/{last}"
