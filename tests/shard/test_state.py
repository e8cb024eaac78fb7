"""Addresses, shards and plans of a shard's state."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stigmergy.agents.agent import Agent
from stigmergy.agents.effects import ACTUATORS, PUBLISH, TIMERS, WORK, Publish, WakeMe, sink_of
from stigmergy.agents.messages import Action, Event, Work
from stigmergy.agents.supervision import (
    AgentResumed,
    AgentStopped,
    InputFailed,
    LetterTaken,
    SignerEnrolled,
    SignerRevoked,
)
from stigmergy.base.errors import ConfigError, UnknownKind
from stigmergy.shard.commit import GENESIS, Head
from stigmergy.shard.homes import shard_of
from stigmergy.shard.inputs import Accepted, Refused
from stigmergy.shard.state import DECISION_BYTES_MAX, EnrolledSigner, Limits, ShardState, plan_agents


class Rover(Agent):
    pass


class Went(Event):
    pass


class Move(Action):
    pass


class Plan(Work):
    pass


def test_a_new_state_stands_at_the_beginning() -> None:
    state = ShardState(3, plan_agents([Rover]))
    assert state.head == Head(shard=3, position=0, epoch=0, digest=GENESIS)
    assert (state.incarnation, state.time_ns, state.events_count) == (0, 0, 0)


@pytest.mark.parametrize("address", ["Rover/a", "Rover/A-1_b.c:d@e=f~", "Rover/" + "x" * 128])
def test_an_address(address: str) -> None:
    assert ShardState(0, plan_agents([Rover])).plan_at(address).cls is Rover


@pytest.mark.parametrize(
    "address",
    ["", "Rover", "Rover/", "/a", "Rover/a/b", "Rover/a b", "Rover/ü", "Rover/" + "x" * 129, "Rover/a\n", "Nobody/a"],
)
def test_what_is_no_address(address: str) -> None:
    with pytest.raises(UnknownKind) as caught:
        ShardState(0, plan_agents([Rover])).plan_at(address)
    assert str(caught.value).startswith(
        f"{address[:200]!r} is no address of an agent here: write Kind/name with a kind"
    )
    assert "Rover" in str(caught.value)


def test_a_long_address_is_not_repeated_at_length() -> None:
    with pytest.raises(UnknownKind, match=f"^'{'x' * 200}' is no address"):
        ShardState(0, plan_agents([Rover])).plan_at("x" * 300)


def test_tables_are_shown_as_each_commit_left_them() -> None:
    """A commit changes them before it is on disk, and people are shown what is."""
    state = ShardState(0, plan_agents([Rover]))
    for position in (1, 2, 3, 4):
        name = f"0.{position}.0"
        state.note("", InputFailed(letter=name, to="Rover/a", source="s", error="e", input=b""), position)
        state.note(f"Rover/{position}", AgentStopped(reason="r"), position)
        assert [len(state.letters_at(at)) for at in range(position + 1)] == [*range(position), position]
        assert [len(state.stopped_at(at)) for at in range(position + 1)] == [*range(position), position]
        state.position = position
    state.note("", LetterTaken(letter="0.1.0", retried=False), 5)
    state.note("Rover/1", AgentResumed(by="me"), 5)
    assert (len(state.letters_at(4)), len(state.stopped_at(4))) == (4, 4)
    assert (len(state.letters_at(5)), len(state.stopped_at(5))) == (3, 3)


def test_only_the_failures_of_an_agent_count_against_it() -> None:
    state = ShardState(0, plan_agents([Rover]))
    failed = InputFailed(letter="l", to="Rover/a", source="s", error="e", input=b"")
    state.note("", failed, 5)
    assert state.failures.all() == []
    state.note("Rover/a", failed, 5)
    assert state.failures.all() == [("Rover/a", [5])]
    state.note("Rover/a", AgentResumed(by="me"), 6)
    assert state.failures.all() == []


def test_a_signer_is_revoked_by_its_algorithm_and_its_key() -> None:
    state = ShardState(0, {})
    for key in (b"a", b"b"):
        state.note("", SignerEnrolled(algorithm=1, public_key=key, cites=b""), 1)
    for algorithm, key in ((2, b"a"), (1, b"c")):
        state.note("", SignerRevoked(algorithm=algorithm, public_key=key, last_position=9), 2)
    assert state.signers == [EnrolledSigner(1, b"a"), EnrolledSigner(1, b"b")]
    state.note("", SignerRevoked(algorithm=1, public_key=b"b", last_position=9), 2)
    assert state.signers == [EnrolledSigner(1, b"a"), EnrolledSigner(1, b"b", 9)]


def test_an_address_where_there_are_no_agents() -> None:
    with pytest.raises(UnknownKind, match="with a kind of this fleet and a name of letters"):
        ShardState(0, {}).plan_at("Rover/a")


def test_where_agents_live_never_changes() -> None:
    """The published values of FNV-1a."""
    assert shard_of("a", 2**32) == 0xE40C292C
    assert shard_of("foobar", 2**32) == 0xBF9CF968
    assert [shard_of(address, 16) for address in ("Drone/D-17", "Drone/D-18", "Rover/a")] == [1, 12, 3]
    assert shard_of("Drone/D-17", 1) == 0


@given(st.text(max_size=30), st.integers(1, 1000))
def test_every_agent_lives_in_some_shard(address: str, shards: int) -> None:
    assert 0 <= shard_of(address, shards) < shards


def test_limits_leave_room_in_a_commit() -> None:
    assert Limits().bytes_per_decision_max == DECISION_BYTES_MAX
    for wrong in (0, DECISION_BYTES_MAX + 1):
        with pytest.raises(ConfigError, match=f"bytes_per_decision_max={wrong}: give 1 to {DECISION_BYTES_MAX}"):
            Limits(bytes_per_decision_max=wrong)


def test_each_effect_has_its_sink() -> None:
    effects = (Move(), Plan(), Publish(topic="t", event=Went()), WakeMe(name="w", after_s=1))
    assert [sink_of(effect) for effect in effects] == [ACTUATORS, WORK, PUBLISH, TIMERS]


def test_an_answer_is_true_if_it_is_yes() -> None:
    assert Accepted(1)
    assert not Refused("no")
