"""Follows a ledger of users' own: folds what is new, keeps the newest entries at hand, reads older ones again.

It begins with the newest checkpoint, if there is one. Whatever it gives out was verified when it was read, also an
entry that it reads for the second time.
"""

from __future__ import annotations

import asyncio
import contextlib
from bisect import bisect_right
from collections.abc import Awaitable, Callable
from typing import TypeVar

from stigmergy.base.errors import (
    LedgerCorrupt,
    LedgerCut,
    LedgerError,
    LedgerFailed,
    LedgerUnavailable,
    LedgerUnknown,
    Malformed,
)
from stigmergy.claims.entries import Verify
from stigmergy.claims.port import READ_COUNT_MAX, LedgerPort
from stigmergy.claims.reader import CachingVerifier
from stigmergy.claims.writer import Pauses
from stigmergy.ledgers.fold import EntryFate, EntryFold, LedgerItem
from stigmergy.ledgers.records import EntryBody, read_record

FOLD_COUNT_MAX = 64
"""Records folded before other tasks have a turn."""
LOOK_S = 0.5
"""A watch may be lost: the longest time without a read."""
TAIL_COUNT_MAX = 1_024
"""The newest entries are at hand, for subscribers and readers that are up to date."""

T = TypeVar("T")


class EntryFollower:
    """The ledger as this node knows it. `run` is a task."""

    def __init__(
        self,
        log: LedgerPort,
        ids_count: int,
        verify: Verify,
        trusted: frozenset[bytes],
        heard: Callable[[], None],
    ) -> None:
        """Of `trusted` keys entries and checkpoints are believed; of all, if there are none."""
        self._log = log
        self._ids_count = ids_count
        self._verify = CachingVerifier(verify)
        self._trusted = trusted
        self._heard = heard
        self.fold = EntryFold(log.name, ids_count)
        self.caught_up = asyncio.Event()
        self.last_error: LedgerError | None = None
        self._bell = asyncio.Event()
        self._moved = asyncio.Event()
        self._tail: list[LedgerItem] = []
        self._tail_from = 0
        """All entries behind this position are in the tail."""

    async def run(self) -> None:
        """Reads until cancelled. Ends with an error that does not go away by itself."""
        self._log.watch(lambda _end: self._bell.set())
        await self._retried(self._begin)
        while True:
            self._bell.clear()
            if not await self._retried(self._read_on):
                self.caught_up.set()
                self._heard()
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(LOOK_S):
                        await self._bell.wait()

    async def _retried(self, call: Callable[[], Awaitable[T]]) -> T:
        pauses = Pauses()
        while True:
            try:
                result = await call()
            except (LedgerUnavailable, LedgerUnknown) as error:
                self.last_error = error
                if isinstance(error, LedgerFailed):
                    raise
                await pauses.wait()
            else:
                self.last_error = None
                return result

    async def _begin(self) -> bool:
        """Goes on from the newest checkpoint, if it is ahead of what is known."""
        found = await self._log.checkpoint()
        if found is None or found.position <= self.fold.position:
            return False
        fold = EntryFold(self._log.name, self._ids_count)
        try:
            key = fold.restore(found.body, self._verify)
        except Malformed as error:
            raise LedgerCorrupt(f"ledger {self._log.name!r}: {error}") from None
        if fold.position != found.position or (self._trusted and key not in self._trusted):
            raise LedgerCorrupt(
                f"ledger {self._log.name!r}: its checkpoint is of another position, or signed by a key that this node "
                "does not trust; have a trusted node store one, or restore the ledger"
            )
        self.fold, self._tail, self._tail_from = fold, [], fold.position
        return True

    async def _read_on(self) -> int:
        """Reads and folds one batch; returns its number of records."""
        try:
            records = await self._log.read(self.fold.position, fresh=not self.caught_up.is_set())
        except LedgerCut:
            if not await self._begin():
                raise LedgerCorrupt(
                    f"ledger {self._log.name!r}: entries after {self.fold.position} are gone and no checkpoint covers "
                    "them; restore it from a copy"
                ) from None
            return READ_COUNT_MAX
        for number, record in enumerate(records):
            if number and number % FOLD_COUNT_MAX == 0:
                await asyncio.sleep(0)
            fate, item = self.fold.take(record.position, record.body, self._verify)
            if item is not None and fate is EntryFate.ENTERED:
                self._check(item)
                self._tail.append(item)
        if len(self._tail) >= 2 * TAIL_COUNT_MAX:
            self._tail_from = self._tail[-TAIL_COUNT_MAX - 1].position
            self._tail = self._tail[-TAIL_COUNT_MAX:]
        if records:
            self._moved.set()
            self._moved = asyncio.Event()
            self._heard()
        return len(records)

    def _check(self, item: LedgerItem) -> None:
        if self._trusted and item.key not in self._trusted:
            raise LedgerCorrupt(
                f"ledger {self._log.name!r}: the entry at {item.position} is of a key that this node does not trust; "
                "give all nodes the same trusted keys"
            )

    def look(self) -> None:
        """There is something new to read."""
        self._bell.set()

    async def _wait_position(self, position: int) -> None:
        """Waits until the log was read up to here."""
        while self.fold.position < position:
            moved = self._moved
            self._bell.set()
            await moved.wait()

    async def wait_end(self) -> None:
        """Waits until everything was read that anybody had written before this call. Raises LedgerError."""
        while records := await self._log.read(self.fold.position, fresh=True):
            await self._wait_position(records[-1].position)
            if len(records) < READ_COUNT_MAX:
                return

    async def items(self, after: int, count_max: int) -> tuple[list[LedgerItem], int]:
        """The entries after a position that were folded, and the position up to which these are all.

        Raises LedgerCut if some are gone: go on at `fold.first`. Raises LedgerError.
        """
        if after >= self._tail_from:
            start = bisect_right(self._tail, after, key=lambda item: item.position)
            found = self._tail[start : start + count_max]
            return found, found[-1].position if len(found) == count_max else self.fold.position
        records = await self._log.read(after, count_max, fresh=False)
        end, found = self.fold.position, []
        for record in records:
            if record.position > end:
                break
            after = record.position
            if self.fold.has_entered(record.position):
                found.append(self._again(record.position, record.body))
        return found, after

    def _again(self, position: int, data: bytes) -> LedgerItem:
        read = read_record(self._log.name, data, self._verify)
        if isinstance(read, str) or not isinstance(read[1], EntryBody):
            raise LedgerCorrupt(
                f"ledger {self._log.name!r}: the entry at {position} is not what it was; restore it from a copy"
            )
        item = LedgerItem(position, read[0], read[1])
        self._check(item)
        return item
