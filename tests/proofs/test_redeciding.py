"""The histories of the menagerie, done once more by the code that lived them: a replay must call them the same.

Commands, refusals, crashes in every handler, tells, timers, windows, letters, stopped agents, noise, restarts: whatever
the upgrade gate took for a difference here would be a false alarm in the field.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import pytest

from proofs.menagerie import MENAGERIE, Move
from proofs.replay import LIMITS, PLANS, History
from stigmergy.agents.effects import Effects
from stigmergy.audit import replay as replaying
from stigmergy.audit.differences import ABSENT, Compared
from stigmergy.audit.replay import JournalReplay
from stigmergy.journal.port import JournalIdentity, JournalSize, SnapshotPart, StoredCommit
from stigmergy.keys.ed25519 import Ed25519Verifier
from stigmergy.shard.commit import Group, Head, open_commit, seal
from stigmergy.shard.state import ShardState, plan_agents


class HistoryJournal:
    """A history as a journal that nobody writes to."""

    def __init__(self, history: History) -> None:
        self._shards = history.shards
        self.identity = JournalIdentity("menagerie", len(history.shards), 1)

    def heads(self) -> list[Head]:
        return [Head(n, len(lived.log), 0, b"") for n, lived in enumerate(self._shards) if lived.log]

    def first_position(self, shard: int) -> int:
        return 1

    def read(self, shard: int, after: int = 0) -> Iterator[StoredCommit]:
        for body in self._shards[shard].log[after:]:
            yield StoredCommit(seal(open_commit(body)), None)

    def snapshots(self, shard: int) -> list[int]:
        return sorted(stored.position for stored in self._shards[shard].stored)

    def read_snapshot(self, shard: int, position: int) -> Iterator[SnapshotPart]:
        for stored in self._shards[shard].stored:
            if stored.position == position:
                yield from (SnapshotPart(number, body) for number, body in enumerate(stored.parts))

    def size(self) -> JournalSize:
        return JournalSize(sum(len(lived.log) for lived in self._shards), 0, 0)

    async def append(self, group: Group) -> None:
        raise NotImplementedError

    async def put_snapshot(self, shard: int, position: int, parts: Sequence[SnapshotPart]) -> None:
        raise NotImplementedError

    async def drop_snapshot(self, shard: int, position: int) -> None:
        raise NotImplementedError

    async def drop(self, shard: int, upto: int) -> None:
        raise NotImplementedError

    async def close(self) -> None:
        """Nothing to close."""


@pytest.fixture(autouse=True)
def plain_genesis(monkeypatch: pytest.MonkeyPatch) -> None:
    """The histories are of no fleet."""
    monkeypatch.setattr(replaying, "new_state", lambda _, shard, plans, limits: ShardState(shard, plans, limits))


def lived(number: int) -> HistoryJournal:
    history = History(number)
    history.run()
    return HistoryJournal(history)


def replayed(journal: HistoryJournal) -> Compared:
    return JournalReplay(journal, PLANS, LIMITS, Ed25519Verifier()).run()


@pytest.mark.prove
def test_what_was_lived_is_the_same_once_more() -> None:
    compared = [replayed(lived(number)) for number in range(500, 560)]
    for found in compared:
        # An input right behind a command, of a type that never comes alone, cannot be told from what it decided.
        false = [one for one in found.differences if (one.kind, one.new) != ("event", ABSENT)]
        assert false == []
    assert sum(found.differences_count for found in compared) <= 1
    assert sum(found.commands for found in compared) > 500
    assert sum(found.failures for found in compared) > 100
    assert sum(found.effects for found in compared) > 500
    assert sum(found.states for found in compared) > 100


def test_one_changed_handler_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    journals = [lived(number) for number in range(500, 510)]
    plans = plan_agents(MENAGERIE)
    changed = 0
    for agent_plan in plans.values():
        for message, plan in agent_plan.plans.items():
            if plan.react is not None:
                agent_plan.plans[message] = type(plan)(
                    **{name: getattr(plan, name) for name in plan.__struct_fields__}
                    | {"react": _always, "yields": True}
                )
                changed += 1
    assert changed
    found = [JournalReplay(journal, plans, LIMITS, Ed25519Verifier()).run() for journal in journals]
    assert all({one.kind for one in one_found.differences} >= {"effect"} for one_found in found)


def _always(agent: object, event: object) -> Effects:
    yield Move(n=-1)
