"""The ledger in one SQLite file that several processes of one machine share: `sqlite:path/to/ledger.db`.

An append is one transaction; SQLite's lock gives the processes one order. It uses no write-ahead log, although that
would save a sync: a damaged one loses data silently (see `journal/sqlite/wal.py`), and only a scan without other
processes finds it. With a rollback journal, committed data is in the file itself when the append returns.

Each row carries a digest of itself and of the row before, and one record says where the log begins and ends: a reader
notices any change, loss or cut inside. The mark beside the file (`journal/identity.py`) reveals a file that was
replaced by an older one. The file must be on a local disk: network file systems break locks.

Everything runs in a thread of the connection; while there are watchers, it checks every LOOK_S whether others have
appended. After a half-finished write a connection is unusable and says so: open it again to read the outcome.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import queue
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any, TypeVar

import apsw
import msgspec

from stigmergy.base.errors import Bug, LedgerCorrupt, LedgerCut, LedgerFailed, LedgerUnavailable, LedgerUnknown
from stigmergy.claims.port import (
    READ_COUNT_MAX,
    Heard,
    LedgerCheckpoint,
    LedgerEntry,
    check_checkpoint,
    check_entries,
)
from stigmergy.claims.sqlite_file import (
    RESTORE,
    START,
    LedgerHeader,
    OpenedFile,
    link,
    open_file,
    read_record,
)
from stigmergy.journal.files import OsFiles
from stigmergy.journal.identity import AcknowledgedHead, encode_mark

LOOK_S = 0.02
GAP_S = 0.001
"""Between two appends of one connection: without it, a constant writer would keep others from the file."""
CUT_COUNT_MAX = 2_000
"""Entries that a cut deletes per transaction."""

T = TypeVar("T")


def open_ledger(url: str, name: str) -> SqliteLedger:
    """Opens `sqlite:path/to/ledger.db`; makes it if it is missing. Any number of connections, in any number of
    processes."""
    return SqliteLedger(open_file(url, name))


class SqliteLedger:
    """The Ledger port on one SQLite file: one connection, with its own thread."""

    def __init__(self, opened: OpenedFile) -> None:
        self._path = opened.path
        self._name, self._incarnation = opened.record.name, opened.record.incarnation
        self._connection = opened.connection
        self._mark = opened.mark
        self._inode = OsFiles().inode(opened.path)
        self._told = opened.record.last
        self._watching: list[Heard] = []
        self._loop: asyncio.AbstractEventLoop | None = None
        self._jobs: queue.SimpleQueue[_Job | None] = queue.SimpleQueue()
        self._appending = False
        self._appended_s = 0.0
        self._closed = False
        self._failed = ""
        # A daemon, because a program that ends without closing its ledger must end; acknowledged entries are safe.
        self._thread = threading.Thread(target=self._work, name=f"ledger {opened.path}", daemon=True)
        self._thread.start()

    @property
    def name(self) -> str:
        return self._name

    async def append(self, entries: Sequence[bytes]) -> int:
        self._check_open()
        check_entries(entries, under_way=self._appending)
        self._appending = True
        bodies = tuple(entries)
        job: _Job = self._begin(lambda: self._append(bodies))
        job.future.add_done_callback(self._appended)
        # A caller that is cancelled does not take the entries back: they are written or not, and the next append waits
        # for it.
        first: int = await asyncio.shield(job.future)
        return first

    async def read(self, after: int, count_max: int = READ_COUNT_MAX, *, fresh: bool = True) -> list[LedgerEntry]:
        self._check_open()
        return await self._run(lambda: self._read(after, min(count_max, READ_COUNT_MAX)))

    def watch(self, heard: Heard) -> None:
        self._check_open()
        self._loop = asyncio.get_running_loop()
        self._watching.append(heard)
        self._begin(lambda: None)  # wakes the thread, which polls from now on

    async def checkpoint(self) -> LedgerCheckpoint | None:
        self._check_open()
        return await self._run(self._read_checkpoint)

    async def put_checkpoint(self, checkpoint: LedgerCheckpoint) -> None:
        self._check_open()
        await self._run(lambda: self._put_checkpoint(checkpoint))

    async def cut(self, upto: int) -> None:
        self._check_open()
        await self._run(lambda: self._cut(upto))

    async def close(self) -> None:
        if self._closed:
            return
        self._closed = True
        self._watching.clear()
        job = self._begin(self._close)
        self._jobs.put(None)
        await job.future

    # ------------------------------------------------------------------ between loop and thread

    def _begin(self, call: Callable[[], Any]) -> _Job:
        job = _Job(call)
        self._jobs.put(job)
        return job

    async def _run(self, call: Callable[[], T]) -> T:
        result: T = await asyncio.shield(self._begin(call).future)
        return result

    def _appended(self, done: asyncio.Future[Any]) -> None:
        self._appending = False
        if not done.cancelled() and done.exception() is None and not self._closed:
            self._begin(self._look)  # our own watchers need not wait for the next poll

    def _check_open(self) -> None:
        if self._closed:
            raise Bug("the ledger is closed; open it again")

    # ------------------------------------------------------------------ in the thread

    def _work(self) -> None:
        while True:
            try:
                job = self._jobs.get(timeout=LOOK_S if self._watching else None)
            except queue.Empty:
                with contextlib.suppress(Exception):  # only a hint; readers get the error
                    self._look()
                continue
            if job is None:
                return
            job.do()
            del job

    def _look(self) -> None:
        """Calls watchers if the log has grown, by any process."""
        if self._failed or not self._watching or self._loop is None:
            return
        with self._translating(), self._transaction("DEFERRED"):
            last = self._record().last
        if last > self._told:
            self._told = last
            with contextlib.suppress(RuntimeError):  # the loop is closed
                self._loop.call_soon_threadsafe(self._tell, last)

    def _tell(self, last: int) -> None:
        for heard in list(self._watching):
            heard(last)

    def _append(self, bodies: tuple[bytes, ...]) -> int:
        if (left_s := self._appended_s + GAP_S - time.monotonic()) > 0:
            time.sleep(left_s)
        with self._translating(), self._transaction("IMMEDIATE"):
            record = self._record()
            chain, rows = record.chain, []
            for position, body in enumerate(bodies, start=record.last + 1):
                chain = link(chain, position, body)
                rows.append((position, chain, body))
            self._connection.executemany("INSERT INTO entries VALUES (?, ?, ?)", rows)
            last = record.last + len(bodies)
            self._put_record(msgspec.structs.replace(record, last=last, chain=chain))
        self._appended_s = time.monotonic()
        with contextlib.suppress(OSError):  # an old mark is still valid
            os.pwrite(self._mark, encode_mark(AcknowledgedHead(self._incarnation, 0, last, os.getpid())), 0)
        return record.last + 1

    def _read(self, after: int, count_max: int) -> list[LedgerEntry]:
        with self._translating(), self._transaction("DEFERRED"):
            record = self._record()
            if after > record.last:
                raise LedgerCorrupt(
                    f"{self._path}: ends at {record.last}, but {after} was read before; it has lost its end, {RESTORE}"
                )
            if after < record.first - 1:
                raise LedgerCut(f"{self._path}: begins at {record.first}, {after + 1} is gone; take the checkpoint")
            chain = record.before if after == record.first - 1 else self._chain_at(after)
            sql = "SELECT position, chain, body FROM entries WHERE position > ? ORDER BY position LIMIT ?"
            rows = self._connection.execute(sql, (after, count_max)).fetchall()
        entries: list[LedgerEntry] = []
        for wanted, row in enumerate(rows, start=after + 1):
            position, stored, body = row
            if not isinstance(body, bytes) or position != wanted or stored != link(chain, wanted, body):
                raise self._damaged(f"entry {wanted}")
            chain = link(chain, wanted, body)
            entries.append(LedgerEntry(wanted, body))
        if len(entries) != min(count_max, record.last - after):
            raise self._damaged(f"entry {after + len(entries) + 1}")
        if entries and entries[-1].position == record.last and chain != record.chain:
            raise self._damaged("its end")
        return entries

    def _read_checkpoint(self) -> LedgerCheckpoint | None:
        with self._translating(), self._transaction("DEFERRED"):
            rows = self._connection.execute("SELECT position, digest, body FROM checkpoint").fetchall()
        if not rows:
            return None
        match rows[0]:
            case (int(position), bytes(stored), bytes(body)) if stored == link(START, position, body):
                return LedgerCheckpoint(position, body)
            case _:
                raise self._damaged("the checkpoint")

    def _put_checkpoint(self, checkpoint: LedgerCheckpoint) -> None:
        with self._translating(), self._transaction("IMMEDIATE"):
            check_checkpoint(checkpoint, self._record().last)
            if self._checkpoint_position() < checkpoint.position:
                row = (checkpoint.position, link(START, checkpoint.position, checkpoint.body), checkpoint.body)
                self._connection.execute("INSERT OR REPLACE INTO checkpoint VALUES (1, ?, ?, ?)", row)

    def _cut(self, upto: int) -> None:
        """In several transactions: an interrupted cut only leaves the log longer than it could be."""
        while True:
            with self._translating(), self._transaction("IMMEDIATE"):
                record = self._record()
                if upto > self._checkpoint_position():
                    raise Bug(f"{self._path}: no checkpoint covers {upto}; store one before the log is cut")
                last = min(upto, record.first + CUT_COUNT_MAX - 1)
                if last < record.first:
                    return
                before = self._chain_at(last)
                self._connection.execute("DELETE FROM entries WHERE position <= ?", (last,))
                self._put_record(msgspec.structs.replace(record, first=last + 1, before=before))

    def _close(self) -> None:
        self._connection.close(True)
        os.close(self._mark)

    def _record(self) -> LedgerHeader:
        return read_record(self._connection, self._path)

    def _put_record(self, record: LedgerHeader) -> None:
        self._connection.execute("INSERT OR REPLACE INTO ledger VALUES (?, ?, ?, ?, ?, ?, ?, ?)", record.row())

    def _checkpoint_position(self) -> int:
        rows = self._connection.execute("SELECT position FROM checkpoint").fetchall()
        match rows:
            case []:
                return 0
            case [(int(position),)]:
                return position
            case _:
                raise self._damaged("the checkpoint")

    def _chain_at(self, position: int) -> bytes:
        rows = self._connection.execute("SELECT chain FROM entries WHERE position = ?", (position,)).fetchall()
        if not rows or not isinstance(rows[0][0], bytes):
            raise self._damaged(f"entry {position}")
        return rows[0][0]

    def _damaged(self, what: str) -> LedgerCorrupt:
        return LedgerCorrupt(f"{self._path}: {what} is not what was written; {RESTORE}")

    @contextlib.contextmanager
    def _transaction(self, kind: str) -> Iterator[None]:
        """All or nothing. An error before the commit means nothing was written; after a failed commit it is unknown."""
        connection = self._connection
        connection.execute(f"BEGIN {kind}")
        try:
            yield
            connection.execute("COMMIT")
        except BaseException:
            if connection.in_transaction:
                connection.execute("ROLLBACK")
            raise

    @contextlib.contextmanager
    def _translating(self) -> Iterator[None]:
        if self._failed:
            raise LedgerFailed(self._failed)
        try:
            yield
        except (apsw.BusyError, apsw.LockedError) as error:
            raise LedgerUnavailable(
                f"{self._path}: other processes have been writing for too long; try again"
            ) from error
        except apsw.FullError as error:
            raise LedgerUnavailable(f"{self._path}: no room on the device, nothing was written; make room") from error
        except (apsw.CorruptError, apsw.NotADBError) as error:
            raise LedgerCorrupt(f"{self._path}: {error}; {RESTORE}") from error
        except apsw.Error as error:
            self._failed = self._why_failed(error)
            raise LedgerUnknown(self._failed) from error

    def _why_failed(self, error: apsw.Error) -> str:
        """What happened and what to do, for all later calls. Checks now whether the file is still in its place: it
        may be back later, and this connection is unusable all the same."""
        found = self._inode
        with contextlib.suppress(OSError):
            found = OsFiles().inode(self._path)
        if found is None:
            what, remedy = "somebody removed or renamed it while the ledger was open", "put the file back"
        elif found != self._inode:
            what, remedy = "another file was put in its place while the ledger was open", "put the right file back"
        else:
            what, remedy = f"a call failed half way ({error!r})", "check the device"
        return f"{self._path}: {what}; this connection is closed: {remedy} and start the node again"


class _Job:
    """A call on its way to the thread and back."""

    __slots__ = ("_call", "_loop", "future")

    def __init__(self, call: Callable[[], Any]) -> None:
        self._call = call
        self._loop = asyncio.get_running_loop()
        self.future: asyncio.Future[Any] = self._loop.create_future()

    def do(self) -> None:
        """Runs it, in the thread."""
        result: Any = None
        failure: BaseException | None = None
        try:
            result = self._call()
        except BaseException as error:
            failure = error
        with contextlib.suppress(RuntimeError):  # the caller has gone, and its loop is closed
            self._loop.call_soon_threadsafe(self._settle, result, failure)

    def _settle(self, result: Any, failure: BaseException | None) -> None:
        if self.future.cancelled():
            return
        if failure is None:
            self.future.set_result(result)
        else:
            self.future.set_exception(failure)
            self.future.exception()  # mark it as retrieved: the waiter may have been cancelled
