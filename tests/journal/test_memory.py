"""The journal in memory, beyond the contract: a store outlives its journal, and is bounded."""

import asyncio

import pytest

from stigmergy.base.errors import ConfigError, JournalFull, JournalLocked, JournalUnknown
from stigmergy.journal.memory import MemoryJournal, MemoryJournalStore, open_journal
from stigmergy.journal.port import JournalIdentity, SnapshotPart
from stigmergy.testing.journal_contract import CommitChain

IDENTITY = JournalIdentity(fleet="here", shards=2, incarnation=1)


async def test_store_survives_the_death_of_its_journal() -> None:
    journal, chain = open_journal("memory:", IDENTITY), CommitChain()
    await journal.append(chain.group([0, 1]))
    reborn = journal.reopen()
    assert [head.position for head in reborn.heads()] == [1, 1]
    with pytest.raises(JournalUnknown, match="dead"):
        journal.heads()
    await reborn.append(chain.group([0]))
    await journal.close()
    await reborn.append(chain.group([0]))


async def test_write_under_way_at_death_is_not_kept() -> None:
    journal, chain = open_journal("memory:", IDENTITY), CommitChain()
    writing = asyncio.ensure_future(journal.append(chain.group([0, 1])))
    await asyncio.sleep(0)
    reborn = journal.reopen()
    with pytest.raises(JournalUnknown):
        await writing
    assert reborn.heads() == []


async def test_full_store_keeps_nothing_and_goes_on() -> None:
    journal, chain = MemoryJournal(MemoryJournalStore(IDENTITY, capacity_bytes=2_000)), CommitChain()
    await journal.append(chain.group([0]))
    with pytest.raises(JournalFull):
        await journal.append(CommitChain().group([1, 1], bytes(900)))
    with pytest.raises(JournalFull):
        await journal.put_snapshot(0, 1, [SnapshotPart(0, bytes(2_000))])
    assert [head.shard for head in journal.heads()] == [0]
    await journal.put_snapshot(0, 1, [SnapshotPart(0, bytes(1_500))])
    await journal.put_snapshot(0, 1, [SnapshotPart(0, bytes(1_600))])
    assert journal.size().bytes_free < 400
    await journal.drop_snapshot(0, 1)
    await journal.append(chain.group([0], bytes(1_000)))


async def test_copied_store_gets_an_incarnation_of_its_own() -> None:
    store = MemoryJournalStore(IDENTITY)
    store.renew_incarnation(2)
    assert MemoryJournal(store).identity.incarnation == 2
    with pytest.raises(JournalLocked):
        MemoryJournal(store)


def test_other_scheme_is_refused() -> None:
    with pytest.raises(ConfigError, match="memory:"):
        open_journal("sqlite:fleet.db", IDENTITY)
