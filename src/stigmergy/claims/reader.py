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
from collections.abc import Callable, Sequence

from msgspec import Struct

from stigmergy.base.errors import LedgerError, LedgerFailed
from stigmergy.base.tasks import end_tasks
from stigmergy.base.trust import Signer
from stigmergy.claims.entries import Checkpointed, ClaimantName, Verify, claimant_of
from stigmergy.claims.following import FOLD_COUNT_MAX, LogFollower
from stigmergy.claims.port import LedgerCheckpoint, LedgerEntry, LedgerPort
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
from stigmergy.diagnostics.logger import Log

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


class LedgerFollower(LogFollower[Claims]):
    """The log of claims as this node knows it. `run` is a task."""

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
        super().__init__(ledger, verify, trusted)
        self._signer = signer
        self._heard = heard
        self._jumped = jumped
        self._noted = noted
        self.claims = Claims()
        self.trouble = ""
        """Why the ledger is no longer trusted."""
        self.failed = ""
        """Why the connection is unusable, and what to do. Reads soon report a failed write."""
        self.names: OrderedDict[bytes, ClaimantName] = OrderedDict()
        """Who claimants are, from their entries. Without those that were cut off before we started."""
        self._milestones: OrderedDict[int, bytes] = OrderedDict()
        self._vouched: OrderedDict[int, None] = OrderedDict()
        """Milestones with a stored checkpoint."""
        self._storing: asyncio.Task[None] | None = None
        self._rank = rank
        self.counters = LedgerFollowerCounters()

    async def close(self) -> None:
        """Ends the work beside the task."""
        await end_tasks(self._storing)

    def _failed(self, error: LedgerError) -> None:
        self.counters.reads_failed += 1
        if isinstance(error, LedgerFailed) and not self.failed:
            self.failed = str(error)
            log.say("claims-refused", self.failed, is_trouble=True)

    @property
    def _position(self) -> int:
        return self.claims.position

    def _read_checkpoint(self, body: bytes) -> tuple[Claims, int, bytes]:
        claims, key = read_checkpoint(self._log.name, body, self.verifier)
        return claims, claims.position, key

    def _jump(self, state: Claims) -> None:
        self.claims = state
        self.counters.checkpoints_taken += 1
        self._jumped()

    async def _fold(self, entries: Sequence[LedgerEntry]) -> None:
        self.counters.entries_read += len(entries)
        for start in range(0, len(entries), FOLD_COUNT_MAX):
            if start:
                await asyncio.sleep(0)
            steps: list[FoldStep] = []
            for entry in entries[start : start + FOLD_COUNT_MAX]:
                step = fold(self.claims, entry.position, entry.body, self._log.name, self.verifier)
                self.claims = step.claims
                steps.append(step)
                if step.fate in (Fate.GRANTED, Fate.QUEUED, Fate.RENEWED) and step.claimant not in self.names:
                    self._remember(entry.body)
                if step.noted is not None:
                    self._compare(step.noted)
                if is_milestone(step.claims):
                    self._reached()
            self._heard(steps)

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
                f"ledger {self._log.name!r}: another node has another state at {noted.position}; two versions "
                "of the rules must not share a ledger: run the same version on all nodes, and start this one again"
            )

    async def _store(self, position: int, state: bytes, before: int) -> None:
        """Stores a checkpoint, unless another node was quicker, and cuts the log at the milestone before. Errors are
        left to the next milestone: nobody depends on it."""
        await asyncio.sleep(self._rank() * CHECKPOINT_STAGGER_S)
        if position in self._vouched or self.trouble:
            return
        signer = self._signer
        body = write_checkpoint(self._log.name, state, signer.algorithm, signer.public_key, signer.sign)
        with contextlib.suppress(LedgerError):
            await self._log.put_checkpoint(LedgerCheckpoint(position, body))
            self.counters.checkpoints_stored += 1
            self._noted(Checkpointed(position, digest(state)))
            if before:
                await self._log.cut(before)
