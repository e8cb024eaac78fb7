"""What is needed of snapshots by those who only read: the chain of those it adds to, and whether the log notes it."""

from __future__ import annotations

from itertools import islice

from stigmergy.core.commit import digest_commit, genesis_of, open_commit
from stigmergy.core.errors import JournalCorrupt
from stigmergy.core.rosters import names_in
from stigmergy.core.snapshot import Header, PartsDigest, read_header
from stigmergy.ports.journal import Journal

NOTE_COMMITS_MAX = 1_000
"""So many commits behind a snapshot are searched for the note that makes it count; else the log is folded instead."""

NamesRead = tuple[str, int, list[str]]
"""Names in a snapshot: their kind, the number of the first, and they."""


def read_chain(
    journal: Journal, shard: int, position: int, names: list[NamesRead] | None = None
) -> tuple[list[Header], bytes]:
    """The header of a snapshot behind those it adds to, base first, and the digest of its parts. Names of compiled
    agents are added to `names`, in their order. Raises JournalCorrupt."""
    header: Header | None = None
    digest = PartsDigest()
    own: list[NamesRead] = []
    for part in journal.read_snapshot(shard, position):
        digest.add(part.body)
        if header is None:
            header = read_header(part.body)
        elif names is not None and (found := names_in(part.body)) is not None:
            own.append(found)
    if header is None:
        raise JournalCorrupt(f"shard {shard}: the snapshot at {position} is not there")
    genesis = genesis_of(journal.identity.fleet, shard)
    if header.genesis != genesis or header.tables.position != position or not 0 <= header.base < position:
        raise JournalCorrupt(f"shard {shard}: the snapshot at {position} is another one")
    before: list[Header] = []
    if header.base:
        before, base_digest = read_chain(journal, shard, header.base, names)
        if base_digest != header.base_digest:
            raise JournalCorrupt(f"shard {shard}: the snapshot at {header.base} is not the one it was built on")
    if names is not None:
        names += own
    return [*before, header], digest.value()


def is_noted(journal: Journal, shard: int, position: int, digest: bytes) -> bool:
    """Whether the log behind a snapshot says that it is whole."""
    for stored in islice(journal.read(shard, after=position), NOTE_COMMITS_MAX):
        if digest_commit(stored.sealed.body) != stored.sealed.digest:
            raise JournalCorrupt(
                f"shard {shard}, position {stored.sealed.position}: the bytes do not have the digest they were stored "
                "with; restore from a copy"
            )
        for note in open_commit(stored.sealed.body).snapshots:
            if note.position == position:
                return note.digest == digest
    return False
