"""Replaying commits: the chain is checked, nothing is decided, and what cannot be folded is named."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace

from stigmergy.agents.agent import Agent, decide, evolve, react
from stigmergy.agents.codec import encode
from stigmergy.agents.effects import CancelWake, Effects, Events, WakeMe, WindowClosed, Woken
from stigmergy.agents.messages import SECOND_NS, Action, Command, Event
from stigmergy.agents.windows import Window
from stigmergy.base.errors import FoldMismatch, JournalCorrupt
from stigmergy.shard.commit import Commit, digest_commit, open_commit
from stigmergy.shard.inputs import Ask, TimerDue
from stigmergy.shard.replay import apply
from stigmergy.shard.state import ShardState, plan_agents
from tests.shard.shards import Probe, observed


class Go(Command):
    pass


class Went(Event):
    n: int = 0


class Idle(Event):
    pass


class Told(Event):
    pass


class Move(Action):
    pass


class Rover(Agent):
    n: int = 0
    at: float = 0.0
    naps: int = 0
    recent: Window[Went] = Window.tumbling(seconds=10)

    @decide
    def go(self, command: Go) -> Events:
        yield Told()
        yield Went(n=1)
        yield Told()

    @evolve
    def went(self, event: Went) -> None:
        self.n += event.n
        self.at = self.now

    @react
    def on_went(self, event: Went) -> Effects:
        if event.n == 2:
            yield WakeMe(name="a", after_s=1)
            yield WakeMe(name="b", after_s=1)
            yield CancelWake(name="b")

    @react
    def on_idle(self, event: Idle) -> Effects:
        yield Move()

    @evolve
    def woken(self, event: Woken) -> None:
        self.naps += 1

    @react
    def again(self, event: Woken) -> Effects:
        if self.naps < 3:
            yield WakeMe(name=event.name, after_s=0)


R = "Rover/r"


def opened(probe: Probe, index: int = 0) -> tuple[Commit, bytes]:
    body = probe.log[index]
    return open_commit(body), digest_commit(body)


def test_a_commit_must_follow_the_one_before() -> None:
    probe = Probe(Rover)
    for n in range(3):
        probe.observe(R, Went(n=n))
    plans = plan_agents([Rover])
    first, second = opened(probe, 0), opened(probe, 1)
    state = ShardState(0, plans)
    apply(state, *first)
    for other, wrong in ((ShardState(0, plans), second), (ShardState(1, plans), first), (state, first)):
        with pytest.raises(JournalCorrupt, match="the chain is broken; restore from a copy"):
            apply(other, *wrong)
    own = state.digest.hex()[:16]
    for other_digest in (bytes(32), b"x" * 32, b"\xff" * 32):
        cited = other_digest.hex()[:16]
        said = f"after position 1 comes position 2 of shard 0, which cites {cited}, not {own}: the chain is broken"
        with pytest.raises(JournalCorrupt, match=said):
            apply(state, replace(second[0], previous=other_digest), second[1])
    for number, other_shard in ((0, 1), (1, 0)):
        with pytest.raises(JournalCorrupt, match=f"shard {number}: after position 0 comes position 1 of shard"):
            apply(ShardState(number, plans), replace(first[0], shard=other_shard), first[1])
    apply(state, *second)
    assert (state.position, state.events_count) == (2, 2)
    assert state.digest == second[1]


def test_a_replay_knows_the_time_of_each_step() -> None:
    probe = Probe(Rover)
    probe.step(observed(R, Went(n=1)), at=101.0)
    probe.step(observed(R, Idle()), at=105.0)
    probe.seal()
    state = probe.replayed()
    assert state.agents[R].at == 101.0
    assert state.time_ns == 105 * SECOND_NS


def test_events_that_nothing_handles_make_the_agent_exist() -> None:
    probe = Probe(Rover)
    probe.take(Ask(R, "a", encode(Go())))
    assert probe.replayed().agents[R].n == 1


def test_timers_are_set_and_fired_in_the_order_of_the_step() -> None:
    probe = Probe(Rover)
    probe.observe(R, Went(n=2))
    due = TimerDue(R, "a", 101 * SECOND_NS)
    commit = probe.take(due, TimerDue(R, "a", 101 * SECOND_NS), at=101.0)
    assert commit.fired == [(R, "a", 0), (R, "a", 1)]
    assert len(commit.owed) == 2
    probe.take(due)
    assert [timer.name for timer in probe.replayed().timers.all()] == ["window:recent"]


class Napper(Agent):
    """Sets a timer anew whenever one goes off, beside orders of another kind."""

    naps: int = 0

    @react
    def went(self, event: Went) -> Effects:
        yield Move()
        yield WakeMe(name="a", after_s=event.n)
        yield WakeMe(name="b", after_s=event.n)

    @evolve
    def woken(self, event: Woken) -> None:
        self.naps += 1

    @react
    def again(self, event: Woken) -> Effects:
        yield Move()
        if event.name == "a":
            yield WakeMe(name="a", after_s=5)


def test_a_timer_that_fires_between_effects_is_gone_before_those_behind_it_are_set() -> None:
    probe = Probe(Napper)
    probe.observe("Napper/n", Went(n=1))
    commit = probe.take(
        observed("Napper/n", Went(n=2)),
        TimerDue("Napper/n", "b", 102 * SECOND_NS),
        TimerDue("Napper/n", "a", 102 * SECOND_NS),
        observed("Napper/n", Idle()),
        at=102.0,
    )
    assert commit.fired == []
    due_ns = {timer.name: timer.due_ns for timer in probe.state.timers.all()}
    assert due_ns == {"a": 104 * SECOND_NS, "b": 104 * SECOND_NS}
    commit = probe.take(
        TimerDue("Napper/n", "a", due_ns["a"]),
        TimerDue("Napper/n", "b", due_ns["b"]),
        observed("Napper/n", Went(n=9)),
        at=104.0,
    )
    assert commit.fired == [("Napper/n", "a", 0), ("Napper/n", "b", 2)]
    commit = probe.take(TimerDue("Napper/n", "b", 113 * SECOND_NS), at=113.0)
    assert commit.fired == [("Napper/n", "b", 0)]
    assert [timer.name for timer in probe.replayed().timers.all()] == ["a"]
    sent = [(pending.position, pending.index, pending.sequence) for pending in probe.replayed().outbox.owed()]
    assert sent == [(1, 0, 1), (2, 0, 2), (3, 0, 3), (3, 2, 4), (3, 3, 5), (4, 0, 6)]


def test_what_todays_code_cannot_fold_is_named() -> None:
    class Fragile(Agent, kind="Rover"):
        @evolve
        def went(self, event: Went) -> None:
            raise RuntimeError("changed my mind")

        @evolve
        def told(self, event: Told) -> None:
            raise RuntimeError("this as well")

    probe = Probe(Rover)
    probe.observe(R, Went(n=1))
    state = ShardState(0, plan_agents([Fragile]))
    with pytest.raises(FoldMismatch) as caught:
        apply(state, *opened(probe))
    assert str(caught.value) == (
        "shard 0, position 1: today's code cannot fold Went@1 of Rover/r (RuntimeError: changed my mind); "
        "add an upcaster for it, or run the version that wrote it"
    )
    state = ShardState(0, plan_agents([Rover]))
    apply(state, *opened(probe))
    probe.take(Ask(R, "a", encode(Go())))
    other = ShardState(0, plan_agents([Fragile]))
    other.agents[R] = Fragile(id="r")
    other.position, other.digest = state.position, state.digest
    with pytest.raises(FoldMismatch, match="cannot fold Told@1 of Rover/r"):
        apply(other, *opened(probe, 1))


def test_events_of_a_kind_that_is_gone_are_named() -> None:
    probe = Probe(Rover)
    probe.observe(R, Went(n=1))
    with pytest.raises(FoldMismatch, match="cannot fold Went@1 of Rover/r"):
        apply(ShardState(0, {}), *opened(probe))


def test_an_event_of_the_shard_that_is_none() -> None:
    probe = Probe(Rover)
    probe.observe(R, Went(n=1))
    commit, digest = opened(probe)
    broken = replace(commit, events=[("", b"\xc1")])
    with pytest.raises(FoldMismatch, match="cannot fold an event of the shard"):
        apply(ShardState(0, probe.plans), broken, digest)


def test_a_timer_that_is_none() -> None:
    probe = Probe(Rover)
    probe.observe(R, Went(n=2))
    commit, digest = opened(probe)
    broken = replace(commit, owed=[replace(commit.owed[0], body=b"\xc1")])
    with pytest.raises(JournalCorrupt, match="a timer does not decode"):
        apply(ShardState(0, probe.plans), broken, digest)


def test_a_window_that_was_taken_out_of_the_class_is_passed_over() -> None:
    class Without(Agent, kind="Rover"):
        n: int = 0
        other: Window[Idle] = Window.tumbling(seconds=10)

    class Gone(Agent, kind="Rover"):
        n: int = 0

    probe = Probe(Rover)
    probe.observe(R, Went(n=1), at=101.0)
    probe.take(TimerDue(R, "window:recent", 110 * SECOND_NS), at=110.0)
    assert open_commit(probe.log[-1]).events[0][1] == encode(WindowClosed(window="recent", start_s=100.0, end_s=110.0))
    for cls in (Without, Gone):
        state = ShardState(0, plan_agents([cls]))
        for index in range(2):
            apply(state, *opened(probe, index))
        found: Any = state.agents[R]
        assert type(found) is cls
