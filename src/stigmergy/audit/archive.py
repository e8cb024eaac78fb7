"""Archives the log before retention drops it: segments of flight logs, one shard each, sealed by the node.

It runs beside the node's work, a segment at a time, and only reads the journal: a slow archive delays no commit.
Nothing is dropped before it is archived. A segment that cannot be stored is tried again with the next check of
retention; failures are counted, and the reason is among the node's troubles.

After a restart, segments that were archived but not yet dropped are archived again: segments may overlap, and readers
go by positions.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence

from stigmergy.audit.archive_port import Archive
from stigmergy.audit.directories import LiveReading
from stigmergy.audit.flight import FlightSelection, make_flight
from stigmergy.audit.retention import ArchiveCounters
from stigmergy.base.errors import JournalCorrupt, StigmergyError
from stigmergy.base.tasks import end_tasks
from stigmergy.base.trust import Signer
from stigmergy.journal.port import Journal
from stigmergy.shard.commit import digest_commit
from stigmergy.shard.state import EnrolledSigner as KnownSigner

SEGMENT_BYTES = 4 * 1024 * 1024
"""A segment with so many bytes of commits gets no more; it is held in memory while it is written."""
GIVE_WAY_COMMITS = 64
"""After so many commits the node gets its turn."""


class Archiver:
    """Archives the log of one node."""

    def __init__(
        self,
        journal: Journal,
        archive: Archive,
        signer: Signer,
        wall_ns: Callable[[], int],
        signers: Callable[[], Sequence[KnownSigner]],
        *,
        live: LiveReading | None = None,
        segment_bytes: int = SEGMENT_BYTES,
    ) -> None:
        self._journal = journal
        self._archive = archive
        self._signer = signer
        self._wall_ns = wall_ns
        self._signers = signers
        self._live = live
        self._segment_bytes = segment_bytes
        self._archived: dict[int, int] = {}
        self._wanted: dict[int, int] = {}
        self._task: asyncio.Task[None] | None = None
        self.counters = ArchiveCounters()
        self.trouble = ""
        """Why the last segment could not be kept; empty once one was."""

    def allowed(self, shard: int, upto: int) -> int:
        """The highest position up to `upto` whose commit is in the archive."""
        return min(upto, self._archived.get(shard, 0))

    def want(self, shard: int, upto: int) -> None:
        """Retention would like to drop up to here: archives what is missing, beside everything else."""
        self._wanted[shard] = max(upto, self._wanted.get(shard, 0))
        if self._task is None or self._task.done():
            self._task = asyncio.ensure_future(self._work())

    async def close(self) -> None:
        """Ends what is under way; a segment that is not whole is not kept."""
        task, self._task = self._task, None
        await end_tasks(task)
        await self._archive.close()

    async def _work(self) -> None:
        while self._wanted:
            shard, upto = next(iter(sorted(self._wanted.items())))
            first = max(self._archived.get(shard, 0) + 1, self._journal.first_position(shard))
            if first > upto:
                del self._wanted[shard]
                continue
            try:
                await self._keep(shard, first, upto)
            except StigmergyError as error:
                # The next check of retention asks again. Until then nothing of this is dropped.
                self.counters.archive_failures += 1
                self.trouble = f"the archive takes nothing, so nothing is dropped: {error}"
                self._wanted.clear()
                return
            self.trouble = ""

    async def _keep(self, shard: int, first: int, upto: int) -> None:
        last = await self._measured(shard, first, upto)
        cut = FlightSelection(ranges=((shard, first, last),), reason="archived before it was dropped")
        pieces: list[bytes] = []
        made_ns, signers = self._wall_ns(), self._signers()
        for piece in make_flight(self._journal, self._signer, cut, made_ns, signers=signers, live=self._live):
            pieces.append(piece)
            if not len(pieces) % GIVE_WAY_COMMITS or not piece:
                await asyncio.sleep(0)
        data = b"".join(pieces)
        await self._archive.keep(self._name(shard, first, last), data)
        self._archived[shard] = last
        self.counters.segments_archived += 1
        self.counters.commits_archived += last - first + 1
        self.counters.archive_bytes += len(data)

    async def _measured(self, shard: int, first: int, upto: int) -> int:
        """How far a segment goes. Every digest is compared: what is damaged is not put away as if it were whole."""
        size_bytes = 0
        last = first
        for stored in self._journal.read(shard, after=first - 1):
            last = stored.sealed.position
            if digest_commit(stored.sealed.body) != stored.sealed.digest:
                raise JournalCorrupt(f"shard {shard}, position {last}: its bytes are not those that were written")
            size_bytes += len(stored.sealed.body)
            if last >= upto or size_bytes >= self._segment_bytes:
                break
            if not last % GIVE_WAY_COMMITS:
                await asyncio.sleep(0)
        return last

    def _name(self, shard: int, first: int, last: int) -> str:
        identity = self._journal.identity
        return f"{identity.fleet}-{identity.incarnation}-{shard:04d}-{first:013d}-{last:013d}.flight"
