"""The rules of claims, one by one: who gets it, who waits, who is offered it, and what is void."""

from __future__ import annotations

import pytest
from msgspec import structs

from stigmergy.claims import rules, state
from stigmergy.claims.entries import Ask, Checkpointed, Expire, Release, Renew, Take, Withdraw, WriterList
from stigmergy.claims.rules import Fate
from stigmergy.claims.state import FREE, Grant, Offer, Waiter, WriterMark
from tests.claims.moves import CELL, Log, Node


@pytest.fixture
def log() -> Log:
    return Log()


@pytest.fixture
def north() -> Node:
    return Node("north")


@pytest.fixture
def south() -> Node:
    return Node("south")


@pytest.fixture
def east() -> Node:
    return Node("east")


def test_the_first_who_asks_gets_it_and_its_position_is_the_token(log: Log, north: Node, south: Node) -> None:
    assert log.add(north, Ask(CELL, 1_000)).fate is Fate.GRANTED
    assert log.claims.holds(CELL, north.claimant()) == Grant(north.claimant(), 1, 1, 1_000, 1, 1)
    step = log.add(south, Ask(CELL, 1_000))
    assert (step.fate, step.resource) == (Fate.REFUSED, CELL)
    assert log.claims.holds(CELL, south.claimant()) is None
    assert log.claims.resource("another") is FREE


def test_the_holder_who_asks_again_is_granted_anew(log: Log, north: Node) -> None:
    """As it does after a restart: nothing of its earlier life counts."""
    log.add(north, Ask(CELL, 1_000))
    reborn = Node("north", life=2)
    assert log.add(reborn, Ask(CELL, 2_000)).fate is Fate.GRANTED
    assert log.claims.holds(CELL, north.claimant()) == Grant(north.claimant(), 2, 2, 2_000, 2, 1)
    assert log.add(north, Release(CELL, 2)).fate is Fate.REPEATED


def test_a_renewal_begins_the_lease_anew_under_the_same_token(log: Log, north: Node, south: Node) -> None:
    log.add(north, Ask(CELL, 1_000))
    assert log.add(north, Renew(CELL, 1, 3_000)).fate is Fate.RENEWED
    assert log.claims.holds(CELL, north.claimant()) == Grant(north.claimant(), 1, 2, 3_000, 1, 2)
    for void in (Renew(CELL, 2, 1_000), Renew("another", 1, 1_000)):
        assert log.add(north, void).fate is Fate.VOID
    assert log.add(south, Renew(CELL, 1, 1_000)).fate is Fate.VOID


def test_an_expiry_names_the_very_lease(log: Log, north: Node, south: Node) -> None:
    log.add(north, Ask(CELL, 1_000))
    log.add(north, Renew(CELL, 1, 1_000))
    assert log.add(south, Expire(CELL, 1)).fate is Fate.VOID
    assert log.add(south, Expire(CELL, 2)).fate is Fate.EXPIRED
    assert log.claims.resource(CELL) is FREE
    assert log.add(south, Expire(CELL, 2)).fate is Fate.VOID
    assert log.add(north, Renew(CELL, 1, 1_000)).fate is Fate.VOID


def test_a_release_frees_what_its_token_names(log: Log, north: Node, south: Node) -> None:
    log.add(north, Ask(CELL, 1_000))
    assert log.add(south, Release(CELL, 1)).fate is Fate.VOID
    assert log.add(north, Release(CELL, 9)).fate is Fate.VOID
    assert log.add(north, Release(CELL, 1)).fate is Fate.FREED
    assert log.claims.resource(CELL) is FREE
    assert log.add(south, Ask(CELL, 1_000)).fate is Fate.GRANTED


def test_who_waits_is_offered_it_in_turn_and_holds_once_it_takes(
    log: Log, north: Node, south: Node, east: Node
) -> None:
    log.add(north, Ask(CELL, 1_000))
    assert log.add(south, Ask(CELL, 2_000, waits=True)).fate is Fate.QUEUED
    assert log.add(east, Ask(CELL, 3_000, waits=True)).fate is Fate.QUEUED
    assert log.claims.resource(CELL).queue == (Waiter(south.claimant(), 2_000), Waiter(east.claimant(), 3_000))
    log.add(north, Release(CELL, 1))
    assert log.claims.resource(CELL).grant is None
    assert log.claims.offered(CELL, south.claimant()) == Offer(south.claimant(), 4)
    assert log.claims.offered(CELL, east.claimant()) is None
    assert log.claims.waits(CELL, east.claimant())
    assert log.add(east, Take(CELL, 4, 3_000)).fate is Fate.VOID
    assert log.add(south, Take(CELL, 3, 2_000)).fate is Fate.VOID
    assert log.add(north, Ask(CELL, 1_000)).fate is Fate.REFUSED
    assert log.add(south, Take(CELL, 4, 2_000)).fate is Fate.GRANTED
    grant = log.claims.holds(CELL, south.claimant())
    assert grant is not None
    assert (grant.token, grant.began, grant.for_ms) == (8, 8, 2_000)
    assert log.claims.resource(CELL).offer is None


def test_an_offer_that_nobody_takes_goes_to_the_next(log: Log, north: Node, south: Node, east: Node) -> None:
    log.add(north, Ask(CELL, 1_000))
    log.add(south, Ask(CELL, 1_000, waits=True))
    log.add(east, Ask(CELL, 1_000, waits=True))
    log.add(east, Expire(CELL, 1))
    assert log.add(north, Expire(CELL, 1)).fate is Fate.VOID
    assert log.add(north, Expire(CELL, 4)).fate is Fate.EXPIRED
    assert log.claims.offered(CELL, east.claimant()) == Offer(east.claimant(), 6)
    assert log.add(east, Expire(CELL, 6)).fate is Fate.EXPIRED
    assert log.claims.resource(CELL) is FREE


def test_who_is_offered_it_and_asks_is_granted(log: Log, north: Node, south: Node) -> None:
    log.add(north, Ask(CELL, 1_000))
    log.add(south, Ask(CELL, 1_000, waits=True))
    log.add(north, Release(CELL, 1))
    assert log.add(south, Ask(CELL, 4_000)).fate is Fate.GRANTED
    assert log.claims.holds(CELL, south.claimant()) is not None
    assert log.claims.resource(CELL).offer is None


def test_who_asks_again_keeps_its_place_and_who_waits_no_more_loses_it(
    log: Log, north: Node, south: Node, east: Node
) -> None:
    log.add(north, Ask(CELL, 1_000))
    log.add(south, Ask(CELL, 1_000, waits=True))
    log.add(east, Ask(CELL, 1_000, waits=True))
    assert log.add(south, Ask(CELL, 5_000, waits=True)).fate is Fate.QUEUED
    assert log.claims.resource(CELL).queue == (Waiter(south.claimant(), 5_000), Waiter(east.claimant(), 1_000))
    assert log.add(south, Ask(CELL, 5_000)).fate is Fate.REFUSED
    assert log.claims.resource(CELL).queue == (Waiter(east.claimant(), 1_000),)


def test_who_withdraws_is_gone_wherever_it_was(log: Log, north: Node, south: Node, east: Node) -> None:
    log.add(north, Ask(CELL, 1_000))
    assert log.add(south, Withdraw(CELL)).fate is Fate.VOID
    log.add(south, Ask(CELL, 1_000, waits=True))
    log.add(east, Ask(CELL, 1_000, waits=True))
    assert log.add(south, Withdraw(CELL)).fate is Fate.FREED
    assert log.claims.resource(CELL).queue == (Waiter(east.claimant(), 1_000),)
    assert log.add(north, Withdraw(CELL)).fate is Fate.FREED
    assert log.claims.offered(CELL, east.claimant()) is not None
    assert log.add(east, Withdraw(CELL)).fate is Fate.FREED
    assert log.claims.resource(CELL) is FREE


def test_the_queue_is_bounded(log: Log) -> None:
    nodes = [Node(f"node-{number}") for number in range(state.QUEUE_COUNT_MAX + 2)]
    fates = [log.add(node, Ask(CELL, 1_000, waits=True)).fate for node in nodes]
    assert fates == [Fate.GRANTED, *[Fate.QUEUED] * state.QUEUE_COUNT_MAX, Fate.REFUSED]
    assert log.add(nodes[1], Ask(CELL, 1_000, waits=True)).fate is Fate.QUEUED


def test_the_number_of_resources_is_bounded(
    log: Log, north: Node, south: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rules, "RESOURCES_COUNT_MAX", 2)
    log.add(north, Ask("one", 1_000))
    log.add(north, Ask("two", 1_000))
    assert log.add(south, Ask("three", 1_000)).fate is Fate.REFUSED
    assert log.add(south, Ask("two", 1_000, waits=True)).fate is Fate.QUEUED
    log.add(north, Release("one", 1))
    assert log.add(south, Ask("three", 1_000)).fate is Fate.GRANTED


def test_a_repetition_changes_nothing(log: Log, north: Node, south: Node) -> None:
    asked = north.written(Ask(CELL, 1_000))
    log.put(asked)
    log.add(north, Release(CELL, 1))
    before = log.claims
    assert log.put(asked).fate is Fate.REPEATED
    assert log.claims is before
    assert log.add(south, Ask(CELL, 1_000)).fate is Fate.GRANTED


def test_an_earlier_life_is_not_heard_any_more(log: Log) -> None:
    old, new = Node("north"), Node("north", life=2)
    late = old.written(Ask(CELL, 1_000))
    log.add(new, Ask("another", 1_000))
    assert log.put(late).fate is Fate.REPEATED
    assert log.claims.writers[new.writer] == WriterMark(2, 1, 1)
    assert log.claims.has_seen(new.writer, 1, 99)
    assert not log.claims.has_seen(new.writer, 2, 2)
    assert not log.claims.has_seen(b"nobody", 1, 1)


def test_claims_of_one_agent_are_apart(log: Log, north: Node) -> None:
    log.add(north, Ask(CELL, 1_000), name="Drone/1 crossing")
    assert log.add(north, Ask(CELL, 1_000), name="Drone/1 landing").fate is Fate.REFUSED


def test_only_the_roster_may_write_once_there_is_one(log: Log, north: Node, south: Node, east: Node) -> None:
    log.add(north, Ask(CELL, 1_000))
    assert log.add(south, WriterList((b"south", b"north", b"south"))).fate is Fate.NOTED
    assert log.claims.roster == (b"north", b"south")
    assert log.add(east, Ask("another", 1_000)).fate is Fate.STRANGER
    assert log.add(east, WriterList((b"east",))).fate is Fate.STRANGER
    assert log.add(north, WriterList((b"south",))).fate is Fate.NOTED
    assert log.add(north, Release(CELL, 1)).fate is Fate.STRANGER
    assert log.claims.holds(CELL, north.claimant()) is not None
    assert log.add(south, Expire(CELL, 1)).fate is Fate.EXPIRED


def test_what_a_writer_says_of_its_state_is_passed_on(log: Log, north: Node) -> None:
    said = Checkpointed(7, bytes(32))
    step = log.add(north, said)
    assert (step.fate, step.noted, step.resource) == (Fate.NOTED, said, "")


def test_of_too_many_writers_the_oldest_are_forgotten(log: Log, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rules, "WRITERS_COUNT_MAX", 4)
    monkeypatch.setattr(rules, "WRITERS_KEPT", 3)
    nodes = [Node(f"node-{number}") for number in range(5)]
    for node in nodes:
        log.add(node, Withdraw(CELL))
    assert sorted(log.claims.writers) == sorted(node.writer for node in nodes[2:])


def test_states_are_values(log: Log, north: Node) -> None:
    before = log.claims
    log.add(north, Ask(CELL, 1_000))
    assert before.resources == state.Claims().resources
    assert structs.replace(log.claims) == log.claims
    assert hash(structs.replace(log.claims)) == hash(log.claims)
