"""Processes of a run on this machine, for applications that are tried with kills: nodes, and the checker at the end.

Each is one Python module, started in the folder of the run and with the checkout on its path.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any, TextIO

ROOT = Path(__file__).resolve().parents[1]
START_S_MAX, STOP_S_MAX = 120.0, 60.0
SAID_CHARS_MAX = 2_000


class Trouble(Exception):
    """A run cannot go on."""


class NodeProcess:
    """A node in a process of its own, that can be killed and started again."""

    def __init__(self, name: str, folder: Path, module: str, arguments: list[str]) -> None:
        self.name = name
        self.url = ""
        self.folder = folder
        self._command = [sys.executable, "-m", module, "--name", name, "--folder", str(folder), *arguments]
        self._process: asyncio.subprocess.Process | None = None
        self._log: TextIO | None = None
        self._wanted = False

    async def start(self, *more: str) -> None:
        """Returns when it is ready: it says so in a line of JSON, with its URL if it has one."""
        self._wanted, self._process = True, None  # an earlier process has not failed: it was ended
        self._close_log()
        self._log = (self.folder / f"{self.name}.log").open("a", encoding="utf-8")
        self._process = await asyncio.create_subprocess_exec(
            *self._command,
            *more,
            cwd=self.folder,
            env=environment(),
            stdout=asyncio.subprocess.PIPE,
            stderr=self._log,
        )
        assert self._process.stdout is not None
        try:
            async with asyncio.timeout(START_S_MAX):
                line = await self._process.stdout.readline()
        except TimeoutError:
            line = b""
        if not line:
            raise Trouble(f"{self.name} does not start: {self.said()}")
        self.url = json.loads(line).get("url", "")

    def said(self) -> str:
        """The end of what it has said."""
        path = self.folder / f"{self.name}.log"
        return path.read_text(encoding="utf-8", errors="replace")[-SAID_CHARS_MAX:]

    @property
    def is_running(self) -> bool:
        return self._process is not None and self._process.returncode is None

    @property
    def has_failed(self) -> bool:
        """Whether it has ended by itself."""
        return self._wanted and self._process is not None and not self.is_running

    async def kill(self) -> None:
        """As a crash."""
        assert self._process is not None
        self._wanted = False
        if self.is_running:
            self._process.kill()
        await self._process.wait()
        self._close_log()

    async def stop(self) -> int:
        """In order; its exit code."""
        if self._process is None:
            return 0
        self._wanted = False
        if self.is_running:
            self._process.terminate()
            try:
                async with asyncio.timeout(STOP_S_MAX):
                    await self._process.wait()
            except TimeoutError:
                await self.kill()
        self._close_log()
        return self._process.returncode or 0

    def _close_log(self) -> None:
        if self._log is not None:
            self._log.close()


def environment(**more: str) -> dict[str, str]:
    """For processes that are to find `apps`; each computes on one core, two would wait for each other."""
    threads = dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), "1")
    path = os.pathsep.join(filter(None, (str(ROOT), os.environ.get("PYTHONPATH"))))
    return {**os.environ, "PYTHONPATH": path, "PYTHONUNBUFFERED": "1", **threads, **more}


def printed(module: str, *arguments: str) -> dict[str, Any]:
    """The JSON that a program prints; blocks until it has ended. Raises Trouble if it prints none."""
    command = [sys.executable, "-m", module, *arguments, "--json"]
    ended = subprocess.run(command, cwd=ROOT, env=environment(), capture_output=True, text=True, check=False)
    try:
        found: dict[str, Any] = json.loads(ended.stdout)
    except ValueError:
        raise Trouble(f"{' '.join((module, *arguments[:2]))} failed: {ended.stderr[-SAID_CHARS_MAX:]}") from None
    return found


async def end_task(task: asyncio.Task[Any]) -> None:
    """Ends what still runs; what it raised is raised."""
    task.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await task


def read_lives(path: Path) -> list[dict[str, Any]]:
    """The last report of each life of a node, which adds a line of JSON now and then."""
    lives: dict[float, dict[str, Any]] = {}
    for line in path.read_text(encoding="utf-8").splitlines() if path.exists() else ():
        with contextlib.suppress(ValueError):
            report = json.loads(line)
            lives[report["started_s"]] = report
    return list(lives.values())
