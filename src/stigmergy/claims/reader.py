"""Follows a ledger: reads new entries, folds them, and reports which resources may have changed.

A new reader, or one whose next entries were cut off, starts from the newest checkpoint. At every milestone it notes the
digest of its state; one of the nodes stores the state as a checkpoint, writes that into the log, and cuts off what is
older than the milestone before. If another digest appears at the same place, this reader trusts nothing more: two folds
of one log must not differ.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Sequence

from msgspec import Struct

from stigmergy.base.errors import (
    LedgerCorrupt,
    LedgerCut,
    LedgerError,
    LedgerFailed,
    LedgerUnavailable,
    LedgerUnknown,
    Malformed,
)
from stigmergy.base.tasks import end_tasks
from stigmergy.base.trust import Signer
from stigmergy.claims.entries import Checkpointed, ClaimantName, Verify, claimant_of
from stigmergy.claims.port import LedgerCheckpoint, LedgerPort
from stigmergy.claims.rules import (
    Fate,
    FoldStep,
    digest,
    fold,
    is_milestone,
    read_checkpoint,
    state_bytes,
    write_checkpoint,
)
from stigmergy.claims.state import Claims
from stigmergy.claims.writer import Pauses
from stigmergy.diagnostics.logger import Log

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
MILESTONES_KEPT = 8
NAMES_COUNT_MAX = 10_000
"""Claimants whose names are remembered, for people; the fold does not need them. Beyond it the first are dropped."""
CHECKPOINT_STAGGER_S = 2.0
"""The second node waits this long for the first to store a checkpoint, the third twice as long."""

log = Log("claims")


class LedgerFollowerCounters(Struct):
    """Counts of reads."""

    entries_read: int = 0
    reads_failed: int = 0
    checkpoints_taken: int = 0
    """How often it started from a checkpoint."""
    checkpoints_stored: int = 0


class LedgerFollower:
    """The log as this node knows it. `run` is a task."""

    def __init__(
        self,
        ledger: LedgerPort,
        signer: Signer,
        verify: Verify,
        heard: Callable[[Sequence[FoldStep]], None],
        jumped: Callable[[], None],
        noted: Callable[[Checkpointed], None],
        trusted: frozenset[bytes],
        rank: Callable[[], int],
    ) -> None:
        """`rank` is how many nodes come before this one when a checkpoint is to be stored."""
        self._ledger = ledger
        self._signer = signer
        self.verifier = CachingVerifier(verify)
        self._heard = heard
        self._jumped = jumped
        self._noted = noted
        self._trusted = trusted
        """Keys whose checkpoints are trusted; all, if empty."""
        self.claims = Claims()
        self.caught_up = asyncio.Event()
        self.trouble = ""
        """Why the ledger is no longer trusted."""
        self.failed = ""
        """Why the connection is unusable, and what to do. Reads soon report a failed write."""
        self.last_error: LedgerError | None = None
        self._bell = asyncio.Event()
        self.names: OrderedDict[bytes, ClaimantName] = OrderedDict()
        """Who claimants are, from their entries. Without those that were cut off before we started."""
        self._milestones: OrderedDict[int, bytes] = OrderedDict()
        self._vouched: OrderedDict[int, None] = OrderedDict()
        """Milestones with a stored checkpoint."""
        self._storing: asyncio.Task[None] | None = None
        self._rank = rank
        self.counters = LedgerFollowerCounters()

    async def run(self) -> None:
        """Reads until cancelled. Ends with an error that does not go away by itself."""
        self._ledger.watch(lambda _end: self._bell.set())
        await self._retried(self._begin)
        while True:
            self._bell.clear()
            read = await self._retried(self._read_on)
            if read < READ_COUNT:
                self.caught_up.set()
            if not read:
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(LOOK_S):
                        await self._bell.wait()

    async def close(self) -> None:
        """Ends the work beside the task."""
        await end_tasks(self._storing)

    async def _retried(self, call: Callable[[], Awaitable[int]]) -> int:
        pauses = Pauses()
        while True:
            try:
                result = await call()
            except (LedgerUnavailable, LedgerUnknown) as error:
                self.last_error = error
                self.counters.reads_failed += 1
                if isinstance(error, LedgerFailed) and not self.failed:
                    self.failed = str(error)
                    log.say("claims-refused", self.failed, is_trouble=True)
                await pauses.wait()
            else:
                self.last_error = None
                return result

    async def _begin(self) -> int:
        """Starts from the newest checkpoint, if there is one ahead of the known state."""
        found = await self._ledger.checkpoint()
        if found is None or found.position <= self.claims.position:
            return 0
        try:
            claims, key = read_checkpoint(self._ledger.name, found.body, self.verifier)
        except Malformed as error:
            raise LedgerCorrupt(f"ledger {self._ledger.name!r}: {error}") from None
        if claims.position != found.position or (self._trusted and key not in self._trusted):
            raise LedgerCorrupt(
                f"ledger {self._ledger.name!r}: its checkpoint is of another position, or signed by a key that this "
                "node does not trust; have a trusted node store one, or restore the ledger"
            )
        self.claims = claims
        self.counters.checkpoints_taken += 1
        self._jumped()
        return 1

    async def _read_on(self) -> int:
        """Reads and folds one batch; returns its number of entries."""
        try:
            # Before it writes, a node must know everything; afterwards `watch` tells it when there is more.
            is_fresh = not self.caught_up.is_set()
            entries = await self._ledger.read(self.claims.position, READ_COUNT, fresh=is_fresh)
        except LedgerCut:
            if not await self._begin():
                raise LedgerCorrupt(
                    f"ledger {self._ledger.name!r}: entries after {self.claims.position} are gone and no checkpoint "
                    "covers them; restore it from a copy"
                ) from None
            return READ_COUNT
        self.counters.entries_read += len(entries)
        for start in range(0, len(entries), FOLD_COUNT_MAX):
            if start:
                await asyncio.sleep(0)
            steps: list[FoldStep] = []
            for entry in entries[start : start + FOLD_COUNT_MAX]:
                step = fold(self.claims, entry.position, entry.body, self._ledger.name, self.verifier)
                self.claims = step.claims
                steps.append(step)
                if step.fate in (Fate.GRANTED, Fate.QUEUED, Fate.RENEWED) and step.claimant not in self.names:
                    self._remember(entry.body)
                if step.noted is not None:
                    self._compare(step.noted)
                if is_milestone(step.claims):
                    self._reached()
            self._heard(steps)
        return len(entries)

    def _remember(self, body: bytes) -> None:
        claimant, named = claimant_of(body)
        if len(self.names) >= NAMES_COUNT_MAX:
            self.names.popitem(last=False)
        self.names[claimant] = named

    # ------------------------------------------------------------------ milestones

    def _reached(self) -> None:
        """A milestone: notes the digest of our fold."""
        claims, before = self.claims, next(reversed(self._milestones), 0)
        state = state_bytes(claims)
        self._milestones[claims.position] = digest(state)
        if len(self._milestones) > MILESTONES_KEPT:
            self._milestones.popitem(last=False)
        if self._storing is None or self._storing.done():
            self._storing = asyncio.ensure_future(self._store(claims.position, state, before))

    def _compare(self, noted: Checkpointed) -> None:
        """Compares our fold with the digest that a node noted for an earlier position."""
        self._vouched[noted.position] = None
        if len(self._vouched) > MILESTONES_KEPT:
            self._vouched.popitem(last=False)
        ours = self._milestones.get(noted.position)
        if ours is not None and ours != noted.digest:
            self.trouble = (
                f"ledger {self._ledger.name!r}: another node has another state at {noted.position}; two versions "
                "of the rules must not share a ledger: run the same version on all nodes, and start this one again"
            )

    async def _store(self, position: int, state: bytes, before: int) -> None:
        """Stores a checkpoint, unless another node was quicker, and cuts the log at the milestone before. Errors are
        left to the next milestone: nobody depends on it."""
        await asyncio.sleep(self._rank() * CHECKPOINT_STAGGER_S)
        if position in self._vouched or self.trouble:
            return
        signer = self._signer
        body = write_checkpoint(self._ledger.name, state, signer.algorithm, signer.public_key, signer.sign)
        with contextlib.suppress(LedgerError):
            await self._ledger.put_checkpoint(LedgerCheckpoint(position, body))
            self.counters.checkpoints_stored += 1
            self._noted(Checkpointed(position, digest(state)))
            if before:
                await self._ledger.cut(before)
