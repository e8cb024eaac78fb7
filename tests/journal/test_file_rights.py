"""The files of a journal are its owner's alone, and nobody leads a write elsewhere by putting a link in their place."""

import contextlib
import os
import stat
from collections.abc import Iterator
from pathlib import Path

import pytest

from stigmergy.audit.archive_folder import HoldsFile
from stigmergy.base.errors import ConfigError, JournalError, LedgerCorrupt, StigmergyError
from stigmergy.claims import sqlite_ledger
from stigmergy.journal import segments, sqlite
from stigmergy.journal.port import Journal, JournalIdentity, SnapshotPart
from stigmergy.testing.journal_contract import CommitChain

IDENTITY = JournalIdentity(fleet="own", shards=2, incarnation=7)
URLS = ["sqlite:{}/fleet.db", "segments:{}/fleet"]


@pytest.fixture(autouse=True)
def _nothing_is_masked() -> Iterator[None]:
    before = os.umask(0)
    yield
    os.umask(before)


@pytest.fixture(params=URLS)
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    return str(request.param).format(tmp_path)


def open_journal(url: str) -> Journal:
    if url.startswith("sqlite:"):
        return sqlite.open_journal(url, IDENTITY, wal_bytes_max=50_000)
    return segments.open_journal(url, IDENTITY, segment_bytes=4096)


async def use(url: str, first: int = 1) -> None:
    journal, chain = open_journal(url), CommitChain()
    for position in range(1, first + 20):
        group = chain.group([0, 1], bytes(500))
        if position >= first:
            await journal.append(group)
    await journal.put_snapshot(0, first + 5, [SnapshotPart(0, b"part")])
    await journal.drop(0, first + 5)
    await journal.close()


def modes(folder: Path) -> dict[str, int]:
    return {str(path.relative_to(folder)): stat.S_IMODE(path.lstat().st_mode) for path in sorted(folder.rglob("*"))}


def wanted(folder: Path) -> dict[str, int]:
    return {name: 0o700 if (folder / name).is_dir() else 0o600 for name in modes(folder)}


async def test_what_a_journal_makes_is_for_its_owner_only(url: str, tmp_path: Path) -> None:
    await use(url)
    assert len(modes(tmp_path)) >= 3
    assert modes(tmp_path) == wanted(tmp_path)


async def test_what_is_found_open_to_others_is_closed_to_them(url: str, tmp_path: Path) -> None:
    await use(url)
    open_to_all(tmp_path)
    await use(url, first=21)
    secret = [name for name in modes(tmp_path) if "/" not in name and not name.endswith("-reserve")]
    assert [modes(tmp_path)[name] for name in secret] == [wanted(tmp_path)[name] for name in secret]


def open_to_all(folder: Path) -> None:
    for path in folder.rglob("*"):
        path.chmod(0o777 if path.is_dir() else 0o666)


async def test_a_log_ahead_that_was_left_is_closed_to_others(tmp_path: Path) -> None:
    journal = sqlite.open_journal(f"sqlite:{tmp_path}/fleet.db", IDENTITY)
    await journal.append(CommitChain().group([0]))
    assert modes(tmp_path)["fleet.db-wal"] == 0o600
    await journal.close()


@pytest.mark.parametrize("ending", ["-mark", "-wal"])
@pytest.mark.parametrize("begun", [False, True])
async def test_a_link_beside_a_journal_is_never_followed(url: str, tmp_path: Path, ending: str, begun: bool) -> None:
    if ending == "-wal" and url.startswith("segments:"):
        return
    victim = tmp_path / "victim"
    path = url.partition(":")[2]
    if begun:
        await use(url)
    plant(path + ending, victim)
    with pytest.raises(StigmergyError):
        await use(url, first=21 if begun else 1)
    assert kept(victim)


async def test_a_link_is_named_in_the_refusal(url: str, tmp_path: Path) -> None:
    plant(url.partition(":")[2] + "-mark", tmp_path / "victim")
    with pytest.raises(ConfigError, match="is a symbolic link, which is not followed: remove it"):
        open_journal(url)


def plant(link: str, victim: Path) -> None:
    victim.write_text("dear diary")
    Path(link).unlink(missing_ok=True)
    Path(link).symlink_to(victim)


def kept(victim: Path) -> bool:
    return victim.read_text() == "dear diary" and stat.S_IMODE(victim.stat().st_mode) == 0o666


@pytest.mark.parametrize("link", ["fleet.db-reserve", "fleet.db.new", "fleet.db-holds.new"])
async def test_links_in_the_place_of_what_is_made_are_not_followed(tmp_path: Path, link: str) -> None:
    victim = tmp_path / "victim"
    plant(str(tmp_path / link), victim)
    await use(f"sqlite:{tmp_path}/fleet.db")
    HoldsFile(tmp_path / "fleet.db-holds").save(b"held")
    assert kept(victim)


@pytest.mark.parametrize("link", ["identity.new", "spare", "0000000000000001.log", "kept.new"])
async def test_links_in_a_folder_are_not_followed(tmp_path: Path, link: str) -> None:
    victim = tmp_path / "victim"
    make_folder(tmp_path / "fleet")
    plant(str(tmp_path / "fleet" / link), victim)
    with contextlib.suppress(StigmergyError):
        await use(f"segments:{tmp_path}/fleet")
    assert kept(victim)


def make_folder(path: Path) -> None:
    path.mkdir()


def test_holds_are_for_their_owner_only(tmp_path: Path) -> None:
    holds = HoldsFile(tmp_path / "fleet.db-holds")
    holds.save(b"held")
    assert modes(tmp_path) == {"fleet.db-holds": 0o600}
    (tmp_path / "fleet.db-holds").chmod(0o644)
    assert holds.load() == b"held"
    assert modes(tmp_path) == {"fleet.db-holds": 0o600}
    plant(str(holds.path), tmp_path / "victim")
    with pytest.raises(JournalError):
        holds.load()
    with pytest.raises(JournalError, match="symbolic link"):
        holds.save(b"other")
    assert kept(tmp_path / "victim")


async def test_a_ledger_refuses_a_linked_and_a_damaged_mark(tmp_path: Path) -> None:
    url, mark = f"sqlite:{tmp_path}/ledger.db", tmp_path / "ledger.db-mark"
    plant(str(mark), tmp_path / "victim")
    with pytest.raises(ConfigError, match="symbolic link"):
        sqlite_ledger.open_ledger(url, "own")
    assert kept(tmp_path / "victim")
    write_text(mark, "x" * 40)
    with pytest.raises(LedgerCorrupt, match="the mark is damaged"):
        sqlite_ledger.open_ledger(url, "own")
    write_text(mark, "")
    await sqlite_ledger.open_ledger(url, "own").close()
    assert modes(tmp_path)["ledger.db"] == modes(tmp_path)["ledger.db-mark"] == 0o600
    write_text(mark, "x" * 40)
    with pytest.raises(LedgerCorrupt, match="the mark is damaged"):
        sqlite_ledger.open_ledger(url, "own")


def write_text(path: Path, text: str) -> None:
    if path.is_symlink():
        path.unlink()
    path.write_text(text)
