"""The open commit: runs of time and source, what `latest` drops, and where effects and answers point afterwards."""

from __future__ import annotations

import math
from collections.abc import Callable

import msgspec
import pytest

from stigmergy.agents.agent import Agent, decide, evolve, react
from stigmergy.agents.codec import encode
from stigmergy.agents.effects import Effects, Events
from stigmergy.agents.messages import SECOND_NS, Action, Command, Event, latest
from stigmergy.shard.commit import Answer, MarkMoved, Owed
from stigmergy.shard.draft import OVERHEAD_BYTES, Draft
from stigmergy.shard.inputs import Ask
from stigmergy.shard.state import ShardState
from tests.shard.shards import Probe, events_of, observed


def closed(draft: Draft, time_ns: int = 9) -> list[tuple[int, int, str]]:
    return [(run.events, run.time_ns, run.source) for run in draft.close(ShardState(0, {}), 0, time_ns).runs]


def test_a_draft_without_runs_gets_one_that_carries_the_time() -> None:
    assert closed(Draft(1)) == [(0, 9, "")]


def test_runs_follow_time_and_source() -> None:
    draft = Draft(1)
    draft.begin_run(1, "a")
    draft.begin_run(2, "b")
    draft.events += [("x", b""), ("x", b"")]
    draft.begin_run(2, "b")
    draft.events.append(("x", b""))
    draft.begin_run(2, "c")
    draft.events.append(("x", b""))
    draft.begin_run(3, "c")
    assert closed(draft) == [(3, 2, "b"), (1, 2, "c"), (0, 9, "")]


def test_the_last_run_is_not_doubled_when_it_has_the_time() -> None:
    draft = Draft(1)
    draft.begin_run(9, "a")
    draft.events.append(("x", b""))
    assert closed(draft) == [(1, 9, "a")]
    late = Draft(1)
    late.begin_run(int("9000000000"), "a")
    assert closed(late, int("9000000000")) == [(0, 9_000_000_000, "a")]
    assert closed(late, 9_000_000_001) == [(0, 9_000_000_001, "")]


def test_what_is_dropped_is_missing_in_its_own_run() -> None:
    draft = Draft(1)
    for number, source in enumerate("abc"):
        draft.begin_run(number + 1, source)
        draft.events += [("x", b"0"), ("x", b"1")]
    for index in (0, 2, 3):
        draft.supersede(index)
    draft.owed += [Owed("x", "k", number + 1, cause, b"") for number, cause in enumerate((1, 4, 5))]
    commit = draft.close(ShardState(0, {}), 0, 3)
    assert [(run.events, run.source) for run in commit.runs] == [(1, "a"), (0, "b"), (2, "c")]
    assert [owed.cause for owed in commit.owed] == [0, 1, 2]


def test_the_newest_is_the_event_just_added() -> None:
    draft = Draft(1)
    draft.events += [("x", b"0"), ("x", b"1"), ("x", b"2")]
    draft.remember_newest("x", "Placed@1", None)
    assert draft.newest("x") == (2, "Placed@1", None)
    draft.forget_newest("x")
    assert draft.newest("x") is None


def test_a_draft_is_empty_until_something_is_to_be_written() -> None:
    draft = Draft(1)
    draft.begin_run(1, "a")
    draft.hurry(5)
    assert draft.empty
    draft.move_mark(MarkMoved("a", 0, 0, 1))
    assert not draft.empty


def test_everything_that_is_written_is_counted() -> None:
    draft = Draft(1)
    draft.grow("abc", "ü", bodies_bytes=10)
    assert draft.size_bytes == 10 + OVERHEAD_BYTES + 3 + 4
    additions: tuple[Callable[[], None], ...] = (
        lambda: draft.move_mark(MarkMoved("s", 0, 0, 1)),
        lambda: draft.settle("sink", [1, 2]),
        lambda: draft.fire("Drone/a", "t"),
        lambda: draft.begin_run(1, "s"),
    )
    for add in additions:
        before = draft.size_bytes
        add()
        assert draft.size_bytes >= before + OVERHEAD_BYTES
    before = draft.size_bytes
    draft.move_mark(MarkMoved("s", 0, 0, 2))
    assert draft.size_bytes == before, "the same mark moves further"
    assert draft.marks == {("s", 0): MarkMoved("s", 0, 0, 2)}


def test_what_points_at_events_still_does_after_some_were_dropped() -> None:
    draft = Draft(1)
    draft.begin_run(1, "s")
    draft.events += [("a", b"0"), ("a", b"1"), ("b", b"2")]
    draft.owed += [Owed("b", "k", 1, 2, b""), Owed("b", "k", 2, -1, b"")]
    draft.answers += [Answer("b", "c", b"", None, 2, 1), Answer("b", "d", b"", None, 3, 1)]
    draft.supersede(0)
    commit = draft.close(ShardState(0, {}), 0, 1)
    assert commit.events == [("a", b"1"), ("b", b"2")]
    assert [owed.cause for owed in commit.owed] == [1, -1]
    assert [answer.at for answer in commit.answers] == [1, 2]
    assert [run.events for run in commit.runs] == [2]


class Placed(Event, keep=latest):
    x: float
    how: str = ""


class Noted(Event):
    n: int = 0


class Put(Command):
    x: float


class Move(Action):
    pass


class Rover(Agent):
    x: float = 0.0
    odd: bool = False
    at: float = 0.0
    count: int = 0

    @decide
    def put(self, command: Put) -> Events:
        if command.x:
            yield Placed(x=command.x)
        if command.x <= 0:
            yield Noted()

    @evolve
    def placed(self, event: Placed) -> None:
        match event.how:
            case "time":
                self.at = self.now
            case "count":
                self.count += 1
            case "zero":
                event = Placed(x=-0.0 if self.x == 1.0 else 0.0)
            case "needs one" if self.x != 1.0:
                raise ValueError("not at one")
            case _:
                pass
        self.x = event.x

    @react
    def move(self, event: Placed) -> Effects:
        if event.how == "effect":
            yield Move()

    @evolve
    def noted(self, event: Noted) -> None:
        self.odd = self.odd or self.x != 1.0


R = "Rover/r"


def kept(*events: Event, first: bool = True) -> list[float | None]:
    """What is kept of events that are taken, one step each, into one draft."""
    probe = Probe(Rover)
    if first:
        probe.observe(R, Noted(), at=100.0)
    for number, event in enumerate(events):
        probe.step(observed(R, event), at=101.0 + number)
    commit = probe.seal().commit
    return [getattr(event, "x", None) for event in events_of(probe, commit)]


@pytest.mark.parametrize("first", [True, False])
def test_only_the_newest_latest_is_kept(first: bool) -> None:
    assert kept(Placed(x=1), Placed(x=2), Placed(x=3), first=first) == [3]


def test_another_event_between_keeps_what_it_saw() -> None:
    assert kept(Placed(x=1), Noted(), Placed(x=2), Placed(x=3)) == [1, None, 3]


def test_another_event_of_a_decision_keeps_what_it_saw_as_well() -> None:
    probe = Probe(Rover)
    probe.step(observed(R, Placed(x=1)), Ask(R, "a", encode(Put(x=0.0))), observed(R, Placed(x=2)))
    commit = probe.seal().commit
    assert [getattr(event, "x", None) for event in events_of(probe, commit)] == [1, None, 2]


def test_an_event_that_another_needs_is_kept() -> None:
    assert kept(Placed(x=1), Placed(x=2, how="count"), Placed(x=3, how="count")) == [2, 3]
    assert kept(Placed(x=1), Placed(x=5, how="needs one")) == [1, 5]


def test_minus_zero_is_another_state() -> None:
    assert kept(Placed(x=1), Placed(x=1, how="zero")) == [1, 1]


def test_a_nan_is_the_same_state() -> None:
    assert len(kept(Placed(x=math.nan), Placed(x=math.nan))) == 1


def test_each_latest_is_evolved_at_its_own_time() -> None:
    assert kept(Placed(x=1, how="time"), Placed(x=2, how="time")) == [2]


def test_one_with_effects_is_kept() -> None:
    assert kept(Placed(x=1, how="effect"), Placed(x=2), Placed(x=3)) == [1, 3]
    assert kept(Placed(x=1), Placed(x=2, how="effect")) == [1, 2]


def test_one_that_came_with_others_is_kept() -> None:
    probe = Probe(Rover)
    probe.step(Ask(R, "a", encode(Put(x=-1.0))), Ask(R, "b", encode(Put(x=1.0))), Ask(R, "c", encode(Put(x=2.0))))
    commit = probe.seal().commit
    assert [getattr(event, "x", None) for event in events_of(probe, commit)] == [-1, None, 2]
    assert [answer.at for answer in commit.answers] == [0, 2, 2]


def test_agents_do_not_drop_each_others() -> None:
    probe = Probe(Rover)
    probe.step(observed(R, Placed(x=1)), observed("Rover/s", Placed(x=2)), observed(R, Placed(x=3)))
    commit = probe.seal().commit
    assert [address for address, _ in commit.events] == ["Rover/s", R]
    assert commit.runs[-1].time_ns == 100 * SECOND_NS


def test_a_latest_in_the_next_commit_drops_nothing() -> None:
    probe = Probe(Rover)
    probe.observe(R, Placed(x=1))
    commit = probe.observe(R, Placed(x=2))
    assert len(commit.events) == 1
    assert msgspec.msgpack.decode(commit.events[0][1])["x"] == 2
