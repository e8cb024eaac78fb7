"""The watch over silences, by itself."""

from stigmergy.agents.agent import Agent
from stigmergy.agents.messages import Action, Event
from stigmergy.agents.supervision import SafeAction, WhenStale
from stigmergy.devices.staleness import Staleness, safe_actions_of
from stigmergy.shard.state import plan_agents

SECOND_NS = 1_000_000_000


class Beat(Event):
    number: int = 0


class Phase(Event):
    number: int = 0


class Land(Action):
    reason: str = "silence"


class Dim(Action):
    pass


class Drone(Agent):
    beats = WhenStale(Beat, after_s=2, then=Land())
    phases = WhenStale(Phase, after_s=1, then=Dim())
    stop = SafeAction(then=Land())


class Lamp(Agent):
    off = SafeAction(then=Dim())


PLANS = plan_agents([Drone, Lamp])


def due(staleness: Staleness, seconds: float) -> list[tuple[str, str]]:
    return [(stale.agent, type(stale.rule.then).__name__) for stale in staleness.due(int(seconds * SECOND_NS))]


def test_each_rule_has_its_own_clock_from_the_first_input_on() -> None:
    staleness = Staleness(PLANS)
    staleness.refresh("Drone/a", None, 0)
    assert staleness.next_ns == SECOND_NS
    assert not due(staleness, 0.999)
    assert due(staleness, 1) == [("Drone/a", "Dim")]
    assert staleness.next_ns == 2 * SECOND_NS
    assert due(staleness, 2) == [("Drone/a", "Land")]
    assert staleness.next_ns is None


def test_only_the_event_of_the_rule_makes_fresh() -> None:
    staleness = Staleness(PLANS)
    staleness.refresh("Drone/a", None, 0)
    staleness.refresh("Drone/a", Beat, SECOND_NS)
    assert due(staleness, 1) == [("Drone/a", "Dim")]
    assert due(staleness, 2.9) == []
    assert due(staleness, 3) == [("Drone/a", "Land")]


def test_once_per_silence() -> None:
    staleness = Staleness(PLANS)
    staleness.refresh("Drone/a", Beat, 0)
    assert due(staleness, 10) == [("Drone/a", "Land")]
    assert due(staleness, 100) == []
    staleness.refresh("Drone/a", None, 101 * SECOND_NS)
    staleness.refresh("Drone/a", Beat, 102 * SECOND_NS)
    assert ("Drone/a", "Land") not in due(staleness, 103.9)
    assert due(staleness, 104) == [("Drone/a", "Land")]


def test_a_late_look_finds_all_that_are_due_and_none_that_is_not() -> None:
    staleness = Staleness(PLANS)
    for number in range(10):
        staleness.refresh(f"Drone/{number}", Beat, number * SECOND_NS)
    staleness.refresh("Drone/0", Beat, 20 * SECOND_NS)
    assert [agent for agent, _ in due(staleness, 8)] == [f"Drone/{number}" for number in range(1, 7)]
    assert [agent for agent, _ in due(staleness, 21.9)] == ["Drone/7", "Drone/8", "Drone/9"]
    assert [agent for agent, _ in due(staleness, 22)] == ["Drone/0"]


def test_kinds_without_rules_are_not_watched() -> None:
    staleness = Staleness(PLANS)
    staleness.refresh("Lamp/a", None, 0)
    assert staleness.next_ns is None


def test_the_reason_says_what_was_not_heard_for_how_long() -> None:
    staleness = Staleness(PLANS)
    staleness.refresh("Drone/a", Beat, 0)
    (stale,) = staleness.due(2 * SECOND_NS)
    assert stale.because == "no Beat for 2 s"


def test_the_safe_actions_of_a_kind_are_each_named_once() -> None:
    assert safe_actions_of(PLANS["Drone"]) == [Land(), Dim()]
    assert safe_actions_of(PLANS["Lamp"]) == [Dim()]
