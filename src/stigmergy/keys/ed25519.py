"""Ed25519 through libsodium: the Signer and Verifier ports. Signing takes about 20 us, verifying about 55 us.

The private key stays inside the signer and never appears in a representation, a pickle or an error. A verifier returns
False for everything that is wrong and never raises. libsodium's check is strict: the scalar must be reduced, the key
and the commitment canonical and of large order. The caller enrols only keys that `acceptable` has no objection to.
"""

from __future__ import annotations

from typing import Final, NoReturn

from nacl import bindings
from nacl.exceptions import BadSignatureError

from stigmergy.base.errors import TrustError
from stigmergy.shard.commit import SignatureAlgorithm

SEED_BYTES: Final = 32
PUBLIC_KEY_BYTES: Final = 32
SIGNATURE_BYTES: Final = 64

_PRIME = 2**255 - 19
_SIGN_BIT = 1 << 255
_Y_OF_ORDER_8 = 0x05FC536D880238B13933C6D305ACDFD5F098EFF289F4C345B027B2C28F95E826
# The neutral point has y = 1, the one of order 2 has y = -1, the two of order 4 have y = 0, the four of order 8 have
# plus or minus the y above. Under 2**255 there is room for a second way to write 0 and 1. The sign of x does not matter
# here, so these seven values stand for the fourteen encodings of the eight points.
_SMALL_ORDER_Y = frozenset({0, 1, _PRIME, _PRIME + 1, _PRIME - 1, _Y_OF_ORDER_8, _PRIME - _Y_OF_ORDER_8})


class Ed25519Signer:
    """Holds one private key (the Signer port)."""

    __slots__ = ("_public_key", "_secret_key")

    def __init__(self, seed: bytes) -> None:
        if not _is_bytes(seed, SEED_BYTES):
            raise TrustError(f"an Ed25519 seed has {SEED_BYTES} bytes; read it from a key file or make a new one")
        self._public_key, self._secret_key = bindings.crypto_sign_seed_keypair(seed)

    @property
    def algorithm(self) -> int:
        """SignatureAlgorithm.ED25519."""
        return SignatureAlgorithm.ED25519

    @property
    def public_key(self) -> bytes:
        """The 32 bytes that a verifier needs."""
        return self._public_key

    def sign(self, statement: bytes) -> bytes:
        """The 64 bytes of signature over exactly these bytes; the same for the same statement."""
        return bindings.crypto_sign(statement, self._secret_key)[:SIGNATURE_BYTES]

    def __repr__(self) -> str:
        return f"Ed25519Signer(public_key={self._public_key.hex()}, private key not shown)"

    def __reduce__(self) -> NoReturn:
        raise TypeError("a private key is not pickled or copied; hand over its key file")


class Ed25519Verifier:
    """Checks Ed25519 signatures and keys (the Verifier port)."""

    def verify(self, algorithm: int, public_key: bytes, statement: bytes, signature: bytes) -> bool:
        """True only if this key signed exactly these bytes."""
        if algorithm != SignatureAlgorithm.ED25519:
            return False
        # The binding hands the key to C without its length: a short one would be read past its end.
        if not _is_bytes(public_key, PUBLIC_KEY_BYTES) or not _is_bytes(signature, SIGNATURE_BYTES):
            return False
        try:
            bindings.crypto_sign_open(signature + statement, public_key)
        except (BadSignatureError, TypeError):
            return False
        return True

    def acceptable(self, algorithm: int, public_key: bytes) -> str | None:
        """None if this key may be enrolled, else the reason why not."""
        if algorithm != SignatureAlgorithm.ED25519:
            return f"signature algorithm {algorithm} is not known here; this version knows {SignatureAlgorithm.ED25519}"
        if not _is_bytes(public_key, PUBLIC_KEY_BYTES):
            return f"an Ed25519 public key has {PUBLIC_KEY_BYTES} bytes"
        y = int.from_bytes(public_key, "little") % _SIGN_BIT
        if y in _SMALL_ORDER_Y:
            return "a key of small order: signatures that fit it can be made without a private key"
        if y >= _PRIME:
            return "not canonical: the same key has a shorter way to be written, and two names for one signer"
        if not bindings.crypto_core_ed25519_is_valid_point(public_key):
            return "not a point of the prime-order group, so no private key belongs to it"
        return None


def _is_bytes(value: object, size_bytes: int) -> bool:
    """Keys and signatures come from peers through decoders; the annotations alone do not keep other types out."""
    return isinstance(value, bytes) and len(value) == size_bytes
