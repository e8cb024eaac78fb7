"""Follows a ledger of users' own: folds what is new, keeps the newest entries at hand, reads older ones again.

It begins with the newest checkpoint, if there is one. Whatever it gives out was verified when it was read, also an
entry that it reads for the second time.
"""

from __future__ import annotations

import asyncio
from bisect import bisect_right
from collections.abc import Callable, Sequence

from stigmergy.base.errors import LedgerCorrupt, LedgerError, LedgerFailed
from stigmergy.claims.entries import Verify
from stigmergy.claims.following import FOLD_COUNT_MAX, LogFollower
from stigmergy.claims.port import READ_COUNT_MAX, LedgerEntry, LedgerPort
from stigmergy.ledgers.fold import EntryFate, EntryFold, LedgerItem
from stigmergy.ledgers.records import EntryBody, read_record

TAIL_COUNT_MAX = 1_024
"""The newest entries are at hand, for subscribers and readers that are up to date."""


class EntryFollower(LogFollower[EntryFold]):
    """The ledger as this node knows it. `run` is a task."""

    end_count = 1  # a gateway may answer with fewer than were asked for

    def __init__(
        self,
        log: LedgerPort,
        ids_count: int,
        verify: Verify,
        trusted: frozenset[bytes],
        heard: Callable[[], None],
    ) -> None:
        """Of `trusted` keys entries and checkpoints are believed; of all, if there are none."""
        super().__init__(log, verify, trusted)
        self._ids_count = ids_count
        self._heard = heard
        self.fold = EntryFold(log.name, ids_count)
        self._moved = asyncio.Event()
        self._tail: list[LedgerItem] = []
        self._tail_from = 0
        """All entries behind this position are in the tail."""

    def _failed(self, error: LedgerError) -> None:
        if isinstance(error, LedgerFailed):
            raise error

    def _idle(self) -> None:
        self._heard()

    @property
    def _position(self) -> int:
        return self.fold.position

    def _read_checkpoint(self, body: bytes) -> tuple[EntryFold, int, bytes]:
        fold = EntryFold(self._log.name, self._ids_count)
        key = fold.restore(body, self.verifier)
        return fold, fold.position, key

    def _jump(self, state: EntryFold) -> None:
        self.fold, self._tail, self._tail_from = state, [], state.position

    async def _fold(self, entries: Sequence[LedgerEntry]) -> None:
        for number, record in enumerate(entries):
            if number and number % FOLD_COUNT_MAX == 0:
                await asyncio.sleep(0)
            fate, item = self.fold.take(record.position, record.body, self.verifier)
            if item is not None and fate is EntryFate.ENTERED:
                self._check(item)
                self._tail.append(item)
        if len(self._tail) >= 2 * TAIL_COUNT_MAX:
            self._tail_from = self._tail[-TAIL_COUNT_MAX - 1].position
            self._tail = self._tail[-TAIL_COUNT_MAX:]
        if entries:
            self._moved.set()
            self._moved = asyncio.Event()
            self._heard()

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
        read = read_record(self._log.name, data, self.verifier)
        if isinstance(read, str) or not isinstance(read[1], EntryBody):
            raise LedgerCorrupt(
                f"ledger {self._log.name!r}: the entry at {position} is not what it was; restore it from a copy"
            )
        item = LedgerItem(position, read[0], read[1])
        self._check(item)
        return item
