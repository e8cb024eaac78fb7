"""A fence that survives a crash: tokens in a small SQLite file, written by its own thread.

    fence = fleet.attach(FenceFile("fence.db"))

`admit` never waits for the disk, because safe actions must not. So a token is on disk a moment after its order has
passed; a crash within that moment forgets it. An unreadable file keeps the node from starting; an unwritable one is
reported, and the fence goes on in memory.
"""

from __future__ import annotations

import asyncio
import threading
from pathlib import Path

import apsw

from stigmergy.base.errors import ConfigError
from stigmergy.devices.fence import Fence
from stigmergy.diagnostics.logger import Log

SAVE_WITHIN_S = 10.0
"""How long a close waits for what is still to be written."""
APPLICATION_ID = 0x73746667

log = Log("devices")


class FenceFile(Fence):
    """A `Fence` on a file. Attach it to the fleet: it is opened and closed with the node."""

    def __init__(self, path: str | Path, *, of: str | tuple[str, ...] = ()) -> None:
        super().__init__(keep=self._keep_soon, of=of)
        self._path = str(path)
        self._changed: dict[str, int] = {}
        """Tokens that are not on disk yet, the newest for each agent or resource."""
        self._wake = threading.Condition()
        self._saving = False
        self._ending = False
        self._thread: threading.Thread | None = None
        self.failures = 0
        """Writes that failed; what they were to store is tried again with the next."""

    async def open(self) -> None:
        """Reads what is remembered. Raises ConfigError for a file that is not ours or cannot be read."""
        try:
            connection = apsw.Connection(self._path)
            self.remember(_prepare(connection))
        except (apsw.Error, OSError, ValueError) as error:
            raise ConfigError(f"fence {self._path!r}: cannot be used: {error}; mend or remove it") from None
        self._ending = False
        self._thread = threading.Thread(target=self._save, args=(connection,), name="stigmergy-fence", daemon=True)
        self._thread.start()

    async def close(self) -> None:
        """Waits until all is written, and closes the file."""
        thread, self._thread = self._thread, None
        if thread is None:
            return
        with self._wake:
            self._ending = True
            self._wake.notify_all()
        loop = asyncio.get_running_loop()
        deadline_s = loop.time() + SAVE_WITHIN_S
        while thread.is_alive() and loop.time() < deadline_s:  # noqa: ASYNC110 - a thread sets no asyncio events
            await asyncio.sleep(0.005)

    async def wait_saved(self) -> bool:
        """Waits until what has passed is on disk, as long as a close would; whether it is."""
        loop = asyncio.get_running_loop()
        deadline_s = loop.time() + SAVE_WITHIN_S
        while loop.time() < deadline_s:
            with self._wake:
                if not self._changed and not self._saving:
                    return True
            await asyncio.sleep(0.005)
        return False

    def _keep_soon(self, agent: str, token: int) -> None:
        with self._wake:
            self._changed[agent] = token
            self._wake.notify_all()

    def _save(self, connection: apsw.Connection) -> None:
        while True:
            with self._wake:
                self._wake.wait_for(lambda: self._changed or self._ending)
                if not self._changed:
                    break
                changed, self._changed = self._changed, {}
                self._saving = True
            failed = ""
            try:
                with connection:
                    connection.cursor().executemany("INSERT OR REPLACE INTO fence VALUES (?, ?)", changed.items())
            except apsw.Error as error:
                failed = f"{type(error).__name__}: {error}"
            with self._wake:
                self._saving = False
                if failed:
                    self.failures += 1
                    log.say("fence-failed", f"fence {self._path}: could not be written: {failed}")
                    self._changed = {**changed, **self._changed}
                    if self._ending:
                        break
                    self._wake.wait(1.0)
        connection.close()


def _prepare(connection: apsw.Connection) -> dict[str, int]:
    """Makes the file ours, if it is new, and reads it."""
    cursor = connection.cursor()
    cursor.execute("PRAGMA journal_mode = TRUNCATE").fetchall()
    cursor.execute("PRAGMA synchronous = FULL")
    (number,) = next(iter(cursor.execute("PRAGMA application_id")))
    (tables,) = next(iter(cursor.execute("SELECT count(*) FROM sqlite_master")))
    if number != APPLICATION_ID:
        if tables or number:
            raise ValueError("it is the file of another program")
        cursor.execute(
            f"BEGIN IMMEDIATE; PRAGMA application_id = {APPLICATION_ID}; "
            "CREATE TABLE fence (agent TEXT PRIMARY KEY, token INTEGER NOT NULL) STRICT, WITHOUT ROWID; COMMIT"
        )
    return {str(agent): int(token) for agent, token in cursor.execute("SELECT agent, token FROM fence ORDER BY agent")}
