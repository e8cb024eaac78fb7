"""Copies a node's journal to one store, again and again, beside its work.

What it copies is complete in itself: the newest snapshots and the log behind them, up to one moment for all shards. A
store that cannot be reached holds up nobody: it is tried again, and why is among the node's troubles. What was
acknowledged after the last copy is on this disk only.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from msgspec import Struct

from stigmergy.core.commit import HashAlgorithm, Head
from stigmergy.core.copies import COPY_FORMAT, CopyManifest
from stigmergy.core.errors import Bug, StigmergyError
from stigmergy.core.messages import SECOND_NS
from stigmergy.ports.clock import Clock
from stigmergy.ports.journal import Journal
from stigmergy.ports.store import Objects
from stigmergy.runtime.audit.safeguards import Safeguards
from stigmergy.runtime.copies.holdings import Holdings
from stigmergy.runtime.copies.shard import ShardCopy
from stigmergy.runtime.settings import CopySettings

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
        """Ends what is under way; a copy that is not whole is none."""
        task, self._task = self._task, None
        if task is not None:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)

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
