"""The file of a SQLite ledger: its tables, how it is made, opened and refused, and how it checks itself.

A new file is made under another name and renamed when it is complete. Opening never changes a file that it refuses.
Nothing here opens the database except through SQLite: closing it would release the locks of every other connection in
the process.
"""

from __future__ import annotations

import os
import time
from typing import Any

import apsw
import msgspec
from blake3 import blake3
from msgspec import Struct

from stigmergy.base.errors import ConfigError, LedgerCorrupt, LedgerError, LedgerForeign, LedgerUnavailable
from stigmergy.claims.port import check_name
from stigmergy.journal.files import FileLock, OsFiles, open_own
from stigmergy.journal.identity import MARK_BYTES, AcknowledgedHead, decode_mark, mark_path

SCHEME = "sqlite:"
APPLICATION_ID = 0x5354474C
"""STGL; `file ledger.db` shows it."""
FORMAT = 1
BUSY_MS = 5_000
"""How long a call waits for other processes before the ledger counts as unavailable."""
BUSY_LOOK_MS = 2
"""How often it polls meanwhile. SQLite's own pauses grow to 100 ms, in which a constant writer gets ahead."""
CHAIN_BYTES = 16
MARK_READS = 5
INCARNATION_BYTES = 6
_CHAIN_CONTEXT = "stigmergy 2026 entries of a ledger file"
START = bytes(CHAIN_BYTES)
RESTORE = "restore the ledger from a copy"

TABLES = """
CREATE TABLE ledger(
    only INTEGER PRIMARY KEY CHECK (only = 1), name TEXT NOT NULL, incarnation INTEGER NOT NULL,
    first INTEGER NOT NULL, before BLOB NOT NULL, last INTEGER NOT NULL, chain BLOB NOT NULL, checksum INTEGER NOT NULL
) STRICT;
CREATE TABLE entries(position INTEGER PRIMARY KEY, chain BLOB NOT NULL, body BLOB NOT NULL) STRICT;
CREATE TABLE checkpoint(
    only INTEGER PRIMARY KEY CHECK (only = 1), position INTEGER NOT NULL, digest BLOB NOT NULL, body BLOB NOT NULL
) STRICT;
"""


class LedgerHeader(Struct, frozen=True):
    """The table `ledger`: where the log begins and ends."""

    name: str
    incarnation: int
    first: int
    before: bytes
    """The chain of the last entry that was cut off."""
    last: int
    chain: bytes

    def row(self) -> tuple[Any, ...]:
        """The row, with its checksum."""
        values = msgspec.structs.astuple(self)
        return (1, *values, _checksum(values))


class OpenedFile(Struct):
    """The result of opening; the ledger takes it over."""

    path: str
    record: LedgerHeader
    connection: apsw.Connection
    mark: int
    """The open file descriptor of the mark."""


def open_file(url: str, name: str) -> OpenedFile:
    """Opens the file of a ledger; makes it if it is missing."""
    path = url.removeprefix(SCHEME)
    if path == url or not path or path.startswith(":"):
        raise ConfigError(f"ledger {url!r}: expected {SCHEME}path/to/ledger.db")
    check_name(name)
    path = os.path.realpath(path)
    mark: int | None = None
    connection: apsw.Connection | None = None
    try:
        _make_if_missing(path, name)
        # Before the record is read: that holds at least what was acknowledged when the mark was written.
        mark = open_own(mark_path(path), os.O_RDWR | os.O_CREAT)
        witnessed = read_witness(mark, path)
        connection = _connect(path, apsw.SQLITE_OPEN_READWRITE)
        record = examine(connection, path, name, witnessed)
    except BaseException as error:
        if connection is not None:
            connection.close(True)
        if mark is not None:
            os.close(mark)
        if isinstance(error, apsw.Error | OSError):
            raise opening_error(error, path) from error
        raise
    return OpenedFile(path, record, connection, mark)


def _make_if_missing(path: str, name: str) -> None:
    """Makes the file under another name and renames it when it is complete; if several try, one succeeds."""
    files = OsFiles()
    if files.size(path):
        return
    claim = _claim(files, path)
    try:
        if files.size(path):
            return
        found = decode_witness(claim.read(), path)
        if found is not None and found.position > 0:
            raise LedgerCorrupt(
                f"{path}: the file is gone or empty, but by its -mark there were entries; {RESTORE}, or remove "
                "the mark to start empty"
            )
        fresh = path + ".new"
        for leftover in (fresh, fresh + "-journal"):
            files.remove(leftover)
        files.make(fresh)
        connection = _connect(fresh, apsw.SQLITE_OPEN_READWRITE | apsw.SQLITE_OPEN_CREATE)
        try:
            connection.pragma("application_id", APPLICATION_ID)
            connection.pragma("user_version", FORMAT)
            connection.execute(TABLES)
            incarnation = int.from_bytes(os.urandom(INCARNATION_BYTES), "big") + 1
            record = LedgerHeader(name, incarnation, 1, START, 0, START)
            connection.execute("INSERT INTO ledger VALUES (?, ?, ?, ?, ?, ?, ?, ?)", record.row())
        finally:
            connection.close(True)
        files.remove(fresh + "-journal")
        files.replace(fresh, path)
    finally:
        claim.close()


def read_witness(mark: int, path: str) -> AcknowledgedHead | None:
    """The mark of the ledger. Others may be writing it: if its check fails it is read again."""
    for _ in range(MARK_READS - 1):
        data = os.pread(mark, MARK_BYTES, 0)
        if decode_mark(data) is not None or not any(data):
            break
        time.sleep(0.01)
    return decode_witness(os.pread(mark, MARK_BYTES, 0), path)


def decode_witness(data: bytes, path: str) -> AcknowledgedHead | None:
    """Decodes the mark; None for a blank one. Raises LedgerCorrupt."""
    mark = decode_mark(data)
    if mark is None and any(data):
        raise LedgerCorrupt(
            f"{mark_path(path)}: the mark is damaged, so the end of the ledger is unknown; {RESTORE}, or, if "
            "you are sure that the ledger is the newest one, remove the mark"
        )
    return mark


def _claim(files: OsFiles, path: str) -> FileLock:
    deadline_s = time.monotonic() + BUSY_MS / 1000
    while True:
        try:
            return files.claim(mark_path(path))
        except BlockingIOError:
            if time.monotonic() > deadline_s:
                raise LedgerUnavailable(f"{path}: another process is making the ledger; try again") from None
            time.sleep(0.01)


def _connect(path: str, flags: int) -> apsw.Connection:
    connection = apsw.Connection(path, flags=flags)
    try:
        connection.set_busy_handler(_wait_a_little)
        connection.pragma("journal_mode", "TRUNCATE")
        connection.pragma("synchronous", "FULL")
        connection.pragma("cell_size_check", True)
        connection.pragma("temp_store", "MEMORY")
    except BaseException:
        connection.close(True)
        raise
    return connection


def _wait_a_little(calls: int) -> bool:
    """Another process has the file: whether to try again, after a random pause."""
    time.sleep(BUSY_LOOK_MS / 1000 * (1 + calls % 3 / 2))
    return calls * BUSY_LOOK_MS * 1.5 < BUSY_MS


def examine(
    connection: apsw.Connection, path: str, name: str | None, witnessed: AcknowledgedHead | None
) -> LedgerHeader:
    """Refuses a file of another program, name or later format, or with less than was acknowledged."""
    if connection.pragma("application_id") != APPLICATION_ID:
        raise LedgerForeign(f"{path}: a database of another program; name the right file, it was not touched")
    if (version := connection.pragma("user_version")) != FORMAT:
        raise LedgerForeign(f"{path}: ledger format {version}, this version reads {FORMAT}; use the one that wrote it")
    record = read_record(connection, path)
    if name is not None and record.name != name:
        raise LedgerForeign(f"{path}: the ledger {record.name!r}, not {name!r}; name another file for it")
    if witnessed is not None and witnessed.incarnation == record.incarnation and witnessed.position > record.last:
        raise LedgerCorrupt(
            f"{path}: was acknowledged up to {witnessed.position}, found {record.last}; {RESTORE}, or, if this is "
            "one, remove its -mark: tokens may then be given twice, so forget what devices remember"
        )
    return record


def read_record(connection: apsw.Connection, path: str) -> LedgerHeader:
    """Where the log begins and ends."""
    rows = connection.execute("SELECT * FROM ledger").fetchall()
    match rows:
        case [(1, str(name), int(incarnation), int(first), bytes(before), int(last), bytes(chain), int(checksum))]:
            record = LedgerHeader(name, incarnation, first, before, last, chain)
            if checksum == _checksum(msgspec.structs.astuple(record)):
                return record
        case _:
            pass
    raise LedgerCorrupt(f"{path}: the record of where the log begins and ends is damaged; {RESTORE}")


def link(chain: bytes, position: int, body: bytes) -> bytes:
    """The digest of an entry and all before it."""
    data = chain + position.to_bytes(8, "big") + body
    return blake3(data, derive_key_context=_CHAIN_CONTEXT).digest(CHAIN_BYTES)


def _checksum(values: tuple[Any, ...]) -> int:
    """Against flipped bits, not against attackers: entries that matter are signed."""
    return int.from_bytes(blake3(msgspec.msgpack.encode(values)).digest(4), "big")


def opening_error(error: Exception, path: str) -> LedgerError | ConfigError:
    """Translates an error of SQLite or of the system for the caller that opens the file."""
    if isinstance(error, apsw.BusyError | apsw.LockedError):
        return LedgerUnavailable(f"{path}: other processes have been writing for too long; try again")
    if isinstance(error, apsw.NotADBError):
        return LedgerForeign(f"{path}: not a ledger ({error}); name the right file, it was not touched")
    if isinstance(error, apsw.CorruptError | apsw.SQLError):
        return LedgerCorrupt(f"{path}: {error}; {RESTORE}")
    if isinstance(error, apsw.FullError):
        return LedgerUnavailable(f"{path}: no room on the device to open the ledger ({error}); make room")
    if isinstance(error, apsw.CantOpenError | apsw.PermissionsError | apsw.ReadOnlyError | OSError):
        return ConfigError(f"{path}: cannot be opened for writing ({error}); check the folder and its permissions")
    return LedgerUnavailable(f"{path}: the device failed while the ledger was opened ({error!r}); check it")


# Inspects the file of a ledger without changing anything: whether it is ours, and intact as far as time permits.
#
# Beside running nodes it reads in short batches, so that it delays nobody more than another reader. It leaves an
# unfinished transaction of another process alone, which repairs it at its next start, and reports that it cannot
# inspect the file.

STRETCH_ENTRIES = 500
APPLICATION_ID_AT, HEADER_BYTES = 68, 72
"""Where a SQLite file has its application id."""


class LookedAt(Struct, frozen=True):
    """The result of an inspection. Problems are raised instead."""

    path: str
    name: str
    first: int
    last: int
    checked: int
    """Entries whose chain was verified."""
    is_whole: bool
    """Whether those were all; else the time was over."""
    is_writable: bool
    file_bytes: int


def is_ledger(path: str) -> bool:
    """Whether a file is a ledger, by its first bytes. Not in a process that has one open: it would lose its locks."""
    try:
        with open(path, "rb") as file:
            header = file.read(HEADER_BYTES)
    except OSError:
        return False
    return header[APPLICATION_ID_AT:] == APPLICATION_ID.to_bytes(4, "big")


def inspect_ledger(url: str, name: str | None, within_s: float) -> LookedAt | None:
    """Inspects the file of a URL; None if it does not exist yet. With a `name` it must be that ledger.

    Raises LedgerForeign, LedgerCorrupt, LedgerUnavailable or ConfigError, with what to do.
    """
    path = url.removeprefix(SCHEME)
    if path == url or not path or path.startswith(":"):
        raise ConfigError(f"ledger {url!r}: expected {SCHEME}path/to/ledger.db")
    path = os.path.realpath(path)
    if not os.path.exists(path) and not os.path.exists(mark_path(path)):
        return None
    try:
        return _look(path, name, time.monotonic() + within_s)
    except (apsw.Error, OSError) as error:
        raise opening_error(error, path) from error


def _look(path: str, name: str | None, deadline_s: float) -> LookedAt:
    witnessed = None
    if os.path.exists(mark_path(path)):
        with open(os.open(mark_path(path), os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW), "rb") as file:
            witnessed = read_witness(file.fileno(), path)
    if not os.path.exists(path):
        raise LedgerCorrupt(f"{path}: the file is gone, but its -mark is there; {RESTORE}, or remove the mark")
    connection = apsw.Connection(path, flags=apsw.SQLITE_OPEN_READONLY)
    try:
        connection.set_busy_timeout(BUSY_MS)
        record = examine(connection, path, name, witnessed)
        checked, is_whole = _follow(connection, path, record, deadline_s)
    finally:
        connection.close(True)
    is_writable = os.access(path, os.W_OK) and os.access(os.path.dirname(path), os.W_OK)
    return LookedAt(path, record.name, record.first, record.last, checked, is_whole, is_writable, os.path.getsize(path))


def _follow(connection: apsw.Connection, path: str, record: LedgerHeader, deadline_s: float) -> tuple[int, bool]:
    """Verifies the chain from entry to entry; returns how many, and whether to the end."""
    after, chain, checked = record.first - 1, record.before, 0
    while True:
        connection.execute("BEGIN DEFERRED")
        try:
            record = read_record(connection, path)
            if after < record.first - 1:  # it was cut meanwhile
                after, chain = record.first - 1, record.before
            sql = "SELECT position, chain, body FROM entries WHERE position > ? ORDER BY position LIMIT ?"
            rows = connection.execute(sql, (after, STRETCH_ENTRIES)).fetchall()
            checkpoint = connection.execute("SELECT position, digest, body FROM checkpoint").fetchall()
        finally:
            connection.execute("ROLLBACK")
        for position, stored, body in rows:
            after += 1
            if not isinstance(body, bytes) or position != after or stored != link(chain, after, body):
                raise _damaged(path, f"entry {after}")
            chain = stored
            checked += 1
        if len(rows) < STRETCH_ENTRIES:
            if after != record.last:
                raise _damaged(path, f"entry {after + 1}")
            if chain != record.chain:
                raise _damaged(path, "its end")
            _check_checkpoint(path, checkpoint)
            return checked, True
        if time.monotonic() > deadline_s:
            return checked, False


def _check_checkpoint(path: str, rows: list[tuple[object, ...]]) -> None:
    match rows:
        case []:
            return
        case [(int(position), bytes(stored), bytes(body))] if stored == link(START, position, body):
            return
        case _:
            raise _damaged(path, "the checkpoint")


def _damaged(path: str, what: str) -> LedgerCorrupt:
    return LedgerCorrupt(f"{path}: {what} is not what was written; {RESTORE}")
