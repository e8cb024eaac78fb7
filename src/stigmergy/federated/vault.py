"""Where the secrets of rounds live: beside the log, never in it, and gone when their round is over.

A log is sent on, shown on a page and archived; whoever has a round's seed and what the server saw reads the update. So
the seed is in a file of its own, which is overwritten at the end of the round. It also remembers what the seed was used
for: a log that was restored from an older copy cannot make it mask another vector or open the other kind of share.
"""

from __future__ import annotations

import os
import secrets
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Protocol

import msgspec
from blake3 import blake3
from msgspec import Struct
from msgspec.structs import replace

from stigmergy.base.errors import StoreCorrupt
from stigmergy.federated.secure_sum import SumRefused

SEED_BYTES = 32


class Kept(Struct, frozen=True):
    """What is kept for one member of one training: its newest round only."""

    number: int = -1
    seed: bytes = b""
    """Empty when the round is over."""
    used: dict[str, bytes] = {}
    """For what, and the digest of what: a second use must be the same."""


class Vault(Protocol):
    """Blocking. What `save` was given is on disk when it returns."""

    def load(self, name: str) -> Kept:
        """What is kept under this name."""

    def save(self, name: str, kept: Kept) -> None:
        """Replaces it."""

    def token(self) -> bytes:
        """SEED_BYTES that nobody can guess."""


class Secrets:
    """The seed of one member in one round."""

    def __init__(self, vault: Vault, training: str, member: str, number: int) -> None:
        self._vault, self._name, self._number = vault, f"{member}@{training}", number
        self._about = f"round {number} of {training}"

    def begin(self) -> bytes:
        """The seed; a new one if this round is newer than the last. Raises SumRefused for an older one."""
        kept = self._vault.load(self._name)
        if self._number > kept.number:
            self._vault.save(self._name, Kept(self._number, self._vault.token()))
        return self._current().seed

    def use(self, purpose: str, what: bytes) -> bytes:
        """The seed, for this and nothing else under this purpose, now or after any restart."""
        kept, digest = self._current(), blake3(what).digest()
        known = kept.used.get(purpose)
        if known is None:
            self._vault.save(self._name, replace(kept, used={**kept.used, purpose: digest}))
        elif known != digest:
            raise SumRefused(f"{self._about}: its secrets were used to {purpose} something else already")
        return kept.seed

    def forget(self) -> None:
        """The round is over: what was sent in it cannot be read any more, whoever steals the disk."""
        kept = self._vault.load(self._name)
        if kept.number <= self._number:
            self._vault.save(self._name, Kept(self._number))

    def _current(self) -> Kept:
        kept = self._vault.load(self._name)
        if kept.number != self._number or not kept.seed:
            raise SumRefused(f"{self._about}: its secrets are gone, or were never here; wait for the next round")
        return kept


class MemoryVault:
    """For tests and simulations: `draw` gives the randomness."""

    def __init__(self, draw: Callable[[int], bytes] = secrets.token_bytes) -> None:
        self._kept: dict[str, Kept] = {}
        self._draw = draw

    def load(self, name: str) -> Kept:
        """As `Vault` says."""
        return self._kept.get(name, Kept())

    def save(self, name: str, kept: Kept) -> None:
        """As `Vault` says."""
        self._kept[name] = kept

    def token(self) -> bytes:
        """As `Vault` says."""
        return self._draw(SEED_BYTES)


class FolderVault:
    """A file for each member and training, which only its owner can read. Do not copy or archive this folder."""

    def __init__(self, folder: Path | str) -> None:
        self._folder = Path(folder)
        self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)

    def load(self, name: str) -> Kept:
        """As `Vault` says. Raises StoreCorrupt for a damaged file."""
        try:
            return msgspec.msgpack.decode(self._path(name).read_bytes(), type=Kept)
        except FileNotFoundError:
            return Kept()
        except msgspec.DecodeError as error:
            raise StoreCorrupt(f"{self._path(name)} is damaged ({error}); remove it, and its round is lost") from error

    def save(self, name: str, kept: Kept) -> None:
        """As `Vault` says."""
        handle, temporary = tempfile.mkstemp(dir=self._folder)  # mode 0600
        try:
            with os.fdopen(handle, "wb") as file:
                file.write(msgspec.msgpack.encode(kept))
                file.flush()
                os.fsync(file.fileno())
            os.replace(temporary, self._path(name))
        except BaseException:
            Path(temporary).unlink(missing_ok=True)
            raise
        folder = os.open(self._folder, os.O_RDONLY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)

    def token(self) -> bytes:
        """As `Vault` says."""
        return secrets.token_bytes(SEED_BYTES)

    def _path(self, name: str) -> Path:
        return self._folder / f"{blake3(name.encode()).hexdigest()[:32]}.vault"
