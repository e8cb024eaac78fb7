"""The commit: the unit of durability, hashing, replication and exactly-once, and its bytes.

A commit of a shard lists the inputs it consumed (marks, fired timers, settled effects), the events it keeps, the
commands it answered, and the effects it owes. Each commit holds the digest of the commit before, so one digest, the
head, stands for the whole history. docs/formats.md describes every byte.

A `Group` is what one disk sync makes durable: commits of one or more shards, and one signature over their heads.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping

import msgspec
from blake3 import blake3
from msgspec import Struct

from stigmergy.agents.codec import UNDECODABLE, without_empty_end
from stigmergy.agents.columns import ColumnRun
from stigmergy.base.errors import Bug, JournalConflict, JournalCorrupt, JournalForeign
from stigmergy.shard.tracing import Traced

COMMIT_FORMAT = 1
COLUMNS_FORMAT = 2
"""Of a commit with events or confirmations of compiled agents, which no reader may pass over."""
COMMIT_BYTES_MAX = 512 * 1024
"""Of a commit without columns; for the others see `Limits.columns_bytes_max`."""
SHARED_HASH_BYTES = 1024 * 1024
"""From this size on two cores share the work of hashing."""
GENESIS = bytes(32)
"""What the first commit of a shard cites as the one before it where no fleet is given: in tests."""
_GENESIS_CONTEXT = "stigmergy 2026 first commit of a shard"

_COMMIT_CONTEXT = "stigmergy 2026 commit chain"
_GROUP_DOMAIN = b"stigmergy.group@1\x00"


class HashAlgorithm(enum.IntEnum):
    """Names the digest in every format that holds one."""

    BLAKE3_256 = 1


class SignatureAlgorithm(enum.IntEnum):
    """Names the signature in every format that holds one."""

    ED25519 = 1


class EventRun(Struct, array_like=True, frozen=True):
    """So many of the commit's events, in order, were taken at this time from this source."""

    events: int
    time_ns: int
    source: str


class MarkMoved(Struct, array_like=True, frozen=True):
    """All inputs of this source and incarnation up to this sequence have been consumed."""

    source: str
    incarnation: int
    epoch: int
    sequence: int


class Answer(Struct, array_like=True, frozen=True):
    """A command was answered: accepted (no reason) or refused. `at` counts the events kept before it in this commit, or
    for a compiled agent is the `column_cause` of the event in the columns that it stands before."""

    agent: str
    command_id: str
    command: bytes
    refused: str | None
    at: int
    time_ns: int


class Ruled(Struct, array_like=True, frozen=True):
    """What a policy said of one input of this commit, and which policy. `place` is the index of the answer to a command
    or an enrolment, or -1 minus how many events were kept before what became of anything else."""

    place: int
    allowed: bool
    policy: str = ""
    version: int = 0
    """0: there was no policy."""
    digest: bytes = b""


NO_CAUSE = -1
"""The cause of an effect whose event was transient, and so is not in the log."""
COLUMN_CAUSES = -2
"""The causes of ordinary effects whose events are in columns: this one for the first of the commit, then downwards."""


def column_cause(place: int) -> int:
    """How an effect names the event behind it, and an answer the one that follows, of which there are so many before it
    in the commit's columns."""
    return COLUMN_CAUSES - place


class Owed(Struct, array_like=True, frozen=True):
    """An effect the commit owes a sink: the sequence-th of this sink. `cause` is the index of the event behind it."""

    agent: str
    sink: str
    sequence: int
    cause: int
    body: bytes


class Settled(Struct, array_like=True, frozen=True):
    """These sequences of the sink are carried out or given up: they will not be released again."""

    sink: str
    sequences: list[int]


class SnapshotNote(Struct, array_like=True, frozen=True):
    """A snapshot is stored: of which position, with which digest, on which chain, folded by which version."""

    position: int
    digest: bytes
    chain: bytes
    fold: bytes


class Commit(Struct, array_like=True, frozen=True):
    """One commit, decoded. The order of the fields is the order of the bytes."""

    format: int
    hash_algorithm: int
    shard: int
    position: int
    epoch: int
    previous: bytes
    runs: list[EventRun]
    events: list[tuple[str, bytes]]
    answers: list[Answer] = []
    owed: list[Owed] = []
    marks: list[MarkMoved] = []
    settled: list[Settled] = []
    fired: list[tuple[str, str, int]] = []
    """Timers that went off: agent, name, and how many of `owed` were there before."""
    snapshots: list[SnapshotNote] = []
    incarnation: int = 0
    """Of the journal, when the commit was made: effects keep their ids also after a restore from a copy."""
    columns: list[ColumnRun] = []
    """Events of compiled agents, and the actions they caused. They are folded behind `events`."""
    confirmed: list[tuple[str, int]] = []
    """Per kind of compiled agents up to which sequence its actions are carried out or given up."""
    clients: list[str] = []
    """Whose commands the answers are for, one for each; empty if all are the embedding program's."""
    digests: list[bytes] = []
    """What tells the commands that were answered from others, one for each (`codec.digest_of`); each empty where the
    command has no id or could not be read. All empty in a log of before there were any."""
    traces: list[Traced] = []
    """The inputs that it consumed and the effects that it settled that belong to traces."""
    instance: str = ""
    """Who made it, as spans name him; only where there are `traces`, and empty in a log of before it was kept."""
    ruled: list[Ruled] = []
    """What a policy was asked about, in order."""

    @property
    def events_count(self) -> int:
        """How many events it keeps, in all."""
        return len(self.events) + sum(run.count for run in self.columns)


class Sealed(Struct, frozen=True):
    """A commit's bytes with what a journal must know about them without decoding."""

    shard: int
    position: int
    epoch: int
    time_ns: int
    events: int
    digest: bytes
    body: bytes


class Head(Struct, array_like=True, frozen=True):
    """Where a shard stands: its last position and the digest that stands for all before it."""

    shard: int
    position: int
    epoch: int
    digest: bytes


class Signature(Struct, array_like=True, frozen=True):
    """Who vouches for which heads. `key` is the public key itself: 32 bytes for Ed25519."""

    algorithm: int
    key: bytes
    heads: list[Head]
    value: bytes


class Group(Struct, frozen=True):
    """What one sync makes durable: all of it or nothing."""

    commits: tuple[Sealed, ...]
    signature: Signature


_FIELDS_MIN = Commit.__struct_fields__.index("columns")
_encoder = msgspec.msgpack.Encoder()
_commit_decoder = msgspec.msgpack.Decoder(Commit)


def genesis_of(fleet: str, shard: int) -> bytes:
    """What the first commit of a fleet's shard cites: so no log can be passed off as that of another fleet or shard."""
    return blake3(_encoder.encode((fleet, shard)), derive_key_context=_GENESIS_CONTEXT).digest()


def digest_commit(body: bytes) -> bytes:
    """The digest that the next commit cites. Keyed to its purpose, so that no other digest of ours can stand in."""
    # A large one is hashed on two cores, inside the library; the digest is the same.
    threads = 2 if len(body) >= SHARED_HASH_BYTES else 1
    return blake3(body, derive_key_context=_COMMIT_CONTEXT, max_threads=threads).digest()


def seal(commit: Commit) -> Sealed:
    """Fixes a commit as bytes. From here on nothing about it changes."""
    body = _encoder.encode(without_empty_end(commit, _FIELDS_MIN))
    return Sealed(
        shard=commit.shard,
        position=commit.position,
        epoch=commit.epoch,
        time_ns=commit.runs[-1].time_ns,
        events=commit.events_count,
        digest=digest_commit(body),
        body=body,
    )


def open_commit(body: bytes) -> Commit:
    """Decodes a commit's bytes; says whether they are damaged or of a format this version does not know."""
    try:
        commit = _commit_decoder.decode(body)
    except UNDECODABLE as error:
        raise JournalCorrupt(f"a commit of {len(body)} bytes does not decode ({error}); restore from a copy") from None
    if commit.format not in (COMMIT_FORMAT, COLUMNS_FORMAT) or commit.hash_algorithm != HashAlgorithm.BLAKE3_256:
        raise JournalForeign(
            f"shard {commit.shard}, position {commit.position}: commit format {commit.format} with hash algorithm "
            f"{commit.hash_algorithm}; this version reads formats {COMMIT_FORMAT} and {COLUMNS_FORMAT} with "
            f"{HashAlgorithm.BLAKE3_256}: use the version that wrote it, or a later one"
        )
    if commit.format == COMMIT_FORMAT and (commit.columns or commit.confirmed):
        raise JournalCorrupt(
            f"shard {commit.shard}, position {commit.position}: columns in a commit of format {COMMIT_FORMAT}; "
            "restore from a copy"
        )
    if not commit.runs or any(run.events < 0 for run in commit.runs):
        raise JournalCorrupt(f"shard {commit.shard}, position {commit.position}: no runs; restore from a copy")
    if commit.clients and len(commit.clients) != len(commit.answers):
        raise JournalCorrupt(
            f"shard {commit.shard}, position {commit.position}: {len(commit.clients)} clients for "
            f"{len(commit.answers)} answers; restore from a copy"
        )
    if commit.digests and len(commit.digests) != len(commit.answers):
        raise JournalCorrupt(
            f"shard {commit.shard}, position {commit.position}: {len(commit.digests)} digests of commands for "
            f"{len(commit.answers)} answers; restore from a copy"
        )
    if sum(run.events for run in commit.runs) != len(commit.events):
        raise JournalCorrupt(
            f"shard {commit.shard}, position {commit.position}: its runs do not add up to its "
            f"{len(commit.events)} events; restore from a copy"
        )
    return commit


def head_of(sealed: Sealed) -> Head:
    """The head that a shard has once this commit is durable."""
    return Head(shard=sealed.shard, position=sealed.position, epoch=sealed.epoch, digest=sealed.digest)


def statement(heads: list[Head]) -> bytes:
    """The bytes that a signer signs for a group: a domain of their own, then the heads."""
    return _GROUP_DOMAIN + _encoder.encode((int(HashAlgorithm.BLAKE3_256), heads))


# A commit as a row of a group: its bytes, and what a journal must know without decoding them.


class CommitRow(Struct, array_like=True, frozen=True):
    """A commit, with what of it is needed without opening it. Journals name their own after it."""

    shard: int
    position: int
    epoch: int
    time_ns: int
    events: int
    digest: bytes
    body: bytes


def row_of(sealed: Sealed) -> tuple[int, int, int, int, int, bytes, bytes]:
    """What is stored of a commit, in the order of the row's fields."""
    return (
        sealed.shard,
        sealed.position,
        sealed.epoch,
        sealed.time_ns,
        sealed.events,
        sealed.digest,
        sealed.body,
    )


def sealed_of(row: CommitRow) -> Sealed:
    """The commit that was stored."""
    return Sealed(row.shard, row.position, row.epoch, row.time_ns, row.events, row.digest, row.body)


# Checks whether a group continues the heads of its shards. Pure; every journal calls it before it writes. A journal
# keeps dense positions: a taken position means another owner wrote, an ordinary error. A gap, an unknown shard or an
# empty group can only be our own bug.


def advance(heads: Mapping[int, Head], group: Group, shards: int | range) -> dict[int, Head]:
    """The heads that the group moves, as they are once it is durable. Raises JournalConflict or Bug.

    `shards` are those that the journal was made for: so many, or from one to another.
    """
    kept = range(shards) if isinstance(shards, int) else shards
    if not group.commits:
        raise Bug("a group without commits has nothing to make durable; do not append it")
    moved: dict[int, Head] = {}
    for sealed in group.commits:
        if sealed.shard not in kept:
            raise Bug(f"shard {sealed.shard} does not exist: the journal was made for shards {kept[0]} to {kept[-1]}")
        head = moved.get(sealed.shard) or heads.get(sealed.shard)
        expected = head.position + 1 if head else 1
        if sealed.position < expected:
            raise JournalConflict(
                f"shard {sealed.shard}: position {sealed.position} is taken, the next is {expected}; "
                "another owner wrote, reload and decide again"
            )
        if sealed.position > expected:
            raise Bug(f"shard {sealed.shard}: position {sealed.position} leaves a gap, the next is {expected}")
        moved[sealed.shard] = head_of(sealed)
    return moved


def check_drop(heads: Mapping[int, Head], shard: int, upto: int) -> None:
    """Raises Bug if a drop would take the head: the next commit cites it, and no snapshot can cover it.

    A snapshot counts only when a later commit notes it, so the newest commit is never covered.
    """
    head = heads.get(shard)
    if head is not None and upto >= head.position:
        raise Bug(f"shard {shard}: dropping up to {upto} would take the head, {head.position}, which nothing covers")
