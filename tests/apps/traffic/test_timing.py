"""When greens end and who is next: rules over what is known, and nobody waits for ever."""

from __future__ import annotations

import random

import pytest

from apps.traffic.grid import Axis
from apps.traffic.intersection import expect
from apps.traffic.messages import Beat
from apps.traffic.phases import FIXED_GREEN_S, GREEN_S_MAX, Geometry, Phase, Stage
from apps.traffic.timing import GAP_S, RECALL_S, Demand, Platoon, Situation, ends_now, merge_platoon, next_stage

NOW_S = 1_000.0
NOBODY = Demand()


def situation(
    stage: Stage = "street",
    *,
    street: Demand = NOBODY,
    avenue: Demand = NOBODY,
    walkers: bool = False,
    green_s: float = 6.0,
    coordinated: bool = True,
    platoons: tuple[Platoon, ...] = (),
    axis: Axis | None = None,
) -> Situation:
    last: Axis = axis or ("street" if stage == "walk" else stage)
    return Situation(
        now_s=NOW_S,
        stage=stage,
        axis=last,
        green_s=green_s,
        coordinated=coordinated,
        walkers=walkers,
        demand={"street": street, "avenue": avenue},
        platoons=platoons,
        geometry=Geometry(),
    )


def platoon(axis: Axis, in_s: float) -> Platoon:
    return Platoon("r0c0", axis, NOW_S + in_s, NOW_S + in_s + 5)


def test_a_green_that_nobody_waits_for_goes_on() -> None:
    assert not ends_now(situation(green_s=RECALL_S - 1))
    assert not ends_now(situation(street=Demand(here=3), green_s=RECALL_S - 1))
    assert ends_now(situation(green_s=RECALL_S)), "a detector may have missed somebody"
    assert next_stage(situation(street=Demand(here=3), green_s=RECALL_S)) == "avenue"


@pytest.mark.parametrize("waiting", [{"avenue": Demand(here=1)}, {"walkers": True}])
def test_a_green_ends_when_its_road_is_empty_and_others_wait(waiting: dict[str, Demand]) -> None:
    assert ends_now(situation(**waiting))  # type: ignore[arg-type]
    assert not ends_now(situation(street=Demand(here=1), **waiting))  # type: ignore[arg-type]
    assert ends_now(situation(street=Demand(here=1), green_s=GREEN_S_MAX, **waiting))  # type: ignore[arg-type]


def test_a_green_waits_for_its_platoon() -> None:
    others = Demand(here=1)
    near = platoon("street", GAP_S - 1)
    coming = Demand(coming=4)
    assert not ends_now(situation(street=coming, avenue=others, platoons=(near,)))
    assert ends_now(situation(street=coming, avenue=others, platoons=(platoon("street", GAP_S + 1),)))
    assert ends_now(situation(avenue=others, platoons=(near,))), "nobody is on the way"
    assert ends_now(situation(street=coming, avenue=others, platoons=(near,), green_s=GREEN_S_MAX))
    assert ends_now(situation(street=coming, avenue=others, platoons=(platoon("street", -6),))), "it has passed"


def test_a_green_ends_in_time_for_the_platoon_of_the_other_road() -> None:
    lead_s = Geometry().intergreen_s(Phase.STREET_GREEN) + 2.0
    coming = Demand(coming=4)
    assert ends_now(situation(avenue=coming, platoons=(platoon("avenue", lead_s - 0.1),)))
    assert not ends_now(situation(avenue=coming, platoons=(platoon("avenue", lead_s + 0.1),)))
    assert not ends_now(situation(platoons=(platoon("avenue", 0),))), "nobody is on the way"


def test_no_green_into_a_full_road() -> None:
    full = Demand(here=9, blocked=True)
    assert ends_now(situation(street=full, avenue=Demand(here=1)))
    assert not ends_now(situation(street=full)), "nobody else wants it"


def test_alone_times_are_fixed() -> None:
    assert not ends_now(situation(coordinated=False, green_s=FIXED_GREEN_S - 1, avenue=Demand(here=9)))
    assert ends_now(situation(coordinated=False, green_s=FIXED_GREEN_S, street=Demand(here=9)))
    assert next_stage(situation("street", coordinated=False)) == "avenue"
    assert next_stage(situation("walk", coordinated=False, axis="avenue")) == "street"


def test_who_is_next() -> None:
    some = Demand(here=1)
    assert next_stage(situation("street", walkers=True, avenue=some)) == "walk"
    assert next_stage(situation("walk", walkers=True, avenue=some, axis="street")) == "avenue"
    assert next_stage(situation("walk", street=some, axis="street")) == "street", "nobody else is there"
    assert next_stage(situation("street", street=some)) == "avenue"
    assert next_stage(situation("street")) == "avenue"
    assert next_stage(situation("walk", street=some, avenue=some, axis="avenue")) == "street"
    due = platoon("avenue", 1)
    assert next_stage(situation("street", street=some, avenue=Demand(coming=2), platoons=(due,))) == "avenue"


@pytest.mark.parametrize("seed", range(30))
def test_nobody_waits_for_more_than_three_others(seed: int) -> None:
    """Whatever comes: a road where somebody stands, or a walker, waits for three others at most."""
    chance = random.Random(seed)
    stage: Stage = "avenue"
    axis: Axis = "avenue"
    waited: dict[str, int] = {"street": 0, "avenue": 0, "walk": 0}
    for _ in range(300):
        wants = {name: chance.random() < 0.7 or waited[name] > 0 for name in waited}
        seen = situation(
            stage,
            axis=axis,
            street=Demand(here=int(wants["street"]) * 3, coming=chance.randrange(3)),
            avenue=Demand(here=int(wants["avenue"]) * 3, coming=chance.randrange(3)),
            walkers=wants["walk"],
            coordinated=chance.random() < 0.8,
            platoons=(platoon(chance.choice(("street", "avenue")), chance.uniform(-3, 20)),),
        )
        stage = next_stage(seen)
        axis = axis if stage == "walk" else stage
        waited = {name: waited[name] + 1 if wants[name] and name != stage else 0 for name in waited}
        assert max(waited.values()) <= 3, waited


def test_what_a_neighbours_green_means() -> None:
    geometry = Geometry()
    green = Beat(phase=Phase.STREET_GREEN, number=7, at_s=NOW_S)
    (one,) = expect((), "street", "r0c1", green, geometry, "r0c3", NOW_S)
    assert one.begins_s == pytest.approx(NOW_S + 2 * 140 / 13.9)
    yellow = Beat(phase=Phase.STREET_YELLOW, number=8, at_s=NOW_S + 9)
    (ended,) = expect((one,), "street", "r0c1", yellow, geometry, "r0c3", NOW_S + 9)
    assert ended.begins_s == one.begins_s
    assert ended.ends_s == pytest.approx(NOW_S + 9 + 2 * 140 / 13.9)
    assert expect((), "street", "r0c1", yellow, geometry, "r0c3", NOW_S) == ()
    other = Beat(phase=Phase.AVENUE_GREEN, number=9, at_s=NOW_S + 9)
    assert expect((one,), "street", "r0c1", other, geometry, "r0c3", NOW_S + 9)[0].ends_s <= one.ends_s
    assert expect((one,), "street", "r0c1", other, geometry, "r0c3", NOW_S + 99) == (one,), "long over"


def test_platoons_that_have_passed_are_forgotten() -> None:
    old, new = platoon("street", -60), Platoon("r0c9", "street", NOW_S, NOW_S + 1)
    assert merge_platoon((old,), new, NOW_S) == (new,)
    assert merge_platoon((new,), platoon("street", 3), NOW_S) == (new, platoon("street", 3))
