"""What lies in a log on NATS: notes that lead to any place in it, drops that are cut short, damage, and snapshots of
owners that were replaced."""

from __future__ import annotations

import random

import msgspec
import pytest

from stigmergy.base.errors import Bug, JournalCorrupt, JournalForeign, JournalFull
from stigmergy.journal.port import JournalIdentity, SnapshotPart, StoredCommit
from stigmergy.nats.journal import (
    inspect_journals,
    journal,
    open_journal,
    stream,
)
from stigmergy.nats.journal import (
    opener as opening,
)
from stigmergy.nats.journal import (
    snapshots as shelf,
)
from stigmergy.nats.journal.journal import NatsJournal
from stigmergy.nats.journal.messages import (
    GROUP,
    NOTE,
    PIECE,
    Assembler,
    LogMessage,
    LogState,
    decode_note,
    encode_group,
)
from stigmergy.nats.journal.snapshots import SnapshotStore
from stigmergy.nats.journal.stream import LogStream
from stigmergy.shard.commit import Group
from stigmergy.testing.journal_contract import CommitChain, make_commit, make_group, stored
from stigmergy.testing.nats import NatsCluster
from tests.nats.journal.writing import IDENTITY, outcome_of

FOUR = JournalIdentity(fleet="delivery", shards=4, incarnation=7)


@pytest.fixture
def dense(monkeypatch: pytest.MonkeyPatch) -> None:
    """Notes after every few messages, and reads of a few."""
    monkeypatch.setattr(journal, "NOTE_EVERY_COUNT", 5)
    monkeypatch.setattr(stream, "SCAN_COUNT", 4)
    monkeypatch.setattr(stream.LogStream.fetch, "__defaults__", (3,))
    monkeypatch.setattr(stream.LogStream.fetch_some, "__defaults__", (3,))


async def write_random(journal: NatsJournal, chain: CommitChain, seed: int, count: int) -> list[Group]:
    drawn = random.Random(seed)
    groups = []
    for _ in range(count):
        shards = [drawn.choice((0, 0, 0, 1, 1, 2)) for _ in range(drawn.randint(1, 3))]
        groups.append(chain.group(shards, bytes(drawn.randint(0, 300))))
        await journal.append(groups[-1])
    return groups


# ---------------------------------------------------------------------- notes


@pytest.mark.usefixtures("dense")
async def test_every_place_of_a_log_is_found_over_its_notes(server: NatsCluster, place: str) -> None:
    url = f"{server.url}/{place}"
    journal, chain = open_journal(url, FOUR), CommitChain()
    groups = await write_random(journal, chain, 1, 60)
    for shard in range(4):
        whole = stored(*groups, shard=shard)
        for after in range(0, len(whole), 5):
            assert list(journal.read(shard, after)) == whole[after:]
    heads = journal.heads()
    await journal.close()
    (looked_at,) = inspect_journals(url)
    assert looked_at.heads() == heads
    assert list(looked_at.read(0, 40)) == stored(*groups, shard=0)[40:]
    await looked_at.close()


@pytest.mark.usefixtures("dense")
async def test_opening_reads_from_the_last_note_on(
    server: NatsCluster, place: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    url = f"{server.url}/{place}"
    journal = open_journal(url, FOUR)
    await write_random(journal, CommitChain(), 2, 60)
    await journal.close()
    taken: list[int] = []
    take = LogState.take

    def counted(self: LogState, entry: LogMessage) -> list[StoredCommit]:
        taken.append(entry.sequence)
        return take(self, entry)

    monkeypatch.setattr(LogState, "take", counted)
    await open_journal(url, FOUR).close()
    assert len(taken) <= 6


@pytest.mark.usefixtures("dense")
async def test_drops_of_shards_that_share_a_log(server: NatsCluster, place: str) -> None:
    url = f"{server.url}/{place}"
    journal, chain = open_journal(url, FOUR), CommitChain()
    groups = await write_random(journal, chain, 3, 80)
    by_shard = [stored(*groups, shard=shard) for shard in range(4)]
    for shard, upto in ((0, 30), (1, 20), (2, 5), (0, 40)):
        await journal.drop(shard, upto)
        del by_shard[shard][: upto + 1 - by_shard[shard][0].sealed.position]
    for _ in range(2):
        assert [list(journal.read(shard)) for shard in range(4)] == by_shard
        assert [journal.first_position(shard) for shard in range(4)] == [41, 21, 6, 1]
        assert journal.size().commits == sum(len(kept) for kept in by_shard)
        await journal.close()
        journal = open_journal(url, FOUR)
    info = await (await journal._log()).info()
    assert 1 < info.first_sequence <= journal._state.lowest_sequence
    await journal.close()


@pytest.mark.usefixtures("dense")
async def test_a_drop_that_was_cut_short_is_found_at_the_next_opening(
    server: NatsCluster, place: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With no room for the note it is purged first; then the process is killed."""
    url = f"{server.url}/{place}"
    journal, chain = open_journal(url, FOUR), CommitChain()
    groups = [chain.group([0, 1]) for _ in range(20)]
    for group in groups:
        await journal.append(group)

    async def full(self: NatsJournal, log: LogStream, kind: str) -> None:
        raise JournalFull(f"no room for {self}, {log}, {kind}")

    with monkeypatch.context() as patched:
        patched.setattr(NatsJournal, "_write_note", full)
        await journal.drop(0, 10)
        await journal.drop(1, 12)
    await journal.close()
    journal = open_journal(url, FOUR)
    # Shard 1 begins a little earlier than was asked for: it shares messages with shard 0.
    assert [journal.first_position(shard) for shard in (0, 1)] == [11, 11]
    for shard in (0, 1):
        assert list(journal.read(shard)) == stored(*groups[10:], shard=shard)
    await journal.append(chain.group([0, 1]))
    await journal.close()


# ---------------------------------------------------------------------- damage


async def test_somebody_elses_messages_are_found(server: NatsCluster, place: str) -> None:
    url = f"{server.url}/{place}"
    journal = open_journal(url, IDENTITY)
    await journal.append(CommitChain().group([0]))
    log = await journal._log()
    await log.link.publish(f"{log.place.subject}.{GROUP}", b"nonsense")
    with pytest.raises(JournalCorrupt, match="message 3"):
        inspect_journals(url)
    await journal.close()
    with pytest.raises(JournalCorrupt, match="message 3"):
        open_journal(url, IDENTITY)


async def test_a_message_on_another_subject_or_out_of_order_is_found(server: NatsCluster, place: str) -> None:
    url = f"{server.url}/{place}"
    journal = open_journal(url, IDENTITY)
    log = await journal._log()
    await log.link.publish(f"{log.place.subject}.gossip", b"psst")
    await journal.close()
    with pytest.raises(JournalCorrupt, match="gossip"):
        open_journal(url, IDENTITY)


def test_a_fold_refuses_what_does_not_follow() -> None:
    state, chain = LogState(), CommitChain()
    state.take(LogMessage(1, GROUP, encode_group(1, chain.group([0]))))
    with pytest.raises(JournalCorrupt, match="follows 1"):
        state.take(LogMessage(3, GROUP, encode_group(1, chain.group([0]))))
    with pytest.raises(JournalCorrupt, match="position 3 follows 1"):
        state.take(LogMessage(2, GROUP, encode_group(1, make_group(make_commit(0, 3)))))
    note = msgspec.msgpack.encode([2, "claimed", 0, "a", b"", []])
    with pytest.raises(JournalForeign, match="format 2"):
        decode_note(LogMessage(9, NOTE, note))


def test_pieces_whose_beginning_is_missing_are_passed_over() -> None:
    assembler, group = Assembler(), CommitChain().group([0])
    payload = encode_group(4, group)
    pieces = [msgspec.msgpack.encode([4, number, payload[at : at + 100]]) for number, at in enumerate((0, 100))]
    for number, kind in ((1, PIECE), (0, PIECE), (0, PIECE), (1, NOTE), (1, "end")):
        assert assembler.take(LogMessage(1, kind, pieces[number])) is None
    assert assembler.take(LogMessage(6, PIECE, pieces[0])) is None
    assert assembler.take(LogMessage(7, PIECE, pieces[0])) is None
    end = msgspec.msgpack.encode([4, 1, payload[100:]])
    assert assembler.take(LogMessage(8, "end", end)) == (7, stored(group, shard=0))


# ---------------------------------------------------------------------- snapshots


async def test_a_replaced_owner_cannot_spoil_the_snapshots_of_its_successor(
    server: NatsCluster, place: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    url = f"{server.url}/{place}"
    old, chain = open_journal(url, IDENTITY), CommitChain()
    await old.append(chain.group([0]))
    await old.put_snapshot(0, 1, [SnapshotPart(0, b"of the old one")])
    with monkeypatch.context() as patched:
        patched.setattr(opening, "_check_free", _free)
        new = open_journal(url, IDENTITY)
    assert list(new.read_snapshot(0, 1)) == [SnapshotPart(0, b"of the old one")]
    parts = [SnapshotPart(0, b"of the new one"), SnapshotPart(1, b"and more")]
    await new.put_snapshot(0, 1, parts)
    await old.put_snapshot(0, 1, [SnapshotPart(0, b"late")])
    assert list(new.read_snapshot(0, 1)) == parts
    await old.drop_snapshot(0, 1)
    assert list(new.read_snapshot(0, 1)) == parts
    await old.close()
    await new.close()
    new = open_journal(url, IDENTITY)
    assert list(new.read_snapshot(0, 1)) == parts
    await new.drop_snapshot(0, 1)
    await new.close()
    new = open_journal(url, IDENTITY)
    assert new.snapshots(0) == []
    await new.close()


async def _free(*_given: object) -> None:
    return None


async def test_a_changed_or_missing_part_is_found(
    server: NatsCluster, place: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    journal = open_journal(f"{server.url}/{place}", IDENTITY)
    await journal.put_snapshot(0, 1, [SnapshotPart(0, b"state"), SnapshotPart(1, b"more")])
    log = await journal._log()
    subject = f"{SnapshotStore(log.link, place)._subject}.0.1.{journal.epoch}"
    chunk = msgspec.msgpack.encode([1, bytes(32), b"changed"])
    await log.link.publish(f"{subject}.0.0", chunk)
    await log.link.publish(f"{subject}.1.0", b"nonsense")
    monkeypatch.setattr(shelf, "READ_WITHIN_S", 0.2)
    with pytest.raises(JournalCorrupt, match="not those that were stored"):
        list(journal.read_snapshot(0, 1))
    reading = SnapshotStore(log.link, place)
    with pytest.raises(JournalCorrupt, match="part 1"):
        await reading.read(0, 1, journal.epoch, 1)
    with pytest.raises(JournalCorrupt, match="not there"):
        await reading.read(0, 1, journal.epoch, 2)
    await journal.close()


async def test_one_that_only_looks_cannot_write(server: NatsCluster, place: str) -> None:
    url = f"{server.url}/{place}"
    await open_journal(url, IDENTITY).close()
    (looked_at,) = inspect_journals(url)
    assert isinstance(await outcome_of(looked_at.append(CommitChain().group([0]))), Bug)
    assert isinstance(await outcome_of(looked_at.drop(0, 0)), Bug)
    await open_journal(url, IDENTITY).close()
    await looked_at.close()
