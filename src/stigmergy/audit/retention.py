"""What limits retention: legal holds, and an archive or an uplink that must have the log first.

Retention asks how far it may drop. What an archive lacks is requested, and may be dropped later.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import msgspec
from blake3 import blake3
from msgspec import Struct

from stigmergy.base.errors import ConfigError, JournalCorrupt, StigmergyError
from stigmergy.journal.port import Journal, last_before

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


class HoldStore(Protocol):
    """Keeps the holds on a journal. What is in it is the business of `RetentionHolds`.

    Durability: `save` returns only when it survives loss of power; all of it is there or what was there before.
    Errors: JournalFull, JournalError.
    """

    def load(self) -> bytes:
        """What was saved last; nothing if nobody ever did."""
        ...

    def save(self, data: bytes) -> None:
        """Replaces it."""
        ...


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


class ArchiveCounters(Struct):
    """What was archived."""

    segments_archived: int = 0
    commits_archived: int = 0
    archive_bytes: int = 0
    archive_failures: int = 0


class ArchiveProgress(Protocol):
    """An archiver, as far as retention is concerned: `audit/archive`."""

    counters: ArchiveCounters
    trouble: str
    """Why the last segment could not be kept; empty once one was."""

    def allowed(self, shard: int, upto: int) -> int:
        """The highest position up to `upto` whose commit is in the archive."""
        ...

    def want(self, shard: int, upto: int) -> None:
        """Retention would like to drop up to here: archives what is missing, beside everything else."""
        ...

    async def close(self) -> None:
        """Ends what is under way; a segment that is not whole is not kept."""
        ...


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
        self,
        holds: RetentionHolds | None = None,
        archivist: ArchiveProgress | None = None,
        *,
        archive_or_drop: bool = False,
    ) -> None:
        self.holds = holds
        self.archivist = archivist
        self.archive_or_drop = archive_or_drop
        """On a device that is full, drop also what no archive has, rather than stop. Never what is held."""
        self.uplink: Upward | None = None
        self.views: Upward | None = None
        """The views that follow the log, which are made from all of it."""
        self.readers = 0
        """How many read the log at present, to export or verify it: nothing is dropped meanwhile, unless the device is
        full."""

    @property
    def troubles(self) -> list[str]:
        """Why nothing is dropped at present."""
        return [part.trouble for part in (self.holds, self.archivist) if part is not None and part.trouble]

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

    def unneeded(self, shard: int, upto: int) -> int:
        """The highest position up to `upto` that the receiver of the uplink has, and that is in all views for good."""
        upto = self.sent(shard, upto)
        return upto if self.views is None else min(upto, self.views.floor(shard))

    def spare(self, shard: int, first: int, upto: int) -> int:
        """The highest position up to `upto` that may go for want of room: what was sent up, else what need not be."""
        return min((upto, *(one.spare(shard, first, upto) for one in (self.uplink, self.views) if one is not None)))

    async def close(self) -> None:
        """Ends what the archive has under way."""
        if self.archivist is not None:
            await self.archivist.close()
