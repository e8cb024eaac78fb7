"""Traces in the step: what an input causes belongs to its trace, live and after a replay; ids are derived."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from stigmergy.agents.agent import Agent, decide, evolve, react, reject
from stigmergy.agents.codec import encode
from stigmergy.agents.confirmations import Done
from stigmergy.agents.effects import ACTUATORS, Effects, Events, Tell, WakeMe, Woken
from stigmergy.agents.messages import SECOND_NS, Action, Command, Event, latest
from stigmergy.shard.commit import COMMIT_BYTES_MAX, open_commit, seal
from stigmergy.shard.inputs import Ask, CommitDurable, Delivery, EffectSettled, EffectsSettled, TellGivenUp, TimerDue
from stigmergy.shard.snapshot import SnapshotTables, load_tables, tables_of
from stigmergy.shard.state import ShardState
from stigmergy.shard.tracing import (
    DEPTH_MAX,
    STATE_CHARS_MAX,
    UNSAMPLED,
    TraceContext,
    Traced,
    TracedEffect,
    TracedInput,
    durable_notes,
    effect_span,
    input_span,
    new_trace,
    read_context,
    read_traces,
    write_parent,
    write_state,
    write_traces,
)
from stigmergy.traces.spans import spans_of
from tests.shard.shards import Probe

PARENT = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"
CONTEXT = TraceContext(bytes(range(16)), bytes(range(8)), "v=1", 3, 99 * SECOND_NS)


class Start(Command):
    number: int = 0


class Started(Event):
    number: int


class Placed(Event, keep=latest):
    x: int


class Heard(Event):
    number: int = 0


class Move(Action):
    number: int = 0


class Cart(Agent):
    number: int = 0
    x: int = 0

    @decide
    def start(self, command: Start) -> Events:
        if command.number < 0:
            reject("no number")
        if command.number > 99:
            raise RuntimeError("over its own feet")
        yield Started(number=command.number)

    @evolve
    def started(self, event: Started) -> None:
        self.number = event.number

    @react
    def act(self, event: Started) -> Effects:
        yield Tell("Cart/b", Heard())
        yield Move(number=event.number)
        yield WakeMe("again", after_s=5)

    @evolve
    def placed(self, event: Placed) -> None:
        self.x = event.x

    @evolve
    def heard(self, event: Heard) -> None:
        self.number += event.number

    @decide
    def moved(self, done: Done[Move]) -> Events:
        yield Heard(number=1)

    @react
    def woken(self, woken: Woken) -> Effects:
        yield WakeMe("again", after_s=5)


def ask(number: int = 1, trace: TraceContext | None = CONTEXT, command_id: str = "a") -> Ask:
    return Ask("Cart/a", command_id, encode(Start(number=number)), trace=trace)


def notes(probe: Probe) -> list[Traced]:
    return [note for body in probe.log for note in open_commit(body).traces]


def test_without_a_trace_nothing_is_written() -> None:
    probe = Probe(Cart)
    commit = probe.take(ask(trace=None))
    assert commit.traces == []
    assert msgspec.msgpack.decode(seal(commit).body)[-1] != [], "the field is not there at all"
    assert len(probe.state.traces) == 0
    assert tables_of(probe.state).traces == []


def test_a_commit_with_traces_has_these_bytes() -> None:
    """Logs are read for years: a change here needs a new tag."""
    commit = Probe(Cart).take(ask())
    assert encode(commit.traces).hex() == (
        "919d01c410000102030405060708090a0b0c0d0e0fc4080001020304050607a3763d3103a6436172742f61a7537461727440"
        "31a56c6f63616ccf000000170cdc1e00cf000000174876e80092000192000300"
    )


def test_what_an_input_causes_belongs_to_its_trace() -> None:
    probe = Probe(Cart)
    commit = probe.take(ask())
    (note,) = commit.traces
    assert isinstance(note, TracedInput)
    assert (note.agent, note.message, note.depth, note.state) == ("Cart/a", "Start@1", 3, "v=1")
    assert (note.came_ns, note.decided_ns) == (99 * SECOND_NS, 100 * SECOND_NS)
    assert (note.events, note.owed, note.answer) == ((0, 1), (0, 3), 0)
    mine = input_span(note.trace_id, commit.previous, 0)
    for index, owed in enumerate(commit.owed[:2]):
        carried = probe.state.traces.get(owed.sink, owed.sequence)
        assert carried is not None
        assert (carried.span_id, carried.parent) == (effect_span(note.trace_id, commit.previous, index), mine)
        assert (carried.depth, carried.owed_ns, carried.context().trace_id) == (4, 100 * SECOND_NS, note.trace_id)


def test_confirmation_tell_and_timer_continue_the_trace() -> None:
    probe = Probe(Cart)
    first = probe.take(ask())
    tell, move = (probe.state.traces.of(one) for one in probe.state.outbox.owed() if one.sink != "timers")
    (pending,) = [one for one in probe.state.outbox.owed() if one.sink == ACTUATORS]
    carried = probe.state.traces.of(pending)
    assert carried is not None and tell is not None and move is not None  # noqa: PT018 - for the checker
    done = encode({"type": "stigmergy.Done.Move@1", "action": {"type": "Move@1", "number": 1}, "key": "k"})
    times_ns = (101 * SECOND_NS, 102 * SECOND_NS)
    second = probe.take(EffectSettled(ACTUATORS, 1, done, times_ns), at=103)
    effect, confirmed = second.traces
    assert isinstance(effect, TracedEffect)
    assert isinstance(confirmed, TracedInput)
    assert (effect.span_id, effect.name, effect.began_ns, effect.ended_ns) == (carried.span_id, "Move@1", *times_ns)
    assert (confirmed.parent, confirmed.depth, confirmed.came_ns) == (carried.span_id, 4, times_ns[1])
    told = probe.state.traces.get("shard/0", 1)
    assert told is not None
    delivery = Delivery("shard/0", [("Cart/b", encode(Heard()))], sequence=1, traces=((0, told.context()),))
    third = probe.take(delivery, at=104)
    assert [(type(one).__name__, one.agent) for one in third.traces] == [
        ("TracedInput", "Cart/b"),
        ("TracedEffect", "Cart/a"),
    ]
    fourth = probe.take(TimerDue("Cart/a", "again", 105 * SECOND_NS), at=105)
    timer, woken = fourth.traces
    assert isinstance(timer, TracedEffect)
    assert isinstance(woken, TracedInput)
    assert (timer.name, timer.owed_ns, timer.settled_ns) == ("again", 100 * SECOND_NS, 105 * SECOND_NS)
    assert woken.parent == timer.span_id
    assert {note.trace_id for note in notes(probe)} == {CONTEXT.trace_id}
    assert len(probe.state.traces) == 1, "the timer that it has set again"
    assert first.traces[0].trace_id == CONTEXT.trace_id


def test_spans_are_those_of_the_log_alone() -> None:
    probe = Probe(Cart)
    probe.take(ask())
    probe.take(EffectSettled(ACTUATORS, 1, None, (101 * SECOND_NS, 102 * SECOND_NS), "it broke"), at=103)
    spans = [span for body in probe.log for span in spans_of(open_commit(body))]
    assert spans == [span for body in probe.log for span in spans_of(open_commit(body))]
    assert [(span.name, span.error) for span in spans] == [
        ("Cart Start", ""),
        ("action Move", "it broke"),
        ("actuator Move", "it broke"),
    ]
    assert spans[0].attributes["stigmergy.events"] == ("Started",)
    assert spans[0].attributes["stigmergy.command_id"] == "a"
    ids = [span.span_id for span in spans]
    assert len(set(ids)) == len(ids)
    assert [span.parent for span in spans] == [CONTEXT.span_id.hex(), ids[0], ids[1]]
    assert [span for body in probe.log for span in spans_of(open_commit(body), [b"another"])] == []


def test_ids_of_spans_are_unique_to_their_log() -> None:
    """Two nodes of a fleet have the same shard, and one trace may be at the same position of both."""
    ids: list[str] = []
    for number in range(2):
        probe = Probe(Cart)
        probe.take(ask(number, trace=None))  # another beginning
        probe.take(ask(1, command_id="b"))
        probe.take(EffectSettled(ACTUATORS, 2, None, (1, 2)), at=103)
        ids += [span.span_id for body in probe.log for span in spans_of(open_commit(body))]
    assert len(ids) == 6
    assert len(set(ids)) == len(ids)


def test_a_snapshot_keeps_the_traces_of_what_is_owed() -> None:
    probe = Probe(Cart)
    probe.take(ask())
    tables = tables_of(probe.state)
    data = msgspec.msgpack.encode(tables)
    state = ShardState(0, probe.plans)
    load_tables(state, msgspec.msgpack.decode(data, type=SnapshotTables))
    assert len(state.traces) == 3
    assert state.traces.all() == probe.state.traces.all()
    # A timer that is set anew by an input without a trace does not carry the old one.
    assert state.traces.fire("Cart/a", "again", 1) is None
    assert probe.state.traces.fire("Cart/a", "again", 105 * SECOND_NS) is not None


def test_of_events_that_were_superseded_the_places_are_right() -> None:
    probe = Probe(Cart)
    items = [("Cart/a", encode(Placed(x=x))) for x in range(3)]
    delivery = Delivery("s", [*items, ("Cart/b", encode(Heard()))], traces=((2, CONTEXT), (3, CONTEXT)))
    commit = probe.take(delivery)
    assert len(commit.events) == 2, "of the places only the newest is kept"
    assert [note.events for note in commit.traces if isinstance(note, TracedInput)] == [(0, 1), (1, 1)]
    assert [span.attributes["stigmergy.events"] for span in spans_of(commit)] == [("Placed",), ("Heard",)]


def test_what_was_consumed_before_is_passed_over_with_its_trace() -> None:
    probe = Probe(Cart)
    items = [("Cart/a", encode(Heard(number=number))) for number in range(4)]
    probe.take(Delivery("s", items[:2], sequence=1, incarnation=1))
    marked = msgspec.structs.replace(CONTEXT, depth=9)
    again = Delivery("s", items, sequence=1, incarnation=1, traces=((1, CONTEXT), (3, marked)))
    commit = probe.take(again)
    assert [(note.depth, note.events) for note in commit.traces if isinstance(note, TracedInput)] == [(9, (1, 1))]


@pytest.mark.parametrize(("number", "why"), [(-1, "no number"), (100, "the handler failed: RuntimeError")])
def test_refused_and_failed_inputs_begin_a_trace_where_that_is_asked_for(number: int, why: str) -> None:
    quiet = Probe(Cart)
    assert quiet.take(ask(number, trace=None)).traces == []
    probe = Probe(Cart)
    probe.shard.trace_failures(True)
    commit = probe.take(ask(number, trace=None))
    (note,) = commit.traces
    assert note.trace_id == new_trace("Cart/a", "a").trace_id, "by the command's id, as one that is sampled"
    assert next(spans_of(commit)).error.startswith(why)
    failed = Probe(Cart)
    failed.shard.trace_failures(True)
    (letter,) = failed.take(Delivery("s", [("Cart/a", b"\xc1")])).traces
    assert isinstance(letter, TracedInput)
    assert failed.take(ask()).traces[0].trace_id == CONTEXT.trace_id, "one with a trace keeps it"


def test_a_tell_that_is_given_up_ends_its_span_with_the_reason() -> None:
    probe = Probe(Cart)
    probe.take(ask())
    (pending,) = [one for one in probe.state.outbox.owed() if one.sink == "shard/0"]
    commit = probe.take(EffectsSettled(pending.sink, [pending.sequence]))
    (effect,) = commit.traces
    assert isinstance(effect, TracedEffect)
    assert (effect.to, effect.name, effect.failed) == ("Cart/b", "Heard@1", "")
    assert probe.step(TellGivenUp(pending.sink, pending.sequence, "gone")).left == [], "it is over"


def test_a_later_commit_says_when_one_was_durable() -> None:
    probe = Probe(Cart)
    commit = probe.take(ask())
    durable = durable_notes(commit.previous, commit.position, commit.traces, 107 * SECOND_NS)
    later = probe.take(CommitDurable(durable), at=108)
    (span,) = spans_of(later)
    (first,) = spans_of(commit)
    assert (span.name, span.parent) == ("commit", first.span_id)
    assert (span.start_ns, span.end_ns) == (100 * SECOND_NS, 107 * SECOND_NS)
    assert span.attributes["stigmergy.position"] == commit.position
    assert durable_notes(later.previous, later.position, later.traces, 1) == (), "of that one nothing more is said"


def test_a_trace_ends_at_its_depth() -> None:
    probe = Probe(Cart)
    commit = probe.take(ask(trace=msgspec.structs.replace(CONTEXT, depth=DEPTH_MAX)))
    assert len(commit.traces) == 1
    assert len(probe.state.traces) == 0


def test_many_traces_fit_in_commits_that_can_be_written() -> None:
    """Everything is sampled, and everything comes at once."""
    probe, name = Probe(Cart), "Cart/" + "x" * 50
    state = msgspec.structs.replace(CONTEXT, state="v=" + "1" * 500)
    items = [(name, encode(Heard(number=1)))] * 1_000
    left: list[Any] = [Delivery("s", items, sequence=1, traces=tuple((place, state) for place in range(1_000)))]
    left += [ask(command_id=f"id-{number}", trace=state) for number in range(300)]
    while left:
        left = list(probe.step(*left).left)
        probe.seal()
    assert probe.agent(name).number == 1_000
    assert sum(isinstance(note, TracedInput) for note in notes(probe)) == 1_300, "each has its note"
    settled = probe.take(EffectsSettled(ACTUATORS, list(range(1, 301))))
    assert 10 < len(settled.traces) < 300, "beyond the room, effects have no span"
    assert max(len(body) for body in probe.log) < COMMIT_BYTES_MAX // 2
    assert probe.state.traces.get(ACTUATORS, 300) is None


# On the wire.


def test_contexts_are_read_as_w3c_has_them() -> None:
    context = read_context(PARENT, "rojo=1,stigmergy=7 , congo=2", 5)
    assert context == TraceContext(bytes.fromhex(PARENT[3:35]), bytes.fromhex(PARENT[36:52]), "rojo=1,congo=2", 7, 5)
    assert write_parent(context) == PARENT
    assert write_state(context) == "stigmergy=7,rojo=1,congo=2"
    assert read_context(PARENT[:-2] + "00") is UNSAMPLED
    assert read_context("cc" + PARENT[2:] + "-later") is not None, "a later version may have more"
    for wrong in (
        "",
        PARENT + "-more",
        "ff" + PARENT[2:],
        PARENT.upper(),
        PARENT.replace("4bf9", "zzzz"),
        f"00-{'0' * 32}-00f067aa0ba902b7-01",
        f"00-{PARENT[3:35]}-{'0' * 16}-01",
    ):
        assert read_context(wrong) is None, wrong
    for state in ("x" * (STATE_CHARS_MAX + 1), "a=\n", "stigmergy=many", "ü=1"):
        read = read_context(PARENT, state)
        assert read is not None, "what others wrote there must not cost the trace"
        assert (read.depth, read.state) == (0, "")
    long = TraceContext(b"t" * 16, b"s" * 8, "v=" + "1" * (STATE_CHARS_MAX - 2), 12)
    assert write_state(long) == "stigmergy=12", "ours is kept, the rest has no room"


@given(st.text(), st.text())
def test_nothing_that_somebody_sends_raises(parent: str, state: str) -> None:
    read_context(parent, state)
    read_context(PARENT, state)


def test_contexts_of_several_items() -> None:
    traces = ((0, CONTEXT), (4, CONTEXT))
    sent = write_traces(traces)
    came = read_traces([*sent, (9, PARENT, ""), (-1, PARENT, ""), (2, "none", ""), (3, PARENT[:-2] + "00", "")], 5, 8)
    assert came == tuple((place, msgspec.structs.replace(one, came_ns=8)) for place, one in traces)
