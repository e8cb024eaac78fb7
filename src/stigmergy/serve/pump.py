"""Sends a stream to a client until one of both ends it: for the streams of events, of figures and of the map."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Sequence
from typing import Protocol

from msgspec import Struct

from stigmergy.base.errors import StigmergyError
from stigmergy.base.tasks import end_tasks
from stigmergy.serve.access import AccessGate
from stigmergy.serve.http import HttpCall, Message

HEARTBEAT_S = 15.0
"""A stream without events says after so long that it is there, and how far it is."""
LOOK_S = 1.0
"""So often a stream looks whether its token still counts and its client is still there."""
SEND_S_MAX = 30.0
"""A client that takes nothing for so long is cut off."""
RETRY_MS = 1_000
"""After so long an EventSource connects again."""
CLOSE_TRY_AGAIN, CLOSE_NOT_ALLOWED = 1013, 1008


class StreamEnded(Struct, frozen=True):
    """The last message of a stream that the server ends: why, and the id to go on from."""

    reason: str
    last_event_id: str


class DroppedReader(StigmergyError):
    """A client was too slow for the stream, or the stream has a gap. It goes on from the last id that it has."""


class ByteStream(Protocol):
    """What `pump` sends."""

    last_id: str

    async def next(self, within_s: float) -> bytes:
        """The next piece; empty if nothing comes within this time. Raises DroppedReader, and StigmergyError at the
        end."""
        ...


async def pump(
    call: HttpCall,
    stream: ByteStream,
    gate: AccessGate,
    send: Callable[[bytes], Awaitable[None]],
    idle: Callable[[], Awaitable[None]],
    gone: str,
) -> StreamEnded | None:
    """Sends until the client leaves (None) or must be left."""
    leaving = asyncio.ensure_future(wait_gone(call.receive, gone))
    now_s = asyncio.get_running_loop().time
    sent_s = looked_s = now_s()
    try:
        while not leaving.done():
            try:
                piece = await stream.next(LOOK_S)
            except DroppedReader as error:
                return StreamEnded(str(error), stream.last_id)
            except StigmergyError as error:
                return StreamEnded(f"the stream ended: {error}", stream.last_id)
            async with asyncio.timeout(SEND_S_MAX):
                if piece:
                    await send(piece)
                    sent_s = now_s()
                elif now_s() - sent_s >= HEARTBEAT_S:
                    await idle()
                    sent_s = now_s()
            if now_s() - looked_s >= LOOK_S:
                looked_s = now_s()
                if not gate.is_still_valid(call.caller):
                    return StreamEnded("the token does not count any more", stream.last_id)
            await asyncio.sleep(0)  # Whatever came: the others and the node have their turn.
    except TimeoutError:
        call.abort()
    finally:
        await end_tasks(leaving)
    return None


def send_events(call: HttpCall, further: Sequence[tuple[bytes, bytes]] = ()) -> Callable[[bytes], Awaitable[None]]:
    """Sends pieces of Server-Sent Events; the answer begins with the first, and with these further headers."""
    begun = False

    async def send(data: bytes) -> None:
        nonlocal begun
        if not begun:
            begun = True
            headers = [(b"content-type", b"text/event-stream"), (b"cache-control", b"no-store"), *call.extra_headers]
            await call.send({"type": "http.response.start", "status": 200, "headers": [*headers, *further]})
        await call.send({"type": "http.response.body", "body": data, "more_body": True})

    return send


async def wait_gone(receive: Callable[[], Awaitable[Message]], gone: str) -> None:
    """Until the client has left. What it sends meanwhile is not asked for, and dropped."""
    with contextlib.suppress(OSError):
        while True:
            message = await receive()
            if message["type"] == gone:
                return
