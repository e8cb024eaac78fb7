"""The message that makes an object of its pieces: as NATS's own object store writes it, with a digest of ours."""

from __future__ import annotations

import base64
import hashlib
from typing import Any

import msgspec
from blake3 import blake3
from msgspec import Struct, field

from stigmergy.core.errors import StoreForeign
from stigmergy.ports.store import ObjectVersion

DIGEST = "stigmergy-blake3"
MADE = "stigmergy-made-ns"
SHA_PREFIX = "SHA-256="


class ObjectMeta(Struct, omit_defaults=True):
    """As NATS has it. Fields that we do not need are left out, and not minded when they are there."""

    name: str
    bucket: str
    nuid: str
    """Its pieces have this word in their subject."""
    size: int = 0
    chunks: int = 0
    digest: str = ""
    description: str = ""
    mtime: str = ""
    metadata: dict[str, str] = field(default_factory=dict)
    deleted: bool = False
    options: dict[str, Any] = field(default_factory=dict)


class Digests(Struct, frozen=True):
    """Of an object's bytes: ours, and the one that NATS's tools check."""

    blake3_hex: str
    sha256: str


_decoder = msgspec.json.Decoder(ObjectMeta)
encode_meta = msgspec.json.Encoder().encode


def digests_of(data: bytes) -> Digests:
    """Both digests."""
    sha = base64.urlsafe_b64encode(hashlib.sha256(data).digest()).decode()
    return Digests(blake3(data).hexdigest(), SHA_PREFIX + sha)


def decode_meta(bucket: str, data: bytes) -> ObjectMeta:
    """Raises StoreForeign for what is not written as NATS does it."""
    try:
        return _decoder.decode(data)
    except msgspec.MsgspecError as error:
        raise StoreForeign(f"{bucket}: a description of an object that nobody understands: {error}") from None


def version_of(meta: ObjectMeta, sequence: int) -> ObjectVersion:
    """What the port says about it. Raises StoreForeign for an object that another program has put."""
    digest = meta.metadata.get(DIGEST, "")
    if not digest:
        raise StoreForeign(
            f"{meta.bucket}: {meta.name} was put by another program, without a digest of ours; keep it elsewhere"
        )
    made = meta.metadata.get(MADE, "0")
    return ObjectVersion(meta.name, sequence, meta.size, digest, meta.description, int(made) if made.isdecimal() else 0)


def name_token(name: str) -> str:
    """The word of a subject that stands for the name of an object."""
    return base64.urlsafe_b64encode(name.encode()).decode()


def name_of(token: str) -> str:
    """The name that a word stands for."""
    return base64.urlsafe_b64decode(token.encode()).decode()
