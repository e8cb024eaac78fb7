"""Writes a node's moves into the ledger: numbered, signed, in order, in batches, one append at a time.

A refused batch is sent again after a pause, and may restart its leases: nothing of it was written. A batch with an
unknown outcome is sent again unchanged, until an append succeeds or the log shows it: readers drop the repetition.
Unsent moves can be recalled. The queue is bounded; a move without room is refused, and the caller decides.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import OrderedDict
from collections.abc import Callable
from itertools import islice

from msgspec import Struct

from stigmergy.base.errors import LedgerError, LedgerUnavailable, LedgerUnknown
from stigmergy.base.trust import Signer
from stigmergy.claims.entries import ClaimBody, Move, write_records, writer_id
from stigmergy.claims.port import LedgerPort
from stigmergy.metrics.histogram import Histogram

# Back-off between tries of a ledger.

PAUSE_S_MIN = 0.02
PAUSE_S_MAX = 1.0


class Pauses:
    """Doubles from one try to the next, up to a bound."""

    def __init__(self) -> None:
        self._pause_s = PAUSE_S_MIN

    def reset(self) -> None:
        """After a success."""
        self._pause_s = PAUSE_S_MIN

    async def wait(self, resolved: asyncio.Event | None = None) -> None:
        """Waits, at most until `resolved` is set."""
        pause_s, self._pause_s = self._pause_s, min(self._pause_s * 2, PAUSE_S_MAX)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(pause_s):
                await (resolved or asyncio.Event()).wait()


BATCH_COUNT_MAX = 256
LINE_COUNT_MAX = 10_000
"""Moves that may wait for the ledger. Beyond it requests are refused; other moves are left to observers."""


class ClaimWriterCounters(Struct):
    """What happened to a node's moves."""

    moves_written: int = 0
    moves_refused: int = 0
    """Without room in the queue."""
    appends: int = 0
    appends_refused: int = 0
    appends_unknown: int = 0


class ClaimWriter:
    """The queue of moves. `put` and `recall` are for the service, `run` is a task."""

    def __init__(
        self,
        ledger: LedgerPort,
        signer: Signer,
        incarnation: int,
        monotonic_ns: Callable[[], int],
        resent: Callable[[range, int], None],
    ) -> None:
        self._ledger = ledger
        self._signer = signer
        self._incarnation = incarnation
        self._monotonic_ns = monotonic_ns
        self._resent = resent
        self.writer = writer_id(signer.algorithm, signer.public_key, incarnation)
        self.life = 0
        """Set at the start: higher than any before."""
        self.attempted = 0
        """The highest number that may be in the log."""
        self.next_number = 1
        self._line: OrderedDict[int, tuple[str, Move]] = OrderedDict()
        self._doubtful = 0
        """How many of the first moves were sent with an unknown outcome."""
        self._bell = asyncio.Event()
        self._resolved = asyncio.Event()
        self.last_error: LedgerError | None = None
        self.counters = ClaimWriterCounters()
        self.appends = Histogram()
        """How long appends took."""
        self.lags = Histogram()
        """How long it took from the begin of an append to reading it back."""
        self._unread: tuple[int, int] = (0, 0)
        """The last move of an append that was not read back yet, and when it began; 0: none."""

    @property
    def waiting(self) -> int:
        """The number of moves that are not known to be written."""
        return len(self._line)

    @property
    def has_room(self) -> bool:
        """Whether another move would be accepted."""
        return len(self._line) < LINE_COUNT_MAX

    def put(self, claimant: str, move: Move) -> bool:
        """Queues a move with the number `next_number`; False if there is no room."""
        if not self.has_room:
            self.counters.moves_refused += 1
            return False
        self._line[self.next_number] = (claimant, move)
        self.next_number += 1
        self._bell.set()
        return True

    def recall(self, number: int) -> bool:
        """Takes back a move that was never sent."""
        return number > self.attempted and self._line.pop(number, None) is not None

    def seen(self, life: int, sequence: int) -> None:
        """The log has our entries up to this one: those with an unknown outcome are written."""
        if life != self.life:
            return
        number, began_ns = self._unread
        if number and sequence >= number:
            self._unread = (0, 0)
            self.lags.observe(self._monotonic_ns() - began_ns)
        while self._doubtful and next(iter(self._line)) <= sequence:
            self._line.popitem(last=False)
            self._doubtful -= 1
            self.counters.moves_written += 1
            self._resolved.set()

    async def run(self) -> None:
        """Sends queued moves until cancelled. Ends with an error that does not go away by itself."""
        pauses = Pauses()
        while True:
            if not self._line:
                self._bell.clear()
                await self._bell.wait()
                continue
            try:
                await self._send()
            except (LedgerUnavailable, LedgerUnknown) as error:
                self.last_error = error
                self._resolved.clear()
                await pauses.wait(self._resolved)
            else:
                self.last_error = None
                pauses.reset()

    async def _send(self) -> None:
        """One append: the batch with the unknown outcome again, or the next one."""
        numbers = list(islice(self._line, self._doubtful or BATCH_COUNT_MAX))
        if not self._doubtful:
            # None of these was ever written, so their leases may count from now.
            self._resent(range(numbers[0], numbers[-1] + 1), self._monotonic_ns())
        entries = self._records(numbers)
        before, self.attempted = self.attempted, max(self.attempted, numbers[-1])
        self.counters.appends += 1
        began_ns = self._monotonic_ns()
        if not self._unread[0]:
            self._unread = (numbers[-1], began_ns)
        try:
            await self._ledger.append(entries)
        except LedgerUnavailable:
            self.counters.appends_refused += 1
            if not self._doubtful:
                self.attempted = before
            raise
        except LedgerUnknown:
            self.counters.appends_unknown += 1
            self._doubtful = sum(number in self._line for number in numbers)
            raise
        self.appends.observe(self._monotonic_ns() - began_ns)
        for number in numbers:
            if self._line.pop(number, None) is not None:
                self.counters.moves_written += 1
        self._doubtful = 0

    def _records(self, numbers: list[int]) -> list[bytes]:
        """One signature for all of them. The same numbers give the same bytes, however often they are sent."""
        bodies = [ClaimBody(self._incarnation, self.life, number, *self._line[number]) for number in numbers]
        signer = self._signer
        return write_records(self._ledger.name, signer.algorithm, signer.public_key, bodies, signer.sign)
