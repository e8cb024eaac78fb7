"""`given(events).project(View)`: the rows, and what else must be right about a view."""

from __future__ import annotations

import pytest

from stigmergy import Event, Key, View, project
from stigmergy.testing import given
from tests.views.zones import Battery, Measured, ZoneEntered, ZoneLeft, ZoneLoad

_seen: list[str] = []


class Forgetful(View):
    zone: Key[str]
    count: int = 0

    @project
    def entered(self, event: ZoneEntered) -> None:
        _seen.append(event.zone)
        self.count = len(_seen)


class Listed(View):
    zone: Key[str]
    levels: tuple[float, ...] = ()

    @project
    def entered(self, event: ZoneEntered) -> None:
        self.levels = (*self.levels, 1)


def test_events_become_rows_in_the_order_of_their_keys() -> None:
    log: list[Event] = [ZoneEntered(zone="B"), ZoneEntered(zone="A"), ZoneEntered(zone="B"), ZoneLeft(left="A")]
    assert given(*log).project(ZoneLoad) == [ZoneLoad(zone="B", active=2)]
    assert given().project(ZoneLoad) == []


def test_events_have_an_agent_and_a_time() -> None:
    rows = given(("Drone/2", Measured(percent=5)), ("Drone/1", Measured(percent=7)), at=50).project(Battery)
    assert rows == [
        Battery(agent="Drone/1", percent=7, measured=1, at=51.0),
        Battery(agent="Drone/2", percent=5, measured=1, at=50.0),
    ]


def test_a_view_that_keeps_something_beside_its_rows_is_found() -> None:
    with pytest.raises(AssertionError, match="A handler keeps something beside its row"):
        given(ZoneEntered(zone="B"), ZoneEntered(zone="B")).project(Forgetful)


def test_a_value_that_is_read_back_as_another_is_found() -> None:
    with pytest.raises(AssertionError, match="a field does not have the type it declares"):
        given(ZoneEntered(zone="B"), ZoneEntered(zone="B")).project(Listed)
