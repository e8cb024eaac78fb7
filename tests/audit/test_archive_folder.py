"""What an archive and a store of holds promise, on a real folder and on the simulated disk; and files whole or not."""

import asyncio
import errno
import os
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from rigs.archive import SimArchive, SimHolds
from stigmergy.audit.archive_folder import FolderArchive, HoldsFile, NewFile
from stigmergy.audit.archive_port import Archive
from stigmergy.audit.retention import HoldStore
from stigmergy.base.errors import JournalError, JournalFull
from stigmergy.sim.disk import Call, DiskFault, SimDisk


class Place:
    """One implementation of both ports, and a way to see what is there."""

    def __init__(self, archive: Archive, holds: HoldStore, folder: Path | None, disk: SimDisk | None) -> None:
        self.archive = archive
        self.holds = holds
        self._folder = folder
        self._disk = disk

    def kept(self) -> dict[str, bytes]:
        if self._disk is not None:
            names = [path for path in self._disk.paths() if path.startswith("archive/")]
            return {path.removeprefix("archive/"): self._disk.content(path) for path in names}
        assert self._folder is not None
        return {path.name: path.read_bytes() for path in self._folder.glob("archive/*")}


@pytest.fixture(params=["folder", "simulated"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Place]:
    if request.param == "folder":
        yield Place(FolderArchive(tmp_path / "archive"), HoldsFile(tmp_path / "fleet.db-holds"), tmp_path, None)
        return
    disk = SimDisk(random.Random(1))
    yield Place(SimArchive(disk), SimHolds(disk), None, disk)
    disk.close()


def test_what_is_kept_is_there_and_nothing_else(place: Place) -> None:
    asyncio.run(place.archive.keep("one", b"1" * 10_000))
    asyncio.run(place.archive.keep("two", b""))
    asyncio.run(place.archive.keep("one", b"again"))
    assert place.kept() == {"one": b"again", "two": b""}


def test_holds_are_replaced_whole(place: Place) -> None:
    assert place.holds.load() == b""
    place.holds.save(b"first")
    place.holds.save(b"2")
    assert place.holds.load() == b"2"


@pytest.mark.parametrize("call", [Call.CREATE, Call.WRITE, Call.SYNC, Call.RENAME])
@pytest.mark.parametrize("fault", [DiskFault.EIO, DiskFault.ENOSPC, DiskFault.POWER_LOSS, DiskFault.KILL])
def test_after_any_fault_there_is_all_of_it_or_what_was_before(call: Call, fault: DiskFault) -> None:
    for number in range(1, 4):
        disk = SimDisk(random.Random(number))
        _keep_both(disk, b"before" * 100)
        disk.fail_kind(call, disk.calls_by_kind[call] + number, fault)
        _keep_both(disk, b"after" * 1_000)
        disk.lose_power()
        disk.restart()
        assert disk.content("archive/one") in (b"before" * 100, b"after" * 1_000)
        assert disk.content("fleet.db-holds") in (b"before" * 100, b"after" * 1_000)
        disk.close()


def _keep_both(disk: SimDisk, data: bytes) -> None:
    """Whatever goes wrong is an error of ours; the machine is up again afterwards."""
    try:
        asyncio.run(SimArchive(disk).keep("one", data))
    except JournalError:
        disk.restart()
    try:
        SimHolds(disk).save(data)
    except JournalError:
        disk.restart()


def test_what_was_confirmed_survives_a_loss_of_power() -> None:
    disk = SimDisk(random.Random(1))
    asyncio.run(SimArchive(disk).keep("one", b"confirmed"))
    SimHolds(disk).save(b"confirmed")
    disk.lose_power()
    disk.restart()
    assert disk.content("archive/one") == disk.content("fleet.db-holds") == b"confirmed"
    disk.close()


def test_no_room_is_said_as_such(tmp_path: Path) -> None:
    disk = SimDisk(random.Random(1), capacity_bytes=100)
    with pytest.raises(JournalFull):
        asyncio.run(SimArchive(disk).keep("one", b"x" * 1_000))
    assert disk.paths() == []
    disk.close()
    if os.path.exists("/dev/full"):
        with pytest.raises(JournalFull, match="no room"):
            _write_to_a_full_device(tmp_path / "full")
        assert list(tmp_path.iterdir()) == []


def _write_to_a_full_device(path: Path) -> None:
    """Under an open file: a link in the place of the file would not be followed."""
    with NewFile(path) as file, open("/dev/full", "wb") as full:
        os.dup2(full.fileno(), file.file.fileno())
        file.write(b"x" * 100_000)


def _write(path: Path, data: bytes) -> None:
    with NewFile(path) as file:
        file.write(data)


def test_a_file_is_written_whole_or_not_at_all(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"before")

    def fail_half_way() -> None:
        with NewFile(path) as file:
            file.write(b"half")
            raise RuntimeError

    with pytest.raises(RuntimeError):
        fail_half_way()
    assert path.read_bytes() == b"before"
    assert list(tmp_path.iterdir()) == [path]
    _write(path, b"after")
    assert path.read_bytes() == b"after"
    for wrong in (tmp_path / "no" / "such" / "folder", tmp_path / "file" / "inside"):
        with pytest.raises(JournalError, match="cannot be written"):
            _write(wrong, b"")


def test_only_a_file_is_ever_replaced(tmp_path: Path) -> None:
    """A rename over a device or a pipe would put a file in its place: once that was /dev/null of a whole machine."""
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "to pipe").symlink_to("pipe")
    (tmp_path / "folder").mkdir()
    for wrong in ("pipe", "to pipe", "folder"):
        with pytest.raises(JournalError, match="is no file, so it was left alone"):
            _write(tmp_path / wrong, b"x")
    assert (tmp_path / "pipe").is_fifo()
    assert len(list(tmp_path.iterdir())) == 3


def test_a_link_stays_a_link(tmp_path: Path) -> None:
    (tmp_path / "far").mkdir()
    (tmp_path / "link").symlink_to("far/file")
    for content in (b"first", b"second"):
        _write(tmp_path / "link", content)
        assert (tmp_path / "link").is_symlink()
        assert (tmp_path / "far" / "file").read_bytes() == content


def test_no_room_is_said_by_whatever_way_it_is_written(tmp_path: Path) -> None:
    def write_past_us() -> None:
        with NewFile(tmp_path / "file") as file:
            file.file.write(b"x")
            raise OSError(errno.ENOSPC, "No space left on device")

    with pytest.raises(JournalFull, match="no room"):
        write_past_us()
    assert list(tmp_path.iterdir()) == []


def test_what_a_killed_process_left_is_cleared_away(tmp_path: Path) -> None:
    mine, other = tmp_path / "fleet-7-0000-1-5.flight.new", tmp_path / "fleet-7-0001-1-5.flight.new"
    for path in (mine, other):
        path.write_bytes(b"half")
    asyncio.run(FolderArchive(tmp_path).keep("fleet-7-0000-1-9.flight", b"1"))
    assert sorted(path.name for path in tmp_path.iterdir()) == ["fleet-7-0000-1-9.flight", other.name]


def test_a_folder_that_is_a_file(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(JournalError, match="cannot be written"):
        asyncio.run(FolderArchive(tmp_path / "file").keep("one", b"1"))


def test_the_folder_does_its_work_beside_the_loop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A slow device holds up nobody."""
    turns: list[int] = []

    async def main() -> None:
        archive = FolderArchive(tmp_path)
        real = archive._keep

        def slow(name: str, data: bytes) -> None:
            while len(turns) < 5:
                pass
            real(name, data)

        monkeypatch.setattr(archive, "_keep", slow)
        keeping: asyncio.Task[Any] = asyncio.ensure_future(archive.keep("one", b"1"))
        for number in range(5):
            turns.append(number)
            await asyncio.sleep(0)
        await keeping

    asyncio.run(main())
    assert (tmp_path / "one").read_bytes() == b"1"
