"""The promises of ARCHITECTURE.md, "The semantics, exactly", as far as the pure core carries them, one by one.

The number in a test's name is the number of the sentence. Those that live in marks, outbox and timers alone are tested
there.
"""

from __future__ import annotations

import math

import msgspec
import pytest
from msgspec import Struct, field

from stigmergy.agents.agent import Agent, decide, evolve, react, reject
from stigmergy.agents.codec import canonical_bytes, encode
from stigmergy.agents.effects import Effects, Events, Publish, Tell, WakeMe, Woken
from stigmergy.agents.messages import SECOND_NS, Action, Command, Event, latest, transient, within
from stigmergy.agents.supervision import AgentStopped, InputFailed, InputsSkipped, Supervise
from stigmergy.base.errors import FoldMismatch
from stigmergy.shard.commit import digest_commit, open_commit
from stigmergy.shard.homes import shard_of
from stigmergy.shard.inputs import (
    Accepted,
    Ask,
    Delivery,
    EffectSettled,
    EffectsSettled,
    LetterRetried,
    Refused,
    SequencesSkipped,
    TimerDue,
)
from stigmergy.shard.replay import apply
from stigmergy.shard.shard import MARKS_WAIT_NS
from stigmergy.shard.snapshot import SnapshotWriter, digest_of_state, load_agents, load_tables, read_header
from stigmergy.shard.state import ShardState, plan_agents
from tests.shard.shards import Probe, events_of, observed


class Add(Command):
    n: int


class Added(Event):
    n: int
    seen: int = 0


class Soon(Event, keep=within(seconds=2)):
    n: int


class Placed(Event, keep=latest):
    x: float


class Glimpsed(Event, keep=transient):
    n: int


class Move(Action):
    total: int


class Counter(Agent):
    total: int = 0
    x: float = 0.0
    at: float = 0.0
    trail: list[int] = field(default_factory=list)

    supervision = Supervise(stop_after=3, within_s=10)

    @decide
    def add(self, command: Add) -> Events:
        if command.n == 0:
            reject("nothing to add")
        yield Added(n=command.n, seen=self.total)
        yield Added(n=command.n, seen=self.total)
        if command.n < 0:
            raise ValueError("below zero")

    @evolve
    def added(self, event: Added) -> None:
        self.total += event.n
        self.trail.append(event.n)
        self.at = self.now
        if event.n == 13:
            raise ValueError("thirteen")

    @react
    def move(self, event: Added) -> Effects:
        yield Move(total=self.total)
        if event.n == 14:
            raise ValueError("fourteen")

    @evolve
    def placed(self, event: Placed) -> None:
        self.x = event.x

    @evolve
    def soon(self, event: Soon) -> None:
        self.total = event.n

    @react
    def glimpsed(self, event: Glimpsed) -> Effects:
        if event.n == 1:
            yield Tell(to=self.address, message=Added(n=1))
        if event.n == 2:
            yield WakeMe(name="w", after_s=1)

    @react
    def woken(self, event: Woken) -> Effects:
        yield Publish(topic="t", event=event)


A = "Counter/a"


def totals(commit: object) -> list[int]:
    return [msgspec.msgpack.decode(owed.body)["total"] for owed in commit.owed]  # type: ignore[attr-defined]


def test_1_events_of_one_decide_see_the_unchanged_state_and_are_reacted_to_one_by_one() -> None:
    probe = Probe(Counter)
    probe.ask(A, Add(n=2))
    commit = open_commit(probe.log[-1])
    assert events_of(probe, commit) == [Added(n=2, seen=0), Added(n=2, seen=0)]
    assert totals(commit) == [2, 4]
    assert [owed.cause for owed in commit.owed] == [0, 1]


def test_1_a_tell_arrives_in_a_later_step_also_to_itself() -> None:
    probe = Probe(Counter)
    probe.observe(A, Added(n=1))
    probe.step(observed(A, Glimpsed(n=1)))
    ready = probe.seal()
    assert probe.agent(A).total == 1
    (pending,) = ready.owed
    assert pending.sink == "shard/0"
    told = msgspec.msgpack.decode(pending.body, type=tuple[str, bytes])
    probe.take(Delivery("shard/0", [told], sequence=pending.sequence))
    assert probe.agent(A).total == 2
    assert probe.state.outbox.get("shard/0", 1) is None, "what a shard tells itself is settled when it is consumed"


def test_1_a_refusal_keeps_nothing_but_itself() -> None:
    probe = Probe(Counter)
    assert probe.ask(A, Add(n=0)) == Refused("nothing to add")
    commit = open_commit(probe.log[-1])
    assert (commit.events, commit.owed) == ([], [])
    assert commit.answers[0].refused == "nothing to add"
    assert A not in probe.state.agents


def test_1_an_exception_keeps_none_of_the_events_and_restores_the_agent() -> None:
    probe = Probe(Counter)
    probe.observe(A, Added(n=5))
    before = canonical_bytes(probe.agent(A))
    for failing in (Added(n=13), Added(n=14)):
        commit = probe.observe(A, failing)
        assert [type(event) for event in events_of(probe, commit)] == [InputFailed]
        assert commit.owed == []
        assert canonical_bytes(probe.agent(A)) == before


def test_1_an_exception_of_a_command_is_answered_and_kept_as_a_letter() -> None:
    probe = Probe(Counter)
    verdict = probe.ask(A, Add(n=-1))
    assert verdict == Refused("the handler failed: ValueError: below zero; the command is in the dead letters")
    assert probe.letters() == ["ValueError: below zero"]


def test_1_an_exception_advances_the_mark_and_the_letter_can_be_retried() -> None:
    probe = Probe(Counter)
    probe.take(observed(A, Added(n=13), sequence=1))
    assert probe.state.marks.consumed("s", 0) == 1
    (letter,) = probe.state.letters.all()
    assert (letter.agent, letter.source, letter.input) == (A, "s", encode(Added(n=13)))
    probe.take(LetterRetried(letter.letter))
    (again,) = probe.state.letters.all()
    assert again.letter != letter.letter, "it failed again and is a new letter"


def test_1_supervision_stops_the_agent_after_so_many_failures() -> None:
    probe = Probe(Counter)
    for _ in range(2):
        probe.observe(A, Added(n=13))
    probe.step(observed(A, Added(n=13)))
    ready = probe.seal()
    assert ready.stopped == [A]
    assert isinstance(events_of(probe, ready.commit)[-1], AgentStopped)
    why = "3 failed inputs within 10 s, the last: ValueError: thirteen"
    assert probe.ask(A, Add(n=1)) == Refused(f"{A} is stopped: {why}; resume it, then send or retry this")


def test_1_failures_long_ago_do_not_stop_it() -> None:
    probe = Probe(Counter)
    for second in (0, 6, 12, 18):
        probe.observe(A, Added(n=13), at=100.0 + second)
    assert A not in probe.state.stopped


def test_1_a_retried_command_gets_the_same_answer_and_does_nothing() -> None:
    probe = Probe(Counter)
    for n, verdict in ((1, Accepted(1)), (0, Refused("nothing to add"))):
        first = Ask(A, f"id-{n}", encode(Add(n=n)))
        probe.step(first)
        asked = (A, f"id-{n}", first.command)
        assert probe.seal().verdicts == [(asked, verdict)]
        stepped = probe.step(first)
        assert stepped.repeats == [(asked, verdict, probe.state.position)]
        assert probe.shard.seal() is None
    assert probe.agent(A).total == 2


def test_1_queries_see_durable_state_only() -> None:
    probe = Probe(Counter)
    probe.observe(A, Added(n=1))
    probe.step(observed(A, Added(n=2)), observed(A, Added(n=3)), observed("Counter/b", Added(n=9)))
    assert probe.shard.open_images[A].total == 1, "the first image of a draft wins"
    assert probe.shard.open_images["Counter/b"] is None, "it was not there"
    ready = probe.seal()
    assert ready.touched[A].total == 1
    assert probe.shard.open_images == {}


def test_2_duplicates_are_passed_over_and_gaps_are_not_taken() -> None:
    probe = Probe(Counter)
    probe.take(observed(A, Added(n=1), Added(n=2), sequence=1))
    probe.take(observed(A, Added(n=2), Added(n=4), sequence=2))
    assert probe.agent(A).total == 7
    stepped = probe.step(observed(A, Added(n=8), sequence=9))
    assert probe.shard.seal() is None
    assert len(stepped.untaken) == 1
    counters = probe.shard.counters
    assert (counters.duplicates, counters.gaps, counters.inputs) == (1, 1, 3)


def test_2_a_commit_holds_the_marks_that_moved_and_a_snapshot_all() -> None:
    probe = Probe(Counter)
    probe.take(observed(A, Added(n=1), source="s", sequence=1))
    commit = probe.take(observed(A, Added(n=1), source="t", sequence=1))
    assert [(mark.source, mark.sequence) for mark in commit.marks] == [("t", 1)]
    header = read_header(SnapshotWriter(probe.state).next_part({}) or b"")
    assert [(mark.source, mark.sequence) for mark in header.tables.marks] == [("s", 1), ("t", 1)]


def test_2_giving_up_a_gap_advances_the_mark_and_is_counted_and_written() -> None:
    probe = Probe(Counter)
    commit = probe.take(SequencesSkipped("s", 0, 0, last=4, because="shed"))
    assert events_of(probe, commit) == [InputsSkipped(source="s", first=1, last=4, because="shed")]
    assert probe.state.marks.consumed("s", 0) == 4
    assert probe.shard.counters.skipped == 4
    probe.step(SequencesSkipped("s", 0, 0, last=3, because="again"))
    assert probe.shard.seal() is None


def test_2_and_4_a_gap_is_not_given_up_by_an_owner_who_was_replaced() -> None:
    probe = Probe(Counter)
    probe.take(observed(A, Added(n=1), sequence=1, epoch=5))
    probe.step(SequencesSkipped("s", 0, 4, last=9, because="shed"))
    assert probe.shard.seal() is None
    assert probe.shard.counters.stale_epochs == 1


def test_3_effects_have_ids_of_shard_position_and_index_and_come_again_until_settled() -> None:
    probe = Probe(Counter)
    probe.step(observed(A, Added(n=1), Added(n=2)))
    ready = probe.seal()
    assert [(owed.position, owed.index, owed.sequence) for owed in ready.owed] == [(1, 0, 1), (1, 1, 2)]
    assert list(probe.replayed().outbox.owed()) == ready.owed, "a restart owes the same, with the same ids"
    commit = probe.take(EffectSettled("actuators", 2), EffectSettled("actuators", 2))
    assert [(settled.sink, settled.sequences) for settled in commit.settled] == [("actuators", [2])]
    assert list(probe.replayed().outbox.owed()) == ready.owed[:1]
    assert probe.shard.counters.duplicates == 1
    probe.take(EffectsSettled("actuators", [1, 2]))
    assert probe.state.outbox.cursor("actuators") == 2
    assert probe.shard.counters.duplicates == 2


def test_3_nobody_can_have_carried_out_what_is_not_durable() -> None:
    probe = Probe(Counter)
    early = EffectSettled("actuators", 1, encode(Added(n=5)))
    commit = probe.take(observed(A, Added(n=1)), early, EffectsSettled("actuators", [1]))
    assert len(commit.events) == 1
    assert probe.state.outbox.count == 1


def test_4_a_new_owner_who_only_repeats_ends_the_old_one() -> None:
    probe = Probe(Counter)
    probe.take(observed(A, Added(n=1), sequence=1, epoch=1))
    probe.take(observed(A, Added(n=1), sequence=1, epoch=2))
    probe.step(observed(A, Added(n=1), sequence=2, epoch=1))
    assert probe.shard.seal() is None
    assert probe.shard.counters.stale_epochs == 1


def test_4_tells_are_numbered_per_pair_of_shards() -> None:
    class Teller(Agent):
        @react
        def added(self, event: Added) -> Effects:
            for name in "abcdef":
                yield Tell(to=f"Teller/{name}", message=Added(n=event.n))

    probe = Probe(Teller, shards=4)
    probe.step(observed("Teller/a", Added(n=1), Added(n=2)))
    ready = probe.seal()
    for sink in {owed.sink for owed in ready.owed}:
        told = [owed for owed in ready.owed if owed.sink == sink]
        assert [owed.sequence for owed in told] == list(range(1, len(told) + 1))
        for owed in told:
            to, _ = msgspec.msgpack.decode(owed.body, type=tuple[str, bytes])
            assert f"shard/{shard_of(to, 4)}" == sink


def test_6_how_long_a_commit_may_wait() -> None:
    probe = Probe(Counter)
    assert probe.step(observed(A, Glimpsed(n=0))).wait_ns is None
    assert probe.step(observed(A, Soon(n=1))).wait_ns == 2 * SECOND_NS
    assert probe.step(observed(A, Placed(x=1.0))).wait_ns == SECOND_NS
    assert probe.step(observed(A, Added(n=1))).wait_ns == 0
    probe.seal()
    assert probe.step(observed(A, Glimpsed(n=1))).wait_ns == 0, "effects never wait"
    probe.seal()
    assert probe.step(EffectSettled("shard/0", 1)).wait_ns == MARKS_WAIT_NS


def test_6_of_latest_events_only_the_newest_is_kept() -> None:
    probe = Probe(Counter)
    probe.observe(A, Added(n=1))
    probe.step(*(observed(A, Placed(x=float(n))) for n in range(5)))
    assert events_of(probe, probe.seal().commit) == [Placed(x=4.0)]


def test_6_transient_events_are_never_stored() -> None:
    probe = Probe(Counter)
    probe.step(observed(A, Glimpsed(n=0)))
    assert probe.shard.seal() is None
    commit = probe.observe(A, Glimpsed(n=1))
    assert commit.events == []
    assert commit.owed[0].cause == -1


def test_7_time_never_goes_back() -> None:
    probe = Probe(Counter)
    probe.observe(A, Added(n=1), at=200.0)
    commit = probe.observe(A, Added(n=1), at=150.0)
    assert probe.agent(A).at == 200.0
    assert commit.runs[-1].time_ns == 200 * SECOND_NS
    again = probe.replayed()
    assert again.time_ns == 200 * SECOND_NS


def test_7_a_timer_goes_off_once() -> None:
    probe = Probe(Counter)
    probe.observe(A, Glimpsed(n=2), at=100.0)
    (timer,) = probe.replayed().timers.all()
    due = TimerDue(timer.agent, timer.name, timer.due_ns)
    commit = probe.take(due, due, at=500.0)
    assert commit.fired == [(A, "w", 0)]
    assert len(commit.owed) == 1
    assert len(probe.state.timers) == 0


def test_7_a_timer_that_was_set_anew_does_not_go_off_at_its_old_time() -> None:
    probe = Probe(Counter)
    probe.observe(A, Glimpsed(n=2), at=100.0)
    probe.observe(A, Glimpsed(n=2), at=100.5)
    probe.step(TimerDue(A, "w", 101 * SECOND_NS), at=101.0)
    assert probe.shard.seal() is None
    assert probe.shard.counters.duplicates == 1


def test_10_snapshot_and_tail_equal_the_whole_log() -> None:
    probe = Probe(Counter)
    for n in range(1, 4):
        probe.observe(A, Added(n=n), at=100.0 + n)
    taking = SnapshotWriter(probe.state)
    parts = list(iter(lambda: taking.next_part({}), None))
    probe.observe(A, Added(n=9), at=200.0)
    state = ShardState(0, probe.plans)
    header = read_header(parts[0])
    load_tables(state, header.tables)
    for part in parts[1:]:
        load_agents(state, header, part)
    for body in probe.log[header.tables.position :]:
        apply(state, open_commit(body), digest_commit(body))
    assert digest_of_state(state) == digest_of_state(probe.state)


def test_10_another_fold_version_is_refused() -> None:
    class Other(Agent, kind="Counter"):
        count: int = 0

    probe = Probe(Counter)
    probe.observe(A, Added(n=1))
    taking = SnapshotWriter(probe.state)
    header, agents = taking.next_part({}) or b"", taking.next_part({}) or b""
    with pytest.raises(FoldMismatch, match="raise version= and write upcast_state, or keep the whole log"):
        load_agents(ShardState(0, plan_agents([Other])), read_header(header), agents)


class Values(Struct):
    a: float = 0.0
    b: dict[str, float] = {}
    c: set[int] = set()


def test_10_state_has_canonical_bytes() -> None:
    other_nan = msgspec.msgpack.decode(b"\xcb\xff\xf8\x00\x00\x00\x00\x00\x01")
    assert math.isnan(other_nan)
    assert canonical_bytes(Values(a=other_nan)) == canonical_bytes(Values(a=math.nan))
    assert canonical_bytes(Values(a=0.0)) != canonical_bytes(Values(a=-0.0))
    one, two = {"x": 1.0, "y": math.nan}, {"y": other_nan, "x": 1.0}
    assert canonical_bytes(Values(b=one)) == canonical_bytes(Values(b=two))
    assert canonical_bytes(Values(c={1, 1000, 2})) == canonical_bytes(Values(c={2, 1000, 1}))


def test_11_received_bytes_are_kept_as_they_came() -> None:
    class Passes(Agent):
        @decide
        def added(self, event: Added) -> Events:
            yield event

    body = msgspec.msgpack.encode({"colour": "red", "type": "Added@1", "n": 3, "nested": [{"a": 1}]})
    for cls, address in ((Counter, A), (Passes, "Passes/a")):
        probe = Probe(cls)
        commit = probe.take(Delivery("s", [(address, body)]))
        assert commit.events == [(address, body)]


def test_12_results_of_slow_work_come_back_as_inputs() -> None:
    probe = Probe(Counter)
    probe.observe(A, Added(n=1))
    commit = probe.take(EffectSettled("actuators", 1, encode(Added(n=5))))
    assert events_of(probe, commit) == [Added(n=5)]
    assert commit.runs[0].source == "actuators"
