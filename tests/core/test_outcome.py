"""What an input causes, on its way into the draft: which `latest` events make room for each other."""

from __future__ import annotations

from typing import Any

import pytest

from stigmergy.core.agent import Agent, decide, evolve
from stigmergy.core.effects import Events
from stigmergy.core.messages import Event, latest
from tests.core.shards import Probe, events_of, observed


class Began(Event):
    pass


class Placed(Event, keep=latest):
    x: float


class Charged(Event, keep=latest):
    """Kept, but nobody folds it: leaving it out would change no state."""

    percent: int


class Robot(Agent):
    x: float = 0.0
    begun: bool = False

    @evolve
    def began(self, event: Began) -> None:
        self.begun = True

    @evolve
    def placed(self, event: Placed) -> None:
        self.x = event.x

    @decide
    def charged(self, event: Charged) -> Events:
        yield event


R = "Robot/a"


@pytest.mark.parametrize(
    ("given", "kept"),
    [
        ([Placed(x=1.0), Charged(percent=9)], [Placed(x=1.0), Charged(percent=9)]),
        ([Charged(percent=9), Placed(x=1.0)], [Charged(percent=9), Placed(x=1.0)]),
        ([Placed(x=1.0), Placed(x=2.0), Charged(percent=9)], [Placed(x=2.0), Charged(percent=9)]),
        ([Charged(percent=9), Charged(percent=8), Placed(x=1.0)], [Charged(percent=8), Placed(x=1.0)]),
        (
            [Charged(percent=9), Placed(x=1.0), Charged(percent=8), Charged(percent=7)],
            [Charged(percent=9), Placed(x=1.0), Charged(percent=7)],
        ),
    ],
)
def test_latest_events_replace_their_own_type_and_no_other(given: list[Any], kept: list[Any]) -> None:
    probe = Probe(Robot)
    probe.observe(R, Began())
    probe.step(*(observed(R, event) for event in given))
    assert events_of(probe, probe.seal().commit) == kept
