"""Batches of records for compiled agents: what is taken, what is passed over, what fails, and what goes on."""

from __future__ import annotations

import math
import struct
from typing import Any

import pytest
from msgspec import msgpack

from stigmergy.agents.codec import encode
from stigmergy.agents.columns import NOT_KEPT
from stigmergy.agents.messages import SECOND_NS, Message
from stigmergy.agents.supervision import AgentsEnrolled, ColumnsDeclared, InputFailed
from stigmergy.base.errors import Malformed, Overloaded, SequenceGap, StaleEpoch, StaleMapping, UnknownKind
from stigmergy.shard.commit import COMMIT_BYTES_MAX, column_cause
from stigmergy.shard.inputs import ActionsConfirmed, EnrollAgents, LetterRetried, ResumeAgent
from stigmergy.shard.snapshot import digest_of_state
from stigmergy.shard.state import Limits
from tests.agents.meters import (
    ABROAD,
    FAIL,
    FLOOD,
    LATE,
    MANY,
    NEVER,
    NOTHING,
    REFUSE,
    TWO,
    Counted,
    Glimpsed,
    Measured,
    Meters,
    Mode,
    Moved,
    Noted,
    Poked,
    SetLimit,
)
from tests.shard.shards import events_of, observed

SMALL = 256 * 1024
"""So far a commit is filled with records here."""


def facts(probe: Meters, commit: Any) -> list[str]:
    return [type(event).__name__ for event in events_of(probe, commit)]


def test_a_batch_is_taken_as_it_is() -> None:
    probe = Meters("a", "b")
    batch = probe.batch(
        ("a", Counted(by=2)), ("b", Measured(level=5.0, mode=Mode.WILD)), ("a", Counted(by=3)), sequence=1
    )
    stepped = probe.step(batch, at=200.0)
    assert (stepped.left, stepped.untaken, stepped.wait_ns) == ([], [], 0)
    ready = probe.seal()
    (run,) = ready.commit.columns
    assert (ready.commit.format, ready.sealed.events) == (2, 3)
    assert (run.kind, run.source, run.count, run.time_ns) == ("Meter", "radio", 3, 200 * SECOND_NS)
    assert (run.records, run.layout) == (batch.records, probe.table.layout_digest)
    assert (run.templates, run.first, run.actions_count, run.actions) == (b"", 0, 0, b"")
    assert ready.commit.events == []
    assert [(moved.source, moved.sequence) for moved in ready.commit.marks] == [("radio", 3)]
    meter = probe.meter("b")
    assert (probe.meter("a").total, meter.level, meter.mode, meter.at) == (5, 5.0, Mode.WILD, 200.0)
    assert probe.shard.counters.inputs == 3


def test_a_log_says_once_how_its_records_are_read() -> None:
    probe = Meters()
    commit = probe.take(EnrollAgents("Meter", ["a"]))
    assert facts(probe, commit) == ["ColumnsDeclared", "AgentsEnrolled"]
    declared = events_of(probe, commit)[0]
    assert isinstance(declared, ColumnsDeclared)
    assert (declared.kind, declared.layout) == ("Meter", encode(probe.table.layout))
    assert facts(probe, probe.take(probe.batch(("a", Counted(by=1))))) == []
    probe.restart()
    assert facts(probe, probe.take(probe.batch(("a", Counted(by=1))))) == [], "the log has it"
    fresh = Meters()
    fresh.step(fresh.batch_of(b""))
    assert fresh.shard.seal() is None
    first = fresh.observe("Meter/a", Counted(by=1))
    assert facts(fresh, first) == ["AgentsEnrolled", "ColumnsDeclared"]


# What consumes nothing.


@pytest.mark.parametrize(
    ("changed", "error", "text"),
    [
        ({"kind": "Nobody"}, StaleMapping, "'Nobody' is no compiled kind of this fleet; there are Meter, Watched"),
        ({"kind": "Board"}, StaleMapping, "'Board' is no compiled kind"),
        ({"layout": b"x" * 16}, StaleMapping, "records of Meter in layout 7878"),
        ({"generation": 2}, StaleMapping, "for generation 2 of another roster: request the roster again"),
        ({"generation": -1}, StaleMapping, "for generation -1"),
        ({"check": b"y" * 8}, StaleMapping, "for generation 1 of another roster"),
        ({"count": 2}, Malformed, "bytes for 2 records of"),
        ({"count": 0}, Malformed, "send whole ones"),
        ({"sequence": 2}, SequenceGap, "expected sequence 1, got 2"),
    ],
)
def test_what_is_not_for_this_table_is_not_taken(changed: dict[str, Any], error: type[Exception], text: str) -> None:
    probe = Meters("a")
    before = digest_of_state(probe.state)
    batch = probe.batch(("a", Counted(by=1)), **{"sequence": 1, **changed})
    stepped = probe.step(batch)
    ((untaken, why),) = stepped.untaken
    assert untaken is batch
    assert isinstance(why, error)
    assert text in str(why)
    assert (stepped.left, probe.shard.seal()) == ([], None)
    assert digest_of_state(probe.state) == before
    assert probe.shard.counters.inputs == 0


def test_a_fleet_without_compiled_kinds_says_so() -> None:
    probe = Meters(plans={})
    batch = Meters("a").batch(("a", Counted(by=1)))
    ((_, why),) = probe.step(batch).untaken
    assert "there are none" in str(why)


def test_a_sender_may_know_an_older_roster() -> None:
    probe = Meters("a")
    old = probe.batch(("a", Counted(by=1)), (1, Counted(by=2)))
    probe.take(EnrollAgents("Meter", ["b"]))
    commit = probe.take(old)
    assert (probe.meter("a").total, probe.meter("b").total) == (1, 0)
    assert facts(probe, commit) == ["InputFailed"]
    assert probe.letters() == [
        "PeerError: Meter/b: the roster of the batch has no such agent; enrol it and send this again"
    ]


# Marks.


def test_what_is_repeated_is_passed_over() -> None:
    probe = Meters("a")
    items: list[tuple[str, Message]] = [("a", Counted(by=1)), ("a", Counted(by=10)), ("a", Counted(by=100))]
    probe.take(probe.batch(*items[:2], sequence=1))
    probe.step(probe.batch(*items[:2], sequence=1))
    assert (probe.shard.seal(), probe.shard.counters.duplicates) == (None, 2)
    probe.take(probe.batch(*items[1:], sequence=2))
    assert (probe.meter("a").total, probe.shard.counters.duplicates) == (111, 3)
    probe.step(probe.batch(*items[:1], sequence=1), probe.batch(*items, sequence=1))
    assert (probe.shard.seal(), probe.shard.counters.duplicates) == (None, 7)
    assert probe.state.marks.consumed("radio", 0) == 3


def test_a_new_owner_who_repeats_is_an_owner() -> None:
    probe = Meters("a")
    probe.take(probe.batch(("a", Counted(by=1)), sequence=1, epoch=1))
    commit = probe.take(probe.batch(("a", Counted(by=1)), sequence=1, epoch=2))
    assert [(moved.epoch, moved.sequence) for moved in commit.marks] == [(2, 1)]
    ((_, error),) = probe.step(probe.batch(("a", Counted(by=1)), sequence=2, epoch=1)).untaken
    assert isinstance(error, StaleEpoch)


def test_records_and_messages_of_one_source_share_its_numbers() -> None:
    probe = Meters("a")
    probe.take(
        probe.batch(("a", Counted(by=1)), sequence=1), observed("Meter/a", Counted(by=2), source="radio", sequence=2)
    )
    assert (probe.meter("a").total, probe.state.marks.consumed("radio", 0)) == (3, 2)


def test_records_without_a_sequence_are_taken_as_they_come() -> None:
    probe = Meters("a")
    commits = [probe.take(probe.batch(("a", Counted(by=1)))) for _ in range(2)]
    assert [commit.marks for commit in commits] == [[], []]
    assert probe.meter("a").total == 2


def test_what_does_not_fit_is_continued_in_the_next_commit() -> None:
    probe = Meters("a", "b", limits=Limits(columns_bytes_max=SMALL))
    width = probe.table.layout.record_bytes
    count = 2 * SMALL // width
    records = b"".join(probe.record("ab"[number % 2], Counted(by=number)) for number in range(count))
    inputs: list[Any] = [probe.batch_of(records, sequence=1), observed("Board/main")]
    taken = []
    while inputs:
        stepped = probe.step(*inputs)
        inputs = stepped.left
        commit = probe.shard.seal()
        assert commit is not None
        probe.log.append(commit.sealed.body)
        assert len(commit.sealed.body) < 512 * 1024
        taken.append(commit.sealed.events)
        assert [moved.sequence for moved in commit.commit.marks] == [sum(taken)]
        if inputs:
            rest: Any = inputs[0]
            assert stepped.wait_ns == 0
            assert (rest.start, rest.sequence) == (sum(taken), sum(taken) + 1)
            assert rest.length == count - sum(taken)
    assert (sum(taken), len(taken)) == (count, 3)
    assert probe.meter("a").total == sum(range(0, count, 2))
    assert digest_of_state(probe.replayed()) == digest_of_state(probe.state)


def test_without_a_sequence_the_rest_has_none_either() -> None:
    probe = Meters("a", limits=Limits(columns_bytes_max=SMALL))
    width = probe.table.layout.record_bytes
    records = probe.record("a", Counted(by=1)) * (SMALL // width + 10)
    (rest,) = probe.step(probe.batch_of(records)).left
    assert (rest.sequence, rest.start > 0) == (0, True)  # type: ignore[union-attr]
    full = probe.step(rest).left
    assert full == [rest], "a full draft takes nothing"
    probe.seal()
    assert probe.step(rest).left == []


# What fails.


def test_a_fault_in_the_middle_harms_nobody_else() -> None:
    probe = Meters("a", "b")
    batch = probe.batch(
        ("a", Counted(by=1)), ("a", Counted(by=13)), ("b", Counted(by=5)), ("a", Counted(by=4)), sequence=1
    )
    commit = probe.take(batch)
    assert (probe.meter("a").total, probe.meter("b").total) == (5, 5)
    (failed,) = events_of(probe, commit)
    assert isinstance(failed, InputFailed)
    assert commit.events[0][0] == "Meter/a"
    assert (failed.to, failed.source, failed.error) == ("Meter/a", "radio", "ValueError: thirteen")
    assert msgpack.decode(failed.input) == {"type": "Counted@1", "by": 13, "ok": False, "code": b"\0\0\0\0"}
    assert (commit.marks[0].sequence, probe.shard.counters.failed, probe.shard.counters.inputs) == (4, 1, 4)
    assert [run.count for run in commit.columns] == [3], "small runs are joined"
    letter = probe.state.letters.all()[0].letter
    again = probe.take(LetterRetried(letter))
    assert facts(probe, again) == ["LetterTaken", "InputFailed", "AgentStopped"]


def test_a_flood_of_records_that_fail_fills_many_commits_and_none_too_much() -> None:
    """Dead letters are words, not records: a commit of nothing else has the room of an ordinary one."""
    probe = Meters("a", "b")
    count = 3_000
    nobody = probe.table.check_of(0)
    assert nobody is not None
    inputs: list[Any] = [
        probe.batch_of(probe.record("b", Counted(by=1)) * count, sequence=1, generation=0, check=nobody[1])
    ]
    sizes = []
    while inputs:
        inputs = probe.step(*inputs).left
        commit = probe.shard.seal()
        assert commit is not None
        sizes.append(len(commit.sealed.body))
    assert len(sizes) > 1
    assert max(sizes) <= COMMIT_BYTES_MAX
    assert (probe.shard.counters.failed, probe.meter("b").total) == (count, 0)


def test_supervision_stops_a_compiled_agent_and_its_records_wait() -> None:
    probe = Meters("a", "b")
    bad, good = ("a", Counted(by=13)), ("a", Counted(by=1))
    probe.step(probe.batch(bad, good, bad, good, ("b", Counted(by=1)), good, sequence=1))
    ready = probe.seal()
    assert (ready.stopped, probe.meter("a").total, probe.meter("b").total) == (["Meter/a"], 1, 1)
    assert facts(probe, ready.commit) == ["InputFailed", "InputFailed", "AgentStopped", "InputFailed", "InputFailed"]
    assert [address for address, _ in ready.commit.events] == ["Meter/a", "Meter/a", "Meter/a", "", ""]
    assert ready.commit.marks[0].sequence == 6
    assert probe.letters()[2].startswith(
        "PeerError: Meter/a is stopped: 2 failed inputs within 60 s, the last: ValueError"
    )
    assert probe.letters()[2].endswith("thirteen; resume it, then send or retry this")
    assert not probe.ask("Meter/a", SetLimit(limit=3.0))
    probe.observe("Meter/a", Counted(by=1))
    assert probe.meter("a").total == 1
    letters = [letter.letter for letter in probe.state.letters.all()]
    probe.take(ResumeAgent("Meter/a", "ada"), LetterRetried(letters[2]), probe.batch(good))
    assert probe.meter("a").total == 3


@pytest.mark.parametrize("how", [FAIL, LATE, NEVER])
def test_a_handler_that_fails_leaves_the_agent_as_it_was(how: int) -> None:
    probe = Meters("a")
    commit = probe.take(probe.batch(("a", Poked(how=how)), ("a", Counted(by=1))))
    assert probe.meter("a").total == 1
    assert facts(probe, commit) == ["InputFailed"]
    assert (commit.owed, [run.actions_count for run in commit.columns]) == ([], [0])


def test_an_event_cannot_be_refused() -> None:
    probe = Meters("a")
    probe.observe("Meter/a", Poked(how=REFUSE))
    assert probe.letters() == [
        "TypeError: an observed event cannot be refused (an event cannot be refused); yield nothing to filter it"
    ]


def spoilt(record: bytes, at: int, value: bytes) -> bytes:
    return record[:at] + value + record[at + len(value) :]


def test_records_that_no_agent_can_take() -> None:
    probe = Meters("a")
    layout = probe.table.layout
    measured, counted = probe.record("a", Measured(level=1.0)), probe.record("a", Counted(by=1))
    mode, ok = layout.forms[0].columns[1].offset, layout.forms[1].columns[1].offset
    records = [
        spoilt(counted, 0, b"\x07"),
        spoilt(counted, 4, b"\xff\xff"),
        spoilt(counted, 4, bytes([layout.forms.index(next(form for form in layout.forms if form.is_command)), 0])),
        probe.record("a", Noted(by=1)),
        spoilt(counted, 6, b"\x01"),
        spoilt(counted, ok, b"\x02"),
        spoilt(measured, mode, b"\x02"),
        spoilt(measured, 8, struct.pack("<d", 1000.5)),
        spoilt(measured, 8, struct.pack("<d", math.nan)),
    ]
    commit = probe.take(probe.batch_of(b"".join([*records, counted]), sequence=1))
    assert probe.meter("a").total == 1
    assert [address for address, _ in commit.events] == [""] * len(records), "no handler was reached"
    assert probe.state.stopped == {}
    assert probe.letters() == [
        "PeerError: Meter/#7: the roster of the batch has no such agent; enrol it and send this again",
        "Malformed: a record of no form that events have; commands are sent one by one",
        "Malformed: a record of no form that events have; commands are sent one by one",
        "Malformed: a record of no form that events have; commands are sent one by one",
        "Malformed: Counted@1: a spare byte is in use",
        "Malformed: Counted@1.ok: 02 is no boolean",
        "Malformed: Measured@1: member 2 of an enum that has 2; restore from a copy",
        "Malformed: Measured@1: Expected `float` <= 1000.0 - at `$.level`",
        "Malformed: Measured@1: Expected `float` >= 0.0 - at `$.level`",
    ]
    inputs = [letter.input for letter in probe.state.letters.all()]
    assert [msgpack.decode(body)["type"] for body in (inputs[0], inputs[3], inputs[8])] == [
        "Counted@1",
        "Noted@1",
        "Measured@1",
    ]
    assert (inputs[1], inputs[6]) == (records[1], records[6]), "what no message can be made of is kept as it came"
    assert commit.marks[0].sequence == len(records) + 1


# What it causes.


def test_actions_are_blocks_in_order() -> None:
    probe = Meters("a", "b")
    high = Measured(level=400.0, mode=Mode.WILD)
    probe.step(
        probe.batch(("a", Counted(by=1)), ("a", high), ("b", high)),
        probe.batch(("b", high), source="other"),
        at=150.0,
    )
    ready = probe.seal()
    assert ready.commit.owed == []
    assert probe.actions(ready.commit) == [("a", 1, "Alarm@1"), ("b", 2, "Alarm@1"), ("b", 0, "Alarm@1")]
    assert [(run.first, run.actions_count) for run in ready.commit.columns] == [(1, 2), (3, 1)]
    assert [(block.first, block.index, block.position) for block in ready.blocks] == [(1, 0, 2), (3, 2, 2)]
    assert probe.state.blocks.count == 3
    assert ready.blocks == list(probe.state.blocks.owed())
    later = probe.take(probe.batch(("a", high)))
    assert later.columns[0].first == 4


def test_actions_wait_for_nobody_and_readings_for_company() -> None:
    probe = Meters("a")
    probe.state.tables["Meter"]._wait_ns = 5  # type: ignore[attr-defined]  # of a kind that has no urgent event
    assert probe.step(probe.batch(("a", Measured(level=1.0)))).wait_ns == 5
    assert probe.step(probe.batch(("a", Measured(level=400.0)))).wait_ns == 0


def test_an_action_without_its_event() -> None:
    probe = Meters("a")
    commit = probe.take(probe.batch(("a", Glimpsed(level=2.0)), sequence=1))
    (run,) = commit.columns
    assert (run.count, run.records, run.actions_count) == (0, b"", 1)
    assert probe.actions(commit) == [("a", NOT_KEPT, "Beep@1")]
    mixed = probe.take(probe.batch(("a", Glimpsed(level=2.0)), ("a", Counted(by=1)), ("a", Glimpsed(level=200.0))))
    assert [cause for _, cause, _ in probe.actions(mixed)] == [NOT_KEPT, NOT_KEPT]
    assert [(owed.sink, owed.cause) for owed in mixed.owed] == [("publish", -1)]
    nothing = probe.take(probe.batch(("a", Glimpsed(level=0.0)), sequence=2))
    assert (nothing.format, nothing.columns, len(nothing.marks)) == (1, [], 1)


def test_ordinary_effects_point_at_their_events() -> None:
    probe = Meters("a", "b", batched=())
    commit = probe.take(
        probe.batch(("a", Counted(by=1)), ("a", Measured(level=600.0))),
        probe.batch(("b", Measured(level=950.0)), source="other"),
    )
    assert [(owed.agent, owed.sink, owed.cause) for owed in commit.owed] == [
        ("Meter/a", "actuators", column_cause(1)),
        ("Meter/a", "shard/0", column_cause(1)),
        ("Meter/b", "actuators", column_cause(2)),
        ("Meter/b", "shard/0", column_cause(2)),
        ("Meter/b", "timers", column_cause(2)),
    ]
    assert (column_cause(0), column_cause(2)) == (-2, -4)
    assert msgpack.decode(commit.owed[0].body) == {
        "type": "Alarm@1",
        "level": 600.0,
        "mode": "calm",
        "text": "a at 600.0 in Meter/a",
    }


def test_a_decision_keeps_what_it_decides() -> None:
    probe = Meters("a")
    commit = probe.take(
        probe.batch(("a", Poked(how=TWO)), ("a", Poked(how=NOTHING)), ("a", Poked(how=MANY)), sequence=1)
    )
    (run,) = commit.columns
    assert (run.count, probe.meter("a").total, commit.marks[0].sequence) == (102, 3, 3)
    assert run.records[: 2 * probe.table.layout.record_bytes] == b"".join(
        probe.record("a", Moved(by=n)) for n in (1, 2)
    )
    filtered = probe.take(probe.batch(("a", Poked(how=NOTHING)), sequence=4))
    assert filtered.columns == []


def test_an_effect_that_cannot_be_sent_is_the_fault_of_its_input() -> None:
    probe = Meters("a")
    commit = probe.take(probe.batch(("a", Poked(how=ABROAD)), ("a", Counted(by=1)), sequence=1))
    assert probe.meter("a").total == 1
    assert facts(probe, commit) == ["InputFailed"]
    (failed,) = events_of(probe, commit)
    assert failed.error.startswith("UnknownKind: 'Nobody/x' is no address of an agent here")
    assert msgpack.decode(failed.input) == {"type": "Poked@1", "how": ABROAD}
    assert (commit.owed, probe.actions(commit), commit.marks[0].sequence) == ([], [], 2)


def test_too_much_from_one_record_is_its_fault() -> None:
    probe = Meters("a", batched=())
    commit = probe.take(probe.batch(("a", Poked(how=FLOOD)), ("a", Counted(by=1))))
    assert probe.letters() == ["TooLarge: more than 81920 bytes of events and effects from one input"]
    assert (probe.meter("a").total, commit.owed) == (1, [])


# Confirmations.


def test_actions_are_confirmed_up_to_a_number() -> None:
    probe = Meters("a")
    high = ("a", Measured(level=400.0))
    probe.take(probe.batch(high, high, high))
    stepped = probe.step(ActionsConfirmed("Meter", 2))
    assert stepped.wait_ns == SECOND_NS
    commit = probe.seal().commit
    assert (commit.format, commit.confirmed, commit.columns, commit.events) == (2, [("Meter", 2)], [], [])
    assert (probe.state.blocks.cursor("Meter"), probe.state.blocks.count) == (2, 3)
    probe.step(ActionsConfirmed("Meter", 1), ActionsConfirmed("Meter", 2), ActionsConfirmed("Nobody", 1))
    assert probe.shard.seal() is None
    probe.step(ActionsConfirmed("Meter", 1), ActionsConfirmed("Meter", 3))
    assert probe.seal().commit.confirmed == [("Meter", 3)]
    assert probe.state.blocks.count == 0
    probe.take(probe.batch(high, high))
    probe.step(ActionsConfirmed("Meter", 4), ActionsConfirmed("Meter", 5))
    assert probe.seal().commit.confirmed == [("Meter", 5)], "one number says it"


def test_nobody_has_done_what_the_open_commit_will_owe() -> None:
    probe = Meters("a")
    high = ("a", Measured(level=400.0))
    probe.take(probe.batch(high))
    probe.step(probe.batch(high), ActionsConfirmed("Meter", 99), ActionsConfirmed("Meter", 99))
    assert probe.seal().commit.confirmed == [("Meter", 1)]
    assert [block.first for block in probe.state.blocks.owed()] == [2]
    probe.take(ActionsConfirmed("Meter", 99))
    assert probe.state.blocks.sent() == [("Meter", 2, 2)]


# Enrolment.


def test_agents_are_enrolled_by_hand() -> None:
    probe = Meters()
    probe.step(EnrollAgents("Meter", ["b", "a", "b"]))
    ready = probe.seal()
    assert (ready.enrolled, probe.state.enrolled) == ({"Meter": 2, "Watched": 0}, {}), "the host says what is durable"
    (_, enrolled) = events_of(probe, ready.commit)
    assert enrolled == AgentsEnrolled(kind="Meter", first=0, names=("b", "a"))
    commit = probe.take(EnrollAgents("Meter", ["a", "c"]))
    assert events_of(probe, commit) == [AgentsEnrolled(kind="Meter", first=2, names=("c",))]
    assert [probe.table.find(name) for name in ("b", "a", "c", "d")] == [0, 1, 2, -1]
    assert (probe.table.generation, probe.state.agents_count, probe.state.has_agent("Meter/c")) == (2, 3, True)
    probe.step(EnrollAgents("Meter", ["a"]), EnrollAgents("Meter", []))
    assert probe.shard.seal() is None


@pytest.mark.parametrize(
    ("kind", "names", "error", "text"),
    [
        ("Board", ["x"], StaleMapping, "'Board' is no compiled kind of this fleet"),
        ("Nobody", ["x"], StaleMapping, "'Nobody' is no compiled kind of this fleet"),
        ("Meter", ["good", "no name"], UnknownKind, "'Meter/no name' is no address of an agent here"),
        ("Meter", [""], UnknownKind, "'Meter/' is no address"),
        ("Meter", [f"{n:0128}" for n in range(253)], Malformed, "253 names in one enrolment; give 32768 bytes"),
        ("Meter", ["1", "2", "3", "4"], Overloaded, "Meter: this shard has 4 agents already; raise agents_count_max"),
    ],
)
def test_what_is_not_enrolled(kind: str, names: list[str], error: type[Exception], text: str) -> None:
    probe = Meters("a", limits=Limits(agents_count_max=4 if error is Overloaded else 1_000))
    enroll = EnrollAgents(kind, names)
    ((untaken, why),) = probe.step(enroll).untaken
    assert untaken is enroll
    assert isinstance(why, error)
    assert text in str(why)
    assert (probe.shard.seal(), len(probe.table)) == (None, 1), "none of them"


def test_a_full_enrolment() -> None:
    probe = Meters()
    names = [f"{n:0128}" for n in range(252)]
    probe.take(EnrollAgents("Meter", names))
    assert len(probe.table) == 252
