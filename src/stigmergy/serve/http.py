"""HTTP as ASGI delivers it: a request, an answer, and a table of routes. Knows nothing of fleets.

There is no framework underneath: a path is a list of segments, a route is a pattern of them, and msgspec reads and
writes the bodies (docs/decisions says why). Every limit is here: body, time, query.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, MutableMapping, Sequence
from typing import Any, TypeVar
from urllib.parse import parse_qsl, unquote

import msgspec
from msgspec import Struct

from stigmergy.base.errors import ConfigError
from stigmergy.serve.access import DeniedRequest
from stigmergy.serve.problems import HttpProblem
from stigmergy.serve.tokens import Caller

Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
T = TypeVar("T")
BODY_BYTES_MAX = 1024 * 1024
"""A larger body is refused with 413."""
BODY_S_MAX = 30.0
"""A body that takes longer to arrive is refused with 408."""
QUERY_COUNT_MAX = 32
JSON = b"application/json"
PROBLEM = b"application/problem+json"
SUBPROTOCOL = "stigmergy"
TOKEN_SUBPROTOCOL = "stigmergy.token."
"""A web page cannot set the headers of a WebSocket: it offers both, the second with its token behind it."""


class HttpAnswer(Struct, frozen=True):
    """What goes back: a whole body."""

    body: bytes
    status: int = 200
    type: bytes = JSON
    headers: tuple[tuple[bytes, bytes], ...] = ()


def json_answer(value: Any, status: int = 200) -> HttpAnswer:
    """A value as JSON."""
    return HttpAnswer(msgspec.json.encode(value), status)


def problem_answer(problem: HttpProblem) -> HttpAnswer:
    """An error."""
    headers: list[tuple[bytes, bytes]] = []
    if problem.retry_after_s is not None:
        headers.append((b"retry-after", str(problem.retry_after_s).encode()))
    if problem.status == 401:
        headers.append((b"www-authenticate", b"Bearer"))
    return HttpAnswer(msgspec.json.encode(problem), problem.status, PROBLEM, tuple(headers))


class HttpCall:
    """One request."""

    def __init__(self, scope: Message, receive: Receive, send: Send) -> None:
        self.scope = scope
        self.receive = receive
        self.send = send
        self.is_socket = scope["type"] == "websocket"
        self.method: str = "WEBSOCKET" if self.is_socket else scope["method"]
        self.headers: dict[bytes, bytes] = dict(scope["headers"])
        self.segments = [unquote(one) for one in scope["raw_path"].decode("ascii").split("/")[1:]]
        self.parameters: dict[str, str] = {}
        """What the route took from the path, by name."""
        self.subprotocol: str | None = None
        """What a WebSocket is answered with; None if it offers nothing that we know."""
        for offered in scope.get("subprotocols", ()):
            if offered == SUBPROTOCOL:
                self.subprotocol = SUBPROTOCOL
            elif offered.startswith(TOKEN_SUBPROTOCOL):
                token = offered.removeprefix(TOKEN_SUBPROTOCOL).encode("latin-1", "replace")
                self.headers.setdefault(b"authorization", b"Bearer " + token)
        self.caller = Caller("", ())
        self.extra_headers: list[tuple[bytes, bytes]] = []
        """Headers that each answer to this caller has."""

    @property
    def scheme(self) -> str:
        """How a web page of this server was reached: http or https."""
        return "https" if self.scope["scheme"] in ("https", "wss") else "http"

    def abort(self) -> None:
        """Cuts the connection off, whatever has not been sent."""
        abort = self.scope.get("state", {}).get("abort")
        if abort is not None:
            abort()

    @property
    def address(self) -> str:
        """The network address of the caller."""
        client = self.scope.get("client")
        return str(client[0]) if client else "local"

    def header(self, name: bytes) -> str | None:
        """A header as text."""
        value = self.headers.get(name)
        return None if value is None else value.decode("latin-1")

    def query(self, known: Sequence[str]) -> dict[str, list[str]]:
        """The parameters of the query. One that is not known is refused: a misspelt filter must not be ignored."""
        try:
            text = self.scope["query_string"].decode("ascii")
            pairs = parse_qsl(text, keep_blank_values=True, max_num_fields=QUERY_COUNT_MAX, errors="strict")
        except ValueError as error:
            raise ConfigError(f"the query cannot be read: {error}") from None
        found: dict[str, list[str]] = {}
        for name, value in pairs:
            if name not in known:
                raise ConfigError(f"there is no parameter {name!r} here; there are {', '.join(known) or 'none'}")
            found.setdefault(name, []).append(value)
        return found

    async def body(self) -> bytes:
        """The whole body. Raises DeniedRequest for one that is too large, too slow, or no JSON."""
        kind = self.headers.get(b"content-type", b"").partition(b";")[0].strip().lower()
        declared = self.headers.get(b"content-length", b"0")
        if declared.isdigit() and int(declared) > BODY_BYTES_MAX:
            raise DeniedRequest(413, f"a body of {declared.decode()} bytes, {BODY_BYTES_MAX} at most; send less")
        body = bytearray()
        try:
            async with asyncio.timeout(BODY_S_MAX):
                while True:
                    message = await self.receive()
                    if message["type"] != "http.request":
                        raise DeniedRequest(400, "the body ended before it was whole")
                    body += message.get("body", b"")
                    if len(body) > BODY_BYTES_MAX:
                        raise DeniedRequest(413, f"a body of more than {BODY_BYTES_MAX} bytes; send less")
                    if not message.get("more_body"):
                        break
        except TimeoutError:
            raise DeniedRequest(408, f"the body took more than {BODY_S_MAX:g} s") from None
        # A form of a web page can send text/plain across sites without asking first; JSON it cannot.
        if body and kind != JSON:
            raise DeniedRequest(415, "send the body as JSON: Content-Type: application/json")
        return bytes(body)

    async def reply(self, answer: HttpAnswer) -> None:
        """Sends an answer; to a WebSocket that was not accepted, instead of accepting it."""
        headers = [
            (b"content-type", answer.type),
            (b"content-length", str(len(answer.body)).encode()),
            *answer.headers,
            *self.extra_headers,
        ]
        kind = "websocket.http.response" if self.is_socket else "http.response"
        await self.send({"type": f"{kind}.start", "status": answer.status, "headers": headers})
        await self.send({"type": f"{kind}.body", "body": answer.body})


def one_of(query: dict[str, list[str]], name: str) -> str | None:
    """A parameter that may be given once."""
    values = query.get(name, [])
    if len(values) > 1:
        raise ConfigError(f"the parameter {name!r} is given {len(values)} times; give it once")
    return values[0] if values else None


def number_of(query: dict[str, list[str]], name: str, default: T) -> int | T:
    """A parameter that is a whole number."""
    text = one_of(query, name)
    if text is None:
        return default
    if not text.isascii() or not text.isdigit() or len(text) > 18:
        raise ConfigError(f"{name}={text}: give a whole number")
    return int(text)


Handler = Callable[[HttpCall], Awaitable[HttpAnswer | None]]
"""Answers a call; None if it has sent its own answer, as streams do."""


class HttpRoute(Struct, frozen=True):
    """A method, a pattern such as `/v1/agents/{kind}/{name}`, who answers, and the scope that is needed.

    An empty scope means that anybody may ask; `command` stands for `command:` and the kind in the path.
    """

    method: str
    pattern: str
    handler: Handler
    scope: str
    about: str = ""
    is_described: bool = True
    """Whether it is in the OpenAPI document."""

    @property
    def segments(self) -> list[str]:
        """The parts of the pattern."""
        return self.pattern.split("/")[1:]


_Pattern = tuple[tuple[tuple[int, str], ...], tuple[tuple[int, str], ...], HttpRoute]
"""The segments that are fixed, and those that have names, by their places."""


class HttpRoutes:
    """All routes of a server."""

    def __init__(self, routes: Sequence[HttpRoute]) -> None:
        self.all = tuple(routes)
        self._by_shape: dict[tuple[str, int], list[_Pattern]] = {}
        for route in routes:
            parts = list(enumerate(route.segments))
            fixed = tuple((index, part) for index, part in parts if part[:1] != "{")
            named = tuple((index, part[1:-1]) for index, part in parts if part[:1] == "{")
            self._by_shape.setdefault((route.method, len(parts)), []).append((fixed, named, route))

    def find(self, method: str, segments: Sequence[str]) -> tuple[HttpRoute, dict[str, str]]:
        """The route of a request, and what its path says. Raises DeniedRequest."""
        found = self._find("GET" if method == "HEAD" else method, segments)
        if found is not None:
            return found
        others = sorted({one for one, _ in self._by_shape if one != "WEBSOCKET" and self._find(one, segments)})
        if others:
            text = f"{method} is not possible here; use {' or '.join(others)}"
            raise DeniedRequest(405, text, allow=", ".join(others))
        raise DeniedRequest(404, f"there is no /{'/'.join(segments)[:200]}; /openapi.json lists what there is")

    def _find(self, method: str, segments: Sequence[str]) -> tuple[HttpRoute, dict[str, str]] | None:
        for fixed, named, route in self._by_shape.get((method, len(segments)), ()):
            if all(segments[index] == part for index, part in fixed):
                parameters = {name: segments[index] for index, name in named}
                if all(parameters.values()):
                    return route, parameters
        return None
