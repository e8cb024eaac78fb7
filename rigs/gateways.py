"""Gateways as processes of their own, for tests and proofs that kill them.

    west = GatewayProcess(folder / "west", "town:fleet", "--site", "west", "--leaf-port", "0")
    west.start()
    north = GatewayProcess(folder / "north", "town:fleet", "--site", "north", "--hub", f"127.0.0.1:{west.leaf_port}")

Each runs in a folder of its own, where the module must be. Ports are free ones, and stay the same over restarts.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any, TypeVar

from stigmergy.base.errors import NotRunning
from stigmergy.control.protocol import Request, answers_to
from stigmergy.control.socket import ControlClient
from stigmergy.nats.servers.server import LOOPBACK, free_ports

R = TypeVar("R")
START_S_MAX = 180.0
END_S_MAX = 180.0
LOOK_S = 0.02


class GatewayProcess:
    """`stigmergy gateway` in a folder."""

    def __init__(self, folder: Path, *arguments: str) -> None:
        self.folder = folder
        self.port, self.mqtt_port = free_ports(2)
        self._command = [sys.executable, "-m", "stigmergy", "gateway", "--json", "--data", "data", *arguments]
        self._command += ["--port", str(self.port), "--mqtt-port", str(self.mqtt_port)]
        self._process: subprocess.Popen[str] | None = None
        self._heard: list[dict[str, Any]] = []
        self._errors = ""

    @property
    def mqtt(self) -> str:
        """Where devices connect by MQTT."""
        return f"mqtt://{LOOPBACK}:{self.mqtt_port}"

    @property
    def nats(self) -> str:
        """Where they connect by NATS."""
        return f"nats://{LOOPBACK}:{self.port}"

    @property
    def pid(self) -> int:
        """Of the gateway; 0 while it does not run."""
        return 0 if self._process is None or self._process.poll() is not None else self._process.pid

    @property
    def server_pid(self) -> int:
        """Of its NATS server; 0 while that does not run."""
        children = Path(f"/proc/{self.pid}/task/{self.pid}/children")
        for child in children.read_text(encoding="ascii").split() if self.pid and children.exists() else ():
            if "nats-server" in Path(f"/proc/{child}/comm").read_text(encoding="utf-8", errors="replace"):
                return int(child)
        return 0

    @property
    def heard(self) -> list[dict[str, Any]]:
        """The documents that it has printed since it was started last."""
        return list(self._heard)

    def start(self) -> None:
        """Starts it, and returns when it serves its site."""
        self._heard = []
        self._process = subprocess.Popen(
            self._command, cwd=self.folder, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )
        threading.Thread(target=self._listen, args=(self._process,), daemon=True).start()
        self.wait_for(lambda: any(document.get("event") == "gateway" for document in self._heard))

    def ask(self, request: Request[R]) -> R:
        """Asks the node by its control socket. Raises NotRunning, and what the node refuses with."""
        sockets = list((self.folder / "data").glob("*.sock"))
        if not sockets:
            raise NotRunning(f"{self.folder}: the gateway does not listen")
        with closing(ControlClient(sockets[0])) as client:
            (found,) = answers_to(client.ask(request))
            return found

    def kill(self) -> None:
        """Ends it at once, and its server with it."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()

    def stop(self) -> int:
        """Ends it in order; how it ended."""
        assert self._process is not None
        self._process.send_signal(signal.SIGTERM)
        return self._process.wait(END_S_MAX)

    def kill_server(self) -> None:
        """Ends its server at once, and leaves the gateway."""
        if pid := self.server_pid:
            os.kill(pid, signal.SIGKILL)

    def wait_for(self, over: Callable[[], bool], within_s: float = START_S_MAX) -> None:
        """Waits for it. Raises AssertionError if the gateway ends instead, or the time does."""
        deadline_s = time.monotonic() + within_s
        while not over():
            said = f"{self._errors[-1000:]} {self._heard[-1:]}"
            assert self.pid, f"the gateway in {self.folder} has ended: {said}"
            assert time.monotonic() < deadline_s, f"not within {within_s:g} s: {said}"
            time.sleep(LOOK_S)

    def _listen(self, process: subprocess.Popen[str]) -> None:
        assert process.stdout is not None
        assert process.stderr is not None
        threading.Thread(target=self._listen_to_errors, args=(process.stderr,), daemon=True).start()
        with process.stdout as lines:
            for line in lines:
                self._heard.append(json.loads(line))

    def _listen_to_errors(self, lines: Any) -> None:
        with lines:
            for line in lines:
                self._errors = (self._errors + line)[-10_000:]
