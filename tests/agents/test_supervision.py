"""Declarations about going wrong are checked where they are written."""

import pytest

from stigmergy.agents.agent import FACTS
from stigmergy.agents.messages import Action, Event
from stigmergy.agents.supervision import FRAMEWORK_EVENTS, GO_ON, Supervise, WhenStale
from stigmergy.base.errors import DefinitionError


class Beat(Event):
    pass


class Land(Action):
    pass


@pytest.mark.parametrize("after_s", [0, -1, 86_401, float("nan")])
def test_a_staleness_rule_is_bounded(after_s: float) -> None:
    with pytest.raises(DefinitionError, match=r"WhenStale\(after_s=.*give more than 0 and at most a day of seconds"):
        WhenStale(Beat, after_s=after_s, then=Land())


def test_a_supervision_is_bounded() -> None:
    assert Supervise(stop_after=1).within_s == 60.0
    with pytest.raises(DefinitionError, match=r"Supervise\(stop_after=0\): give 1 to 1000"):
        Supervise(stop_after=0)
    for within_s in (0, -1, float("nan"), 1e9):
        with pytest.raises(DefinitionError, match=r"Supervise\(within_s=.*give more than 0 and at most a year"):
            Supervise(stop_after=1, within_s=within_s)


def test_declarations_at_their_limits_are_taken() -> None:
    assert WhenStale(Beat, after_s=86_400, then=Land()).after_s == 86_400
    assert WhenStale(Beat, after_s=0.001, then=Land()).after_s == 0.001
    assert Supervise(stop_after=1_000).stop_after == 1_000
    assert Supervise(stop_after=1, within_s=86_400 * 366).within_s == 86_400 * 366
    assert Supervise(stop_after=1, within_s=0.001).within_s == 0.001
    assert GO_ON.stop_after == 2**31
    for stop_after in (1_001, 2**31 + 1, 2**31 - 1, -1):
        with pytest.raises(DefinitionError, match=f"stop_after={stop_after}"):
            Supervise(stop_after=stop_after)
    with pytest.raises(DefinitionError, match="within_s"):
        Supervise(stop_after=1, within_s=86_400 * 366 + 1)


def test_a_staleness_rule_of_an_hour() -> None:
    assert WhenStale(Beat, after_s=3600, then=Land()).then == Land()


def test_every_framework_event_is_a_fact() -> None:
    assert set(FRAMEWORK_EVENTS) < set(FACTS)
