"""Sealed blobs: bytes that only the holder of a named private key can read. Pure: random bytes are handed in.

    blob = await blobs.put(photo, reader=public_key)        # the store has only what is sealed
    photo = await blobs.open(blob, seed)                    # with the private half

The reader is named by an Ed25519 public key, as `stigmergy keys` makes them, and read by the X25519 key that belongs to
it. A fresh key of 32 bytes seals the content, in chunks of up to 1 MiB (ChaCha20-Poly1305); it stands in front in a
libsodium *sealed box* for the reader. Each chunk is bound to its place, the last one to being the last: chunks that are
missing, swapped or cut off are refused. Nobody is named as the sender: what is said of a blob is signed in the log that
refers to it. docs/formats.md has the bytes.
"""

from __future__ import annotations

from collections.abc import Iterator

from nacl import bindings
from nacl.exceptions import CryptoError

from stigmergy.base.errors import ConfigError, StoreCorrupt

MAGIC = b"stigmergy-sealed-1\n"
KEY_BYTES = 32
SEED_BYTES = 2 * KEY_BYTES
"""Random bytes for one blob: for the key of the sealed box, and for that of the content."""
HEAD_BYTES = len(MAGIC) + KEY_BYTES + bindings.crypto_box_SEALBYTES
CHUNK_BYTES = 1024 * 1024
TAG_BYTES = bindings.crypto_aead_chacha20poly1305_ietf_ABYTES
SEALED_CHUNK_BYTES = CHUNK_BYTES + TAG_BYTES
MEDIA_TYPE = "application/vnd.stigmergy.sealed"
"""The media type of a sealed blob, with that of its content behind it."""
_NONCE_BYTES = 24
_COUNTER_BYTES = bindings.crypto_aead_chacha20poly1305_ietf_NPUBBYTES - 1


class Sealer:
    """Seals one content for one reader: `head`, then the chunks in order, the last one with `is_last`."""

    def __init__(self, reader: object, seed: bytes) -> None:
        """`seed` are fresh random bytes, never used twice. Raises ConfigError for what is no public key."""
        own, self._key = seed[:KEY_BYTES], seed[KEY_BYTES:SEED_BYTES]
        to = _public_half(reader)
        public, secret = bindings.crypto_box_seed_keypair(own)
        nonce = bindings.crypto_generichash_blake2b_salt_personal(public + to, digest_size=_NONCE_BYTES)
        self.head = MAGIC + public + bindings.crypto_box(self._key, nonce, to, secret)
        self._count = 0

    def seal(self, chunk: bytes, *, is_last: bool) -> bytes:
        """The next chunk. All but the last have CHUNK_BYTES."""
        nonce, self._count = _nonce(self._count, is_last), self._count + 1
        return bindings.crypto_aead_chacha20poly1305_ietf_encrypt(chunk, self.head, nonce, self._key)


class Opener:
    """Opens what was sealed: give it all bytes in order, then `end`."""

    def __init__(self, seed: bytes, name: str) -> None:
        """`seed` is that of the reader's private key; `name` is what the blob is called in errors."""
        public, secret = bindings.crypto_sign_seed_keypair(seed)
        self._public = bindings.crypto_sign_ed25519_pk_to_curve25519(public)
        self._secret = bindings.crypto_sign_ed25519_sk_to_curve25519(secret)
        self._name = name
        self._held = bytearray()
        self._head = self._key = b""
        self._count = 0

    def open(self, data: bytes) -> Iterator[bytes]:
        """What is plain so far. Raises StoreCorrupt for what was changed, ConfigError for another reader's."""
        self._held += data
        if not self._key:
            if len(self._held) < HEAD_BYTES:
                return
            self._read_head()
        # One byte more than a chunk says that it is not the last.
        while len(self._held) > SEALED_CHUNK_BYTES:
            yield self._chunk(SEALED_CHUNK_BYTES, is_last=False)

    def end(self) -> bytes:
        """The rest, when all bytes were given. Raises StoreCorrupt if some are missing."""
        if not self._key:
            raise StoreCorrupt(f"{self._name}: this is no sealed blob, or only its beginning")
        return self._chunk(len(self._held), is_last=True)

    def _read_head(self) -> None:
        self._head = bytes(self._held[:HEAD_BYTES])
        del self._held[:HEAD_BYTES]
        if not self._head.startswith(MAGIC):
            raise StoreCorrupt(f"{self._name}: this is no sealed blob; fetch it without a key")
        try:
            box = self._head[len(MAGIC) :]
            self._key = bindings.crypto_box_seal_open(box, self._public, self._secret)
        except CryptoError:
            raise ConfigError(f"{self._name}: sealed for another reader; give the private key of that one") from None

    def _chunk(self, size_bytes: int, *, is_last: bool) -> bytes:
        chunk = bytes(self._held[:size_bytes])
        del self._held[:size_bytes]
        nonce, self._count = _nonce(self._count, is_last), self._count + 1
        try:
            return bindings.crypto_aead_chacha20poly1305_ietf_decrypt(chunk, self._head, nonce, self._key)
        except (CryptoError, ValueError):
            raise StoreCorrupt(
                f"{self._name}: chunk {self._count} was changed, moved or cut off; whoever has the content should seal "
                "it again"
            ) from None


def sealed_media_type(media_type: str) -> str:
    """The media type of a sealed blob with content of this type."""
    return f"{MEDIA_TYPE}; of={media_type}"


def is_sealed(media_type: str) -> bool:
    """Whether a blob of this media type is sealed."""
    return media_type.partition(";")[0].strip() == MEDIA_TYPE


def _nonce(count: int, is_last: bool) -> bytes:
    """No two chunks under one key have the same; that of the last chunk differs from that of any other in its place."""
    return count.to_bytes(_COUNTER_BYTES, "big") + bytes([is_last])


def _public_half(reader: object) -> bytes:
    """The X25519 key of a reader."""
    try:
        key = bytes.fromhex(reader) if isinstance(reader, str) else reader
        if isinstance(key, bytes) and len(key) == KEY_BYTES:
            return bindings.crypto_sign_ed25519_pk_to_curve25519(key)
    except (CryptoError, ValueError, RuntimeError):
        pass
    raise ConfigError(
        f"reader={reader!r:.80}: give the 32 bytes of an Ed25519 public key, or their 64 hexadecimal digits; "
        "`stigmergy keys new reader.key` makes one, `stigmergy keys show reader.key --json` shows its public half"
    )
