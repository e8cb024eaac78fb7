"""The Ledger port over a node's own bad link: one ordered log for the fleet, and a way to it that loses and delays.

The log itself is never wrong and survives everything: it stands for a majority of machines elsewhere. What is uncertain
is what a node hears of it: whether an append was written, and when what others wrote is seen.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Sequence
from contextvars import Context

from stigmergy.adapters.memory_ledger import MemoryLedger, MemoryLedgerStore
from stigmergy.core.errors import LedgerUnavailable, LedgerUnknown
from stigmergy.ports.ledger import READ_COUNT_MAX, Heard, LedgerCheckpoint, LedgerEntry
from stigmergy.sim.fleet.links import Quality, happens, late_s

LATE_MS_MAX = 5_000
"""An append whose fate is unknown may be written so much later."""


class SimLedger:
    """One node's connection to the fleet's ledger."""

    def __init__(self, store: MemoryLedgerStore, quality: Quality, chance: random.Random, context: Context) -> None:
        self._store = store
        self._inner = MemoryLedger(store)
        self._quality = quality
        self._chance = chance
        self._context = context

    @property
    def name(self) -> str:
        return self._inner.name

    async def append(self, entries: Sequence[bytes]) -> int:
        await self._travel()
        if happens(self._quality.loss, self._chance):
            self._strand(tuple(entries))
            raise LedgerUnknown(f"{self.name}: no answer came; whether it was written is not known")
        first = await self._inner.append(entries)
        await asyncio.sleep(late_s(self._quality, self._chance))
        if self._is_mute():
            raise LedgerUnknown(f"{self.name}: no answer came; whether it was written is not known")
        return first

    async def read(self, after: int, count_max: int = READ_COUNT_MAX, *, fresh: bool = True) -> list[LedgerEntry]:
        await self._travel()
        if self._is_mute():
            raise LedgerUnavailable(f"{self.name}: no answer came")
        return await self._inner.read(after, count_max, fresh=fresh)

    def watch(self, heard: Heard) -> None:
        loop, context = asyncio.get_running_loop(), self._context

        def tell(end: int) -> None:
            """A hint: it comes late, and on a bad link not at all."""
            if not self._quality.is_cut and not happens(self._quality.loss, self._chance):
                loop.call_later(late_s(self._quality, self._chance), heard, end, context=context.copy())

        self._inner.watch(tell)

    async def checkpoint(self) -> LedgerCheckpoint | None:
        await self._travel()
        return await self._inner.checkpoint()

    async def put_checkpoint(self, checkpoint: LedgerCheckpoint) -> None:
        await self._travel()
        await self._inner.put_checkpoint(checkpoint)

    async def cut(self, upto: int) -> None:
        await self._travel()
        await self._inner.cut(upto)

    async def close(self) -> None:
        await self._inner.close()

    async def _travel(self) -> None:
        await asyncio.sleep(late_s(self._quality, self._chance))
        if self._quality.is_cut:
            raise LedgerUnavailable(f"{self.name}: no way there; nothing was written")

    def _is_mute(self) -> bool:
        quality = self._quality
        return quality.is_cut or quality.is_unheard or happens(quality.loss, self._chance)

    def _strand(self, entries: tuple[bytes, ...]) -> None:
        """It was lost on the way, or is written long after the writer has given up waiting."""
        if self._chance.randrange(2):
            delay_s = self._chance.randint(0, LATE_MS_MAX) / 1_000
            asyncio.get_running_loop().call_later(delay_s, self._store.append, entries)
