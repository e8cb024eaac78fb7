"""Copies a node's journal to one store, at intervals, beside its work.

A copy is complete in itself: the newest snapshots and the log behind them, up to one moment for all shards. An
unreachable store delays nobody: it is tried again, and the reason is among the node's troubles. What was acknowledged
after the last copy is on this disk only.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from msgspec import Struct

from stigmergy.agents.codec import encode
from stigmergy.agents.messages import SECOND_NS
from stigmergy.audit.copy_format import (
    COPY_FORMAT,
    PIECE_BYTES,
    CopiedCommit,
    CopiedLog,
    CopiedParts,
    CopiedShard,
    CopiedSnapshot,
    CopyManifest,
    CopySettings,
    digest_piece,
    read_manifest,
    write_commits,
)
from stigmergy.audit.retention import Safeguards
from stigmergy.base.clock import Clock
from stigmergy.base.errors import Bug, JournalCorrupt, JournalError, StigmergyError, StoreConflict, StoreCorrupt
from stigmergy.base.tasks import end_tasks
from stigmergy.journal.port import Journal, StoredCommit
from stigmergy.shard.commit import HashAlgorithm, Head, digest_commit, genesis_of, open_commit
from stigmergy.shard.snapshot import PartsDigest, SnapshotHeader, read_header
from stigmergy.store.port import VERSIONS_COUNT_MAX, Objects

# Copies the log and the snapshots of one shard, as far as they were not copied before. Everything read is checked
# against its digest, so that damaged data is not stored as if it were intact.

GIVE_WAY_COMMITS = 64
"""After so many commits the node gets its turn."""
OPEN_BYTES_MAX = PIECE_BYTES // 4
"""A smaller piece of log is rewritten together with what follows, so that there are few pieces."""

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

    async def _copy_snapshot(self, position: int, digest: bytes) -> tuple[SnapshotHeader, CopiedSnapshot] | None:
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


# A node's copies in a store: manifests, each version a point to restore, and the pieces they need.
#
# A point of another incarnation is not removed to make room for those of today: a node that lost its disk and started
# empty by mistake must not push out what it could be restored from.

INCARNATIONS_KEPT = 3
"""Of so many earlier lives of a node the newest point is kept."""
SEPARATOR = ":"
"""Between the name of a node, which has none, and the digest of a piece."""


class Holdings:
    """The copies of one node in one store."""

    def __init__(self, objects: Objects, node: str, points_kept: int) -> None:
        self._objects = objects
        self._node = node
        self._points_kept = points_kept
        self._points: dict[int, CopyManifest] = {}
        """By version, oldest first."""
        self._pieces: dict[bytes, None] = {}

    @property
    def points(self) -> dict[int, CopyManifest]:
        """The points that are there, by version, oldest first."""
        return self._points

    async def load(self) -> None:
        """Finds out what is there. Points that cannot be read are left alone, and are none."""
        self._points = {}
        await self._find_points()
        names = await self._objects.names(self._node + SEPARATOR)
        self._pieces = dict.fromkeys(_digest_in(name) for name in names)

    async def _find_points(self) -> None:
        """Those that are not known yet."""
        for about in await self._objects.versions(self._node):
            if about.version in self._points:
                continue
            try:
                data = await self._objects.get(self._node, about.version)
                if data is not None:
                    self._points[about.version] = read_manifest(data)
            except (JournalError, StoreCorrupt, StoreConflict):
                continue
        self._points = dict(sorted(self._points.items()))

    async def put_piece(self, data: bytes) -> bytes:
        """Has a piece there, and says its digest."""
        digest = digest_piece(data)
        if digest not in self._pieces:
            await self._objects.put(piece_name(self._node, digest), data)
            self._pieces[digest] = None
        return digest

    async def put_point(self, manifest: CopyManifest, instead_of: int | None) -> int:
        """Makes a point of pieces that are there, perhaps instead of another one; returns its version."""
        label = f"{manifest.commits} commits of incarnation {manifest.incarnation}"
        about = await self._objects.put(self._node, encode(manifest), label=label, versions_kept=VERSIONS_COUNT_MAX)
        self._points[about.version] = manifest
        # A node that was restored elsewhere while this one still runs has points of its own, with pieces of ours.
        await self._find_points()
        for version in self._superfluous(manifest.incarnation, instead_of):
            await self._objects.delete(self._node, version)
            del self._points[version]
        await self._sweep()
        return about.version

    def _superfluous(self, incarnation: int, instead_of: int | None) -> list[int]:
        ours = [version for version, one in self._points.items() if one.incarnation == incarnation]
        gone = [version for version in ours if version == instead_of]
        ours = [version for version in ours if version != instead_of]
        gone += ours[: -self._points_kept]
        newest: dict[int, int] = {}
        for version, one in self._points.items():
            if one.incarnation != incarnation:
                newest.pop(one.incarnation, None)
                newest[one.incarnation] = version
        kept = list(newest.values())[-INCARNATIONS_KEPT:]
        return gone + [
            version for version, one in self._points.items() if one.incarnation != incarnation and version not in kept
        ]

    async def _sweep(self) -> None:
        """Takes away pieces that no point needs, also those of a copy that was never finished."""
        needed = dict.fromkeys(digest for one in self._points.values() for digest in one.digests)
        for digest in [digest for digest in self._pieces if digest not in needed]:
            await self._objects.delete(piece_name(self._node, digest))
            del self._pieces[digest]


def piece_name(node: str, digest: bytes) -> str:
    """What a piece of this node's copies is called."""
    return f"{node}{SEPARATOR}{digest.hex()}"


def _digest_in(name: str) -> bytes:
    text = name.rpartition(SEPARATOR)[2]
    try:
        return bytes.fromhex(text)
    except ValueError:
        return b""


OpenObjects = Callable[[], Awaitable[Objects]]


class CopyStanding(Struct):
    """How far the copies in one store are, for people."""

    store: str
    copies: int = 0
    """Made since the start."""
    bytes_copied: int = 0
    failures: int = 0
    made_ns: int = 0
    """When the last one was made; 0 for none since the start."""
    commits: int = 0
    """How many commits of the journal it holds up to."""
    points: int = 0
    """How many points to go back to there are."""
    trouble: str = ""


class Copier:
    """Copies to one store. `store` is its URL without a password, for people."""

    def __init__(
        self,
        journal: Journal,
        store: str,
        open_objects: OpenObjects,
        node: str,
        clock: Clock,
        settings: CopySettings,
        safeguards: Safeguards,
    ) -> None:
        self._journal = journal
        self._open_objects = open_objects
        self._node = node
        self._clock = clock
        self._settings = settings
        self._safeguards = safeguards
        self._holdings: Holdings | None = None
        self._shards: dict[int, ShardCopy] = {}
        self._copied: list[Head] = []
        self._version: int | None = None
        self._point_ns = 0
        self._task: asyncio.Task[None] | None = None
        self.standing = CopyStanding(store)

    def start(self) -> None:
        """Begins to copy."""
        self._task = asyncio.ensure_future(self._live())

    async def close(self) -> None:
        """Ends the copy in progress; an incomplete copy does not count."""
        task, self._task = self._task, None
        await end_tasks(task)

    async def _live(self) -> None:
        while True:
            await self.copy()
            await asyncio.sleep(self._settings.every_s)

    async def copy(self) -> bool:
        """Makes one copy, if something is new; whether all is copied now."""
        heads = self._journal.heads()
        if heads == self._copied:
            return True
        self._safeguards.readers += 1
        try:
            await self._copy(heads)
        except StigmergyError as error:
            # With the next one, from where this one came to; what the store has by now it is asked then.
            self._holdings = None
            self.standing.failures += 1
            self.standing.trouble = f"the copies at {self.standing.store} are behind: {error}"
            return False
        finally:
            self._safeguards.readers -= 1
        self.standing.trouble = ""
        return True

    async def _copy(self, heads: list[Head]) -> None:
        holdings = self._holdings
        if holdings is None:
            holdings = Holdings(await self._open_objects(), self._node, self._settings.points_kept)
            await holdings.load()
            self._holdings = holdings
        copied = []
        for head in heads:
            shard = self._shards.setdefault(head.shard, ShardCopy(self._journal, head.shard, self._put_piece))
            copied.append(await shard.advance(head))
        identity, now_ns = self._journal.identity, self._clock.monotonic_ns()
        manifest = CopyManifest(
            format=COPY_FORMAT,
            hash_algorithm=HashAlgorithm.BLAKE3_256,
            fleet=identity.fleet,
            shards=identity.shards,
            incarnation=identity.incarnation,
            part=identity.part,
            shard_by=identity.shard_by,
            node=self._node,
            made_ns=self._clock.wall_ns(),
            copied=copied,
        )
        # The newest point moves along with the log, until it is time for another one.
        is_new = self._version is None or now_ns - self._point_ns >= int(self._settings.point_every_s * SECOND_NS)
        version = await holdings.put_point(manifest, None if is_new else self._version)
        if is_new:
            self._point_ns = now_ns
        self._version, self._copied = version, heads
        standing = self.standing
        standing.copies += 1
        standing.made_ns = manifest.made_ns
        standing.commits = manifest.commits
        standing.points = len(holdings.points)

    async def _put_piece(self, data: bytes) -> bytes:
        if self._holdings is None:
            raise Bug("a piece before anybody knows what the store has")
        digest = await self._holdings.put_piece(data)
        self.standing.bytes_copied += len(data)
        return digest
