"""A ledger with faults: appends that are refused, lost, or written without an answer, now or much later; and cuts.

It keeps the port's promises, and only those. Everything is drawn from a seed; on the virtual loop a run repeats.

    ledger = SimLedger(store, random.Random("7/node-3"), LedgerFaults(unknown_share=0.1))
    ledger.cut_off = True            # nothing comes through, in either direction, until it is False again
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Sequence

from msgspec import Struct

from stigmergy.base.errors import Bug, LedgerUnavailable, LedgerUnknown
from stigmergy.claims.memory_ledger import MemoryLedger, MemoryLedgerStore
from stigmergy.claims.port import READ_COUNT_MAX, Heard, LedgerCheckpoint, LedgerEntry, check_entries


class LedgerFaults(Struct, frozen=True):
    """How bad the way to the ledger is."""

    delay_s_max: float = 0.02
    """One way, each time anew."""
    refused_share: float = 0.0
    unknown_share: float = 0.0
    """Appends that end without an answer. Half of them were written, the others were not, or will be."""
    late_share: float = 0.0
    """Of those that were not written: these are, later."""
    late_s_max: float = 10.0


NO_FAULTS = LedgerFaults()


class SimLedger:
    """The Ledger port over a shared store, on a bad line."""

    def __init__(self, store: MemoryLedgerStore, chance: random.Random, faults: LedgerFaults = NO_FAULTS) -> None:
        self._store = store
        self._inner = MemoryLedger(store)
        self._chance = chance
        self.faults = faults
        self.cut_off = False
        self.late_writes = 0
        """Entries that landed after their sender was told that nobody knows."""
        self._appending = False
        self._closed = False

    @property
    def name(self) -> str:
        return self._store.name

    async def append(self, entries: Sequence[bytes]) -> int:
        self._check_open()
        check_entries(entries, under_way=self._appending)
        self._appending = True
        try:
            return await self._append(tuple(entries))
        finally:
            self._appending = False

    async def _append(self, entries: tuple[bytes, ...]) -> int:
        await self._pass("nothing was written")
        if self._chance.random() < self.faults.refused_share:
            raise LedgerUnavailable(f"{self.name}: no majority; nothing was written, try again")
        if self._chance.random() < self.faults.unknown_share:
            self._maybe(entries)
            await self._delay()
            raise LedgerUnknown(f"{self.name}: no answer; read, or append the same again")
        first = self._store.append(entries)
        await self._delay()
        if self.cut_off:
            raise LedgerUnknown(f"{self.name}: the link broke before the answer; read, or append the same again")
        return first

    def _maybe(self, entries: tuple[bytes, ...]) -> None:
        """Writes now, later or never."""
        if self._chance.random() < 0.5:
            self._store.append(entries)
        elif self._chance.random() < self.faults.late_share:
            delay_s = self._chance.random() * self.faults.late_s_max
            asyncio.get_running_loop().call_later(delay_s, self._write_late, entries)

    def _write_late(self, entries: tuple[bytes, ...]) -> None:
        self.late_writes += len(entries)
        self._store.append(entries)

    async def read(self, after: int, count_max: int = READ_COUNT_MAX, *, fresh: bool = True) -> list[LedgerEntry]:
        self._check_open()
        await self._pass("nothing was read")
        entries = self._store.read(after, min(count_max, READ_COUNT_MAX))
        await self._pass("nothing was read")
        return entries

    def watch(self, heard: Heard) -> None:
        self._check_open()
        self._inner.watch(lambda end: None if self.cut_off else heard(end))

    async def checkpoint(self) -> LedgerCheckpoint | None:
        self._check_open()
        await self._pass("nothing was read")
        return await self._inner.checkpoint()

    async def put_checkpoint(self, checkpoint: LedgerCheckpoint) -> None:
        self._check_open()
        await self._pass("nothing was written")
        await self._inner.put_checkpoint(checkpoint)

    async def cut(self, upto: int) -> None:
        self._check_open()
        await self._pass("nothing was cut")
        await self._inner.cut(upto)

    async def close(self) -> None:
        self._closed = True
        await self._inner.close()

    async def _pass(self, otherwise: str) -> None:
        await self._delay()
        if self.cut_off:
            raise LedgerUnavailable(f"{self.name}: out of reach; {otherwise}")

    async def _delay(self) -> None:
        await asyncio.sleep(self._chance.random() * self.faults.delay_s_max)

    def _check_open(self) -> None:
        if self._closed:
            raise Bug("the ledger is closed; open it again")
