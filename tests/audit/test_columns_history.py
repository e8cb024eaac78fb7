"""A look back at a compiled agent sees what a replay up to there ends in, whatever engine it had and has."""

import pytest

from stigmergy.agents.codec import canonical_bytes
from stigmergy.agents.columns import ColumnRun, Layout
from stigmergy.audit.history import History, Moment
from stigmergy.audit.verification import Verification
from stigmergy.journal.memory import MemoryJournal
from stigmergy.journal.recovery import Recovery
from stigmergy.keys.ed25519 import Ed25519Verifier
from stigmergy.shard.commit import open_commit
from stigmergy.shard.state import ShardState
from tests.agents.meters import Meter
from tests.agents.plain_table import PlainTable
from tests.audit.meter_node import NAMES, a_fleet, a_store, interpreted, run

FLEET = a_fleet()
VERIFIER = Ed25519Verifier()


def replayed(journal: MemoryJournal, upto: int) -> ShardState:
    return Recovery(journal, FLEET.plans, VERIFIER, FLEET.settings.limits).replay_from_start(0, upto=upto)


async def test_every_position_is_what_a_replay_says() -> None:
    store = a_store(FLEET)
    for _ in range(2):
        await run(store, FLEET)
    journal = MemoryJournal(store)
    assert len(journal.snapshots(0)) > 1
    assert Verification(journal, VERIFIER).run().problems == []
    history = History(journal, FLEET.plans)
    (head,) = journal.heads()
    for position in (*range(0, head.position, 9), head.position):
        table = replayed(journal, position).tables["Meter"]
        for name in (*NAMES, "z"):
            sight = history.look(f"Meter/{name}", Moment(position=position))
            number = table.find(name)
            assert (sight.position, sight.known) == (position, number >= 0)
            expected = table.agent(number, ahead=True) if number >= 0 else Meter(id=name)
            assert canonical_bytes(sight.agent) == canonical_bytes(expected)


async def test_only_its_own_records_are_folded(monkeypatch: pytest.MonkeyPatch) -> None:
    store = a_store(FLEET)
    await run(store, FLEET)
    folded: list[int] = []
    engine = FLEET.plans["Meter"].engine
    assert engine is not None
    plain, width = PlainTable, engine.layout.record_bytes
    fold = plain.fold

    def counted(table: PlainTable, records: bytes, layout: Layout, now_ns: int) -> None:
        folded.extend(int.from_bytes(records[at : at + 4], "little") for at in range(0, len(records), width))
        fold(table, records, layout, now_ns)

    monkeypatch.setattr(plain, "fold", counted)
    journal = MemoryJournal(store)
    monkeypatch.setattr(journal, "snapshots", lambda shard: [])
    history = History(journal, FLEET.plans)
    history.look("Meter/b", Moment())
    assert set(folded) == {1}
    folded.clear()
    history.look("Board/main", Moment())
    assert folded == []


async def test_it_is_seen_when_its_kind_is_no_longer_compiled_and_when_it_was_not_yet() -> None:
    plain = interpreted(FLEET)
    for first, then in ((FLEET.plans, plain), (plain, FLEET.plans)):
        store = a_store(FLEET)
        await run(store, a_fleet(first))
        journal = MemoryJournal(store)
        for name in NAMES:
            seen = History(journal, first).look(f"Meter/{name}", Moment())
            again = History(journal, then).look(f"Meter/{name}", Moment())
            assert seen.known
            assert canonical_bytes(seen.agent) == canonical_bytes(again.agent)


async def test_a_node_that_changes_its_engine_goes_on_with_the_same_agents() -> None:
    store = a_store(FLEET)
    await run(store, a_fleet(interpreted(FLEET)))
    await run(store, FLEET)
    journal = MemoryJournal(store)
    assert Verification(journal, VERIFIER).run().problems == []
    (head,) = journal.heads()
    table = replayed(journal, head.position).tables["Meter"]
    for name in NAMES:
        sight = History(journal, FLEET.plans).look(f"Meter/{name}", Moment())
        assert canonical_bytes(sight.agent) == canonical_bytes(table.agent(table.find(name), ahead=True))
    assert _runs(journal)


def _runs(journal: MemoryJournal) -> list[ColumnRun]:
    return [one for stored in journal.read(0) for one in open_commit(stored.sealed.body).columns]
