"""The folder of an authority: its key, and the list of what it has issued and revoked. One process uses it at a time.

    ca.pem       the certificate, which everybody may have
    ca.key       the private key (0600): keep the folder on a machine that does nothing else, and a copy of it
    ca.json      who got which certificates, until when, and who was revoked
    ca.crl       the revoked certificates, for brokers that read a list

A name is given once. One that is revoked never comes back: servers and brokers know a client by it.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import msgspec
from msgspec import structs

from stigmergy.base.errors import ConfigError, TrustError
from stigmergy.pki import certificates
from stigmergy.pki.certificates import Authority, CertificateRequest
from stigmergy.pki.files import PRIVATE, make_folder, read_file, write_file
from stigmergy.pki.holders import LIST, WHAT, Holder, HolderList, Issued, read_holders
from stigmergy.pki.identity import REVOKED
from stigmergy.pki.names import SERVER, subject_of

CERTIFICATE: Final = "ca.pem"
KEY: Final = "ca.key"
DAYS: Final = 90.0
"""How long a certificate is valid, if nobody says otherwise."""
AUTHORITY_DAYS: Final = 3_650.0


class AuthorityFolder:
    """An authority. Each change is on the disk before it returns."""

    def __init__(self, path: Path) -> None:
        """Opens one. Raises ConfigError, TrustError."""
        self.path = path
        self.certificate = read_file(path / CERTIFICATE, WHAT)
        self._authority = Authority(self.certificate, read_file(path / KEY, WHAT, secret=True))
        self.holders = self._read()

    @classmethod
    def create(cls, path: Path, fleet: str, days: float = AUTHORITY_DAYS) -> AuthorityFolder:
        """Makes a new one. Raises ConfigError, also if there is one already: it is never replaced."""
        subject_of(fleet, SERVER, "any")
        if not 0 < days <= 36_500:
            raise ConfigError(f"--days {days:g}: give how long the authority is valid, such as {AUTHORITY_DAYS:g}")
        make_folder(path)
        with _locked(path):
            if there := [name for name in (CERTIFICATE, KEY, LIST) if (path / name).exists()]:
                raise ConfigError(
                    f"{str(path / there[0])!a} exists; an authority is never replaced, because all that it has issued "
                    "would be worth nothing: give another folder"
                )
            certificate, key = certificates.make_authority(fleet, days, time.time())
            # The key last: without one the folder is none, and with one it is whole.
            write_file(path / LIST, msgspec.json.encode(HolderList(fleet)), PRIVATE)
            write_file(path / CERTIFICATE, certificate)
            write_file(path / REVOKED, Authority(certificate, key).revocation_list((), time.time()))
            write_file(path / KEY, key, PRIVATE)
        return cls(path)

    @property
    def fleet(self) -> str:
        """Whose members it gives certificates to."""
        return self.holders.fleet

    @property
    def until_s(self) -> int:
        """When it ends itself."""
        return self._authority.until_s

    def issue(self, request: bytes, hosts: tuple[str, ...] = (), days: float = DAYS) -> bytes:
        """The certificate for a request of somebody new. Raises TrustError, ConfigError; then nothing is given out."""
        read = certificates.read_request(request)
        name = read.subject.name
        with self._changing():
            known = self.holders.members.get(name)
            if known is not None and known.revoked_s:
                raise TrustError(f"{name} was revoked, and that is for good; give it another name")
            if known is not None:
                raise TrustError(
                    f"{name} has a certificate already, as a {known.kind}; renew it with `stigmergy ca renew`, or "
                    "choose another name"
                )
            if read.subject.kind == SERVER and not hosts:
                raise ConfigError(f"under which names is {name} reached? Give --host NAME, for each name and address")
            return self._sign(read, hosts, days, None)

    def renew(self, request: bytes, days: float = DAYS) -> bytes:
        """A further certificate for somebody who has one: same kind, hosts and Ed25519 key. Raises TrustError."""
        read = certificates.read_request(request)
        with self._changing():
            known = self._known(read.subject.name)
            if known.revoked_s:
                raise TrustError(f"{read.subject.name} was revoked, and that is for good; give it another name")
            if (known.kind, known.signing_key) != (read.subject.kind, read.signing_key.hex()):
                raise TrustError(
                    f"{read.subject.name} is a {known.kind}"
                    f"{' with another Ed25519 key' if known.kind == read.subject.kind else ''}; a renewal changes "
                    "neither: use the key that it had, or issue a certificate under another name"
                )
            return self._sign(read, known.hosts, days, known)

    def revoke(self, name: str) -> Holder:
        """Takes all certificates of somebody back, for good. Raises ConfigError for a name that has none."""
        with self._changing():
            known = self._known(name)
            if not known.revoked_s:
                known = structs.replace(known, revoked_s=int(time.time()))
                self._keep(name, known)
            # Also where it was revoked before: the list may be missing since a crash.
            write_file(self.path / REVOKED, self.revocation_list())
            return known

    def revocation_list(self) -> bytes:
        """The list of revoked certificates, as PEM."""
        found = [
            (one.serial, member.revoked_s)
            for member in self.holders.members.values()
            if member.revoked_s
            for one in member.certificates
        ]
        return self._authority.revocation_list(found, time.time())

    def _known(self, name: str) -> Holder:
        if name not in self.holders.members:
            raise ConfigError(f"{name[:64]!a} has no certificate of this authority; `stigmergy ca list` shows who has")
        return self.holders.members[name]

    def _sign(self, request: CertificateRequest, hosts: tuple[str, ...], days: float, known: Holder | None) -> bytes:
        pem = self._authority.issue(request, hosts, days, time.time())
        made = certificates.read_certificate(pem, self.certificate)
        still = tuple(one for one in known.certificates if one.until_s > time.time()) if known is not None else ()
        issued = (*still, Issued(made.serial, made.from_s, made.until_s))
        # On the list before it is given out: what is not on it could not be revoked.
        self._keep(request.subject.name, Holder(request.subject.kind, issued, made.hosts, request.signing_key.hex()))
        return pem

    def _keep(self, name: str, member: Holder) -> None:
        new = structs.replace(self.holders, members={**self.holders.members, name: member})
        write_file(self.path / LIST, msgspec.json.format(msgspec.json.encode(new), indent=1), PRIVATE)
        self.holders = new

    def _read(self) -> HolderList:
        return read_holders(self.path)

    @contextlib.contextmanager
    def _changing(self) -> Iterator[None]:
        """Others that use the folder wait; what they have written is read first."""
        with _locked(self.path):
            self.holders = self._read()
            yield


@contextlib.contextmanager
def _locked(path: Path) -> Iterator[None]:
    try:
        lock = os.open(path / ".lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    except OSError as error:
        raise ConfigError(f"cannot use the folder {str(path)!a}: {error.strerror}; give {WHAT}") from None
    try:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield
    finally:
        os.close(lock)
