"""A fleet that serves HTTP, as a process of its own, and a client that speaks plain HTTP to it."""

import http.client
import json
import signal
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from tests.cli.conftest import DRONE
from tests.cli.in_process import Here
from tests.warm import Warm

START_S_MAX = 240.0
WAIT_S_MAX = 240.0
JSON = {"Content-Type": "application/json"}


class HttpAnswer:
    """An answer: its status, its headers by lower-case name, and its body as JSON."""

    def __init__(self, answer: http.client.HTTPResponse) -> None:
        self.status = answer.status
        self.headers = {name.lower(): value for name, value in answer.getheaders()}
        self.text = answer.read().decode()

    @property
    def json(self) -> Any:
        return json.loads(self.text)

    def __repr__(self) -> str:
        return f"{self.status} {self.text}"


class ServedProcess:
    """A process that serves HTTP: `run --serve`, or `serve`."""

    def __init__(self, folder: Path, *arguments: str) -> None:
        self.folder = folder
        # Also a test that is killed leaves no node behind.
        pipe = subprocess.PIPE
        self.process = Warm(*arguments, "--json", is_bound=True, cwd=folder, stdout=pipe, stderr=pipe)
        self.said: list[dict[str, Any]] = []
        self.url = ""
        assert self.process.stdout is not None
        while not self.url:
            line = self.process.stdout.readline()
            if not line:
                raise AssertionError(f"it did not start: {self.said} {self.process.communicate()}")
            self.said.append(json.loads(line))
            self.url = self.said[-1].get("url", "")

    @classmethod
    def at(cls, url: str) -> "ServedProcess":
        """One that somebody else has started, and ends."""
        served = cls.__new__(cls)
        served.url = url
        return served

    def ask(
        self,
        method: str,
        path: str,
        body: Any = None,
        headers: dict[str, str] | None = None,
        *,
        raw: bytes | None = None,
    ) -> HttpAnswer:
        """One request on a connection of its own."""
        place = urlsplit(self.url)
        connection = http.client.HTTPConnection(place.hostname or "", place.port, timeout=WAIT_S_MAX)
        try:
            data = raw if raw is not None else None if body is None else json.dumps(body).encode()
            connection.request(method, path, data, {**(JSON if data is not None else {}), **(headers or {})})
            return HttpAnswer(connection.getresponse())
        finally:
            connection.close()

    def get(self, path: str, **headers: str) -> HttpAnswer:
        return self.ask("GET", path, headers=headers)

    def post(self, path: str, body: Any = None, **headers: str) -> HttpAnswer:
        return self.ask("POST", path, body, {name.replace("_", "-"): value for name, value in headers.items()})

    def end(self, number: signal.Signals = signal.SIGTERM) -> int:
        """Signals it and waits; its exit code."""
        if self.process.poll() is None:
            self.process.send_signal(number)
        self.process.communicate(timeout=START_S_MAX)
        return self.process.returncode


def make_folder(path: Path) -> Path:
    (path / "drone.py").write_text(DRONE, encoding="utf-8")
    return path


def run_served(folder: Path, *arguments: str, listen: str = "127.0.0.1:0") -> ServedProcess:
    """A node with the API in its process."""
    return ServedProcess(folder, "run", "drone:fleet", "--serve", listen, *arguments)


def cli(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """A command, to its end, in this very process."""
    return Here(folder).cli(*arguments)


def wait_until(reached: Callable[[], bool]) -> None:
    """Waits for a condition; only a broken program reaches the limit."""
    until_s = time.monotonic() + WAIT_S_MAX
    while not reached():
        assert time.monotonic() < until_s, "it did not come"
        time.sleep(0.05)


class SseClient:
    """A client of the event stream, over Server-Sent Events. `socket_bytes` makes its receive buffer small."""

    def __init__(
        self,
        served: ServedProcess,
        query: str = "",
        *,
        headers: dict[str, str] | None = None,
        path: str = "/v1/events",
    ) -> None:
        place = urlsplit(served.url)
        self._connection = http.client.HTTPConnection(place.hostname or "", place.port, timeout=WAIT_S_MAX)
        self._connection.request("GET", f"{path}{query}", headers=headers or {})
        self.answer = self._connection.getresponse()
        self.status = self.answer.status
        self.last_id = ""

    def next(self) -> tuple[str, Any]:
        """The next event: its type and its data. Heartbeats only move the id."""
        kind, data = "", ""
        while True:
            line = self.answer.readline().decode()
            if not line:
                raise EOFError("the stream has ended")
            name, _, value = line.rstrip("\n").partition(": ")
            match name:
                case "id":
                    self.last_id = value
                case "event":
                    kind = value
                case "data":
                    data = value
                case "" if data:
                    return kind, json.loads(data)
                case _:
                    pass

    def take(self, count: int) -> list[Any]:
        """So many events."""
        return [self.next()[1] for _ in range(count)]

    def close(self) -> None:
        self._connection.close()
        self.answer.close()
