"""The simulated disk: what survives what, which call fails, and that the same seed gives the same disk."""

import errno
import gc
import random
import sys
from collections import Counter
from collections.abc import Callable, Iterator

import apsw
import pytest

from stigmergy.sim.disk import AfterFailedSync, Call, Crashed, DiskFault, IoCall, SimDisk
from stigmergy.sim.platter import SECTOR_BYTES

MakeDisk = Callable[..., SimDisk]


@pytest.fixture
def make_disk() -> Iterator[MakeDisk]:
    disks: list[SimDisk] = []

    def make(seed: int = 0, **options: object) -> SimDisk:
        disks.append(SimDisk(random.Random(seed), **options))  # type: ignore[arg-type]
        return disks[-1]

    yield make
    for disk in disks:
        disk.close()


def test_synced_data_survives_power_loss(make_disk: MakeDisk) -> None:
    for seed in range(50):
        disk = make_disk(seed)
        file = disk.open("a")
        file.write_at(0, b"durable")
        file.sync()
        file.write_at(7, b" or not")
        disk.lose_power()
        assert disk.content("a").startswith(b"durable")


def test_unsynced_writes_are_kept_lost_or_torn_in_any_combination(make_disk: MakeDisk) -> None:
    outcomes: Counter[tuple[str, ...]] = Counter()
    for seed in range(1_000):
        disk = make_disk(seed)
        file = disk.open("a")
        file.write_at(0, bytes(4 * SECTOR_BYTES))
        file.sync()
        file.write_at(0, b"1" * 2 * SECTOR_BYTES)
        file.write_at(2 * SECTOR_BYTES, b"2" * 2 * SECTOR_BYTES)
        disk.lose_power()
        sectors = [disk.content("a")[at : at + SECTOR_BYTES] for at in range(0, 4 * SECTOR_BYTES, SECTOR_BYTES)]
        assert all(len(set(sector)) == 1 for sector in sectors), "a sector is written entirely or not at all"
        outcomes[tuple(chr(sector[0]) for sector in sectors)] += 1
    assert len(outcomes) == 16, "each of four sectors, old or new"


def test_power_loss_tears_writes_that_are_not_aligned_at_sectors_of_the_file(make_disk: MakeDisk) -> None:
    kept: set[bytes] = set()
    for seed in range(100):
        disk = make_disk(seed)
        file = disk.open("a")
        file.write_at(0, bytes(2 * SECTOR_BYTES))
        file.sync()
        file.write_at(SECTOR_BYTES - 2, b"abcd")
        disk.lose_power()
        kept.add(disk.content("a")[SECTOR_BYTES - 2 : SECTOR_BYTES + 2])
    assert kept == {b"abcd", b"ab\0\0", b"\0\0cd", bytes(4)}


def test_new_file_survives_if_it_was_synced_and_perhaps_if_not(make_disk: MakeDisk) -> None:
    seen: set[tuple[str, ...]] = set()
    for seed in range(40):
        disk = make_disk(seed)
        disk.open("synced").sync()
        disk.open("unsynced")
        disk.lose_power()
        seen.add(tuple(disk.paths()))
    assert seen == {("synced",), ("synced", "unsynced")}


def test_deletion_and_truncation_may_be_undone_by_power_loss(make_disk: MakeDisk) -> None:
    seen: set[tuple[int | None, int]] = set()
    for seed in range(60):
        disk = make_disk(seed)
        for name in ("gone", "cut"):
            file = disk.open(name)
            file.write_at(0, b"four")
            file.sync()
        disk.remove("gone")
        disk.open("cut").truncate(1)
        disk.lose_power()
        disk.restart()
        seen.add((disk.size("gone"), len(disk.content("cut"))))
    assert seen == {(None, 1), (None, 4), (4, 1), (4, 4)}


def test_file_that_is_made_anew_is_there_after_its_sync_and_its_folders(make_disk: MakeDisk) -> None:
    for seed in range(20):
        disk = make_disk(seed)
        disk.put("file", b"old")
        disk.remove("file")
        file = disk.open("file")
        file.write_at(0, b"new")
        file.sync()
        if seed % 2:
            disk.sync_folder("file")
        disk.lose_power()
        disk.restart()
        assert disk.content("file") == b"new"


def test_replaced_and_removed_names_are_durable_when_synced(make_disk: MakeDisk) -> None:
    for seed in range(20):
        disk = make_disk(seed)
        disk.open("new").write_at(0, b"new")
        disk.open("old").sync()
        disk.replace("new", "target")
        disk.remove("old", sync=True)
        disk.lose_power()
        assert disk.paths() == ["target"]
        assert disk.content("target") == b"new"


def test_killed_process_leaves_all_it_wrote(make_disk: MakeDisk) -> None:
    disk = make_disk()
    file = disk.open("a")
    file.write_at(0, b"unsynced")
    disk.kill()
    with pytest.raises(Crashed):
        disk.size("a")
    disk.restart()
    assert disk.read("a", 0, 99) == b"unsynced"
    with pytest.raises(Crashed):
        file.write_at(0, b"x")


def test_lying_sync_makes_nothing_durable(make_disk: MakeDisk) -> None:
    lost = 0
    for seed in range(30):
        disk = make_disk(seed, sync_lies=True)
        file = disk.open("a")
        file.write_at(0, b"data")
        file.sync()
        disk.lose_power()
        disk.restart()
        lost += disk.size("a") != 4
    assert lost > 10


@pytest.mark.parametrize("after", AfterFailedSync)
def test_failed_sync_loses_data_for_good(make_disk: MakeDisk, after: AfterFailedSync) -> None:
    lost = 0
    for seed in range(30):
        disk = make_disk(seed, after_failed_sync=after)
        file = disk.open("a")
        file.sync()
        file.write_at(0, b"data")
        disk.fail_kind(Call.SYNC, 2, DiskFault.EIO)
        with pytest.raises(OSError, match="simulated failure"):
            file.sync()
        if after is AfterFailedSync.STALE_CACHE:
            assert file.read_at(0, 4) == b"data"
        file.sync()
        seen = disk.content("a")
        disk.lose_power()
        lost += disk.content("a") == b""
        if after is AfterFailedSync.DROPPED_CACHE:
            assert disk.content("a") == seen
    assert 5 < lost < 30


def test_planned_fault_hits_that_call_and_no_other(make_disk: MakeDisk) -> None:
    disk = make_disk()
    seen: list[IoCall] = []
    disk.on_call = seen.append
    file = disk.open("a")
    disk.fail(3, DiskFault.EIO)
    disk.fail_kind(Call.READ, 2, DiskFault.EIO)
    file.write_at(0, b"1")
    with pytest.raises(OSError, match="simulated") as failed:
        file.write_at(1, b"2")
    assert failed.value.errno == errno.EIO
    file.read_at(0, 1)
    with pytest.raises(OSError, match="simulated"):
        file.read_at(0, 1)
    file.truncate(0)
    assert [call.kind for call in seen] == [Call.CREATE, Call.WRITE, Call.WRITE, Call.READ, Call.READ, Call.TRUNCATE]
    assert [call.number for call in seen] == list(range(1, 7))
    assert disk.calls == 6
    assert disk.calls_by_kind[Call.WRITE] == 2


def test_forgiven_faults_do_not_happen(make_disk: MakeDisk) -> None:
    disk = make_disk()
    disk.fail(1, DiskFault.EIO)
    disk.fail_kind(Call.CREATE, 1, DiskFault.EIO)
    disk.forgive()
    disk.open("a")


@pytest.mark.parametrize("fault", [DiskFault.POWER_LOSS, DiskFault.KILL])
def test_crash_at_a_call_takes_the_machine_down(make_disk: MakeDisk, fault: DiskFault) -> None:
    disk = make_disk()
    file = disk.open("a")
    disk.fail(2, fault)
    with pytest.raises(Crashed):
        file.write_at(0, b"x")
    assert disk.down
    disk.restart()
    disk.open("b").write_at(0, b"alive")


def test_full_disk_takes_what_fits_and_overwriting_needs_no_room(make_disk: MakeDisk) -> None:
    disk = make_disk(capacity_bytes=10)
    file = disk.open("a")
    file.write_at(0, b"12345678")
    with pytest.raises(OSError, match="full") as full:
        file.write_at(8, b"9abc")
    assert full.value.errno == errno.ENOSPC
    assert disk.content("a") == b"123456789a"
    assert disk.free_bytes("a") == 0
    file.write_at(0, b"ABCD")
    file.truncate(2)
    assert disk.free_bytes("a") == 8
    disk.fail(disk.calls + 1, DiskFault.ENOSPC)
    with pytest.raises(OSError, match="full"):
        file.write_at(2, b"cd")
    disk.fail(disk.calls + 1, DiskFault.ENOSPC)
    file.write_at(0, b"xy")
    assert disk.content("a") == b"xy"


def test_claim_is_exclusive_until_closed_or_crashed(make_disk: MakeDisk) -> None:
    disk = make_disk()
    first = disk.claim("mark")
    with pytest.raises(BlockingIOError):
        disk.claim("mark")
    first.close()
    second = disk.claim("mark")
    first.close()
    with pytest.raises(BlockingIOError):
        disk.claim("mark")
    second.write(b"held")
    disk.kill()
    disk.restart()
    assert disk.claim("mark").read() == b"held"


def test_flipped_bit_is_seen_at_once_and_after_power_loss(make_disk: MakeDisk) -> None:
    disk = make_disk()
    file = disk.open("a")
    file.write_at(0, b"abc")
    file.sync()
    disk.flip("a", 1, bit=0)
    assert file.read_at(0, 3) == b"acc"
    disk.lose_power()
    assert disk.content("a") == b"acc"


def test_same_seed_gives_the_same_disk(make_disk: MakeDisk) -> None:
    def left(seed: int) -> list[bytes]:
        disk = make_disk(seed)
        for name in ("b", "a"):
            file = disk.open(name)
            for number in range(20):
                file.write_at(number * 700, bytes([number]) * 700)
                if number == 5:
                    file.sync()
        disk.lose_power()
        return [disk.content(name) for name in disk.paths()]

    assert left(3) == left(3)
    assert len({tuple(left(seed)) for seed in range(10)}) > 5


def test_sqlite_runs_on_it_and_its_errors_are_sqlites_own(
    make_disk: MakeDisk, capsys: pytest.CaptureFixture[str]
) -> None:
    gc.collect()  # what other tests left in this process complains now, and not below
    capsys.readouterr()
    disk = make_disk()
    connection = apsw.Connection("x.db", vfs=disk.vfs)
    connection.execute("CREATE TABLE t(x); INSERT INTO t VALUES (1)")
    disk.fail_kind(Call.SYNC, disk.calls_by_kind[Call.SYNC] + 1, DiskFault.EIO)
    with pytest.raises(apsw.IOError) as failed:
        connection.execute("INSERT INTO t VALUES (2)")
    assert vars(failed.value)["extendedresult"] == apsw.SQLITE_IOERR_FSYNC
    disk.capacity_bytes = 0
    with pytest.raises(apsw.FullError):
        connection.execute("INSERT INTO t VALUES (zeroblob(100000))")
    disk.capacity_bytes = 1 << 30
    other = apsw.Connection("x.db", vfs=disk.vfs)
    connection.execute("BEGIN EXCLUSIVE")
    with pytest.raises(apsw.BusyError):
        other.execute("SELECT * FROM t")
    connection.execute("ROLLBACK")
    assert other.execute("SELECT x FROM t").fetchall() == [(1,)]
    disk.lose_power()
    connection.close(True)
    del other
    gc.collect()
    assert capsys.readouterr().err == ""


def test_vfs_has_a_name_of_its_own_and_is_unregistered(make_disk: MakeDisk, monkeypatch: pytest.MonkeyPatch) -> None:
    gc.collect()  # what other tests left in this process complains now, and not below
    unraisable: list[object] = []
    monkeypatch.setattr(sys, "unraisablehook", unraisable.append)
    one, two = make_disk(), make_disk()
    assert one.vfs != two.vfs
    assert one.vfs in apsw.vfs_names()
    one.close()
    assert one.vfs not in apsw.vfs_names()
    assert two.vfs in apsw.vfs_names()
    gc.collect()
    assert unraisable == []
