"""The renewal of an identity over a link: what its member asks, and what the authority answers.

The member proves that it has the key of the certificate that it shows, so nobody need say yes. Before half of a life is
over nothing is renewed: each renewal is an entry in the authority's list. What was revoked or is over renews nothing.
"""

from __future__ import annotations

import time
from pathlib import Path

import msgspec
from msgspec import Struct

from stigmergy.base.errors import ConfigError, TrustError
from stigmergy.pki import certificates
from stigmergy.pki.authority import DAYS, AuthorityFolder
from stigmergy.pki.certificates import Certificate
from stigmergy.pki.enrolment import install, read_identity, request_for
from stigmergy.pki.files import read_file
from stigmergy.pki.identity import PAIR

LEFT_MAX = 1 / 2
"""A certificate with a larger share of its life left is not renewed."""
DUE_LEFT = 1 / 3
"""A member asks when this share of its certificate's life is left."""
MESSAGE_BYTES_MAX = 256 * 1024


class RenewalRequest(Struct, frozen=True):
    """What a member sends."""

    request: bytes
    certificate: bytes
    """The one that it has."""
    proof: bytes
    """A signature over the request, by the key of that certificate."""


class RenewalAnswer(Struct, frozen=True):
    """What the authority sends back."""

    certificate: bytes = b""
    authorities: bytes = b""
    refused: str = ""


def is_due(folder: Path, now_s: float) -> bool:
    """Whether it is time to ask."""
    return _left(read_identity(folder), now_s) < DUE_LEFT


def ask(folder: Path, key: Path | None = None) -> bytes:
    """What the member in this folder sends; `key` is its Ed25519 key, if that is not in the folder."""
    pair = read_file(folder / PAIR, "the folder of an identity", secret=True)
    request = request_for(folder, read_identity(folder).subject, key)
    return msgspec.json.encode(RenewalRequest(request, pair[pair.index(b"-----BEGIN CERT") :], _proof(pair, request)))


def take(folder: Path, answer: bytes) -> Certificate:
    """Puts the answer in place. Raises TrustError for a refusal, and for what is no answer."""
    try:
        found = msgspec.json.decode(answer, type=RenewalAnswer)
    except msgspec.MsgspecError:
        raise TrustError("the authority's answer cannot be read; is it of another version?") from None
    if found.refused:
        raise TrustError(found.refused)
    return install(folder, found.certificate, found.authorities)


def answer(authority: AuthorityFolder, payload: bytes, days: float = DAYS) -> bytes:
    """The answer to whatever was sent. A refusal says why."""
    try:
        return msgspec.json.encode(RenewalAnswer(_renewed(authority, payload, days), authority.certificate))
    except (ConfigError, TrustError) as error:
        return msgspec.json.encode(RenewalAnswer(refused=str(error)))


def _renewed(authority: AuthorityFolder, payload: bytes, days: float) -> bytes:
    try:
        asked = msgspec.json.decode(payload[:MESSAGE_BYTES_MAX], type=RenewalRequest)
    except msgspec.MsgspecError:
        raise TrustError("this is no request for a renewal") from None
    has, now_s = certificates.read_certificate(asked.certificate, authority.certificate), time.time()
    if not certificates.is_signed(has.tls_key, asked.request, asked.proof):
        raise TrustError("the request is not signed by the key of the certificate that it shows")
    if (subject := certificates.read_request(asked.request).subject) != has.subject:
        raise TrustError(f"{has.subject.shown} cannot ask for {subject.shown}")
    if has.until_s < now_s:
        raise TrustError(f"the certificate of {has.subject.shown} is over; renew it at the authority")
    if _left(has, now_s) > LEFT_MAX:
        raise TrustError(f"the certificate of {has.subject.shown} has more than half of its life left; ask later")
    return authority.renew(asked.request, days)


def _proof(pair: bytes, request: bytes) -> bytes:
    return certificates.sign(pair[: pair.index(b"-----BEGIN CERT")], request)


def _left(certificate: Certificate, now_s: float) -> float:
    return (certificate.until_s - now_s) / (certificate.until_s - certificate.from_s)


__all__ = ["RenewalAnswer", "RenewalRequest", "answer", "ask", "is_due", "take"]
