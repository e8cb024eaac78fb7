"""The ledger in a SQLite file, beyond the contract: processes that are killed, damage, foreign files, full disks."""

from __future__ import annotations

import asyncio
import random
import shutil
import subprocess
import sys
import time
from pathlib import Path

import apsw
import pytest

from stigmergy.base.errors import (
    ConfigError,
    LedgerCorrupt,
    LedgerError,
    LedgerFailed,
    LedgerForeign,
    LedgerUnavailable,
    LedgerUnknown,
)
from stigmergy.claims import sqlite_file as ledger_file
from stigmergy.claims.port import LedgerCheckpoint, LedgerEntry
from stigmergy.claims.sqlite_ledger import open_ledger
from stigmergy.testing.ledger_contract import read_all

WRITERS = 3
KILLS = 6

WRITER = """
import asyncio, sys
from stigmergy.claims.sqlite_ledger import open_ledger
from stigmergy.base.errors import LedgerUnavailable

async def main():
    ledger = open_ledger("sqlite:" + sys.argv[1], "fleet")
    number = 0
    while True:
        number += 1
        bodies = [f"{sys.argv[2]} {number} {part}".encode() for part in range(3)]
        try:
            first = await ledger.append(bodies)
        except LedgerUnavailable:
            continue
        sys.stdout.write(f"{first} {number}\\n")
        sys.stdout.flush()

asyncio.run(main())
"""


def start_writer(path: Path, name: str) -> subprocess.Popen[str]:
    return subprocess.Popen([sys.executable, "-c", WRITER, str(path), name], stdout=subprocess.PIPE, text=True)


async def entries_of(path: Path) -> list[LedgerEntry]:
    ledger = open_ledger(f"sqlite:{path}", "fleet")
    try:
        return await read_all(ledger)
    finally:
        await ledger.close()


def test_processes_share_one_order_and_a_kill_loses_nothing_acknowledged(tmp_path: Path) -> None:
    """Several processes append to one file and are killed at random moments, again and again."""
    path, chance = tmp_path / "ledger.db", random.Random(5)
    said: dict[int, str] = {}
    running: dict[str, subprocess.Popen[str]] = {}
    for number in range(WRITERS):
        running[f"w{number}"] = start_writer(path, f"w{number}")
    for writer in running.values():
        assert writer.stdout is not None
        assert writer.stdout.readline()
    for number in range(KILLS):
        time.sleep(chance.random() * 0.15)
        name = chance.choice(list(running))
        collect(running.pop(name), name, said)
        if number < KILLS - WRITERS:
            running[f"k{number}"] = start_writer(path, f"k{number}")
    assert not running
    last = start_writer(path, "last")  # however few the killed ones had written in their time
    assert last.stdout is not None
    for _ in range(21):
        first, _, number_text = last.stdout.readline().strip().partition(" ")
        said[int(first)] = f"last {number_text}"
    collect(last, "last", said)
    entries = asyncio.run(entries_of(path))
    assert [entry.position for entry in entries] == list(range(1, len(entries) + 1))
    texts = [entry.body.decode() for entry in entries]
    for position, text in said.items():
        assert [f"{text} {part}" for part in range(3)] == texts[position - 1 : position + 2], "an acknowledged append"
    whole = [text.rpartition(" ")[0] for text in texts]
    assert whole[::3] == whole[1::3] == whole[2::3], "a torn append"
    by_writer: dict[str, list[int]] = {}
    for text in whole[::3]:
        name, _, number_text = text.partition(" ")
        by_writer.setdefault(name, []).append(int(number_text))
    assert all(numbers == sorted(set(numbers)) for numbers in by_writer.values()), "out of order, or doubled"
    assert len(said) > 20


def collect(writer: subprocess.Popen[str], name: str, said: dict[int, str]) -> None:
    """Kills a writer and notes what it had been told."""
    with writer:
        writer.kill()
        assert writer.stdout is not None
        for line in writer.stdout.read().splitlines(keepends=True):
            if line.endswith("\n"):
                position, number = line.split()
                said[int(position)] = f"{name} {number}"


def forget(path: Path) -> None:
    """The file and what lies beside it."""
    for left in path.parent.glob(f"{path.name}*"):
        left.unlink()


async def make(path: Path) -> list[LedgerEntry]:
    ledger = open_ledger(f"sqlite:{path}", "fleet")
    for number in range(8):
        await ledger.append([b"%d.%d" % (number, part) * 20 for part in range(10)])
    await ledger.put_checkpoint(LedgerCheckpoint(20, b"state" * 100))
    await ledger.cut(20)
    entries = await ledger.read(20)
    await ledger.close()
    return entries


async def look(path: Path) -> tuple[list[LedgerEntry], LedgerCheckpoint | None]:
    ledger = open_ledger(f"sqlite:{path}", "fleet")
    try:
        return await read_all(ledger, after=20), await ledger.checkpoint()
    finally:
        await ledger.close()


async def test_damage_is_never_read_as_something_else(tmp_path: Path) -> None:
    path = tmp_path / "ledger.db"
    good = await make(path)
    checkpoint = LedgerCheckpoint(20, b"state" * 100)
    data = path.read_bytes()
    chance = random.Random(3)
    refused = 0
    copy = tmp_path / "copy.db"
    for offset in [*range(0, 100, 7), *(chance.randrange(len(data)) for _ in range(150))]:
        flipped = bytearray(data)
        flipped[offset] ^= 1 << chance.randrange(8)
        copy.write_bytes(bytes(flipped))
        try:
            found = await look(copy)
        except LedgerError:
            refused += 1
        else:
            assert found == (good, checkpoint), f"byte {offset} was flipped, and nobody noticed"
        forget(copy)
    assert refused > 10


async def test_a_file_that_was_cut_or_replaced_is_refused(tmp_path: Path) -> None:
    path, older = tmp_path / "ledger.db", tmp_path / "older.db"
    await make(path)
    shutil.copyfile(path, older)
    ledger = open_ledger(f"sqlite:{path}", "fleet")
    await ledger.append([b"one more"])
    await ledger.close()
    path.write_bytes(path.read_bytes()[:-4096])
    with pytest.raises(LedgerError):
        await look(path)
    shutil.copyfile(older, path)
    with pytest.raises(LedgerCorrupt, match="acknowledged up to 81, found 80"):
        open_ledger(f"sqlite:{path}", "fleet")
    path.unlink()
    with pytest.raises(LedgerCorrupt, match="gone or empty"):
        open_ledger(f"sqlite:{path}", "fleet")
    forget(path)
    shutil.copyfile(older, path)
    assert len((await look(path))[0]) == 60


@pytest.mark.parametrize(
    ("change", "error"),
    [
        ("UPDATE ledger SET last = last - 1", LedgerCorrupt),
        ("DELETE FROM entries WHERE position = 50", LedgerCorrupt),
        ("DELETE FROM entries WHERE position >= 79", LedgerCorrupt),
        ("UPDATE entries SET body = x'00' WHERE position = 50", LedgerCorrupt),
        ("UPDATE entries SET chain = x'00' WHERE position = 20", None),
        ("UPDATE checkpoint SET position = 21", LedgerCorrupt),
        ("DELETE FROM ledger", LedgerCorrupt),
        ("PRAGMA user_version = 9", LedgerForeign),
        ("PRAGMA application_id = 9", LedgerForeign),
    ],
)
async def test_what_others_have_changed_is_noticed(
    tmp_path: Path, change: str, error: type[LedgerError] | None
) -> None:
    path = tmp_path / "ledger.db"
    good = await make(path)
    connection = apsw.Connection(str(path))
    connection.execute(change)
    connection.close()
    if error is None:
        assert (await look(path))[0] == good
        return
    with pytest.raises(error):
        await look(path)


async def test_foreign_files_are_not_touched(tmp_path: Path) -> None:
    path = tmp_path / "ledger.db"
    path.write_bytes(b"these are the notes of somebody else" * 100)
    with pytest.raises(LedgerForeign):
        open_ledger(f"sqlite:{path}", "fleet")
    assert path.read_bytes() == b"these are the notes of somebody else" * 100
    for url in ("sqlite:", "sqlite::memory:", "memory:x", "ledger.db"):
        with pytest.raises(ConfigError):
            open_ledger(url, "fleet")
    with pytest.raises(ConfigError):
        open_ledger(f"sqlite:{tmp_path}/no/such/folder/ledger.db", "fleet")


async def test_others_that_write_for_too_long(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ledger_file, "BUSY_MS", 30)
    path = tmp_path / "ledger.db"
    ledger = open_ledger(f"sqlite:{path}", "fleet")
    await ledger.append([b"first"])
    other = apsw.Connection(str(path))
    other.execute("BEGIN EXCLUSIVE")
    with pytest.raises(LedgerUnavailable):
        await ledger.append([b"second"])
    with pytest.raises(LedgerUnavailable):
        await ledger.read(0)
    other.execute("ROLLBACK")
    other.close()
    assert await ledger.append([b"third"]) == 2
    assert [entry.body for entry in await ledger.read(0)] == [b"first", b"third"]
    await ledger.close()


async def test_a_full_disk_keeps_nothing(tmp_path: Path) -> None:
    ledger = open_ledger(f"sqlite:{tmp_path}/ledger.db", "fleet")
    await ledger.append([b"first"])
    await ledger._run(lambda: ledger._connection.pragma("max_page_count", 8))
    with pytest.raises(LedgerUnavailable, match="no room"):
        await ledger.append([bytes(4096)] * 20)
    await ledger.append([b"small"])
    kept = len(await ledger.read(0))
    await ledger._run(lambda: ledger._connection.pragma("max_page_count", 100))
    assert await ledger.append([b"last"]) == kept + 1
    await ledger.close()


async def test_who_gives_up_waiting_takes_nothing_back(tmp_path: Path) -> None:
    ledger = open_ledger(f"sqlite:{tmp_path}/ledger.db", "fleet")
    task = asyncio.ensure_future(ledger.append([b"first"]))
    await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    await ledger.read(0)  # it is behind the append in the thread
    await asyncio.sleep(0)
    assert await ledger.append([b"second"]) == 2
    await ledger.close()


@pytest.mark.parametrize(
    ("is_replaced", "said"),
    [
        (False, "somebody removed or renamed it while the ledger was open; .*: put the file back and start the node"),
        (True, "another file was put in its place while the ledger was open; .*: put the right file back and start"),
    ],
)
async def test_a_file_that_was_away_once_is_lost_to_the_connection(
    tmp_path: Path, is_replaced: bool, said: str
) -> None:
    path, away = tmp_path / "ledger.db", tmp_path / "away.db"
    ledger = open_ledger(f"sqlite:{path}", "fleet")
    await ledger.append([b"first"])
    path.rename(away)
    if is_replaced:
        shutil.copyfile(away, path)
    with pytest.raises(LedgerUnknown, match=said):
        await ledger.append([b"second"])
    away.replace(path)
    for call in (ledger.read(0), ledger.append([b"second"])):
        with pytest.raises(LedgerFailed, match=said):
            await call
    await ledger.close()
    assert [entry.body for entry in await entries_of(path)] == [b"first"]
