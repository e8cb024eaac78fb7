"""The ledger port: one order of small entries for all readers. The ledger gives entries no meaning.

An entry is bytes. It orders claims (`claims/rules.py`) and anything else that needs one order. An adapter may be a list
in memory, a file that processes share, or a replicated stream that a majority decides.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol, runtime_checkable

from msgspec import Struct

from stigmergy.base.errors import Bug, ConfigError, TooLarge
from stigmergy.base.trust import Signer

ENTRY_BYTES_MAX = 4 * 1024
ENTRIES_COUNT_MAX = 256
"""Entries of one append; a broker's atomic batch holds at least that many."""
READ_COUNT_MAX = 1_024
"""The most entries that one read returns."""
CHECKPOINT_BYTES_MAX = 32 * 1024 * 1024
NAME_CHARS_MAX = 128


class LedgerEntry(Struct, frozen=True):
    """An entry with its position."""

    position: int
    body: bytes


class LedgerCheckpoint(Struct, frozen=True):
    """The folded state of all entries up to a position, in bytes that only readers understand."""

    position: int
    body: bytes


Heard = Callable[[int], None]
"""Called on the event loop with the position of the last entry, as far as we know."""


class LedgerPort(Protocol):
    """An ordered log that several append to and everybody reads. One connection to it.

    Ordering: every entry has a position, from 1 upward. Positions only grow, and there may be gaps, which readers must
        ignore. Entries of one append are consecutive and all there or none, whatever else is appended meanwhile.
        Everybody reads the same entries at the same positions, at any time.
    Durability: entries whose `append` has returned survive loss of power (of a minority, if there are several
        machines), and every read that begins afterwards, by anybody, returns them.
    Duplication: none by itself. But if you append again after LedgerUnknown, you may write twice: readers must
        recognise repetitions by the content of the entries.
    Concurrency: any number of connections, in any number of processes. On one connection at most one `append` at a
        time, a second one raises Bug; reads may overlap with it and with each other.
    Errors: LedgerUnavailable (nothing was written, and nothing will be; try again), LedgerFailed (the same, and every
        later call on this connection fails too), LedgerUnknown (written or not, and it may still appear later: read on,
        or append the very same entries again), LedgerCut (those entries are gone, a checkpoint covers them),
        LedgerCorrupt, LedgerForeign (neither goes away by itself), TooLarge, and Bug for a programming error. No error
        of a driver or of the operating system passes unchanged.
    """

    @property
    def name(self) -> str:
        """The ledger's name, the same everywhere: a signature for one ledger must not be valid in another."""
        ...

    async def append(self, entries: Sequence[bytes]) -> int:
        """Writes entries in this order, all or nothing; returns the position of the first."""
        ...

    async def read(self, after: int, count_max: int = READ_COUNT_MAX, *, fresh: bool = True) -> list[LedgerEntry]:
        """The entries after a position, in order, at most `count_max`; none at the end of the log.

        If several machines keep the log, it takes a majority of them to know that nothing more is there. A follower
        that `watch` tells when the log grows need not know: without `fresh` a connection returns what it has read,
        which may be behind the appends of others, but never behind what it has appended or returned itself. The first
        read of a connection is always fresh.

        Raises LedgerCut if some of them are gone, and LedgerCorrupt if the log ends before the position: a reader has
        seen more than there is, so the ledger has lost its end.
        """
        ...

    def watch(self, heard: Heard) -> None:
        """Calls `heard` when the log has grown: soon, in order, perhaps for several entries at once.

        It is a hint, and may be lost while the ledger is unreachable; a follower must also read now and then.
        """
        ...

    async def checkpoint(self) -> LedgerCheckpoint | None:
        """The newest checkpoint; None if there is none."""
        ...

    async def put_checkpoint(self, checkpoint: LedgerCheckpoint) -> None:
        """Stores a checkpoint durably and replaces an older one. One older than the stored one changes nothing. Entries
        stay."""
        ...

    async def cut(self, upto: int) -> None:
        """Deletes the entries up to and including a position, which a checkpoint must cover, else Bug. Positions of
        later entries do not change. Cutting again does nothing."""
        ...

    async def close(self) -> None:
        """Closes the connection, whatever is under way. No watcher is called any more. Closing twice does nothing."""
        ...


@runtime_checkable
class SignedLedger(LedgerPort, Protocol):
    """A ledger whose appends are signed by their writer. Give it the node's key before the first call."""

    def sign_with(self, signer: Signer, trusted: Sequence[bytes] = ()) -> None:
        """Sets the key to sign with, and the trusted keys of other nodes, if known."""
        ...


def check_entries(entries: Sequence[bytes], *, under_way: bool = False) -> None:
    """Raises TooLarge or Bug unless these can be appended now. Every adapter calls it."""
    if not entries:
        raise Bug("an append needs at least one entry")
    if len(entries) > ENTRIES_COUNT_MAX:
        raise TooLarge(f"{len(entries)} entries in one append, {ENTRIES_COUNT_MAX} at most; append the rest after it")
    for entry in entries:
        if len(entry) > ENTRY_BYTES_MAX:
            raise TooLarge(f"an entry of {len(entry)} bytes, {ENTRY_BYTES_MAX} at most; store it and order its digest")
    if under_way:
        raise Bug("an append is under way; wait for it before the next one")


def check_checkpoint(checkpoint: LedgerCheckpoint, end: int) -> None:
    """Raises TooLarge or Bug unless this can be stored in a log that ends at this position."""
    if len(checkpoint.body) > CHECKPOINT_BYTES_MAX:
        raise TooLarge(f"a checkpoint of {len(checkpoint.body)} bytes, {CHECKPOINT_BYTES_MAX} at most")
    if not 0 < checkpoint.position <= end:
        raise Bug(f"a checkpoint of position {checkpoint.position}, but the ledger ends at {end}")


def check_name(name: str) -> str:
    """Returns a valid name; else raises ConfigError."""
    if not name or len(name) > NAME_CHARS_MAX or not name.isprintable():
        raise ConfigError(f"ledger name {name!r}: give 1 to {NAME_CHARS_MAX} printable characters")
    return name
