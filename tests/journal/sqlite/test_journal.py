"""The SQLite journal at work: how it fails, goes on or stops, copies its WAL, gives room back."""

import asyncio
import os
import random
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import apsw
import pytest

from stigmergy.base.errors import JournalConflict, JournalCorrupt, JournalFull, JournalUnknown, JournalUnreadable
from stigmergy.journal.port import JournalIdentity, SnapshotPart
from stigmergy.journal.sqlite import SqliteJournal, open_journal
from stigmergy.sim.disk import Call, DiskFault, SimDisk
from stigmergy.testing.journal_contract import CommitChain

IDENTITY = JournalIdentity(fleet="here", shards=3, incarnation=7)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "fleet.db"


@pytest.fixture
def disk() -> Iterator[SimDisk]:
    disk = SimDisk(random.Random(1))
    yield disk
    disk.close()


def open_on(disk: SimDisk, wal_bytes_max: int = 1 << 20) -> SqliteJournal:
    return open_journal("sqlite:fleet.db", IDENTITY, inline=True, vfs=disk.vfs, files=disk, wal_bytes_max=wal_bytes_max)


async def fill(path: Path, groups: int = 5, payload: bytes = b"") -> CommitChain:
    journal, chain = open_journal(f"sqlite:{path}", IDENTITY), CommitChain()
    for _ in range(groups):
        await journal.append(chain.group([0, 1], payload))
    await journal.close()
    return chain


# Failing, and going on or not.


async def test_full_disk_keeps_nothing_of_the_group_and_the_journal_goes_on(disk: SimDisk) -> None:
    journal, chain = open_on(disk), CommitChain()
    kept = chain.group([0, 1])
    await journal.append(kept)
    disk.capacity_bytes = disk.used_bytes() + 3_000
    refused = CommitChain()
    refused.continue_from(kept.commits[0])
    with pytest.raises(JournalFull, match="nothing of this was kept"):
        await journal.append(refused.group([0, 2], bytes(50_000)))
    assert [len(list(journal.read(shard))) for shard in range(3)] == [1, 1, 0]
    disk.capacity_bytes = 1 << 30
    await journal.append(chain.group([0, 2], bytes(50_000)))
    disk.kill()
    disk.restart()
    journal = open_on(disk)
    assert [head.position for head in journal.heads()] == [2, 1, 1]


@pytest.mark.parametrize("kind", [Call.WRITE, Call.SYNC])
async def test_failed_device_stops_the_journal_for_good(disk: SimDisk, kind: Call) -> None:
    journal, chain = open_on(disk), CommitChain()
    await journal.append(chain.group([0]))
    disk.fail_kind(kind, disk.calls_by_kind[kind] + 1, DiskFault.EIO)
    with pytest.raises(JournalUnknown, match="open it again"):
        await journal.append(chain.group([0]))
    calls = disk.calls
    for attempt in (
        journal.append(CommitChain().group([1])),
        journal.put_snapshot(0, 1, [SnapshotPart(0, b"")]),
        journal.drop_snapshot(0, 1),
        journal.drop(1, 1),
    ):
        with pytest.raises(JournalUnknown):
            await attempt
    with pytest.raises(JournalUnknown):
        list(journal.read(0))
    await journal.close()
    assert disk.calls == calls, "a later sync must not make a failed one good"
    await open_on(disk).close()


async def test_failed_read_says_that_nothing_may_be_damaged(disk: SimDisk) -> None:
    journal, chain = open_on(disk), CommitChain()
    for _ in range(60):
        await journal.append(chain.group([0], bytes(100_000)))
    await journal.close()
    journal = open_on(disk)  # with nothing in its cache
    disk.fail_kind(Call.READ, disk.calls_by_kind[Call.READ] + 1, DiskFault.EIO)
    with pytest.raises(JournalUnreadable, match=r"failed a read .*if it stays so, check it, restore"):
        list(journal.read(0))
    assert len(list(journal.read(0))) == 60
    await journal.close()


async def test_damaged_row_is_corrupt_on_reading(path: Path) -> None:
    await fill(path)
    connection = apsw.Connection(str(path))
    connection.execute("UPDATE commits SET time_ns = time_ns + 1 WHERE id = 3")
    connection.close()
    journal = open_journal(f"sqlite:{path}", IDENTITY)
    with pytest.raises(JournalCorrupt, match="commit 3 is damaged"):
        list(journal.read(0))
    assert len(list(journal.read(1))) == 5
    await journal.close()


async def read_all(path: Path) -> None:
    journal = open_journal(f"sqlite:{path}", IDENTITY)
    try:
        list(journal.read(0))
        list(journal.read_snapshot(0, 3))
    finally:
        await journal.close()


@pytest.mark.parametrize(
    ("damage", "text"),
    [
        ("DELETE FROM commits WHERE id = 3", "position 3 is missing"),
        ("DELETE FROM commits WHERE id = 5", "had come to 5, found 4"),
        ("DELETE FROM commits WHERE id = 1", "must begin at 1, found 2"),
        ("DELETE FROM commits WHERE id <= 5", "all commits of shard 0 are missing"),
        ("UPDATE shards SET head = head + 1", "shard 0 is damaged"),
        ("UPDATE identity SET incarnation = 9", "identity is damaged"),
        ("DELETE FROM identity", "identity is damaged"),
        ("UPDATE snapshots SET body = x'00'", "part 0 is damaged"),
        ("DELETE FROM snapshots WHERE part = 0", "part 0 is damaged or missing"),
    ],
)
async def test_row_that_is_gone_or_altered_is_noticed(path: Path, damage: str, text: str) -> None:
    await fill(path)
    journal = open_journal(f"sqlite:{path}", IDENTITY)
    await journal.put_snapshot(0, 3, [SnapshotPart(0, b"a"), SnapshotPart(1, b"b")])
    await journal.close()
    connection = apsw.Connection(str(path))
    connection.execute(damage)
    connection.close()
    with pytest.raises(JournalCorrupt, match=text):
        await read_all(path)


async def test_position_that_another_owner_wrote_conflicts(path: Path) -> None:
    await fill(path)
    journal = open_journal(f"sqlite:{path}", IDENTITY)
    stranger = CommitChain()
    stranger.positions[2] = 0
    journal._connection.execute("INSERT INTO commits VALUES ((2 << 40) + 1, 1, 1, 1, x'', NULL, 0, x'')")
    with pytest.raises(JournalConflict):
        await journal.append(stranger.group([2, 2]))
    assert [head.shard for head in journal.heads()] == [0, 1]
    await journal.close()


# Checkpoints and retention.


async def test_wal_is_copied_after_the_append_was_acknowledged(disk: SimDisk) -> None:
    journal, chain = open_on(disk, wal_bytes_max=20_000), CommitChain()
    written: list[str] = []
    disk.on_call = lambda call: written.append(call.path) if call.kind is Call.WRITE else None
    while "fleet.db" not in written:
        written.clear()
        await journal.append(chain.group([0], bytes(3_000)))
        assert "fleet.db" not in written
        await asyncio.sleep(0)
    size = disk.size("fleet.db-wal")
    for _ in range(30):
        await journal.append(chain.group([0], bytes(3_000)))
        await asyncio.sleep(0)
    assert disk.size("fleet.db-wal") == size, "the WAL is used again from its front"
    await journal.close()


async def test_failed_checkpoint_does_not_disturb_appends(disk: SimDisk) -> None:
    journal, chain = open_on(disk, wal_bytes_max=20_000), CommitChain()

    def fail_database_writes(call: object) -> None:
        if getattr(call, "path", "") == "fleet.db" and getattr(call, "kind", None) in (Call.WRITE, Call.SYNC):
            disk.fail(disk.calls, DiskFault.EIO)

    disk.on_call = fail_database_writes
    for _ in range(40):
        await journal.append(chain.group([0], bytes(3_000)))
        await asyncio.sleep(0)
    assert journal.checkpoint_failures > 1
    disk.on_call = None
    disk.lose_power()
    disk.restart()
    journal = open_on(disk)
    assert [stored.sealed.position for stored in journal.read(0)] == list(range(1, 41))
    await journal.close()


async def test_dropped_commits_give_their_room_back(path: Path) -> None:
    journal, chain = open_journal(f"sqlite:{path}", IDENTITY, wal_bytes_max=1 << 18), CommitChain()
    for _ in range(60):
        await journal.append(chain.group([0], bytes(20_000)))
    await journal.close()
    full_bytes = os.stat(path).st_size
    journal = open_journal(f"sqlite:{path}", IDENTITY, wal_bytes_max=1 << 18)
    for position in range(10, 60, 10):
        await journal.drop(0, position)
    for _ in range(20):
        await journal.append(chain.group([0], bytes(20_000)))
    await journal.close()
    assert os.stat(path).st_size < full_bytes * 0.7
    connection = apsw.Connection(str(path))
    assert connection.pragma("integrity_check") == "ok"
    connection.close()


async def test_a_reader_that_a_drop_overtakes_begins_where_the_log_begins_now(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    await fill(path, groups=10)
    journal = open_journal(f"sqlite:{path}", IDENTITY)
    reading = journal._reading

    def overtaken(fetch: Callable[[], None]) -> None:
        monkeypatch.setattr(journal, "_reading", reading)
        journal._drop(0, 4)
        reading(fetch)

    monkeypatch.setattr(journal, "_reading", overtaken)
    assert [stored.sealed.position for stored in journal.read(0)] == [5, 6, 7, 8, 9, 10]
    await journal.close()


async def test_stalled_disk_does_not_stall_the_loop(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    journal, chain = open_journal(f"sqlite:{path}", IDENTITY), CommitChain()
    stalled, go_on = asyncio.Event(), threading.Event()
    write, loop = journal._append, asyncio.get_running_loop()

    def stall(*args: object) -> None:
        loop.call_soon_threadsafe(stalled.set)
        go_on.wait(240)
        write(*args)  # type: ignore[arg-type]

    monkeypatch.setattr(journal, "_append", stall)
    appending = asyncio.ensure_future(journal.append(chain.group([0])))
    await stalled.wait()
    assert journal.heads() == []
    assert journal.size().commits == 0
    assert not appending.done()
    go_on.set()
    await appending
    assert len(journal.heads()) == 1
    await journal.close()
