"""What a class statement declares wrongly is found there, with a remedy: not when it is to make an agent safe."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from stigmergy.agents.agent import Agent
from stigmergy.agents.messages import Action, Event, within
from stigmergy.agents.supervision import SafeAction, Supervise, WhenStale
from stigmergy.agents.windows import Window
from stigmergy.base.errors import DefinitionError


class Went(Event):
    pass


class Land(Action):
    pass


def agent(**options: Any) -> None:
    class Rover(Agent, **options):
        pass


def foreign() -> None:
    class Fähre(Agent):  # noqa: PLC2401 - that is what is tested
        pass


def message(**options: Any) -> None:
    class Told(Event, **options):
        pass


LATE: Any = "late"
WRONG: dict[str, tuple[Callable[[], Any], str]] = {
    "kind of a number": (lambda: agent(kind=5), "Rover: 5 is no kind of agent; give kind="),
    "kind with a slash": (lambda: agent(kind="a/b"), "Rover: 'a/b' is no kind of agent"),
    "class with an umlaut": (foreign, "'Fähre' is no kind of agent"),
    "version of an agent": (lambda: agent(version="1"), "Rover: version='1'; versions count from 1"),
    "version zero": (lambda: agent(version=0), "Rover: version=0; versions count from 1"),
    "version of a message": (lambda: message(version="1"), "Told: version='1'; versions count from 1"),
    "name of a message": (lambda: message(name=5), "Told: name=5; a name has no '@'"),
    "keep": (lambda: message(keep=5), "Told: keep=5; give durable, within"),
    "within": (lambda: within(seconds=LATE), "seconds=late.: give more than 0"),
    "stale event": (lambda: WhenStale(LATE, after_s=1, then=Land()), "WhenStale.'late'.: name the class of the event"),
    "stale action": (lambda: WhenStale(Land, after_s=1, then=Land()), "name the class of the event"),  # type: ignore[arg-type]
    "stale time": (lambda: WhenStale(Went, after_s=LATE, then=Land()), "after_s=late.: give more than 0"),
    "stale class": (lambda: WhenStale(Went, after_s=1, then=Land), r"give an action, .*then=Land\("),  # type: ignore[arg-type]
    "safe class": (lambda: SafeAction(then=Land), r"SafeAction.*give an action, .*then=Land\("),  # type: ignore[arg-type]
    "supervision": (lambda: Supervise(stop_after=LATE), "stop_after=late.: give 1 to"),
    "supervised time": (lambda: Supervise(stop_after=1, within_s=LATE), "within_s=late.: give more than 0"),
    "window": (lambda: Window.last(LATE), "a window of late entries: give 1 to 4096"),
    "half an entry": (lambda: Window.last(2.5), "a window of 2.5 entries"),  # type: ignore[arg-type]
    "window span": (lambda: Window.sliding(seconds=LATE), "a window of late seconds"),
    "window lateness": (lambda: Window.tumbling(seconds=1, late_s=LATE), "late_s=late.: give 0 to a year"),
}


@pytest.mark.parametrize("name", WRONG)
def test_a_wrong_declaration_is_refused_where_it_is_made(name: str) -> None:
    declare, said = WRONG[name]
    with pytest.raises(DefinitionError, match=said):
        declare()
