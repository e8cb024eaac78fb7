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
from typing import Protocol

import msgspec
from blake3 import blake3
from msgspec import Struct

from stigmergy.audit.archive_port import Archive, HoldStore
from stigmergy.audit.directories import LiveReading
from stigmergy.audit.flight import FlightSelection, last_before, make_flight
from stigmergy.base.errors import ConfigError, JournalCorrupt, StigmergyError
from stigmergy.base.trust import Signer
from stigmergy.journal.port import Journal
from stigmergy.shard.commit import digest_commit
from stigmergy.shard.state import EnrolledSigner as KnownSigner

SEGMENT_BYTES = 4 * 1024 * 1024
"""A segment with so many bytes of commits gets no more; it is held in memory while it is written."""
GIVE_WAY_COMMITS = 64
"""After so many commits the node gets its turn."""


class ArchiveCounters(Struct):
    """What was archived."""

    segments_archived: int = 0
    commits_archived: int = 0
    archive_bytes: int = 0
    archive_failures: int = 0


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
        if task is not None:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)

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


# Legal holds: which part of a log must not be dropped, since when, who said so and why.
#
# A hold outranks every rule of retention, even a full disk: a node stops rather than drop held log. Cleared holds stay
# in the record. The record is beside the journal, not in it, so that a hold can be set whatever the journal is doing.
# The record has a checksum; a damaged one holds everything until somebody has looked.

FIRST_WORD = b"stigmergy-holds-1"
HOLDS_MAX = 1_000
"""In the record, cleared ones included. At the limit the oldest cleared ones leave it; open ones never do."""
TEXT_CHARS_MAX = 500


class RetentionHold(Struct, frozen=True, omit_defaults=True):
    """One hold. Without an agent it is on everything, without a time on all that is still there."""

    number: int
    reason: str
    by: str
    set_ns: int
    agent: str = ""
    since_ns: int = 0
    cleared_ns: int = 0
    cleared_by: str = ""
    cleared_why: str = ""

    @property
    def is_open(self) -> bool:
        """Whether it still holds."""
        return not self.cleared_ns


_decoder = msgspec.json.Decoder(list[RetentionHold])


class RetentionHolds:
    """The holds on one journal."""

    def __init__(self, store: HoldStore) -> None:
        self._store = store
        self._holds: list[RetentionHold] = []
        self.trouble = ""
        """Why the record cannot be believed; then everything is held."""
        try:
            self._holds = read_holds(store.load())
        except StigmergyError as error:
            self.trouble = f"the record of holds cannot be read, so nothing is dropped: {error}"

    def all(self) -> list[RetentionHold]:
        """All that are known, oldest first. Raises JournalCorrupt where the record is damaged."""
        self._check_readable()
        return list(self._holds)

    def set(self, reason: str, by: str, now_ns: int, *, agent: str = "", since_ns: int = 0) -> RetentionHold:
        """Sets a hold; durable on return."""
        self._check_readable()
        if not reason.strip() or not by.strip():
            raise ConfigError("a hold needs a reason and who sets it, for those who find it in a year")
        if agent and not all(agent.partition("/")):
            raise ConfigError(f"{agent!r} is no agent; write it like Drone/D-17, or leave it out to hold everything")
        number = max((hold.number for hold in self._holds), default=0) + 1
        hold = RetentionHold(
            number, reason[:TEXT_CHARS_MAX], by[:TEXT_CHARS_MAX], now_ns, agent=agent, since_ns=since_ns
        )
        self._save([*self._holds, hold])
        return hold

    def clear(self, number: int, why: str, by: str, now_ns: int) -> RetentionHold:
        """Clears a hold; it stays in the record, with who and why."""
        self._check_readable()
        found = next((hold for hold in self._holds if hold.number == number), None)
        if found is None or not found.is_open:
            what = "was cleared already" if found is not None else "does not exist"
            raise ConfigError(f"hold {number} {what}; stigmergy log hold list shows those there are")
        if not why.strip() or not by.strip():
            raise ConfigError("clearing a hold needs a reason and who does it")
        cleared = msgspec.structs.replace(
            found, cleared_ns=now_ns, cleared_by=by[:TEXT_CHARS_MAX], cleared_why=why[:TEXT_CHARS_MAX]
        )
        self._save([cleared if hold.number == number else hold for hold in self._holds])
        return cleared

    def limit(self, journal: Journal, shard: int, upto: int) -> int:
        """The highest position up to `upto` that may be dropped as far as holds go."""
        if self.trouble:
            return 0
        for hold in self._holds:
            if not hold.is_open or (hold.agent and shard not in journal.identity.shards_with(hold.agent)):
                continue
            first = journal.first_position(shard)
            upto = min(upto, last_before(journal, shard, first, max(upto, first - 1), hold.since_ns))
        return upto

    def _save(self, holds: list[RetentionHold]) -> None:
        if len(holds) > HOLDS_MAX:
            cleared = [hold for hold in holds if not hold.is_open]
            if not cleared:
                raise ConfigError(f"there are {HOLDS_MAX} open holds already; clear one, or hold everything")
            holds = [hold for hold in holds if hold is not cleared[0]]
        self._store.save(write_holds(holds))
        self._holds = holds

    def _check_readable(self) -> None:
        if self.trouble:
            raise JournalCorrupt(f"{self.trouble}; put a copy of it back, or move it away to begin a new record")


def write_holds(holds: Sequence[RetentionHold]) -> bytes:
    """The record as text: its name and the digest of the rest, then one hold a line, as a JSON array."""
    lines = b",\n".join(msgspec.json.encode(hold) for hold in holds)
    body = b"[\n" + lines + b"\n]\n"
    return FIRST_WORD + b" " + blake3(body).hexdigest().encode() + b"\n" + body


def read_holds(data: bytes) -> list[RetentionHold]:
    """Reads a record. Raises JournalCorrupt for what is not as it was written."""
    if not data:
        return []
    first, _, body = data.partition(b"\n")
    word, _, digest = first.partition(b" ")
    if word != FIRST_WORD or digest != blake3(body).hexdigest().encode():
        raise JournalCorrupt("its text is not what was written")
    try:
        return _decoder.decode(body)
    except msgspec.DecodeError as error:
        raise JournalCorrupt(f"it does not decode ({error})") from None


# What limits retention: holds, and an archive or an uplink that must have the log first. Retention asks how far it may
# drop; what an archive lacks is requested, and may be dropped later.


class Upward(Protocol):
    """An uplink, as far as retention is concerned."""

    def floor(self, shard: int) -> int:
        """The last position that it does not need any more."""
        ...

    def spare(self, shard: int, first: int, upto: int) -> int:
        """The last position up to `upto` that a device without room may drop, where the log begins with `first`."""
        ...


class Safeguards:
    """Those of one node; without any, retention does as it likes."""

    def __init__(
        self, holds: RetentionHolds | None = None, archivist: Archiver | None = None, *, archive_or_drop: bool = False
    ) -> None:
        self.holds = holds
        self.archivist = archivist
        self.archive_or_drop = archive_or_drop
        """On a device that is full, drop also what no archive has, rather than stop. Never what is held."""
        self.uplink: Upward | None = None
        self.copy_troubles: Callable[[], list[str]] = list
        """Why copies elsewhere are behind; they keep nothing from being dropped."""
        self.readers = 0
        """How many read the log at present, to export or verify it: nothing is dropped meanwhile, unless the device is
        full."""

    @property
    def troubles(self) -> list[str]:
        """Why nothing is dropped at present, or copies elsewhere are behind."""
        found = [self.holds.trouble if self.holds else "", self.archivist.trouble if self.archivist else ""]
        return [trouble for trouble in (*found, *self.copy_troubles()) if trouble]

    def unheld(self, journal: Journal, shard: int, upto: int, *, full: bool = False) -> int:
        """The highest position up to `upto` on which there is no hold, and which nobody reads."""
        if self.readers and not full:
            return 0
        return upto if self.holds is None else self.holds.limit(journal, shard, upto)

    def archived(self, shard: int, upto: int, *, full: bool = False) -> int:
        """The highest position up to `upto` that the archive has. What is missing there is asked for."""
        if self.archivist is None:
            return upto
        allowed = self.archivist.allowed(shard, upto)
        if allowed < upto:
            self.archivist.want(shard, upto)
        return upto if full and self.archive_or_drop else allowed

    def sent(self, shard: int, upto: int) -> int:
        """The highest position up to `upto` that the receiver of the uplink has, if there is an uplink."""
        return upto if self.uplink is None else min(upto, self.uplink.floor(shard))

    def spare(self, shard: int, first: int, upto: int) -> int:
        """The highest position up to `upto` that may go for want of room: what was sent up, else what need not be."""
        return upto if self.uplink is None else min(upto, self.uplink.spare(shard, first, upto))

    async def close(self) -> None:
        """Ends what the archive has under way."""
        if self.archivist is not None:
            await self.archivist.close()
