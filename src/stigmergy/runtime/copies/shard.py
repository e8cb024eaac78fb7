"""Copies the log and the snapshots of one shard, as far as they were not copied before.

Everything that is read is held against its digest: what is damaged here is not put away elsewhere as if it were whole.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from stigmergy.core.commit import Head, digest_commit, genesis_of, open_commit
from stigmergy.core.copies import (
    PIECE_BYTES,
    CopiedCommit,
    CopiedLog,
    CopiedParts,
    CopiedShard,
    CopiedSnapshot,
    write_commits,
)
from stigmergy.core.errors import JournalCorrupt
from stigmergy.core.snapshot import Header, PartsDigest, read_header
from stigmergy.ports.journal import Journal, StoredCommit

GIVE_WAY_COMMITS = 64
"""After so many commits the node gets its turn."""
OPEN_BYTES_MAX = PIECE_BYTES // 4
"""A piece of log that is smaller is written anew with what comes behind it, so that there are few of them."""

PutPiece = Callable[[bytes], Awaitable[bytes]]
"""Has a piece in the store, and returns its digest."""


class ShardCopy:
    """How far one shard has been copied to one store."""

    def __init__(self, journal: Journal, shard: int, put_piece: PutPiece) -> None:
        self._journal = journal
        self._shard = shard
        self._put_piece = put_piece
        self._before: Head | None = None
        self._upto = 0
        self._snapshots: list[CopiedSnapshot] = []
        self._digests: dict[int, bytes] = {}
        """Of the snapshots that were copied, by position."""
        self._log: list[CopiedLog] = []
        self._open: list[CopiedCommit] = []
        """The commits of the last piece, while it is small."""
        self._noted: dict[int, bytes] = {}
        """Snapshots that commits note, as far as they were read: position and digest."""

    async def advance(self, head: Head) -> CopiedShard:
        """Copies everything up to this commit. Raises JournalError or StoreError, and then can be called again."""
        if self._before is None or self._upto + 1 < self._journal.first_position(self._shard):
            await self._begin(head)
        await self._copy_log(head.position)
        await self._rebase(head)
        if self._before is None or self._upto != head.position:
            raise JournalCorrupt(f"shard {self._shard}: its log ends at {self._upto} before {head.position}")
        return CopiedShard(self._before, head, list(self._snapshots), list(self._log))

    # ------------------------------------------------------------------ where it begins

    async def _begin(self, head: Head) -> None:
        """Finds the newest snapshot that counts, or the beginning of the log."""
        self._log, self._open, self._noted = [], [], {}
        covered = self._journal.first_position(self._shard) - 1
        for position in reversed(self._journal.snapshots(self._shard)):
            noted = covered <= position < head.position and await self._find_note(position, head.position)
            if noted and await self._take_snapshot(position):
                return
        if self._journal.first_position(self._shard) != 1:
            raise JournalCorrupt(
                f"shard {self._shard}: its log does not begin at its beginning, and no whole snapshot covers what was "
                "before; run `stigmergy log verify`"
            )
        self._snapshots, self._digests = [], {}
        self._before = Head(self._shard, 0, 0, genesis_of(self._journal.identity.fleet, self._shard))
        self._upto = 0

    async def _find_note(self, position: int, upto: int) -> bool:
        """Whether a commit behind a snapshot notes it."""
        for stored in self._journal.read(self._shard, after=position):
            if stored.sealed.position > upto:
                break
            self._note(stored)
            if position in self._noted:
                return True
            if not stored.sealed.position % GIVE_WAY_COMMITS:
                await asyncio.sleep(0)
        return False

    def _note(self, stored: StoredCommit) -> None:
        for note in open_commit(stored.sealed.body).snapshots:
            self._noted[note.position] = note.digest

    async def _rebase(self, head: Head) -> None:
        """Begins at a newer snapshot, if there is one: then less of the log is needed."""
        begun = 0 if self._before is None else self._before.position
        for position in reversed(self._journal.snapshots(self._shard)):
            if begun < position < head.position and position in self._noted and await self._take_snapshot(position):
                break
        begun = 0 if self._before is None else self._before.position
        self._noted = {position: digest for position, digest in self._noted.items() if position > begun}
        self._log = [piece for piece in self._log if piece.last > begun]

    # ------------------------------------------------------------------ snapshots

    async def _take_snapshot(self, position: int) -> bool:
        """Copies a snapshot with those that it adds to, and begins there. Whether it was whole: one that is dropped
        meanwhile, or damaged, is left for what is newer or older."""
        chain: list[CopiedSnapshot] = []
        digests: dict[int, bytes] = {}
        wanted: tuple[int, bytes] | None = (position, self._noted[position])
        before: Head | None = None
        while wanted is not None:
            known = next((one for one in self._snapshots if one.position == wanted[0]), None)
            if known is not None and self._digests.get(known.position) == wanted[1]:
                # With everything below it: a chain only ever grows at its end.
                chain += reversed(self._snapshots[: self._snapshots.index(known) + 1])
                digests |= {one.position: self._digests[one.position] for one in self._snapshots if one in chain}
                break
            copied = await self._copy_snapshot(*wanted)
            if copied is None:
                return False
            header, snapshot = copied
            chain.append(snapshot)
            digests[snapshot.position] = wanted[1]
            tables = header.tables
            before = before or Head(self._shard, tables.position, tables.epoch, tables.digest)
            wanted = (header.base, header.base_digest) if 0 < header.base < snapshot.position else None
        if before is None:
            return False
        if before.position >= self._upto or self._before is None:
            self._upto = before.position
            self._log, self._open = [], []
        self._before, self._snapshots, self._digests = before, list(reversed(chain)), digests
        return True

    async def _copy_snapshot(self, position: int, digest: bytes) -> tuple[Header, CopiedSnapshot] | None:
        hasher, header = PartsDigest(), None
        pieces: list[CopiedParts] = []
        bodies: list[bytes] = []
        for part in self._journal.read_snapshot(self._shard, position):
            header = header or read_header(part.body)
            hasher.add(part.body)
            bodies.append(part.body)
            if sum(len(body) for body in bodies) >= PIECE_BYTES:
                pieces.append(await self._put_parts(bodies))
                bodies = []
            await asyncio.sleep(0)
        if header is None or hasher.value() != digest or header.tables.position != position:
            return None
        if bodies:
            pieces.append(await self._put_parts(bodies))
        return header, CopiedSnapshot(position, header.base, pieces)

    async def _put_parts(self, bodies: list[bytes]) -> CopiedParts:
        digest = await self._put_piece(b"".join(bodies))
        return CopiedParts(digest, [len(body) for body in bodies])

    # ------------------------------------------------------------------ the log

    async def _copy_log(self, upto: int) -> None:
        """Copies the commits that are new, in pieces; the last one is written anew while it is small."""
        if upto <= self._upto:
            return
        log = self._log[:-1] if self._open else list(self._log)
        waiting = list(self._open)
        size_bytes = sum(len(commit.body) for commit in waiting)
        expected = self._upto + 1
        for stored in self._journal.read(self._shard, after=self._upto):
            sealed = stored.sealed
            if sealed.position > upto:
                break
            if sealed.position != expected:
                raise JournalCorrupt(f"shard {self._shard}: position {expected} was dropped before it was copied")
            expected += 1
            if digest_commit(sealed.body) != sealed.digest:
                raise JournalCorrupt(
                    f"shard {self._shard}, position {sealed.position}: its bytes are not those that were written"
                )
            self._note(stored)
            waiting.append(_copied(stored))
            size_bytes += len(sealed.body)
            if size_bytes >= PIECE_BYTES:
                log.append(await self._put_log(waiting))
                self._keep(log, [])
                waiting, size_bytes = [], 0
            if not sealed.position % GIVE_WAY_COMMITS:
                await asyncio.sleep(0)
        if waiting:
            log.append(await self._put_log(waiting))
            self._keep(log, waiting if size_bytes < OPEN_BYTES_MAX else [])

    def _keep(self, log: list[CopiedLog], left_open: list[CopiedCommit]) -> None:
        self._log, self._open = list(log), left_open
        self._upto = log[-1].last

    async def _put_log(self, commits: list[CopiedCommit]) -> CopiedLog:
        data = write_commits(commits)
        digest = await self._put_piece(data)
        return CopiedLog(digest, len(data), commits[0].position, commits[-1].position)


def _copied(stored: StoredCommit) -> CopiedCommit:
    sealed = stored.sealed
    return CopiedCommit(
        shard=sealed.shard,
        position=sealed.position,
        epoch=sealed.epoch,
        time_ns=sealed.time_ns,
        events=sealed.events,
        digest=sealed.digest,
        body=sealed.body,
        signature=stored.signature,
    )
