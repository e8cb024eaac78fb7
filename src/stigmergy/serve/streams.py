"""`GET /v1/events`: the event stream over Server-Sent Events, and over WebSocket at the same path.

The stream begins now, behind `Last-Event-ID` (or `after`), or at a time (`since`). A client that was cut off gives the
last id it has and misses nothing. One that reads too slowly gets a last event `dropped` with the id to go on from.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import AbstractAsyncContextManager

import msgspec
from msgspec import Struct

from stigmergy.agents.plans import AgentPlan
from stigmergy.audit.history import read_moment
from stigmergy.base.errors import ConfigError
from stigmergy.serve.access import AccessGate
from stigmergy.serve.events import EventHub, EventStream, EventStreams, StreamFilter, make_filter, read_area
from stigmergy.serve.http import HttpAnswer, HttpCall, HttpRoute, json_answer, number_of, one_of
from stigmergy.serve.nearest import NearestEvent, NearestEvents, read_place
from stigmergy.serve.pump import CLOSE_TRY_AGAIN, RETRY_MS, pump, send_events

PARAMETERS = ("kind", "type", "agent", "area", "after", "since", "of_node")
MISSING = b"stigmergy-missing"
"""The header that names the nodes whose events are not in a stream."""


class NearestReply(Struct, frozen=True):
    """Events in order; `missing` are nodes whose events are not among them."""

    events: list[NearestEvent]
    missing: list[str]


class Streams:
    """The event streams of a server."""

    def __init__(self, plans: Mapping[str, AgentPlan], gate: AccessGate, hub: EventHub) -> None:
        """`plans` are those of the fleet's agent kinds."""
        self._plans = plans
        self._gate = gate
        self._hub = hub
        self._streams = EventStreams(hub)

    def routes(self) -> list[HttpRoute]:
        """Where they are."""
        return [
            HttpRoute("GET", "/v1/events", self._server_sent, "read", "Events as they become durable"),
            HttpRoute("WEBSOCKET", "/v1/events", self._websocket, "read", "The same over WebSocket"),
            HttpRoute("GET", "/v1/page/events", self._nearest, "read", is_described=False),
        ]

    async def _nearest(self, call: HttpCall) -> HttpAnswer:
        """The events next to one, or to a time, of all shards in one order: what the page steps through."""
        query = call.query(("kind", "agent", "event", "time", "back", "limit"))
        wanted = make_filter(self._plans, query.get("kind", ()), (), query.get("agent", ()))
        place, moment = one_of(query, "event"), one_of(query, "time")
        start = read_place(place) if place else None if moment is None else _read_time("time", moment)
        hub = await self._hub.of_agents(wanted.agents)
        count = number_of(query, "limit", 1)
        events = await NearestEvents(hub, wanted).find(start, count, back=one_of(query, "back") is not None)
        return json_answer(NearestReply(events, hub.missing))

    async def _server_sent(self, call: HttpCall) -> None:
        """Server-Sent Events, until the client leaves."""
        async with self._opened(call, as_sse=True) as stream:
            lacks = [(MISSING, ", ".join(stream.missing).encode())] if stream.missing else []
            send = send_events(call, lacks)

            async def idle() -> None:
                await send(f": {_line(stream.trouble) or 'nothing new'}\nid: {stream.last_id}\n\n".encode())

            begin = f": {_line(stream.trouble)}\n" if stream.missing else ""
            await send(f"{begin}retry: {RETRY_MS}\nid: {stream.last_id}\n\n".encode())
            ended = await pump(call, stream, self._gate, send, idle, "http.disconnect")
            if ended is not None:
                said = msgspec.json.encode(ended).decode()
                last = f"id: {ended.last_event_id}\nevent: dropped\ndata: {said}\n\n"
                await call.send({"type": "http.response.body", "body": last.encode()})

    async def _websocket(self, call: HttpCall) -> None:
        """One message for each batch: {"events": [...], "last_event_id": "..."}; one without events may have `missing`,
        and the last one `dropped`."""
        async with self._opened(call, as_sse=False) as stream:

            async def send(data: bytes) -> None:
                lacks = b"" if data or not stream.missing else b',"missing":%b' % msgspec.json.encode(stream.missing)
                said = b'{"events":[%b],"last_event_id":"%b"%b}' % (data, stream.last_id.encode(), lacks)
                await call.send({"type": "websocket.send", "text": said.decode()})

            async def idle() -> None:
                await send(b"")

            await call.receive()
            await call.send({"type": "websocket.accept", "subprotocol": call.subprotocol})
            await send(b"")
            ended = await pump(call, stream, self._gate, send, idle, "websocket.disconnect")
            if ended is not None:
                last = b'{"dropped":%b}' % msgspec.json.encode(ended)
                await call.send({"type": "websocket.send", "text": last.decode()})
                await call.send({"type": "websocket.close", "code": CLOSE_TRY_AGAIN, "reason": ended.reason[:100]})

    def _opened(self, call: HttpCall, *, as_sse: bool) -> AbstractAsyncContextManager[EventStream]:
        query = call.query(PARAMETERS)
        wanted = self._filter(query)
        since = one_of(query, "since")
        since_ns = None if since is None else _read_time("since", since)
        after = call.header(b"last-event-id") or one_of(query, "after") or ""
        return self._streams.open(wanted, after, since_ns, one_of(query, "of_node") or "", as_sse=as_sse)

    def _filter(self, query: dict[str, list[str]]) -> StreamFilter:
        area = one_of(query, "area")
        return make_filter(
            self._plans,
            query.get("kind", ()),
            query.get("type", ()),
            query.get("agent", ()),
            None if area is None else _read_area(area),
        )


def _read_time(name: str, text: str) -> int:
    time_ns = read_moment(text).time_ns
    if time_ns is None:
        raise ConfigError(f"{name}={text[:50]}: give a time with its zone, such as 2026-11-15T08:00:00Z")
    return time_ns


def _line(text: str) -> str:
    return text.replace("\n", " ")


def _read_area(text: str) -> tuple[float, float, float, float]:
    try:
        numbers = [float(part) for part in text.split(",")]
    except ValueError:
        raise ConfigError(f"area={text[:100]}: give four numbers, the least corner of a box and its largest") from None
    return read_area(numbers)
