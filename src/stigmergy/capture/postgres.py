"""Writes captured events to PostgreSQL: rows and positions in one transaction, so each event is there exactly once.

`open` connects, takes the lock of its schema, makes or extends the tables, and returns how far the capture is.
`write` adds commits that follow. After an error close it and open another: whether the last transaction counts is in
the positions, and nowhere else. The driver runs in a thread, one call at a time.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, TypeVar

from msgspec import Struct

from stigmergy.base.errors import ConfigError, StoreConflict, StoreError, StoreForeign, StoreUnavailable
from stigmergy.capture.log import Captured, CapturedCommit
from stigmergy.capture.tables import HEAD, KEY, EventTables, Row, SqlColumn, SqlTable

if TYPE_CHECKING:
    from collections.abc import Iterator

    import psycopg

ResultT = TypeVar("ResultT")
FORMAT = 1
CONNECT_S_MAX = 10
STATEMENT_S_MAX = 120
SILENT_S_MAX = 30
"""A server, or a client, that is silent for so long is given up, and its transaction with it."""
LOCK_S_MAX = 10.0
"""The server needs a moment to notice that a capture was killed. If the lock is not free by then, another one runs."""
LOCK_PAUSE_S = 0.1
SCHEMES = ("postgresql://", "postgres://")


class CaptureSource(Struct, frozen=True):
    """Whose log it is. A schema holds the log of one fleet, and all of it or some event types, for good."""

    fleet: str
    shards: int


class PostgresWriter:
    """The tables of one fleet in one schema. One writer at a time: a second one is refused."""

    def __init__(self, url: str, schema: str, tables: EventTables, source: CaptureSource) -> None:
        if not url.startswith(SCHEMES):
            raise ConfigError(f"--to {url!r}: give a PostgreSQL server, such as postgresql://user@host:5432/database")
        self.schema = schema
        self.captured: dict[int, Captured] = {}
        self.rows = 0
        """Rows written since it was opened."""
        self._url = url
        self._tables = tables
        self._source = source
        self._ready: dict[str, SqlTable] = {}
        """Tables that are there, with all columns."""
        self._connection: psycopg.Connection[Any] | None = None
        self._call: asyncio.Future[Any] | None = None

    async def open(self) -> Mapping[int, Captured]:
        """Connects; returns how far each shard is captured. Raises StoreUnavailable (try again), StoreConflict (another
        capture writes here), StoreForeign and ConfigError (something else is there)."""
        return await self._in_thread(self._open)

    async def begin(self, shard: int, first: int) -> None:
        """Begins a shard of which nothing is captured at this position."""
        await self._in_thread(self._begin, shard, first)

    async def write(self, commits: Sequence[CapturedCommit]) -> Mapping[int, Captured]:
        """Adds the events of these commits, all or none. They must follow those that are captured."""
        return await self._in_thread(self._write, commits)

    async def close(self) -> None:
        """Lets go of the lock, once a call that was cancelled has ended. Closing twice does nothing."""
        if self._call is not None and not self._call.done():
            await asyncio.wait([self._call])
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.close()

    async def _in_thread(self, call: Callable[..., ResultT], *arguments: Any) -> ResultT:
        work = self._call = asyncio.ensure_future(asyncio.to_thread(call, *arguments))
        return await asyncio.shield(work)

    def _open(self) -> Mapping[int, Captured]:
        with _explained(self.schema):
            self._connection = connection = _connect(self._url, self._source.fleet)
            self._lock(connection)
            with connection.transaction():
                self._prepare(connection)
                self.captured = self._read_positions(connection)
        return self.captured

    def _begin(self, shard: int, first: int) -> None:
        connection = self._opened()
        with _explained(self.schema), connection.transaction():
            self._advance(connection, shard, Captured(), Captured(first - 1))
        self.captured[shard] = Captured(first - 1)

    def _write(self, commits: Sequence[CapturedCommit]) -> Mapping[int, Captured]:
        connection = self._opened()
        before, after = dict(self.captured), dict(self.captured)
        rows: dict[str, tuple[SqlTable, list[Row]]] = {}
        for commit in commits:
            self._check_follows(after[commit.shard], commit)
            after[commit.shard] = Captured(commit.position, commit.digest)
            for kept in commit.events:
                if self._tables.takes(kept.tag, kept.body):
                    table, row = self._tables.row_of(commit.shard, commit.position, kept)
                    rows.setdefault(table.name, (table, []))[1].append(row)
        with _explained(self.schema), connection.transaction():
            for table, some in rows.values():
                if table.name not in self._ready:
                    self._ensure(connection, table)
                self._copy(connection, table, some)
            for shard, captured in after.items():
                if captured != before[shard]:
                    self._advance(connection, shard, before[shard], captured)
        self.captured = after
        self.rows += sum(len(some) for _, some in rows.values())
        return after

    def _opened(self) -> psycopg.Connection[Any]:
        if self._connection is None:
            raise StoreUnavailable("the writer is not open; open it, and go on from the positions it returns")
        return self._connection

    # ------------------------------------------------------------------ one writer, one log

    def _lock(self, connection: psycopg.Connection[Any]) -> None:
        name = f"stigmergy capture {self.schema}"
        deadline_s = time.monotonic() + LOCK_S_MAX
        while not _one(connection, "SELECT pg_try_advisory_lock(hashtextextended(%s, 0))", name):
            if time.monotonic() > deadline_s:
                raise StoreConflict(
                    f"another capture writes to the schema {self.schema}; stop it, or choose another with --schema"
                )
            time.sleep(LOCK_PAUSE_S)

    def _check_follows(self, captured: Captured, commit: CapturedCommit) -> None:
        if commit.position != captured.position + 1:
            raise StoreConflict(
                f"shard {commit.shard}: position {captured.position} is captured, and {commit.position} does not "
                "follow; read the log from the captured position on"
            )
        if captured.digest and commit.previous != captured.digest:
            raise StoreForeign(
                f"shard {commit.shard}: position {captured.position} of this log is not the one that was captured; the "
                "journal was restored from an older copy, or is another one: capture it into another schema (--schema)"
            )

    def _advance(self, connection: psycopg.Connection[Any], shard: int, before: Captured, after: Captured) -> None:
        moved = connection.execute(
            self._sql("UPDATE {}.capture_positions SET position = %s, digest = %s WHERE shard = %s AND position = %s"),
            (after.position, after.digest, shard, before.position),
        )
        if moved.rowcount != 1:
            raise StoreConflict(
                f"shard {shard}: another capture has written to the schema {self.schema} meanwhile; stop one of them"
            )

    # ------------------------------------------------------------------ tables

    def _prepare(self, connection: psycopg.Connection[Any]) -> None:
        """Makes what is not there. Creating is tried only then: it needs a right that not everybody has."""
        if not _one(connection, "SELECT count(*) FROM pg_namespace WHERE nspname = %s", self.schema):
            connection.execute(self._sql("CREATE SCHEMA {}"))
        if not self._columns_of(connection, "capture_source"):
            connection.execute(
                self._sql("CREATE TABLE {}.capture_source (format integer, fleet text, shards integer, types text[])")
            )
            connection.execute(
                self._sql(
                    "CREATE TABLE {}.capture_positions (shard integer PRIMARY KEY, position bigint NOT NULL, "
                    "digest bytea NOT NULL)"
                )
            )
        self._check_source(connection)
        for table in self._tables.tables:
            self._ensure(connection, table)

    def _check_source(self, connection: psycopg.Connection[Any]) -> None:
        ours = (FORMAT, self._source.fleet, self._source.shards, list(self._tables.only))
        there = connection.execute(self._sql("SELECT format, fleet, shards, types FROM {}.capture_source")).fetchone()
        if there is None:
            connection.execute(self._sql("INSERT INTO {}.capture_source VALUES (%s, %s, %s, %s)"), ours)
            connection.cursor().executemany(
                self._sql("INSERT INTO {}.capture_positions VALUES (%s, 0, '')"),
                [(shard,) for shard in range(self._source.shards)],
            )
            return
        other = "choose another schema with --schema"
        if there[0] != FORMAT:
            raise StoreForeign(f"the schema {self.schema} has format {there[0]}, this version writes {FORMAT}; {other}")
        if there[1:3] != ours[1:3]:
            raise StoreForeign(
                f"the schema {self.schema} holds the fleet {there[1]!r} with {there[2]} shards, not "
                f"{ours[1]!r} with {ours[2]}; {other}"
            )
        if there[3] != ours[3]:
            shown = [", ".join(types) or "all events" for types in (there[3], ours[3])]
            raise StoreForeign(
                f"the schema {self.schema} captures {shown[0]}, not {shown[1]}: older events would be missing; {other}"
            )

    def _read_positions(self, connection: psycopg.Connection[Any]) -> dict[int, Captured]:
        found = connection.execute(self._sql("SELECT shard, position, digest FROM {}.capture_positions")).fetchall()
        return {shard: Captured(position, bytes(digest)) for shard, position, digest in sorted(found)}

    def _ensure(self, connection: psycopg.Connection[Any], table: SqlTable) -> None:
        """Makes a table, or adds the columns of fields that are new. A column of another type is refused."""
        from psycopg import sql

        there = self._columns_of(connection, table.name)
        if not there:
            columns = sql.SQL(", ").join(_defined(column) for column in (*HEAD, *table.columns))
            key = sql.SQL(", ").join(map(sql.Identifier, KEY))
            connection.execute(self._sql("CREATE TABLE {}.{} ({}, PRIMARY KEY ({}))", table.name, columns, key))
        for column in table.columns if there else ():
            if column.name not in there:
                # The default is that of the rows that are there; later ones bring their own.
                added = sql.SQL("{} DEFAULT {}").format(_defined(column), sql.Literal(column.before))
                connection.execute(self._sql("ALTER TABLE {}.{} ADD COLUMN {}", table.name, added))
                name = sql.Identifier(column.name)
                connection.execute(self._sql("ALTER TABLE {}.{} ALTER COLUMN {} DROP DEFAULT", table.name, name))
            elif there[column.name] != column.type:
                raise ConfigError(
                    f"{table.event}.{column.name} is {column.type} now, and the column {column.name} of "
                    f"{self.schema}.{table.name} is {there[column.name]}; give the field another name, raise the "
                    "event's version=, or capture into another schema with --schema"
                )
        self._ready[table.name] = table

    def _columns_of(self, connection: psycopg.Connection[Any], table: str) -> dict[str, str]:
        found = connection.execute(
            "SELECT a.attname, format_type(a.atttypid, a.atttypmod) FROM pg_attribute a "
            "JOIN pg_class c ON c.oid = a.attrelid JOIN pg_namespace n ON n.oid = c.relnamespace "
            "WHERE n.nspname = %s AND c.relname = %s AND a.attnum > 0 AND NOT a.attisdropped",
            (self.schema, table),
        )
        return dict(found.fetchall())

    def _copy(self, connection: psycopg.Connection[Any], table: SqlTable, rows: Sequence[Row]) -> None:
        from psycopg import sql

        names = sql.SQL(", ").join(sql.Identifier(column.name) for column in (*HEAD, *table.columns))
        with (
            connection.cursor() as cursor,
            cursor.copy(self._sql("COPY {}.{} ({}) FROM STDIN", table.name, names)) as copy,
        ):
            for row in rows:
                copy.write_row(row)

    def _sql(self, text: str, *parts: Any) -> Any:
        """A statement with the schema and these parts as identifiers, or as the SQL that they are."""
        from psycopg import sql

        made = [sql.Identifier(part) if isinstance(part, str) else part for part in (self.schema, *parts)]
        return sql.SQL(text).format(*made)


def _defined(column: SqlColumn) -> Any:
    from psycopg import sql

    return sql.SQL("{} {}").format(sql.Identifier(column.name), sql.SQL(column.type))


def _one(connection: psycopg.Connection[Any], query: str, *values: Any) -> Any:
    row = connection.execute(query.encode(), values).fetchone()
    return None if row is None else row[0]


def _connect(url: str, fleet: str) -> psycopg.Connection[Any]:
    try:
        import psycopg
    except ModuleNotFoundError:
        raise ConfigError(
            "PostgreSQL needs a package that is not installed: pip install 'stigmergy[postgres]'"
        ) from None
    keepalives: dict[str, Any] = {
        "keepalives_idle": SILENT_S_MAX // 3,
        "keepalives_interval": SILENT_S_MAX // 6,
        "keepalives_count": 4,
    }
    server = {
        "TimeZone": "UTC",
        "statement_timeout": f"{STATEMENT_S_MAX}s",
        "idle_in_transaction_session_timeout": f"{STATEMENT_S_MAX}s",
        **{f"tcp_{name}": value for name, value in keepalives.items()},
    }
    try:
        return psycopg.connect(
            url,
            autocommit=True,
            connect_timeout=CONNECT_S_MAX,
            application_name=f"stigmergy capture {fleet}",
            options=" ".join(f"-c {name}={value}" for name, value in server.items()),
            tcp_user_timeout=SILENT_S_MAX * 1000,
            **keepalives,
        )
    except psycopg.ProgrammingError as error:
        raise ConfigError(f"--to: {_first_line(error)}; write it like postgresql://user@host:5432/database") from None


@contextmanager
def _explained(schema: str) -> Iterator[None]:
    """Translates the errors of the driver."""
    try:
        yield
    except StoreError:
        raise
    except Exception as error:
        if type(error).__module__.partition(".")[0] != "psycopg":
            raise
        import psycopg

        if isinstance(error, psycopg.OperationalError | psycopg.InterfaceError):
            raise StoreUnavailable(f"PostgreSQL is not available: {_first_line(error)}") from error
        if isinstance(error, psycopg.errors.UniqueViolation):
            raise StoreConflict(
                f"an event is in the schema {schema} already, beyond the captured position ({_first_line(error)}); "
                "somebody else has written there: capture into another schema with --schema"
            ) from error
        raise StoreError(
            f"PostgreSQL refused to write to the schema {schema}: {_first_line(error)}; mend that, then start again"
        ) from error


def _first_line(error: Exception) -> str:
    return str(error).strip().partition("\n")[0]
