"""The messages of a ledger on NATS, as bytes with a signature. Pure. docs/formats.md has every field.

A message is empty, or a signed record: who signed, the signed body, the signature. An empty one means nothing; whoever
must know where the log ends writes one and looks at its sequence. The body says which session of the writer it is of,
under which number, what the writer knew of the chain when it signed, and the deed itself.
"""

from __future__ import annotations

from collections.abc import Callable

import msgspec
from blake3 import blake3
from msgspec import Struct

from stigmergy.core.codec import UNDECODABLE, encode
from stigmergy.ports.ledger import ENTRIES_COUNT_MAX, ENTRY_BYTES_MAX, NAME_CHARS_MAX

FORMAT = 1
SESSION_BYTES = 8
INCARNATION_BYTES = 16
CHAIN_BYTES = 32
KEY_BYTES_MAX = 64
WRITERS_COUNT_MAX = 64
PARTS_COUNT_MAX = 256
NUMBERS_END = 2**53
START = bytes(CHAIN_BYTES)
_DOMAIN = "stigmergy.ledger@1"
_CHAIN_CONTEXT = "stigmergy 2026 messages of a ledger on nats"

Sign = Callable[[bytes], bytes]


class Genesis(Struct, array_like=True, frozen=True, tag=0):
    """The first message: which ledger this is, and who may write."""

    name: str
    incarnation: bytes
    """Drawn. What is signed for this ledger counts in no other, even of the same name."""
    writers: tuple[bytes, ...]


class Entries(Struct, array_like=True, frozen=True, tag=1):
    """Entries of one append; a large one comes in several parts, and counts when the last is there."""

    bodies: tuple[bytes, ...]
    part: int = 0
    parts: int = 1


class Enrol(Struct, array_like=True, frozen=True, tag=2):
    """From here on these may write too."""

    keys: tuple[bytes, ...]


class Revoke(Struct, array_like=True, frozen=True, tag=3):
    """From here on these may not write any more."""

    keys: tuple[bytes, ...]


class Cut(Struct, array_like=True, frozen=True, tag=4):
    """The entries up to a position are covered by a checkpoint. `base` is what the log had come to where it begins
    after the cut: the bytes of a LedgerBase."""

    upto: int
    base: bytes


Deed = Genesis | Entries | Enrol | Revoke | Cut


class LedgerBody(Struct, array_like=True, frozen=True):
    """What is signed."""

    session: bytes
    """Of the writer's connection, drawn."""
    began: int
    """The sequence that the writer had read when the session began."""
    number: int
    """Counts the deeds of a session, from 1. What is not higher than the last is a repetition."""
    head_sequence: int
    """The last message that the writer had read when it signed; 0 for none."""
    head: bytes
    """The chain there, as the writer has computed it."""
    deed: Deed


class LedgerRecord(Struct, array_like=True, frozen=True):
    """A message of the stream."""

    format: int
    algorithm: int
    key: bytes
    body: bytes
    """The bytes of a LedgerBody."""
    signature: bytes


class SessionMark(Struct, array_like=True, frozen=True):
    """How far a session has come."""

    number: int
    sequence: int
    """Of its last message that counted."""


class LedgerCounts(Struct, array_like=True, frozen=True):
    """What became of the messages, the same for every reader."""

    records: int = 0
    looks: int = 0
    """Empty messages."""
    malformed: int = 0
    unknown: int = 0
    """Of a later format."""
    forged: int = 0
    strangers: int = 0
    """Signed by a key that may not write."""
    repeated: int = 0
    """Seen before, of a session that is over, or a part of what is not going on."""


class LedgerBase(Struct, array_like=True, frozen=True):
    """What all messages up to a sequence have come to: enough to read on from there."""

    name: str
    incarnation: bytes
    sequence: int
    position: int
    chain: bytes
    writers: tuple[bytes, ...]
    sessions: tuple[tuple[bytes, SessionMark], ...]
    floor: int
    counts: LedgerCounts


_record_decoder = msgspec.msgpack.Decoder(LedgerRecord)
_body_decoder = msgspec.msgpack.Decoder(LedgerBody)
_base_decoder = msgspec.msgpack.Decoder(LedgerBase)


def statement(name: str, incarnation: bytes, algorithm: int, key: bytes, body: bytes) -> bytes:
    """What is signed."""
    return encode((_DOMAIN, name, incarnation, algorithm, key, body))


def write_record(name: str, incarnation: bytes, algorithm: int, key: bytes, body: LedgerBody, sign: Sign) -> bytes:
    """The bytes of a message."""
    data = encode(body)
    return encode(LedgerRecord(FORMAT, algorithm, key, data, sign(statement(name, incarnation, algorithm, key, data))))


def read_record(payload: bytes) -> tuple[LedgerRecord, LedgerBody] | str:
    """A message that is well written, or what it is instead: `malformed` or `unknown`. The signature is not looked
    at."""
    try:
        record = _record_decoder.decode(payload)
        if record.format != FORMAT:
            return "unknown"
        body = _body_decoder.decode(record.body)
    except UNDECODABLE:
        return "malformed"
    return "malformed" if len(record.key) > KEY_BYTES_MAX or _is_faulty(body) else (record, body)


def read_base(data: bytes) -> LedgerBase | None:
    """A base out of its bytes; None for anything else."""
    try:
        return _base_decoder.decode(data)
    except UNDECODABLE:
        return None


def link(chain: bytes, sequence: int, position: int, payload: bytes) -> bytes:
    """The digest of a message and of all before it. `position` is of the last entry, this message's included."""
    data = chain + sequence.to_bytes(8, "big") + position.to_bytes(8, "big") + payload
    return blake3(data, derive_key_context=_CHAIN_CONTEXT).digest(CHAIN_BYTES)


def _is_faulty(body: LedgerBody) -> bool:
    """What no writer of ours writes. Part of the fold: changing it is a new format."""
    numbers = (body.began, body.number, body.head_sequence)
    if len(body.session) != SESSION_BYTES or len(body.head) != CHAIN_BYTES or body.number < 1:
        return True
    if min(numbers) < 0 or max(numbers) >= NUMBERS_END:
        return True
    deed = body.deed
    match deed:
        case Entries(bodies=bodies, part=part, parts=parts):
            return (
                not 0 < len(bodies) <= ENTRIES_COUNT_MAX
                or max(map(len, bodies)) > ENTRY_BYTES_MAX
                or not 0 <= part < parts <= PARTS_COUNT_MAX
            )
        case Genesis(name=name, incarnation=incarnation, writers=keys):
            return not 0 < len(name) <= NAME_CHARS_MAX or len(incarnation) != INCARNATION_BYTES or _wrong_keys(keys)
        case Enrol(keys=keys) | Revoke(keys=keys):
            return _wrong_keys(keys)
        case Cut(upto=upto):
            return not 0 < upto < NUMBERS_END


def _wrong_keys(keys: tuple[bytes, ...]) -> bool:
    return not 0 < len(keys) <= WRITERS_COUNT_MAX or any(not 0 < len(key) <= KEY_BYTES_MAX for key in keys)
