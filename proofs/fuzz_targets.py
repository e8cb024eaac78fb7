"""Every decoder that reads bytes from elsewhere, each with valid examples to start from and what it may raise.

A target takes bytes and returns, or raises an error of ours. Where decoding succeeds, what was decoded is used as the
runtime uses it: an envelope is stepped, a commit folded, a snapshot loaded.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import io
import zlib
from collections.abc import Callable

from msgspec import Struct

from bench.workload import Drone, Feed, reports
from proofs import fuzz_columns as columns
from proofs import fuzz_gossip as gossip
from proofs import fuzz_membership as membership
from proofs import fuzz_shared as shared
from stigmergy.agents.codec import ENVELOPE_FORMAT, Envelope, encode, open_envelope
from stigmergy.agents.supervision import SignerEnrolled
from stigmergy.audit.flight import FlightSelection, FlightVerification, make_flight
from stigmergy.audit.flight_format import (
    FlightCommit,
    FlightDirectory,
    FlightNames,
    FlightOpening,
    RecordKind,
    read_flight_commit,
    read_record,
    read_record_header,
    restore_directory,
)
from stigmergy.audit.flight_journal import FlightFile
from stigmergy.audit.retention import RetentionHold, read_holds, write_holds
from stigmergy.base.errors import JournalError, PeerError, RecoveryError, StigmergyError, TrustError
from stigmergy.control import protocol
from stigmergy.journal.identity import AcknowledgedHead, decode_mark, encode_mark
from stigmergy.journal.memory import open_journal as open_memory
from stigmergy.journal.port import JournalIdentity
from stigmergy.journal.sqlite.wal import FRAME_HEADER_BYTES, HEADER_BYTES, Wal, checksum
from stigmergy.keys.ed25519 import Ed25519Signer, Ed25519Verifier
from stigmergy.keys.keyfile import (
    PrivateKey,
    decode_private_key,
    decode_public_key,
    encode_private_key,
    encode_public_key,
)
from stigmergy.shard.commit import (
    Commit,
    EventRun,
    Group,
    Signature,
    digest_commit,
    genesis_of,
    head_of,
    open_commit,
    seal,
    statement,
)
from stigmergy.shard.inputs import Ask, Delivery
from stigmergy.shard.replay import apply
from stigmergy.shard.shard import Shard
from stigmergy.shard.snapshot import SnapshotWriter, digest_of_state, load_agents, load_tables, read_header
from stigmergy.shard.state import ShardState, plan_agents

MIB = 1024 * 1024
PLANS = plan_agents([Drone])


class Target(Struct, frozen=True):
    """One decoder."""

    name: str
    decode: Callable[[bytes], None]
    seeds: list[bytes]
    may_raise: tuple[type[Exception], ...]
    memory_bytes_max: int
    once: list[bytes] = []
    """Tried as they are and not mutated, because each takes long."""
    size_bytes_max: int = MIB
    prepare: Callable[[], object] | None = None
    """Called once, before anything is tried and measured."""


def targets() -> list[Target]:
    """All of them."""
    commits, parts = _written()
    envelopes = Feed("ground", reports(1, 60), batch_events=20).envelopes(3)
    key = PrivateKey(bytes(range(32)), "fuzzed")
    signed_agents = [zlib.decompress(part) for part in parts]
    return [
        Target("envelope", _take_envelope, [*envelopes, *_bombs()], (PeerError,), 64 * MIB),
        Target("message", _take_message, [*_messages(), *_bombs()], (), 64 * MIB),
        Target("commit", _fold_commit, [*commits, *_bombs()], (JournalError, RecoveryError), 64 * MIB),
        Target("snapshot", _load_parts, parts, (JournalError, RecoveryError), 512 * MIB, _zip_bombs()),
        Target("snapshot content", _load_content, signed_agents, (JournalError, RecoveryError), 128 * MIB),
        Target("private key", lambda data: _ignore(decode_private_key(data)), [encode_private_key(key)], _KEY, MIB * 8),
        Target("public key", _read_public_key, [encode_public_key(key.public).encode()], _KEY, MIB * 8),
        Target("control request", _read_request, _requests(), (StigmergyError,), 64 * MIB),
        Target("write-ahead log", _scan_wal, [_wal(frames) for frames in (0, 1, 3, 6)], (), 64 * MIB),
        Target("flight log", _verify_flight, _flights(), (JournalError,), 64 * MIB),
        Target("record of a flight log", _read_records, _flight_records(), (JournalError,), 64 * MIB),
        Target("holds", lambda data: _ignore(read_holds(data)), [write_holds(_holds())], (JournalError,), MIB * 8),
        Target(
            "mark", lambda data: _ignore(decode_mark(data)), [encode_mark(AcknowledgedHead(1, 0, 7, 99))], (), MIB * 8
        ),
        Target(
            "column batch",
            columns.take_batch,
            [*columns.batches(), *_bombs()],
            columns.PEER,
            64 * MIB,
            prepare=columns.warm_up,
        ),
        Target("layout", columns.read_declaration, [*columns.declarations(), *_bombs()], columns.CORRUPT, 64 * MIB),
        Target("names of a snapshot", columns.read_names, columns.names(), columns.CORRUPT, 128 * MIB),
        Target("frames of a segment", columns.read_frames, columns.frames(), columns.CORRUPT, 64 * MIB),
        Target("delta of shared state", shared.take_delta, [*shared.deltas(), *_bombs()], shared.REFUSED, 64 * MIB),
        Target("store of shared state", shared.take_store, [*shared.stores(), *_bombs()], shared.REFUSED, 64 * MIB),
        Target("gossip", gossip.take, [*gossip.seeds(), *_bombs()], gossip.REFUSED, 64 * MIB),
        Target("membership", membership.take, [*membership.packets(), *_bombs()], (), 64 * MIB),
        Target("datagram over UDP", membership.take_datagram, membership.datagrams(), (PeerError,), MIB),
    ]


_KEY = (TrustError, StigmergyError)


def _ignore(_: object) -> None:
    """The value does not matter, only that there is one."""


def _verify_flight(data: bytes) -> None:
    """Opens a flight log and verifies it; what was changed is found, or the change is none."""
    flight = FlightFile("fuzzed", io.BytesIO(data))
    found = FlightVerification(flight, Ed25519Verifier()).run()
    if found.verified.sound and data not in _flights():
        raise AssertionError("a flight log that nobody wrote is called sound")


def _read_records(data: bytes) -> None:
    """The body of a record, as each kind of them; and its first bytes, as a header."""
    with contextlib.suppress(JournalError):
        read_record_header(data[:5])
    for kind in RecordKind:
        with contextlib.suppress(JournalError):
            record = read_record(kind, data)
            if isinstance(record, FlightCommit):
                read_flight_commit(record)
            if isinstance(record, FlightDirectory):
                restore_directory([record])


@functools.cache
def _flights() -> list[bytes]:
    """The flight log of a small journal, and a part of it."""
    signer = Ed25519Signer(bytes(range(32)))
    journal = open_memory("memory:", JournalIdentity("fuzzed", 1, 1))

    async def fill() -> None:
        previous = genesis_of("fuzzed", 0)
        enrolled = SignerEnrolled(algorithm=signer.algorithm, public_key=signer.public_key, cites=previous)
        for position in (1, 2, 3):
            event = ("", encode(enrolled)) if position == 1 else ("Drone/D-1", b"\x80")
            sealed = seal(Commit(1, 1, 0, position, 1, previous, [EventRun(1, position, "radio")], [event]))
            heads = [head_of(sealed)]
            signature = Signature(signer.algorithm, signer.public_key, heads, signer.sign(statement(heads)))
            await journal.append(Group((sealed,), signature))
            previous = sealed.digest

    asyncio.run(fill())
    cuts = (FlightSelection(), FlightSelection(ranges=((0, 2, 3),), reason="a part"))
    return [b"".join(make_flight(journal, signer, cut, made_ns=9)) for cut in cuts]


def _flight_records() -> list[bytes]:
    opening = FlightOpening(1, 1, "fuzzed", 1, 1, 9, "", "", [])
    commit = seal(Commit(1, 1, 0, 1, 1, bytes(32), [EventRun(0, 1, "")], []))
    directory = FlightDirectory(0, [], [FlightNames("Meter", 3, [1], ["M-2"])])
    return [encode(opening), encode(FlightCommit(0, 1, commit.digest, None, commit.body)), encode(directory)]


def _holds() -> list[RetentionHold]:
    return [
        RetentionHold(1, "incident", "Ada", 5, agent="Drone/D-1"),
        RetentionHold(2, "all", "Bea", 6, cleared_ns=7, cleared_by="Cy"),
    ]


def _take_envelope(data: bytes) -> None:
    """Opens an envelope and steps it; whatever is in it, the step goes on, and its commit folds to the same state."""
    envelope = open_envelope(data)
    _live_and_replay(
        Delivery(
            source=envelope.source,
            items=envelope.items,
            sequence=1,
            incarnation=envelope.incarnation,
            epoch=envelope.epoch,
            size_bytes=len(data),
        )
    )


def _take_message(data: bytes) -> None:
    """Gives the bytes to an agent as an event and as a command."""
    _live_and_replay(Delivery(source="fuzz", items=[("Drone/D-1", data)]), Ask("Drone/D-1", "c1", data))


def _live_and_replay(*inputs: Delivery | Ask) -> None:
    lived = ShardState(0, PLANS)
    shard = Shard(lived)
    again = ShardState(0, PLANS)
    left = list(inputs)
    for _ in range(20):
        stepped = shard.step(left, 1_000)
        left = [one for one in stepped.left if isinstance(one, Delivery | Ask)]
        ready = shard.seal()
        if ready is not None:
            apply(again, open_commit(ready.sealed.body), ready.sealed.digest)
        if not left:
            break
    if digest_of_state(lived) != digest_of_state(again):
        raise AssertionError("lived and replayed states differ")


def _fold_commit(data: bytes) -> None:
    commit = open_commit(data)
    state = ShardState(commit.shard, PLANS)
    state.position = commit.position - 1
    state.digest = commit.previous
    apply(state, commit, digest_commit(data))


def _load_parts(data: bytes) -> None:
    state = ShardState(0, PLANS)
    header = read_header(data)
    load_tables(state, header.tables)
    load_agents(state, header, data)


def _load_content(data: bytes) -> None:
    """The same behind a valid compression, so that mutations reach what lies in it."""
    packed = zlib.compress(data, 1)
    state = ShardState(0, PLANS)
    try:
        header = read_header(packed)
    except JournalError:
        header = read_header(_written()[1][0])
    load_tables(state, header.tables)
    load_agents(state, header, packed)


def _read_public_key(data: bytes) -> None:
    try:
        line = data.decode()
    except UnicodeDecodeError:
        return
    decode_public_key(line)


def _read_request(data: bytes) -> None:
    protocol.read_request(data)


def _scan_wal(data: bytes) -> None:
    wal = Wal(lambda offset, size: data[offset : offset + size], len(data))
    valid = wal.valid_frames()
    wal.find_damage(valid)
    wal.find_damage(0)
    wal.pages(valid)


def _written() -> tuple[list[bytes], list[bytes]]:
    """Commits and snapshot parts of a short life; made once."""
    if not _made:
        state = ShardState(0, PLANS)
        shard = Shard(state)
        commits: list[bytes] = []
        for number, data in enumerate(Feed("ground", reports(2, 60), batch_events=20).envelopes(3)):
            opened = open_envelope(data)
            deliveries = [Delivery("ground", opened.items, opened.sequence, opened.incarnation, 0, len(data))]
            shard.step([*deliveries, Ask("Drone/D-1", f"c{number}", b"\xc0")], 1_000 + number)
            ready = shard.seal()
            assert ready is not None
            commits.append(ready.sealed.body)
        taking = SnapshotWriter(state)
        parts: list[bytes] = []
        while (part := taking.next_part({})) is not None:
            parts.append(part)
        _made.append((commits, parts))
    return _made[0]


_made: list[tuple[list[bytes], list[bytes]]] = []


def _messages() -> list[bytes]:
    return [report.body for report in reports(3, 20)]


def _bombs() -> list[bytes]:
    """Bytes that promise far more than they hold, or nest without end."""
    deep = 50_000
    return [
        b"\x91" * deep + b"\xc0",
        b"\x81\xa1a" * deep + b"\xc0",
        b"\xdd\xff\xff\xff\xff",
        b"\xdf\xff\xff\xff\xff",
        b"\xc6\xff\xff\xff\xff",
        b"\xdb\xff\xff\xff\xff",
        encode(Envelope(ENVELOPE_FORMAT, "x" * 300, 1, 0, 1, [("Drone/D-1", b"\x91" * 1_000)])),
        encode(Envelope(ENVELOPE_FORMAT, "x", 2**62, 2**62, 2**62, [("Drone/" + "n" * 5_000, b"\xc1")])),
        encode(("", float("nan"), -(2**63), 2**64 - 1)),
    ]


def _zip_bombs() -> list[bytes]:
    return [zlib.compress(bytes(80 * MIB), 9), zlib.compress(b"\x91" * MIB, 9)]


def _requests() -> list[bytes]:
    return [
        b'{"v": 1, "do": "status"}',
        b'{"v": 1, "do": "send", "agent": "Drone/D-1", "command": "StartMission", "fields": {"mission": "M1"}}',
        b'{"v": 1, "do": "state", "agent": "Drone/D-1", "at": "12"}',
        b'{"v": 1, "do": "observe", "agent": "Drone/D-1", "event": "BatteryMeasured", "texts": {"percent": "12"}}',
        b"[" * 5_000,
        b'{"v": 1e999, "do": "status"}',
        b'{"a":' * 5_000,
    ]


def _wal(frames: int) -> bytes:
    """A write-ahead log with small pages and true checksums; every second frame commits."""
    page_bytes = 512
    head = b"".join(value.to_bytes(4, "big") for value in (0x377F0683, 3007000, page_bytes, 0, 11, 12))
    running = checksum((0, 0), head, True)
    data = head + b"".join(value.to_bytes(4, "big") for value in running)
    assert len(data) == HEADER_BYTES
    for frame in range(1, frames + 1):
        start = b"".join(value.to_bytes(4, "big") for value in (frame, 9 if frame % 2 == 0 else 0))
        page = bytes([frame]) * page_bytes
        running = checksum(running, start + page, True)
        salts = b"".join(value.to_bytes(4, "big") for value in (11, 12))
        header = start + salts + b"".join(value.to_bytes(4, "big") for value in running)
        assert len(header) == FRAME_HEADER_BYTES
        data += header + page
    return data
