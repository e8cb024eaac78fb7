"""The flight log: commits of a journal in one file that proves itself, without the journal and without any class.

A file is a magic word and then records: an opening, commits as they are in the journal, a manifest, a seal. If its
commits hold records of compiled agents that the earlier log describes, directories come first. The manifest names the
head of every section and a digest over all bytes before it; the seal signs the manifest. So one signature stands for
every commit in the file, even if the group's own signature is in a shard that was left out. Pure: bytes in, bytes out.
docs/formats.md describes every byte.
"""

from __future__ import annotations

import enum
import zlib
from collections.abc import Sequence

import msgspec
from blake3 import blake3
from msgspec import Struct, structs

from stigmergy.agents.codec import UNDECODABLE, encode
from stigmergy.base.errors import Bug, JournalCorrupt, JournalForeign
from stigmergy.shard.commit import HashAlgorithm, Sealed, Signature, digest_commit, open_commit
from stigmergy.shard.directory import Directory
from stigmergy.shard.state import EnrolledSigner

FLIGHT_FORMAT = 1
KEYED_FLIGHT_FORMAT = 2
"""Of the opening, where a function of the fleet says in which shard an agent lives."""
FLIGHT_MAGIC = b"stgflog1"
RECORD_BYTES_MAX = 18 * 1024 * 1024
"""A record: the largest commit with the largest signature, and room to spare. A reader refuses a larger one."""
FLIGHT_SHARDS_MAX = 4_096
"""As many as a fleet may have; a file that claims more is refused, so that nobody makes room for them."""
AGENTS_MAX = 10_000_000
"""Compiled ones in one shard; a file that claims more is refused, so that nobody makes room for them."""
RECORD_HEADER_BYTES = 5
RECORD_CHECKSUM_BYTES = 4
_CONTEXT = "stigmergy 2026 flight log"
_DOMAIN = b"stigmergy.flight@1\x00"


class RecordKind(enum.IntEnum):
    """What a record holds."""

    OPENING = 1
    COMMIT = 2
    MANIFEST = 3
    SEAL = 4
    DIRECTORY = 5
    """Only where commits need it that do not begin where their log began; before the first commit."""


class FlightOpening(Struct, array_like=True, frozen=True):
    """Whose log it is. `signers` may sign where the file begins, if that is not where the log began."""

    format: int
    hash_algorithm: int
    fleet: str
    shards: int
    incarnation: int
    made_ns: int
    agent: str
    """The agent it was made for: it contains that agent's shard and that of the signers. Empty: all of them."""
    reason: str
    signers: list[EnrolledSigner]

    def keyed(self, shard_by: str) -> KeyedFlightOpening:
        """The same of a fleet with a function of this name that says where agents live."""
        said = structs.asdict(structs.replace(self, format=KEYED_FLIGHT_FORMAT))
        return KeyedFlightOpening(**said, shard_by=shard_by)


class KeyedFlightOpening(FlightOpening, array_like=True, frozen=True):
    """The same of a fleet with a function that says where agents live: its name."""

    shard_by: str


class FlightCommit(Struct, array_like=True, frozen=True):
    """A commit as it is in the journal, with the signature of its group where the journal has it."""

    shard: int
    position: int
    digest: bytes
    signature: bytes | None
    body: bytes


class FlightNames(Struct, array_like=True, frozen=True):
    """Names of compiled agents of one kind, by number; of those that the commits are about."""

    kind: str
    count: int
    """At least so many were enrolled where the commits begin."""
    numbers: list[int]
    names: list[str]


class FlightDirectory(Struct, array_like=True, frozen=True):
    """What it takes to read the column runs of one shard, where the log has said it before the commits begin."""

    shard: int
    declared: list[tuple[bytes, bytes]]
    """Layouts and templates; one of the two may be empty."""
    rosters: list[FlightNames]


class FlightSection(Struct, array_like=True, frozen=True):
    """The commits of one shard: from where to where, what the first one cites, and the digest of the last."""

    shard: int
    first: int
    last: int
    epoch: int
    previous: bytes
    digest: bytes


class FlightManifest(Struct, array_like=True, frozen=True):
    """What is in the file, and a digest of all bytes before this record."""

    format: int
    sections: list[FlightSection]
    commits: int
    events: int
    first_ns: int
    last_ns: int
    digest: bytes


class FlightSeal(Struct, array_like=True, frozen=True):
    """Who vouches for the manifest."""

    algorithm: int
    key: bytes
    value: bytes


FlightRecord = FlightOpening | FlightCommit | FlightManifest | FlightSeal | FlightDirectory
_decoders: dict[RecordKind, msgspec.msgpack.Decoder[FlightRecord]] = {
    RecordKind.OPENING: msgspec.msgpack.Decoder(FlightOpening),
    RecordKind.COMMIT: msgspec.msgpack.Decoder(FlightCommit),
    RecordKind.MANIFEST: msgspec.msgpack.Decoder(FlightManifest),
    RecordKind.SEAL: msgspec.msgpack.Decoder(FlightSeal),
    RecordKind.DIRECTORY: msgspec.msgpack.Decoder(FlightDirectory),
}
_keyed_decoder = msgspec.msgpack.Decoder(KeyedFlightOpening)
_signature_decoder = msgspec.msgpack.Decoder(Signature)


def flight_statement(manifest: bytes) -> bytes:
    """The bytes that are signed: a domain of their own, then the manifest's bytes as they are in the file."""
    return _DOMAIN + manifest


def frame(kind: RecordKind, record: FlightRecord) -> bytes:
    """A record as it is in the file: its kind, its length, its bytes, and a checksum against flipped bits."""
    body = encode(record)
    head = bytes((kind,)) + len(body).to_bytes(4, "little")
    return head + body + zlib.crc32(head + body).to_bytes(RECORD_CHECKSUM_BYTES, "little")


def read_record_header(head: bytes) -> tuple[RecordKind, int]:
    """Kind and length of the record that begins here. Raises JournalCorrupt for what cannot be one."""
    length = int.from_bytes(head[1:RECORD_HEADER_BYTES], "little")
    if len(head) < RECORD_HEADER_BYTES or head[0] not in list(RecordKind) or length > RECORD_BYTES_MAX:
        raise JournalCorrupt("no record begins here: a length or a kind was changed, or the file was cut off")
    return RecordKind(head[0]), length


def checksum_fits(head: bytes, body: bytes, checksum: bytes) -> bool:
    """Whether these are the bytes that were written; says nothing against people."""
    return zlib.crc32(head + body).to_bytes(RECORD_CHECKSUM_BYTES, "little") == checksum


def read_record(kind: RecordKind, body: bytes) -> FlightRecord:
    """Decodes a record. Raises JournalCorrupt, or JournalForeign for a format that this version does not know."""
    try:
        record = _decoders[kind].decode(body)
    except UNDECODABLE as error:
        raise JournalCorrupt(f"a record of {len(body)} bytes does not decode ({error})") from None
    if isinstance(record, FlightOpening) and record.format == KEYED_FLIGHT_FORMAT:
        record = _read_keyed(body)
    elif isinstance(record, FlightOpening | FlightManifest) and record.format != FLIGHT_FORMAT:
        raise JournalForeign(
            f"flight log format {record.format}, this version reads {FLIGHT_FORMAT}: use the version that wrote it"
        )
    if isinstance(record, FlightOpening) and record.hash_algorithm != HashAlgorithm.BLAKE3_256:
        raise JournalForeign(
            f"hash algorithm {record.hash_algorithm}, we know {int(HashAlgorithm.BLAKE3_256)}: use a later one"
        )
    if isinstance(record, FlightOpening) and not 1 <= record.shards <= FLIGHT_SHARDS_MAX:
        raise JournalCorrupt(f"a fleet of {record.shards} shards; there are 1 to {FLIGHT_SHARDS_MAX}")
    return record


def _read_keyed(body: bytes) -> KeyedFlightOpening:
    try:
        return _keyed_decoder.decode(body)
    except UNDECODABLE as error:
        raise JournalCorrupt(f"a record of {len(body)} bytes does not decode ({error})") from None


def read_flight_commit(record: FlightCommit) -> tuple[Sealed, Signature | None]:
    """The commit as a journal gives it. Its digest is the stored one: verification compares it."""
    commit = open_commit(record.body)
    try:
        signature = None if record.signature is None else _signature_decoder.decode(record.signature)
    except UNDECODABLE as error:
        raise JournalCorrupt(
            f"shard {record.shard}, position {record.position}: its signature does not decode ({error})"
        ) from None
    sealed = Sealed(
        shard=record.shard,
        position=record.position,
        epoch=commit.epoch,
        time_ns=commit.runs[-1].time_ns,
        events=commit.events_count,
        digest=record.digest,
        body=record.body,
    )
    return sealed, signature


class FlightDigest:
    """The digest that a manifest holds, taken piece by piece."""

    def __init__(self) -> None:
        self._hasher = blake3(derive_key_context=_CONTEXT)

    def add(self, data: bytes) -> None:
        """Takes the next bytes of the file."""
        self._hasher.update(data)

    def value(self) -> bytes:
        """The digest of the bytes so far."""
        return self._hasher.digest()


class FlightWriter:
    """Makes the bytes of a flight log, in order: `open`, `add` shard by shard, `manifest`, and the seal over that."""

    def __init__(self) -> None:
        self._digest = FlightDigest()
        self._sections: dict[int, FlightSection] = {}
        self._commits = 0
        self._events = 0
        self._first_ns: int | None = None
        self._last_ns = 0

    @property
    def commits(self) -> int:
        """How many commits are in it so far."""
        return self._commits

    def open(self, opening: FlightOpening) -> bytes:
        """The first bytes of the file."""
        return self._count(FLIGHT_MAGIC + frame(RecordKind.OPENING, opening))

    def describe(self, directory: FlightDirectory) -> bytes:
        """The bytes of what it takes to read the commits; before the first of them."""
        return self._count(frame(RecordKind.DIRECTORY, directory))

    def add(self, sealed: Sealed, signature: Signature | None) -> bytes:
        """The bytes of the next commit. Commits of a shard follow each other, and so do the shards."""
        section = self._sections.get(sealed.shard)
        if section is None and self._sections and max(self._sections) > sealed.shard:
            raise Bug(f"shard {sealed.shard} comes behind a later one; write shard by shard")
        if section is not None and sealed.position != section.last + 1:
            raise Bug(f"shard {sealed.shard}: position {sealed.position} does not follow {section.last}")
        if section is None:
            first, previous = sealed.position, open_commit(sealed.body).previous
        else:
            first, previous = section.first, section.previous
        self._sections[sealed.shard] = FlightSection(
            sealed.shard, first, sealed.position, sealed.epoch, previous, sealed.digest
        )
        self._commits += 1
        self._events += sealed.events
        self._first_ns = sealed.time_ns if self._first_ns is None else min(self._first_ns, sealed.time_ns)
        self._last_ns = max(self._last_ns, sealed.time_ns)
        signed = None if signature is None else encode(signature)
        record = FlightCommit(sealed.shard, sealed.position, sealed.digest, signed, sealed.body)
        return self._count(frame(RecordKind.COMMIT, record))

    def manifest(self) -> FlightManifest:
        """What the file holds; nothing can be added once it is written."""
        return FlightManifest(
            format=FLIGHT_FORMAT,
            sections=[self._sections[shard] for shard in sorted(self._sections)],
            commits=self._commits,
            events=self._events,
            first_ns=self._first_ns or 0,
            last_ns=self._last_ns,
            digest=self._digest.value(),
        )

    def _count(self, data: bytes) -> bytes:
        self._digest.add(data)
        return data


def restore_directory(parts: Sequence[FlightDirectory]) -> Directory:
    """What these say together. Raises JournalCorrupt for what does not decode or cannot be."""
    directory = Directory()
    for part in parts:
        directory.restore(part.declared)
        for roster in part.rosters:
            if not 0 <= roster.count <= AGENTS_MAX or len(roster.numbers) != len(roster.names):
                raise JournalCorrupt(f"a roster of {roster.kind} that cannot be")
            known = directory.names.setdefault(roster.kind, [])
            known.extend([""] * (roster.count - len(known)))
            if sum(len(names) for names in directory.names.values()) > AGENTS_MAX:
                raise JournalCorrupt(f"rosters of more than {AGENTS_MAX} agents, the last of {roster.kind}")
            for number, name in zip(roster.numbers, roster.names, strict=True):
                if not 0 <= number < len(known):
                    raise JournalCorrupt(f"agent {number} of {roster.kind}, of which there are {len(known)}")
                known[number] = name
    return directory


def commit_is_intact(record: FlightCommit) -> bool:
    """Whether the commit's bytes have the digest that is stored with them."""
    return digest_commit(record.body) == record.digest
