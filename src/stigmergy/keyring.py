"""Keys by their files: a node's own, made at its first start, and public ones as people write them down."""

from __future__ import annotations

import re
from pathlib import Path

from stigmergy.adapters.ed25519 import Ed25519Signer
from stigmergy.adapters.keyfile import (
    PrivateKey,
    PublicKey,
    decode_public_key,
    new_private_key,
    read_private_key,
    read_public_key,
    write_private_key,
)
from stigmergy.adapters.system import SystemEntropy
from stigmergy.core.commit import SignatureAlgorithm
from stigmergy.core.errors import ConfigError, TrustError
from stigmergy.parts import journal_path
from stigmergy.ports.trust import Signer

_HEX_KEY = re.compile(r"[0-9a-fA-F]{64}")


def default_key_path(fleet: str, url: str) -> Path | None:
    """The key file that belongs to a journal: beside it; none for a journal in memory."""
    path = journal_path(url)
    if path is not None:
        return path.with_suffix(".key")
    return None if url.startswith("memory:") else Path(f"{fleet}.key")


def read_key(text: str) -> PublicKey:
    """The public key that a text stands for: a key file, private or public, a public line, or hex digits."""
    if _HEX_KEY.fullmatch(text):
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


def is_private_key(path: Path) -> bool:
    """Whether this file holds a private key that we may read."""
    try:
        read_private_key(path)
    except (ConfigError, TrustError):
        return False
    return True


def load_signer(path: Path | None, *, create: bool) -> Signer:
    """The signer of a node from its key file, made if there is none yet; without a path, a key for this run only."""
    if path is None:
        return Ed25519Signer(new_private_key(SystemEntropy()).seed)
    if create and not path.exists():
        make_private_key(path)
    return Ed25519Signer(read_private_key(path).seed)


def make_private_key(path: Path, comment: str = "") -> PrivateKey:
    """A fresh key in a file of its own."""
    private = new_private_key(SystemEntropy(), comment)
    write_private_key(path, private)
    return private
