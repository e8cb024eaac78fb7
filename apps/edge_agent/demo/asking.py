"""Speaks to running nodes over their control sockets, and runs `stigmergy` on journals. See docs/control.md."""

from __future__ import annotations

import asyncio
import json
import os
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[3]
ANSWER_S_MAX = 10.0
COMMAND_S_MAX = 60.0


class Trouble(Exception):
    """Something did not go as it must; the demonstration ends and says so."""


class Socket:
    """The control socket of one node; connected at the first question, and again after the node was away."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._streams: tuple[asyncio.StreamReader, asyncio.StreamWriter] | None = None
        self._one_at_a_time = asyncio.Lock()

    async def ask(self, do: str, **keys: Any) -> dict[str, Any]:
        """One question and its answer. Raises OSError while nobody is there, Trouble if the node refuses."""
        async with asyncio.timeout(ANSWER_S_MAX), self._one_at_a_time:
            try:
                if self._streams is None:
                    self._streams = await connect(self.path)
                reader, writer = self._streams
                writer.write(json.dumps({"v": 1, "do": do, **keys}).encode() + b"\n")
                line = await reader.readline()
            except OSError:
                self.close()
                raise
        if not line:
            self.close()
            raise ConnectionResetError(f"{self.path.name}: the node has gone")
        answer = json.loads(line)
        if "error" in answer:
            raise Trouble(f"{self.path.name}: {answer['error']}")
        found: dict[str, Any] = answer["ok"]
        return found

    async def state(self, agent: str, at: int | None = None) -> dict[str, Any]:
        """An agent's state, now or at a position, with the position."""
        return await self.ask("state", agent=agent, **({} if at is None else {"at": str(at)}))

    async def send(self, agent: str, command: str, **fields: Any) -> None:
        """Gives a command that must be accepted."""
        answer = await self.ask("send", agent=agent, command=command, fields=fields)
        if not answer["accepted"]:
            raise Trouble(f"{agent} refused {command}: {answer['reason']}")

    def close(self) -> None:
        """Lets go of the connection."""
        if self._streams is not None:
            self._streams[1].close()
            self._streams = None


async def connect(path: Path) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    """Through the folder: the address of a socket has at most 107 bytes, and temporary folders have long names."""
    folder = os.open(path.parent, os.O_PATH)
    try:
        return await asyncio.open_unix_connection(f"/proc/self/fd/{folder}/{path.name}")
    finally:
        os.close(folder)


async def stigmergy(*arguments: str, cwd: Path) -> tuple[int, list[dict[str, Any]]]:
    """Runs one command with --json; its exit code and the documents it printed."""
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        "-m",
        "stigmergy",
        *arguments,
        "--json",
        cwd=cwd,
        env=environment(),
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
        limit=1 << 24,
    )
    try:
        async with asyncio.timeout(COMMAND_S_MAX):
            out, err = await process.communicate()
    except TimeoutError:
        process.kill()
        await process.communicate()
        raise Trouble(f"stigmergy {' '.join(arguments)}: no end after {COMMAND_S_MAX:g} s") from None
    try:
        documents = [json.loads(line) for line in out.splitlines()]
    except ValueError:
        documents = []
    if not documents:
        said = err.decode(errors="replace")[-500:]
        raise Trouble(f"stigmergy {' '.join(arguments)} ended with {process.returncode} and said: {said}")
    return process.returncode or 0, documents


def environment(**more: str) -> dict[str, str]:
    """For processes that are to find `apps`."""
    return {**os.environ, "PYTHONPATH": str(ROOT), "PYTHONUNBUFFERED": "1", **more}
