"""Who is notified: a webhook and a mail server that keep marks, and responders who acknowledge. For runs and tests.

A receiver with marks acts once for each mark. What comes again is answered as the first time. The webhook loses its
answer now and then, after it has acted: whoever told it must tell it again.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import random
import time
from collections.abc import AsyncIterator, Callable
from email import message_from_bytes
from pathlib import Path
from typing import Any

from msgspec import Struct

from apps.city.notify import MARK

BODY_BYTES_MAX = 65_536


class Marks:
    """Acts once for each mark, and writes down what came."""

    def __init__(self, path: Path, act: Callable[[dict[str, Any]], None] = lambda _: None) -> None:
        self._file = path.open("a", encoding="utf-8")
        self._act = act
        self._seen: dict[str, None] = {}

    def take(self, mark: str, what: dict[str, Any]) -> bool:
        """Whether it was the first time."""
        is_first = mark not in self._seen
        self._seen[mark] = None
        self._file.write(json.dumps({"at_s": time.time(), "mark": mark, "first": is_first, **what}) + "\n")
        self._file.flush()
        if is_first:
            self._act(what)
        return is_first

    def close(self) -> None:
        """All is written."""
        self._file.close()


class Hooks(Struct):
    """The receivers that run."""

    url: str = ""
    mail: str = ""


async def _read_request(reader: asyncio.StreamReader) -> tuple[str, bytes]:
    head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1")
    pairs = (line.split(": ", 1) for line in head.split("\r\n")[1:] if ": " in line)
    fields = {name.lower(): value for name, value in pairs}
    size_bytes = min(int(fields.get("content-length", "0")), BODY_BYTES_MAX)
    return fields.get(MARK.lower(), ""), await reader.readexactly(size_bytes)


@contextlib.asynccontextmanager
async def receivers(folder: Path, acted: Callable[[dict[str, Any]], None], losing: float = 0.1) -> AsyncIterator[Hooks]:
    """Listen on free ports until the block ends. `losing` is the share of answers that the webhook loses."""
    from aiosmtpd.smtp import SMTP

    hook, post, chance = Marks(folder / "webhook.jsonl", acted), Marks(folder / "mail.jsonl"), random.Random("receiver")

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(asyncio.IncompleteReadError, ValueError, OSError):
            mark, body = await _read_request(reader)
            hook.take(mark, json.loads(body))
            if chance.random() >= losing:
                writer.write(b"HTTP/1.1 204 No Content\r\nConnection: close\r\n\r\n")
                await writer.drain()
        writer.close()

    class Postbox:
        """As aiosmtpd calls it."""

        async def handle_DATA(self, server: Any, session: Any, envelope: Any) -> str:
            mail = message_from_bytes(envelope.content)
            post.take(str(mail[MARK]), {"subject": str(mail["Subject"]), "id": str(mail["Message-ID"])})
            return "250 OK"

    web = await asyncio.start_server(serve, "127.0.0.1", 0)
    # Without the library's controller: that gives its own thread one second to answer, and needs a port beforehand.
    smtp = await asyncio.get_running_loop().create_server(lambda: SMTP(Postbox()), "127.0.0.1", 0)
    try:
        ports = [server.sockets[0].getsockname()[1] for server in (web, smtp)]
        yield Hooks(f"http://127.0.0.1:{ports[0]}/incident", f"127.0.0.1:{ports[1]}")
    finally:
        smtp.close()
        web.close()
        hook.close()
        post.close()
