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
"""Entries of one append; a broker's atomic batch takes at least so many."""
READ_COUNT_MAX = 1_024
"""Entries that one read returns at most, whatever was asked for."""
CHECKPOINT_BYTES_MAX = 32 * 1024 * 1024
NAME_CHARS_MAX = 128


class LedgerEntry(Struct, frozen=True):
    """An entry as it is read back."""

    position: int
    body: bytes


class LedgerCheckpoint(Struct, frozen=True):
    """What a reader makes of all entries up to a position, in bytes that only readers understand."""

    position: int
    body: bytes


Heard = Callable[[int], None]
"""Called on the event loop with the position of the last entry, as far as is known."""


class Ledger(Protocol):
    """An ordered log that several may append to and everybody reads. One connection to it.

    Ordering: every entry has a position, from 1 upward. Positions only grow; they may leave some out, and readers must
        not mind. Entries of one append are consecutive and all there or none, whatever else is appended meanwhile.
        Everybody reads the same entries at the same positions, whenever they read.
    Durability: when `append` has returned, its entries survive loss of power (of a minority, where there are several
        machines), and every read that begins afterwards, by anybody, returns them.
    Duplication: none by itself. But who appends again after LedgerUnknown may have written twice: readers must tell
        repetitions by what is in the entries.
    Concurrency: any number of connections, in any number of processes. On one connection at most one `append` at a
        time, a second one raises Bug; reads may overlap with it and with each other.
    Errors: LedgerUnavailable (nothing was written, and nothing will be; try again), LedgerFailed (one of those, and so
        will every later call on this connection be), LedgerUnknown (written or not, and it may still appear later:
        read on, or append the very same entries again), LedgerCut (those entries are gone,
        a checkpoint covers them), LedgerCorrupt, LedgerForeign (neither mends itself), TooLarge, and Bug for a call
        that no program of ours should make. No error of a driver or of the operating system passes unchanged.
    """

    @property
    def name(self) -> str:
        """What the ledger is called, everywhere alike: what is signed for one ledger must not count in another."""
        ...

    async def append(self, entries: Sequence[bytes]) -> int:
        """Writes entries in this order, all or nothing; returns the position of the first."""
        ...

    async def read(self, after: int, count_max: int = READ_COUNT_MAX, *, fresh: bool = True) -> list[LedgerEntry]:
        """The entries behind a position, in order, at most so many; none at the end of the log.

        Where several machines keep the log, to know that nothing more is there takes a majority of them. Who follows a
        log, and is told by `watch` when it grows, need not know: without `fresh` a connection returns what it has read,
        which may be behind what others have appended, and never behind what it has appended or returned itself.
        The first read of a connection is a fresh one in any case.
        Raises LedgerCut if some of them are gone, and LedgerCorrupt if the log ends before the position: a reader has
        seen more than there is, so the ledger has lost its end.
        """
        ...

    def watch(self, heard: Heard) -> None:
        """Has this called, from now on, when the log has grown: soon, in order, several entries at once perhaps.

        It is a hint, and may be lost while the ledger cannot be reached; who follows a log reads now and then anyway.
        """
        ...

    async def checkpoint(self) -> LedgerCheckpoint | None:
        """The newest checkpoint; None if there is none."""
        ...

    async def put_checkpoint(self, checkpoint: LedgerCheckpoint) -> None:
        """Stores a checkpoint durably; it takes the place of an older one. An older one than is stored changes
        nothing. Entries stay where they are."""
        ...

    async def cut(self, upto: int) -> None:
        """Forgets the entries up to and including a position, which a checkpoint must cover, else Bug. Positions of
        later entries stay what they are. Cutting again does nothing."""
        ...

    async def close(self) -> None:
        """Lets go of the ledger, whatever is under way. Nobody is called any more. Closing twice does nothing."""
        ...


@runtime_checkable
class SignedLedger(Ledger, Protocol):
    """A ledger whose appends are signed by their writer. Give it the node's key before the first call."""

    def sign_with(self, signer: Signer, trusted: Sequence[bytes] = ()) -> None:
        """The key to sign with, and those of the other nodes that are trusted, if they are known."""
        ...


def check_entries(entries: Sequence[bytes], *, under_way: bool = False) -> None:
    """Raises TooLarge or Bug unless these can be appended now, with another append under way or not. Every adapter
    calls it."""
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
    """Raises TooLarge or Bug unless this can be stored where the log ends at this position."""
    if len(checkpoint.body) > CHECKPOINT_BYTES_MAX:
        raise TooLarge(f"a checkpoint of {len(checkpoint.body)} bytes, {CHECKPOINT_BYTES_MAX} at most")
    if not 0 < checkpoint.position <= end:
        raise Bug(f"a checkpoint of position {checkpoint.position}, but the ledger ends at {end}")


def check_name(name: str) -> str:
    """Refuses a name that no ledger can have."""
    if not name or len(name) > NAME_CHARS_MAX or not name.isprintable():
        raise ConfigError(f"ledger name {name!r}: give 1 to {NAME_CHARS_MAX} printable characters")
    return name
