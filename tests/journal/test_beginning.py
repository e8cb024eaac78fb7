"""New journals on files whose shards begin behind a commit that a snapshot covers: what a restore builds on."""

from __future__ import annotations

from pathlib import Path

import pytest

from stigmergy.app.journals import inspect_journal, open_journal
from stigmergy.audit.restore import Beginning
from stigmergy.base.errors import Bug, JournalConflict
from stigmergy.journal.port import SnapshotPart
from stigmergy.journal.segments import SegmentJournal
from stigmergy.journal.sqlite import SqliteJournal
from stigmergy.shard.commit import head_of
from stigmergy.testing.journal_contract import CommitChain, stored


def open_new(kind: str, folder: Path) -> Beginning:
    journal = open_journal(f"{kind}:{folder / 'fleet'}", "here", 3)
    assert isinstance(journal, SqliteJournal | SegmentJournal)
    return journal


@pytest.mark.parametrize("kind", ["sqlite", "segments"])
async def test_a_journal_begins_where_it_is_told(tmp_path: Path, kind: str) -> None:
    chain = CommitChain()
    before = [chain.group([0, 1]) for _ in range(5)]
    heads = [head_of(sealed) for sealed in before[-1].commits]
    behind = [chain.group([0, 1, 2]), chain.group([0])]
    journal = open_new(kind, tmp_path)
    journal.begin_at(heads)
    assert [journal.first_position(shard) for shard in range(3)] == [6, 6, 1]
    await journal.put_snapshot(0, 5, [SnapshotPart(0, b"state")])
    with pytest.raises(JournalConflict):
        await journal.append(before[-1])
    with pytest.raises(Bug):
        await journal.append(chain.group([0]))
    for group in behind:
        await journal.append(group)
    assert journal.size().commits == 4
    await journal.close()
    found = inspect_journal(f"{kind}:{tmp_path / 'fleet'}")
    assert [found.first_position(shard) for shard in range(3)] == [6, 6, 1]
    assert [head.position for head in found.heads()] == [7, 6, 1]
    for shard in range(3):
        assert list(found.read(shard)) == stored(*behind, shard=shard)
    assert found.snapshots(0) == [5]
    await found.close()


@pytest.mark.parametrize("kind", ["sqlite", "segments"])
async def test_a_journal_with_commits_cannot_begin_elsewhere(tmp_path: Path, kind: str) -> None:
    chain = CommitChain()
    journal = open_new(kind, tmp_path)
    group = chain.group([0])
    await journal.append(group)
    with pytest.raises(Bug, match="has commits"):
        journal.begin_at([head_of(group.commits[0])])
    await journal.append(chain.group([0]))
    await journal.close()
