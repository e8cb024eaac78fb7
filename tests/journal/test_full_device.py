"""A device that is full: a journal that may drop something goes on, on a simulated disk and on a real one."""

import os
import random
import shutil
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from stigmergy.agents.agent import Agent, decide, evolve
from stigmergy.agents.effects import Events
from stigmergy.agents.messages import Command, Event
from stigmergy.app.fleet import Fleet
from stigmergy.base.errors import JournalFull
from stigmergy.journal import segments, sqlite
from stigmergy.journal.files import Reserve
from stigmergy.journal.port import Journal, JournalIdentity, SnapshotPart, keep_within
from stigmergy.node.settings import Retention, Settings, Snapshots
from stigmergy.sim.disk import SimDisk, SimFolder
from stigmergy.testing.journal_contract import CommitChain

IDENTITY = JournalIdentity(fleet="full", shards=2, incarnation=7)
SEGMENT_BYTES = 1 << 17
KEPT, KEPT_BYTES = 20, 60_000
ROUNDS = 6
COMMANDS = 2_500
"""Of 1 KB each, on a device of 2 MiB."""

Open = Callable[[], Journal]


@pytest.fixture
def small() -> Iterator[SimDisk]:
    disk = SimDisk(random.Random(1), capacity_bytes=1 << 20)
    yield disk
    disk.close()


@pytest.fixture
def device(tmp_path: Path) -> Iterator[Path]:
    """A real device of 2 MiB, which is nobody else's."""
    path = tmp_path / "device"
    path.mkdir()
    mount = shutil.which("mount")
    if os.geteuid() != 0 or mount is None:
        pytest.skip("NOT TESTED: a full device needs root, to mount a tmpfs of 2 MiB")
    done = subprocess.run(
        [mount, "-t", "tmpfs", "-o", "size=2m", "tmpfs", str(path)], capture_output=True, text=True, check=False
    )
    if done.returncode:
        pytest.skip(f"NOT TESTED: a full device needs a tmpfs of its own, and it cannot be mounted: {done.stderr}")
    yield path
    subprocess.run(["umount", "-l", str(path)], check=True)


def open_on(kind: str, disk: SimDisk) -> Journal:
    if kind == "sqlite":
        return sqlite.open_journal("sqlite:fleet.db", IDENTITY, inline=True, vfs=disk.vfs, files=disk)
    return segments.open_journal(
        "segments:fleet",
        IDENTITY,
        inline=True,
        segment_bytes=SEGMENT_BYTES,
        folder=SimFolder(disk, "fleet"),
        key=bytes(32),
    )


async def fill_and_drop(journal: Journal, payload: bytes) -> int:
    """Appends until there is no room, drops all but a few, and goes on so. Returns how many commits were kept."""
    chain, commits, kept = CommitChain(), 0, max(2, KEPT_BYTES // len(payload))
    for _ in range(ROUNDS):
        before, group = commits, chain.group([0], payload)
        while True:
            try:
                await journal.append(group)
            except JournalFull:
                break
            commits += 1
            group = chain.group([0], payload)
        assert commits - before > kept, f"full again after {commits - before} commits"
        await journal.drop(0, commits - kept)
        assert journal.first_position(0) == commits - kept + 1
        # What found no room was not kept, so it is the next one still.
        await journal.append(group)
        commits += 1
    return commits


@pytest.mark.parametrize("payload", [300, 3_000, 20_000])
@pytest.mark.parametrize("kind", ["sqlite", "segments"])
async def test_a_full_simulated_disk_heals_by_dropping(small: SimDisk, kind: str, payload: int) -> None:
    journal = open_on(kind, small)
    commits = await fill_and_drop(journal, bytes(payload))
    await journal.close()
    journal = open_on(kind, small)
    assert [head.position for head in journal.heads()] == [commits]
    assert len(list(journal.read(0))) == commits - journal.first_position(0) + 1
    await journal.close()


@pytest.mark.parametrize("payload", [3_000, *(pytest.param(size, marks=pytest.mark.prove) for size in (300, 20_000))])
@pytest.mark.parametrize("kind", ["sqlite", "segments"])
async def test_a_full_device_heals_by_dropping(device: Path, kind: str, payload: int) -> None:
    opening: dict[str, Open] = {
        "sqlite": lambda: sqlite.open_journal(f"sqlite:{device}/fleet.db", IDENTITY),
        "segments": lambda: segments.open_journal(f"segments:{device}/fleet", IDENTITY, segment_bytes=SEGMENT_BYTES),
    }
    journal = opening[kind]()
    commits = await fill_and_drop(journal, os.urandom(payload))
    await journal.close()
    journal = opening[kind]()
    assert [head.position for head in journal.heads()] == [commits]
    assert len(list(journal.read(0))) == commits - journal.first_position(0) + 1
    await journal.close()


@pytest.mark.parametrize("kind", ["sqlite", "segments"])
async def test_after_a_drop_a_large_snapshot_finds_room(small: SimDisk, kind: str) -> None:
    """In what was dropped. Otherwise nothing newer could be dropped any more, and commits would fill it all."""
    journal = open_on(kind, small)
    commits = await fill_and_drop(journal, bytes(300))
    await journal.put_snapshot(0, commits, [SnapshotPart(part=0, body=bytes(200_000))])
    assert [len(part.body) for part in journal.read_snapshot(0, commits)] == [200_000]
    await journal.close()


class Put(Command):
    number: int
    padding: bytes


class Stored(Event):
    number: int
    padding: bytes


class Shelf(Agent):
    number: int = 0

    @decide
    def put(self, command: Put) -> Events:
        yield Stored(number=command.number, padding=command.padding)

    @evolve
    def stored(self, event: Stored) -> None:
        self.number = event.number


async def test_a_node_on_a_full_device_goes_on(device: Path, tmp_path: Path) -> None:
    """Much more than fits, of which retention may drop nearly all: never before the device is full."""
    settings = Settings(
        snapshots=Snapshots(every_events=50, every_s=1e9, tail_ratio=0.0, share_max=1_000.0, incremental_max=0),
        retention=Retention(reserve_bytes=0, check_every_s=1e6),
    )
    fleet = Fleet("full", agents=[Shelf])
    url = f"sqlite:{device}/fleet.db"
    async with fleet.running(journal=url, key=tmp_path / "fleet.key", settings=settings) as live:
        for number in range(1, COMMANDS + 1):
            await live.send("Shelf/1", Put(number=number, padding=os.urandom(1_000)))
        assert live.failure is None
        assert live.host.housekeeper.counters.commits_dropped > COMMANDS // 2
    async with fleet.running(journal=url, key=tmp_path / "fleet.key", settings=settings) as live:
        assert live.query("Shelf/1").number == COMMANDS


@pytest.mark.parametrize("kind", ["sqlite", "segments"])
async def test_a_device_that_others_have_filled_leaves_the_reserve(small: SimDisk, kind: str) -> None:
    """Another program takes all that is left, and later once more; the journal lives on what it drops."""
    journal, chain = open_on(kind, small), CommitChain()
    for position in range(1, 401):
        if position in (100, 200):
            taken = small.content("hog") if "hog" in small.paths() else b""
            small.put("hog", taken + bytes(small.free_bytes("hog")))
        group = chain.group([0], bytes(500))
        try:
            await journal.append(group)
        except JournalFull:
            await journal.drop(0, position - KEPT)
            await journal.append(group)
    assert [head.position for head in journal.heads()] == [400]
    await journal.close()


@pytest.mark.parametrize("kind", ["sqlite", "segments"])
async def test_a_quota_counts_all_files_and_makes_the_log_ahead_small(tmp_path: Path, kind: str) -> None:
    """200 KB allowed once grew to 8.4 MB of write-ahead log."""
    quota_bytes = 200_000
    journal: Journal = (
        sqlite.open_journal(f"sqlite:{tmp_path}/fleet.db", IDENTITY)
        if kind == "sqlite"
        else segments.open_journal(f"segments:{tmp_path}/fleet", IDENTITY)
    )
    keep_within(journal, quota_bytes)
    chain, most_bytes = CommitChain(), 0
    for position in range(1, 801):
        await journal.append(chain.group([0], bytes(100)))
        if journal.size().bytes_used > quota_bytes and position % 50 == 0:
            await journal.drop(0, position - 200)
        most_bytes = max(most_bytes, size_of(tmp_path))
    assert journal.size().bytes_used == size_of(tmp_path)
    assert most_bytes < 1.5 * quota_bytes
    await journal.close()


def size_of(folder: Path) -> int:
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())


def test_a_reserve_fits_its_device_and_is_made_whole_or_not_at_all(small: SimDisk) -> None:
    reserve = Reserve(small, "fleet.db", 4 << 20)
    assert reserve.make()
    assert reserve.held_bytes == small.content("fleet.db-reserve").__len__() == (1 << 20) // 8
    assert reserve.give_up()
    assert not reserve.give_up()
    small.put("hog", bytes(small.free_bytes("hog") - 1_000))
    assert not reserve.make()
    assert small.paths() == ["hog"]
    small.take_away("hog")
    assert reserve.make()
    assert reserve.held_bytes == (1 << 20) // 8
    reserve.size_bytes = 0
    assert reserve.make()
    assert small.paths() == []
