"""Sealed blobs: only their reader opens them, the store has nothing plain, and what was changed is refused."""

import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as draw
from nacl import bindings

from stigmergy.agents.messages import Blob
from stigmergy.base.errors import ConfigError, StoreCorrupt
from stigmergy.base.system import SystemClock, SystemThreads
from stigmergy.keys.ed25519 import Ed25519Signer
from stigmergy.store.blobs import Blobs, BlobSettings
from stigmergy.store.folder import FolderStore
from stigmergy.store.port import Objects
from stigmergy.store.sealed import (
    CHUNK_BYTES,
    HEAD_BYTES,
    MAGIC,
    MEDIA_TYPE,
    SEALED_CHUNK_BYTES,
    SEED_BYTES,
    Opener,
    Sealer,
)

SEED, OTHER = bytes(range(32)), bytes(range(1, 33))
READER = Ed25519Signer(SEED).public_key
SECRET = b"the licence plate was B-GH 4711 "


def blobs_in(folder: Path) -> Blobs:
    async def opened() -> Objects:
        return await FolderStore(folder, SystemClock()).objects("blobs")

    return Blobs("here", opened, opened, SystemClock(), SystemThreads(), BlobSettings(patience_s=0.01))


def files_in(folder: Path) -> list[bytes]:
    return [path.read_bytes() for path in folder.rglob("*") if path.is_file()]


def sealed(data: bytes) -> bytes:
    sealer = Sealer(READER, os.urandom(SEED_BYTES))
    chunks = [data[first : first + CHUNK_BYTES] for first in range(0, len(data), CHUNK_BYTES)] or [b""]
    parts = [sealer.seal(chunk, is_last=number == len(chunks)) for number, chunk in enumerate(chunks, start=1)]
    return sealer.head + b"".join(parts)


def opened(data: bytes, seed: bytes = SEED) -> bytes:
    opener = Opener(seed, "it")
    return b"".join([*opener.open(data), opener.end()])


@pytest.mark.parametrize("size", [0, 1, 1000, CHUNK_BYTES - 1, CHUNK_BYTES, CHUNK_BYTES + 1, 3 * CHUNK_BYTES])
async def test_what_is_put_for_a_reader_comes_back_and_no_stored_byte_is_plain(tmp_path: Path, size: int) -> None:
    data = (SECRET * (size // len(SECRET) + 1))[:size]
    blobs = blobs_in(tmp_path)
    blob = await blobs.put(data, media_type="image/jpeg", reader=READER)
    assert blob.media_type == f"{MEDIA_TYPE}; of=image/jpeg"
    assert await blobs.open(blob, SEED) == data
    again = await blobs.put(data, reader=READER.hex())
    assert again.digest != blob.digest, "nobody sees that two are the same"
    stored = files_in(tmp_path)
    assert stored
    assert not any(SECRET in one for one in stored)
    assert await blobs.fetch(blob) != data


async def test_another_reader_gets_nothing_and_a_plain_blob_is_not_opened(tmp_path: Path) -> None:
    blobs = blobs_in(tmp_path)
    blob = await blobs.put(SECRET, reader=READER)
    with pytest.raises(ConfigError, match="sealed for another reader"):
        await blobs.open(blob, OTHER)
    for plain in (b"", SECRET, SECRET * 100):
        with pytest.raises(StoreCorrupt, match="no sealed blob"):
            await blobs.open(await blobs.put(plain), SEED)
    for wrong in (b"", bytes(32), "not hex", READER[:31], 7):
        with pytest.raises(ConfigError, match="public key"):
            await blobs.put(SECRET, reader=wrong)  # type: ignore[arg-type]


@given(draw.integers(0, HEAD_BYTES + 2 * SEALED_CHUNK_BYTES + 40), draw.integers(1, 255))
def test_a_changed_byte_is_found(place: int, change: int) -> None:
    data = bytearray(SEALED)
    data[place % len(data)] ^= change
    with pytest.raises((StoreCorrupt, ConfigError)):
        opened(bytes(data))


SEALED = sealed(bytes(2 * CHUNK_BYTES + 24))


@pytest.mark.parametrize(
    "length", [0, 10, HEAD_BYTES, HEAD_BYTES + SEALED_CHUNK_BYTES, HEAD_BYTES + 2 * SEALED_CHUNK_BYTES]
)
def test_what_was_cut_off_between_chunks_is_found(length: int) -> None:
    with pytest.raises(StoreCorrupt):
        opened(SEALED[:length])


def test_chunks_in_another_order_or_of_another_blob_are_found() -> None:
    head, first, second = (
        SEALED[:HEAD_BYTES],
        SEALED[HEAD_BYTES : HEAD_BYTES + SEALED_CHUNK_BYTES],
        SEALED[HEAD_BYTES + SEALED_CHUNK_BYTES : HEAD_BYTES + 2 * SEALED_CHUNK_BYTES],
    )
    rest = SEALED[HEAD_BYTES + 2 * SEALED_CHUNK_BYTES :]
    for wrong in (head + second + first + rest, head + first + first + rest, sealed(b"x")[:HEAD_BYTES] + first):
        with pytest.raises(StoreCorrupt):
            opened(wrong)


@given(draw.binary(max_size=2_000), draw.integers(1, 300))
def test_it_opens_in_pieces_of_any_size(data: bytes, size: int) -> None:
    opener, kept = Opener(SEED, "it"), sealed(data)
    found = [one for first in range(0, len(kept), size) for one in opener.open(kept[first : first + size])]
    assert b"".join([*found, opener.end()]) == data


def test_the_key_in_front_is_a_sealed_box_as_libsodium_makes_it() -> None:
    public = bindings.crypto_sign_ed25519_pk_to_curve25519(READER)
    _, secret = bindings.crypto_sign_seed_keypair(SEED)
    seed = os.urandom(SEED_BYTES)
    head = Sealer(READER, seed).head
    box = head[len(MAGIC) :]
    assert (
        bindings.crypto_box_seal_open(box, public, bindings.crypto_sign_ed25519_sk_to_curve25519(secret)) == seed[32:]
    )
    assert Sealer(READER, seed).head == head, "the same random bytes, the same blob: a simulation repeats"


def test_a_blob_is_a_reference_like_any_other() -> None:
    assert Blob(bytes(32), 1, MEDIA_TYPE).hex == "00" * 32
