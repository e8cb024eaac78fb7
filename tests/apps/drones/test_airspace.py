"""What may be closed, and who hears of it."""

from __future__ import annotations

import math
from typing import Any

import pytest
from hypothesis import given as when_all
from hypothesis import strategies as some
from msgspec.structs import replace

from apps.drones.airspace import (
    AREA_M2_MAX,
    CORNERS_MAX,
    TIDY_S,
    ZONES_MAX,
    Airspace,
    Tidy,
    TidyDue,
    ZoneDropped,
    sectors_of,
)
from apps.drones.area import BORDER_M, Area, region_of, zone_of
from apps.drones.messages import ClosedZone, CloseZone, OpenZone, ZoneClosed, ZoneOpened
from stigmergy import Tell
from stigmergy.testing import given

AREA = Area(8, 4, 2400.0, 2)
SQUARE = ((1000.0, 1000.0), (1400.0, 1000.0), (1400.0, 1400.0), (1000.0, 1400.0))
ZONE = ClosedZone("Z1", SQUARE, 0.0, 200.0, 1000.0, 1600.0)


def close(**changes: Any) -> CloseZone:
    return CloseZone(AREA, replace(ZONE, **changes))


def test_a_zone_is_closed_told_and_over() -> None:
    one = given(Airspace, id="main", at=1000.0).when(close())
    closed = ZoneClosed(AREA, ZONE)
    one.then(closed, Tell("Sector/r1-0000@r1", closed), Tidy.wake(after_s=600 + TIDY_S)).state(zones=(ZONE,))
    one.later(seconds=600).then_nothing()
    one.later(seconds=1).then(ZoneDropped(ZONE, "over")).state(zones=())


def test_it_wakes_for_the_next_one() -> None:
    longer = replace(ZONE, name="Z2", until_t=2000.0)
    one = given(Airspace, id="main", at=1000.0).when(close(), CloseZone(AREA, longer))
    one.later(seconds=601).then(ZoneDropped(ZONE, "over"), TidyDue(), Tidy.wake(after_s=399 + TIDY_S))
    one.later(seconds=400).then(ZoneDropped(longer, "over")).state(zones=())


def test_a_zone_is_opened_before_its_time() -> None:
    one = given(Airspace, id="main", at=1000.0).when(close()).when(OpenZone("Z1"))
    one.then(ZoneDropped(ZONE, "opened"), Tell("Sector/r1-0000@r1", ZoneOpened("Z1"))).state(zones=())
    one.when(OpenZone("Z1")).refused("Z1 is not closed")


def test_a_zone_that_is_closed_anew_is_taken_back_where_it_was() -> None:
    moved = tuple((x + 2400.0, y) for x, y in SQUARE)
    one = given(Airspace, id="main", at=1000.0).when(close()).when(close(corners=moved))
    after = ZoneClosed(AREA, replace(ZONE, corners=moved))
    one.then(
        ZoneDropped(ZONE, "closed anew"),
        Tell("Sector/r1-0000@r1", ZoneOpened("Z1")),
        after,
        Tell("Sector/r1-0100@r1", after),
        Tidy.wake(after_s=600 + TIDY_S),
    )


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"name": ""}, "needs a name"),
        ({"corners": SQUARE[:2]}, "2 corners"),
        ({"corners": tuple((math.cos(i / 11), math.sin(i / 11)) for i in range(CORNERS_MAX + 1))}, "65 corners"),
        ({"corners": (SQUARE[0], SQUARE[2], SQUARE[1], SQUARE[3])}, "touches itself"),
        ({"corners": ((0.0, 0.0), (5001.0, 0.0), (5001.0, 5000.0), (0.0, 5000.0))}, "km²"),
        ({"floor_m": 80.0, "ceiling_m": 80.0}, "not below"),
        ({"until_t": 1000.0}, "ends before"),
        ({"from_t": 100.0, "until_t": 900.0}, "over already"),
    ],
)
def test_what_cannot_be_closed_is_refused(changes: dict[str, Any], why: str) -> None:
    given(Airspace, id="main", at=1000.0).when(close(**changes)).refused(why)


def test_not_too_many_are_closed_at_a_time() -> None:
    one = given(Airspace, id="main", at=1000.0).when(*(close(name=f"Z{i}") for i in range(ZONES_MAX)))
    one.when(close(name="more")).refused("open one first")
    one.when(close(name="Z3", ceiling_m=150.0))
    assert len(one.agent.zones) == ZONES_MAX
    assert AREA_M2_MAX == 25e6


def test_at_a_border_of_regions_all_are_told() -> None:
    near = replace(ZONE, corners=tuple((x + 3 * 2400.0, y + 2400.0) for x, y in SQUARE))
    assert sectors_of(AREA, near) == ["r1-0301@r1", "r1-0301@r2"]
    wide = replace(ZONE, corners=tuple((x + 2400.0 - 1100.0, y) for x, y in SQUARE))
    assert sectors_of(AREA, wide) == ["r1-0000@r1", "r1-0100@r1"]


@when_all(some.floats(0, 19000), some.floats(0, 9500), some.floats(50, 3000))
def test_every_drone_near_a_closed_zone_has_a_sector_that_knows(x: float, y: float, size: float) -> None:
    corners = ((x, y), (x + size, y), (x, y + size))
    told = sectors_of(AREA, replace(ZONE, corners=corners))
    assert len(told) == len(set(told))
    for corner_x, corner_y in corners:
        for near in AREA.zones_near(corner_x, corner_y, BORDER_M):
            assert f"{near}@{region_of(near)}" in told
            # A drone of the other region is in a zone only if that is next to its own region.
            if any(region_of(next_to) != region_of(near) for next_to in AREA.neighbours(near)):
                assert {region_of(one) for one in told if zone_of(one) == near} == {"r1", "r2"}
