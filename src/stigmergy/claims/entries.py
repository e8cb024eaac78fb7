"""Claimants' moves in a ledger, as signed bytes. Verify first, then read.

A record is an entry of the ledger: who signed, the signed body, the signature. Records that are written together share
one signature, and each can still be verified alone. The body names the agent's claim, the life of its node, the number
of the move, and the move. The key determines the claimant: a claimant's id is a digest of key, incarnation and name, so
nobody can ask, release or renew for another node's claimant.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import NamedTuple, assert_never

import msgspec
from blake3 import blake3
from msgspec import Struct

from stigmergy.agents.codec import UNDECODABLE, encode
from stigmergy.base.errors import Malformed

# One signature for many entries: a tree of digests with a signed root, and a path from each entry to the root.
#
# Each entry can be verified by itself, without the others. A verifier that remembers the last signatures computes one
# for a whole batch: they all sign the same statement. A node is the digest of four below it, one block of the hash;
# leaves and nodes have different keys, so neither can pass for the other. Unused leaves are empty.

NODE_BYTES = 16
SEALED_COUNT_MAX = 256
LEVELS_COUNT_MAX = 4
WIDTH = 4
_LEAF_KEY = blake3(b"", derive_key_context="stigmergy 2026 sealed entry of a ledger").digest()
_NODE_KEY = blake3(b"", derive_key_context="stigmergy 2026 sealed entries of a ledger").digest()
_EMPTY = bytes(NODE_BYTES)


def seal(bodies: Sequence[bytes]) -> tuple[bytes, list[bytes]]:
    """The root of a tree over these, and the path of each: from the leaves upward, at each level the three digests
    beside its own. At most SEALED_COUNT_MAX."""
    assert 0 < len(bodies) <= SEALED_COUNT_MAX
    level = [_leaf(body) for body in bodies]
    levels: list[list[bytes]] = []
    while len(level) > 1:
        level += [_EMPTY] * (-len(level) % WIDTH)
        levels.append(level)
        level = [_node(b"".join(level[start : start + WIDTH])) for start in range(0, len(level), WIDTH)]
    paths: list[bytes] = []
    for number in range(len(bodies)):
        index, path = number, b""
        for below in levels:
            index, place = divmod(index, WIDTH)
            family = below[index * WIDTH : index * WIDTH + WIDTH]
            path += b"".join(family[:place] + family[place + 1 :])
        paths.append(path)
    return level[0], paths


def root_of(body: bytes, index: int, path: bytes) -> bytes | None:
    """The root that this entry leads to; None for an impossible path."""
    levels, rest = divmod(len(path), (WIDTH - 1) * NODE_BYTES)
    if rest or levels > LEVELS_COUNT_MAX or not 0 <= index < WIDTH**levels:
        return None
    digest = _leaf(body)
    for start in range(0, len(path), (WIDTH - 1) * NODE_BYTES):
        index, place = divmod(index, WIDTH)
        split = start + place * NODE_BYTES
        digest = _node(path[start:split] + digest + path[split : start + (WIDTH - 1) * NODE_BYTES])
    return digest


def _leaf(body: bytes) -> bytes:
    return blake3(body, key=_LEAF_KEY).digest(NODE_BYTES)


def _node(below: bytes) -> bytes:
    return blake3(below, key=_NODE_KEY).digest(NODE_BYTES)


RECORD_FORMAT = 1
SEALED_FORMAT = 2
RESOURCE_CHARS_MAX = 256
CLAIMANT_CHARS_MAX = 512
FOR_MS_MIN = 50
FOR_MS_MAX = 24 * 3600 * 1000
ROSTER_COUNT_MAX = 64
POOL_COUNT_MAX = 32
"""Resources of one pool."""
KEY_BYTES_MAX = 64
NUMBERS_END = 2**63
ID_BYTES = 16
IDS_COUNT_MAX = 4_096
"""Cached ids, because the same claimants move again and again; more of them are computed again."""
DIGEST_BYTES = 32
_DOMAIN = "stigmergy.claim@1"
_SEALED_DOMAIN = "stigmergy.claims@1"
_CLAIMANT_CONTEXT = "stigmergy 2026 claimant of a ledger"
_WRITER_CONTEXT = "stigmergy 2026 writer of a ledger"

Verify = Callable[[int, bytes, bytes, bytes], bool]
"""Algorithm, public key, statement, signature: whether this key signed exactly these bytes."""


class Ask(Struct, array_like=True, frozen=True, tag=1):
    """Requests a resource: granted if it is free and nobody waits, else refused, or queued if it waits."""

    resource: str
    for_ms: int
    waits: bool = False


class Take(Struct, array_like=True, frozen=True, tag=2):
    """Accepts an offer, named by its position. Only then the claimant holds the resource."""

    resource: str
    offer: int
    for_ms: int


class Renew(Struct, array_like=True, frozen=True, tag=3):
    """Renews the lease from now; the token stays."""

    resource: str
    token: int
    for_ms: int


class Release(Struct, array_like=True, frozen=True, tag=4):
    """Gives up the grant with this token, and no later one."""

    resource: str
    token: int


class Withdraw(Struct, array_like=True, frozen=True, tag=5):
    """Gives up the request: leaves the queue, declines the offer, releases what it may have been granted."""

    resource: str


class Expire(Struct, array_like=True, frozen=True, tag=6):
    """An observer reports that a lease or an offer has run out. `grant` is the position of the entry that began it: a
    renewal meanwhile makes this void."""

    resource: str
    grant: int


class WriterList(Struct, array_like=True, frozen=True, tag=7):
    """From here on only these keys may write. The first list counts with any signature, later ones with a member's."""

    keys: tuple[bytes, ...]


class Checkpointed(Struct, array_like=True, frozen=True, tag=8):
    """The digest of the writer's fold at this position. Changes nothing; a reader with another digest reports it."""

    position: int
    digest: bytes


class AskAny(Struct, array_like=True, frozen=True, tag=9):
    """Requests any one of several resources: granted the first that is free, else refused, or queued for each if it
    waits. A claimant that is offered one of them leaves the other queues."""

    resources: tuple[str, ...]
    for_ms: int
    waits: bool = False


class WithdrawAny(Struct, array_like=True, frozen=True, tag=10):
    """Gives up all of them: leaves every queue, declines the offer, releases what it may have been granted."""

    resources: tuple[str, ...]


Move = Ask | Take | Renew | Release | Withdraw | Expire | WriterList | Checkpointed | AskAny | WithdrawAny


class ClaimBody(Struct, array_like=True, frozen=True):
    """The signed part: a move and its author."""

    incarnation: int
    """Of the node's journal: a restored or cloned journal has its own claimants."""
    life: int
    """Grows with every start of the node. A later life makes void what an earlier one still sends."""
    sequence: int
    """Grows with every entry of a life. One not above the last is a repetition, or too late."""
    claimant: str
    """The name of the claim at its node; empty if the move is the node's own."""
    move: Move


class ClaimRecord(Struct, array_like=True, frozen=True):
    """An entry of the ledger."""

    format: int
    algorithm: int
    key: bytes
    body: bytes
    """The bytes of a ClaimBody."""
    signature: bytes


class SealedRecord(Struct, array_like=True, frozen=True):
    """An entry of the ledger that shares its signature with others."""

    format: int
    algorithm: int
    key: bytes
    body: bytes
    """The bytes of a ClaimBody."""
    signature: bytes
    """Over the root that body, index and path lead to."""
    index: int
    path: bytes


class Written(NamedTuple):
    """A verified record, or one about to be written."""

    key: bytes
    writer: bytes
    claimant: bytes
    life: int
    sequence: int
    move: Move


_record_decoder = msgspec.msgpack.Decoder(ClaimRecord)
_sealed_decoder = msgspec.msgpack.Decoder(SealedRecord)
_body_decoder = msgspec.msgpack.Decoder(ClaimBody)


@lru_cache(maxsize=IDS_COUNT_MAX)
def claimant_id(algorithm: int, key: bytes, incarnation: int, name: str) -> bytes:
    """The id of a claim of this node. Only the owner of the key can write for it."""
    return blake3(encode((algorithm, key, incarnation, name)), derive_key_context=_CLAIMANT_CONTEXT).digest(ID_BYTES)


@lru_cache(maxsize=IDS_COUNT_MAX)
def writer_id(algorithm: int, key: bytes, incarnation: int) -> bytes:
    """The id of a node as a writer, whose lives and sequences are counted together."""
    return blake3(encode((algorithm, key, incarnation)), derive_key_context=_WRITER_CONTEXT).digest(ID_BYTES)


def statement(ledger: str, algorithm: int, key: bytes, body: bytes) -> bytes:
    """The signed bytes. They include the ledger's name: an entry of one ledger is invalid in another."""
    return encode((_DOMAIN, ledger, algorithm, key, body))


def sealed_statement(ledger: str, algorithm: int, key: bytes, root: bytes) -> bytes:
    """The signed bytes if several entries share a signature."""
    return encode((_SEALED_DOMAIN, ledger, algorithm, key, root))


def write_records(
    ledger: str, algorithm: int, key: bytes, bodies: Sequence[ClaimBody], sign: Callable[[bytes], bytes]
) -> list[bytes]:
    """Encodes entries that are written together, with one signature. Raises Malformed for a move that readers would
    refuse."""
    if len(bodies) == 1:
        return [write_record(ledger, algorithm, key, bodies[0], sign)]
    for body in bodies:
        _check(body)
    data = [encode(body) for body in bodies]
    root, paths = seal(data)
    signature = sign(sealed_statement(ledger, algorithm, key, root))
    return [
        encode(SealedRecord(SEALED_FORMAT, algorithm, key, one, signature, index, path))
        for index, (one, path) in enumerate(zip(data, paths, strict=True))
    ]


def write_record(ledger: str, algorithm: int, key: bytes, body: ClaimBody, sign: Callable[[bytes], bytes]) -> bytes:
    """Encodes an entry. Raises Malformed for a move that readers would refuse."""
    _check(body)
    data = encode(body)
    return encode(ClaimRecord(RECORD_FORMAT, algorithm, key, data, sign(statement(ledger, algorithm, key, data))))


def read_record(ledger: str, data: bytes, verify: Verify) -> Written | str:
    """Decodes an entry, or says why it is invalid: `malformed`, `unknown` (a later format) or `forged`."""
    try:
        record = _record_decoder.decode(data)
    except UNDECODABLE:
        return "malformed"
    if record.format not in (RECORD_FORMAT, SEALED_FORMAT):
        return "unknown"
    if len(record.key) > KEY_BYTES_MAX:
        return "malformed"
    signed = _signed(ledger, data, record)
    if signed is None:
        return "malformed"
    if not verify(record.algorithm, record.key, signed, record.signature):
        return "forged"
    try:
        body = _body_decoder.decode(record.body)
    except UNDECODABLE:
        return "malformed"
    if _fault(body):
        return "malformed"
    return Written(
        record.key,
        writer_id(record.algorithm, record.key, body.incarnation),
        claimant_id(record.algorithm, record.key, body.incarnation, body.claimant),
        body.life,
        body.sequence,
        body.move,
    )


def _signed(ledger: str, data: bytes, record: ClaimRecord) -> bytes | None:
    """The bytes that the signature of a record must cover; None if there are none."""
    if record.format == RECORD_FORMAT:
        return statement(ledger, record.algorithm, record.key, record.body)
    try:
        sealed = _sealed_decoder.decode(data)
    except UNDECODABLE:
        return None
    root = root_of(sealed.body, sealed.index, sealed.path)
    return None if root is None else sealed_statement(ledger, record.algorithm, record.key, root)


class ClaimantName(NamedTuple):
    """Who a claimant is, for people."""

    key: bytes
    name: str
    incarnation: int
    """Of the journal that its node had when it wrote the entry."""


def claimant_of(data: bytes) -> tuple[bytes, ClaimantName]:
    """The claimant in a trusted entry."""
    record = _record_decoder.decode(data)
    body = _body_decoder.decode(record.body)
    claimant = claimant_id(record.algorithm, record.key, body.incarnation, body.claimant)
    return claimant, ClaimantName(record.key, body.claimant, body.incarnation)


def _check(body: ClaimBody) -> None:
    if fault := _fault(body):
        raise Malformed(f"{type(body.move).__name__}: {fault}")


def _fault(body: ClaimBody) -> str:
    """Why readers refuse this; empty if they accept it. Part of the fold: changing it is a new format."""
    if min(body.incarnation, body.life, body.sequence) < 0 or body.sequence == 0:
        return "numbers count upward, the sequence from 1"
    if max(body.incarnation, body.life, body.sequence) >= NUMBERS_END:
        return "numbers are below 2**63"
    if len(body.claimant) > CLAIMANT_CHARS_MAX:
        return f"a claimant's name has at most {CLAIMANT_CHARS_MAX} characters"
    match body.move:
        case WriterList(keys=keys):
            if not 0 < len(keys) <= ROSTER_COUNT_MAX or any(not 0 < len(key) <= KEY_BYTES_MAX for key in keys):
                return f"a roster has 1 to {ROSTER_COUNT_MAX} keys"
            return ""
        case Checkpointed(digest=digest):
            return "" if len(digest) == DIGEST_BYTES else f"a digest has {DIGEST_BYTES} bytes"
        case Ask(resource=resource, for_ms=for_ms) | Take(resource=resource, for_ms=for_ms):
            return _resource_fault(resource) or _lease_fault(for_ms)
        case Renew(resource=resource, for_ms=for_ms):
            return _resource_fault(resource) or _lease_fault(for_ms)
        case Release(resource=resource) | Withdraw(resource=resource) | Expire(resource=resource):
            return _resource_fault(resource)
        case AskAny(resources=resources, for_ms=for_ms):
            return _pool_fault(resources) or _lease_fault(for_ms)
        case WithdrawAny(resources=resources):
            return _pool_fault(resources)
        case _:
            assert_never(body.move)


def _resource_fault(resource: str) -> str:
    named = 0 < len(resource) <= RESOURCE_CHARS_MAX
    return "" if named else f"a resource's name has 1 to {RESOURCE_CHARS_MAX} characters"


def _pool_fault(resources: tuple[str, ...]) -> str:
    if not 0 < len(resources) <= POOL_COUNT_MAX or len(dict.fromkeys(resources)) < len(resources):
        return f"a pool has 1 to {POOL_COUNT_MAX} resources, each once"
    return next((fault for fault in map(_resource_fault, resources) if fault), "")


def _lease_fault(for_ms: int) -> str:
    return "" if FOR_MS_MIN <= for_ms <= FOR_MS_MAX else f"a lease lasts {FOR_MS_MIN} to {FOR_MS_MAX} ms"
