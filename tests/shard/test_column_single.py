"""Single messages for compiled agents: commands, timers, tells and first inputs go the same ways as ever."""

from __future__ import annotations

import math
from typing import Any

import pytest
from msgspec import msgpack

from stigmergy.agents.codec import encode
from stigmergy.agents.effects import ActionDone
from stigmergy.agents.messages import SECOND_NS
from stigmergy.shard.inputs import (
    Accepted,
    Ask,
    Delivery,
    EffectSettled,
    EnrollAgents,
    LetterDropped,
    Refused,
    SafeActionOut,
    TimerDue,
)
from stigmergy.shard.state import Limits
from tests.agents.meters import (
    ABROAD,
    FAIL,
    NOTHING,
    TWO,
    Counted,
    Glimpsed,
    LimitSet,
    Measured,
    Meters,
    Poked,
    Seen,
    SetLimit,
    Silent,
)
from tests.shard.shards import observed
from tests.shard.test_column_dispatch import facts


def kept(probe: Meters, commit: Any) -> list[tuple[str, str]]:
    """The events of compiled agents in a commit: agent and tag."""
    layout, width = probe.table.layout, probe.table.layout.record_bytes
    return [
        (probe.table.name(int.from_bytes(run.records[at : at + 4], "little")), layout.forms[run.records[at + 4]].tag)
        for run in commit.columns
        for at in range(0, len(run.records), width)
    ]


def test_the_first_message_enrols_its_agent() -> None:
    probe = Meters()
    commit = probe.take(observed("Meter/a", Counted(by=2), Counted(by=3), source="radio", sequence=1))
    assert facts(probe, commit) == ["AgentsEnrolled", "ColumnsDeclared"]
    assert kept(probe, commit) == [("a", "Counted@1"), ("a", "Counted@1")]
    assert [(run.source, run.count) for run in commit.columns] == [("radio", 2)]
    assert (probe.meter("a").total, probe.table.generation, probe.state.agents) == (5, 1, {})
    assert facts(probe, probe.observe("Meter/b", Counted(by=1))) == ["AgentsEnrolled"]


def test_what_keeps_nothing_enrols_nobody() -> None:
    probe = Meters()
    probe.step(observed("Meter/a", Poked(how=NOTHING), source="radio", sequence=1))
    assert probe.seal().commit.columns == []
    assert not probe.ask("Meter/a", SetLimit(limit=-1.0))
    assert (len(probe.table), probe.state.has_agent("Meter/a")) == (0, False)


def test_effects_of_who_keeps_nothing() -> None:
    probe = Meters(batched=())
    commit = probe.observe("Meter/a", Glimpsed(level=200.0))
    assert [(owed.agent, owed.sink, owed.cause) for owed in commit.owed] == [
        ("Meter/a", "actuators", -1),
        ("Meter/a", "publish", -1),
    ]
    assert (len(probe.table), commit.format) == (0, 1)
    batched = Meters()
    commit = batched.observe("Meter/a", Glimpsed(level=2.0))
    assert facts(batched, commit) == ["AgentsEnrolled", "ColumnsDeclared"], "an action names its agent by number"
    assert [run.actions_count for run in commit.columns] == [1]


def test_commands_are_answered() -> None:
    probe = Meters()
    asked = ("Meter/a", "c-1", encode(SetLimit(limit=7.0)))
    probe.step(Ask(*asked, source="desk"))
    ready = probe.seal()
    assert ready.verdicts == [(asked, Accepted(1))]
    assert kept(probe, ready.commit) == [("a", "LimitSet@1")]
    assert [run.source for run in ready.commit.columns] == ["desk"]
    assert probe.meter("a").limit == 7.0
    assert probe.step(Ask(*asked)).repeats == [(asked, Accepted(1), 1)]
    ((_, verdict, _),) = probe.step(Ask("Meter/a", "c-1", encode(SetLimit(limit=9.0)))).repeats
    assert verdict == Refused("another command had the id 'c-1'; send this one with an id of its own")
    assert (probe.shard.seal(), probe.meter("a").limit) == (None, 7.0)


def test_refusals_are_kept() -> None:
    probe = Meters("a")
    assert probe.ask("Meter/a", SetLimit(limit=-2.0)) == Refused("a limit of -2.0")
    again = probe.step(Ask("Meter/a", "ask-1", encode(SetLimit(limit=-2.0)))).repeats
    assert again[0][1] == Refused("a limit of -2.0")
    probe.restart()
    again = probe.step(Ask("Meter/a", "ask-1", encode(SetLimit(limit=-2.0)))).repeats
    assert again[0][1] == Refused("a limit of -2.0")
    assert probe.meter("a").limit == 100.0


def test_a_command_that_fails_is_a_dead_letter() -> None:
    probe = Meters()
    verdict = probe.ask("Meter/a", SetLimit(limit=0.5))
    assert verdict == Refused("the handler failed: ZeroDivisionError: half; the command is in the dead letters")
    assert probe.state.has_agent("Meter/a"), "an agent on which something failed is there from then on"
    probe.ask("Meter/a", SetLimit(limit=0.5))
    assert list(probe.state.stopped) == ["Meter/a"]
    refused = probe.ask("Meter/a", SetLimit(limit=1.0))
    assert refused.reason.startswith("Meter/a is stopped: 2 failed inputs")


def test_a_command_told_without_an_id() -> None:
    probe = Meters()
    commit = probe.observe("Meter/a", SetLimit(limit=3.0))
    assert [(answer.command_id, answer.refused) for answer in commit.answers] == [("", None)]
    assert probe.meter("a").limit == 3.0


def test_what_is_no_command_is_not_answered_as_one() -> None:
    probe = Meters("a")
    verdict = probe.ask("Meter/a", LimitSet(limit=1.0))
    assert "LimitSet is an event, and only commands are answered" in verdict.reason


def test_a_limit_that_is_no_number() -> None:
    """The bounds of `Measured` let no NaN pass; what has no bounds may have one, and always the same."""
    probe = Meters("a")
    probe.observe("Meter/a", Measured(level=math.nan))
    assert probe.letters()[0].startswith("Malformed: Measured@1 for Meter does not decode")
    probe.observe("Meter/a", LimitSet(limit=-math.nan))
    assert math.isnan(probe.meter("a").limit)


def test_what_has_no_place_in_a_record_is_the_senders_fault() -> None:
    probe = Meters("a")
    for _ in range(3):
        probe.observe("Meter/a", Counted(by=2**63))
    body = msgpack.encode({"type": "SetLimit@1", "limit": 1})
    assert probe.step(Ask("Meter/a", "c", body)).untaken == []
    probe.seal()
    assert probe.meter("a").limit == 1.0
    assert probe.letters()[0].startswith("Malformed: Counted@1.by: 9223372036854775808 does not fit into i8")
    assert probe.state.stopped == {}, "no sender can stop an agent"


def test_a_table_that_does_not_want_a_record_after_all() -> None:
    """As with a value that decodes and that its form does not allow: no handler was reached."""
    probe = Meters("a")
    table: Any = probe.table
    table._stopped[0] = None  # unknown to the shard
    commit = probe.observe("Meter/a", Counted(by=1))
    assert [address for address, _ in commit.events] == [""]
    assert probe.letters() == ["PeerError: Meter/a is stopped: ; resume it, then send or retry this"]
    assert probe.ask("Meter/a", SetLimit(limit=1.0)).reason == (
        "Meter/a is stopped: ; resume it, then send or retry this"
    )
    table._stopped.clear()
    table._engine.inputs = 0
    assert "a record of no form that events have" in probe.ask("Meter/a", SetLimit(limit=1.0)).reason


def test_a_bad_value_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    probe = Meters("a")
    record = probe.record("a", Counted(by=1))
    monkeypatch.setattr(probe.table, "record_of", lambda agent, message: record[:-1] + b"\x01")
    probe.observe("Meter/a", Counted(by=1), Counted(by=1), Counted(by=1))
    assert probe.letters() == ["Malformed: Counted@1: a spare byte is in use"] * 3
    assert probe.state.stopped == {}


def test_no_more_agents_than_there_may_be() -> None:
    probe = Meters("a", limits=Limits(agents_count_max=2))
    probe.observe("Board/main", Seen(level=1.0))
    assert "Overloaded: Meter/b: this shard has 2 agents already" in observed_failing(probe, "Meter/b", Counted(by=1))
    refused = probe.ask("Meter/c", SetLimit(limit=1.0))
    assert "this shard has 2 agents already; raise agents_count_max or add shards" in refused.reason
    assert len(probe.table) == 1


def observed_failing(probe: Meters, address: str, message: Any) -> str:
    probe.observe(address, message)
    return probe.letters()[-1]


@pytest.mark.parametrize("address", ["Meter/no name", "Meter/", "Meter/ü", f"Meter/{'x' * 129}"])
def test_names_that_are_none(address: str) -> None:
    probe = Meters()
    assert observed_failing(probe, address, Counted(by=1)).startswith("UnknownKind")
    assert len(probe.table) == 0


# Effects.


def test_a_timer_comes_back() -> None:
    probe = Meters("a")
    commit = probe.take(probe.batch(("a", Measured(level=950.0))), at=100.0)
    assert [owed.sink for owed in commit.owed] == ["shard/0", "timers"]
    (timer,) = probe.state.timers.all()
    assert (timer.agent, timer.name, timer.due_ns) == ("Meter/a", "check", 110 * SECOND_NS)
    commit = probe.take(TimerDue("Meter/a", "check", timer.due_ns), at=110.0)
    assert (kept(probe, commit), commit.fired) == ([("a", "stigmergy.Woken@1")], [("Meter/a", "check", 0)])
    (owed,) = commit.owed
    assert (owed.sink, owed.cause) == ("publish", -2)
    assert msgpack.decode(msgpack.decode(owed.body)[1]) == {"type": "stigmergy.Woken@1", "name": "check"}
    assert [run.source for run in commit.columns] == ["shard/0"]
    probe.step(TimerDue("Meter/a", "check", timer.due_ns))
    assert (probe.shard.seal(), probe.state.timers.all()) == (None, [])


def test_compiled_and_interpreted_agents_talk() -> None:
    probe = Meters("a", "b")
    commit = probe.take(probe.batch(("b", Measured(level=850.0))))
    (told,) = [owed for owed in commit.owed if owed.sink == "shard/0"]
    item = msgpack.decode(told.body)
    commit = probe.take(Delivery("shard/0", [(item[0], item[1])], sequence=told.sequence))
    assert probe.agent("Board/main").levels == (850.0,)
    assert [settled.sequences for settled in commit.settled] == [[1]]
    (back,) = commit.owed
    address, body = msgpack.decode(back.body)
    assert (address, back.cause, back.sequence) == ("Meter/a", 0, 2)
    probe.take(Delivery("shard/0", [(address, body)], sequence=2))
    assert probe.meter("a").total == 1_000
    assert list(probe.state.outbox.owed()) == []


def test_confirmations_that_nobody_waits_for() -> None:
    probe = Meters("a", batched=())
    probe.take(probe.batch(("a", Measured(level=400.0))))
    done = encode(ActionDone(action="Alarm", key="0.0.2.0"))
    commit = probe.take(EffectSettled("actuators", 1, done))
    assert ([settled.sink for settled in commit.settled], commit.events, commit.columns) == (["actuators"], [], [])


def test_an_effect_of_a_single_message_that_cannot_be_sent() -> None:
    probe = Meters()
    commit = probe.observe("Meter/a", Poked(how=ABROAD))
    assert facts(probe, commit) == ["AgentsEnrolled", "InputFailed"]
    assert (probe.meter("a").total, commit.owed, commit.columns) == (0, [], [])


def test_facts_about_compiled_agents_are_in_their_log() -> None:
    probe = Meters("a")
    commit = probe.take(SafeActionOut("Meter/a", "Hush", "silence"), SafeActionOut("Meter/z", "Hush", "silence"))
    assert [address for address, _ in commit.events] == ["Meter/a", ""]
    probe.observe("Meter/a", Poked(how=FAIL))
    letter = probe.state.letters.all()[0].letter
    commit = probe.take(LetterDropped(letter))
    assert [address for address, _ in commit.events] == ["Meter/a"]
    assert facts(probe, commit) == ["LetterTaken"]


def test_several_messages_of_one_delivery_share_a_run() -> None:
    probe = Meters()
    items = [(f"Meter/{name}", encode(Counted(by=1))) for name in "abcabc"]
    commit = probe.take(Delivery("radio", [*items, ("Board/main", encode(Seen(level=1.0)))], sequence=1))
    assert [run.count for run in commit.columns] == [6]
    assert commit.marks[0].sequence == 7
    others = [observed("Meter/a", Counted(by=1)), observed("Meter/a", Counted(by=1), source="t")]
    assert [run.count for run in probe.take(*others).columns] == [1, 1]
    assert len(probe.take(observed("Meter/a", Poked(how=TWO)), observed("Meter/a", Poked(how=TWO))).columns) == 1


# Staleness.


def watched(probe: Meters, *messages: Any) -> Any:
    table = probe.state.tables["Watched"]
    records = b"".join(table.record_of(0, message) for message in messages)
    known = table.check_of(table.generation)
    assert known is not None
    return probe.batch_of(
        records,
        kind="Watched",
        layout=table.layout_digest,
        generation=table.generation,
        check=known[1],
        count=len(messages),
    )


def test_staleness_rules_hear_of_records() -> None:
    probe = Meters()
    assert probe.step(EnrollAgents("Watched", ["w"])).fresh == [("Watched/w", None)]
    probe.seal()
    assert probe.step(watched(probe, Silent(), Silent(), Counted(by=1))).fresh[0] == ("Watched/w", Silent)
    assert probe.step(watched(probe, Counted(by=1))).fresh == []
    assert probe.step(watched(probe, Silent(n=-1))).fresh == [("Watched/w", Silent)], "also where nothing is kept of it"
    assert ("Watched/w", Silent) in probe.step(observed("Watched/w", Silent())).fresh
    assert probe.step(observed("Watched/x", Silent())).fresh[0] == ("Watched/x", None)
    assert probe.step(observed("Meter/a", Counted(by=1))).fresh == []
