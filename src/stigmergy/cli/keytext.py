"""Reads a key as people give it: the path of a key file, private or public, a public line, or its hex digits."""

from __future__ import annotations

import re
from pathlib import Path

from stigmergy.core.commit import SignatureAlgorithm
from stigmergy.core.errors import ConfigError, TrustError
from stigmergy.wiring import PublicKey, decode_public_key, read_private_key, read_public_key

_HEX = re.compile(r"[0-9a-fA-F]{64}")
_FIRST_BYTES = 32


def read_key(text: str) -> PublicKey:
    """The public key that a text stands for."""
    if _HEX.fullmatch(text):
        return PublicKey(SignatureAlgorithm.ED25519, bytes.fromhex(text))
    if text.startswith("stigmergy-"):
        return decode_public_key(text)
    path = Path(text)
    if not path.exists():
        raise ConfigError(
            f"{text!r} is neither a key file nor a public key; give a file, a public line or 64 hex digits"
        )
    try:
        return read_public_key(path)
    except TrustError:
        return read_private_key(path).public
