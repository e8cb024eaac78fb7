"""The API of a fleet over gRPC, from the client's side: docs/grpc.md has the service.

Messages travel as JSON within the service's own messages, so a client needs the fleet's name and no file of numbers.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator
from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import urlsplit

import msgspec

from stigmergy.base.errors import ConfigError, NoAnswer, NotRunning, Overloaded, StigmergyError
from stigmergy.clients.remote import ToldEvent, WantedEvents, error_of
from stigmergy.control import protocol, replies
from stigmergy.control.protocol import trace_headers
from stigmergy.ledgers.records import ShownEntry, ShownLedger
from stigmergy.pki.identity import AUTHORITIES, PAIR, check_identity
from stigmergy.proto.grpc_library import grpc
from stigmergy.proto.service import SERVICE, plain_service
from stigmergy.proto.shapes import Timestamp

R = TypeVar("R")
ANSWER_S_MAX = 70.0
"""The server gives a request up after 60 s."""
REPLY_BYTES_MAX = 16 * 1024 * 1024
TYPE_TRAILER = "stigmergy-type"
_json = msgspec.json.Encoder()


class GrpcTransport:
    """One connection to one server."""

    def __init__(
        self, url: str, fleet: str, token: str | None, ca: str | Path | None, identity: str | Path | None = None
    ) -> None:
        parts = urlsplit(url)
        if not parts.hostname or not parts.port or parts.path.strip("/") or parts.query or parts.username:
            raise ConfigError(f"connect({url!r}): give a URL like 'grpcs://fleet.example:9090', and token= beside it")
        self._target = parts.netloc
        self._credentials: Any = None
        if parts.scheme == "grpcs":
            folder = None if identity is None else check_identity(Path(identity))
            ca = ca or (None if folder is None else folder / AUTHORITIES)
            try:
                roots = None if ca is None else Path(ca).read_bytes()
                pair = None if folder is None else (folder / PAIR).read_bytes()
            except OSError as error:
                raise ConfigError(f"ca={str(ca)!a}: the certificates cannot be read: {error}") from None
            self._credentials = grpc.ssl_channel_credentials(roots, pair, pair)
        self._metadata = () if token is None else (("authorization", f"Bearer {token}"),)
        self._package, self._classes = plain_service(fleet)
        self._channel: Any = None

    async def open(self) -> None:
        if self._channel is None:
            options = (
                ("grpc.max_receive_message_length", REPLY_BYTES_MAX),
                ("grpc.enable_retries", 0),  # what is sent again, and when, is decided above
                ("grpc.initial_reconnect_backoff_ms", 100),
                ("grpc.min_reconnect_backoff_ms", 100),
                ("grpc.max_reconnect_backoff_ms", 2_000),
                ("grpc.keepalive_time_ms", 30_000),
            )
            if self._credentials is None:
                self._channel = grpc.aio.insecure_channel(self._target, options)
            else:
                self._channel = grpc.aio.secure_channel(self._target, self._credentials, options)
        await self._call("ListAgents", self._classes["ListAgentsRequest"](limit=1, as_json=True), "ListAgentsReply")

    async def close(self) -> None:
        if self._channel is not None:
            await self._channel.close()

    async def ask(self, request: protocol.Request[R]) -> R:
        found: Any
        match request:
            case protocol.SendRequest():
                found = await self._send(request)
            case protocol.ObserveRequest():
                asked = self._classes["ObserveRequest"](agent=request.agent, json=_named(request.event, request.fields))
                await self._call("Observe", asked, "ObserveReply", request)
                found = replies.ObserveReply()
            case protocol.StateRequest():
                asked = self._classes["GetAgentRequest"](agent=request.agent, at=request.at or "", as_json=True)
                reply = await self._call("GetAgent", asked, "GetAgentReply")
                time = reply.time.ToJsonString() if reply.HasField("time") else None
                found = replies.StateReply(
                    reply.agent,
                    reply.known,
                    reply.shard,
                    reply.position,
                    time,
                    reply.stopped or None,
                    msgspec.json.decode(reply.json),
                )
            case protocol.AgentsRequest():
                found = await self._list(request)
            case protocol.ViewRequest():
                names = [name for name in request.__struct_fields__ if name not in ("v", "node")]
                given = {name: getattr(request, name) for name in names} | {"of_node": request.node, "as_json": True}
                reply = await self._call("QueryView", self._classes["QueryViewRequest"](**given), "QueryViewReply")
                rows = [msgspec.json.decode(row.json) for row in reply.rows]
                missing = [replies.MissingPart(why=why) for why in reply.missing]
                found = replies.ViewReply(request.view, rows, reply.next or None, {}, missing)
            case protocol.LedgerRequest():
                given = {name: getattr(request, name) for name in ("ledger", "after", "limit", "latest", "fresh")}
                asked = self._classes["ReadLedgerRequest"](**given, as_json=True)
                reply = await self._call("ReadLedger", asked, "ReadLedgerReply")
                entries = [
                    ShownEntry(one.position, one.id, one.type, msgspec.json.decode(one.json), one.proposer, one.writer)
                    for one in reply.entries
                ]
                found = ShownLedger(request.ledger, entries, reply.position)
            case _:
                raise ConfigError(f"the gRPC service has no {type(request).__name__}")
        return found  # type: ignore[no-any-return]

    async def _send(self, request: protocol.SendRequest) -> replies.SendReply:
        asked = self._classes["SendRequest"](
            agent=request.agent, command_id=request.command_id or "", json=_named(request.command, request.fields)
        )
        try:
            reply = await self._call("Send", asked, "SendReply", request)
        except RefusedCall as refused:
            return replies.SendReply(accepted=False, position=None, reason=str(refused))
        return replies.SendReply(accepted=True, position=reply.position, reason=None, after=reply.after)

    async def _list(self, request: protocol.AgentsRequest) -> replies.AgentsReply:
        asked = self._classes["ListAgentsRequest"](
            kind=request.kind or "", where=request.where, limit=request.limit, cursor=request.after, as_json=True
        )
        reply = await self._call("ListAgents", asked, "ListAgentsReply")
        listed = [
            replies.ListedAgent(one.agent, one.shard, one.stopped or None, msgspec.json.decode(one.json))
            for one in reply.agents
        ]
        return replies.AgentsReply(listed, reply.next or None, [replies.MissingPart(why=why) for why in reply.missing])

    async def events(self, wanted: WantedEvents) -> AsyncGenerator[ToldEvent, None]:
        if self._channel is None:
            raise NotRunning("the client is not open; use it inside async with")
        asked = self._classes["WatchRequest"](
            kinds=wanted.kinds,
            types=wanted.types,
            agents=wanted.agents,
            after=wanted.after,
            of_node=wanted.node,
            as_json=True,
            area=wanted.area,
        )
        if wanted.since:
            try:
                Timestamp().fill(asked.since, wanted.since)
            except ValueError:
                raise ConfigError(f"since={wanted.since!r}: give a time such as 2026-11-15T08:00:00Z") from None
        watch = self._channel.unary_stream(
            f"/{self._package}.{SERVICE}/Watch",
            request_serializer=type(asked).SerializeToString,
            response_deserializer=self._classes["WatchReply"].FromString,
        )
        call = watch(asked, metadata=self._metadata)
        try:
            async for told in call:
                fields = msgspec.json.decode(told.json.fields) if told.agent else None
                time = told.time.ToJsonString() if told.agent else ""
                missing = None if told.agent else tuple(told.missing)
                yield ToldEvent(told.after, told.agent, told.type, time, fields, missing)
        except grpc.aio.AioRpcError as error:
            raise read_status(error, self._target) from None
        except grpc.aio.UsageError:
            raise NotRunning("the client was closed") from None
        finally:
            call.cancel()
        raise NoAnswer(f"{self._target}: the stream ended")

    async def _call(
        self, method: str, request: Any, reply: str, trace: protocol.TracedRequest[Any] | None = None
    ) -> Any:
        if self._channel is None:
            raise NotRunning("the client is not open; use it inside async with")
        call = self._channel.unary_unary(
            f"/{self._package}.{SERVICE}/{method}",
            request_serializer=type(request).SerializeToString,
            response_deserializer=self._classes[reply].FromString,
        )
        try:
            metadata = (*self._metadata, *trace_headers(trace).items())
            return await call(request, timeout=ANSWER_S_MAX, metadata=metadata)
        except grpc.aio.AioRpcError as error:
            raise read_status(error, self._target) from None
        except grpc.aio.UsageError:
            raise NotRunning("the client was closed") from None


class RefusedCall(StigmergyError):
    """An agent has refused a command."""


def read_status(error: Any, target: str) -> StigmergyError:
    """What to raise for a status: what the server means, by its trailer, or what the library says."""
    kind = dict(error.trailing_metadata() or ()).get(TYPE_TRAILER, "")
    text = error.details() or error.code().name
    if str(kind).endswith(":refused"):
        return RefusedCall(text)
    if kind:
        return error_of(str(kind), text)
    match error.code():
        case grpc.StatusCode.UNAVAILABLE if "connect" in text.lower():
            return NotRunning(f"{target}: {text}")
        case grpc.StatusCode.RESOURCE_EXHAUSTED:
            return Overloaded(f"{target}: {text}")
        case (
            grpc.StatusCode.UNAVAILABLE
            | grpc.StatusCode.DEADLINE_EXCEEDED
            | grpc.StatusCode.CANCELLED
            | grpc.StatusCode.ABORTED
        ):
            return NoAnswer(f"{target}: the connection broke ({text})")
        case grpc.StatusCode.UNIMPLEMENTED:
            return ConfigError(f"{target}: {text}; is it the API of this fleet?")
        case _:
            return ConfigError(f"{target}: {text}")


def _named(name: str, fields: Any) -> dict[str, str]:
    return {"name": name, "fields": _json.encode(fields).decode()}
