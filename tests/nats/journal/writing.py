"""What the tests of journals on NATS share: an owner that writes as fast as it can, and says what was acknowledged."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from stigmergy.base.errors import StigmergyError
from stigmergy.journal.port import Journal, JournalIdentity
from stigmergy.shard.commit import Group
from stigmergy.testing.journal_contract import CommitChain

IDENTITY = JournalIdentity(fleet="delivery", shards=1, incarnation=7)
WAIT_S = 240.0


class Owner:
    """Appends one group after the other, in a task of its own, until it is stopped or refused."""

    def __init__(self, journal: Journal, pause_s: float = 0.0) -> None:
        self.journal = journal
        self.chain = CommitChain()
        self.acknowledged: list[Group] = []
        self.refused: StigmergyError | None = None
        self._pause_s = pause_s
        self._stopping = False
        self._task = asyncio.get_running_loop().create_task(self._write())

    async def _write(self) -> None:
        while not self._stopping:
            group = self.chain.group([0], b"x" * 200)
            try:
                await self.journal.append(group)
            except StigmergyError as error:
                self.refused = error
                return
            self.acknowledged.append(group)
            if self._pause_s:
                await asyncio.sleep(self._pause_s)

    async def wait_for(self, more: int) -> None:
        """Waits until so many more are acknowledged."""
        wanted = len(self.acknowledged) + more
        await until(lambda: len(self.acknowledged) >= wanted or self.refused is not None)

    async def stop(self) -> list[Group]:
        """Ends it behind the write under way."""
        self._stopping = True
        async with asyncio.timeout(WAIT_S):
            await self._task
        return self.acknowledged


async def until(holds: Callable[[], bool]) -> None:
    """Waits for something."""
    async with asyncio.timeout(WAIT_S):
        while not holds():  # noqa: ASYNC110 - what it waits for tells nobody
            await asyncio.sleep(0.005)


async def outcome_of(work: Awaitable[None]) -> StigmergyError | None:
    """How a write ends."""
    try:
        await work
    except StigmergyError as error:
        return error
    return None
