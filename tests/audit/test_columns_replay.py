"""A replay does over again what compiled agents did: differences are found, and what cannot be compared is said."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec import structs

from stigmergy.agents.effects import Effects
from stigmergy.agents.plans import AgentPlan
from stigmergy.audit.column_redecision import DECIDED, NO_TABLE
from stigmergy.audit.differences import Compared
from stigmergy.audit.replay import JournalReplay
from stigmergy.base.errors import FoldMismatch
from stigmergy.journal.memory import MemoryJournal, MemoryJournalStore
from stigmergy.keys.ed25519 import Ed25519Verifier
from tests.agents.meters import Beep, Counted, LimitSet, Measured, Meter, SetLimit, meter_engine
from tests.agents.plain_table import PlainTable, compiled
from tests.audit.meter_node import a_fleet, a_store, interpreted, run

FLEET = a_fleet()


@pytest.fixture
async def store() -> MemoryJournalStore:
    store = a_store(FLEET)
    for _ in range(2):
        await run(store, FLEET)
    return store


def replay(store: MemoryJournalStore, plans: dict[str, AgentPlan]) -> Compared:
    return JournalReplay(MemoryJournal(store), plans, FLEET.settings.limits, Ed25519Verifier()).run()


def todays(monkeypatch: pytest.MonkeyPatch, **handlers: Any) -> dict[str, AgentPlan]:
    """The fleet as it is with other handlers in the class of the meters."""
    plan = meter_engine().plan
    plans = dict(plan.plans)
    for message, (name, handler) in _by_message(handlers):
        plans[message] = structs.replace(plans[message], **{name: handler})
    engine = meter_engine()
    engine.plan = structs.replace(engine.plan, plans=plans)
    del monkeypatch
    return {**FLEET.plans, "Meter": compiled(engine)}


def _by_message(handlers: dict[str, Any]) -> Any:
    known = {one.__name__: one for one in (Measured, Counted, SetLimit, LimitSet)}
    for name, handler in handlers.items():
        message, _, what = name.partition("_")
        yield known[message], (what, handler)


async def test_the_same_code_does_the_same(store: MemoryJournalStore) -> None:
    found = replay(store, FLEET.plans)
    assert found.differences == []
    assert found.effects >= 15
    assert found.commands > 10
    assert found.snapshots >= 1
    assert found.states >= 3
    assert found.agents == 4
    assert found.not_compared[DECIDED] == 200


async def test_another_reaction_is_found_with_its_place(
    store: MemoryJournalStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    def on_measured(meter: Meter, event: Measured) -> Effects:
        if meter.level > 300:
            yield Beep(count=1, loud=True)

    found = replay(store, todays(monkeypatch, Measured_react=on_measured))
    kinds = {(one.kind, one.what) for one in found.differences}
    assert kinds <= {("effect", "effect 1 of Measured@1"), ("effect", "effect 2 of Measured@1")}
    some = next(one for one in found.differences if one.field == "type")
    assert (some.agent.partition("/")[0], some.old, some.new) == ("Meter", "Alarm@1", "Beep@1")
    assert some.position > 1
    assert found.differences_count > 5


async def test_an_event_that_fails_today_is_found(store: MemoryJournalStore, monkeypatch: pytest.MonkeyPatch) -> None:
    def on_measured(meter: Meter, event: Measured) -> Effects:
        if meter.level > 500:
            raise RuntimeError("too much")
        yield from ()

    found = replay(store, todays(monkeypatch, Measured_react=on_measured))
    failures = [one for one in found.differences if one.kind == "failure"]
    assert failures
    assert all("too much" in one.new for one in failures)


async def test_a_command_that_is_answered_otherwise_is_found(
    store: MemoryJournalStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    def set_limit(meter: Meter, command: SetLimit) -> Any:
        yield LimitSet(limit=command.limit + 1)

    found = replay(store, todays(monkeypatch, SetLimit_decide=set_limit))
    assert {(one.kind, one.field) for one in found.differences} >= {("answer", "refused"), ("event", "limit")}


async def test_another_fold_is_found_in_the_snapshots(
    store: MemoryJournalStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    def counted(meter: Meter, event: Counted) -> None:
        meter.total += 2 * event.by

    found = replay(store, todays(monkeypatch, Counted_evolve=counted))
    states = [one for one in found.differences if one.kind == "state"]
    assert {(one.field, one.agent.partition("/")[0]) for one in states} >= {("total", "Meter")}


async def test_what_cannot_be_folded_ends_the_replay_of_its_shard(
    store: MemoryJournalStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    fold = PlainTable.fold
    calls = 0

    def failing(table: PlainTable, records: bytes, layout: Any, now_ns: int) -> None:
        nonlocal calls
        calls += 1
        if calls > 5:
            raise FoldMismatch("today's code cannot fold it")
        fold(table, records, layout, now_ns)

    monkeypatch.setattr(PlainTable, "fold", failing)
    found = replay(store, FLEET.plans)
    assert [(one.kind, one.new) for one in found.differences] == [("fold", "today's code cannot fold it")]
    assert found.not_compared["commits behind one that cannot be folded"] > 10


async def test_a_kind_that_is_no_longer_compiled_is_folded_and_that_is_said(store: MemoryJournalStore) -> None:
    found = replay(store, interpreted(FLEET))
    assert found.differences == []
    assert found.not_compared[NO_TABLE] > 20
    assert any("commands to agents that were compiled then" in why for why in found.not_compared)


async def test_a_journal_from_before_it_was_compiled_is_replayed_too() -> None:
    store = a_store(FLEET)
    await run(store, a_fleet(interpreted(FLEET)))
    await run(store, FLEET)
    found = replay(store, FLEET.plans)
    assert found.differences == []
    assert any("from before they were compiled" in why for why in found.not_compared)
    assert found.effects >= 5
