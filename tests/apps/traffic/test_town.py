"""Intersections with each other: waves, partitions, vehicles that are handed on, and lamps that are always safe."""

from __future__ import annotations

import pytest

from apps.traffic.intersection import LOST_TICKS, SILENCE_S, TICK_S
from apps.traffic.messages import DetectorsHeard
from apps.traffic.phases import GROUPS, Phase
from apps.traffic.traffic import Rates
from tests.apps.traffic.town import Town

QUIET = Rates(street_per_min=0, avenue_per_min=0, walkers_per_min=0)


def check_places(town: Town) -> None:
    """Every vehicle is where it is, once."""
    assert town.recorded() == {name: [place] for name, place in town.traffic.places().items()}


def mode_of(town: Town, name: str) -> str:
    return town[name].agent.mode


def phase_of(town: Town, name: str) -> Phase:
    return town[name].agent.phase


def check_safe(town: Town) -> None:
    for corner in town.corners.values():
        assert corner.cabinet.monitor.trips == 0, corner.cabinet.monitor.tripped
        lamps = corner.cabinet.lamps
        assert sum(getattr(lamps, group) != "red" for group in GROUPS) <= 1


def test_a_grid_comes_up_finds_its_neighbours_and_lets_traffic_flow() -> None:
    town = Town(2, 3)
    town.run(150)
    check_safe(town)
    assert {corner.agent.mode for corner in town.corners.values()} == {"coordinated"}
    assert town.traffic.figures.trips > 20
    check_places(town)


def test_cut_off_intersections_say_so_and_go_on_alone() -> None:
    town = Town(2, 2)
    town.run(60)
    town.cut("r0c0")
    town.run(LOST_TICKS * TICK_S + 2)
    alone = town["r0c0"]
    assert mode_of(town, "r0c0") == "local"
    served = alone.agent.served
    town.run(60)
    assert alone.agent.served > served
    assert phase_of(town, "r0c0") is not Phase.ALL_RED
    check_safe(town)
    town.heal()
    town.run(5)
    assert mode_of(town, "r0c0") == "coordinated"
    check_places(town)


def test_no_vehicle_is_lost_or_doubled_by_a_partition() -> None:
    """The announcements of a cut-off intersection come minutes late, when the vehicles are long gone."""
    town = Town(2, 3, seed=3)
    town.run(60)
    town.cut("r0c1", "r1c0")
    town.run(90)
    assert any(corner.agent.unheard for corner in town.corners.values()), "otherwise this proves nothing"
    town.heal()
    town.run(1)
    check_places(town)
    assert all(not corner.agent.unheard for corner in town.corners.values())
    check_safe(town)


@pytest.mark.parametrize("fault", ["blind", "dark", "stuck", "broken"])
def test_silence_turns_everything_red_and_nothing_else(fault: str) -> None:
    town = Town(1, 2)
    town.run(40)
    corner = town["r0c0"]
    assert phase_of(town, "r0c0") is not Phase.ALL_RED
    if fault == "blind":
        corner.cabinet.blind = True
    elif fault == "dark":
        corner.cabinet.dark = True
    elif fault == "stuck":
        corner._state.timers._timers.clear()
    else:
        corner.observe(DetectorsHeard(working=False))
        corner.cabinet.blind = True
    town.run(SILENCE_S + TICK_S)
    assert corner.cabinet.phase is Phase.ALL_RED
    if fault == "stuck":
        town.run(60)  # the safe action sets the timers again
        assert phase_of(town, "r0c0") is not Phase.ALL_RED
        return
    town.run(40)
    assert phase_of(town, "r0c0") is corner.cabinet.phase is Phase.ALL_RED
    assert phase_of(town, "r0c1") is not Phase.ALL_RED
    corner.cabinet.blind = corner.cabinet.dark = False
    town.run(40)
    assert phase_of(town, "r0c0") is not Phase.ALL_RED
    check_safe(town)
    check_places(town)


def test_a_green_decided_before_a_safe_action_does_not_come_behind_it() -> None:
    town = Town(1, 1, rates=QUIET)
    corner = town["r0c0"]
    while corner.agent.phase is not Phase.STREET_GREEN:
        town.run(0.1)
    late = corner.orders[-1][1]
    corner.cabinet.make_safe()
    number = corner.cabinet.number
    town.run(0.7)
    assert corner.cabinet.phase is Phase.ALL_RED
    assert corner.cabinet.number > number
    assert late.phase is Phase.STREET_GREEN


@pytest.mark.prove
def test_a_wave_runs_along_the_street() -> None:
    """With neighbours who tell each other, fewer stop, at the same traffic."""
    rates = Rates(street_per_min=14, avenue_per_min=2, walkers_per_min=0, back_share=0.1)
    together, alone = Town(1, 4, seed=7, rates=rates), Town(1, 4, seed=7, rates=rates)
    alone.cut(*alone.corners)
    together.run(300)
    alone.run(300)
    ours, theirs = together.traffic.figures, alone.traffic.figures
    assert ours.stops_per_crossing < 0.8 * theirs.stops_per_crossing
    assert ours.waited_per_crossing_s < 0.6 * theirs.waited_per_crossing_s
    assert abs(ours.crossed - theirs.crossed) < 0.2 * theirs.crossed


def test_the_same_seed_is_the_same_traffic() -> None:
    one, two = Town(2, 2, seed=5), Town(2, 2, seed=5)
    one.run(90)
    two.run(90)
    assert one.traffic.places() == two.traffic.places()
    assert [corner.orders for corner in one.corners.values()] == [corner.orders for corner in two.corners.values()]
    other = Town(2, 2, seed=6)
    other.run(90)
    assert one.traffic.places() != other.traffic.places()
