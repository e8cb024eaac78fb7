"""Follows a log through the ledger port, from the newest checkpoint on.

It reads what is new, waits errors out, and goes on behind what was cut off. What is folded is a subclass's.
"""

from __future__ import annotations

import abc
import asyncio
import contextlib
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Sequence
from typing import Generic, TypeVar

from stigmergy.base.errors import (
    LedgerCorrupt,
    LedgerCut,
    LedgerError,
    LedgerUnavailable,
    LedgerUnknown,
    Malformed,
)
from stigmergy.claims.entries import Verify
from stigmergy.claims.port import LedgerEntry, LedgerPort
from stigmergy.claims.writer import Pauses

# Remembers the last verified signatures: entries that were written together share one.

REMEMBERED_COUNT = 64


class CachingVerifier:
    """A Verify with a cache of recent results."""

    def __init__(self, verify: Verify) -> None:
        self._verify = verify
        self._known: OrderedDict[tuple[int, bytes, bytes, bytes], bool] = OrderedDict()
        self.looks = self.misses = 0

    def __call__(self, algorithm: int, key: bytes, statement: bytes, signature: bytes) -> bool:
        asked = (algorithm, key, statement, signature)
        known = self._known.get(asked)
        self.looks += 1
        if known is None:
            self.misses += 1
            known = self._verify(*asked)
            self._known[asked] = known
            if len(self._known) > REMEMBERED_COUNT:
                self._known.popitem(last=False)
        return known


READ_COUNT = 256
FOLD_COUNT_MAX = 64
"""Entries folded before other tasks have a turn: to verify one signature takes about 55 us."""
LOOK_S = 0.5
"""A watch may be lost: the longest time without a read."""

StateT = TypeVar("StateT")
T = TypeVar("T")


class LogFollower(abc.ABC, Generic[StateT]):
    """A log as this node knows it. `run` is a task."""

    end_count = READ_COUNT
    """Fewer entries than that in one read: the end of the log was reached."""

    def __init__(self, log: LedgerPort, verify: Verify, trusted: frozenset[bytes]) -> None:
        """Of `trusted` keys checkpoints are believed; of all, if there are none."""
        self._log = log
        self.verifier = CachingVerifier(verify)
        self._trusted = trusted
        self.caught_up = asyncio.Event()
        self.last_error: LedgerError | None = None
        self._bell = asyncio.Event()

    @property
    @abc.abstractmethod
    def _position(self) -> int:
        """How far it was read."""

    @abc.abstractmethod
    def _read_checkpoint(self, body: bytes) -> tuple[StateT, int, bytes]:
        """The state in a checkpoint, its position, and the key that has signed it. Raises Malformed."""

    @abc.abstractmethod
    def _jump(self, state: StateT) -> None:
        """Goes on from this state."""

    @abc.abstractmethod
    async def _fold(self, entries: Sequence[LedgerEntry]) -> None:
        """Folds what was read, in order."""

    def _failed(self, error: LedgerError) -> None:
        """A read has failed. It is tried again, unless this raises."""

    def _idle(self) -> None:
        """All was read."""

    async def run(self) -> None:
        """Reads until cancelled. Ends with an error that does not go away by itself."""
        self._log.watch(lambda _end: self._bell.set())
        await self._retried(self._begin)
        while True:
            self._bell.clear()
            read = await self._retried(self._read_on)
            if read < self.end_count:
                self.caught_up.set()
            if not read:
                self._idle()
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
                self._failed(error)
                await pauses.wait()
            else:
                self.last_error = None
                return result

    async def _begin(self) -> bool:
        """Starts from the newest checkpoint, if it is ahead of what is known."""
        found = await self._log.checkpoint()
        if found is None or found.position <= self._position:
            return False
        try:
            state, position, key = self._read_checkpoint(found.body)
        except Malformed as error:
            raise LedgerCorrupt(f"ledger {self._log.name!r}: {error}") from None
        if position != found.position or (self._trusted and key not in self._trusted):
            raise LedgerCorrupt(
                f"ledger {self._log.name!r}: its checkpoint is of another position, or signed by a key that this node "
                "does not trust; have a trusted node store one, or restore the ledger"
            )
        self._jump(state)
        return True

    async def _read_on(self) -> int:
        """Reads and folds one batch; returns its number of entries."""
        try:
            # Before it writes, a node must know everything; afterwards `watch` tells it when there is more.
            entries = await self._log.read(self._position, READ_COUNT, fresh=not self.caught_up.is_set())
        except LedgerCut:
            if not await self._begin():
                raise LedgerCorrupt(
                    f"ledger {self._log.name!r}: entries after {self._position} are gone and no checkpoint covers "
                    "them; restore it from a copy"
                ) from None
            return READ_COUNT
        await self._fold(entries)
        return len(entries)
