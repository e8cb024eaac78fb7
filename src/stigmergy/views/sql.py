"""The statements of view stores in databases. Pure: text and values; names of tables and columns are checked before.

Every view is a table of its own under its own name, with its keys as the primary key, so that people may ask in SQL.
`stigmergy_views` says of each whose rows they are and how far its logs are in them.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from msgspec import Struct

from stigmergy.agents.view import ColumnKind
from stigmergy.views.port import Columns, RowSelection, check_table

CATALOGUE = "stigmergy_views"


class Dialect(Struct, frozen=True):
    """What differs between databases."""

    mark: str
    """Where a value goes."""
    types: dict[ColumnKind, str]
    table_end: str = ""

    @property
    def create_catalogue(self) -> str:
        """Makes the table of tables, if it is not there."""
        text, number, data = self.types["text"], self.types["int"], self.types["bytes"]
        return (
            f"CREATE TABLE IF NOT EXISTS {CATALOGUE} (name {text} PRIMARY KEY, digest {data} NOT NULL, "
            f"shape {text} NOT NULL, positions {text} NOT NULL, revision {number} NOT NULL)"
        )

    @property
    def find(self) -> str:
        """What is known of a table."""
        return f"SELECT digest, shape, positions, revision FROM {CATALOGUE} WHERE name = {self.mark}"

    @property
    def note(self) -> str:
        """Enters a table."""
        marks = ", ".join([self.mark] * 5)
        return f"INSERT INTO {CATALOGUE} (name, digest, shape, positions, revision) VALUES ({marks})"

    @property
    def move(self) -> str:
        """Moves the position; changes no row if the revision is another one."""
        mark = self.mark
        return (
            f"UPDATE {CATALOGUE} SET positions = {mark}, revision = revision + 1 WHERE name = {mark} "
            f"AND revision = {mark}"
        )

    @property
    def forget(self) -> str:
        """Strikes a table out."""
        return f"DELETE FROM {CATALOGUE} WHERE name = {self.mark}"

    @property
    def rename(self) -> str:
        """Gives an entry another name."""
        return f"UPDATE {CATALOGUE} SET name = {self.mark} WHERE name = {self.mark}"

    def create(self, table: str, columns: Columns) -> str:
        """Makes the table of a view."""
        fields = [f"{quoted(one.name)} {self.types[one.kind]}{'' if one.optional else ' NOT NULL'}" for one in columns]
        keys = ", ".join(quoted(one.name) for one in columns if one.key)
        return f"CREATE TABLE {name_of(table)} ({', '.join(fields)}, PRIMARY KEY ({keys})){self.table_end}"

    def upsert(self, table: str, columns: Columns) -> str:
        """Puts a row in the place of the one with its key."""
        names = ", ".join(quoted(one.name) for one in columns)
        keys = ", ".join(quoted(one.name) for one in columns if one.key)
        sets = ", ".join(f"{quoted(one.name)} = excluded.{quoted(one.name)}" for one in columns if not one.key)
        marks = ", ".join([self.mark] * len(columns))
        end = f"DO UPDATE SET {sets}" if sets else "DO NOTHING"
        return f"INSERT INTO {name_of(table)} ({names}) VALUES ({marks}) ON CONFLICT ({keys}) {end}"

    def delete(self, table: str, columns: Columns) -> str:
        """Removes the row with a key."""
        keys = " AND ".join(f"{quoted(one.name)} = {self.mark}" for one in columns if one.key)
        return f"DELETE FROM {name_of(table)} WHERE {keys}"

    def load(self, table: str, columns: Columns, keys: Sequence[Any]) -> tuple[str, list[Any]]:
        """Reads the rows with these keys."""
        names = [quoted(one.name) for one in columns if one.key]
        marks = self.mark if len(names) == 1 else f"({', '.join([self.mark] * len(names))})"
        of = names[0] if len(names) == 1 else f"({', '.join(names)})"
        values = ", ".join([marks] * len(keys))
        listed = values if len(names) == 1 else f"VALUES {values}"
        flat = list(keys) if len(names) == 1 else [part for key in keys for part in key]
        return f"{_all_of(table, columns)} WHERE {of} IN ({listed})", flat

    def select(self, table: str, columns: Columns, wanted: RowSelection) -> tuple[str, list[Any]]:
        """Reads what is wanted."""
        terms: list[str] = []
        values: list[Any] = []
        for one in wanted.where:
            name = quoted(one.field)
            if one.value is None:
                terms.append(f"{name} IS {'NOT ' if one.op == '!=' else ''}NULL")
            elif one.op == "!=":
                terms.append(f"({name} <> {self.mark} OR {name} IS NULL)")
                values.append(one.value)
            else:
                terms.append(f"{name} {one.op} {self.mark}")
                values.append(one.value)
        if wanted.behind is not None:
            terms.append(self._behind(wanted.order, wanted.behind, values))
        where = f" WHERE {' AND '.join(terms)}" if terms else ""
        order = ", ".join(f"{quoted(name)}{' DESC' if high else ''}" for name, high in wanted.order)
        return f"{_all_of(table, columns)}{where} ORDER BY {order} LIMIT {int(wanted.limit)}", values

    def _behind(self, order: Sequence[tuple[str, bool]], behind: Sequence[Any], values: list[Any]) -> str:
        """A > 1 or (a = 1 and (b > 2 or …)), column by column."""
        (name, high), last = order[0], behind[0]
        values.append(last)
        term = f"{quoted(name)} {'<' if high else '>'} {self.mark}"
        if len(order) == 1:
            return term
        values.append(last)
        return f"({term} OR ({quoted(name)} = {self.mark} AND {self._behind(order[1:], behind[1:], values)}))"


def quoted(name: str) -> str:
    """A name of a column that may be a word of SQL."""
    return f'"{name}"'


def name_of(table: str) -> str:
    """A table in a statement."""
    check_table(table)
    return quoted(table)


def _all_of(table: str, columns: Columns) -> str:
    return f"SELECT {', '.join(quoted(one.name) for one in columns)} FROM {name_of(table)}"
