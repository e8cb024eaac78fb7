"""A view store in one SQLite file. People may open it beside us to ask in SQL; they must not write to it.

The file is in WAL mode: readers and the writer do not wait for each other. Writes are not synced one by one: after a
loss of power the file is at an earlier moment, rows and positions alike, and the log brings it forward again. `sync`
says up to where that cannot happen, which is what retention of the log has to know.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Any, TypeVar

import apsw
import msgspec

from stigmergy.base.errors import StigmergyError, StoreCorrupt, StoreForeign, StoreUnavailable
from stigmergy.base.system import SystemThreads
from stigmergy.views.port import (
    Columns,
    Positions,
    RowChanges,
    RowSelection,
    StoredView,
    Values,
    conflict,
    made_by_others,
    missing,
    shape_of,
)
from stigmergy.views.sql import CATALOGUE, Dialect, name_of

R = TypeVar("R")
APPLICATION_ID = 0x53544756
"""STGV; `file fleet.views.db` shows it."""
FORMAT = 1
BUSY_MS = 5_000
"""So long a statement waits for somebody else who has the file."""
SQLITE = Dialect(
    mark="?",
    types={"int": "INTEGER", "float": "REAL", "text": "TEXT", "bool": "INTEGER", "bytes": "BLOB", "json": "TEXT"},
    table_end=" WITHOUT ROWID",
)
_positions = msgspec.json.Decoder(Positions)


class SqliteViewStore:
    """The ViewStore port on a file. One thread writes, another reads."""

    def __init__(self, path: str) -> None:
        """Opens the file, or makes it. Raises StoreForeign for one that is not ours."""
        self._path = path
        self._writing = self._connect()
        with self._translated(), self._transaction():
            self._check_ours()
            self._writing.execute(SQLITE.create_catalogue)
        self._reading = self._connect()
        self._writer, self._reader = SystemThreads(1, "views"), SystemThreads(1, "views")
        self._closed = False

    def _connect(self) -> apsw.Connection:
        try:
            connection = apsw.Connection(self._path)
            connection.set_busy_timeout(BUSY_MS)
            connection.pragma("journal_mode", "wal")
            connection.pragma("synchronous", "normal")
        except apsw.Error as error:
            raise self._error(error) from error
        return connection

    def _check_ours(self) -> None:
        ours = self._writing.pragma("application_id") == APPLICATION_ID
        tables = next(iter(self._writing.execute("SELECT count(*) FROM sqlite_master")))[0]
        if not ours and tables:
            raise StoreForeign(f"{self._path}: not a file of views; name another one")
        if ours and self._writing.pragma("user_version") != FORMAT:
            raise StoreForeign(f"{self._path}: views of a later version; use that, or make them anew in another file")
        self._writing.pragma("application_id", APPLICATION_ID)
        self._writing.pragma("user_version", FORMAT)

    async def find(self, table: str) -> StoredView | None:
        return await self._read(lambda: self._known(self._reading, table))

    async def create(self, table: str, columns: Columns, digest: bytes) -> StoredView:
        known = StoredView(digest, shape_of(columns), {}, 0)

        def work() -> None:
            with self._transaction():
                self._drop(table)
                self._writing.execute(SQLITE.create(table, columns))
                self._writing.execute(SQLITE.note, (table, digest, known.shape, _written({}), 0))

        await self._write(work)
        return known

    async def load(self, table: str, columns: Columns, keys: Sequence[Any]) -> list[Values]:
        statement, values = SQLITE.load(table, columns, keys)
        return await self._read(lambda: self._rows(self._reading, columns, statement, values))

    async def write(self, table: str, columns: Columns, changes: RowChanges) -> None:
        def work() -> None:
            with self._transaction():
                known = self._known(self._writing, table)
                if known is None or known.revision != changes.revision:
                    raise conflict(table)
                rows = changes.rows
                if any(column.kind == "float" for column in columns):
                    rows = [tuple(map(_plain, row)) for row in rows]
                self._writing.executemany(SQLITE.upsert(table, columns), rows)
                one = sum(column.key for column in columns) == 1
                removed = [(key,) if one else key for key in changes.removed]
                self._writing.executemany(SQLITE.delete(table, columns), removed)
                positions = _written({**known.positions, **changes.positions})
                self._writing.execute(SQLITE.move, (positions, table, changes.revision))

        await self._write(work)

    async def swap(self, built: str, table: str) -> None:
        def work() -> None:
            with self._transaction():
                if self._known(self._writing, built) is None:
                    raise missing(built)
                self._drop(table)
                self._writing.execute(f"ALTER TABLE {name_of(built)} RENAME TO {name_of(table)}")
                self._writing.execute(SQLITE.rename, (table, built))

        await self._write(work)

    async def select(self, table: str, columns: Columns, wanted: RowSelection) -> tuple[list[Values], StoredView]:
        statement, values = SQLITE.select(table, columns, wanted)

        def work() -> tuple[list[Values], StoredView]:
            self._reading.execute("BEGIN")  # both from one moment
            try:
                known = self._known(self._reading, table)
                if known is None:
                    raise missing(table)
                if known.shape != shape_of(columns):
                    raise made_by_others(table)
                return self._rows(self._reading, columns, statement, [_plain(value) for value in values]), known
            finally:
                self._reading.execute("ROLLBACK")

        return await self._read(work)

    async def sync(self) -> None:
        await self._write(lambda: self._writing.wal_checkpoint(mode=apsw.SQLITE_CHECKPOINT_PASSIVE))

    async def close(self) -> None:
        if not self._closed:
            self._closed = True
            for thread, connection in ((self._reader, self._reading), (self._writer, self._writing)):
                with suppress(apsw.Error):
                    await thread.run(connection.close)

    # ------------------------------------------------------------------ in the threads

    def _known(self, connection: apsw.Connection, table: str) -> StoredView | None:
        for digest, shape, positions, revision in connection.execute(SQLITE.find, (table,)):
            return read_known(f"{self._path}: view {table}", digest, shape, positions, revision)
        return None

    def _rows(
        self, connection: apsw.Connection, columns: Columns, statement: str, values: Sequence[Any]
    ) -> list[Values]:
        bools = [number for number, column in enumerate(columns) if column.kind == "bool"]
        floats = [number for number, column in enumerate(columns) if column.kind == "float"]
        rows = list(connection.execute(statement, tuple(values)))
        if not bools and not floats:
            return rows
        found: list[Values] = []
        for row in map(list, rows):
            for number in bools:
                row[number] = None if row[number] is None else bool(row[number])
            for number in floats:
                row[number] = math.nan if isinstance(row[number], str) else row[number]
            found.append(tuple(row))
        return found

    def _drop(self, table: str) -> None:
        self._writing.execute(f"DROP TABLE IF EXISTS {name_of(table)}")
        self._writing.execute(SQLITE.forget, (table,))

    @contextmanager
    def _transaction(self) -> Iterator[None]:
        self._writing.execute("BEGIN IMMEDIATE")
        try:
            yield
            self._writing.execute("COMMIT")
        except BaseException:
            if self._writing.in_transaction:
                with suppress(apsw.Error):
                    self._writing.execute("ROLLBACK")
            raise

    async def _write(self, work: Callable[[], R]) -> R:
        return await self._run(self._writer, work)

    async def _read(self, work: Callable[[], R]) -> R:
        return await self._run(self._reader, work)

    async def _run(self, thread: SystemThreads, work: Callable[[], R]) -> R:
        if self._closed:
            raise StoreUnavailable(f"{self._path}: closed; nothing was written")

        def translated() -> R:
            with self._translated():
                return work()

        return await thread.run(translated)

    @contextmanager
    def _translated(self) -> Iterator[None]:
        try:
            yield
        except StigmergyError:
            raise
        except apsw.Error as error:
            raise self._error(error) from error

    def _error(self, error: apsw.Error) -> StigmergyError:
        text = f"{self._path}: {type(error).__name__}: {error}"
        if isinstance(error, apsw.NotADBError | apsw.CorruptError):
            return StoreCorrupt(f"{text}; remove the file: its rows are made again from the log")
        return StoreUnavailable(f"{text}; nothing was written")


def read_known(where: str, digest: bytes, shape: str, positions: str, revision: int) -> StoredView:
    """An entry of the catalogue. Raises StoreCorrupt."""
    try:
        return StoredView(bytes(digest), shape, _positions.decode(positions), revision)
    except msgspec.DecodeError as error:
        raise StoreCorrupt(f"{where}: {CATALOGUE} does not say how far it is ({error}); drop it") from None


def _written(positions: Positions) -> str:
    return msgspec.json.encode(positions).decode()


def _plain(value: Any) -> Any:
    """A value as SQLite keeps it: it has no NaN, and would take one for NULL."""
    return "NaN" if isinstance(value, float) and math.isnan(value) else value
