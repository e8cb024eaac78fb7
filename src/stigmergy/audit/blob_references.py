"""Finds the blobs that a log refers to, and tells the store, so that garbage collection keeps them.

Everything that is kept of a log is read: commits with their events, inputs, effects and dead letters, and all
snapshots with states and outboxes. A reference is the bytes of a `Blob`, wherever it is in a message: no class of the
user is needed. Only what is new since the last time is read. With an archive, what was ever referred to stays.
"""

from __future__ import annotations

import asyncio
import re
import zlib
from collections.abc import Awaitable, Callable, Sequence
from itertools import islice
from typing import Protocol

from stigmergy.base.errors import StigmergyError, StoreConflict
from stigmergy.base.tasks import end_tasks
from stigmergy.diagnostics.codes import Trouble, coded
from stigmergy.journal.port import Journal, SnapshotPart, StoredCommit
from stigmergy.shard.snapshot import PART_BYTES_MAX
from stigmergy.store.blobs import Blobs
from stigmergy.store.garbage import collect, read_references, tell_references

PORTION_COMMITS = 64
"""After so many commits the node gets its turn."""
_REFERENCE = re.compile(rb"(?=digest(?:\xc4\x20|\xc5\x00\x20|\xc6\x00\x00\x00\x20)(.{32}))", re.DOTALL)
"""The field `digest` of a Blob with 32 bytes, in MessagePack. What else looks so does no harm."""


def digests_in(data: bytes) -> list[bytes]:
    """The digests of all blobs that these bytes refer to."""
    return _REFERENCE.findall(data)


class ScannedLog(Protocol):
    """The log of one shard; a `ShardLog` is one."""

    async def close(self) -> None: ...

    async def first_position(self) -> int: ...

    async def snapshots(self) -> list[int]: ...

    async def read_snapshot(self, position: int) -> Sequence[SnapshotPart]: ...

    async def read(self, after: int, count_max: int = PORTION_COMMITS) -> Sequence[StoredCommit]: ...


class JournalLog:
    """One shard of a journal on this machine."""

    def __init__(self, journal: Journal, shard: int) -> None:
        self._journal = journal
        self._shard = shard

    async def close(self) -> None:
        """The journal is its owner's."""

    async def first_position(self) -> int:
        return self._journal.first_position(self._shard)

    async def snapshots(self) -> list[int]:
        return self._journal.snapshots(self._shard)

    async def read_snapshot(self, position: int) -> Sequence[SnapshotPart]:
        return list(self._journal.read_snapshot(self._shard, position))

    async def read(self, after: int, count_max: int = PORTION_COMMITS) -> Sequence[StoredCommit]:
        await asyncio.sleep(0)
        return list(islice(self._journal.read(self._shard, after), count_max))


class ShardReferences:
    """The references of one shard's log, as far as it was read."""

    def __init__(self, log: ScannedLog) -> None:
        self._log = log
        self._upto = 0
        self._last: dict[bytes, int] = {}
        """Digests, and the last position that refers to them."""
        self._snapshots: dict[int, list[bytes]] = {}

    async def digests(self) -> list[bytes]:
        """Reads on, and returns what is referred to. The log comes first: what retention takes away meanwhile, a
        snapshot has that is listed afterwards."""
        while commits := await self._log.read(self._upto, PORTION_COMMITS):
            for stored in commits:
                for digest in digests_in(stored.sealed.body):
                    self._last[digest] = stored.sealed.position
            self._upto = commits[-1].sealed.position
        first = await self._log.first_position()
        positions = await self._log.snapshots()
        self._snapshots = {position: found for position, found in self._snapshots.items() if position in positions}
        for position in positions:
            if position not in self._snapshots:
                parts = await self._log.read_snapshot(position)
                self._snapshots[position] = [digest for part in parts for digest in digests_in(_plain(part.body))]
        self._last = {digest: position for digest, position in self._last.items() if position >= first}
        return list(dict.fromkeys([*self._last, *(one for found in self._snapshots.values() for one in found)]))


def _plain(body: bytes) -> bytes:
    """A part of a snapshot, decompressed. Rows of compiled agents are not, and hold no blobs."""
    try:
        return zlib.decompressobj().decompress(body, PART_BYTES_MAX)
    except zlib.error:
        return body


OpenLogs = Callable[[], Awaitable[Sequence[ScannedLog]]]


class ReferenceTeller:
    """Tells the store, at intervals, which blobs the log of a node refers to; collects garbage there if told to."""

    def __init__(
        self, blobs: Blobs, owner: str, open_logs: OpenLogs, *, keeps_all: bool = False, collects: bool = False
    ) -> None:
        """`keeps_all`: what is dropped from the log goes on in an archive, so its blobs stay."""
        self._blobs = blobs
        self._owner = owner
        self._open_logs = open_logs
        self._keeps_all = keeps_all
        self._collects = collects
        self._shards: list[ShardReferences] | None = None
        self._logs: Sequence[ScannedLog] = ()
        self._ever: dict[bytes, None] = {}
        self._task: asyncio.Task[None] | None = None
        self.trouble = ""

    def start(self) -> None:
        """Begins to tell."""
        self._task = asyncio.ensure_future(self._live())

    async def stop(self) -> None:
        """Ends it."""
        task, self._task = self._task, None
        await end_tasks(task)
        logs, self._logs, self._shards = self._logs, (), None
        for log in logs:
            await log.close()

    def troubles(self) -> list[Trouble]:
        """Why the store does not know our references."""
        return coded("blobs-unrecorded", [self.trouble])

    async def _live(self) -> None:
        while True:
            try:
                await self.tell()
                self.trouble = ""
            except StoreConflict:
                pass  # another one collects
            except StigmergyError as error:
                self.trouble = f"blobs: {self._blobs.place} does not know what this log refers to: {error}"
            await asyncio.sleep(self._blobs.settings.references_every_s)

    async def tell(self) -> None:
        """Tells once. A store without blobs is told nothing."""
        objects = await self._blobs.find_objects()
        if objects is None:
            return
        told_ns = self._blobs.clock.wall_ns()
        if self._shards is None:
            self._logs = await self._open_logs()
            if self._keeps_all:
                told = [one for one in await read_references(objects) if one.owner == self._owner]
                self._ever = dict.fromkeys(digest for one in told for digest in one.digests)
            self._shards = [ShardReferences(log) for log in self._logs]
        found = [digest for shard in self._shards for digest in await shard.digests()]
        if self._keeps_all:
            self._ever |= dict.fromkeys(found)
            found = list(self._ever)
        await tell_references(objects, self._owner, told_ns, found)
        if self._collects:
            await collect(self._blobs)
