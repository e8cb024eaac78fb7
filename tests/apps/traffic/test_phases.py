"""What lamps can show: all of it, looked at one by one."""

from __future__ import annotations

import itertools

import pytest

from apps.traffic.grid import adjacent, avenue_of, blocks_between, crossing_of, grid, is_on, place_of, street_of
from apps.traffic.phases import (
    FOLLOWING,
    GREEN_OF,
    GROUPS,
    LAMPS,
    STAGE_OF,
    Geometry,
    Phase,
    green_axis,
    may_follow,
)

GREENS = tuple(GREEN_OF.values())
RED = (Phase.ALL_RED, Phase.CLEARING)


@pytest.mark.parametrize("phase", Phase)
def test_in_no_phase_two_groups_have_the_way(phase: Phase) -> None:
    going = [group for group in GROUPS if getattr(LAMPS[phase], group) != "red"]
    assert len(going) <= 1
    assert bool(going) is (phase not in RED)


def test_every_phase_is_lit_and_has_followers_and_times() -> None:
    assert list(LAMPS) == list(Phase) == list(FOLLOWING)
    for phase in Phase:
        assert Geometry().least_s(phase) > 0
        assert may_follow(phase, Phase.ALL_RED)


def paths(start: Phase, steps: int) -> list[tuple[Phase, ...]]:
    found: list[tuple[Phase, ...]] = [(start,)]
    for _ in range(steps):
        found = [(*path, then) for path in found for then in Phase if may_follow(path[-1], then)]
    return found


@pytest.mark.parametrize("green", GREENS)
def test_from_one_green_to_the_next_only_through_its_end_and_a_clearance(green: Phase) -> None:
    """Every way of six steps: no green follows a green without CLEARING right before it."""
    for path in paths(green, 6):
        for place, phase in enumerate(path[1:], start=1):
            if phase in GREENS:
                assert path[place - 1] is Phase.CLEARING
                before = [one for one in path[:place] if one not in RED]
                ended = before[-1] not in GREENS
                assert ended or Phase.ALL_RED in path[path.index(before[-1]) : place]


def test_all_red_leads_to_a_clearance_and_nowhere_else() -> None:
    assert [then for then in Phase if may_follow(Phase.ALL_RED, then)] == [Phase.ALL_RED, Phase.CLEARING]


@pytest.mark.parametrize("width_m", [5.0, 14.0, 20.1, 60.0])
@pytest.mark.parametrize("speed_m_s", [5.0, 13.9, 25.0])
def test_times_follow_from_the_size(width_m: float, speed_m_s: float) -> None:
    one = Geometry(width_m=width_m, speed_m_s=speed_m_s)
    assert one.flashing_s * 1.0 >= width_m, "the slowest reach the other side"
    assert one.clearing_s * speed_m_s >= width_m + 6 or one.clearing_s == 1.5
    assert one.clearing_s >= 1.5
    assert one.yellow_s >= max(3.0, 1 + speed_m_s / 6)
    assert one.recovery_s >= one.flashing_s
    assert one.recovery_s >= one.yellow_s + one.clearing_s
    assert one.intergreen_s(Phase.WALK) == pytest.approx(one.flashing_s + one.clearing_s)
    assert one.intergreen_s(Phase.STREET_GREEN) == pytest.approx(one.yellow_s + one.clearing_s)


def test_greens_and_stages() -> None:
    assert {STAGE_OF[phase] for phase in GREENS} == {"street", "avenue", "walk"}
    assert [green_axis(phase) for phase in (Phase.STREET_GREEN, Phase.AVENUE_GREEN, Phase.WALK)] == [
        "street",
        "avenue",
        None,
    ]


def test_names() -> None:
    assert place_of("r2c15") == (2, 15)
    assert (street_of("r2c15"), avenue_of("r2c15")) == ("r2", "c15")
    assert crossing_of("street") == "avenue"
    assert crossing_of("avenue") == "street"
    for wrong in ("", "r2", "R2c5", "r2c5 ", "r-1c5", "r2c99999"):
        with pytest.raises(ValueError, match="no intersection"):
            place_of(wrong)


def test_neighbours() -> None:
    row = [f"r1c{column}" for column in (0, 2, 3, 10)]
    assert adjacent("street", "r1c2", row) == ("r1c0", "r1c3")
    assert adjacent("street", "r1c0", row) == ("r1c2",)
    assert adjacent("street", "r1c5", row) == ("r1c3", "r1c10"), "by number, not by letter"
    assert adjacent("avenue", "r1c2", ["r0c2", "r5c2"]) == ("r0c2", "r5c2")
    assert adjacent("street", "r1c2", ["r1c2"]) == ()
    assert blocks_between("street", "r1c0", "r1c10") == 10
    assert is_on("street", "r1c0", "r1c7")
    assert not is_on("avenue", "r1c0", "r1c7")
    assert len(grid(3, 4)) == 12
    assert all(a != b for a, b in itertools.combinations(grid(3, 4), 2))
