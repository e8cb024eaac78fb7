"""Opens and makes journal files. Refuses one that is foreign, damaged or in use, and then changes nothing.

The order matters. First the bytes of the file say whose it is. Then it claims the mark, so that nobody else opens,
makes or scans this journal. Then SQLite opens it and reads, without writing; its view of the WAL is compared with the
WAL itself (wal.py), and the rows with what the database and the mark say must be there. Only then does it write: the
WAL over itself, because data that a dead process left in the page cache may not be on the disk, and effects follow from
it.

A new journal is made under another name and renamed when it is complete.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator

import apsw
from msgspec import structs

from stigmergy.base.errors import ConfigError, JournalCorrupt, JournalLocked
from stigmergy.journal.file_errors import RESTORE
from stigmergy.journal.files import RESERVE_BYTES, FileLock, Files, OsFiles
from stigmergy.journal.identity import (
    MARK_BYTES,
    AcknowledgedHead,
    check_identity,
    check_incarnation,
    check_mark,
    decode_mark,
    encode_mark,
    mark_path,
    own_mark,
    read_mark,
)
from stigmergy.journal.port import JournalIdentity
from stigmergy.journal.sqlite.errors import opening_error
from stigmergy.journal.sqlite.journal import OpenedDatabase, SqliteJournal, remove_empty_wal
from stigmergy.journal.sqlite.schema import (
    APPLICATION_ID,
    DATABASE_HEADER_BYTES,
    KEYED_FORMAT,
    KEYED_TABLE,
    PART_FORMAT,
    PART_TABLE,
    SHARDS_MAX,
    TABLES,
    ShardRow,
    check_database_header,
    commit_id,
    format_of,
    identity_row,
    keyed_row,
    part_row,
    read_commit,
    read_identity,
    read_shard_note,
)
from stigmergy.journal.sqlite.wal import HEADER_BYTES, Wal
from stigmergy.shard.commit import Head, head_of

# Reads where each shard begins and ends, and refuses a database that holds less than it must.
#
# It checks the first and last row of each shard, not those between, so that a large journal opens at once; `read` finds
# a missing or damaged row when it gets there.

_LAST_BEFORE = (
    "SELECT id, epoch, time_ns, events, digest, signature, checksum, body FROM commits "
    "WHERE id < ? ORDER BY id DESC LIMIT 1"
)
_FIRST_FROM = "SELECT id FROM commits WHERE id >= ? ORDER BY id LIMIT 1"
_DIGEST_AT = "SELECT digest FROM commits WHERE id = ?"
_BEYOND_ALL = (1 << 63) - 1


def read_shards(
    connection: apsw.Connection, identity: JournalIdentity, mark: AcknowledgedHead | None, path: str
) -> tuple[dict[int, Head], dict[int, int]]:
    """The head and the first position of each shard that has commits."""
    heads, firsts = _ends(connection, path)
    for shard in heads:
        if shard not in identity.owned:
            raise JournalCorrupt(f"{path}: commits of shard {shard}, which is not kept here; {RESTORE}")
    notes = {
        note.shard: note for note in (read_shard_note(row, path) for row in connection.execute("SELECT * FROM shards"))
    }
    for shard in sorted(notes.keys() | heads.keys()):
        _check_note(connection, notes.get(shard), heads.get(shard), firsts.get(shard, 1), shard, path)
    check_mark(heads, identity, mark, path)
    return heads, firsts


def _ends(connection: apsw.Connection, path: str) -> tuple[dict[int, Head], dict[int, int]]:
    """From the last shard to the first, with two look-ups for each: the table is never read through."""
    heads: dict[int, Head] = {}
    firsts: dict[int, int] = {}
    bound = _BEYOND_ALL
    while rows := connection.execute(_LAST_BEFORE, (bound,)).fetchall():
        head = head_of(read_commit(rows[0], path).sealed)
        bound = commit_id(head.shard, 0)
        heads[head.shard] = head
        match connection.execute(_FIRST_FROM, (bound,)).fetchall():
            case [(int(first_id),)]:
                firsts[head.shard] = first_id - bound
            case _:
                raise JournalCorrupt(f"{path}: shard {head.shard} has an end and no beginning; {RESTORE}")
    return heads, firsts


def _check_note(
    connection: apsw.Connection, note: ShardRow | None, head: Head | None, first: int, shard: int, path: str
) -> None:
    """What was noted of a shard must still be true: it begins there, and has come at least so far on the same chain."""
    if head is None:
        raise JournalCorrupt(f"{path}: all commits of shard {shard} are missing; {RESTORE}")
    expected_first = note.first if note else 1
    if first != expected_first:
        raise JournalCorrupt(f"{path}: shard {shard} must begin at {expected_first}, found {first}; {RESTORE}")
    if note is None:
        return
    if head.position < note.head:
        raise JournalCorrupt(f"{path}: shard {shard} had come to {note.head}, found {head.position}; {RESTORE}")
    if note.head >= first:
        rows = connection.execute(_DIGEST_AT, (commit_id(shard, note.head),)).fetchall()
        if rows != [(note.digest,)]:
            raise JournalCorrupt(f"{path}: shard {shard}: commit {note.head} is not the one that was noted; {RESTORE}")


SCHEME = "sqlite:"
WAL_BYTES_MAX = 16 << 20
PAGE_BYTES = 4096
_CACHE_KIB = 8 << 10


def open_journal(
    url: str,
    identity: JournalIdentity,
    *,
    read_only: bool = False,
    inline: bool = False,
    wal_bytes_max: int = WAL_BYTES_MAX,
    reserve_bytes: int = RESERVE_BYTES,
    vfs: str | None = None,
    files: Files | None = None,
) -> SqliteJournal:
    """Opens `sqlite:path/to/fleet.db`, made if it is missing. Fleet and shards must match; the incarnation is the
    stored one.

    `read_only` never writes to database or WAL, makes no new journal, and still takes the lock. `reserve_bytes` is the
    room that is held for dropping on a full device; small devices get less. `inline` does all
    work in the caller's thread; `vfs` and `files` put a simulated disk underneath.
    """
    opened = _Opening(url, vfs, files, read_only=read_only).run(identity)
    return SqliteJournal(opened, inline=inline, wal_bytes_max=wal_bytes_max, reserve_bytes=reserve_bytes)


def inspect_journal(url: str, *, vfs: str | None = None, files: Files | None = None) -> SqliteJournal:
    """Opens an existing journal of any fleet for reading only."""
    opened = _Opening(url, vfs, files, read_only=True).run(None)
    return SqliteJournal(opened, inline=True, wal_bytes_max=WAL_BYTES_MAX, reserve_bytes=0)


def renew_incarnation(url: str, incarnation: int, *, vfs: str | None = None, files: Files | None = None) -> None:
    """Makes a restored copy a journal of its own. Peers then do not mistake it for the original, which knew more."""
    check_incarnation(incarnation)
    opened = _Opening(url, vfs, files, heed_mark=False).run(None)
    try:
        renewed = structs.replace(opened.identity, incarnation=incarnation)
        opened.connection.execute("INSERT OR REPLACE INTO identity VALUES (?, ?, ?, ?, ?)", identity_row(renewed))
        opened.connection.wal_checkpoint(mode=apsw.SQLITE_CHECKPOINT_TRUNCATE)
    except apsw.Error as error:
        raise opening_error(error, opened.path) from error
    finally:
        remove_empty_wal(opened.connection, opened.files, opened.path)
        opened.connection.close(True)
        opened.claim.close()


def path_of(url: str) -> str:
    """The file that a URL names."""
    path = url.removeprefix(SCHEME)
    if path == url or not path or path.startswith(":"):
        raise ConfigError(f"journal URL {url!r}: expected {SCHEME}path/to/fleet.db")
    return path


class _Opening:
    """One attempt to open a journal."""

    def __init__(
        self,
        url: str,
        vfs: str | None,
        files: Files | None,
        *,
        read_only: bool = False,
        heed_mark: bool = True,
    ) -> None:
        # SQLite keeps the WAL beside the file itself, not beside a link to it.
        self._path = path_of(url) if files else os.path.realpath(path_of(url))
        self._vfs = vfs
        self._files = files or OsFiles()
        self._read_only = read_only
        self._heed_mark = heed_mark

    def run(self, wanted: JournalIdentity | None) -> OpenedDatabase:
        with self._translating(), contextlib.ExitStack() as undo:
            exists = self._look()
            if not exists and (wanted is None or self._read_only):
                raise ConfigError(f"{self._path}: there is no such journal; name the right file")
            claim = self._claim()
            undo.callback(claim.close)
            # Somebody may have made it while we had not claimed it yet.
            if not self._look() and wanted is not None:
                self._make(wanted, read_mark(claim.read(), mark_path(self._path)))
            if self._files.size(self._path + "-journal"):
                raise JournalCorrupt(
                    f"{self._path}: a rollback journal lies beside it, so another program has written to it; {RESTORE}"
                )
            if not self._read_only:
                for own in (self._path, self._path + "-wal"):
                    self._files.close_to_others(own)
            if self._files.size(self._path + "-wal") is None:
                undo.callback(self._remove_empty_wal)
            connection = self._connect(self._path, apsw.SQLITE_OPEN_READWRITE)
            undo.callback(connection.close, True)
            opened = self._examine(connection, claim, wanted)
            undo.pop_all()
            return opened

    @contextlib.contextmanager
    def _translating(self) -> Iterator[None]:
        try:
            yield
        except (apsw.Error, OSError) as error:
            raise opening_error(error, self._path) from error

    def _look(self) -> bool:
        """Whether there is a journal; refuses anything else."""
        if not self._files.size(self._path):
            return False
        check_database_header(self._files.read(self._path, 0, DATABASE_HEADER_BYTES), self._path)
        return True

    def _claim(self) -> FileLock:
        mark = mark_path(self._path)
        try:
            return self._files.claim(mark)
        except BlockingIOError:
            held = decode_mark(self._files.read(mark, 0, MARK_BYTES))
            holder = f"process {held.pid}" if held else "another process"
            raise JournalLocked(
                f"{self._path}: {holder} has the journal open; stop it first, or look at a copy"
            ) from None

    def _remove_empty_wal(self) -> None:
        """SQLite makes one just by opening; where there was none, a refusal leaves none behind."""
        with contextlib.suppress(OSError):
            if self._files.size(self._path + "-wal") == 0:
                self._files.remove(self._path + "-wal")

    def _make(self, identity: JournalIdentity, mark: AcknowledgedHead | None) -> None:
        check_incarnation(identity.incarnation)
        if not 1 <= identity.shards <= SHARDS_MAX:
            raise ConfigError(f"{self._path}: {identity.shards} shards; possible are 1 to {SHARDS_MAX}")
        if (mark is not None and mark.position > 0) or self._files.size(self._path + "-wal"):
            raise JournalCorrupt(
                f"{self._path}: the database is gone or empty, but its -wal or -mark says that there were commits; "
                f"{RESTORE}, or remove these two files to start empty"
            )
        fresh = self._path + ".new"
        for leftover in (fresh, fresh + "-journal", fresh + "-wal"):
            self._files.remove(leftover)
        self._files.make(fresh)
        connection = self._connect(fresh, apsw.SQLITE_OPEN_READWRITE | apsw.SQLITE_OPEN_CREATE)
        try:
            # A journal for rolling back is not needed: a file that was not finished is thrown away.
            connection.pragma("journal_mode", "MEMORY")
            connection.pragma("page_size", PAGE_BYTES)
            connection.pragma("auto_vacuum", 2)
            connection.pragma("application_id", APPLICATION_ID)
            connection.pragma("user_version", format_of(identity))
            connection.execute(TABLES)
            connection.execute("INSERT INTO identity VALUES (?, ?, ?, ?, ?)", identity_row(identity))
            if identity.shard_by:
                connection.execute(KEYED_TABLE)
                connection.execute("INSERT INTO keyed VALUES (?, ?, ?, ?, ?)", keyed_row(identity))
            elif identity.part is not None:
                connection.execute(PART_TABLE)
                connection.execute("INSERT INTO part VALUES (?, ?, ?, ?)", part_row(identity.part))
            connection.pragma("journal_mode", "WAL")
            connection.config(apsw.SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, 0)
        finally:
            connection.close(True)
        self._files.replace(fresh, self._path)

    def _connect(self, path: str, flags: int) -> apsw.Connection:
        connection = apsw.Connection(path, flags=flags, vfs=self._vfs)
        try:
            self._configure(connection)
        except BaseException:
            connection.close(True)
            raise
        return connection

    def _configure(self, connection: apsw.Connection) -> None:
        connection.set_busy_timeout(0)
        # We checkpoint when we know that all is well, and never because a connection happens to be closed.
        connection.config(apsw.SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, 1)
        # Before anything is read: with an exclusive lock SQLite keeps the index of the WAL in its own memory.
        connection.pragma("locking_mode", "EXCLUSIVE")
        connection.pragma("synchronous", "FULL")
        connection.pragma("wal_autocheckpoint", 0)
        connection.pragma("cell_size_check", True)
        connection.pragma("cache_size", -_CACHE_KIB)
        connection.pragma("temp_store", "MEMORY")

    def _examine(self, connection: apsw.Connection, claim: FileLock, wanted: JournalIdentity | None) -> OpenedDatabase:
        if connection.pragma("journal_mode") != "wal":
            raise JournalCorrupt(f"{self._path}: not in WAL mode; somebody changed it, set it back or {RESTORE}")
        rows = connection.execute("SELECT * FROM identity").fetchall()
        version = connection.pragma("user_version")
        part = connection.execute("SELECT * FROM part").fetchall() if version == PART_FORMAT else None
        keyed = connection.execute("SELECT * FROM keyed").fetchall() if version == KEYED_FORMAT else None
        identity = read_identity(rows, self._path, part, keyed)
        if wanted is not None:
            check_identity(identity, wanted, self._path)
        frames, _ = connection.wal_checkpoint(mode=apsw.SQLITE_CHECKPOINT_NOOP)
        wal = self._check_wal(frames)
        self._check_length(connection, wal, frames)
        mark = read_mark(claim.read(), mark_path(self._path)) if self._heed_mark else None
        heads, firsts = read_shards(connection, identity, mark, self._path)
        if not self._read_only and frames:
            self._files.rewrite(self._path + "-wal", HEADER_BYTES + frames * wal.frame_bytes)
        if not self._read_only:
            claim.write(encode_mark(own_mark(identity, mark)))
        return OpenedDatabase(
            path=self._path,
            identity=identity,
            connection=connection,
            claim=claim,
            files=self._files,
            heads=heads,
            firsts=firsts,
            page_bytes=connection.pragma("page_size"),
            read_only=self._read_only,
            pid=os.getpid(),
        )

    def _check_wal(self, frames: int) -> Wal:
        path = self._path + "-wal"
        size_bytes = self._files.size(path) or 0
        wal = Wal(lambda offset, size: self._files.read(path, offset, size) if size_bytes else b"", size_bytes)
        if damage := wal.find_damage(frames):
            raise JournalCorrupt(
                f"{self._path}: {damage}; SQLite would silently forget commits that were acknowledged, "
                f"so nothing was touched: {RESTORE}"
            )
        return wal

    def _check_length(self, connection: apsw.Connection, wal: Wal, frames: int) -> None:
        """The file may be shorter than the database only by pages that are still in the WAL."""
        pages, page_bytes = connection.pragma("page_count"), connection.pragma("page_size")
        present = (self._files.size(self._path) or 0) // page_bytes
        if present < pages and not wal.pages(frames).issuperset(range(present + 1, pages + 1)):
            raise JournalCorrupt(f"{self._path}: cut off, {present} of {pages} pages are there; {RESTORE}")
