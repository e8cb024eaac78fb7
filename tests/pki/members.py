"""An authority with members, for the tests of links."""

from pathlib import Path

from stigmergy.pki.authority import AuthorityFolder
from stigmergy.pki.enrolment import install, request_for
from stigmergy.pki.names import subject_of
from stigmergy.testing.brokers import TlsFiles

LOOPBACK = ("127.0.0.1", "localhost")


class Members:
    """The fleet `town`: its authority, and a folder for each member."""

    def __init__(self, folder: Path, fleet: str = "town") -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.folder = folder
        self.authority = AuthorityFolder.create(folder / "ca", fleet)
        self.ca = str(folder / "ca" / "ca.pem")

    def issue(self, kind: str, name: str, *hosts: str) -> Path:
        place = self.folder / name
        request = request_for(place, subject_of(self.authority.fleet, kind, name))
        install(place, self.authority.issue(request, hosts), self.authority.certificate)
        return place

    def renew(self, kind: str, name: str) -> None:
        place = self.folder / name
        request = request_for(place, subject_of(self.authority.fleet, kind, name))
        install(place, self.authority.renew(request), self.authority.certificate)

    def server(self, name: str = "hub") -> TlsFiles:
        pair = str(self.issue("server", name, *LOOPBACK) / "identity.pem")
        return TlsFiles(pair, pair, self.ca)
