"""A real PostgreSQL server for tests and proofs: on a free loopback port, in a folder of its own, and stopped.

    with start_postgres() as server:
        url = server.new_database()

PostgreSQL is a system package: `apt install postgresql`, or run `.ci/postgresql`, which unpacks it in
`build/postgresql`. The server refuses to run as root; there, it runs as `nobody`.
"""

from __future__ import annotations

import ctypes
import os
import shutil
import signal
import stat
import subprocess
import tempfile
import time
from pathlib import Path

from stigmergy.testing.brokers import LOOPBACK, START_S_MAX, NoBroker, ServerProcess, free_port

UNPACKED = Path("build/postgresql")
"""Where `.ci/postgresql` puts it."""
USER = "stigmergy"
_NOBODY = 65534
_PR_SET_PDEATHSIG = 1
_SETTINGS = {
    "listen_addresses": LOOPBACK,
    "unix_socket_directories": "",
    "fsync": "off",  # tests kill processes, never the machine: what was written to the system's cache stays
    "shared_buffers": "16MB",
    "max_connections": "40",
    "jit": "off",
}


class NoPostgres(NoBroker):
    """PostgreSQL is not there; the message says how to get it."""


class PostgresServer(ServerProcess):
    """A PostgreSQL server."""

    _END = signal.SIGINT
    """Cuts open connections; SIGTERM would wait for them."""

    def __init__(self, programs: Path, folder: Path) -> None:
        super().__init__(folder)
        self.port = free_port()
        self._programs = programs
        self._databases = 0

    def url_of(self, database: str) -> str:
        """Where one of its databases is."""
        return f"postgresql://{USER}@{LOOPBACK}:{self.port}/{database}"

    def new_database(self) -> str:
        """Makes an empty database; returns its URL."""
        import psycopg

        self._databases += 1
        name = f"test_{self._databases}"
        with psycopg.connect(self.url_of("postgres"), autocommit=True) as connection:
            connection.execute(f"CREATE DATABASE {name}".encode())
        return self.url_of(name)

    def initialise(self) -> None:
        """Makes the data folder."""
        command = ["initdb", "-D", "data", "-U", USER, "-A", "trust", "-E", "UTF8", "--no-locale", "--no-sync"]
        done = subprocess.run(
            [str(self._programs / command[0]), *command[1:]],
            cwd=self.folder, env=self._environment, user=_user(), capture_output=True, text=True, check=False,
        )  # fmt: skip
        if done.returncode:
            raise RuntimeError(f"initdb failed: {done.stdout[-1000:]}{done.stderr[-1000:]}")

    def start(self) -> None:
        """Starts it and returns when it takes connections."""
        # A server that was killed leaves processes behind that hold its memory for a moment: then again.
        deadline_s = time.monotonic() + START_S_MAX
        while not self._try_start(deadline_s):
            if time.monotonic() > deadline_s:
                raise RuntimeError(f"PostgreSQL does not start: {self.log[-2000:]}")
            time.sleep(0.05)

    def _try_start(self, deadline_s: float) -> bool:
        import psycopg

        settings = [f"--{name}={value}" for name, value in {**_SETTINGS, "port": str(self.port)}.items()]
        with (self.folder / "server.log").open("ab") as log:
            self._process = subprocess.Popen(
                [str(self._programs / "postgres"), "-D", "data", *settings],
                cwd=self.folder,
                env=self._environment,
                user=_user(),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                preexec_fn=_die_with_parent,  # noqa: PLW1509 - it makes one system call
            )
        while self._process.poll() is None and time.monotonic() < deadline_s:
            try:
                psycopg.connect(self.url_of("postgres"), connect_timeout=5).close()
            except psycopg.OperationalError:
                time.sleep(0.02)
            else:
                return True
        self.kill()
        return False

    def __exit__(self, *error: object) -> None:
        super().__exit__(*error)
        shutil.rmtree(self.folder, ignore_errors=True)

    @property
    def _environment(self) -> dict[str, str]:
        root = self._programs.parents[4]  # of <root>/usr/lib/postgresql/15/bin
        libraries = [] if root == Path("/") else [str(path) for path in sorted(root.glob("**/lib/*-linux-gnu"))]
        paths = [*libraries, os.environ.get("LD_LIBRARY_PATH", "")]
        return {**os.environ, "LD_LIBRARY_PATH": ":".join(paths), "LC_ALL": "C", "TZ": "UTC"}


def start_postgres() -> PostgresServer:
    """Starts a server with an empty data folder below the system's temporary one: that of a test may be closed to
    `nobody`. Raises NoPostgres."""
    programs = find_postgres()
    if programs is None:
        raise NoPostgres("PostgreSQL is not there; apt install postgresql, or run .ci/postgresql")
    folder = Path(tempfile.mkdtemp(prefix="stigmergy-postgres-"))
    if (user := _user()) is not None:
        os.chown(folder, user, user)
        if not all(parent.stat().st_mode & stat.S_IXOTH for parent in programs.parents):
            root = programs.parents[4]  # a checkout that is closed to others: it runs a copy
            programs = shutil.copytree(root, folder / "programs", symlinks=True) / programs.relative_to(root)
    server = PostgresServer(programs, folder)
    try:
        server.initialise()
        server.start()
    except BaseException:
        server.kill()
        shutil.rmtree(folder, ignore_errors=True)
        raise
    return server


def find_postgres() -> Path | None:
    """The folder with `initdb` and `postgres`, if it is anywhere here: the newest."""
    folders = [
        path
        for root in (Path("/"), UNPACKED.resolve())
        for path in sorted(root.glob("usr/lib/postgresql/*/bin"), key=lambda path: float(path.parent.name))
        if (path / "initdb").is_file() and (path / "postgres").is_file()
    ]
    return folders[-1] if folders else None


def _user() -> int | None:
    return _NOBODY if os.geteuid() == 0 else None


def _die_with_parent() -> None:
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
