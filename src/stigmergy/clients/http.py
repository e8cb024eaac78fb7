"""The API of a fleet over HTTP, from the client's side: docs/http.md has the routes.

httpx, because it is small, all Python (a device has no compiler), and speaks TLS, proxies and streams alike.
"""

from __future__ import annotations

import math
import ssl
from collections.abc import AsyncGenerator, Mapping
from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import quote, urlsplit, urlunsplit

import httpx
import msgspec
from msgspec import Struct

from stigmergy.base.errors import ConfigError, NoAnswer, NotRunning, StigmergyError, TooLarge
from stigmergy.base.tls import RenewingContext, follow_as_client
from stigmergy.clients.remote import ToldEvent, WantedEvents, error_of
from stigmergy.control import protocol, replies
from stigmergy.control.protocol import REPLY_BYTES_MAX, UnreadableReply, trace_headers
from stigmergy.ledgers.records import ShownLedger
from stigmergy.pki.identity import AUTHORITIES, PAIR, check_identity

R = TypeVar("R")
CONNECTIONS_MAX = 100
CONNECT_S_MAX = 10.0
ANSWER_S_MAX = 70.0
"""The server gives a request up after 60 s."""


class ProblemReply(Struct):
    """The body of an error: RFC 9457."""

    type: str = ""
    detail: str = ""
    status: int = 0


class StreamedReply(Struct):
    """What we need of an event of the stream."""

    agent: str = ""
    type: str = ""
    time: str = ""
    fields: Any = None


class AcceptedReply(Struct):
    """What we need of the answer to a command that was accepted."""

    position: int
    after: str = ""


def read_problem(body: bytes, status: int) -> StigmergyError | str:
    """What to raise for an answer that is an error, or the reason of an agent that refuses."""
    try:
        problem = msgspec.json.decode(body, type=ProblemReply)
    except msgspec.MsgspecError:
        problem = ProblemReply()
    kind = problem.type.rpartition(":")[2]
    if kind == "refused":
        return problem.detail
    if not problem.type:
        text = f"the server answers with status {status} and no reason; is it the API of a fleet?"
        return NotRunning(text) if status in (502, 503) else NoAnswer(text) if status == 504 else ConfigError(text)
    return error_of(kind, problem.detail)


def quoted(address: str) -> str:
    """An address in a path. The name of the fleet, if it is there, is one part with the kind."""
    kind, _, name = address.rpartition("/")
    return f"{quote(kind, safe='')}/{quote(name, safe='')}"


class HttpTransport:
    """A few connections to one server, used again and again."""

    def __init__(self, url: str, token: str | None, ca: str | Path | None, identity: str | Path | None = None) -> None:
        parts = urlsplit(url)
        if not parts.hostname or parts.query or parts.fragment or parts.username:
            raise ConfigError(f"connect({url!r}): give a URL like 'https://fleet.example:8443', and token= beside it")
        self._shown = f"{parts.scheme}://{parts.netloc}"
        self._base = urlunsplit((parts.scheme, parts.netloc, parts.path.rstrip("/"), "", ""))
        self._shows_identity = identity is not None
        verify: ssl.SSLContext | bool = trusted_context(ca, identity) if parts.scheme == "https" else False
        self._http = httpx.AsyncClient(
            headers={} if token is None else {"authorization": f"Bearer {token}"},
            verify=verify,
            timeout=httpx.Timeout(ANSWER_S_MAX, connect=CONNECT_S_MAX),
            limits=httpx.Limits(max_connections=CONNECTIONS_MAX, max_keepalive_connections=CONNECTIONS_MAX),
        )

    async def open(self) -> None:
        self._read(await self._do("GET", "/healthz"), dict[str, Any])

    async def close(self) -> None:
        await self._http.aclose()

    async def ask(self, request: protocol.Request[R]) -> R:
        found: Any
        match request:
            case protocol.SendRequest():
                found = await self._send(request)
            case protocol.ObserveRequest():
                body = {"agent": request.agent, "event": request.event, "fields": request.fields}
                self._read(await self._do("POST", "/v1/observations", body, trace=request), dict[str, Any])
                found = replies.ObserveReply()
            case protocol.StateRequest():
                query = {} if request.at is None else {"at": request.at}
                path = f"/v1/agents/{quoted(request.agent)}"
                found = self._read(await self._do("GET", path, query=query), replies.StateReply)
            case protocol.AgentsRequest():
                asked = {"kind": request.kind, "where": request.where, "limit": request.limit, "cursor": request.after}
                given = {name: value for name, value in asked.items() if value}
                found = self._read(await self._do("GET", "/v1/agents", query=given), replies.AgentsReply)
            case protocol.ViewRequest():
                names = ("where", "order", "limit", "cursor", "after")
                given = {name: value for name in names if (value := getattr(request, name)) not in ("", [])}
                given["within_s"] = math.ceil(request.within_s)
                given |= {"of_node": request.node} if request.node else {}
                answer = await self._do("GET", f"/v1/views/{quote(request.view, safe='')}", query=given)
                found = self._read(answer, replies.ViewReply)
            case protocol.LedgerRequest():
                given = {"after": request.after, "limit": request.limit}
                given |= {name: "true" for name in ("latest", "fresh") if getattr(request, name)}
                answer = await self._do("GET", f"/v1/ledgers/{quote(request.ledger, safe='')}", query=given)
                found = self._read(answer, ShownLedger)
            case _:
                raise ConfigError(f"the HTTP API has no {type(request).__name__}")
        return found  # type: ignore[no-any-return]

    async def _send(self, request: protocol.SendRequest) -> replies.SendReply:
        path = f"/v1/agents/{quoted(request.agent)}/{quote(request.command, safe='')}"
        answer = await self._do("POST", path, request.fields, command_id=request.command_id, trace=request)
        if answer.status_code == 409 and isinstance(reason := read_problem(answer.content, 409), str):
            return replies.SendReply(accepted=False, position=None, reason=reason)
        said = self._read(answer, AcceptedReply)
        return replies.SendReply(accepted=True, position=said.position, reason=None, after=said.after)

    async def _do(
        self,
        method: str,
        path: str,
        body: Mapping[str, Any] | None = None,
        *,
        query: Mapping[str, Any] | None = None,
        command_id: str | None = None,
        trace: protocol.TracedRequest[Any] | None = None,
    ) -> httpx.Response:
        headers = trace_headers(trace)
        if command_id is not None:
            headers["idempotency-key"] = command_id
        content = None
        if body is not None:
            content = msgspec.json.encode(body)
            headers["content-type"] = "application/json"
        try:
            return await self._http.request(
                method, self._base + path, content=content, params=query or None, headers=headers
            )
        except (httpx.ConnectError, httpx.ConnectTimeout, httpx.PoolTimeout) as error:
            raise NotRunning(f"{self._shown}: {explained(error)}") from None
        except httpx.HTTPError as error:
            hint = _if_unshown(self._shown, error, self._shows_identity)
            raise NoAnswer(f"{self._shown}: the connection broke ({explained(error)}){hint}") from None
        except RuntimeError:
            raise NotRunning("the client was closed") from None

    async def events(self, wanted: WantedEvents) -> AsyncGenerator[ToldEvent, None]:
        query = {"kind": wanted.kinds, "type": wanted.types, "agent": wanted.agents}
        given: dict[str, Any] = {name: value for name, value in query.items() if value}
        given |= {"after": wanted.after} if wanted.after else {"since": wanted.since} if wanted.since else {}
        given |= {"of_node": wanted.node} if wanted.node else {}
        given |= {"area": ",".join(map(str, wanted.area))} if wanted.area else {}
        try:
            async with self._http.stream("GET", f"{self._base}/v1/events", params=given) as answer:
                if answer.status_code != 200:
                    await answer.aread()
                    self._read(answer, dict[str, Any])
                missing = tuple(filter(None, answer.headers.get("stigmergy-missing", "").split(", ")))
                async for name, event_id, data in _server_sent(answer):
                    if name == "dropped":
                        yield ToldEvent(event_id)
                        raise NoAnswer(f"{self._shown}: the server ended the stream: {data.decode()}")
                    yield self._told(event_id, data, missing)
        except (httpx.ConnectError, httpx.ConnectTimeout, httpx.PoolTimeout) as error:
            raise NotRunning(f"{self._shown}: {explained(error)}") from None
        except (httpx.HTTPError, httpx.StreamError) as error:
            raise NoAnswer(f"{self._shown}: the connection broke ({explained(error)})") from None
        except RuntimeError:
            raise NotRunning("the client was closed") from None
        raise NoAnswer(f"{self._shown}: the stream ended")

    def _told(self, event_id: str, data: bytes, missing: tuple[str, ...]) -> ToldEvent:
        try:
            told = msgspec.json.decode(data, type=StreamedReply) if data else StreamedReply()
        except msgspec.MsgspecError as error:
            text = f"{self._shown}: an event does not decode ({error}); is it the API of a fleet?"
            raise UnreadableReply(text) from None
        return ToldEvent(event_id, told.agent, told.type, told.time, told.fields, missing)

    def _read(self, answer: httpx.Response, kind: type[R]) -> R:
        if answer.status_code != 200:
            found = read_problem(answer.content, answer.status_code)
            raise found if isinstance(found, StigmergyError) else ConfigError(found)
        if len(answer.content) > REPLY_BYTES_MAX:
            raise TooLarge(f"{self._shown}: an answer of more than {REPLY_BYTES_MAX} bytes")
        try:
            return msgspec.json.decode(answer.content, type=kind)
        except msgspec.MsgspecError as error:
            text = f"{self._shown}: the answer does not decode ({error}); is it the API of a fleet?"
            raise UnreadableReply(text) from None


async def _server_sent(answer: httpx.Response) -> AsyncGenerator[tuple[str, str, bytes], None]:
    """The events of a stream: name, id and data. A comment alone is none."""
    held = b""
    async for piece in answer.aiter_bytes():
        *whole, held = (held + piece).split(b"\n\n")
        if len(held) > REPLY_BYTES_MAX:
            raise TooLarge(f"an event of more than {REPLY_BYTES_MAX} bytes")
        for block in whole:
            fields = dict(line.partition(b": ")[::2] for line in block.split(b"\n"))
            if b"id" in fields:
                yield fields.get(b"event", b"").decode(), fields[b"id"].decode(), fields.get(b"data", b"")


def trusted_context(ca: str | Path | None, identity: str | Path | None = None) -> ssl.SSLContext:
    """Trusts the authorities of an identity and shows its certificate; else trusts the system's certificates, or those
    in a file. Raises ConfigError."""
    folder = None if identity is None else check_identity(Path(identity))
    ca, pair = ca or (folder and folder / AUTHORITIES), str(folder / PAIR) if folder is not None else ""
    try:
        context = RenewingContext(ssl.PROTOCOL_TLS_CLIENT)
        follow_as_client(context, "" if ca is None else str(ca), pair, pair)
    except (OSError, ssl.SSLError) as error:
        raise ConfigError(f"ca={str(ca)!a}: the certificates cannot be read: {error}") from None
    return context


def _if_unshown(shown: str, error: Exception, shows_identity: bool) -> str:
    """What to try where the server ended the connection at once. TLS says why, but after the handshake: the library
    drops it."""
    if not isinstance(error, httpx.ReadError | httpx.RemoteProtocolError):
        return ""
    if shown.startswith("http:"):
        return "; if it takes encrypted connections only, write https://"
    return "" if shows_identity else "; if it lets in only who shows a certificate, give connect(identity=DIR)"


def explained(error: Exception) -> str:
    """What the library says, for people."""
    return str(error) or type(error).__name__
