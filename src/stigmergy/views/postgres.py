"""A view store in a PostgreSQL database: `postgresql://user@host/database`. Needs the extra `stigmergy[postgres]`.

Tables are in the schema that is named, else in the one that the connection finds first (`public`, unless its
search_path says otherwise). Texts are compared by their code points, as everywhere else here.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, TypeVar

import msgspec
import psycopg
from psycopg import AsyncConnection, sql

from stigmergy.base.errors import StigmergyError, StoreForeign, StoreUnavailable, StoreUnknown
from stigmergy.views.port import (
    Columns,
    RowChanges,
    RowSelection,
    StoredView,
    Values,
    conflict,
    made_by_others,
    missing,
    shape_of,
)
from stigmergy.views.sql import Dialect, name_of
from stigmergy.views.sqlite import read_known

R = TypeVar("R")
CONNECT_S = 10
POSTGRES = Dialect(
    mark="%s",
    types={
        "int": "bigint",
        "float": "double precision",
        "text": 'text COLLATE "C"',
        "bool": "boolean",
        "bytes": "bytea",
        "json": "text",
    },
)


class PostgresViewStore:
    """The ViewStore port on a database. One connection writes, another reads; each is made anew when it breaks."""

    def __init__(self, url: str, schema: str = "") -> None:
        self._url = url
        self._schema = schema
        self._connections: dict[str, AsyncConnection[Any]] = {}
        self._locks = {"read": asyncio.Lock(), "write": asyncio.Lock()}
        self._closed = False

    async def find(self, table: str) -> StoredView | None:
        return await self._do("read", lambda connection: self._known(connection, table))

    async def create(self, table: str, columns: Columns, digest: bytes) -> StoredView:
        known = StoredView(digest, shape_of(columns), {}, 0)

        async def work(connection: AsyncConnection[Any]) -> StoredView:
            await self._drop(connection, table)
            await connection.execute(POSTGRES.create(table, columns).encode())
            await connection.execute(POSTGRES.note.encode(), (table, digest, known.shape, "{}", 0))
            return known

        return await self._do("write", work)

    async def load(self, table: str, columns: Columns, keys: Sequence[Any]) -> list[Values]:
        statement, values = POSTGRES.load(table, columns, keys)

        async def work(connection: AsyncConnection[Any]) -> list[Values]:
            return await (await connection.execute(statement.encode(), values)).fetchall()

        return await self._do("read", work)

    async def write(self, table: str, columns: Columns, changes: RowChanges) -> None:
        async def work(connection: AsyncConnection[Any]) -> None:
            known = await self._known(connection, table, lock=True)
            if known is None or known.revision != changes.revision:
                raise conflict(table)
            one = sum(column.key for column in columns) == 1
            async with connection.cursor() as cursor:
                if changes.rows:
                    await cursor.executemany(POSTGRES.upsert(table, columns).encode(), changes.rows)
                if changes.removed:
                    removed = [(key,) if one else key for key in changes.removed]
                    await cursor.executemany(POSTGRES.delete(table, columns).encode(), removed)
            positions = msgspec.json.encode({**known.positions, **changes.positions}).decode()
            await connection.execute(POSTGRES.move.encode(), (positions, table, changes.revision))

        await self._do("write", work)

    async def swap(self, built: str, table: str) -> None:
        async def work(connection: AsyncConnection[Any]) -> None:
            if await self._known(connection, built, lock=True) is None:
                raise missing(built)
            await self._drop(connection, table)
            await connection.execute(f"ALTER TABLE {name_of(built)} RENAME TO {name_of(table)}".encode())
            await connection.execute(POSTGRES.rename.encode(), (table, built))

        await self._do("write", work)

    async def select(self, table: str, columns: Columns, wanted: RowSelection) -> tuple[list[Values], StoredView]:
        statement, values = POSTGRES.select(table, columns, wanted)

        async def work(connection: AsyncConnection[Any]) -> tuple[list[Values], StoredView]:
            await connection.execute(b"SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
            known = await self._known(connection, table)
            if known is None:
                raise missing(table)
            if known.shape != shape_of(columns):
                raise made_by_others(table)
            return await (await connection.execute(statement.encode(), values)).fetchall(), known

        return await self._do("read", work)

    async def sync(self) -> None:
        """Nothing to do: a commit of the server is durable, unless it was told otherwise."""

    async def close(self) -> None:
        self._closed = True
        for connection in self._connections.values():
            await connection.close()
        self._connections.clear()

    async def _known(self, connection: AsyncConnection[Any], table: str, *, lock: bool = False) -> StoredView | None:
        statement = f"{POSTGRES.find}{' FOR UPDATE' if lock else ''}"
        row = await (await connection.execute(statement.encode(), (table,))).fetchone()
        return None if row is None else read_known(f"view {table}", *row)

    async def _drop(self, connection: AsyncConnection[Any], table: str) -> None:
        await connection.execute(f"DROP TABLE IF EXISTS {name_of(table)}".encode())
        await connection.execute(POSTGRES.forget.encode(), (table,))

    async def _do(self, use: str, work: Callable[[AsyncConnection[Any]], Awaitable[R]]) -> R:
        """Runs something in a transaction of its own, on one of both connections."""
        if self._closed:
            raise StoreUnavailable("the store of the views is closed; nothing was written")
        async with self._locks[use]:
            connection = await self._connected(use)
            committing = False
            try:
                found = await work(connection)
                committing = True
                await connection.commit()
                return found
            except StigmergyError:
                await self._undo(use, connection)
                raise
            except psycopg.Error as error:
                await self._undo(use, connection)
                text = f"PostgreSQL: {type(error).__name__}: {error}"
                if isinstance(error, psycopg.errors.UndefinedTable):
                    raise StoreForeign(f"{text}; its projector makes it when it runs") from error
                if committing and isinstance(error, psycopg.OperationalError):
                    raise StoreUnknown(f"{text}; whether it was written is not known") from error
                raise StoreUnavailable(f"{text}; nothing was written") from error
            except BaseException:
                # Cancelled: what the connection is doing is not known any more.
                self._connections.pop(use, None)
                await connection.close()
                raise

    async def _undo(self, use: str, connection: AsyncConnection[Any]) -> None:
        try:
            await connection.rollback()
        except psycopg.Error:
            self._connections.pop(use, None)
            await connection.close()

    async def _connected(self, use: str) -> AsyncConnection[Any]:
        connection = self._connections.get(use)
        if connection is not None and not connection.closed:
            return connection
        try:
            connection = await AsyncConnection.connect(self._url, connect_timeout=CONNECT_S)
            try:
                await self._prepare(connection)
            except psycopg.errors.UniqueViolation:
                await connection.rollback()  # another connection made it at the same moment
                await self._prepare(connection)
        except psycopg.Error as error:
            raise StoreUnavailable(f"PostgreSQL: {type(error).__name__}: {error}; nothing was written") from error
        self._connections[use] = connection
        return connection

    async def _prepare(self, connection: AsyncConnection[Any]) -> None:
        if self._schema:
            there = await connection.execute(b"SELECT 1 FROM pg_namespace WHERE nspname = %s", (self._schema,))
            if await there.fetchone() is None:  # creating it needs a right that not everybody has
                await connection.execute(sql.SQL("CREATE SCHEMA {}").format(sql.Identifier(self._schema)))
            await connection.execute(sql.SQL("SET search_path TO {}").format(sql.Identifier(self._schema)))
        await connection.execute(POSTGRES.create_catalogue.encode())
        await connection.commit()
