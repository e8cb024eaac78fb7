"""`GET /v1/events`: the event stream over Server-Sent Events, and over WebSocket at the same path.

The stream begins now, behind `Last-Event-ID` (or `after`), or at a time (`since`). A client that was cut off gives the
last id it has and misses nothing. One that reads too slowly gets a last event `dropped` with the id to go on from.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

import msgspec
from msgspec import Struct

from stigmergy.audit.history import read_moment
from stigmergy.base.errors import ConfigError, StigmergyError, UnknownKind
from stigmergy.base.tasks import end_tasks
from stigmergy.serve.access import AccessGate, DeniedRequest
from stigmergy.serve.asker import Asker
from stigmergy.serve.events import DroppedReader, EventHub, EventStream, StreamFilter
from stigmergy.serve.http import HttpCall, HttpRoute, Message, one_of

STREAMS_MAX = 500
"""One more is refused."""
HEARTBEAT_S = 15.0
"""A stream without events says after so long that it is there, and how far it is."""
LOOK_S = 1.0
"""So often a stream looks whether its token still counts and its client is still there."""
SEND_S_MAX = 30.0
"""A client that takes nothing for so long is cut off."""
RETRY_MS = 1_000
"""After so long an EventSource connects again."""
PARAMETERS = ("kind", "type", "agent", "area", "after", "since")
CLOSE_TRY_AGAIN, CLOSE_NOT_ALLOWED = 1013, 1008


class StreamEnded(Struct, frozen=True):
    """The last message of a stream that the server ends: why, and the id to go on from."""

    reason: str
    last_event_id: str


class Streams:
    """The event streams of a server."""

    def __init__(self, kinds: Mapping[str, Any], asker: Asker, gate: AccessGate, hub: EventHub) -> None:
        """`kinds` are the agent kinds of the fleet."""
        self._kinds = kinds
        self._asker = asker
        self._gate = gate
        self._hub = hub
        self._count = 0

    def routes(self) -> list[HttpRoute]:
        """Where they are."""
        return [
            HttpRoute("GET", "/v1/events", self._server_sent, "read", "Events as they become durable"),
            HttpRoute("WEBSOCKET", "/v1/events", self._websocket, "read", "The same over WebSocket"),
        ]

    async def _server_sent(self, call: HttpCall) -> None:
        """Server-Sent Events, until the client leaves."""
        stream = await self._begin(call, as_sse=True)
        headers = [(b"content-type", b"text/event-stream"), (b"cache-control", b"no-store"), *call.extra_headers]

        async def send(data: bytes) -> None:
            await call.send({"type": "http.response.body", "body": data, "more_body": True})

        async def idle() -> None:
            said = self._hub.trouble.replace("\n", " ")
            await send(f": {said or 'nothing new'}\nid: {stream.last_id}\n\n".encode())

        try:
            await call.send({"type": "http.response.start", "status": 200, "headers": headers})
            await send(f"retry: {RETRY_MS}\nid: {stream.last_id}\n\n".encode())
            ended = await self._pump(call, stream, send, idle, "http.disconnect")
            if ended is not None:
                said = msgspec.json.encode(ended).decode()
                last = f"id: {ended.last_event_id}\nevent: dropped\ndata: {said}\n\n"
                await call.send({"type": "http.response.body", "body": last.encode()})
        finally:
            self._count -= 1
            await stream.leave()

    async def _websocket(self, call: HttpCall) -> None:
        """One message for each batch: {"events": [...], "last_event_id": "..."}; the last one may have `dropped`."""
        stream = await self._begin(call, as_sse=False)

        async def send(data: bytes) -> None:
            said = b'{"events":[%b],"last_event_id":"%b"}' % (data, stream.last_id.encode())
            await call.send({"type": "websocket.send", "text": said.decode()})

        async def idle() -> None:
            await send(b"")

        try:
            await call.receive()
            await call.send({"type": "websocket.accept"})
            await send(b"")
            ended = await self._pump(call, stream, send, idle, "websocket.disconnect")
            if ended is not None:
                last = b'{"dropped":%b}' % msgspec.json.encode(ended)
                await call.send({"type": "websocket.send", "text": last.decode()})
                await call.send({"type": "websocket.close", "code": CLOSE_TRY_AGAIN, "reason": ended.reason[:100]})
        finally:
            self._count -= 1
            await stream.leave()

    async def _begin(self, call: HttpCall, *, as_sse: bool) -> EventStream:
        query = call.query(PARAMETERS)
        wanted = self._filter(query)
        after = call.header(b"last-event-id") or one_of(query, "after")
        since = one_of(query, "since")
        if after and since:
            raise ConfigError("give an id to go on behind, or a time, not both")
        since_ns = None if since is None else read_moment(since).time_ns
        if since is not None and since_ns is None:
            raise ConfigError(f"since={since[:50]}: give a time with its zone, such as 2026-11-15T08:00:00Z")
        if self._count >= STREAMS_MAX:
            raise DeniedRequest(429, f"{STREAMS_MAX} streams are open already; try again later", retry_after_s=5)
        stream = EventStream(self._hub, self._asker, wanted, as_sse=as_sse)
        await stream.begin(after or None, since_ns)
        self._count += 1
        return stream

    def _filter(self, query: dict[str, list[str]]) -> StreamFilter:
        for kind in (*query.get("kind", ()), *(one.partition("/")[0] for one in query.get("agent", ()))):
            if kind not in self._kinds:
                raise UnknownKind(f"{kind[:100]!r} is no agent kind here; there are {', '.join(self._kinds)}")
        area = one_of(query, "area")
        return StreamFilter(
            tuple(query.get("kind", ())),
            tuple(query.get("type", ())),
            tuple(query.get("agent", ())),
            None if area is None else _read_area(area),
        )

    async def _pump(
        self,
        call: HttpCall,
        stream: EventStream,
        send: Callable[[bytes], Awaitable[None]],
        idle: Callable[[], Awaitable[None]],
        gone: str,
    ) -> StreamEnded | None:
        """Sends until the client leaves (None) or must be left."""
        leaving = asyncio.ensure_future(_wait_gone(call.receive, gone))
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
                    if not self._gate.is_still_valid(call.caller):
                        return StreamEnded("the token does not count any more", stream.last_id)
                await asyncio.sleep(0)  # Whatever came: the others and the node have their turn.
        except TimeoutError:
            call.abort()
        finally:
            await end_tasks(leaving)
        return None


async def _wait_gone(receive: Callable[[], Awaitable[Message]], gone: str) -> None:
    """Until the client has left. What it sends meanwhile is not asked for, and dropped."""
    with contextlib.suppress(OSError):
        while True:
            message = await receive()
            if message["type"] == gone:
                return


def _read_area(text: str) -> tuple[float, float, float, float]:
    try:
        low_a, low_b, high_a, high_b = (float(part) for part in text.split(","))
    except ValueError:
        raise ConfigError(f"area={text[:100]}: give four numbers, the least corner of a box and its largest") from None
    if not (low_a <= high_a and low_b <= high_b):
        raise ConfigError(f"area={text[:100]}: the first corner must be the least one, without NaN")
    return (low_a, low_b, high_a, high_b)
