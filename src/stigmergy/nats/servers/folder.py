"""The folder of a local cluster: its lock, the ports and passwords of its servers, and its paths."""

from __future__ import annotations

import contextlib
import fcntl
import os
import socket
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
from msgspec import Struct

from stigmergy.base.errors import ConfigError, JournalLocked
from stigmergy.nats.servers import draw_passwords
from stigmergy.nats.servers.configuration import LOOPBACK, OPERATOR, ROOT, Passwords, ServerPlan, plan_local, urls_of
from stigmergy.nats.servers.server import free_ports
from stigmergy.pki.identity import with_identity

if TYPE_CHECKING:
    from stigmergy.nats.servers.identities import LocalIdentities

FORMAT = 1
PORTS = ("client", "http", "cluster", "leaf", "mqtt")
NODES = (1, 3, 5)


class FolderNotes(Struct, frozen=True):
    """The contents of a folder, so that a cluster keeps its ports."""

    ports: list[dict[str, int]]
    passwords: Passwords
    gateways: dict[str, dict[str, int]] = {}
    """Ports of gateways, by site."""
    format: int = FORMAT
    replicas: int = 0
    """Of all streams: the number of servers. 0 in older folders that did not record it."""
    secure: bool = False
    """Whether everybody shows a certificate: from the first start with --secure on, for good."""


class ClusterFolder:
    """A folder, locked until it is closed. Raises JournalLocked if another process has it."""

    def __init__(self, path: Path, nodes: int, first_port: int | None = None, secure_for: str = "") -> None:
        """Clients connect to `first_port` and the ports after it, or to free ones. `secure_for` is the fleet whose
        members show certificates; once that is so, it stays so."""
        if nodes not in NODES:
            raise ConfigError(
                f"--nodes {nodes}: give 1, 3 or 5; an even number of servers survives no more losses than one less"
            )
        self.path = path
        self._lock = self._take()
        try:
            self.notes = self._read(nodes, first_port)
            if secure_for and not self.notes.secure:
                self.notes = msgspec.structs.replace(self.notes, secure=True)
                self._write(self.notes)
            self.identities = self._identities(secure_for) if self.notes.secure else None
            if self.identities is not None:
                self._write_secured_urls()
        except BaseException:
            self.close()
            raise

    @property
    def plans(self) -> list[ServerPlan]:
        secured = None if self.identities is None else self.identities.secured
        return plan_local(str(self.path.resolve()), self.notes.ports, self.notes.passwords, secured)

    def identity(self, name: str) -> Path | None:
        """The folder of an identity here; None where nobody shows one."""
        return self.path.resolve() / "identities" / name if self.notes.secure else None

    @property
    def own_url(self) -> str:
        """Where this process connects itself."""
        return with_identity(self.url, self.identity(OPERATOR))

    @property
    def url(self) -> str:
        """Where clients of the fleet connect; on loopback they need no password, but a certificate where that is so."""
        return ("tls://" if self.notes.secure else "nats://") + ",".join(
            f"{LOOPBACK}:{own['client']}" for own in self.notes.ports
        )

    @property
    def replicas(self) -> int:
        """How many servers hold each stream. It cannot change: existing streams keep their number."""
        return self.notes.replicas or min(3, len(self.notes.ports))

    @property
    def kept_url(self) -> str:
        """The same for logs, bus and ledger, with the number of replicas."""
        return f"{self.url}?replicas={self.replicas}"

    @property
    def hubs(self) -> list[str]:
        """Where gateways connect."""
        return [f"{LOOPBACK}:{own['leaf']}" for own in self.notes.ports]

    def gateway_ports(self, site: str) -> dict[str, int]:
        """The ports of a site's gateway, the same each time."""
        if site not in self.notes.gateways:
            client, mqtt = free_ports(2)
            gateways = {**self.notes.gateways, site: {"client": client, "mqtt": mqtt}}
            self.notes = msgspec.structs.replace(self.notes, gateways=gateways)
            self._write(self.notes)
        return self.notes.gateways[site]

    def check_ports(self) -> None:
        """Raises ConfigError if another program uses a server's port."""
        for number, own in enumerate(self.notes.ports, start=1):
            for port in own.values():
                _check_free(
                    port,
                    number,
                    f"or begin another folder with --data: the ports of {self.path} stay what they are",
                )

    def close(self) -> None:
        """Unlocks the folder."""
        os.close(self._lock)

    def _take(self) -> int:
        if self.path.exists() and not self.path.is_dir():
            raise ConfigError(f"{self.path} is a file; give a folder with --data")
        try:
            self.path.mkdir(parents=True, exist_ok=True, mode=0o700)
            lock = os.open(self.path / "up.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        except OSError as error:
            raise ConfigError(
                f"{self.path} cannot be used: {error.strerror}; give another folder with --data"
            ) from None
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            pid = os.pread(lock, 20, 0).decode(errors="replace").strip() or "unknown"
            os.close(lock)
            raise JournalLocked(
                f"a cluster is up in {self.path} already, process {pid}; look at it with stigmergy status --nats "
                f"{self._known_url()}, or give another folder with --data"
            ) from None
        os.ftruncate(lock, 0)
        os.pwrite(lock, f"{os.getpid()}\n".encode(), 0)
        return lock

    def _known_url(self) -> str:
        with contextlib.suppress(OSError, msgspec.MsgspecError, KeyError):
            notes = msgspec.json.decode((self.path / "up.json").read_bytes(), type=FolderNotes)
            return "nats://" + ",".join(f"{LOOPBACK}:{own['client']}" for own in notes.ports)
        return "URL"

    def _read(self, nodes: int, first_port: int | None) -> FolderNotes:
        path = self.path / "up.json"
        wanted = [] if first_port is None else list(range(first_port, first_port + nodes))
        if wanted and not 0 < wanted[0] <= wanted[-1] < 65536:
            raise ConfigError(f"--port {first_port}: give one from 1 to {65536 - nodes}")
        if not path.exists():
            for number, port in enumerate(wanted, start=1):
                _check_free(port, number, "or give another --port")  # before the folder keeps it for good
            ports = iter(free_ports(nodes * len(PORTS)))
            own_ports = [{name: next(ports) for name in PORTS} for _ in range(nodes)]
            notes = FolderNotes(own_ports, draw_passwords(), replicas=nodes)
            for own, port in zip(notes.ports, wanted, strict=False):
                own["client"] = port
            self._write(notes)
            return notes
        try:
            notes = msgspec.json.decode(path.read_bytes(), type=FolderNotes)
        except (OSError, msgspec.MsgspecError) as error:
            raise ConfigError(f"{path} cannot be read: {error}; give another folder with --data") from None
        if notes.format > FORMAT:
            raise ConfigError(f"{path} is of a later version (format {notes.format}); update stigmergy")
        if len(notes.ports) != nodes:
            raise ConfigError(
                f"{self.path} has the data of {len(notes.ports)} servers; give --nodes {len(notes.ports)}, or another "
                "folder with --data"
            )
        if wanted and [own["client"] for own in notes.ports] != wanted:
            raise ConfigError(
                f"clients of {self.path} connect to {self._known_url()}, and that stays so; leave --port out, or give "
                "another folder with --data"
            )
        return notes

    def _write(self, notes: FolderNotes) -> None:
        _write_private(self.path / "up.json", msgspec.json.format(msgspec.json.encode(notes), indent=2))
        plans = plan_local(str(self.path.resolve()), notes.ports, notes.passwords)
        urls = urls_of(plans, notes.passwords, None, notes.replicas or None)
        if not notes.secure:
            _write_private(self.path / "urls.txt", "".join(f"{url}\n" for url in urls.values()).encode())

    def _identities(self, fleet: str) -> LocalIdentities:
        from stigmergy.nats.servers.identities import LocalIdentities

        made = LocalIdentities(self.path, fleet or "local")
        for number in range(1, len(self.notes.ports) + 1):
            made.server(f"n{number}")
        return made

    def _write_secured_urls(self) -> None:
        urls = [with_identity(self.kept_url, self.identity(name)) for name in (OPERATOR, ROOT)]
        _write_private(self.path / "urls.txt", "".join(f"{url}\n" for url in urls).encode())


def _check_free(port: int, number: int, otherwise: str) -> None:
    """Raises ConfigError if another program uses a server's port."""
    with contextlib.closing(socket.socket()) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((LOOPBACK, port))
        except OSError as error:
            raise ConfigError(
                f"port {port} of server n{number} is not available ({error.strerror}); end the program that uses it, "
                f"{otherwise}"
            ) from None


def _write_private(path: Path, data: bytes) -> None:
    """Writes atomically, readable only by the owner."""
    new = path.with_suffix(".new")
    descriptor = os.open(new, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    with os.fdopen(descriptor, "wb") as file:
        file.write(data)
    new.rename(path)


def told_urls(folder: ClusterFolder) -> dict[str, Any]:
    """The addresses of everything, without passwords."""
    return {
        "nats": folder.url,
        "mqtt": [
            f"{'mqtts' if folder.notes.secure else 'mqtt'}://{LOOPBACK}:{own['mqtt']}" for own in folder.notes.ports
        ],
        "hubs": folder.hubs,
    }
