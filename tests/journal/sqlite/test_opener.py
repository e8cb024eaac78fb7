"""Opening a SQLite journal: what is refused, what is left untouched, who has it."""

import asyncio
import contextlib
import os
import random
import shutil
import sqlite3
import subprocess
import sys
import textwrap
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import apsw
import pytest

from stigmergy.base.errors import Bug, ConfigError, JournalCorrupt, JournalError, JournalForeign, JournalLocked
from stigmergy.journal.port import JournalIdentity
from stigmergy.journal.sqlite import SqliteJournal, inspect_journal, open_journal, renew_incarnation
from stigmergy.sim.disk import DiskFault, SimDisk
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


async def fill_nothing(path: Path) -> None:
    await open_journal(f"sqlite:{path}", IDENTITY).close()


def image(path: Path) -> dict[str, bytes]:
    """Everything beside the journal, so that a refusal can be shown to have changed nothing."""
    return {found.name: found.read_bytes() for found in sorted(path.parent.iterdir())}


# What is not ours.


def make_text(path: Path) -> None:
    path.write_text("dear diary, " * 100)


def make_other_database(path: Path) -> None:
    with sqlite3.connect(path) as connection:
        connection.execute("CREATE TABLE notes(text)")


def make_later_format(path: Path) -> None:
    asyncio.run(fill(path))
    connection = apsw.Connection(str(path))
    connection.pragma("user_version", 4)
    connection.close()


@pytest.mark.parametrize("make", [make_text, make_other_database, make_later_format])
def test_foreign_file_is_refused_and_not_touched(path: Path, make: Callable[[Path], None]) -> None:
    make(path)
    before = image(path)
    with pytest.raises(JournalForeign, match=r"fleet\.db"):
        open_journal(f"sqlite:{path}", IDENTITY)
    assert image(path) == before


async def test_journal_of_another_fleet_is_refused_and_not_touched(path: Path) -> None:
    await fill(path)
    before = image(path)
    with pytest.raises(JournalForeign, match="belongs to fleet 'here'"):
        open_journal(f"sqlite:{path}", JournalIdentity("there", 3, 1))
    assert image(path) == before


@pytest.mark.parametrize("size", [1, 50, 99, 100, 4096, 5000, 8192])
async def test_cut_file_is_refused_and_not_touched(path: Path, size: int) -> None:
    await fill(path, groups=50)
    os.truncate(path, size)
    before = image(path)
    with pytest.raises(JournalCorrupt):
        open_journal(f"sqlite:{path}", IDENTITY)
    assert image(path) == before


async def test_lost_database_is_not_mistaken_for_a_new_journal(path: Path) -> None:
    await fill(path)
    os.unlink(path)
    with pytest.raises(JournalCorrupt, match="gone"):
        open_journal(f"sqlite:{path}", IDENTITY)
    os.close(os.open(path, os.O_CREAT))
    with pytest.raises(JournalCorrupt, match="gone"):
        open_journal(f"sqlite:{path}", IDENTITY)


async def test_older_copy_is_refused_until_it_gets_an_incarnation_of_its_own(path: Path) -> None:
    chain = await fill(path)
    copy = shutil.copy(path, path.with_suffix(".copy"))
    journal = open_journal(f"sqlite:{path}", IDENTITY)
    await journal.append(chain.group([0]))
    await journal.close()
    os.replace(copy, path)
    with pytest.raises(JournalCorrupt, match="acknowledged up to 6, found 5"):
        open_journal(f"sqlite:{path}", IDENTITY)
    renew_incarnation(f"sqlite:{path}", 8)
    journal = open_journal(f"sqlite:{path}", IDENTITY)
    assert journal.identity == JournalIdentity("here", 3, 8)
    assert [head.position for head in journal.heads()] == [5, 5]
    await journal.close()


async def test_link_to_a_journal_is_that_journal(path: Path) -> None:
    await fill(path)
    link = path.parent / "elsewhere" / "link.db"
    os.mkdir(link.parent)
    os.symlink(path, link)
    journal = open_journal(f"sqlite:{link}", IDENTITY)
    with pytest.raises(JournalLocked):
        open_journal(f"sqlite:{path}", IDENTITY)
    await journal.close()
    assert os.listdir(link.parent) == ["link.db"]


async def test_rollback_journal_of_another_program_is_refused(path: Path) -> None:
    await fill(path)
    os.symlink(path, f"{path}-journal")
    with pytest.raises(JournalCorrupt, match="rollback journal"):
        open_journal(f"sqlite:{path}", IDENTITY)


@pytest.mark.parametrize("url", ["fleet.db", "sqlite:", "sqlite::memory:", "memory:"])
def test_url_that_names_no_file_is_refused(url: str) -> None:
    with pytest.raises(ConfigError, match="expected sqlite:"):
        open_journal(url, IDENTITY)


def test_name_that_is_too_long_is_no_failure_of_the_device(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="name too long"):
        open_journal(f"sqlite:{tmp_path}/{'n' * 300}.db", IDENTITY)


def test_missing_folder_and_impossible_numbers_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError):
        open_journal(f"sqlite:{tmp_path}/nowhere/fleet.db", IDENTITY)
    for identity in (
        JournalIdentity("here", 0, 1),
        JournalIdentity("here", 1, -1),
        JournalIdentity("here", 1, 1 << 63),
    ):
        with pytest.raises(ConfigError):
            open_journal(f"sqlite:{tmp_path}/fleet.db", identity)
    with pytest.raises(ConfigError, match="no such journal"):
        inspect_journal(f"sqlite:{tmp_path}/fleet.db")


# Who has it.

HOLDER = """
import sys, time
from stigmergy.journal.sqlite import open_journal
from stigmergy.journal.port import JournalIdentity
journal = open_journal("sqlite:" + sys.argv[1], JournalIdentity("here", 3, 7))
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
        with pytest.raises(JournalLocked, match=f"process {holder.pid}"):
            open_journal(f"sqlite:{path}", IDENTITY)
        with pytest.raises(JournalLocked):
            inspect_journal(f"sqlite:{path}")
        with pytest.raises(sqlite3.OperationalError, match="locked"):
            sqlite3.connect(path, timeout=0).execute("SELECT count(*) FROM commits")
    finally:
        holder.kill()
        holder.wait()
        holder.stdout.close()
    asyncio.run(fill_nothing(path))


async def test_file_that_another_program_reads_is_locked(path: Path) -> None:
    await fill(path)
    reader = apsw.Connection(str(path))
    reader.execute("BEGIN; SELECT count(*) FROM commits")
    with pytest.raises(JournalLocked, match="another program"):
        open_journal(f"sqlite:{path}", IDENTITY)
    reader.close(True)


# Looking at it.


async def test_inspection_changes_neither_database_nor_wal(disk: SimDisk) -> None:
    journal, chain = open_on(disk), CommitChain()
    await journal.append(chain.group([0, 1]))
    disk.kill()
    disk.restart()
    before = {name: disk.content(name) for name in disk.paths()}
    journal = inspect_journal("sqlite:fleet.db", vfs=disk.vfs, files=disk)
    assert journal.identity == IDENTITY
    assert [head.position for head in journal.heads()] == [1, 1]
    assert len(list(journal.read(0))) == 1
    with pytest.raises(Bug, match="reading only"):
        await journal.append(chain.group([0]))
    await journal.close()
    assert {name: disk.content(name) for name in disk.paths()} == before


async def test_closed_journal_is_one_file_that_any_tool_reads(path: Path) -> None:
    await fill(path)
    assert sorted(image(path)) == ["fleet.db", "fleet.db-mark", "fleet.db-reserve"]
    connection = apsw.Connection(str(path), flags=apsw.SQLITE_OPEN_READONLY)
    assert connection.execute("SELECT count(*), sum(signature IS NULL) FROM commits").fetchall() == [(10, 5)]
    assert connection.pragma("integrity_check") == "ok"
    connection.close()


async def test_large_journal_opens_at_once(path: Path) -> None:
    await fill(path, groups=400, payload=bytes(20_000))
    begun = time.process_time()  # others on this machine take none of it
    journal = open_journal(f"sqlite:{path}", IDENTITY)
    assert time.process_time() - begun < 0.3
    await journal.close()


async def test_half_made_journal_is_made_anew(disk: SimDisk) -> None:
    calls = disk.calls
    await open_on(disk).close()
    needed = disk.calls - calls
    for call in range(1, needed):
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
