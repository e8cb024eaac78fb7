"""Messages of anti-entropy and their bytes. Pure. docs/formats.md describes every field.

The first byte of a datagram says what it is:

    11  a change   signed by its author, forwarded unchanged
    12  a message  signed by its sender
    13  a part     of a body that is too long for a datagram; unsigned, the whole is checked
    14  an acknowledgement, unsigned: a false one only delays what digests repair anyway

MessagePack in its shortest form follows, and nothing after it: anything but exactly the bytes that we would write is
refused (BadMessage), so nothing that was changed in transit can pass for the same.
"""

from __future__ import annotations

from typing import Annotated, Any

import msgspec
from blake3 import blake3
from msgspec import Meta, Struct

from stigmergy.crdt.anti_entropy.authorship import OBJECT_BYTES
from stigmergy.crdt.anti_entropy.rules import KIB, OBJECTS_COUNT_MAX
from stigmergy.crdt.bounds import COUNTER_MAX, DELTA_BYTES_MAX, REPLICAS_COUNT_HARD_MAX, STORE_BYTES_MAX
from stigmergy.crdt.causality import Counter, Replica
from stigmergy.crdt.errors import CrdtError

CHANGE = 0x11
MESSAGE = 0x12
PART = 0x13
ACKNOWLEDGEMENT = 0x14
DIGEST_BYTES = 16
SHORT_DIGEST_BYTES = 8
KEY_BYTES_MAX = 1_024
ADDRESS_CHARS_MAX = 512
NODE_CHARS_MAX = 64
PARTS_COUNT_MAX = 1 << 20
ASKED_COUNT_MAX = 256
DIGESTS_COUNT_MAX = 1_024
SHOWN_COUNT_MAX = 64
"""Signed changes that are named to a peer at a time."""
PROOFS_COUNT_MAX = 64
"""Authors whose lies are kept as proofs, and told of."""
NAME_CHARS_MAX = 4_096
PROVEN_BYTES_MAX = DELTA_BYTES_MAX + 4 * KIB
NOT_SORTED = "a vector that is not sorted, or counts from 0"
_BODY_CONTEXT = "stigmergy 2026 body in parts"

_Object = Annotated[bytes, Meta(min_length=OBJECT_BYTES, max_length=OBJECT_BYTES)]
_Digest = Annotated[bytes, Meta(min_length=DIGEST_BYTES, max_length=DIGEST_BYTES)]
_ShortDigest = Annotated[bytes, Meta(min_length=SHORT_DIGEST_BYTES, max_length=SHORT_DIGEST_BYTES)]
_Key = Annotated[bytes, Meta(max_length=KEY_BYTES_MAX)]
_Number = Annotated[int, Meta(ge=0, le=COUNTER_MAX)]
_PartNumber = Annotated[int, Meta(ge=0, lt=PARTS_COUNT_MAX)]
_Vector = Annotated[tuple[tuple[Replica, Counter], ...], Meta(max_length=REPLICAS_COUNT_HARD_MAX)]


class BadMessage(CrdtError):
    """Bytes that are no message of anti-entropy: a peer's fault, refuse and count it."""


class Change(Struct, frozen=True, array_like=True):
    """Changes of one replica to one object, as their author signed them."""

    algorithm: Annotated[int, Meta(ge=0, lt=256)]
    key: _Key
    incarnation: _Number
    address: Annotated[str, Meta(max_length=ADDRESS_CHARS_MAX)]
    object: _Object
    delta: Annotated[bytes, Meta(max_length=DELTA_BYTES_MAX)]
    signature: _Key


class SignedMessage(Struct, frozen=True, array_like=True):
    """A message and who says it."""

    algorithm: Annotated[int, Meta(ge=0, lt=256)]
    key: _Key
    node: Annotated[str, Meta(max_length=NODE_CHARS_MAX)]
    body: Annotated[bytes, Meta(max_length=STORE_BYTES_MAX)]
    signature: _Key


class BodyPart(Struct, frozen=True, array_like=True):
    """A piece of a body that was offered."""

    body: _Digest
    number: _PartNumber
    piece: bytes


class Acknowledged(Struct, frozen=True, array_like=True):
    """These changes of one object, and all before them, are durable at the sender."""

    object: _Object
    vector: _Vector


class Interests(Struct, frozen=True, array_like=True, tag=1):
    """All objects that the sender holds."""

    objects: Annotated[bytes, Meta(max_length=OBJECT_BYTES * OBJECTS_COUNT_MAX)]
    """Their ids, sorted, one behind the other."""


class Digests(Struct, frozen=True, array_like=True, tag=2):
    """What the sender holds of objects that both hold."""

    mine: _ShortDigest
    """Of the sender's interests."""
    yours: _ShortDigest
    """Of the receiver's interests, as the sender knows them; if they are others, it is told."""
    stores: Annotated[tuple[tuple[_Object, _Digest], ...], Meta(max_length=DIGESTS_COUNT_MAX)]


class Vectors(Struct, frozen=True, array_like=True, tag=3):
    """Which changes of one object are durable at the sender."""

    object: _Object
    digest: _Digest
    """Of the store."""
    vector: _Vector
    """Without the retired."""
    retired_count: _Number
    retired: _ShortDigest
    """Of the retired replicas and their counters; zeros for none."""
    answer: Annotated[int, Meta(ge=0, le=2)]
    """Whether the sender wants to be told the vector of the receiver: 0 no, 1 yes, 2 with the retired named."""


class BodyOffer(Struct, frozen=True, array_like=True, tag=4):
    """A body that is too long for a datagram is there to be fetched."""

    body: _Digest
    size_bytes: Annotated[int, Meta(ge=1, le=STORE_BYTES_MAX)]
    part_bytes: Annotated[int, Meta(ge=256, le=65_536)]
    about: _Object
    """Of several states of one object that are offered, one is fetched. Zeros for anything else."""


class FetchParts(Struct, frozen=True, array_like=True, tag=5):
    """Asks for parts of a body."""

    body: _Digest
    parts: Annotated[tuple[_PartNumber, ...], Meta(max_length=ASKED_COUNT_MAX)]


class FullState(Struct, frozen=True, array_like=True, tag=6):
    """All that the sender holds of an object. Hearsay: what of it others wrote, only the sender vouches for."""

    object: _Object
    store: Annotated[bytes, Meta(max_length=STORE_BYTES_MAX)]


class Shown(Struct, frozen=True, array_like=True, tag=7):
    """Some of the signed changes of an object that the sender keeps: it looks for others under their numbers."""

    object: _Object
    changes: Annotated[tuple[tuple[Replica, Counter, Counter, _Digest], ...], Meta(max_length=SHOWN_COUNT_MAX)]
    """Replica, first, last, and the digest of the delta."""


class Proof(Struct, frozen=True, array_like=True, tag=8):
    """Two different changes under one number, both signed by one author."""

    name: Annotated[str, Meta(max_length=NAME_CHARS_MAX)]
    """Of the object, which the receiver may not hold."""
    one: Annotated[bytes, Meta(max_length=PROVEN_BYTES_MAX)]
    other: Annotated[bytes, Meta(max_length=PROVEN_BYTES_MAX)]
    """Both as they travel, with their first byte."""


class Caught(Struct, frozen=True, array_like=True, tag=9):
    """Whose lies are proven to the sender."""

    keys: Annotated[tuple[_ShortDigest, ...], Meta(max_length=PROOFS_COUNT_MAX)]
    """Digests of the authors' keys, sorted."""


AntiEntropyMessage = Interests | Digests | Vectors | BodyOffer | FetchParts | FullState | Shown | Proof | Caught
AntiEntropyFrame = Change | SignedMessage | BodyPart | Acknowledged

_encode = msgspec.msgpack.Encoder().encode
_message_decoder: msgspec.msgpack.Decoder[AntiEntropyMessage] = msgspec.msgpack.Decoder(AntiEntropyMessage)
_decoders: dict[int, msgspec.msgpack.Decoder[Any]] = {
    CHANGE: msgspec.msgpack.Decoder(Change),
    MESSAGE: msgspec.msgpack.Decoder(SignedMessage),
    PART: msgspec.msgpack.Decoder(BodyPart),
    ACKNOWLEDGEMENT: msgspec.msgpack.Decoder(Acknowledged),
}
_KINDS: dict[type, bytes] = {
    Change: bytes([CHANGE]),
    SignedMessage: bytes([MESSAGE]),
    BodyPart: bytes([PART]),
    Acknowledged: bytes([ACKNOWLEDGEMENT]),
}
_UNDECODABLE = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)


def write_frame(frame: AntiEntropyFrame) -> bytes:
    """The bytes that travel."""
    return _KINDS[type(frame)] + _encode(frame)


def read_frame(data: bytes) -> AntiEntropyFrame:
    """The frame in these bytes. Raises BadMessage."""
    decoder = _decoders.get(data[0]) if data else None
    if decoder is None:
        raise BadMessage(f"a datagram that begins with {data[:1].hex() or 'nothing'}; of another version, or not ours")
    try:
        frame: AntiEntropyFrame = decoder.decode(memoryview(data)[1:])
    except _UNDECODABLE as error:
        raise BadMessage(f"a datagram that does not decode: {error}") from None
    if _encode(frame) != data[1:]:
        raise BadMessage("a datagram that is not in its shortest form")
    if isinstance(frame, Acknowledged) and not _is_sorted(frame.vector):
        raise BadMessage(NOT_SORTED)
    return frame


def write_message(message: AntiEntropyMessage) -> bytes:
    """The bytes that are signed."""
    return _encode(message)


def read_message(body: bytes) -> AntiEntropyMessage:
    """The message in these bytes. Raises BadMessage."""
    try:
        message = _message_decoder.decode(body)
    except _UNDECODABLE as error:
        raise BadMessage(f"a message that does not decode: {error}") from None
    if isinstance(message, Interests) and len(message.objects) % OBJECT_BYTES:
        raise BadMessage("interests that end in the middle of an object")
    if isinstance(message, Vectors) and not _is_sorted(message.vector):
        raise BadMessage(NOT_SORTED)
    return message


def body_digest(body: bytes) -> bytes:
    """What names a body that travels in parts, and proves that it is whole."""
    return blake3(body, derive_key_context=_BODY_CONTEXT).digest(length=DIGEST_BYTES)


def _is_sorted(vector: tuple[tuple[bytes, int], ...]) -> bool:
    before = b""
    for replica, counter in vector:
        if replica <= before or counter < 1:
            return False
        before = replica
    return True
