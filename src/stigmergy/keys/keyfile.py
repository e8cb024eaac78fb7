"""Key files: private keys that stay on a device, public keys that people paste. docs/formats/keys.md has every byte.

A private key file is written once, with mode 0600, and survives a power loss completely or not at all; an existing file
is never replaced. It is read only if nobody but its owner has any right to it. A checksum tells damage (TrustError)
from an unexpected key (WrongKey). The secret never appears in a representation, a pickle, an encoding by msgspec, or an
error.

Beside a private key is a file that lists the journals that the key has signed on this disk, so that a missing one is
noticed even if nothing is left of it. It holds no secret and may be edited: one line is one journal.

Call Verifier.acceptable before you enrol a pasted public key: this module checks only the format, not whether the key
is good. Reading and writing block; do it before the event loop starts.
"""

from __future__ import annotations

import base64
import contextlib
import fcntl
import os
import re
import stat
import tempfile
from pathlib import Path
from typing import Final, NoReturn

import msgspec
from blake3 import blake3
from msgspec import Struct
from nacl.bindings import crypto_sign_seed_keypair

from stigmergy.base.clock import Entropy
from stigmergy.base.errors import ConfigError, TrustError, WrongKey
from stigmergy.shard.commit import SignatureAlgorithm

KEY_FILE_BYTES_MAX: Final = 4096
COMMENT_CHARACTERS_MAX: Final = 64
SEED_BYTES: Final = 32
SIGNED_JOURNALS_MAX: Final = 1_000
"""So many journals are remembered beside a key; then the ones that were added first are forgotten."""

_SIGNED_FIRST = b"stigmergy-signed-journals-1"
_FINGERPRINT_BYTES = 10
_FINGERPRINT_CONTEXT = "stigmergy 2026 key fingerprint"
_PRIVATE_CHECK_BYTES = 16
_PRIVATE_CHECK_CONTEXT = "stigmergy 2026 private key file"
_PUBLIC_CHECK_BYTES = 4
_PUBLIC_CHECK_CONTEXT = "stigmergy 2026 public key line"

# Printable ASCII without spaces at the ends: it cannot disguise a line on a terminal.
_COMMENT = rf"[!-~](?:[ -~]{{0,{COMMENT_CHARACTERS_MAX - 2}}}[!-~])?"
_COMMENT_ONLY = re.compile(_COMMENT)
_PRIVATE = re.compile(
    (
        r"(?P<checked>stigmergy-private-key-1\n"
        r"algorithm: (?P<algorithm>[a-z0-9]{1,32})\n"
        rf"comment:(?: (?P<comment>{_COMMENT}))?\n"
        r"public: (?P<public>(?:[0-9a-f]{2}){1,512})\n"
        r"private: (?P<private>(?:[0-9a-f]{2}){1,512})\n)"
        r"check: (?P<check>[0-9a-f]{32})\n"
    ).encode()
)
_PUBLIC = re.compile(
    rf"(?P<checked>stigmergy-ed25519-1 (?P<key>[0-9a-f]{{64}}))(?P<check>[0-9a-f]{{8}})(?: (?P<comment>{_COMMENT}))?"
)


class SignedJournal(Struct, frozen=True):
    """A journal on a disk that a key has signed."""

    journal: str
    """Its URL, with the whole path."""
    fleet: str
    incarnation: int


class PublicKey(Struct, frozen=True):
    """A public key as people hand it around."""

    algorithm: int
    key: bytes
    comment: str = ""


_signed = msgspec.json.Decoder(SignedJournal)
_signed_encoder = msgspec.json.Encoder()


class PrivateKey:
    """A private key on its way between a file and a signer. Deliberately no Struct: msgspec would encode the secret."""

    __slots__ = ("comment", "public", "seed")

    def __init__(self, seed: bytes, comment: str = "") -> None:
        if len(seed) != SEED_BYTES:
            raise TrustError(f"an Ed25519 seed has {SEED_BYTES} bytes, not {len(seed)}; make a new key")
        _check_comment(comment)
        self.seed = seed
        self.comment = comment
        self.public = PublicKey(SignatureAlgorithm.ED25519, crypto_sign_seed_keypair(seed)[0], comment)

    def __repr__(self) -> str:
        return f"PrivateKey(fingerprint={fingerprint(self.public)}, comment={self.comment!r}, seed not shown)"

    def __reduce__(self) -> NoReturn:
        raise TypeError("a private key is not pickled or copied; hand over its key file")


def new_private_key(entropy: Entropy, comment: str = "") -> PrivateKey:
    """A fresh Ed25519 key."""
    return PrivateKey(entropy.token(SEED_BYTES), comment)


def fingerprint(public: PublicKey) -> str:
    """Sixteen letters and digits for people to compare, like `k3va-...`. Programs compare the key itself."""
    digest = blake3(bytes([public.algorithm]) + public.key, derive_key_context=_FINGERPRINT_CONTEXT).digest()
    letters = base64.b32encode(digest[:_FINGERPRINT_BYTES]).decode().lower()
    return "-".join(letters[start : start + 4] for start in range(0, len(letters), 4))


# Bytes.


def encode_private_key(private: PrivateKey) -> bytes:
    """The content of a private key file."""
    checked = (
        "stigmergy-private-key-1\n"
        "algorithm: ed25519\n"
        f"comment:{' ' + private.comment if private.comment else ''}\n"
        f"public: {private.public.key.hex()}\n"
        f"private: {private.seed.hex()}\n"
    ).encode()
    return checked + f"check: {_private_check(checked)}\n".encode()


def decode_private_key(content: bytes, *, name: str = "the key file") -> PrivateKey:
    """Reads the content of a private key file. Raises TrustError, or WrongKey if its two halves are of two keys."""
    found = _PRIVATE.fullmatch(content)
    if found is None:
        raise TrustError(f"{name}: {_why_not_private(content)}")
    if _private_check(found["checked"]) != found["check"].decode():
        raise TrustError(f"{name}: damaged: the content does not fit its check value; restore it from a copy")
    if found["algorithm"] != b"ed25519":
        raise TrustError(
            f"{name}: a key for {found['algorithm'].decode()}, which this version does not know; "
            "use the version that wrote it, or a later one"
        )
    private = PrivateKey(bytes.fromhex(found["private"].decode()), (found["comment"] or b"").decode())
    if private.public.key.hex() != found["public"].decode():
        raise WrongKey(f"{name}: its public and private half belong to different keys; it was edited, restore a copy")
    return private


def encode_public_key(public: PublicKey) -> str:
    """The line that people paste, without an end of line."""
    if public.algorithm != SignatureAlgorithm.ED25519 or len(public.key) != 32:
        raise TrustError(f"algorithm {public.algorithm} with a key of {len(public.key)} bytes cannot be written here")
    _check_comment(public.comment)
    checked = f"stigmergy-ed25519-1 {public.key.hex()}"
    return f"{checked}{_public_check(checked)}{' ' + public.comment if public.comment else ''}"


def decode_public_key(line: str, *, name: str = "the public key") -> PublicKey:
    """Reads such a line; blanks and ends of line around it do not matter. Raises TrustError."""
    if len(line) > KEY_FILE_BYTES_MAX:
        raise TrustError(f"{name}: over {KEY_FILE_BYTES_MAX} characters; this is no public key, paste the line again")
    line = line.strip(" \t\r\n")
    found = _PUBLIC.fullmatch(line)
    if found is None:
        if line.startswith("stigmergy-private-key-"):
            raise TrustError(f"{name}: this is a private key, which must not be handed around; use the public one")
        raise TrustError(f"{name}: not a line like `stigmergy-ed25519-1 <72 hex digits> <comment>`; paste it again")
    if _public_check(found["checked"]) != found["check"]:
        raise TrustError(f"{name}: a digit is wrong, the key does not fit its check value; paste the line again")
    return PublicKey(SignatureAlgorithm.ED25519, bytes.fromhex(found["key"]), found["comment"] or "")


def _private_check(checked: bytes) -> str:
    return blake3(checked, derive_key_context=_PRIVATE_CHECK_CONTEXT).hexdigest(_PRIVATE_CHECK_BYTES)


def _public_check(checked: str) -> str:
    return blake3(checked.encode(), derive_key_context=_PUBLIC_CHECK_CONTEXT).hexdigest(_PUBLIC_CHECK_BYTES)


def _check_comment(comment: str) -> None:
    if comment and not _COMMENT_ONLY.fullmatch(comment):
        raise ConfigError(
            f"the comment of a key is at most {COMMENT_CHARACTERS_MAX} printable ASCII characters, without blanks at "
            f"the ends; got {comment[: COMMENT_CHARACTERS_MAX + 1]!a}"
        )


def _why_not_private(content: bytes) -> str:
    """Says what is there instead, without quoting any of it: it may be a secret in another wrapping."""
    version = re.match(rb"stigmergy-private-key-([0-9]{1,4})\n", content)
    if version is not None and version[1] != b"1":
        return (
            f"format {version[1].decode()}; this version reads format 1: use the version that wrote it, or a later one"
        )
    if version is not None:
        return "damaged, or edited by hand: it is not as it was written; restore it from a copy"
    if content.startswith(b"stigmergy-ed25519-"):
        return "this is a public key, and a private one is needed; give the path of the private key file"
    return "not a private key file of stigmergy; give the path of one, or make a new key"


# Files.


def write_private_key(path: Path, private: PrivateKey) -> None:
    """Makes a private key file, durable and readable by its owner only. Raises ConfigError, also if the file exists."""
    _write_new(path, encode_private_key(private), 0o600)


def read_private_key(path: Path, *, expected: bytes | None = None) -> PrivateKey:
    """Reads a private key file; `expected` is the public key that it must belong to.

    Raises ConfigError if there is no such file, TrustError if others may read it or it is damaged, WrongKey.
    """
    private = decode_private_key(_read(path, secret=True), name=f"key file {str(path)!a}")
    if expected is not None and private.public.key != expected:
        wanted = PublicKey(SignatureAlgorithm.ED25519, expected)
        raise WrongKey(
            f"key file {str(path)!a} holds the key {fingerprint(private.public)}, expected is {fingerprint(wanted)} "
            f"({expected.hex()}); give the path of that key, or enrol this one"
        )
    return private


def write_public_key(path: Path, public: PublicKey) -> None:
    """Makes a file with the public line, durable and readable by all. Raises ConfigError, also if the file exists."""
    _write_new(path, encode_public_key(public).encode() + b"\n", 0o644)


def read_public_key(path: Path) -> PublicKey:
    """Reads a file with one public line. Raises ConfigError if there is no such file, TrustError."""
    # What is not ASCII becomes a sign that no line of ours has, so that decoding refuses it with its own sentence.
    return decode_public_key(_read(path, secret=False).decode("ascii", "replace"), name=f"key file {str(path)!a}")


def signed_path(key: Path) -> Path:
    """Where it says which journals this key has signed: beside the key."""
    return key.with_name(f"{key.name}-journals")


def read_signed(key: Path) -> list[SignedJournal]:
    """The journals that this key has signed, the newest last; none if there is no such file. Raises ConfigError."""
    path = signed_path(key)
    try:
        lines = path.read_bytes().splitlines()
    except FileNotFoundError:
        return []
    except OSError as error:
        raise ConfigError(f"cannot read {str(path)!a}: {_reason(error)}; fix that, and start again") from None
    if lines[:1] != [_SIGNED_FIRST]:
        raise ConfigError(f"{str(path)!a} is no list of signed journals, or is damaged; restore it, or move it away")
    try:
        return [_signed.decode(line) for line in lines[1:] if line]
    except msgspec.DecodeError as error:
        raise ConfigError(f"{str(path)!a} has a line that is damaged ({error}); restore it, or fix that line") from None


def add_signed(key: Path, journal: SignedJournal) -> None:
    """Adds a journal, durably, in the place of an earlier one with the same URL. Raises ConfigError."""
    path = signed_path(key)
    try:
        # Several processes of a node have one key: they take turns.
        held = os.open(key, os.O_RDONLY | os.O_CLOEXEC)
        try:
            fcntl.flock(held, fcntl.LOCK_EX)
            before = read_signed(key)
            if journal in before:
                return
            kept = [one for one in before if one.journal != journal.journal][1 - SIGNED_JOURNALS_MAX :]
            lines = [_SIGNED_FIRST, *(_signed_encoder.encode(one) for one in (*kept, journal))]
            _replace(path, b"\n".join(lines) + b"\n")
        finally:
            os.close(held)
    except OSError as error:
        raise ConfigError(f"cannot write {str(path)!a}: {_reason(error)}") from None


def _replace(path: Path, content: bytes) -> None:
    descriptor, aside = tempfile.mkstemp(prefix=".key-", dir=path.parent)
    try:
        with open(descriptor, "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(descriptor)
        os.replace(aside, path)
    except BaseException:
        with contextlib.suppress(OSError):
            os.unlink(aside)
        raise
    folder = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)


def _read(path: Path, *, secret: bool) -> bytes:
    try:
        # Not blocking, because opening a pipe would otherwise wait for a writer for ever.
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOCTTY)
        try:
            _check_status(path, os.fstat(descriptor), secret)
            content = b""
            while len(content) <= KEY_FILE_BYTES_MAX:
                read = os.read(descriptor, KEY_FILE_BYTES_MAX + 1 - len(content))
                if not read:
                    return content
                content += read
        finally:
            os.close(descriptor)
    except (OSError, ValueError) as error:  # ValueError: a path with a zero byte
        raise ConfigError(f"cannot read key file {str(path)!a}: {_reason(error)}; fix the path or make a key") from None
    raise ConfigError(f"{str(path)!a} is over {KEY_FILE_BYTES_MAX} bytes and no key file; give the path of one")


def _check_status(path: Path, status: os.stat_result, secret: bool) -> None:
    if not stat.S_ISREG(status.st_mode):
        raise ConfigError(f"{str(path)!a} is no regular file; give the path of a key file")
    if secret and status.st_mode & (stat.S_IRWXG | stat.S_IRWXO):
        raise TrustError(
            f"key file {str(path)!a} is open to others (mode {stat.S_IMODE(status.st_mode):04o}); "
            f"run: chmod 600 {str(path)!a} - and make a new key if others may have read it"
        )


def _write_new(path: Path, content: bytes, mode: int) -> None:
    """A name appears only when its content is on the disk: written aside, synced, linked, and the folder synced."""
    try:
        descriptor, aside = tempfile.mkstemp(prefix=".key-", dir=path.parent)
        try:
            with open(descriptor, "wb") as file:
                os.fchmod(descriptor, mode)
                file.write(content)
                file.flush()
                os.fsync(descriptor)
            os.link(aside, path)  # unlike a rename, this fails if there is a file already
            _sync_folder_of(path)
        finally:
            with contextlib.suppress(OSError):
                os.unlink(aside)
    except FileExistsError:
        raise ConfigError(f"{str(path)!a} exists; a key file is never replaced: choose another name") from None
    except (OSError, ValueError) as error:
        raise ConfigError(f"cannot write key file {str(path)!a}: {_reason(error)}; fix the cause, try again") from None


def _sync_folder_of(path: Path) -> None:
    """Makes a new name durable. If that fails the name goes again: a key that may vanish must not come into use."""
    try:
        descriptor = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
    except OSError:
        path.unlink()
        raise


def _reason(error: Exception) -> str:
    return (isinstance(error, OSError) and error.strerror) or str(error)
