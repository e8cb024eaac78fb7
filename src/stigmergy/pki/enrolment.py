"""Fills an identity folder: makes its keys, asks for a certificate, and puts the answer in place after judging it."""

from __future__ import annotations

import time
from pathlib import Path

from stigmergy.base.errors import ConfigError, TrustError
from stigmergy.base.system import SystemEntropy
from stigmergy.base.trust import Signer
from stigmergy.keys.ed25519 import Ed25519Signer
from stigmergy.keys.keyfile import new_private_key, read_private_key, write_private_key
from stigmergy.pki import certificates
from stigmergy.pki.certificates import Certificate
from stigmergy.pki.files import PRIVATE, make_folder, read_file, write_file
from stigmergy.pki.identity import AUTHORITIES, NEXT_KEY, PAIR, SIGNING_KEY
from stigmergy.pki.names import NODE, Subject


def request_for(folder: Path, subject: Subject, key: Path | None = None) -> bytes:
    """A request for a certificate of this member, as PEM; its TLS key is made, and waits in the folder.

    `key` is the Ed25519 key that signs its log, where that is not in the folder; a node without one gets one here.
    """
    make_folder(folder)
    if (folder / PAIR).exists():
        told = read_identity(folder).subject
        if told != subject:
            raise ConfigError(f"{str(folder)!a} is the identity of {told.shown}; give {subject.shown} another folder")
    signer = _signer(folder, subject, key)
    path = folder / NEXT_KEY
    if not path.exists():
        write_file(path, certificates.new_tls_key(), PRIVATE)
    return certificates.write_request(read_file(path, "the folder of an identity", secret=True), subject, signer)


def install(folder: Path, answer: bytes, authorities: bytes, now_s: float | None = None) -> Certificate:
    """Puts a certificate in place that answers this folder's request, with the authorities that others are checked
    against. Raises TrustError for what is not the answer; then nothing changes."""
    path = folder / NEXT_KEY
    if not path.exists():
        raise ConfigError(f"{str(folder)!a} waits for no certificate; `stigmergy ca request` asks for one")
    key = read_file(path, "the folder of an identity", secret=True)
    found = certificates.read_certificate(answer, authorities)
    if found.tls_key != certificates.public_half(key):
        raise TrustError("the certificate is for another key; install it in the folder whose request it answers")
    if (folder / PAIR).exists() and (before := read_identity(folder).subject) != found.subject:
        raise TrustError(f"the certificate is that of {found.subject.shown}; this is the folder of {before.shown}")
    if found.until_s < (time.time() if now_s is None else now_s):
        raise TrustError("the certificate has ended already; ask for a new one, and check the clock of this machine")
    write_file(folder / AUTHORITIES, authorities)
    write_file(folder / PAIR, key + answer, PRIVATE)
    path.unlink()
    return found


def read_identity(folder: Path) -> Certificate:
    """Who this folder is. Raises ConfigError, TrustError."""
    pair = read_file(folder / PAIR, "the folder of an identity", secret=True)
    return certificates.read_certificate(pair, read_file(folder / AUTHORITIES, "the folder of an identity"))


def _signer(folder: Path, subject: Subject, key: Path | None) -> Signer | None:
    own = folder / SIGNING_KEY
    if key is not None:
        return Ed25519Signer(read_private_key(key).seed)
    if not own.exists():
        if subject.kind != NODE:
            return None
        write_private_key(own, new_private_key(SystemEntropy(), f"{subject.name} of {subject.fleet}"[:64]))
    return Ed25519Signer(read_private_key(own).seed)


def split_answer(answer: bytes) -> tuple[bytes, bytes]:
    """A certificate and the authorities behind it, as `ca issue --request` writes them into one file."""
    end = b"-----END CERTIFICATE-----"
    first, found, rest = answer.partition(end)
    if not found or end not in rest:
        raise TrustError("this is no answer to a request; `stigmergy ca issue --request` writes one")
    return first + found + b"\n", rest.lstrip()
