"""Every limit of the HTTP server is reached, on real connections, and answered as docs/http.md says.

The numbers are made small: what is tested is that each is held, and what is said there.
"""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, TypeVar

import pytest

from stigmergy.control.protocol import Request
from stigmergy.serve import api, asker, events, http, listener
from stigmergy.serve.access import Policy
from stigmergy.serve.asker import NodeAsker
from stigmergy.serve.listener import Address
from stigmergy.serve.server import ApiServer, Serving
from tests.clients.rig import warehouse

WAIT_S_MAX = 240.0
R = TypeVar("R")
HEAD = b"Host: localhost\r\nContent-Type: application/json\r\n"


class Answer:
    """What came back on a connection, up to its end or to the end of one answer."""

    def __init__(self, head: bytes, body: bytes) -> None:
        self.status = int(head.split(b" ", 2)[1])
        self.headers = head.lower()
        self.problem: dict[str, Any] = json.loads(body)


class WaitingAsker(NodeAsker):
    """Lets others go on before it answers, as a node in another process does."""

    async def ask(self, request: Request[R]) -> R:
        await asyncio.sleep(0.01)
        return await super().ask(request)


@asynccontextmanager
async def served(folder: Path, policy: Policy = Policy()) -> AsyncIterator[int]:  # noqa: B008 - it is frozen
    """A fleet in this process with its API; the port."""
    running = warehouse.running(journal="memory:", key=folder / "key")
    async with running as live:
        serving = Serving(Address("127.0.0.1", 0), folder / "tokens", policy)
        server = ApiServer(warehouse, WaitingAsker(running.service(live, "", lambda: None)), serving)
        (url,) = await server.start()
        try:
            async with asyncio.timeout(WAIT_S_MAX):
                yield int(url.rpartition(":")[2])
        finally:
            await server.close()


async def sent(port: int, *parts: bytes, whole: bool = True) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(b"".join(parts) + (b"\r\n" if whole else b""))
    return reader, writer


async def answer_on(reader: asyncio.StreamReader) -> Answer:
    head = await reader.readuntil(b"\r\n\r\n")
    length = int(head.lower().partition(b"content-length:")[2].partition(b"\r\n")[0])
    return Answer(head, await reader.readexactly(length))


async def asked(port: int, *parts: bytes) -> Answer:
    """One request on a connection of its own."""
    reader, writer = await sent(port, *parts)
    try:
        return await answer_on(reader)
    finally:
        writer.close()


def post(path: str, body: bytes, *, claimed: int | None = None) -> tuple[bytes, ...]:
    length = len(body) if claimed is None else claimed
    return f"POST {path} HTTP/1.1\r\n".encode(), HEAD, f"Content-Length: {length}\r\n\r\n".encode(), body


DRIVE = "/v1/agents/Cart/c01/Drive"


async def test_body_that_is_too_large_whether_it_says_so_or_not(tmp_path: Path) -> None:
    async with served(tmp_path) as port:
        said = await asked(port, *post(DRIVE, b"", claimed=http.BODY_BYTES_MAX + 1))
        assert (said.status, said.problem["type"]) == (413, "urn:stigmergy:too-large")
        chunk = b"10000\r\n" + b" " * 0x10000 + b"\r\n"
        head = (f"POST {DRIVE} HTTP/1.1\r\n".encode(), HEAD, b"Transfer-Encoding: chunked\r\n\r\n")
        assert (await asked(port, *head, chunk * (http.BODY_BYTES_MAX // 0x10000 + 1), b"0\r\n")).status == 413
        assert (await asked(port, *post(DRIVE, b'{"to":"north"}'))).status == 200


async def test_body_that_takes_too_long(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http, "BODY_S_MAX", 0.2)
    async with served(tmp_path) as port:
        said = await asked(port, *post(DRIVE, b'{"to":', claimed=20))
        assert (said.status, said.problem["detail"]) == (408, "the body took more than 0.2 s")


async def test_header_that_is_too_long_or_takes_too_long(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(listener, "HEADER_S_MAX", 0.2)
    async with served(tmp_path) as port:
        long = b"x" * listener.HEADER_BYTES_MAX
        for parts in (
            (b"GET /v1/agents HTTP/1.1\r\nX-Long: ", long, b"\r\n", HEAD),
            (b"GET /", long, b" HTTP/1.1\r\n"),
        ):
            reader, writer = await sent(port, *parts)
            assert (await answer_on(reader)).status == 431
            assert await reader.read() == b"", "its connection is closed"
            writer.close()
        for begun in (b"", b"GET /v1/agents HTTP/1.1\r\nX-Slow: "):
            reader, writer = await sent(port, begun, whole=False)
            assert await reader.read() == b"", "closed without an answer"
            writer.close()


async def test_connections(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(listener, "CONNECTIONS_MAX", 3)
    async with served(tmp_path) as port:
        kept = [await sent(port, b"GET /healthz HTTP/1.1\r\n", HEAD) for _ in range(3)]
        for reader, _ in kept:
            assert (await answer_on(reader)).status == 200
        reader, writer = await sent(port, b"", whole=False)
        said = await answer_on(reader)
        assert (said.status, said.problem["type"]) == (503, "urn:stigmergy:too-many-connections")
        assert await reader.read() == b""
        writer.close()
        kept[0][1].close()
        while True:  # the server notices a moment later that one has left
            try:
                if (await asked(port, b"GET /healthz HTTP/1.1\r\n", HEAD)).status == 200:
                    break
            except OSError:
                pass
        for _, one in kept:
            one.close()


async def test_requests_a_second(tmp_path: Path) -> None:
    async with served(tmp_path, Policy(rate_per_s=0.01)) as port:
        said = await asked(port, b"GET /v1/agents HTTP/1.1\r\n", HEAD)
        assert (said.status, said.problem["retry_after_s"]) == (429, 1)
        assert b"\r\nretry-after: 1\r\n" in said.headers
        assert (await asked(port, b"GET /healthz HTTP/1.1\r\n", HEAD)).status == 200, "a probe is not counted"


async def test_streams_that_begin_at_the_same_moment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(events, "STREAMS_MAX", 2)
    async with served(tmp_path) as port:
        opened = await asyncio.gather(
            *(sent(port, b"GET /v1/events?since=2026-01-01T00:00:00Z HTTP/1.1\r\n", HEAD) for _ in range(6))
        )
        heads = await asyncio.gather(*(reader.readuntil(b"\r\n\r\n") for reader, _ in opened))
        assert sorted(head.split(b" ")[1] for head in heads) == [b"200"] * 2 + [b"429"] * 4
        for _, writer in opened:
            writer.close()
        while (await _status(port, b"GET /v1/events HTTP/1.1\r\n")) != 200:
            pass  # the server notices a moment later that they have left


async def _status(port: int, line: bytes) -> int:
    reader, writer = await sent(port, line, HEAD)
    head = await reader.readuntil(b"\r\n\r\n")
    writer.close()
    return int(head.split(b" ")[1])


async def test_batch_page_and_parameters(tmp_path: Path) -> None:
    many = [{"agent": "Cart/c01", "event": "Driven", "fields": {"to": "x"}}] * (api.BATCH_COUNT_MAX + 1)
    async with served(tmp_path) as port:
        said = await asked(port, *post("/v1/observations", json.dumps(many).encode()))
        assert (said.status, said.problem["detail"][:18]) == (413, "1001 observations,")
        for path in ("agents?limit=1001", "agents/Cart/c01/events?limit=1001", f"agents?{'where=a%3D1&' * 33}"):
            assert (await asked(port, f"GET /v1/{path} HTTP/1.1\r\n".encode(), HEAD)).status == 400


async def test_time_of_a_request(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whether the command is done is not known then: the answer has the id to send it again with."""
    monkeypatch.setattr(asker, "REQUEST_S_MAX", 0.0)
    async with served(tmp_path) as port:
        said = await asked(port, *post(DRIVE, b'{"to":"north"}'))
        assert (said.status, said.problem["type"]) == (504, "urn:stigmergy:in-doubt")
        assert said.problem["command_id"]
