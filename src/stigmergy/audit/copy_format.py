"""Copies of a journal elsewhere: the bytes of a copy, and how its commits become groups again. Pure.

A copy is a *manifest* and *pieces*. A piece holds parts of a snapshot, or commits of one shard; its name is the digest
of its bytes, so that successive copies share what has not changed. The manifest names the journal, and for each shard
the snapshots, with their bases, and the commits behind the newest of them that make up its state. docs/formats.md
describes every byte.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import msgspec
from blake3 import blake3
from msgspec import Struct

from stigmergy.agents.codec import UNDECODABLE, encode
from stigmergy.base.errors import ConfigError, JournalCorrupt, JournalForeign
from stigmergy.shard.commit import Group, HashAlgorithm, Head, Sealed, Signature

COPY_FORMAT = 1
PIECE_BYTES = 4 * 1024 * 1024
"""A piece with so much in it gets no more; a single part of a snapshot, or commit, may be larger."""
_CONTEXT = "stigmergy 2026 piece of a copy"


class CopiedParts(Struct, array_like=True, frozen=True):
    """A piece with parts of a snapshot, one behind the other."""

    digest: bytes
    sizes: list[int]
    """How many bytes each part has."""


class CopiedSnapshot(Struct, array_like=True, frozen=True):
    """A snapshot, and the position of the one that it adds to; 0 for one that stands alone."""

    position: int
    base: int
    pieces: list[CopiedParts]


class CopiedLog(Struct, array_like=True, frozen=True):
    """A piece with commits of one shard, from one position to another."""

    digest: bytes
    size_bytes: int
    first: int
    last: int


class CopiedShard(Struct, array_like=True, frozen=True):
    """One shard: from where its log is needed, to where it goes."""

    before: Head
    """What the first commit that is needed cites: the newest snapshot's position, or 0 for a log from its beginning."""
    last: Head
    snapshots: list[CopiedSnapshot]
    """The newest last, those that it adds to before it; none for a shard copied from its beginning."""
    log: list[CopiedLog]
    """In order. The first may hold commits that are not needed."""


class CopyManifest(Struct, array_like=True, frozen=True):
    """One version of a copy: all that it takes to go on from there."""

    format: int
    hash_algorithm: int
    fleet: str
    shards: int
    incarnation: int
    part: tuple[int, int] | None
    shard_by: str
    node: str
    """The site and the name of the node whose journal it is."""
    made_ns: int
    copied: list[CopiedShard]

    @property
    def commits(self) -> int:
        """How many commits the journal had had by then."""
        return sum(shard.last.position for shard in self.copied)

    @property
    def digests(self) -> list[bytes]:
        """Those of all pieces that it needs."""
        parts = [piece.digest for shard in self.copied for one in shard.snapshots for piece in one.pieces]
        return parts + [piece.digest for shard in self.copied for piece in shard.log]


class CopiedCommit(Struct, array_like=True, frozen=True):
    """A commit as the journal has it, with the signature of its group if it was the last of it."""

    shard: int
    position: int
    epoch: int
    time_ns: int
    events: int
    digest: bytes
    body: bytes
    signature: Signature | None

    @property
    def sealed(self) -> Sealed:
        """The commit itself."""
        return Sealed(self.shard, self.position, self.epoch, self.time_ns, self.events, self.digest, self.body)


_manifest_decoder = msgspec.msgpack.Decoder(CopyManifest)
_commits_decoder = msgspec.msgpack.Decoder(list[CopiedCommit])


def digest_piece(data: bytes) -> bytes:
    """What a piece is known by."""
    return blake3(data, derive_key_context=_CONTEXT).digest()


def read_manifest(data: bytes) -> CopyManifest:
    """Decodes a manifest. Raises JournalCorrupt or JournalForeign."""
    try:
        manifest = _manifest_decoder.decode(data)
    except UNDECODABLE as error:
        raise JournalCorrupt(f"the manifest of a copy does not decode ({error}); take another version") from None
    if manifest.format != COPY_FORMAT or manifest.hash_algorithm != HashAlgorithm.BLAKE3_256:
        raise JournalForeign(
            f"a copy of format {manifest.format} with hash algorithm {manifest.hash_algorithm}, this version reads "
            f"{COPY_FORMAT} with {HashAlgorithm.BLAKE3_256}; use the version that made it, or a later one"
        )
    return manifest


def write_commits(commits: Sequence[CopiedCommit]) -> bytes:
    """The bytes of a piece with commits."""
    return encode(commits)


def read_commits(piece: CopiedLog, data: bytes) -> list[CopiedCommit]:
    """The commits of a piece, held against what the manifest says of it."""
    _check_piece(piece.digest, data)
    try:
        commits = _commits_decoder.decode(data)
    except UNDECODABLE as error:
        raise JournalCorrupt(f"commits of a copy do not decode ({error}); take another version") from None
    if [commit.position for commit in commits] != list(range(piece.first, piece.last + 1)):
        raise JournalCorrupt(f"commits {piece.first} to {piece.last} of a copy are not those that it should have")
    return commits


def read_parts(piece: CopiedParts, data: bytes) -> list[bytes]:
    """The parts of a snapshot that a piece holds."""
    _check_piece(piece.digest, data)
    if sum(piece.sizes) != len(data) or min(piece.sizes, default=0) < 0:
        raise JournalCorrupt("parts of a snapshot in a copy do not have the sizes that they should; take another one")
    parts: list[bytes] = []
    start = 0
    for size in piece.sizes:
        parts.append(data[start : start + size])
        start += size
    return parts


def _check_piece(digest: bytes, data: bytes) -> None:
    if digest_piece(data) != digest:
        raise JournalCorrupt("a piece of a copy is not the one that its manifest names; take another version")


def groups_of(lanes: Mapping[int, Iterator[CopiedCommit]]) -> Iterator[Group]:
    """The commits of all shards, each in its order, as groups that a journal can append.

    A signature is kept with the last commit of its group, and names the others. So every group here ends with a commit
    that has one, and before it come those without that it covers. Raises JournalCorrupt if commits are left over that
    no signature covers.
    """
    waiting = {shard: _Lane(commits) for shard, commits in sorted(lanes.items())}
    carried: list[CopiedCommit] = []
    while ahead := [lane for lane in waiting.values() if lane.next is not None]:
        signed = [lane for lane in ahead if lane.is_signed]
        if signed:
            yield from _release(min(signed, key=_written_at), waiting, carried)
        else:
            # Their signature lay before what was copied of another shard; a later one covers them as well.
            carried += min(ahead, key=_written_at).take()
    if carried:
        raise JournalCorrupt(
            f"shard {carried[0].shard}: no signature covers the end of its log in this copy; take another version"
        )


class _Lane:
    """The commits of one shard, of which the next is known."""

    def __init__(self, commits: Iterator[CopiedCommit]) -> None:
        self._commits = commits
        self.next = next(commits, None)
        self.releasing = False
        """Whether a group that ends with its next commit is being put together."""

    @property
    def is_signed(self) -> bool:
        """Whether the next commit is the last of its group."""
        return self.next is not None and self.next.signature is not None

    def reaches(self, position: int) -> bool:
        """Whether something up to this position is still to come, and nobody is about to take it."""
        return not self.releasing and self.next is not None and self.next.position <= position

    def take(self) -> list[CopiedCommit]:
        """The next commit."""
        taken = [] if self.next is None else [self.next]
        self.next = next(self._commits, None)
        return taken


def _release(lane: _Lane, lanes: Mapping[int, _Lane], carried: list[CopiedCommit]) -> Iterator[Group]:
    """The group that the next commit of a shard, which has a signature, is the last of; and before it, those groups of
    other shards that were written before. Not the times say which: they may be the same for all. The signature does,
    by the heads that it names. What is carried along goes first, and is empty afterwards."""
    last = lane.next
    assert last is not None
    assert last.signature is not None
    lane.releasing = True
    for head in last.signature.heads:
        other = lanes.get(head.shard, lane)
        while other.reaches(head.position):
            if other.is_signed:
                yield from _release(other, lanes, carried)
            else:
                carried += other.take()
    lane.releasing = False
    commits = (*carried, *lane.take())
    carried.clear()
    yield Group(tuple(commit.sealed for commit in commits), last.signature)


def _written_at(lane: _Lane) -> int:
    return 0 if lane.next is None else lane.next.time_ns


_YEAR_S = 366 * 86_400
POINTS_MAX = 500


class CopySettings(Struct, frozen=True, forbid_unknown_fields=True):
    """How often the journal is copied elsewhere, and how far back the copies go."""

    every_s: float = 10.0
    """What was acknowledged since the last copy is lost with the disk; a copy costs what is new since then."""
    point_every_s: float = 300.0
    """The newest copy moves along with the log; after so long it stays, as a point to go back to."""
    points_kept: int = 12

    def __post_init__(self) -> None:
        for name in ("every_s", "point_every_s"):
            value = getattr(self, name)
            if not isinstance(value, int | float) or not 0 < value <= _YEAR_S:
                raise ConfigError(f"settings: copies.{name} = {value!r}; give more than 0 seconds, a year at most")
        if not 1 <= self.points_kept <= POINTS_MAX:
            raise ConfigError(f"settings: copies.points_kept = {self.points_kept!r}; give 1 to {POINTS_MAX}")
