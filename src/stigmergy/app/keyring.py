"""Keys by their files: a node's own, made at its first start, and public ones as text."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from pathlib import Path

from stigmergy.app.parts import is_there, journal_path, left_beside, shown_url, whole_url
from stigmergy.base.errors import ConfigError, JournalCorrupt, TrustError
from stigmergy.base.system import SystemEntropy
from stigmergy.base.trust import Signer
from stigmergy.journal.port import Journal
from stigmergy.keys.ed25519 import Ed25519Signer
from stigmergy.keys.keyfile import (
    PrivateKey,
    PublicKey,
    SignedJournal,
    add_signed,
    decode_public_key,
    new_private_key,
    read_private_key,
    read_public_key,
    read_signed,
    signed_path,
    write_private_key,
)
from stigmergy.shard.commit import SignatureAlgorithm
from stigmergy.shard.state import EnrolledSigner

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


class NodeKey:
    """A node's own key: read from its file, or fresh and written only when the node is about to use it.

    It also remembers, beside the file, which journals on a disk the key has signed.
    """

    def __init__(self, path: Path | None, url: str) -> None:
        """Refuses to begin anew where this key has signed a journal that is gone. Opens and writes nothing."""
        self._path = path
        self._url = url
        self._fresh = path is None or not path.exists()
        if path is not None:
            check_not_gone(path, url)
        private = new_private_key(SystemEntropy()) if path is None or self._fresh else read_private_key(path)
        self._private = private
        self.signer: Signer = Ed25519Signer(private.seed)

    def check(self, journal: Journal) -> None:
        """Refuses to go on with a journal whose key is missing; a new one could not sign it."""
        if self._path is not None and self._fresh and journal.heads():
            raise TrustError(
                f"key file {str(self._path)!a} is missing, and the journal {shown_url(self._url)} is signed with its "
                "key; put the file back, or name it with --key (no new key was made)"
            )

    def keep(self) -> None:
        """Writes the key, if it is fresh. Call it when all else was found right, before anything is signed."""
        if self._path is not None and self._fresh:
            write_private_key(self._path, self._private)
            self._fresh = False

    def remember(self, journal: Journal, say: Callable[[str], None]) -> None:
        """Notes that the key signs this journal. Where that cannot be written the node runs, and says so."""
        if self._path is None or journal_path(self._url) is None:
            return
        identity = journal.identity
        try:
            add_signed(self._path, SignedJournal(whole_url(self._url), identity.fleet, identity.incarnation))
        except ConfigError as error:
            say(f"{error}; a start will not notice when the journal {self._url} is gone with all that lies beside it")

    def tell_not_copied(self, signers: Sequence[EnrolledSigner], say: Callable[[str], None]) -> None:
        """Says that copies will be of no use to run the node if its disk takes the only key along."""
        folder = journal_path(self._url)
        if self._path is None or folder is None or self._path.stat().st_dev != folder.stat().st_dev:
            return
        if len([signer for signer in signers if signer.revoked_after is None]) <= 1:  # none before the first commit
            say(
                f"the key {self._path} is on the journal's disk and is not copied: without it a restored journal can "
                "be read but not run; keep a copy of the file elsewhere, or enrol a second key that you keep "
                "elsewhere: stigmergy keys rotate --new KEY"
            )


class SharedKey:
    """The key that several workers of a fleet sign with (the Signer port): read from its file at once, or, if there is
    none, made when it is first used. Of several that start at the same time one makes it, and all use that one."""

    def __init__(self, path: Path) -> None:
        """Raises ConfigError and TrustError for a file that cannot be used."""
        self._path = path
        self._signer = load_signer(path, create=False) if path.exists() else None

    @property
    def algorithm(self) -> int:
        return self._made.algorithm

    @property
    def public_key(self) -> bytes:
        return self._made.public_key

    def sign(self, statement: bytes) -> bytes:
        return self._made.sign(statement)

    @property
    def _made(self) -> Signer:
        if self._signer is None:
            try:
                self._signer = load_signer(self._path, create=True)
            except ConfigError:
                if not self._path.exists():
                    raise
                self._signer = load_signer(self._path, create=False)
        return self._signer


def check_not_gone(key: Path, url: str) -> None:
    """Refuses to begin anew where a key has signed a journal that is gone. Raises JournalCorrupt."""
    if journal_path(url) is None or is_there(url):
        return
    whole = whole_url(url)
    for signed in read_signed(key):
        if signed.journal == whole:
            also = "".join(f", and remove {path}" for path in left_beside(url))
            raise JournalCorrupt(
                f"{journal_path(url)}: the journal is gone that the key {key} has signed here (fleet {signed.fleet!r}, "
                f"incarnation {signed.incarnation}); restore the journal from a copy, or, to start empty, take its "
                f"line out of {signed_path(key)}{also}"
            )


def make_private_key(path: Path, comment: str = "") -> PrivateKey:
    """A fresh key in a file of its own."""
    private = new_private_key(SystemEntropy(), comment)
    write_private_key(path, private)
    return private
