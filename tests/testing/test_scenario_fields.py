"""Scenarios of agents with shared and ordered fields: what peers and the ledger say, and how fields are compared."""

from __future__ import annotations

from typing import Any

import pytest

from stigmergy import (
    Agent,
    Claim,
    Denied,
    DisableWinsFlag,
    Effects,
    EnableWinsFlag,
    Event,
    Events,
    GCounter,
    Granted,
    Lost,
    LWWRegister,
    Merged,
    MVRegister,
    Ordered,
    ORMap,
    ORSet,
    PNCounter,
    Shared,
    decide,
    ordered,
    react,
)
from stigmergy.agents.ordered import ClaimAsked
from stigmergy.testing import given


class Arrived(Event):
    vehicle: str


class Crossed(Event):
    token: int


class Seen(Event):
    vehicles: int


class Corner(Agent):
    vehicles: Shared[ORSet[str]]
    passed: Shared[GCounter]
    balance: Shared[PNCounter]
    phase: Shared[LWWRegister[str]]
    names: Shared[MVRegister[str]]
    on: Shared[EnableWinsFlag]
    off: Shared[DisableWinsFlag]
    lanes: Shared[ORMap[str, GCounter]]
    crossing: Ordered[Claim] = ordered(of="crossing")
    count: int = 0

    @decide
    def arrived(self, event: Arrived) -> Events:
        yield event
        yield self.vehicles.add(event.vehicle)
        yield self.passed.add(2)
        yield self.balance.subtract(3)
        yield self.phase.set("green")
        yield self.names.set("north")
        yield self.on.enable()
        yield self.lanes["left"].add(1)

    @react
    def ask(self, event: Arrived) -> Effects:
        yield self.crossing.claim(for_s=5)

    @decide
    def granted(self, verdict: Granted) -> Events:
        if self.crossing.held:
            yield Crossed(token=verdict.token)

    @decide
    def merged(self, event: Merged) -> Events:
        yield Seen(vehicles=len(self.vehicles))


GRANTED = Granted(claim="crossing", resource="crossing", token=7, for_s=5)


def failure(check: Any) -> str:
    with pytest.raises(AssertionError) as raised:
        check()
    return str(raised.value)


def corner() -> Any:
    return given(Corner).when(Arrived(vehicle="V-1"))


def test_a_field_is_compared_with_what_it_means() -> None:
    there = corner().then(Arrived(vehicle="V-1"), ClaimAsked(claim="crossing", resource="crossing", for_s=5))
    there.state(vehicles={"V-1"}, passed=2, balance=-3, phase="green", names=["north"], on=True, off=False, count=0)
    there.state(lanes={"left": 1}, crossing=False)
    there.state(vehicles=there.agent.vehicles, crossing=there.agent.crossing)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("vehicles", {"V-2"}),
        ("vehicles", {"V-1", "V-2"}),
        ("vehicles", "V-1"),
        ("vehicles", 1),
        ("passed", 3),
        ("phase", None),
        ("names", ["north", "south"]),
        ("on", False),
        ("on", 1),
        ("lanes", {"left": 2}),
        ("lanes", {"right": 1}),
        ("lanes", {}),
        ("lanes", ["left"]),
        ("crossing", True),
        ("crossing", None),
        ("count", 1),
    ],
)
def test_a_field_that_differs_is_named(field: str, value: object) -> None:
    assert f"{field}: expected {value!r}, is " in failure(lambda: corner().state(**{field: value}))


def test_the_ledger_speaks_and_time_ends_a_lease() -> None:
    there = corner().when(GRANTED).then(Crossed(token=7)).state(crossing=True)
    there.later(seconds=5).then_nothing().state(crossing=False)
    there.when(GRANTED).when(Lost(claim="crossing", resource="crossing", token=7, reason="over")).state(crossing=False)
    there.when(Denied(claim="crossing", resource="crossing", reason="taken")).then_nothing()


def test_peers_write() -> None:
    there = corner().when_peers_write(
        lambda agent: agent.vehicles.add("V-2"), lambda agent: agent.vehicles.remove("V-1")
    )
    there.then(Seen(vehicles=2), Seen(vehicles=1)).state(vehicles=["V-2"])


def test_facts_come_to_agents_that_are_there() -> None:
    for scenario in (
        lambda: given(Corner).when(GRANTED),
        lambda: given(Corner).when_peers_write(lambda agent: agent.vehicles.add("V-2")),
    ):
        assert "Corner/one is not there yet; give it an event or a command first" in failure(scenario)


class Counting(Agent):
    passed: Shared[GCounter]

    @decide
    def arrived(self, event: Arrived) -> Events:
        yield self.passed.add(2)


def test_a_write_to_a_shared_field_is_not_nothing_and_is_said_in_words() -> None:
    said = failure(lambda: given(Counting).when(Arrived(vehicle="V-1")).then().then_nothing())
    assert "SharedChanged({'field': 'passed'" in said
    assert "'total': 2" in said
