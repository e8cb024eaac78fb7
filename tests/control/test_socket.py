"""The socket under the control endpoint: whose it is, who may connect, and what slow or greedy clients get."""

import asyncio
import os
import socket
from collections.abc import Coroutine, Iterator
from pathlib import Path
from typing import Any

import pytest

from stigmergy.base.errors import ConfigError, JournalLocked, NotRunning, StigmergyError
from stigmergy.control.socket import ControlClient, ControlServer, answers_at


class Echo:
    """Answers with the same line, as often as its first digit says, after so many empty ones."""

    def __init__(self, wait_s: float = 0.0) -> None:
        self.wait_s = wait_s

    async def answer(self, line: bytes) -> Iterator[bytes]:
        await asyncio.sleep(self.wait_s)
        return iter([b""] * 3 + [line] * int(line[:1]))

    def refuse(self, error: StigmergyError) -> bytes:
        return f"{type(error).__name__}\n".encode()


def ask(path: Path, line: bytes, count: int) -> list[bytes]:
    client = ControlClient(path, timeout_s=10)
    try:
        answers = client.lines(line)
        return [next(answers) for _ in range(count)]
    finally:
        client.close()


async def test_lines_there_and_back(tmp_path: Path) -> None:
    server = ControlServer(tmp_path / "s", Echo())
    await server.start()
    assert (tmp_path / "s").stat().st_mode & 0o777 == 0o600
    assert await asyncio.to_thread(ask, tmp_path / "s", b"200 times\n", 2) == [b"200 times\n"] * 2
    await server.close()
    assert not (tmp_path / "s").exists()
    with pytest.raises(NotRunning):
        ControlClient(tmp_path / "s")
    await server.close()


async def test_the_mode_does_not_depend_on_the_umask(tmp_path: Path) -> None:
    before = os.umask(0)
    try:
        server = ControlServer(tmp_path / "s", Echo())
        await server.start()
        assert (tmp_path / "s").stat().st_mode & 0o777 == 0o600
        await server.close()
    finally:
        os.umask(before)


async def test_a_stale_socket_is_replaced_and_a_living_one_respected(tmp_path: Path) -> None:
    path = tmp_path / "s"
    with socket.socket(socket.AF_UNIX) as dead:
        dead.bind(str(path))
    assert not answers_at(path)
    server = ControlServer(path, Echo())
    await server.start()
    assert await asyncio.to_thread(answers_at, path)
    with pytest.raises(JournalLocked, match="another node answers there"):
        await ControlServer(path, Echo()).start()
    assert await asyncio.to_thread(ask, path, b"1\n", 1) == [b"1\n"]
    await server.close()


async def test_a_start_or_close_that_is_given_up_leaves_nobody_listening(tmp_path: Path) -> None:
    """Otherwise a node that ends while it starts would answer on, until its event loop ends."""
    path = tmp_path / "s"
    server = ControlServer(path, Echo())
    await given_up(server.start())
    assert not await asyncio.to_thread(answers_at, path)
    server = ControlServer(path, Echo())
    await server.start()
    await given_up(server.close())
    assert not await asyncio.to_thread(answers_at, path)


async def given_up(doing: Coroutine[Any, Any, None]) -> None:
    """Cancels something at the first moment at which it waits."""
    task = asyncio.ensure_future(doing)
    await asyncio.sleep(0)
    assert not task.done()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


async def test_a_socket_that_was_replaced_is_not_taken_away(tmp_path: Path) -> None:
    path = tmp_path / "s"
    first = ControlServer(path, Echo())
    await first.start()
    path.unlink()
    second = ControlServer(path, Echo())
    await second.start()
    await first.close()
    assert await asyncio.to_thread(answers_at, path)
    await second.close()


async def test_places_where_no_socket_can_be(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("mine")
    for path, text in (
        (tmp_path / "file", "is no socket"),
        (tmp_path / "nowhere" / "s", "cannot be made"),
        (tmp_path / ("n" * 120), "too long a name"),
    ):
        with pytest.raises(ConfigError, match=text):
            await ControlServer(path, Echo()).start()
    assert (tmp_path / "file").read_text() == "mine"


async def test_a_long_path(tmp_path: Path) -> None:
    folder = tmp_path / ("x" * 100)
    folder.mkdir()
    server = ControlServer(folder / "fleet.db.sock", Echo())
    await server.start()
    assert await asyncio.to_thread(ask, folder / "fleet.db.sock", b"1\n", 1) == [b"1\n"]
    await server.close()
    assert list(folder.iterdir()) == []


async def test_a_request_that_takes_too_long(tmp_path: Path) -> None:
    server = ControlServer(tmp_path / "s", Echo(wait_s=30), request_s_max=0.05)
    await server.start()
    assert await asyncio.to_thread(ask, tmp_path / "s", b"1\n", 1) == [b"Overloaded\n"]
    await server.close()


async def test_an_idle_client_is_left(tmp_path: Path) -> None:
    server = ControlServer(tmp_path / "s", Echo(), idle_s_max=0.05)
    await server.start()
    reader, writer = await asyncio.open_unix_connection(tmp_path / "s")
    assert await asyncio.wait_for(reader.read(), 5) == b""
    writer.close()
    await server.close()


async def test_what_is_under_way_is_answered_before_the_end(tmp_path: Path) -> None:
    server = ControlServer(tmp_path / "s", Echo(wait_s=0.2))
    await server.start()
    reader, writer = await asyncio.open_unix_connection(tmp_path / "s")
    idle_reader, idle_writer = await asyncio.open_unix_connection(tmp_path / "s")
    writer.write(b"1 last\n")
    await asyncio.sleep(0.05)
    await server.close()
    assert await reader.readline() == b"1 last\n"
    assert await reader.read() == b""
    assert await idle_reader.read() == b""
    writer.close()
    idle_writer.close()


async def test_a_client_is_told_when_the_node_ends_without_an_answer(tmp_path: Path) -> None:
    server = ControlServer(tmp_path / "s", Echo())
    await server.start()
    with pytest.raises(NotRunning, match="ended the connection"):
        await asyncio.to_thread(ask, tmp_path / "s", b"x" * 10 + b"\n", 1)
    assert server.failed_requests == 1
    await server.close()
