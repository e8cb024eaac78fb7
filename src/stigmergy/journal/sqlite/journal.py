"""The journal on SQLite: the port's methods over one connection. Use `opener.open_journal` to make one.

One connection owns reads, writes and checkpoints, with an exclusive lock. An append is one transaction and one sync of
the WAL. When the WAL passes its limit, it is copied into the database after that append is acknowledged; if the copy
fails, the WAL keeps growing and the next append does not notice. It is also copied before the database would have to
grow by half of the reserve: so a full device still has the space for the copy.

On a full device an append first lets the WAL restart from its front. A drop needs space too and releases the reserve
for it; the space that it frees makes a new reserve.

A read waits, on the event loop, for a write in progress. Read between writes where that matters.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Awaitable, Callable, Iterator, Sequence
from functools import partial

import apsw
from msgspec import Struct

from stigmergy.base.errors import (
    Bug,
    JournalConflict,
    JournalCorrupt,
    JournalError,
    JournalFull,
    JournalUnknown,
    StigmergyError,
)
from stigmergy.journal.file_errors import RESTORE
from stigmergy.journal.files import (
    FileLock,
    Files,
    FileWatch,
    InlineWriter,
    Reserve,
    ThreadWriter,
    Writer,
    refused_write,
)
from stigmergy.journal.identity import AcknowledgedHead, encode_mark, mark_path
from stigmergy.journal.port import JournalIdentity, JournalSize, SnapshotPart, StoredCommit
from stigmergy.journal.sqlite.errors import reading_error, writing_error
from stigmergy.journal.sqlite.schema import (
    INSERT_COMMIT,
    INSERT_SNAPSHOT,
    SELECT_COMMITS,
    SELECT_SNAPSHOT,
    UPSERT_SHARD,
    Row,
    Value,
    commit_id,
    commit_rows,
    note_of,
    read_commit,
    read_snapshot_part,
    shard_row,
    snapshot_row,
)
from stigmergy.journal.sqlite.wal import FRAME_HEADER_BYTES
from stigmergy.metrics.histogram import Histogram
from stigmergy.shard.commit import Group, Head, advance, check_drop

READ_COMMITS_MAX = 256
READ_BYTES_MAX = 1 << 20
"""`read` fetches this much at a time, so that no statement of its own stays open and holds up a checkpoint."""
DROP_COMMITS_MAX = 1_000
"""A drop deletes so many commits per transaction, so that the WAL stays small."""
DROP_COMMITS_FULL = 64
VACUUM_PAGES_FULL = 64
"""On a full device both go in smaller steps."""
WAL_BYTES_MIN = 1 << 16
QUOTA_SHARE = 8
"""What is kept within a number of bytes has a WAL of twice this part of it, and a reserve of this part."""
OWED_SHARE_MAX = 0.5
"""The database may have to grow by this part of the reserve when the WAL is copied; then it is copied."""
RESERVE_STEPS_MAX = 32
VACUUM_PAGES_MAX = 256
"""So many free pages are given back to the file system with each transaction of a drop; others are used again."""


class OpenedDatabase(Struct):
    """What opening has found out and holds: the journal takes it over."""

    path: str
    identity: JournalIdentity
    connection: apsw.Connection
    claim: FileLock
    files: Files
    heads: dict[int, Head]
    firsts: dict[int, int]
    page_bytes: int
    read_only: bool
    pid: int


def remove_empty_wal(connection: apsw.Connection, files: Files, path: str) -> None:
    """Lets SQLite remove the WAL when it closes, if nothing is in it. Otherwise closing leaves it alone."""
    with contextlib.suppress(OSError):
        if files.size(path + "-wal") == 0:
            connection.config(apsw.SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, 0)


class _Dropped(Bug):
    """The writing thread has dropped what the reader was about to read: nothing is wrong with the journal."""


class SqliteJournal:
    """The Journal port on one SQLite file."""

    def __init__(self, opened: OpenedDatabase, *, inline: bool, wal_bytes_max: int, reserve_bytes: int) -> None:
        self._opened = opened
        self._connection = opened.connection
        self._heads = opened.heads
        self._firsts = opened.firsts
        self._unnoted: set[int] = set(opened.heads)
        self._lock = threading.Lock()
        self._closed = False
        self._failure: JournalUnknown | None = None
        self.syncs = Histogram()
        """How long it has waited for the disk; observed by the thread that writes."""
        self._wal_frames = 0
        self._limit_wal(wal_bytes_max)
        self._looked_at_frames = self._owed_bytes = 0
        self._reserve = Reserve(opened.files, opened.path, 0 if opened.read_only else reserve_bytes)
        self._reserve_due = not opened.read_only
        self._connection.set_wal_hook(self._count_wal_frames)
        path = opened.path
        self._watch = FileWatch(opened.files, path, (path, f"{path}-wal", mark_path(path)))
        self.checkpoint_failures = 0
        """How often copying the WAL failed; it is tried again when the WAL has grown by its limit once more."""
        self._writer: Writer
        if inline:
            self._writer = InlineWriter(self._checkpoint_if_due)
        else:
            self._writer = ThreadWriter(self._checkpoint_if_due, name=f"journal {opened.path}")

    @property
    def identity(self) -> JournalIdentity:
        return self._opened.identity

    def heads(self) -> list[Head]:
        self._check_usable()
        heads = dict(self._heads)
        return [heads[shard] for shard in sorted(heads)]

    def first_position(self, shard: int) -> int:
        self._check_usable()
        return self._firsts.get(shard, 1)

    def read(self, shard: int, after: int = 0) -> Iterator[StoredCommit]:
        chunk = self._first_chunk(shard, after)
        position = chunk[0].sealed.position if chunk else 0
        while chunk:
            for stored in chunk:
                if stored.sealed.position != position:
                    raise self._lacks(shard, position)
                position += 1
                yield stored
            chunk = self._read_chunk(shard, position)

    def append(self, group: Group) -> Awaitable[None]:
        try:
            self._check_writable()
            moved = advance(self._heads, group, self.identity.owned)
            return self._writer.run(partial(self._append, group, moved))
        except StigmergyError as error:
            return refused_write(error)

    def begin_at(self, heads: Sequence[Head]) -> None:
        """Lets the shards of a new journal begin behind these commits, which a snapshot covers: to restore a copy.

        Append what follows each of them at once: a shard without any commit does not open again.
        """
        self._check_writable()
        if self._heads:
            raise Bug("the journal has commits; a copy is restored into a new one")
        for head in heads:
            self._heads[head.shard] = head
            self._firsts[head.shard] = head.position + 1
        self._unnoted.update(self._heads)

    async def put_snapshot(self, shard: int, position: int, parts: Sequence[SnapshotPart]) -> None:
        self._check_writable()
        if parts:
            await self._writer.run(partial(self._put_snapshot, shard, position, tuple(parts)))

    def snapshots(self, shard: int) -> list[int]:
        sql = "SELECT DISTINCT position FROM snapshots WHERE shard = ? ORDER BY position"
        return [position for (position,) in self._query(sql, (shard,)) if isinstance(position, int)]

    def read_snapshot(self, shard: int, position: int) -> Iterator[SnapshotPart]:
        part = 0
        while rows := self._query(SELECT_SNAPSHOT, (shard, position, part)):
            yield read_snapshot_part(rows[0], shard, position, part, self._opened.path)
            part += 1

    async def drop_snapshot(self, shard: int, position: int) -> None:
        self._check_writable()
        await self._writer.run(partial(self._drop_snapshot, shard, position))

    async def drop(self, shard: int, upto: int) -> None:
        self._check_writable()
        check_drop(self._heads, shard, upto)
        await self._writer.run(partial(self._drop, shard, upto))

    async def check_files(self) -> None:
        """Raises JournalUnknown if database, WAL or mark are not in their place any more."""
        if self._closed:
            return  # begun before the journal was closed: there is nothing left that could be acknowledged
        self._check_usable()
        await self._writer.run(self._check_files)

    def keep_within(self, bytes_max: int) -> None:
        """All files together should stay below this: WAL and reserve take a share of it and no more."""
        self._limit_wal(min(self._wal_bytes_max, max(WAL_BYTES_MIN, 2 * bytes_max // QUOTA_SHARE)))
        self._reserve.size_bytes = min(self._reserve.size_bytes, bytes_max // QUOTA_SHARE)
        self._reserve_due = True

    def _limit_wal(self, wal_bytes_max: int) -> None:
        self._wal_bytes_max = wal_bytes_max
        self._wal_frames_max = max(1, wal_bytes_max // (self._opened.page_bytes + FRAME_HEADER_BYTES))
        self._checkpoint_at_frames = self._wal_frames_max
        with self._lock:
            # A WAL that one large commit has made longer is cut when it starts again from its front.
            self._connection.pragma("journal_size_limit", max(WAL_BYTES_MIN, wal_bytes_max))

    def size(self) -> JournalSize:
        self._check_usable()
        files, path = self._opened.files, self._opened.path
        heads, firsts = dict(self._heads), dict(self._firsts)
        try:
            # Asks the file system and not SQLite, which may be waiting for a stalled disk.
            return JournalSize(
                commits=sum(head.position - firsts.get(shard, 1) + 1 for shard, head in heads.items()),
                bytes_used=sum(
                    files.size(one) or 0 for one in (path, f"{path}-wal", mark_path(path), self._reserve.path)
                ),
                bytes_free=files.free_bytes(path),
            )
        except OSError as error:
            raise reading_error(error, path) from error

    async def close(self) -> None:
        if not self._closed:
            self._closed = True
            await self._writer.close(self._close)

    # What follows runs in the writer's thread, under the lock.

    def _append(self, group: Group, moved: dict[int, Head]) -> None:
        rows = commit_rows(group)
        self._keeping(lambda: self._insert(group, rows, moved))

    def _keeping(self, write: Callable[[], None]) -> None:
        """Writes something new. On a full device again, when the WAL has started from its front; and again, when it has
        room to grow: what is larger than the WAL finds none in the pages that are free in the database."""
        try:
            write()
        except JournalFull:
            if not self._start_wal_again():
                raise
            try:
                write()
            except JournalFull:
                if not self._give_back_pages():
                    raise
                write()

    def _insert(self, group: Group, rows: Sequence[Row], moved: dict[int, Head]) -> None:
        with self._writing():
            began_ns = time.perf_counter_ns()
            if len(rows) == 1:
                self._connection.execute(INSERT_COMMIT, rows[0])
            else:
                with self._transaction():
                    self._connection.executemany(INSERT_COMMIT, rows)
            self.syncs.observe(time.perf_counter_ns() - began_ns)
            self._watch.check()
            self._heads.update(moved)
            self._unnoted.update(moved)
            last = group.commits[-1]
            self._set_mark(last.shard, last.position)

    def _check_files(self) -> None:
        with self._writing():
            self._watch.check()

    def _put_snapshot(self, shard: int, position: int, parts: tuple[SnapshotPart, ...]) -> None:
        self._keeping(lambda: self._put_parts(shard, position, parts))

    def _put_parts(self, shard: int, position: int, parts: tuple[SnapshotPart, ...]) -> None:
        with self._writing():
            stored = 0
            if parts[0].part != 0:
                sql = "SELECT count(*) FROM snapshots WHERE shard = ? AND position = ?"
                ((stored,),) = self._connection.execute(sql, (shard, position))
            if [part.part for part in parts] != list(range(stored, stored + len(parts))):
                raise Bug(f"shard {shard}, snapshot {position}: parts must follow the {stored} that are stored")
            with self._transaction():
                if not stored:
                    self._delete_snapshot(shard, position)
                rows = [snapshot_row(shard, position, part.part, part.body) for part in parts]
                self._connection.executemany(INSERT_SNAPSHOT, rows)

    def _drop_snapshot(self, shard: int, position: int) -> None:
        self._freeing(lambda full: self._drop_parts(shard, position, full=full))

    def _drop_parts(self, shard: int, position: int, *, full: bool) -> None:
        with self._writing(), self._transaction():
            self._delete_snapshot(shard, position)
            if not full:
                self._vacuum(VACUUM_PAGES_MAX)

    def _delete_snapshot(self, shard: int, position: int) -> None:
        self._connection.execute("DELETE FROM snapshots WHERE shard = ? AND position = ?", (shard, position))

    def _drop(self, shard: int, upto: int) -> None:
        """In several transactions: if a drop is cut short, the shard simply begins later than before."""
        head = self._heads.get(shard)
        if head is None:
            return
        while self._firsts.get(shard, 1) <= upto:
            self._freeing(lambda full: self._drop_some(head, upto, full=full))
            self._checkpoint_if_due()

    def _drop_some(self, head: Head, upto: int, *, full: bool) -> None:
        first = self._firsts.get(head.shard, 1)
        last = min(upto, first + (DROP_COMMITS_FULL if full else DROP_COMMITS_MAX) - 1)
        with self._writing():
            with self._transaction():
                ids = (commit_id(head.shard, first), commit_id(head.shard, last))
                self._connection.execute("DELETE FROM commits WHERE id BETWEEN ? AND ?", ids)
                self._connection.execute(UPSERT_SHARD, shard_row(note_of(head, last + 1)))
                if not full:
                    self._vacuum(VACUUM_PAGES_MAX)
            self._firsts[head.shard] = last + 1

    def _vacuum(self, pages: int) -> None:
        # Every row has to be fetched: the pragma frees one page for each.
        for _ in self._connection.execute(f"PRAGMA incremental_vacuum({pages})"):
            pass

    def _freeing(self, drop: Callable[[bool], None]) -> None:
        """Drops something. To a full device the reserve is given up for that, and made again from what became free."""
        try:
            drop(False)
        except JournalFull:
            with contextlib.suppress(OSError):
                self._reserve.give_up()
            self._start_wal_again()
            drop(True)
            # On a small device it was the WAL that took most of the room.
            self._limit_wal(max(WAL_BYTES_MIN, min(self._wal_bytes_max, self._wal_size_bytes() // 2)))
            self._make_reserve_again()

    def _make_reserve_again(self) -> None:
        """From the room of the WAL, which is copied now, and of pages that became free in the database."""
        self._reserve_due = True
        for _ in range(RESERVE_STEPS_MAX):
            if not self._start_wal_again(apsw.SQLITE_CHECKPOINT_TRUNCATE):
                return
            self._make_reserve_if_due()
            if not self._reserve_due:
                return
            with contextlib.suppress(JournalFull), self._writing(), self._transaction():
                self._vacuum(VACUUM_PAGES_FULL)

    def _give_back_pages(self) -> bool:
        """Gives pages that are free in the database back to the device; whether there were any."""
        given, pages = False, VACUUM_PAGES_FULL
        for _ in range(RESERVE_STEPS_MAX):
            try:
                with self._writing(), self._transaction():
                    if not self._connection.pragma("freelist_count"):
                        break
                    self._vacuum(pages)
                given = True
            except JournalFull:
                # Pages are moved through the WAL, which is short: fewer at a time.
                pages //= 4
            if not pages or not self._start_wal_again(apsw.SQLITE_CHECKPOINT_TRUNCATE):
                break
        return given

    def _wal_size_bytes(self) -> int:
        with contextlib.suppress(OSError):
            return self._opened.files.size(f"{self._opened.path}-wal") or 0
        return 0

    def _make_reserve_if_due(self) -> None:
        if self._reserve_due:
            with contextlib.suppress(OSError):
                self._reserve_due = not self._reserve.make(beside_bytes=WAL_BYTES_MIN)

    def _start_wal_again(self, mode: int = apsw.SQLITE_CHECKPOINT_PASSIVE) -> bool:
        """Copies the WAL, which then starts again from its front: room that a full device still has. Whether all of it
        was copied; else the database has to grow for that, and cannot."""
        try:
            with self._lock:
                self._check_failure()
                frames, copied = self._connection.wal_checkpoint(mode=mode)
        except apsw.Error:
            self.checkpoint_failures += 1
            return False
        return frames == copied

    def _checkpoint_if_due(self) -> None:
        if self._closed or self._failure is not None or self._opened.read_only:
            return
        self._make_reserve_if_due()
        if self._wal_frames < self._checkpoint_at_frames and not self._owes_much():
            return
        try:
            with self._lock:
                self._checkpoint(apsw.SQLITE_CHECKPOINT_PASSIVE)
            self._checkpoint_at_frames = self._wal_frames_max
            self._reserve_due = self._reserve.held_bytes == 0
        except Exception:
            # What is acknowledged is in the WAL, and stays there until it has been copied and synced. Whatever went
            # wrong, nobody waits for this, and the thread it runs in must live.
            self.checkpoint_failures += 1
            self._checkpoint_at_frames = self._wal_frames + self._wal_frames_max

    def _owes_much(self) -> bool:
        """Whether the database has to grow so much, when the WAL is copied, that the reserve may be too small."""
        if self._wal_frames < self._looked_at_frames:  # it has started again
            self._looked_at_frames = self._owed_bytes = 0
        limit_bytes = self._reserve.size_bytes * OWED_SHARE_MAX
        page_bytes, new_frames = self._opened.page_bytes, self._wal_frames - self._looked_at_frames
        if not limit_bytes or self._owed_bytes + new_frames * page_bytes <= limit_bytes:
            return False
        self._looked_at_frames = self._wal_frames
        try:
            with self._lock:
                pages: int = self._connection.pragma("page_count")
            self._owed_bytes = max(0, pages * page_bytes - (self._opened.files.size(self._opened.path) or 0))
        except (apsw.Error, OSError):
            return False
        return self._owed_bytes > limit_bytes

    def _checkpoint(self, mode: int) -> None:
        """Notes how far each shard has come, then copies the WAL, so that the database notes all that it holds."""
        shards = sorted(self._unnoted)
        notes = [note_of(self._heads[shard], self._firsts.get(shard, 1)) for shard in shards]
        if notes:
            # Without room for notes the old ones stay, and are still true.
            with contextlib.suppress(JournalFull):
                with self._failing_for_good(), self._transaction():
                    self._connection.executemany(UPSERT_SHARD, [shard_row(note) for note in notes])
                self._unnoted.clear()
        self._connection.wal_checkpoint(mode=mode)

    def _close(self) -> None:
        with self._lock:
            if self._failure is not None:
                return
            # If this fails, the next opening finds everything in the WAL. Where files are not in their place, others
            # may have their names: closing must not remove those.
            with contextlib.suppress(apsw.Error, JournalError, OSError):
                self._watch.check()
                if not self._opened.read_only:
                    self._checkpoint(apsw.SQLITE_CHECKPOINT_TRUNCATE)
                remove_empty_wal(self._connection, self._opened.files, self._opened.path)
            if self._failure is None:
                self._disconnect()

    def _disconnect(self) -> None:
        """Leaves the files as they are. A failed journal must not be made to look well by a later sync."""
        self._connection.set_wal_hook(None)
        with contextlib.suppress(apsw.Error):
            self._connection.close(True)
        self._opened.claim.close()

    @contextlib.contextmanager
    def _writing(self) -> Iterator[None]:
        with self._lock:
            self._check_failure()
            with self._failing_for_good():
                yield

    @contextlib.contextmanager
    def _failing_for_good(self) -> Iterator[None]:
        """Translates errors. After any that leaves open what was kept, the journal is at its end."""
        try:
            yield
        except Bug:
            raise
        except JournalUnknown as error:
            self._failure = error
            self._disconnect()
            raise
        except Exception as error:
            translated = writing_error(error, self._opened.path)
            if isinstance(translated, JournalFull | JournalConflict) and self._connection.in_transaction:
                translated = writing_error(RuntimeError("could not be rolled back"), self._opened.path)
            if isinstance(translated, JournalUnknown):
                self._failure = translated
                self._disconnect()
            else:
                # Once copied, the WAL starts again from its front: that is room that a full device still has.
                self._checkpoint_at_frames = 0
            raise translated from error

    @contextlib.contextmanager
    def _transaction(self) -> Iterator[None]:
        self._connection.execute("BEGIN IMMEDIATE")
        try:
            yield
            self._connection.execute("COMMIT")
        except BaseException:
            # SQLite rolls back by itself after some errors, so there may be nothing left to do.
            if self._connection.in_transaction:
                with contextlib.suppress(apsw.Error):
                    self._connection.execute("ROLLBACK")
            raise

    def _set_mark(self, shard: int, position: int) -> None:
        mark = AcknowledgedHead(
            incarnation=self.identity.incarnation, shard=shard, position=position, pid=self._opened.pid
        )
        # A witness that cannot be heard is no reason to stop.
        with contextlib.suppress(OSError):
            self._opened.claim.write(encode_mark(mark))

    def _count_wal_frames(self, _connection: apsw.Connection, _database: str, frames: int) -> int:
        self._wal_frames = frames
        return apsw.SQLITE_OK

    # What follows runs on the event loop.

    def _first_chunk(self, shard: int, after: int) -> list[StoredCommit]:
        """From behind a position on, or from where the log begins, which may move while we look."""
        while True:
            with contextlib.suppress(_Dropped):
                return self._read_chunk(shard, max(after + 1, self.first_position(shard)))

    def _read_chunk(self, shard: int, position: int) -> list[StoredCommit]:
        head, first = self._heads.get(shard), self.first_position(shard)
        if position < first:
            raise _Dropped(f"shard {shard}: position {position} was dropped while it was to be read")
        if head is None or position > head.position:
            return []
        chunk: list[StoredCommit] = []
        size_bytes = 0
        ids = (commit_id(shard, position), commit_id(shard, head.position))

        def fetch() -> None:
            nonlocal size_bytes
            for row in self._connection.execute(SELECT_COMMITS, (*ids, READ_COMMITS_MAX)):
                stored = read_commit(row, self._opened.path)
                chunk.append(stored)
                size_bytes += len(stored.sealed.body)
                if size_bytes >= READ_BYTES_MAX:
                    break

        self._reading(fetch)
        if not chunk or chunk[0].sealed.position != position:
            if position < self.first_position(shard):
                raise _Dropped(f"shard {shard}: position {position} was dropped while it was to be read")
            raise self._lacks(shard, position)
        return chunk

    def _query(self, sql: str, values: tuple[Value, ...]) -> list[Row]:
        rows: list[Row] = []
        self._reading(lambda: rows.extend(self._connection.execute(sql, values)))
        return rows

    def _reading(self, fetch: Callable[[], None]) -> None:
        with self._lock:
            self._check_usable()
            try:
                fetch()
            except JournalCorrupt:
                raise
            except Exception as error:
                raise reading_error(error, self._opened.path) from error

    def _lacks(self, shard: int, position: int) -> JournalCorrupt:
        return JournalCorrupt(f"{self._opened.path}: shard {shard}: position {position} is missing; {RESTORE}")

    def _check_writable(self) -> None:
        self._check_usable()
        if self._opened.read_only:
            raise Bug("the journal was opened for reading only")

    def _check_usable(self) -> None:
        self._check_failure()
        if self._closed:
            raise Bug("the journal is closed; open it again")

    def _check_failure(self) -> None:
        if self._failure is not None:
            raise JournalUnknown(str(self._failure))
