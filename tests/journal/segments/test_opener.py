"""Opening a journal in segments: what is refused, what is left untouched, who has it."""

import asyncio
import contextlib
import os
import random
import shutil
import subprocess
import sys
import tempfile
import textwrap
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import msgspec
import pytest
from msgspec import structs

from stigmergy.base.errors import (
    Bug,
    ConfigError,
    JournalCorrupt,
    JournalError,
    JournalForeign,
    JournalLocked,
    StigmergyError,
)
from stigmergy.journal.files import OsFileLock
from stigmergy.journal.identity import AcknowledgedHead, decode_mark
from stigmergy.journal.port import JournalIdentity, SnapshotPart
from stigmergy.journal.segments import (
    SegmentJournal,
    inspect_journal,
    open_journal,
    renew_incarnation,
)
from stigmergy.journal.segments import (
    opener as opening,
)
from stigmergy.journal.segments.frames import SegmentFrameKind, encode_frame
from stigmergy.sim.disk import DiskFault, SimDisk, SimFolder
from stigmergy.testing.journal_contract import CommitChain

IDENTITY = JournalIdentity(fleet="here", shards=3, incarnation=7)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "fleet"


@pytest.fixture
def disk() -> Iterator[SimDisk]:
    disk = SimDisk(random.Random(1))
    yield disk
    disk.close()


def open_on(disk: SimDisk) -> SegmentJournal:
    folder = SimFolder(disk, "fleet")
    return open_journal("segments:fleet", IDENTITY, inline=True, segment_bytes=20_000, folder=folder, key=bytes(32))


async def fill(path: Path, groups: int = 5, payload: bytes = b"", segment_bytes: int = 4096) -> CommitChain:
    journal, chain = open_journal(f"segments:{path}", IDENTITY, segment_bytes=segment_bytes), CommitChain()
    for _ in range(groups):
        await journal.append(chain.group([0, 1], payload))
    await journal.close()
    return chain


def mark_of(path: Path) -> Path:
    return path.with_name(f"{path.name}-mark")


def image(path: Path) -> dict[str, tuple[bytes, int]]:
    """Everything in the folder, and when it was last changed: a refusal can be shown to have changed nothing."""
    files = [*path.iterdir(), *path.parent.glob("*-mark")]
    found = {one.name: (one.read_bytes(), one.stat().st_mtime_ns) for one in sorted(files)}
    return {**found, ".": (b"", path.stat().st_mtime_ns)}


# What is not ours.


def test_folder_of_something_else_is_refused_and_not_touched(path: Path) -> None:
    path.mkdir()
    (path / "diary.txt").write_text("dear diary")
    before = image(path)
    with pytest.raises(JournalForeign, match=r"diary\.txt"):
        open_journal(f"segments:{path}", IDENTITY)
    assert image(path) == before


@pytest.mark.parametrize("below", ["", "below/it"])
def test_file_where_the_folder_should_be_is_refused_and_not_touched(path: Path, below: str) -> None:
    path.write_text("dear diary")
    for act in (lambda url: open_journal(url, IDENTITY), inspect_journal):
        with pytest.raises(ConfigError):
            act(f"segments:{path / below}")
    assert path.read_text() == "dear diary"


async def test_journal_of_another_fleet_or_format_is_refused_and_not_touched(path: Path) -> None:
    await fill(path)
    before = image(path)
    with pytest.raises(JournalForeign, match="belongs to fleet 'here'"):
        open_journal(f"segments:{path}", JournalIdentity("there", 3, 1))
    with pytest.raises(JournalForeign, match="made for 3 shards"):
        open_journal(f"segments:{path}", JournalIdentity("here", 4, 1))
    assert image(path) == before
    later = msgspec.msgpack.encode((4, "here", 3, 7, bytes(32)))
    (path / "identity").write_bytes(encode_frame(opening._IDENTITY_KEY, SegmentFrameKind.IDENTITY, 1, later))
    with pytest.raises(JournalForeign, match="format 4, this version reads 1 to 3"):
        open_journal(f"segments:{path}", IDENTITY)


async def test_lost_files_are_not_mistaken_for_a_new_journal(path: Path) -> None:
    await fill(path, groups=20)
    for names, text in (
        (["identity"], "segments without an identity"),
        (os.listdir(path), "gone"),
        ([name for name in os.listdir(path) if name.endswith(".log")], "acknowledged up to"),
    ):
        copy = path.with_name("copy")
        shutil.copytree(path, copy)
        shutil.copy(mark_of(path), mark_of(copy))
        for name in names:
            os.unlink(copy / name)
        with pytest.raises(JournalCorrupt, match=text):
            open_journal(f"segments:{copy}", IDENTITY)
        shutil.rmtree(copy)


async def test_older_copy_is_refused_until_it_gets_an_incarnation_of_its_own(path: Path) -> None:
    chain = await fill(path)
    copy = path.with_suffix(".copy")
    shutil.copytree(path, copy)
    journal = open_journal(f"segments:{path}", IDENTITY)
    await journal.append(chain.group([0]))
    await journal.close()
    shutil.copy(mark_of(path), mark_of(copy))
    with pytest.raises(JournalCorrupt, match="acknowledged up to 6, found 5"):
        open_journal(f"segments:{copy}", IDENTITY)
    with pytest.raises(ConfigError, match="incarnation"):
        renew_incarnation(f"segments:{copy}", -1)
    with pytest.raises(JournalCorrupt, match="acknowledged up to 6, found 5"):
        open_journal(f"segments:{copy}", IDENTITY)
    renew_incarnation(f"segments:{copy}", 8)
    journal = open_journal(f"segments:{copy}", IDENTITY)
    assert journal.identity == JournalIdentity("here", 3, 8)
    assert [head.position for head in journal.heads()] == [5, 5]
    await journal.append(CommitChain().group([2]))
    await journal.close()


async def test_link_to_a_journal_is_that_journal(path: Path) -> None:
    await fill(path)
    link = path.parent / "link"
    os.symlink(path, link)
    journal = open_journal(f"segments:{link}", IDENTITY)
    with pytest.raises(JournalLocked):
        open_journal(f"segments:{path}", IDENTITY)
    await journal.close()


@pytest.mark.parametrize("url", ["fleet", "segments:", "segments::memory:", "memory:", "sqlite:fleet.db"])
def test_url_that_names_no_folder_is_refused(url: str) -> None:
    with pytest.raises(ConfigError, match="expected segments:"):
        open_journal(url, IDENTITY)


def test_impossible_numbers_are_refused(path: Path) -> None:
    for identity in (
        JournalIdentity("here", 0, 1),
        JournalIdentity("here", 1, -1),
        JournalIdentity("here", 1, 1 << 63),
    ):
        with pytest.raises(ConfigError):
            open_journal(f"segments:{path}", identity)
    with pytest.raises(ConfigError, match="segment_bytes"):
        open_journal(f"segments:{path}", IDENTITY, segment_bytes=100)
    with pytest.raises(ConfigError, match="no such journal"):
        inspect_journal(f"segments:{path}")
    with pytest.raises(ConfigError, match="no such journal"):
        inspect_journal(f"segments:{path}/nowhere")


def test_folders_above_are_made(tmp_path: Path) -> None:
    asyncio.run(fill(tmp_path / "data" / "north" / "fleet"))
    assert (tmp_path / "data" / "north" / "fleet" / "identity").exists()


NO_RIGHTS = """
import os, sys
from stigmergy.journal.segments import inspect_journal, open_journal
from stigmergy.base.errors import ConfigError
from stigmergy.journal.port import JournalIdentity
if os.getuid() == 0:
    os.setuid(65534)
for act in (lambda url: open_journal(url, JournalIdentity("here", 3, 7)), inspect_journal):
    try:
        act("segments:" + sys.argv[1])
    except ConfigError as error:
        print(error)
"""


def test_folder_without_rights_is_refused_in_words() -> None:
    with tempfile.TemporaryDirectory() as name:
        path = Path(name)
        asyncio.run(fill(path))
        for one in path.iterdir():
            one.chmod(0o444)
        path.chmod(0o555)
        command = [sys.executable, "-c", NO_RIGHTS, name]
        done = subprocess.run(command, capture_output=True, text=True, check=True)
        assert done.stdout.count("Permission denied; check that folder and rights are there") == 2
        path.chmod(0o755)


# Who has it.

HOLDER = """
import sys, time
from stigmergy.journal.segments import open_journal
from stigmergy.journal.port import JournalIdentity
journal = open_journal("segments:" + sys.argv[1], JournalIdentity("here", 3, 7))
print("open", flush=True)
time.sleep(60)
"""


def test_journal_of_another_process_is_locked_until_that_is_killed(path: Path) -> None:
    asyncio.run(fill(path))
    holder = subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(HOLDER), str(path)], stdout=subprocess.PIPE, text=True
    )
    assert holder.stdout is not None
    try:
        assert holder.stdout.readline() == "open\n"
        for act in (lambda url: open_journal(url, IDENTITY), inspect_journal):
            with pytest.raises(JournalLocked, match=f"process {holder.pid}"):
                act(f"segments:{path}")
    finally:
        holder.kill()
        holder.wait()
        holder.stdout.close()
    inspect_journal(f"segments:{path}")._close()


# Looking at it.


async def test_inspection_changes_nothing_at_all(path: Path) -> None:
    journal, chain = open_journal(f"segments:{path}", IDENTITY, segment_bytes=4096), CommitChain()
    await journal.append(chain.group([2]))
    for _ in range(40):
        await journal.append(chain.group([0, 1], bytes(500)))
    await journal.put_snapshot(0, 30, [SnapshotPart(0, b"a")])
    await journal.drop(0, 30)
    await journal.drop(1, 30)
    await journal.close()
    before = image(path)
    assert {"kept", "spare", "identity", "fleet-mark", "snapshot-0-30"} < set(before)
    for look in (inspect_journal, partial(open_journal, identity=IDENTITY, read_only=True)):
        opened = look(f"segments:{path}")
        assert opened.identity == IDENTITY
        assert [len(list(opened.read(shard))) for shard in range(3)] == [10, 10, 1]
        assert [part.body for part in opened.read_snapshot(0, 30)] == [b"a"]
        assert opened.size().commits == 21
        with pytest.raises(Bug, match="reading only"):
            await opened.append(chain.group([0]))
        for write in (
            opened.put_snapshot(0, 1, [SnapshotPart(0, b"")]),
            opened.drop(0, 35),
            opened.drop_snapshot(0, 30),
        ):
            with pytest.raises(Bug, match="reading only"):
                await write
        await opened.close()
        assert image(path) == before


async def test_inspection_leaves_a_torn_end_as_it_is(disk: SimDisk) -> None:
    journal, chain = open_on(disk), CommitChain()
    await journal.append(chain.group([0, 1]))
    disk.kill()
    disk.restart()
    log = "fleet/0000000000000001.log"
    disk.put(log, disk.content(log) + b"STGF torn")
    before = {name: disk.content(name) for name in disk.paths()}
    journal = inspect_journal("segments:fleet", folder=SimFolder(disk, "fleet"))
    assert [head.position for head in journal.heads()] == [1, 1]
    await journal.close()
    assert {name: disk.content(name) for name in disk.paths()} == before
    journal = open_on(disk)
    await journal.append(chain.group([0, 1], bytes(300)))
    await journal.close()
    journal = open_on(disk)
    assert len(list(journal.read(0))) == 2


async def test_large_journal_opens_at_once(path: Path) -> None:
    await fill(path, groups=300, payload=bytes(10_000), segment_bytes=1 << 14)
    assert len(os.listdir(path)) > 290
    begun = time.process_time()  # others on this machine take none of it
    journal = open_journal(f"segments:{path}", IDENTITY)
    assert time.process_time() - begun < 0.5
    await journal.close()


async def test_half_made_journal_is_made_anew(disk: SimDisk) -> None:
    calls = disk.calls
    await open_on(disk).close()
    needed = disk.calls - calls
    for call in range(1, needed + 1):
        fresh = SimDisk(random.Random(call))
        fresh.fail(call, DiskFault.POWER_LOSS)
        with contextlib.suppress(JournalError, ConfigError):
            await open_on(fresh).close()
        fresh.restart()
        fresh.forgive()
        journal = open_on(fresh)
        await journal.append(CommitChain().group([0]))
        await journal.close()
        fresh.close()


# The mark of an earlier version lies in the folder.


def as_before(disk: SimDisk) -> None:
    """The journal as an earlier version would have left it."""
    disk.take_away("fleet-mark", "fleet/mark")


async def test_a_mark_in_the_folder_is_heeded_and_moved_beside_it(disk: SimDisk) -> None:
    journal, chain = open_on(disk), CommitChain()
    await journal.append(chain.group([0]))
    image = {name: disk.content(name) for name in disk.paths() if name != "fleet-mark"}
    await journal.append(chain.group([0]))
    await journal.close()
    as_before(disk)
    newest = {name: disk.content(name) for name in disk.paths()}
    for name, content in image.items():
        disk.put(name, content)
    with pytest.raises(JournalCorrupt, match="acknowledged up to 2, found 1"):
        open_on(disk)
    assert disk.content("fleet/mark") == newest["fleet/mark"]
    for name, content in newest.items():
        disk.put(name, content)
    looked_at = inspect_journal("segments:fleet", folder=SimFolder(disk, "fleet"))
    assert [head.position for head in looked_at.heads()] == [2]
    await looked_at.close()
    assert disk.content("fleet/mark") == newest["fleet/mark"]
    await open_on(disk).close()
    assert "fleet/mark" not in disk.paths()
    assert decode_mark(disk.content("fleet-mark")) == structs.replace(
        decode_mark(newest["fleet/mark"]) or AcknowledgedHead(0, 0, 0, 0), pid=os.getpid()
    )


async def test_a_program_of_an_earlier_version_that_has_the_journal_is_not_disturbed(path: Path) -> None:
    await fill(path)
    mark_of(path).rename(path / "mark")
    claim = OsFileLock(str(path / "mark"))
    with pytest.raises(JournalLocked, match=f"process {os.getpid()}"):
        open_journal(f"segments:{path}", IDENTITY)
    assert (path / "mark").exists()
    claim.close()
    await open_journal(f"segments:{path}", IDENTITY).close()
    assert not (path / "mark").exists()


@pytest.mark.parametrize("fault", [DiskFault.POWER_LOSS, DiskFault.KILL])
async def test_a_mark_survives_a_crash_at_any_call_while_it_is_moved(fault: DiskFault) -> None:
    """Whatever is left then, an older copy of the segments is still refused."""
    calls = crashes = 0
    while True:
        disk = SimDisk(random.Random(calls))
        journal, chain = open_on(disk), CommitChain()
        await journal.append(chain.group([0]))
        await journal.close()
        older = {name: disk.content(name) for name in disk.paths() if name.endswith((".log", "identity"))}
        journal = open_on(disk)
        await journal.append(chain.group([0]))
        await journal.close()
        as_before(disk)
        for name in disk.paths():
            disk.put(name, disk.content(name))
        disk.fail(disk.calls + calls + 1, fault)
        try:
            await open_on(disk).close()
        except StigmergyError:
            crashes += 1
        over = not disk.down
        disk.forgive()
        disk.restart()
        for name, content in older.items():
            disk.put(name, content)
        with pytest.raises(JournalCorrupt, match="acknowledged up to 2, found 1"):
            open_on(disk)
        disk.close()
        calls += 1
        if over:
            break
    assert crashes > 5
