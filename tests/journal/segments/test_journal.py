"""The journal in segments at work: how it fails, goes on or stops, fills spares, gives room back, is read meanwhile."""

import asyncio
import os
import random
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from stigmergy.base.errors import Bug, JournalCorrupt, JournalFull, JournalUnknown, JournalUnreadable
from stigmergy.journal.port import JournalIdentity, SnapshotPart
from stigmergy.journal.segments import SegmentJournal, open_journal
from stigmergy.journal.segments.frames import SegmentFrameKind, read_frame
from stigmergy.journal.segments.segment import FILL_BYTES, FILL_SYNC_BYTES, LANDMARK_BYTES, Segment
from stigmergy.sim.disk import Call, DiskFault, IoCall, SimDisk, SimFolder
from stigmergy.testing.journal_contract import CommitChain

IDENTITY = JournalIdentity(fleet="here", shards=3, incarnation=7)
SEGMENT_BYTES = 20_000


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "fleet"


@pytest.fixture
def disk() -> Iterator[SimDisk]:
    disk = SimDisk(random.Random(1))
    yield disk
    disk.close()


def open_on(disk: SimDisk, segment_bytes: int = SEGMENT_BYTES, *, filled: bool = True) -> SegmentJournal:
    return open_journal(
        "segments:fleet",
        IDENTITY,
        inline=True,
        segment_bytes=segment_bytes,
        filled=filled,
        reserve_bytes=0,
        folder=SimFolder(disk, "fleet"),
        key=bytes(32),
    )


def positions(journal: SegmentJournal, shard: int = 0, after: int = 0) -> list[int]:
    return [stored.sealed.position for stored in journal.read(shard, after)]


def logs(disk: SimDisk) -> list[str]:
    return [path for path in disk.paths() if path.endswith(".log")]


# Failing, and going on or not.


async def test_full_disk_keeps_nothing_of_the_group_and_the_journal_goes_on(disk: SimDisk) -> None:
    journal, chain = open_on(disk), CommitChain()
    kept = chain.group([0, 1])
    await journal.append(kept)
    disk.capacity_bytes = disk.used_bytes() + 3_000
    refused = CommitChain()
    refused.continue_from(kept.commits[0])
    for _ in range(3):
        group = refused.group([0, 2], bytes(50_000))
        with pytest.raises(JournalFull, match="nothing of this was kept"):
            await journal.append(group)
        refused = CommitChain()
        refused.continue_from(kept.commits[0])
    assert [len(positions(journal, shard)) for shard in range(3)] == [1, 1, 0]
    disk.capacity_bytes = 1 << 30
    await journal.append(chain.group([0, 2], bytes(50_000)))
    disk.kill()
    disk.restart()
    assert [head.position for head in open_on(disk).heads()] == [2, 1, 1]


@pytest.mark.parametrize("missing_bytes", range(1, 9))
async def test_group_of_which_only_the_end_found_no_room_was_not_kept(disk: SimDisk, missing_bytes: int) -> None:
    """Down to the last byte that fills a frame up: who was told that nothing was kept must not find it later."""
    journal, chain = open_on(disk, filled=False), CommitChain()
    await journal.append(chain.group([0]))
    before = disk.used_bytes()
    probe = SimDisk(random.Random(1))
    other, same = open_on(probe, filled=False), CommitChain()
    await other.append(same.group([0]))
    await other.append(same.group([0], bytes(101)))
    needed = probe.used_bytes() - before
    probe.close()
    disk.capacity_bytes = before + needed - missing_bytes
    with pytest.raises(JournalFull):
        await journal.append(chain.group([0], bytes(101)))
    disk.kill()
    disk.restart()
    assert positions(open_on(disk)) == [1]


async def test_full_disk_takes_the_spare_before_it_refuses(disk: SimDisk) -> None:
    journal, chain = open_on(disk), CommitChain()
    await journal.append(chain.group([0], bytes(1_000)))
    await asyncio.sleep(0)
    spare_bytes = disk.size("fleet/spare") or 0
    assert 10_000 < spare_bytes < SEGMENT_BYTES
    disk.capacity_bytes = disk.used_bytes()
    assert journal.size().bytes_free == spare_bytes
    for _ in range(6):
        await journal.append(chain.group([0], bytes(1_500)))
        await asyncio.sleep(0)
    assert disk.size("fleet/spare") is None, "and where there is little room, none is taken in advance"
    with pytest.raises(JournalFull):
        await journal.append(chain.group([0], bytes(30_000)))


async def test_refusals_leave_no_file_open(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    journal, chain = open_journal(f"segments:{path}", IDENTITY, segment_bytes=4096, filled=False), CommitChain()
    first = chain.group([0], bytes(3_000))
    await journal.append(first)

    def no_room(*_: object) -> None:
        raise OSError(28, "No space left on device")

    before = len(os.listdir("/proc/self/fd"))
    monkeypatch.setattr("stigmergy.journal.segments.folder.os.pwritev", no_room)
    for _ in range(20):
        again = CommitChain()
        again.continue_from(first.commits[0])
        with pytest.raises(JournalFull):
            await journal.append(again.group([0], bytes(3_000)))
    assert len(os.listdir("/proc/self/fd")) <= before, "fewer are those that an earlier test has left"
    monkeypatch.undo()
    await journal.append(chain.group([0], bytes(3_000)))
    await journal.close()


@pytest.mark.parametrize("kind", [Call.WRITE, Call.SYNC])
async def test_failed_device_stops_the_journal_for_good(disk: SimDisk, kind: Call) -> None:
    journal, chain = open_on(disk), CommitChain()
    await journal.append(chain.group([0]))
    await asyncio.sleep(0)
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
        positions(journal)
    await journal.close()
    assert disk.calls == calls, "a later sync must not make a failed one good"
    await open_on(disk).close()


async def test_failed_read_says_that_nothing_may_be_damaged(disk: SimDisk) -> None:
    journal, chain = open_on(disk), CommitChain()
    for _ in range(60):
        await journal.append(chain.group([0], bytes(100_000)))
    disk.fail_kind(Call.READ, disk.calls_by_kind[Call.READ] + 1, DiskFault.EIO)
    with pytest.raises(JournalUnreadable, match=r"failed a read .*if it stays so, check it, restore"):
        list(journal.read(0))
    assert len(list(journal.read(0))) == 60
    await journal.close()


async def test_damaged_segment_is_corrupt_on_reading_from_there_on(disk: SimDisk) -> None:
    journal, chain = open_on(disk), CommitChain()
    for _ in range(40):
        await journal.append(chain.group([0, 1], bytes(500)))
    await journal.close()
    content = bytearray(disk.content(logs(disk)[1]))
    content[9_000] ^= 1
    disk.put(logs(disk)[1], bytes(content))
    journal = open_on(disk)
    with pytest.raises(JournalCorrupt, match="is missing"):
        positions(journal)
    assert positions(journal, 0, after=30) == list(range(31, 41))
    await journal.drop(0, 38)
    await journal.drop(1, 38)
    assert positions(journal) == [39, 40]
    await journal.close()


async def test_stalled_disk_does_not_stall_the_loop(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    journal, chain = open_journal(f"segments:{path}", IDENTITY), CommitChain()
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


# Segments and spares.


async def test_spare_is_filled_after_the_append_was_acknowledged_and_never_beyond_a_segment(disk: SimDisk) -> None:
    journal, chain = open_on(disk, segment_bytes=1 << 22), CommitChain()
    calls: list[IoCall] = []
    disk.on_call = calls.append
    unsynced = most = 0
    for _ in range(120):
        calls.clear()
        await journal.append(chain.group([0], bytes(20_000)))
        assert not [call for call in calls if call.path == "fleet/spare"]
        assert [call.kind for call in calls if call.path == logs(disk)[-1]][-2:] == [Call.WRITE, Call.SYNC]
        await asyncio.sleep(0)
        for call in calls:
            if call.path == "fleet/spare":
                unsynced = 0 if call.kind is Call.SYNC else unsynced + call.size
                most = max(most, unsynced)
        if disk.size("fleet/spare") == 1 << 22:
            break
    assert len(logs(disk)) == 1
    assert disk.size("fleet/spare") == 1 << 22
    assert most <= FILL_SYNC_BYTES + FILL_BYTES
    await journal.close()


async def test_next_segment_is_the_spare_and_has_its_full_length(disk: SimDisk) -> None:
    """The first one is left as soon as there is a filled one: an append that grows a file costs more."""
    journal, chain = open_on(disk), CommitChain()
    for _ in range(30):
        await journal.append(chain.group([0], bytes(2_000)))
        await asyncio.sleep(0)
    assert 0 < (disk.size(logs(disk)[0]) or 0) < SEGMENT_BYTES // 2
    assert [disk.size(path) for path in logs(disk)[1:]] == [SEGMENT_BYTES] * len(logs(disk)[1:])
    await journal.close()


async def test_without_filling_there_is_no_spare_and_no_room_is_taken_in_advance(disk: SimDisk) -> None:
    journal, chain = open_on(disk, filled=False), CommitChain()
    for _ in range(30):
        await journal.append(chain.group([0], bytes(2_000)))
        await asyncio.sleep(0)
    await journal.drop(0, 25)
    assert disk.size("fleet/spare") is None
    assert disk.used_bytes() < 30 * 2_500
    await journal.close()


@pytest.mark.parametrize("fault", [DiskFault.ENOSPC, DiskFault.EIO])
async def test_failed_filling_disturbs_no_append(disk: SimDisk, fault: DiskFault) -> None:
    journal, chain = open_on(disk), CommitChain()

    def fail_the_spare(call: IoCall) -> None:
        if call.path == "fleet/spare" and call.kind in (Call.CREATE, Call.WRITE):
            disk.fail(disk.calls, fault)

    disk.on_call = fail_the_spare
    for _ in range(40):
        await journal.append(chain.group([0], bytes(3_000)))
        await asyncio.sleep(0)
    disk.on_call = None
    disk.lose_power()
    disk.restart()
    assert positions(open_on(disk)) == list(range(1, 41))


async def test_segments_that_were_dropped_are_used_again(disk: SimDisk) -> None:
    journal, chain = open_on(disk), CommitChain()
    most = 0
    for number in range(1, 301):
        await journal.append(chain.group([0], bytes(2_000)))
        if number % 10 == 0:
            await journal.drop(0, number - 5)
        most = max(most, disk.used_bytes())
        if number % 50 == 0:
            disk.kill()
            disk.restart()
            journal = open_on(disk)
            assert positions(journal) == list(range(number - 4, number + 1))
    assert most < 6 * SEGMENT_BYTES
    await journal.close()


async def test_group_larger_than_a_segment_gets_one_of_its_own(disk: SimDisk) -> None:
    journal, chain = open_on(disk), CommitChain()
    for size in (10, 50_000, 10, 70_000, 70_000, 10):
        await journal.append(chain.group([0, 1], bytes(size)))
        await asyncio.sleep(0)
    disk.kill()
    disk.restart()
    journal = open_on(disk)
    assert positions(journal, 1) == [1, 2, 3, 4, 5, 6]
    await journal.drop(0, 5)
    await journal.drop(1, 5)
    for _ in range(20):
        await journal.append(chain.group([0, 1], bytes(5_000)))
    disk.lose_power()
    disk.restart()
    assert positions(open_on(disk)) == list(range(6, 27))


async def test_many_shards(path: Path) -> None:
    identity = JournalIdentity("here", 2_000, 1)
    journal, chain = open_journal(f"segments:{path}", identity, segment_bytes=1 << 19), CommitChain()
    for _ in range(3):
        await journal.append(chain.group(range(2_000), bytes(10)))
    for shard in range(0, 2_000, 37):
        await journal.drop(shard, 2)
    await journal.close()
    journal = open_journal(f"segments:{path}", identity, segment_bytes=1 << 19)
    for shard in (0, 1, 998, 999, 1_998, 1_999):
        assert positions(journal, shard) == ([3] if shard % 37 == 0 else [1, 2, 3])
    assert len(journal.heads()) == 2_000
    await journal.close()


# Dropping, with shards that have fallen silent.


async def test_silent_shard_does_not_hold_the_log(disk: SimDisk) -> None:
    """Its newest commit is never dropped; without keeping it elsewhere all segments since would stay for good."""
    journal, chain = open_on(disk), CommitChain()
    await journal.append(chain.group([2, 2, 1], b"silent from now on"))
    silent = list(journal.read(2)), list(journal.read(1))
    for number in range(1, 301):
        await journal.append(chain.group([0], bytes(2_000)))
        if number % 10 == 0:
            await journal.drop(0, number - 5)
    assert len(logs(disk)) < 5
    for _ in range(2):
        assert (list(journal.read(2)), list(journal.read(1))) == silent
        assert positions(journal) == list(range(296, 301))
        assert journal.size().commits == 8
        disk.lose_power()
        disk.restart()
        journal = open_on(disk)
    await journal.append(chain.group([2, 1]))
    assert positions(journal, 2) == [1, 2, 3]
    await journal.drop(2, 2)
    assert positions(journal, 2) == [3]
    with pytest.raises(Bug):
        await journal.drop(2, 3)
    await journal.close()


async def test_what_is_kept_of_old_segments_is_bounded(disk: SimDisk) -> None:
    journal, chain = open_on(disk), CommitChain()
    for _ in range(3):
        await journal.append(chain.group([1], bytes(1_000)))
    for number in range(1, 101):
        await journal.append(chain.group([0], bytes(2_000)))
        if number % 10 == 0:
            await journal.drop(0, number - 5)
    assert disk.size("fleet/kept") is None, "more than an eighth of a segment stays where it is"
    assert len(logs(disk)) > 8
    await journal.drop(1, 2)
    assert (disk.size("fleet/kept") or 0) > 0
    assert len(logs(disk)) < 5
    assert positions(journal, 1) == [3]
    await journal.close()


@pytest.mark.parametrize("reopened", [False, True])
async def test_damaged_segment_is_not_given_up_for_what_is_left_of_it(disk: SimDisk, reopened: bool) -> None:
    journal, chain = open_on(disk, filled=False), CommitChain()
    for shard in (0, 0, 0, 1):
        await journal.append(chain.group([shard], bytes(1_000)))
    for _ in range(60):
        await journal.append(chain.group([0], bytes(2_000)))
    content = bytearray(disk.content(logs(disk)[0]))
    content[6_000] ^= 1
    if reopened:
        await journal.close()
        disk.put(logs(disk)[0], bytes(content))
        journal = open_on(disk, filled=False)
    else:
        disk._folder.seen[logs(disk)[0]].flip(6_000, 0)
    before = len(logs(disk))
    await journal.drop(0, 60)
    assert len(logs(disk)) == before
    with pytest.raises(JournalCorrupt):
        positions(journal, 1)
    await journal.close()
    journal = open_on(disk)
    assert positions(journal) == [61, 62, 63]
    await journal.close()


async def test_no_room_to_keep_the_rest_leaves_the_segment_until_there_is(disk: SimDisk) -> None:
    journal, chain = open_on(disk, filled=False), CommitChain()
    await journal.append(chain.group([1], bytes(1_000)))
    for _ in range(60):
        await journal.append(chain.group([0], bytes(2_000)))
    before = len(logs(disk))
    disk.capacity_bytes = disk.used_bytes() + 500
    await journal.drop(0, 40)
    assert (len(logs(disk)), positions(journal, 1), journal.first_position(0)) == (before, [1], 41)
    disk.capacity_bytes = 1 << 30
    await journal.drop(0, 50)
    assert len(logs(disk)) < before - 2
    assert positions(journal, 1) == [1]
    await journal.close()


# Reading meanwhile.


async def test_reader_goes_on_while_appends_follow_also_in_a_file_that_was_used_before(disk: SimDisk) -> None:
    """What it has read ahead is zeros, or frames of an earlier life; the frames that count came later."""
    journal, chain = open_on(disk), CommitChain()
    for number in range(1, 81):
        await journal.append(chain.group([0], bytes(500)))
        if number % 10 == 0:
            await journal.drop(0, number - 2)
    reader = journal.read(0, after=79)
    assert next(reader).sealed.position == 80
    for number in range(81, 181):
        await journal.append(chain.group([0], bytes(500)))
        assert next(reader).sealed.position == number
    assert next(reader, None) is None
    await journal.close()


@pytest.mark.parametrize("reopened", [False, True])
async def test_reader_of_a_segment_that_goes_meanwhile(disk: SimDisk, reopened: bool) -> None:
    journal, chain = open_on(disk), CommitChain()
    await journal.append(chain.group([2]))
    for _ in range(60):
        await journal.append(chain.group([0, 1], bytes(1_000)))
    if reopened:
        await journal.close()
        journal = open_on(disk)
    dropped, silent = journal.read(0), journal.read(2)
    assert next(dropped).sealed.position == 1
    assert next(silent).sealed.position == 1
    await journal.append(chain.group([2]))
    await journal.drop(0, 55)
    await journal.drop(1, 55)
    for _ in range(30):
        await journal.append(chain.group([0, 1], bytes(1_000)))
    assert next(silent).sealed.position == 2
    with pytest.raises(Bug, match="dropped while it was to be read"):
        list(dropped)
    await journal.close()


async def test_threads_read_and_write_at_once(path: Path) -> None:
    journal, chain = open_journal(f"segments:{path}", IDENTITY, segment_bytes=1 << 15), CommitChain()
    done = False

    async def write() -> None:
        nonlocal done
        for number in range(1, 201):
            await journal.append(chain.group([0, 1], bytes(500)))
            if number % 40 == 0:
                await journal.drop(0, number - 30)
        done = True

    writing, reads = asyncio.ensure_future(write()), 0
    while not done:
        await asyncio.sleep(0)
        expected = 1
        for stored in journal.read(1):
            assert stored.sealed.position == expected
            expected += 1
        reads += 1
    await writing
    assert positions(journal, 1) == list(range(1, 201))
    assert reads > 3
    await journal.close()


async def test_landmarks_are_few_and_save_reading(disk: SimDisk) -> None:
    journal, chain = open_on(disk, segment_bytes=1 << 23, filled=False), CommitChain()
    for _ in range(1_500):
        await journal.append(chain.group([0, 1], bytes(1_500)))
    await journal.close()

    def read_bytes(position: int) -> int:
        read = 0

        def count(call: IoCall) -> None:
            nonlocal read
            read += call.size if call.kind is Call.READ else 0

        disk.on_call = count
        assert next(journal.read(0, after=position - 1)).sealed.position == position
        disk.on_call = None
        return read

    journal = open_on(disk, segment_bytes=1 << 23, filled=False)
    segment: Segment = journal._segments[-1]
    assert len(segment._landmarks) <= (segment.end or 0) // LANDMARK_BYTES + 1
    assert max(read_bytes(position) for position in (1, 700, 1_200, 1_500)) < 3 * LANDMARK_BYTES
    for _ in range(20):
        positions(journal, 0, after=1_400)
    assert len(segment._landmarks) <= (segment.end or 0) // LANDMARK_BYTES + 1
    await journal.close()


# Snapshots.


async def test_snapshots_that_were_cut_damaged_or_begun_anew(disk: SimDisk) -> None:
    journal, chain = open_on(disk), CommitChain()
    await journal.append(chain.group([0]))
    parts = [SnapshotPart(number, bytes([number]) * 5_000) for number in range(4)]
    await journal.put_snapshot(0, 1, parts[:2])
    await journal.put_snapshot(0, 1, parts[2:])
    assert list(journal.read_snapshot(0, 1)) == parts
    with pytest.raises(Bug, match="must follow the 4"):
        await journal.put_snapshot(0, 1, [SnapshotPart(5, b"")])
    whole = disk.content("fleet/snapshot-0-1")
    for damaged in (whole[:-9], whole[:20], whole[:7_000] + b"!" + whole[7_001:]):
        disk.put("fleet/snapshot-0-1", damaged)
        with pytest.raises(JournalCorrupt, match="damaged or missing"):
            list(journal.read_snapshot(0, 1))
    # Another snapshot's parts, whole as they are, are not this one's.
    disk.put("fleet/snapshot-0-9", whole)
    with pytest.raises(JournalCorrupt, match="part 0 is damaged"):
        list(journal.read_snapshot(0, 9))
    await journal.put_snapshot(0, 1, [SnapshotPart(0, b"anew")])
    assert [part.body for part in journal.read_snapshot(0, 1)] == [b"anew"]
    await journal.drop_snapshot(0, 9)
    assert journal.snapshots(0) == [1]
    assert list(journal.read_snapshot(0, 9)) == []
    await journal.close()


async def test_large_groups_end_with_blocks_and_small_ones_fit_in_between(path: Path) -> None:
    """So that large ones can be written past the page cache, and everything is read back as it was."""
    key = bytes(range(32))
    journal, chain = open_journal(f"segments:{path}", IDENTITY, key=key), CommitChain()
    sizes = (200_000, 100, 70_000, 300_000, 66_000, 100, 430_000)
    bodies = []
    for size in sizes:
        group = chain.group([0], os.urandom(size))
        bodies.append(group.commits[0].body)
        await journal.append(group)
    await journal.close()
    frames = []
    for name in sorted(name for name in os.listdir(path) if name.endswith(".log")):
        content, offset = (path / name).read_bytes(), 0
        while (frame := read_frame(key, content, offset)) is not None:
            offset += frame.size_bytes
            frames.append((frame.kind, offset % 4096 == 0))
    assert [aligned for kind, aligned in frames if kind is SegmentFrameKind.BLOCKS] == [True] * 5
    assert [kind for kind, _ in frames].count(SegmentFrameKind.GROUP) == 2
    again = open_journal(f"segments:{path}", IDENTITY)
    assert [stored.sealed.body for stored in again.read(0)] == bodies
    await again.close()


async def test_a_disk_that_knows_no_direct_writes_is_written_to_the_other_way(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened = os.open

    def no_direct(name: str, flags: int, mode: int = 0o777) -> int:
        if flags & os.O_DIRECT:
            raise OSError(22, "Invalid argument")
        return opened(name, flags, mode)

    monkeypatch.setattr("stigmergy.journal.segments.folder.os.open", no_direct)
    journal, chain = open_journal(f"segments:{path}", IDENTITY), CommitChain()
    bodies = []
    for _ in range(3):
        group = chain.group([0], os.urandom(100_000))
        bodies.append(group.commits[0].body)
        await journal.append(group)
    assert [stored.sealed.body for stored in journal.read(0)] == bodies
    await journal.close()
