"""What a step says of sequences: how far a source was consumed, what was repeated, skipped, settled, and by whom."""

from __future__ import annotations

import msgspec
import pytest

from stigmergy.agents.agent import Agent, decide, evolve, react
from stigmergy.agents.codec import encode
from stigmergy.agents.effects import Effects, Events, Tell
from stigmergy.agents.messages import SECOND_NS, Action, Command, Event, within
from stigmergy.agents.supervision import InputsSkipped, Supervise
from stigmergy.agents.windows import Window
from stigmergy.base.errors import JournalCorrupt
from stigmergy.shard.commit import open_commit, seal
from stigmergy.shard.homes import Homes
from stigmergy.shard.inputs import (
    Accepted,
    Ask,
    Delivery,
    EffectSettled,
    EffectsSettled,
    Refused,
    SafeActionOut,
    SequencesSkipped,
    TimerDue,
    Verdict,
)
from stigmergy.shard.replay import apply
from stigmergy.shard.shard import Shard
from stigmergy.shard.snapshot import SnapshotTables, load_tables, tables_of
from stigmergy.shard.state import ShardState
from tests.shard.shards import Probe, events_of, observed


class Counted(Event):
    n: int = 1


class Rare(Event, keep=within(seconds=5)):
    pass


class Spoke(Event):
    pass


class Move(Action):
    pass


class Counter(Agent):
    total: int = 0

    @evolve
    def counted(self, event: Counted | Rare) -> None:
        self.total += 1

    @react
    def moves(self, event: Counted) -> Effects:
        for _ in range(event.n):
            yield Move()

    @react
    def speaks(self, event: Spoke) -> Effects:
        yield Tell(to="Counter/b", message=Counted(n=0))


C = "Counter/a"


def counts(first: int, last: int, *, source: str = "s", epoch: int = 0) -> Delivery:
    return observed(C, *[Counted(n=0) for _ in range(first, last + 1)], source=source, sequence=first, epoch=epoch)


def duplicates(probe: Probe) -> int:
    return int(probe.shard.counters.duplicates)


@pytest.mark.parametrize(
    ("first", "last", "repeated", "consumed"), [(1, 3, 3, 5), (4, 5, 2, 5), (3, 5, 3, 5), (5, 7, 1, 7), (6, 6, 0, 6)]
)
def test_what_was_consumed_is_counted_and_the_rest_is_taken(
    first: int, last: int, repeated: int, consumed: int
) -> None:
    probe = Probe(Counter)
    commit = probe.take(counts(1, 5))
    assert [(mark.source, mark.sequence) for mark in commit.marks] == [("s", 5)]
    probe.step(counts(first, last))
    assert duplicates(probe) == repeated
    assert probe.state.marks.consumed("s", 0) == consumed
    assert probe.agent(C).total == consumed
    assert probe.shard.counters.inputs == consumed


def test_a_new_owner_who_repeats_is_an_owner_all_the_same() -> None:
    probe = Probe(Counter)
    probe.take(counts(1, 3, epoch=2))
    probe.step(counts(1, 2, epoch=2))
    assert probe.shard.seal() is None, "nothing has moved"
    commit = probe.take(counts(1, 2, epoch=3))
    assert [(mark.epoch, mark.sequence) for mark in commit.marks] == [(3, 3)]
    assert probe.replayed().marks.epoch("s", 0) == 3


def test_marks_and_settlements_alone_wait_a_second() -> None:
    probe = Probe(Counter)
    probe.take(observed(C, Counted(n=2)))
    assert probe.step(SequencesSkipped("t", 0, 0, last=3, because="")).wait_ns == SECOND_NS
    probe.seal()
    assert probe.step(EffectsSettled("actuators", [1])).wait_ns == SECOND_NS
    probe.seal()
    assert probe.step(EffectsSettled("actuators", [1, 2, 7])).wait_ns == SECOND_NS
    assert duplicates(probe) == 2
    assert probe.step(observed(C, Rare(), sequence=1)).wait_ns == SECOND_NS, "its mark waits less than it may"


def test_an_event_may_wait_as_long_as_it_says() -> None:
    probe = Probe(Counter)
    probe.observe(C, Counted(n=0))
    assert probe.step(observed(C, Rare())).wait_ns == 5 * SECOND_NS
    assert probe.step(observed(C, Counted(n=0))).wait_ns == 0


class Go(Command):
    pass


class Sleeper(Agent):
    minute: Window[Rare] = Window.tumbling(seconds=60)
    supervision = Supervise(stop_after=1)

    @decide
    def go(self, command: Go) -> Events:
        return ()

    @react
    def spoke(self, event: Spoke) -> Effects:
        raise RuntimeError("no")


S = "Sleeper/s"


def test_what_somebody_waits_for_is_written_at_once() -> None:
    probe = Probe(Sleeper)
    assert probe.step(Ask(S, "id-1", encode(Go()))).wait_ns == 0, "an answer, though nothing was decided"
    probe.seal()
    assert probe.step(SafeActionOut("Nobody/x", "Land", "silent")).wait_ns == 0
    probe.seal()
    assert probe.step(Delivery("s", [("Nobody/x", b"")])).wait_ns == 0, "a failure"
    probe.seal()
    probe.observe(S, Rare(), Spoke(), at=110.0)
    assert S in probe.state.stopped
    (timer,) = probe.state.timers.all()
    due = TimerDue(timer.agent, timer.name, timer.due_ns)
    assert probe.step(due, at=120.0).wait_ns == 0, "a timer, though its agent is stopped"
    assert duplicates(probe) == 0
    assert probe.step(due).wait_ns == 0
    assert duplicates(probe) == 1
    assert probe.seal().commit.fired == [(S, "window:minute", 0)]


def test_a_command_sent_again_gets_its_answer_with_where_it_stands() -> None:
    probe = Probe(Sleeper)
    probe.take(Ask(S, "id-1", encode(Go())))
    probe.take(Ask(S, "id-2", encode(Spoke())))
    for repeats in (1, 2):
        stepped = probe.step(Ask(S, "id-1", encode(Go())))
        assert (stepped.repeats, stepped.wait_ns) == ([((S, "id-1", encode(Go())), Accepted(1), 1)], None)
        assert duplicates(probe) == repeats
    (((agent, command_id, _), verdict, position),) = probe.step(Ask(S, "id-2", encode(Spoke()))).repeats
    assert (agent, command_id, position) == (S, "id-2", 2)
    assert isinstance(verdict, Refused)
    assert probe.step().repeats == []
    longest = Ask(S, "c" * 200, encode(Go()))
    assert probe.step(longest).repeats == []
    assert len(probe.seal().verdicts) == 1


class Call(Command):
    who: str
    loud: float = 0.0
    names: frozenset[str] = frozenset()


class Caller(Agent):
    called: str = ""

    @decide
    def call(self, command: Call) -> Events:
        yield Spoke()


K = "Caller/a"
ANOTHER = Refused("another command had the id 'id-1'; send this one with an id of its own")


def call(**fields: object) -> Ask:
    return Ask(K, "id-1", msgspec.msgpack.encode({**fields, "type": "Call@1"}))


def said(shard: Shard, ask: Ask) -> tuple[Verdict, int]:
    (((agent, command_id, command), verdict, position),) = shard.step([ask], 200 * SECOND_NS).repeats
    assert (agent, command_id, command) == (ask.agent, ask.command_id, ask.command)
    assert shard.seal() is None, "nothing of a repetition is kept"
    return verdict, position


@pytest.mark.parametrize("restarted", ["no", "replay", "snapshot"])
def test_another_command_with_an_id_that_was_used_is_refused(restarted: str) -> None:
    probe = Probe(Caller)
    probe.take(call(who="x", names=["p", "q"], note="a field of a later version"))
    shard = probe.shard
    if restarted != "no":
        state = probe.replayed()
        if restarted == "snapshot":
            tables = msgspec.msgpack.decode(encode(tables_of(state)), type=SnapshotTables)
            load_tables(state := ShardState(0, probe.plans), tables)
        shard = Shard(state, Homes(1))
    others = [call(who="y"), call(who="x"), call(who="x", names=["p", "q"], loud=-0.0), Ask(K, "id-1", b"\xc1")]
    for other in others:
        assert said(shard, other) == (ANOTHER, 0)
    # The same is the same, however it is written.
    for same in (call(names=["q", "p"], who="x"), call(who="x", loud=0, names=["p", "q"])):
        assert said(shard, same) == (Accepted(1), 1)
    assert shard.counters.refused == len(others)


def test_an_answer_of_a_log_without_digests_is_given_as_it_was() -> None:
    probe = Probe(Caller)
    commit = msgspec.structs.replace(probe.take(call(who="x")), digests=[])
    state = ShardState(0, probe.plans)
    apply(state, commit, bytes(32))
    assert tables_of(state).digests == []
    assert said(Shard(state, Homes(1)), call(who="y")) == (Accepted(1), 1)


def test_a_commit_has_a_digest_for_each_answer_or_none() -> None:
    commit = Probe(Caller).take(call(who="x"), Delivery("s", [(K, encode(Call(who="y")))]))
    assert [len(digest) for digest in commit.digests] == [16, 0]
    with pytest.raises(JournalCorrupt, match="1 digests of commands for 2 answers"):
        open_commit(seal(msgspec.structs.replace(commit, digests=commit.digests[:1])).body)


def test_a_letter_is_named_after_its_place_in_the_log() -> None:
    probe = Probe(Sleeper)
    noise = Delivery("s", [("Nobody/x", b""), ("Nobody/y", b"")])
    probe.take(noise)
    probe.take(noise)
    names = [letter.letter for letter in probe.state.letters.all()]
    assert names == ["0.1.0", "0.1.1", "0.2.0", "0.2.1"]
    assert [letter.letter for letter in probe.state.letters_at(1)] == names[:2]
    assert probe.state.letters_at(0) == []


@pytest.mark.parametrize(("last", "skipped"), [(3, 0), (2, 0), (4, 1), (9, 6)])
def test_sequences_that_will_not_come_are_skipped_from_where_the_mark_is(last: int, skipped: int) -> None:
    probe = Probe(Counter)
    probe.take(counts(1, 3))
    probe.step(SequencesSkipped("s", 0, 0, last=last, because="shed"))
    assert probe.shard.counters.skipped == skipped
    if skipped:
        (event,) = events_of(probe, probe.seal().commit)
        assert event == InputsSkipped(source="s", first=4, last=last, because="shed")
    else:
        assert probe.shard.seal() is None
    assert probe.state.marks.consumed("s", 0) == max(3, last)
    probe.take(counts(max(3, last) + 1, max(3, last) + 1))


def test_an_effect_is_settled_once_and_not_before_it_is_durable() -> None:
    probe = Probe(Counter)
    probe.step(observed(C, Counted(n=3)), EffectSettled("actuators", 1), EffectsSettled("actuators", [2]))
    assert (duplicates(probe), probe.state.outbox.count) == (2, 3)
    probe.seal()
    commit = probe.take(EffectSettled("actuators", 1), EffectsSettled("actuators", [2, 3]))
    assert [(settled.sink, settled.sequences) for settled in commit.settled] == [("actuators", [1, 2, 3])]
    assert (duplicates(probe), probe.state.outbox.count) == (2, 0)
    probe.step(EffectSettled("actuators", 1))
    assert duplicates(probe) == 3


def test_what_a_shard_told_itself_is_settled_with_its_taking() -> None:
    probe = Probe(Counter)
    probe.take(observed(C, Spoke(), Spoke(), Spoke()))
    assert probe.state.outbox.count == 3
    told = [("Counter/b", body) for _, body in counts(1, 3).items]
    commit = probe.take(Delivery("shard/0", told[:2], sequence=1))
    assert [(settled.sink, settled.sequences) for settled in commit.settled] == [("shard/0", [1, 2])]
    commit = probe.take(Delivery("shard/0", told[1:], sequence=2))
    assert [settled.sequences for settled in commit.settled] == [[3]]
    assert probe.state.outbox.count == 0


def test_a_part_that_was_consumed_is_settled_where_that_was_lost() -> None:
    probe = Probe(Counter)
    told = [("Counter/b", body) for _, body in counts(1, 4).items]
    probe.step(observed(C, *[Spoke()] * 4), Delivery("shard/0", told[:2], sequence=1))
    probe.seal()
    assert probe.state.outbox.count == 4, "they were not durable yet"
    commit = probe.take(Delivery("shard/0", told, sequence=1))
    assert [sequence for settled in commit.settled for sequence in settled.sequences] == [1, 2, 3, 4]


def test_each_owner_has_a_higher_epoch_than_all_before() -> None:
    probe = Probe(Counter)
    for epoch in (1, 2, 3):
        probe.shard.begin_epoch()
        assert probe.take(counts(epoch, epoch)).epoch == epoch
    assert probe.state.events_count == probe.replayed().events_count == 3


def test_time_never_goes_back() -> None:
    probe = Probe(Counter)
    probe.take(counts(1, 1), at=200.0)
    commit = probe.take(counts(2, 2), at=150.0)
    assert [run.time_ns for run in commit.runs] == [200 * SECOND_NS]
