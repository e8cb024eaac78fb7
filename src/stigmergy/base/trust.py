"""The trust port: signs the heads of a group, and checks such signatures. Keys may be in a file, a TPM, a token."""

from __future__ import annotations

from typing import Protocol


class Signer(Protocol):
    """Holds one private key. `sign` is deterministic for Ed25519, takes microseconds, and never waits."""

    @property
    def algorithm(self) -> int:
        """A SignatureAlgorithm."""
        ...

    @property
    def public_key(self) -> bytes:
        """The key that `verify` needs; it is also the signer's name in the log."""
        ...

    def sign(self, statement: bytes) -> bytes:
        """The signature over exactly these bytes."""
        ...


class Verifier(Protocol):
    """Checks signatures of every algorithm it knows."""

    def verify(self, algorithm: int, public_key: bytes, statement: bytes, signature: bytes) -> bool:
        """True only if this key signed exactly these bytes; False for everything else, unknown algorithms included."""
        ...

    def acceptable(self, algorithm: int, public_key: bytes) -> str | None:
        """None if this key may be enrolled, else the reason why not (unknown algorithm, length, small order)."""
        ...
