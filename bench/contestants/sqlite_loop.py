"""The naive loop: a row for each event in SQLite, with synchronous=FULL in WAL; the actions behind the commit.

What is acknowledged is on disk. There is nothing else: no marks, so a message that comes twice counts twice; nothing
that says which actions were carried out; no chain, no signature; a start that reads every row.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence
from pathlib import Path

from bench.contestants import Acted, batch_events_of
from bench.contestants.plain_drone import State, decode, fold, new_state
from bench.workload import Report

Row = tuple[str, bytes]


class SqliteLoop:
    """One connection, one table, one dict."""

    def __init__(self, path: Path, batch_events: int) -> None:
        self._batch_events = batch_events
        self._states: dict[str, State] = {}
        self._connection = sqlite3.connect(path, isolation_level=None)
        self._connection.execute("PRAGMA journal_mode=WAL")
        self._connection.execute("PRAGMA synchronous=FULL")
        self._connection.execute("CREATE TABLE events (number INTEGER PRIMARY KEY, drone TEXT, body BLOB)")

    def prepare(self, reports: Sequence[Report]) -> list[list[Row]]:
        """Rows, in batches of a commit each."""
        rows = [(report.address, report.body) for report in reports]
        return [rows[start : start + self._batch_events] for start in range(0, len(rows), self._batch_events)]

    def take(self, prepared: list[list[Row]]) -> list[Acted]:
        """Insert, commit, act."""
        connection, states = self._connection, self._states
        acted: list[Acted] = []
        for batch in prepared:
            connection.execute("BEGIN")
            connection.executemany("INSERT INTO events (drone, body) VALUES (?, ?)", batch)
            connection.execute("COMMIT")
            for address, body in batch:
                state = states.get(address)
                if state is None:
                    state = states[address] = new_state()
                action = fold(state, decode(body))
                if action is not None:
                    acted.append((address, action))
        return acted

    def close(self) -> None:
        """Closes the database."""
        self._connection.close()


def enter(folder: Path, variant: str) -> SqliteLoop:
    """A loop with an empty table."""
    return SqliteLoop(folder / "events.db", batch_events_of(variant))
