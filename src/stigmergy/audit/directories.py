"""What is needed to read the column runs of a journal: layouts, templates and names, from the log or a snapshot.

Names are only ever added and layouts have digests, so later knowledge reads earlier records as well. To read the end of
a log, take the newest valid snapshot and the log behind it. No tables, no numpy and none of the users' classes are
needed.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import islice

from stigmergy.audit.archive_port import CarriesDirectory
from stigmergy.base.errors import JournalCorrupt, JournalError
from stigmergy.journal.port import Journal
from stigmergy.shard.commit import Commit, digest_commit, genesis_of, open_commit
from stigmergy.shard.commit_reader import Reading, learn
from stigmergy.shard.directory import Directory
from stigmergy.shard.snapshot import PartsDigest, SnapshotHeader, names_in, read_header

# What readers need of snapshots: the chain of their bases, and whether the log notes them.

NOTE_COMMITS_MAX = 1_000
"""So many commits behind a snapshot are searched for the note that makes it count; else the log is folded instead."""

NamesRead = tuple[str, int, list[str]]
"""Names in a snapshot: their kind, the number of the first, and they."""


def read_chain(
    journal: Journal, shard: int, position: int, names: list[NamesRead] | None = None
) -> tuple[list[SnapshotHeader], bytes]:
    """The header of a snapshot behind those it adds to, base first, and the digest of its parts. Names of compiled
    agents are added to `names`, in their order. Raises JournalCorrupt."""
    header: SnapshotHeader | None = None
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
    before: list[SnapshotHeader] = []
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


LiveReading = Callable[[int], Reading]


class Directories:
    """The directories of a journal's shards. Show it the commits of a shard in order; it may begin anywhere."""

    def __init__(self, journal: Journal, live: LiveReading | None = None) -> None:
        """With `live`, the shards of the node that runs this journal are asked instead."""
        self._journal = journal
        self._live = live
        self._known: dict[int, tuple[Directory, int]] = {}
        """Per shard what is known, and the last position that it was learned from."""

    def of(self, commit: Commit) -> Reading:
        """What it takes to read this commit. Raises JournalCorrupt where the log does not say it."""
        if self._live is not None:
            return self._live(commit.shard)
        shard, position = commit.shard, commit.position
        known = self._known.get(shard)
        if known is None:
            if position == 1:
                known = (Directory(), 0)
            elif commit.columns:
                known = directory_at(self._journal, shard, position - 1)
            else:
                return Directory()
        directory, upto = known
        if position > upto + 1:
            _learn_between(self._journal, directory, shard, upto, position - 1)
        if position > upto:
            learn(directory, commit)
            upto = position
        self._known[shard] = (directory, upto)
        return directory

    def begin(self, shard: int, after: int) -> None:
        """Learns now what comes before the commits behind this position: they may lie beyond the end of the journal,
        where somebody else goes on writing."""
        self._known[shard] = directory_at(self._journal, shard, after)

    def at(self, shard: int, position: int) -> Reading:
        """What it takes to read the log up to and including this position."""
        return self._live(shard) if self._live is not None else directory_at(self._journal, shard, position)[0]


def directory_at(journal: Journal, shard: int, position: int) -> tuple[Directory, int]:
    """What a shard has declared and enrolled up to this position, or some later one; and up to which."""
    directory, upto = begin_directory(journal, shard)
    if upto < position:
        _learn_between(journal, directory, shard, upto, position)
        upto = position
    return directory, upto


def begin_directory(journal: Journal, shard: int) -> tuple[Directory, int]:
    """What the newest snapshot that counts says, and its position; else what comes with a flight log, else nothing."""
    for position in reversed(journal.snapshots(shard)):
        try:
            names: list[NamesRead] = []
            headers, digest = read_chain(journal, shard, position, names)
            if not is_noted(journal, shard, position, digest):
                continue
            directory = Directory()
            for kind, listed in headers[-1].tables.rosters.items():
                directory.enroll(kind, 0, listed)
            for kind, first, some in names:
                directory.enroll(kind, first, some)
            directory.restore(headers[-1].tables.declared)
        except JournalError:
            continue
        return directory, position
    first = journal.first_position(shard)
    if isinstance(journal, CarriesDirectory):
        return journal.directory_before(shard), first - 1
    return Directory(), first - 1


def _learn_between(journal: Journal, directory: Directory, shard: int, after: int, upto: int) -> None:
    for stored in journal.read(shard, after=after):
        if stored.sealed.position > upto:
            return
        learn(directory, open_commit(stored.sealed.body))
