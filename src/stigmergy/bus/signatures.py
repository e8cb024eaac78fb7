"""Signatures of messages on a bus: what is signed, and how a message carries it. docs/signatures.md is the manual.

Messages are signed in batches: the leaves of a tree are digests of messages, and its root is signed once. Each message
carries a `BusProof`: who signed, with which key, the signature of the root, and the way from the message to it. So a
receiver checks one signature for all messages of a batch, and for each message a few digests.

A digest covers the topic, which begins with fleet and site, and the payload; and of a CloudEvent in binary form its
attributes, which are properties. So a message is worth nothing on another topic. The proof is part of the message:

    a CloudEvent as JSON     its last attribute `nodesignature`; what is signed is the text without it
    a CloudEvent in binary   a property of that name
    everything else          bytes behind the payload: the proof, its length in two bytes, `TRAILER`

`read_signed` takes the proof off again. Verify before anything looks at the rest.
"""

from __future__ import annotations

from binascii import Error as Base64Error
from binascii import a2b_base64, b2a_base64
from collections.abc import Callable, Sequence

from blake3 import blake3
from msgspec import Struct

from stigmergy.base.errors import Malformed
from stigmergy.base.trust import Signer
from stigmergy.bus.cloudevents import STRUCTURED
from stigmergy.bus.port import BusMessage

ATTRIBUTE = "nodesignature"
TRAILER = b"\xc1stgsig1"
"""No MessagePack ends or goes on with its first byte."""
LEAVES_MAX = 64
"""Messages under one signature. More would make proofs longer and save little: a signature costs as much as some forty
digests, and each doubling costs every message one more digest and 32 bytes."""
PATH_MAX = 6
"""The way up from one of so many leaves."""
SIGNER_BYTES_MAX = 255
PROOF_BYTES_MAX = 1_024
DIGEST_BYTES = 32
LEFT = bytes(DIGEST_BYTES)
"""Stands for a leaf that there is not: no message has this digest."""
DOMAIN = b"stigmergy.bus@1\x00"
_LEAF = blake3(b"", derive_key_context="stigmergy 2026 message on a bus").digest()
_NODE = blake3(b"", derive_key_context="stigmergy 2026 two digests of messages on a bus").digest()
_FORMAT = 1
_PASSING = 1
"""The flag of a key that lives no longer than its process."""
_SLOT = f',"{ATTRIBUTE}":"'.encode()
_TAIL = len(TRAILER) + 2
_TEXT_MAX = len(_SLOT) + 4 * PROOF_BYTES_MAX // 3 + 8


class Identity(Struct, frozen=True):
    """Who signs: the name of a node is `fleet/site/node`, as in topics; of a client `clients/name`."""

    name: str
    signer: Signer
    is_passing: bool = False
    """Whether its key ends with the process: a node without a key file."""


class BusProof(Struct, frozen=True):
    """That a message is one of those that were signed together."""

    signer: str
    is_passing: bool
    algorithm: int
    key: bytes
    signature: bytes
    index: int
    """The place of the message among the leaves."""
    path: tuple[bytes, ...]
    """Each sibling on the way up."""

    def statement(self, message: BusMessage) -> bytes:
        """What must have been signed, for this proof to be one of this message."""
        digest = digest_of(message)
        index = self.index
        for sibling in self.path:
            digest = _join(sibling, digest) if index & 1 else _join(digest, sibling)
            index >>= 1
        return _statement(self.signer, self.is_passing, digest)


def sign_batch(messages: Sequence[BusMessage], me: Identity) -> list[BusMessage]:
    """The same messages, at most `LEAVES_MAX`, each with its proof. Raises Malformed for one that cannot carry it."""
    levels = [[digest_of(message) for message in messages]]
    while len(levels[-1]) > 1:
        below = levels[-1]
        if len(below) & 1:
            below.append(LEFT)
        levels.append([_join(below[at], below[at + 1]) for at in range(0, len(below), 2)])
    signature = me.signer.sign(_statement(me.name, me.is_passing, levels[-1][0]))
    head = _head(me, signature)
    signed: list[BusMessage] = []
    for index, message in enumerate(messages):
        path = b"".join(level[(index >> height) ^ 1] for height, level in enumerate(levels[:-1]))
        signed.append(_with_proof(message, head + bytes((index,)) + path))
    return signed


def read_signed(message: BusMessage) -> tuple[BusMessage, BusProof | None]:
    """The message without its proof, and the proof; None if it has none. Raises Malformed for an unreadable one."""
    bare, written = _split(message)
    if written is None:
        return bare, None
    return bare, read_proof(written if isinstance(written, bytes) else _from_base64(written))


def without_proof(message: BusMessage) -> BusMessage:
    """The message as it was published, verified or not. Raises Malformed."""
    return _split(message)[0]


def _split(message: BusMessage) -> tuple[BusMessage, bytes | str | None]:
    """The message and its proof, which is in base64 if it is a text."""
    payload = message.payload
    if payload.endswith(b'"}') and (at := payload.rfind(_SLOT, max(0, len(payload) - _TEXT_MAX))) > 0:
        text = payload[at + len(_SLOT) : -2].decode("latin-1")
        return _other(message, payload[:at] + b"}", message.properties), text
    if payload.endswith(TRAILER):
        end = len(payload) - _TAIL
        begin = end - int.from_bytes(payload[end : end + 2], "big") if end > 0 else -1
        if begin < 0:
            raise Malformed("the signature behind the payload has an impossible length")
        return _other(message, payload[:begin], message.properties), payload[begin:end]
    for name, value in message.properties:
        if name == ATTRIBUTE:
            others = tuple(pair for pair in message.properties if pair[0] != ATTRIBUTE)
            return _other(message, payload, others), value
    return message, None


def read_proof(data: bytes) -> BusProof:
    """Reads a proof; every proof has one spelling. Raises Malformed."""
    parts: list[bytes] = []
    at = 3
    try:
        form, flags, algorithm = data[0], data[1], data[2]
        for _ in ("signer", "key", "signature"):
            size = data[at]
            parts.append(data[at + 1 : at + 1 + size])
            at += 1 + size
        index, path = data[at], data[at + 1 :]
        signer = parts[0].decode("ascii")
    except (IndexError, UnicodeDecodeError):
        raise Malformed("the signature is cut off or damaged") from None
    height, rest = divmod(len(path), DIGEST_BYTES)
    if form != _FORMAT or flags & ~_PASSING:
        raise Malformed("the signature is of a format that this version does not know")
    if rest or height > PATH_MAX or index >> height or not signer.isprintable():
        raise Malformed("the signature does not fit the tree of a batch")
    siblings = tuple(path[begin : begin + DIGEST_BYTES] for begin in range(0, len(path), DIGEST_BYTES))
    return BusProof(signer, bool(flags), algorithm, parts[1], parts[2], index, siblings)


def digest_of(message: BusMessage) -> bytes:
    """The digest of what a signature covers: topic, payload, and the attributes of a CloudEvent in binary form.

    Other properties are not covered, because MQTT 3.1.1 drops them, and nothing here reads them. Whether a message is
    such a CloudEvent is decided as `read_event` does it.
    """
    topic = message.topic.encode()
    parts = [len(topic).to_bytes(2, "big"), topic, len(message.payload).to_bytes(4, "big"), message.payload]
    if is_binary_event(message):
        for text in (message.content_type, *(text for pair in message.properties for text in pair)):
            data = text.encode()
            parts += (len(data).to_bytes(4, "big"), data)
    return blake3(b"".join(parts), key=_LEAF).digest()


def is_binary_event(message: BusMessage) -> bool:
    """Whether this is a CloudEvent whose attributes are properties."""
    if not message.properties or message.content_type.partition(";")[0].strip().lower() == STRUCTURED:
        return False
    return any(name == "specversion" for name, _ in message.properties)


Verify = Callable[[int, bytes, bytes, bytes], bool]
"""Algorithm, public key, statement, signature: as the Verifier port."""


class CheckedRoots:
    """Signatures of roots that were found right: each is checked once for all messages of its batch."""

    def __init__(self, verify: Verify, count_max: int) -> None:
        self._verify = verify
        self._count_max = count_max
        self._right: dict[bytes, None] = {}

    def is_signed(self, message: BusMessage, proof: BusProof) -> bool:
        """Whether the key in the proof has signed this message under the name in the proof."""
        statement = proof.statement(message)
        # The parts in front have a fixed length for each algorithm, or say it: no two proofs have one of these texts.
        known = b"".join((proof.algorithm.to_bytes(1, "big"), proof.key, proof.signature, statement))
        if known in self._right:
            return True
        if not self._verify(proof.algorithm, proof.key, statement, proof.signature):
            return False
        if len(self._right) >= self._count_max:
            del self._right[next(iter(self._right))]
        self._right[known] = None
        return True


def _statement(signer: str, is_passing: bool, root: bytes) -> bytes:
    name = signer.encode("ascii")
    return b"".join((DOMAIN, bytes((is_passing, len(name))), name, root))


def _head(me: Identity, signature: bytes) -> bytes:
    parts = [bytes((_FORMAT, _PASSING if me.is_passing else 0, me.signer.algorithm))]
    for part in (me.name.encode("ascii"), me.signer.public_key, signature):
        parts += (bytes((len(part),)), part)
    return b"".join(parts)


def _join(left: bytes, right: bytes) -> bytes:
    return blake3(left + right, key=_NODE).digest()


def _with_proof(message: BusMessage, proof: bytes) -> BusMessage:
    payload = message.payload
    if message.content_type == STRUCTURED:
        if not payload.endswith(b"}") or len(payload) < len(b'{"":0}'):
            raise Malformed(f"{message.topic}: a CloudEvent that is no JSON object cannot be signed")
        text = b2a_base64(proof, newline=False)
        return _other(message, b"".join((payload[:-1], _SLOT, text, b'"}')), message.properties)
    if is_binary_event(message):
        carried = (ATTRIBUTE, b2a_base64(proof, newline=False).decode())
        return _other(message, payload, (*message.properties, carried))
    return _other(message, b"".join((payload, proof, len(proof).to_bytes(2, "big"), TRAILER)), message.properties)


def _other(message: BusMessage, payload: bytes, properties: tuple[tuple[str, str], ...]) -> BusMessage:
    return BusMessage(message.topic, payload, message.content_type, properties, message.retained)


def _from_base64(text: str) -> bytes:
    try:
        data = a2b_base64(text, strict_mode=True)
    except (Base64Error, ValueError):
        raise Malformed("the signature is not base64") from None
    if b2a_base64(data, newline=False).decode() != text:
        raise Malformed("the signature is base64 in another spelling")
    return data
