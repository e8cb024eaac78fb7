"""What is written into a ledger of users' own, as signed bytes. Verify first, then read. Pure.

A record names the key that has signed it, and holds a body: an entry, or what the ledger itself is told. Records that
are written together share one signature, as those of claims do. The domain differs from theirs, and the ledger's name
is signed: no record is valid in another log.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import msgspec
from msgspec import Struct

from stigmergy.agents.codec import UNDECODABLE, encode
from stigmergy.agents.ledgers import ENTRY_BODY_BYTES_MAX, ID_BYTES_MAX
from stigmergy.claims.entries import KEY_BYTES_MAX, ROSTER_COUNT_MAX, SealedRecord, Verify, root_of, seal

ENTRIES_FORMAT = 1
PROPOSER_CHARS_MAX = 128
PROPOSAL_CHARS_MAX = 256
_DOMAIN = "stigmergy.entries@1"


class EntryBody(Struct, array_like=True, frozen=True, tag=1):
    """An entry."""

    proposal: str
    """Names this proposal, the same however often it is written: the second of one proposal is a repetition."""
    proposer: str
    id: str
    entry: bytes


class EntryWriters(Struct, array_like=True, frozen=True, tag=2):
    """From here on only these keys may write. The first list counts with any signature, later ones with a member's."""

    keys: tuple[bytes, ...]


class EntriesStored(Struct, array_like=True, frozen=True, tag=3):
    """A checkpoint is stored, and what is before is cut off up to a position."""

    position: int
    cut: int
    """0: nothing is."""


Body = EntryBody | EntryWriters | EntriesStored
_record_decoder = msgspec.msgpack.Decoder(SealedRecord)
_body_decoder: msgspec.msgpack.Decoder[Body] = msgspec.msgpack.Decoder(Body)


def statement(ledger: str, algorithm: int, key: bytes, root: bytes) -> bytes:
    """The signed bytes of records that were written together."""
    return encode((_DOMAIN, ledger, algorithm, key, root))


def write_records(
    ledger: str, algorithm: int, key: bytes, bodies: Sequence[Body], sign: Callable[[bytes], bytes]
) -> list[bytes]:
    """Encodes bodies that are written together, with one signature."""
    data = [encode(body) for body in bodies]
    root, paths = seal(data)
    signature = sign(statement(ledger, algorithm, key, root))
    return [
        encode(SealedRecord(ENTRIES_FORMAT, algorithm, key, one, signature, index, path))
        for index, (one, path) in enumerate(zip(data, paths, strict=True))
    ]


def read_record(ledger: str, data: bytes, verify: Verify) -> tuple[bytes, Body] | str:
    """The key that has signed a record, and its body; or why it is invalid: `malformed`, `unknown` (a later format) or
    `forged`."""
    try:
        record = _record_decoder.decode(data)
    except UNDECODABLE:
        return "malformed"
    if record.format != ENTRIES_FORMAT:
        return "unknown"
    root = root_of(record.body, record.index, record.path)
    if root is None or len(record.key) > KEY_BYTES_MAX:
        return "malformed"
    if not verify(
        record.algorithm, record.key, statement(ledger, record.algorithm, record.key, root), record.signature
    ):
        return "forged"
    body = read_body(record.body)
    return "malformed" if body is None else (record.key, body)


def read_body(data: bytes) -> Body | None:
    """Decodes a body; None for one that readers refuse. Part of the fold: changing it is a new format."""
    try:
        body = _body_decoder.decode(data)
    except UNDECODABLE:
        return None
    match body:
        case EntryBody():
            fits = 0 < len(body.id.encode()) <= ID_BYTES_MAX and len(body.entry) <= ENTRY_BODY_BYTES_MAX
            named = 0 < len(body.proposal) <= PROPOSAL_CHARS_MAX and len(body.proposer) <= PROPOSER_CHARS_MAX
            return body if fits and named else None
        case EntryWriters(keys=keys):
            fits = 0 < len(keys) <= ROSTER_COUNT_MAX and all(0 < len(key) <= KEY_BYTES_MAX for key in keys)
            return body if fits else None
        case EntriesStored(position=position, cut=cut):
            return body if 0 <= cut <= position else None


# Entries as people and programs outside the fleet see them.


class EntriesStatus(Struct, frozen=True):
    """A node's view of a ledger of users' own."""

    ledger: str
    why: str
    """Why it is out of reach, or no longer trusted; empty: it is well."""
    position: int
    entries: int
    waiting: int
    """Proposals without an outcome."""
    behind: int
    """How many positions the last subscriber here is behind."""


class ShownEntry(Struct, frozen=True):
    """An entry."""

    position: int
    id: str
    type: str
    entry: dict[str, Any]
    proposer: str
    writer: str
    """The key of the node that has entered it, as hex digits."""


class ShownLedger(Struct, frozen=True):
    """Entries of a ledger, in order."""

    ledger: str
    entries: list[ShownEntry]
    position: int
    """How far this node has read it: ask again behind the last entry, or behind this where there is none."""
