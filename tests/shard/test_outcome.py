"""What an input causes, on its way into the draft: which `latest` events make room for each other."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec import Struct

from stigmergy.agents.agent import Agent, decide, evolve, react
from stigmergy.agents.effects import Effects, Events, Publish, Tell, WakeMeAt
from stigmergy.agents.messages import SECOND_NS, Action, Event, Work, latest, within
from tests.shard.shards import Probe, events_of, observed


class Began(Event):
    pass


class Placed(Event, keep=latest):
    x: float


class Charged(Event, keep=latest):
    """Kept, but nobody folds it: leaving it out would change no state."""

    percent: int


class Zapped(Event, keep=latest):
    """As well, under a name that comes last."""


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
    def charged(self, event: Charged | Zapped) -> Events:
        yield event


R = "Robot/a"


@pytest.mark.parametrize(
    ("given", "kept"),
    [
        ([Placed(x=1.0), Charged(percent=9)], [Placed(x=1.0), Charged(percent=9)]),
        ([Charged(percent=9), Placed(x=1.0)], [Charged(percent=9), Placed(x=1.0)]),
        ([Zapped(), Placed(x=1.0), Zapped()], [Zapped(), Placed(x=1.0), Zapped()]),
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


class Asked(Event):
    how: str


class Heard(Event):
    reason: str = ""


class Land(Action):
    reason: str
    legs: tuple[int, ...] = ()


class Plan(Work):
    depth: int


def wrong(how: str) -> Any:
    """An effect that no sink could carry out, because it cannot be read back from its bytes."""
    anything: Any = 3
    return {
        "text": Land(reason=anything),
        "inside": Land(reason="wind", legs=("a",)),  # type: ignore[arg-type]
        "work": Plan(depth="deep"),  # type: ignore[arg-type]
        "no bytes": Plan(depth=2**70),
        "told": Tell(to="Asker/b", message=Heard(reason=anything)),
        "told a class": Tell(to="Asker/b", message=Heard),  # type: ignore[arg-type]
        "told an action": Tell(to="Asker/b", message=Land(reason="x")),  # type: ignore[arg-type]
        "told a text": Tell(to="Asker/b", message="x"),  # type: ignore[arg-type]
        "published": Publish(topic="t", event=Heard(reason=anything)),
        "published what is told": Publish(topic="t", event=Land(reason="x")),  # type: ignore[arg-type]
        "no topic": Publish(topic=anything, event=Heard()),
        "no moment": WakeMeAt(name="x", at_s="5"),  # type: ignore[arg-type]
        "no time": WakeMeAt(name="x", at_s=float("nan")),
    }[how]


class Asker(Agent):
    asked: int = 0

    @evolve
    def count(self, event: Asked) -> None:
        self.asked += 1

    @react
    def ask(self, event: Asked) -> Effects:
        yield wrong(event.how)

    @react
    def heard(self, event: Heard) -> Effects:
        yield Land(reason=event.reason, legs=(1, 2))
        yield Tell(to="Asker/b", message=Heard(reason="new"))
        yield Tell(to="Asker/b", message=event)


@pytest.mark.parametrize(
    ("how", "said"),
    [
        ("text", "TypeError: Land cannot be read back from its own bytes: Expected `str`, got `int` - at `$.reason`"),
        ("inside", "Land cannot be read back"),
        ("work", "Plan cannot be read back"),
        ("no bytes", "OverflowError"),
        ("told", "Heard cannot be read back"),
        ("told a class", "Tell sends messages, made from their classes; Heard is none"),
        ("told an action", "Tell sends messages, made from their classes; Land is none"),
        ("told a text", "Tell sends messages, made from their classes; str is none"),
        ("published", "Heard cannot be read back"),
        ("published what is told", "Publish sends messages, made from their classes; Land is none"),
        ("no topic", "Publish(topic=3): a topic is a text"),
        ("no moment", "WakeMeAt(at_s='5'): give seconds since 1970"),
        ("no time", "WakeMeAt(at_s=nan): give seconds since 1970"),
    ],
)
def test_an_effect_that_nobody_could_carry_out_fails_its_input(how: str, said: str) -> None:
    probe = Probe(Asker)
    probe.observe("Asker/a", Heard(reason="fine"))
    commit = probe.observe("Asker/a", Asked(how=how))
    assert not commit.owed
    assert said in probe.letters()[0]
    assert probe.agent("Asker/a").asked == 0


class Heeded(Event, keep=within(seconds=5)):
    pass


class Asks(Agent):
    @react
    def heed(self, event: Heeded) -> Effects:
        yield Land(reason="wind")
        yield Plan(depth=2)
        yield Publish(topic="t", event=Heard())
        yield Tell(to="Asks/b", message=Heard())
        yield WakeMeAt(name="nap", at_s=500)
        yield Land(reason="rain")


@pytest.mark.parametrize("first", [[], [Heeded()]])
def test_each_effect_is_owed_to_its_sink_and_waits_for_nothing(first: list[Any]) -> None:
    probe = Probe(Asks)
    for event in first:
        probe.observe("Asks/a", event)
    assert probe.step(observed("Asks/a", Heeded())).wait_ns == 0
    ready = probe.seal()
    before = 2 * len(first)
    assert [(owed.sink, owed.sequence, owed.cause) for owed in ready.commit.owed] == [
        ("actuators", before + 1, 0),
        ("work", len(first) + 1, 0),
        ("publish", len(first) + 1, 0),
        ("shard/0", len(first) + 1, 0),
        ("timers", 0, 0),
        ("actuators", before + 2, 0),
    ]
    assert [(pending.sink, pending.index) for pending in ready.owed] == [
        ("actuators", 0),
        ("work", 1),
        ("publish", 2),
        ("shard/0", 3),
        ("actuators", 5),
    ]
    assert [(timer.name, set_ns) for timer, set_ns in ready.timers] == [("nap", 100 * SECOND_NS)]


def test_an_effect_whose_class_cannot_be_decoded_anywhere_is_left_to_its_hand() -> None:
    class Here(Struct, frozen=True):
        x: int = 0

    class Local(Action):
        here: Here = Here()

    class Doer(Agent):
        @react
        def ask(self, event: Asked) -> Effects:
            yield Local()

    probe = Probe(Doer)
    assert len(probe.observe("Doer/a", Asked(how="")).owed) == 1
