"""The gRPC service of a fleet: each call becomes a control request, as those of the HTTP API do.

The same tokens (metadata `authorization`), the same checks by the fleet's types, the same limits for a caller. A
problem is a status with a sentence; the trailer `stigmergy-type` has the type that its HTTP body would have. Health is
there for everybody, reflection for who may read. Whoever starts the server closes it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from contextlib import nullcontext
from typing import Any, TypeVar

import msgspec

from stigmergy.agents.messages import SECOND_NS, Command, Event
from stigmergy.agents.plans import AgentPlan
from stigmergy.agents.text import find_message
from stigmergy.base.command_ids import RANDOM_BYTES, new_command_id
from stigmergy.base.errors import ConfigError, Malformed, StigmergyError
from stigmergy.base.system import SystemClock, SystemEntropy
from stigmergy.control import protocol
from stigmergy.control.protocol import TRACE_HEADERS
from stigmergy.diagnostics.logger import Log
from stigmergy.node.declaration import Declaration
from stigmergy.proto.descriptors import message_classes
from stigmergy.proto.service import METHODS, SERVICE, FleetProto
from stigmergy.proto.shapes import ProtoField, Timestamp
from stigmergy.serve.access import AccessGate, DeniedRequest
from stigmergy.serve.api import check_fields, check_ledger
from stigmergy.serve.asker import Asker
from stigmergy.serve.events import EventHub, EventStream, EventStreams, StreamedEvent, make_filter, read_area
from stigmergy.serve.listener import Address
from stigmergy.serve.problems import RefusedCommand, problem_of
from stigmergy.serve.pump import HEARTBEAT_S, LOOK_S, SEND_S_MAX, DroppedReader
from stigmergy.serve.tokens import OBSERVE, READ, Caller
from stigmergy.shard.homes import plan_at
from stigmergy.views.query import WITHIN_S

try:
    from stigmergy.proto.grpc_library import grpc  # isort: skip - before all that load the library

    from grpc_health.v1 import health, health_pb2, health_pb2_grpc
    from grpc_reflection.v1alpha import reflection
except ModuleNotFoundError as missing:
    raise ConfigError(f'serving gRPC needs {missing.name}: pip install "stigmergy[grpc]"') from None

R = TypeVar("R")
REQUEST_BYTES_MAX = 1024 * 1024
"""A larger request is refused by the library, with RESOURCE_EXHAUSTED."""
REPLY_BYTES_MAX = 16 * 1024 * 1024
CALLS_MAX = 1_000
"""So many calls and streams may be under way; one more is refused with RESOURCE_EXHAUSTED."""
METADATA_BYTES_MAX = 16 * 1024
DETAIL_CHARS_MAX = 2_000
"""A longer sentence is cut: it travels in a header."""
CLOSING_S_MAX = 5.0
"""Calls under way when the server is closed get so long to be answered."""
ALIVE_MS = 30_000
"""A connection that is silent for so long is asked whether it is there, and closed if it does not answer."""
PAGE_COUNT = 100
CODES = {
    400: grpc.StatusCode.INVALID_ARGUMENT,
    401: grpc.StatusCode.UNAUTHENTICATED,
    403: grpc.StatusCode.PERMISSION_DENIED,
    404: grpc.StatusCode.NOT_FOUND,
    409: grpc.StatusCode.FAILED_PRECONDITION,
    410: grpc.StatusCode.OUT_OF_RANGE,
    413: grpc.StatusCode.INVALID_ARGUMENT,
    421: grpc.StatusCode.NOT_FOUND,
    422: grpc.StatusCode.INVALID_ARGUMENT,
    429: grpc.StatusCode.RESOURCE_EXHAUSTED,
    503: grpc.StatusCode.UNAVAILABLE,
    504: grpc.StatusCode.DEADLINE_EXCEEDED,
}
"""By the HTTP status of a problem; a bug of ours is INTERNAL."""
TYPE_TRAILER, COMMAND_TRAILER = "stigmergy-type", "stigmergy-command-id"
RETRY_TRAILER = "grpc-retry-pushback-ms"
_events = msgspec.json.Decoder(list[StreamedEvent])
log = Log("serve")


class FleetService:
    """Answers the calls."""

    def __init__(
        self,
        fleet: Declaration,
        proto: FleetProto,
        asker: Asker,
        gate: AccessGate,
        hub: EventHub,
        past: asyncio.Lock,
    ) -> None:
        """`past` is held by whoever looks back, as in the HTTP API: a node does that for one at a time."""
        self._past = past
        self._streams = EventStreams(hub)
        self._fleet = fleet
        self._proto = proto
        self._asker = asker
        self._gate = gate
        self._clock, self._entropy = SystemClock(), SystemEntropy()
        self.pool, self._classes = message_classes(proto.describe())

    def handlers(self) -> Any:
        """What the library needs to call us."""
        singles: dict[str, Callable[[Any, Any], Awaitable[Any]]] = {
            "Send": self._send,
            "Observe": self._observe,
            "GetAgent": self._get_agent,
            "ListAgents": self._list_agents,
            "QueryView": self._query_view,
            "ReadLedger": self._read_ledger,
        }
        made = {}
        for method in METHODS:
            read, write = self._classes[method.request].FromString, self._classes[method.reply].SerializeToString
            if method.streams:
                made[method.name] = grpc.unary_stream_rpc_method_handler(
                    self._guarded(self._watch), request_deserializer=read, response_serializer=write
                )
                continue
            made[method.name] = grpc.unary_unary_rpc_method_handler(
                self._guarded(singles[method.name]), request_deserializer=read, response_serializer=write
            )
        return grpc.method_handlers_generic_handler(f"{self._proto.package}.{SERVICE}", made)

    def _guarded(self, call: Callable[[Any, Any], Awaitable[R]]) -> Callable[[Any, Any], Awaitable[R]]:
        """Tells the caller what is wrong, instead of a stack trace."""

        async def answer(request: Any, context: Any) -> R:
            try:
                return await call(request, context)
            except Exception as error:
                await abort(context, error)
                raise

        return answer

    def _admit(self, context: Any, scope: str) -> Caller:
        """Lets a caller in who has this scope. Raises DeniedRequest."""
        given = dict(context.invocation_metadata() or ())
        caller = self._gate.admit(_headers(given), _address(context.peer()), "grpc")
        self._gate.check(caller, scope)
        return caller

    # ------------------------------------------------------------------ commands and observations

    async def _send(self, request: Any, context: Any) -> Any:
        plan = self._plan_at(request.agent)
        caller = self._admit(context, f"command:{plan.kind}")
        name, fields = _message(request, "command", self._proto.commands)
        message = find_message(plan, Command, name)
        check_fields(fields, message)
        command_id = request.command_id or new_command_id(self._clock.wall_ns(), self._entropy.token(RANDOM_BYTES))
        asked = protocol.SendRequest(agent=request.agent, command=name, fields=fields, command_id=command_id)
        asked.traceparent, asked.tracestate = _trace_of(context)
        asked.caller = caller.shown_as("grpc")
        try:
            reply = await self._asker.ask(asked)
            if not reply.accepted:
                raise RefusedCommand(reply.reason or "refused")
        except StigmergyError as error:
            await abort(context, error, command_id)
            raise
        return self._classes["SendReply"](position=reply.position or 0, after=reply.after or "")

    async def _observe(self, request: Any, context: Any) -> Any:
        self._admit(context, OBSERVE)
        name, fields = _message(request, "event", self._proto.events)
        check_fields(fields, find_message(self._plan_at(request.agent), Event, name))
        asked = protocol.ObserveRequest(agent=request.agent, event=name, fields=fields)
        asked.traceparent, asked.tracestate = _trace_of(context)
        await self._asker.ask(asked)
        return self._classes["ObserveReply"]()

    # ------------------------------------------------------------------ questions

    async def _get_agent(self, request: Any, context: Any) -> Any:
        self._admit(context, READ)
        self._plan_at(request.agent)
        asked = protocol.StateRequest(agent=request.agent, at=request.at or None)
        async with self._past if request.at else nullcontext():
            seen = await self._asker.ask(asked)
        reply = self._classes["GetAgentReply"](
            agent=seen.agent, known=seen.known, shard=seen.shard, position=seen.position, stopped=seen.stopped or ""
        )
        if seen.time:
            Timestamp().fill(reply.time, seen.time)
        self._put_state(reply, seen.agent, seen.state, as_json=request.as_json)
        return reply

    async def _list_agents(self, request: Any, context: Any) -> Any:
        self._admit(context, READ)
        page = await self._asker.ask(
            protocol.AgentsRequest(
                kind=request.kind or None,
                where=list(request.where),
                limit=request.limit or PAGE_COUNT,
                after=request.cursor,
            )
        )
        reply = self._classes["ListAgentsReply"](next=page.next or "", missing=[one.why for one in page.missing])
        for one in page.agents:
            listed = reply.agents.add(agent=one.agent, known=True, shard=one.shard, stopped=one.stopped or "")
            self._put_state(listed, one.agent, one.state, as_json=request.as_json)
        return reply

    async def _query_view(self, request: Any, context: Any) -> Any:
        self._admit(context, READ)
        asked = protocol.ViewRequest(
            view=request.view,
            where=list(request.where),
            order=list(request.order),
            limit=request.limit or PAGE_COUNT,
            cursor=request.cursor,
            after=list(request.after),
            within_s=request.within_s or WITHIN_S,
            node=request.of_node,
        )
        page = await self._asker.ask(asked)
        reply = self._classes["QueryViewReply"](next=page.next or "", missing=[one.why for one in page.missing])
        field = None if request.as_json else self._proto.rows.get(page.view)
        for row in page.rows:
            if field is None:
                reply.rows.add(json=msgspec.json.encode(row).decode())
            else:
                field.put_into(reply.rows.add(), row)
        return reply

    async def _read_ledger(self, request: Any, context: Any) -> Any:
        self._admit(context, READ)
        check_ledger(self._fleet, request.ledger)
        asked = protocol.LedgerRequest(
            ledger=request.ledger,
            after=request.after,
            limit=request.limit or PAGE_COUNT,
            latest=request.latest,
            fresh=request.fresh,
        )
        page = await self._asker.ask(asked)
        reply = self._classes["ReadLedgerReply"](position=page.position)
        for one in page.entries:
            who = {"proposer": one.proposer, "writer": one.writer}
            shown = reply.entries.add(position=one.position, id=one.id, type=one.type, **who)
            field = None if request.as_json else self._proto.entries.get(one.type)
            if field is None or not _has_put(field, shown, one.entry):
                shown.json = msgspec.json.encode(one.entry).decode()
        return reply

    # ------------------------------------------------------------------ streams

    async def _watch(self, request: Any, context: Any) -> None:
        """Sends events until the client leaves, is too slow, or may not read any more."""
        caller = self._admit(context, READ)
        area = read_area(request.area) if request.area else None
        wanted = make_filter(self._fleet.plans, request.kinds, request.types, request.agents, area)
        since_ns = request.since.seconds * SECOND_NS + request.since.nanos if request.HasField("since") else None
        async with self._streams.open(wanted, request.after, since_ns, request.of_node, as_sse=False) as stream:
            await self._pump(stream, context, caller, as_json=request.as_json)

    async def _pump(self, stream: EventStream, context: Any, caller: Caller, *, as_json: bool) -> None:
        now_s = asyncio.get_running_loop().time
        reply = self._classes["WatchReply"]
        await context.write(reply(after=stream.last_id, missing=stream.missing))
        sent_s = now_s()
        while True:
            piece = await stream.next(LOOK_S)
            if not self._gate.is_still_valid(caller):
                raise DeniedRequest(401, "the token does not count any more")
            # The library waits here while the client does not read; the ring goes on, and drops who is too far behind.
            async with asyncio.timeout(SEND_S_MAX):
                for event in _events.decode(b"[%b]" % piece):
                    await context.write(self._told(event, as_json=as_json))
                    sent_s = now_s()
                if now_s() - sent_s >= HEARTBEAT_S:
                    await context.write(reply(after=stream.last_id, missing=stream.missing))
                    sent_s = now_s()

    def _told(self, event: StreamedEvent, *, as_json: bool) -> Any:
        reply = self._classes["WatchReply"](
            after=event.id,
            agent=event.agent,
            type=event.type,
            shard=event.shard,
            position=event.position,
            index=event.index,
        )
        Timestamp().fill(reply.time, event.time)
        field = None if as_json else self._proto.watched.get(event.type)
        if field is not None and _has_put(field, reply, event.fields):
            return reply
        reply.json.name, reply.json.fields = event.type, msgspec.json.encode(event.fields).decode()
        return reply

    def _put_state(self, reply: Any, address: str, state: Mapping[str, Any], *, as_json: bool) -> None:
        field = self._proto.states.get(address.partition("/")[0])
        if as_json or field is None:
            reply.json = msgspec.json.encode(state).decode()
        else:
            field.put_into(reply, state)

    def _plan_at(self, address: str) -> AgentPlan:
        return plan_at(self._fleet.plans, address)


def _has_put(field: ProtoField, reply: Any, fields: Mapping[str, Any]) -> bool:
    """Puts a typed message into a reply; not one of another time, whose fields do not fit today's: it goes as JSON."""
    try:
        field.put_into(reply, fields)
    except ValueError:
        reply.ClearField(field.name)
        return False
    return True


def _message(request: Any, oneof: str, known: Mapping[str, tuple[str, ProtoField]]) -> tuple[str, dict[str, Any]]:
    """The name or tag of the message in a request, and its fields."""
    chosen = request.WhichOneof(oneof)
    if chosen is None:
        raise Malformed(f"{oneof}: give one of json, {', '.join(known)}; is this client newer than the server?")
    if chosen != "json":
        tag, field = known[chosen]
        fields: dict[str, Any] = field.take_from(request, "")
        fields.pop("type", None)
        return tag, fields
    try:
        return request.json.name, msgspec.json.decode(request.json.fields or "{}", type=dict[str, Any])
    except msgspec.MsgspecError as error:
        raise Malformed(f"json.fields: {error}") from None


def _headers(metadata: Mapping[str, Any]) -> dict[bytes, bytes]:
    """What the gate looks at. No web page can make a call of gRPC, so there is no name of a host to check."""
    given = metadata.get("authorization")
    text = given if isinstance(given, str) else ""
    return {b"host": b"localhost", **({b"authorization": text.encode("latin-1", "replace")} if text else {})}


def _trace_of(context: Any) -> tuple[str, str]:
    """The trace context in the metadata of a call."""
    given = dict(context.invocation_metadata() or ())
    parent, state = (given.get(name, "") for name in TRACE_HEADERS)
    return str(parent), str(state)


def _address(peer: str) -> str:
    """`ipv4:127.0.0.1:40000` without the port."""
    return peer.partition(":")[2].rpartition(":")[0].strip("[]") or "local"


async def abort(context: Any, error: Exception, command_id: str = "") -> None:
    """Ends a call with what is wrong. Always raises."""
    if isinstance(error, grpc.aio.AbortError):
        raise error
    if isinstance(error, DroppedReader | TimeoutError):
        await context.abort(
            grpc.StatusCode.ABORTED, "this client was too slow for the stream; watch again behind its last `after`"
        )
    if not isinstance(error, StigmergyError):
        log.say("request-failed", "a call over gRPC failed", error=error)
    problem = problem_of(error)
    trailers = [(TYPE_TRAILER, problem.type)]
    if command_id.isascii() and command_id.isprintable() and command_id:
        trailers.append((COMMAND_TRAILER, command_id))
    if problem.retry_after_s is not None:
        trailers.append((RETRY_TRAILER, str(problem.retry_after_s * 1000)))
    code = CODES.get(problem.status, grpc.StatusCode.INTERNAL)
    await context.abort(code, problem.detail[:DETAIL_CHARS_MAX], tuple(trailers))


class ReadersOnly(grpc.aio.ServerInterceptor):  # type: ignore[misc]
    """Reflection tells the types of the fleet: it is for who may read."""

    def __init__(self, gate: AccessGate) -> None:
        self._gate = gate

    async def intercept_service(self, continuation: Any, call: Any) -> Any:
        if not call.method.startswith("/grpc.reflection."):
            return await continuation(call)
        try:
            self._gate.check(self._gate.admit(_headers(dict(call.invocation_metadata)), "reflection", "grpc"), READ)
        except StigmergyError as error:
            refused = error

            async def refuse(_: Any, context: Any) -> None:
                await abort(context, refused)

            return grpc.stream_stream_rpc_method_handler(refuse)
        return await continuation(call)


class GrpcServer:
    """The gRPC service of a fleet, from `start` to `close`."""

    def __init__(
        self,
        fleet: Declaration,
        proto: FleetProto,
        asker: Asker,
        gate: AccessGate,
        hub: EventHub,
        past: asyncio.Lock,
        address: Address,
    ) -> None:
        self.address = address
        self._service = FleetService(fleet, proto, asker, gate, hub, past)
        self._names = (f"{proto.package}.{SERVICE}", health.SERVICE_NAME, reflection.SERVICE_NAME)
        self._gate = gate
        self._health = health.aio.HealthServicer()
        self._server: Any = None

    async def start(self) -> Address:
        """Listens; returns the address, with the port that was chosen if none was given. Raises ConfigError."""
        options = (
            ("grpc.max_receive_message_length", REQUEST_BYTES_MAX),
            ("grpc.max_send_message_length", REPLY_BYTES_MAX),
            ("grpc.max_metadata_size", METADATA_BYTES_MAX),
            ("grpc.max_concurrent_streams", CALLS_MAX),
            ("grpc.keepalive_time_ms", ALIVE_MS),
            ("grpc.keepalive_timeout_ms", ALIVE_MS),
            ("grpc.so_reuseport", 0),
        )
        server = grpc.aio.server(
            interceptors=(ReadersOnly(self._gate),), options=options, maximum_concurrent_rpcs=CALLS_MAX
        )
        server.add_generic_rpc_handlers((self._service.handlers(),))
        health_pb2_grpc.add_HealthServicer_to_server(self._health, server)
        reflection.enable_server_reflection(self._names, server, pool=self._service.pool)
        host = f"[{self.address.host}]" if ":" in self.address.host else self.address.host
        try:
            port = self._listen(server, f"{host}:{self.address.port}")
        except (RuntimeError, OSError, ValueError) as error:
            raise ConfigError(f"cannot listen for gRPC at {host}:{self.address.port}: {error}") from None
        await server.start()
        for name in ("", self._names[0]):
            await self._health.set(name, health_pb2.HealthCheckResponse.SERVING)
        self._server = server
        self.address = msgspec.structs.replace(self.address, port=port)
        return self.address

    def _listen(self, server: Any, where: str) -> int:
        if self.address.cert is None or self.address.key is None:
            return int(server.add_insecure_port(where))
        pair = (self.address.key.read_bytes(), self.address.cert.read_bytes())
        roots = None if self.address.client_ca is None else self.address.client_ca.read_bytes()
        wants = roots is not None
        return int(server.add_secure_port(where, grpc.ssl_server_credentials((pair,), roots, wants)))

    @property
    def url(self) -> str:
        """For people and programs."""
        return self.address.url.replace("http", "grpc", 1)

    async def close(self) -> None:
        """Takes no new calls, ends streams, and lets calls under way end."""
        if self._server is not None:
            await self._health.enter_graceful_shutdown()
            await self._server.stop(CLOSING_S_MAX)
