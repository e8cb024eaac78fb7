"""The source of traffic: the same for the same seed, and every vehicle is somewhere."""

from __future__ import annotations

import pytest

from apps.traffic.grid import AXES
from apps.traffic.messages import CrossingRequested, VehicleArrived, VehicleLeft
from apps.traffic.phases import Lamps
from apps.traffic.traffic import AXIS_OF, Rates, Traffic
from stigmergy import Event


class Street:
    """A grid whose lamps change every twenty seconds, and all that detectors say."""

    def __init__(self, seed: int, rows: int = 2, columns: int = 3, rates: Rates | None = None) -> None:
        self.now_s = 0.0
        self.said: list[tuple[str, Event]] = []
        self.traffic = Traffic(
            rows, columns, seed, self.lamps, lambda name, event: self.said.append((name, event)), rates
        )

    def lamps(self, name: str) -> Lamps:
        return Lamps(street="green") if int(self.now_s / 20) % 2 == 0 else Lamps(avenue="green")

    def run(self, seconds: float) -> None:
        for _ in range(round(seconds / 0.1)):
            self.now_s += 0.1
            self.traffic.step(self.now_s)


def test_one_seed_is_one_traffic() -> None:
    one, two, other = Street(1), Street(1), Street(2)
    for street in (one, two, other):
        street.run(200)
    assert one.said == two.said
    assert one.said != other.said


@pytest.mark.parametrize("seed", range(5))
def test_what_detectors_say_adds_up_to_where_vehicles_are(seed: int) -> None:
    street = Street(seed)
    street.run(300)
    here: dict[str, str] = {}
    legs: dict[str, int] = {}
    for name, event in street.said:
        if isinstance(event, VehicleArrived):
            assert event.leg == legs.get(event.vehicle, 0) + 1
            assert event.entering is (event.leg == 1)
            legs[event.vehicle] = event.leg
            here[event.vehicle] = name
        elif isinstance(event, VehicleLeft):
            assert here.pop(event.vehicle) == name
            if event.to:
                here[event.vehicle] = event.to
    assert here == {name.partition(".")[0]: place for name, place in street.traffic.places().items()}
    figures = street.traffic.figures
    assert figures.entered == figures.trips + len(here)
    assert figures.trips > 50


def test_nobody_goes_at_red() -> None:
    street = Street(3)
    for _ in range(3_000):
        before = len(street.said)
        street.run(0.1)
        for name, event in street.said[before:]:
            if isinstance(event, VehicleLeft):
                assert getattr(street.lamps(name), event.axis) == "green"


def test_people_press_and_the_grid_empties() -> None:
    street = Street(4, rates=Rates(walkers_per_min=6))
    street.run(120)
    assert any(isinstance(event, CrossingRequested) for _, event in street.said)
    assert any(street.traffic.standing_at(name, axis) for name in ("r0c0", "r1c2") for axis in AXES)
    street.traffic.open = False
    street.run(300)
    assert street.traffic.places() == {}
    assert not street.traffic.standing_at("r0c0", "street")
    assert street.traffic.figures.waited_per_crossing_s > 0


def test_routes_lead_from_one_intersection_to_the_next() -> None:
    street = Street(5)
    street.run(200)
    for name, event in street.said:
        if isinstance(event, VehicleLeft) and event.to:
            row, column = (int(part) for part in name[1:].split("c"))
            there, beside = (int(part) for part in event.to[1:].split("c"))
            assert (abs(row - there), abs(column - beside)) == ((0, 1) if event.onto == "street" else (1, 0))
    assert set(AXIS_OF.values()) == {"street", "avenue"}
