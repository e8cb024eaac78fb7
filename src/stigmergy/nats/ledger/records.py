"""The messages of a ledger on NATS, as bytes with a signature. Pure. docs/formats.md has every field.

A message is empty, or a signed record: who signed, the signed body, the signature. An empty one means nothing; a reader
writes one to learn from its sequence where the log ends. The body holds the session of the writer, its number, what the
writer knew of the chain when it signed, and the change itself.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple, assert_never

import msgspec
from blake3 import blake3
from immutables import Map
from msgspec import Struct, structs

from stigmergy.agents.codec import UNDECODABLE, encode
from stigmergy.base.errors import LedgerCorrupt, LedgerForeign
from stigmergy.claims.port import ENTRIES_COUNT_MAX, ENTRY_BYTES_MAX, NAME_CHARS_MAX, LedgerEntry

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
    """Random. A signature for this ledger is valid in no other, even of the same name."""
    writers: tuple[bytes, ...]


class Entries(Struct, array_like=True, frozen=True, tag=1):
    """Entries of one append; a large one comes in several parts, and counts when the last is there."""

    bodies: tuple[bytes, ...]
    part: int = 0
    parts: int = 1


class Enrol(Struct, array_like=True, frozen=True, tag=2):
    """These keys may write from here on."""

    keys: tuple[bytes, ...]


class Revoke(Struct, array_like=True, frozen=True, tag=3):
    """These keys may not write from here on."""

    keys: tuple[bytes, ...]


class Cut(Struct, array_like=True, frozen=True, tag=4):
    """The entries up to a position are covered by a checkpoint. `base` is the state where the log begins after the cut:
    the bytes of a LedgerBase."""

    upto: int
    base: bytes


LedgerChange = Genesis | Entries | Enrol | Revoke | Cut


class LedgerBody(Struct, array_like=True, frozen=True):
    """The signed part."""

    session: bytes
    """Of the writer's connection; random."""
    began: int
    """The last sequence that the writer had read when the session began."""
    number: int
    """Counts the changes of a session, from 1. A number not above the last is a repetition."""
    head_sequence: int
    """The last message that the writer had read when it signed; 0 for none."""
    head: bytes
    """The chain there, as the writer computed it."""
    change: LedgerChange


class LedgerRecord(Struct, array_like=True, frozen=True):
    """A message of the stream."""

    format: int
    algorithm: int
    key: bytes
    body: bytes
    """The bytes of a LedgerBody."""
    signature: bytes


class SessionMark(Struct, array_like=True, frozen=True):
    """The progress of a session."""

    number: int
    sequence: int
    """Of its last message that counted."""


class LedgerCounts(Struct, array_like=True, frozen=True):
    """The outcomes of the messages, the same for every reader."""

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
    """Seen before, of an ended session, or a part of an append that was given up."""


class LedgerBase(Struct, array_like=True, frozen=True):
    """The state after all messages up to a sequence: enough to read on from there."""

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
    """The bytes that are signed."""
    return encode((_DOMAIN, name, incarnation, algorithm, key, body))


def write_record(name: str, incarnation: bytes, algorithm: int, key: bytes, body: LedgerBody, sign: Sign) -> bytes:
    """Encodes and signs a message."""
    data = encode(body)
    return encode(LedgerRecord(FORMAT, algorithm, key, data, sign(statement(name, incarnation, algorithm, key, data))))


def read_record(payload: bytes) -> tuple[LedgerRecord, LedgerBody] | str:
    """A well-formed message, or `malformed` or `unknown`. Does not check the signature."""
    try:
        record = _record_decoder.decode(payload)
        if record.format != FORMAT:
            return "unknown"
        body = _body_decoder.decode(record.body)
    except UNDECODABLE:
        return "malformed"
    return "malformed" if len(record.key) > KEY_BYTES_MAX or _is_faulty(body) else (record, body)


def read_base(data: bytes) -> LedgerBase | None:
    """Decodes a base; None for anything else."""
    try:
        return _base_decoder.decode(data)
    except UNDECODABLE:
        return None


def link(chain: bytes, sequence: int, position: int, payload: bytes) -> bytes:
    """The digest of a message and of all before it. `position` is that of the last entry, this message's included."""
    data = chain + sequence.to_bytes(8, "big") + position.to_bytes(8, "big") + payload
    return blake3(data, derive_key_context=_CHAIN_CONTEXT).digest(CHAIN_BYTES)


def _is_faulty(body: LedgerBody) -> bool:
    """Whether no writer of ours writes this. Part of the fold: changing it is a new format."""
    numbers = (body.began, body.number, body.head_sequence)
    if len(body.session) != SESSION_BYTES or len(body.head) != CHAIN_BYTES or body.number < 1:
        return True
    if min(numbers) < 0 or max(numbers) >= NUMBERS_END:
        return True
    change = body.change
    match change:
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


# Folds the messages of a ledger's stream: which of them count, at which positions, who may write. Pure.
#
# Every reader computes the same state from the messages alone. A message that no permitted writer signed, that is a
# repetition, or that does not decode, is skipped and counted. Entries have the positions 1, 2, 3 …, whatever is between
# their messages; the chain covers everything stored, positions included, so that readers who count differently have
# different chains.
#
# Session and number identify repetitions. A session that was silent while SESSIONS_COUNT_MAX others wrote is forgotten;
# `floor` keeps it from coming back: a session that began before it is too old to be judged.

SESSIONS_COUNT_MAX = 1_024
SESSIONS_KEPT = SESSIONS_COUNT_MAX * 3 // 4
"""How many are left after a clean-up, so that not every new session needs one."""
PARTIAL_COUNT_MAX = 64
"""Partial appends; beyond it the oldest is given up. Its writer starts again."""
PARTIAL_AGE_MAX = 1_024
"""An append whose next part has not come within this many messages is given up: its writer is gone."""

Verify = Callable[[int, bytes, bytes, bytes], bool]
"""Algorithm, public key, statement, signature: whether this key signed exactly these bytes."""


class Partial(Struct, frozen=True):
    """An append whose last part is still to come."""

    number: int
    bodies: tuple[bytes, ...]
    parts_there: int
    sequence: int
    """Of its last part so far."""


class LedgerState(Struct, frozen=True):
    """The folded messages."""

    name: str = ""
    incarnation: bytes = b""
    sequence: int = 0
    position: int = 0
    chain: bytes = START
    writers: tuple[bytes, ...] = ()
    sessions: Map[bytes, SessionMark] = Map()
    floor: int = 0
    partial: Map[bytes, Partial] = Map()
    cut: int = 0
    """Entries up to here are gone, or may go at any moment."""
    counts: LedgerCounts = LedgerCounts()


class MessageOutcome(NamedTuple):
    """The result of folding a message."""

    state: LedgerState
    entries: tuple[LedgerEntry, ...] = ()
    session: bytes = b""
    number: int = 0
    counted: bool = False
    """Whether the change with this number is done; of an append in parts, with the last one."""
    head_sequence: int = 0
    head: bytes = b""
    """The chain at that message, as a writer signed it."""
    base: bytes = b""
    """Of a cut: the state where the log begins, as its writer says."""


def take(state: LedgerState, sequence: int, payload: bytes, verify: Verify) -> MessageOutcome:
    """Folds the next message. Raises LedgerForeign if the first one does not begin a ledger."""
    if sequence != state.sequence + 1:
        raise LedgerCorrupt(f"ledger {state.name!r}: message {sequence} follows {state.sequence}; some are missing")
    if not payload:
        return MessageOutcome(_moved(state, sequence, payload, "looks"))
    found = read_record(payload)
    if isinstance(found, str):
        if sequence == 1:
            raise LedgerForeign("the stream does not begin like a ledger; name another place for it")
        return MessageOutcome(_moved(state, sequence, payload, found))
    record, body = found
    if sequence == 1:
        state = _born(body.change)
    if not verify(
        record.algorithm,
        record.key,
        statement(state.name, state.incarnation, record.algorithm, record.key, record.body),
        record.signature,
    ):
        return MessageOutcome(_moved(state, sequence, payload, "forged"), session=body.session, number=body.number)
    if record.key not in state.writers:
        return MessageOutcome(_moved(state, sequence, payload, "strangers"), session=body.session, number=body.number)
    heads = (body.head_sequence, body.head)
    if not _is_new(state, sequence, body):
        behind = _moved(state, sequence, payload, "repeated")
        return MessageOutcome(behind, (), body.session, body.number, False, *heads)
    if isinstance(body.change, Entries) and body.change.part < body.change.parts - 1:
        behind = _moved(_kept(state, body, body.change, sequence), sequence, payload, "records")
        return MessageOutcome(behind, (), body.session, body.number, False, *heads)
    first = state.position + 1
    state, bodies = _done(state, body)
    entries = tuple(LedgerEntry(position, one) for position, one in enumerate(bodies, start=first))
    state = _marked(state, body, sequence)
    behind = _moved(state, sequence, payload, "records", len(entries))
    base = body.change.base if isinstance(body.change, Cut) else b""
    return MessageOutcome(behind, entries, body.session, body.number, True, *heads, base)


def base_of(state: LedgerState) -> bytes:
    """The state for readers that start here. There must be no partial append."""
    assert not state.partial
    sessions = tuple(sorted(state.sessions.items()))
    fields = (state.name, state.incarnation, state.sequence, state.position, state.chain, state.writers, sessions)
    return encode(LedgerBase(*fields, state.floor, state.counts))


def state_of(base: LedgerBase, cut: int) -> LedgerState:
    """The state of a base, in a log that was cut."""
    fields = (base.name, base.incarnation, base.sequence, base.position, base.chain, base.writers)
    return LedgerState(*fields, Map(base.sessions), base.floor, Map(), cut, base.counts)


def _born(change: LedgerChange) -> LedgerState:
    if not isinstance(change, Genesis):
        raise LedgerForeign("the stream does not begin like a ledger; name another place for it")
    return LedgerState(change.name, change.incarnation, writers=tuple(sorted(dict.fromkeys(change.writers))))


def _is_new(state: LedgerState, sequence: int, body: LedgerBody) -> bool:
    """Whether this number of a session is next: the next change, or the next part of one."""
    if isinstance(body.change, Genesis) != (sequence == 1):
        return False
    mark = state.sessions.get(body.session)
    if body.number <= mark.number if mark is not None else body.began < state.floor:
        return False
    if not isinstance(body.change, Entries):
        return True
    partial = state.partial.get(body.session)
    there = partial.parts_there if partial is not None and partial.number == body.number else 0
    return body.change.part == there


def _kept(state: LedgerState, body: LedgerBody, change: Entries, sequence: int) -> LedgerState:
    """Adds one part of a large append."""
    before = state.partial.get(body.session)
    bodies = () if before is None or before.number != body.number else before.bodies
    kept = state.partial.set(body.session, Partial(body.number, bodies + change.bodies, change.part + 1, sequence))
    if len(kept) > PARTIAL_COUNT_MAX:
        kept = kept.delete(next(name for name in sorted(kept) if name != body.session))
    return structs.replace(state, partial=kept)


def _done(state: LedgerState, body: LedgerBody) -> tuple[LedgerState, tuple[bytes, ...]]:
    """Applies a change; returns its entries."""
    change = body.change
    match change:
        case Genesis():
            return state, ()
        case Entries(bodies=bodies):
            partial = state.partial.get(body.session)
            if partial is None:
                return state, bodies
            whole = partial.bodies + bodies if partial.number == body.number else bodies
            return structs.replace(state, partial=state.partial.delete(body.session)), whole[:ENTRIES_COUNT_MAX]
        case Enrol(keys=keys):
            writers = tuple(sorted(dict.fromkeys((*state.writers, *keys))))
            # A full list of writers stays as it is, for every reader alike.
            return (structs.replace(state, writers=writers) if len(writers) <= WRITERS_COUNT_MAX else state), ()
        case Revoke(keys=keys):
            left = tuple(key for key in state.writers if key not in keys)
            # The last writer stays: a ledger that nobody may write to could never be repaired.
            return (structs.replace(state, writers=left) if left else state), ()
        case Cut(upto=upto, base=base):
            is_valid = upto <= state.position and read_base(base) is not None
            return (structs.replace(state, cut=max(state.cut, upto)) if is_valid else state), ()
        case _:
            assert_never(change)


def _marked(state: LedgerState, body: LedgerBody, sequence: int) -> LedgerState:
    for name, partial in sorted(state.partial.items()):
        if partial.sequence < sequence - PARTIAL_AGE_MAX:
            state = structs.replace(state, partial=state.partial.delete(name))
    sessions, floor = state.sessions.set(body.session, SessionMark(body.number, sequence)), state.floor
    if len(sessions) > SESSIONS_COUNT_MAX:
        by_age = sorted(sessions.items(), key=lambda item: item[1].sequence)
        floor = max(floor, by_age[-SESSIONS_KEPT - 1][1].sequence)
        sessions = Map(by_age[-SESSIONS_KEPT:])
    return structs.replace(state, sessions=sessions, floor=floor)


def _moved(state: LedgerState, sequence: int, payload: bytes, counted: str, entries: int = 0) -> LedgerState:
    position = state.position + entries
    counts = structs.replace(state.counts, **{counted: getattr(state.counts, counted) + 1})
    chain = link(state.chain, sequence, position, payload)
    return structs.replace(state, sequence=sequence, position=position, chain=chain, counts=counts)
