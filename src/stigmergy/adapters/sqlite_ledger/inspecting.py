"""Looks at the file of a ledger without changing anything: whether it is ours, and whole as far as the time goes.

Beside running nodes it reads in short stretches, so that nobody waits for it longer than for another reader. What
another process has left half done is theirs to mend, at its next start: then this says that it cannot look.
"""

from __future__ import annotations

import os
import time

import apsw
from msgspec import Struct

from stigmergy.adapters.filing.mark import mark_path
from stigmergy.adapters.sqlite_ledger.file import (
    APPLICATION_ID,
    BUSY_MS,
    RESTORE,
    SCHEME,
    START,
    Record,
    examine,
    link,
    opening_error,
    read_record,
    read_witness,
)
from stigmergy.core.errors import ConfigError, LedgerCorrupt

STRETCH_ENTRIES = 500
APPLICATION_ID_AT, HEADER_BYTES = 68, 72
"""Where a file of SQLite says whose it is."""


class LookedAt(Struct, frozen=True):
    """What a look found. Whatever is wrong is raised instead."""

    path: str
    name: str
    first: int
    last: int
    checked: int
    """Entries whose chain was followed."""
    is_whole: bool
    """Whether that were all; else the time was over."""
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
    """Looks at the file that a URL names; None if it is not there yet. With a `name` it must be that ledger.

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


def _follow(connection: apsw.Connection, path: str, record: Record, deadline_s: float) -> tuple[int, bool]:
    """Follows the chain from entry to entry; how many, and whether to the end."""
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
