"""The authority of a local cluster, and the identities of its processes: made when needed, renewed before they end.

ca/               the authority; whoever it gives a certificate to is a user of the servers within seconds
identities/NAME   of each process, of the operator, and of the administrator of the servers
users.conf        the users of the servers, made from the authority's list
"""

from __future__ import annotations

import os
import time
from pathlib import Path

from stigmergy.base.errors import TrustError
from stigmergy.nats.servers.configuration import (
    LOOPBACK_HOSTS,
    OPERATOR,
    ROOT,
    USERS_FILE,
    Secured,
    users_of_certificates,
    write_users,
)
from stigmergy.pki.authority import CERTIFICATE, KEY, AuthorityFolder
from stigmergy.pki.enrolment import install, read_identity, request_for
from stigmergy.pki.files import PRIVATE, write_file
from stigmergy.pki.holders import LIST, read_holders
from stigmergy.pki.identity import PAIR
from stigmergy.pki.names import ADMIN, PERSON, SERVER, subject_of

LEFT = 0.4
"""A certificate is renewed when this share of its life is left: before its process asks for it, at a third."""


class LocalIdentities:
    """In the folder of a cluster. All processes are on this machine, and their keys are made here."""

    def __init__(self, path: Path, fleet: str) -> None:
        """Opens the authority in the folder, or makes one for this fleet."""
        self._path = path
        place = path / "ca"
        self.authority = AuthorityFolder(place) if (place / KEY).exists() else AuthorityFolder.create(place, fleet)
        self._keys: dict[str, Path | None] = {}
        self._listed = (0, 0)
        self.folder(PERSON, OPERATOR)
        self.folder(ADMIN, ROOT)

    @property
    def secured(self) -> Secured:
        """For the plans of the servers."""
        return Secured(self.authority.fleet, str(self._path.resolve() / "identities"))

    @property
    def certificate(self) -> Path:
        """Of the authority."""
        return self._path / "ca" / CERTIFICATE

    def server(self, name: str) -> Path:
        """The identity of a server."""
        return self.folder(SERVER, name, *LOOPBACK_HOSTS)

    def folder(self, kind: str, name: str, *hosts: str, key: Path | None = None) -> Path:
        """The folder of an identity that is valid for some time. Raises TrustError if its name was revoked."""
        place = self._path / "identities" / name
        self._keys[name] = key
        if not (place / PAIR).exists():
            subject = subject_of(self.authority.fleet, kind, name)
            known = self.authority.holders.members.get(name)
            if known is not None and known.kind != kind:
                raise TrustError(
                    f"{name} is a {known.kind} already, and {place} needs the name; see `stigmergy ca list`"
                )
            request = request_for(place, subject, key)
            # On the list before its folder was whole: an earlier start was killed in between.
            pem = self.authority.issue(request, hosts) if known is None else self.authority.renew(request)
            install(place, pem, self.authority.certificate)
        self._renew(name, time.time())
        return place

    def renew(self) -> tuple[str, ...]:
        """Renews what ends before long; the names. Nobody restarts for it."""
        return tuple(name for name in self._keys if self._renew(name, time.time()))

    def write_users(self) -> bool:
        """Writes the users of the servers anew if the list has changed; whether it has."""
        status = os.stat(self._path / "ca" / LIST)
        listed = (status.st_mtime_ns, status.st_ino)
        if listed == self._listed:
            return False
        users = users_of_certificates(read_holders(self._path / "ca"), time.time())
        write_file(self._path / USERS_FILE, write_users(users).encode(), PRIVATE)
        self._listed = listed
        return True

    def _renew(self, name: str, now_s: float) -> bool:
        place = self._path / "identities" / name
        own = read_identity(place)
        if own.until_s - now_s > LEFT * (own.until_s - own.from_s):
            return False
        request = request_for(place, own.subject, self._keys[name])
        install(place, self.authority.renew(request), self.authority.certificate)
        return True
