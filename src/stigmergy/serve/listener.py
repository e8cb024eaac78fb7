"""The HTTP server: uvicorn in the event loop of this process, on one address, with limits for connections and headers.

It installs no signal handlers and logs no requests. Whoever starts it closes it.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
import ssl
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec
from msgspec import Struct

from stigmergy.base.errors import ConfigError
from stigmergy.base.tasks import end_tasks
from stigmergy.base.tls import file_state, server_context
from stigmergy.serve.access import DeniedRequest
from stigmergy.serve.problems import problem_of

try:
    from uvicorn import Config, Server
    from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol
except ModuleNotFoundError as missing:
    raise ConfigError(f'serving HTTP needs {missing.name}: pip install "stigmergy[serve]"') from None

CONNECTIONS_MAX = 1_000
"""One more is told so and closed."""
HEADER_BYTES_MAX = 32 * 1024
"""Of the first line and all headers of a request; a longer one is refused and its connection closed."""
HEADER_S_MAX = 15.0
"""A connection that has not sent a whole header for so long is closed."""
IDLE_S_MAX = 75
"""A connection without a request for so long is closed."""
CLOSING_S_MAX = 5
"""Requests under way when the server is closed get so long to be answered."""
WEBSOCKET_BYTES_MAX = 4 * 1024
BACKLOG = 512
LIST_EVERY_S = 1.0
"""How often the list of revoked certificates is looked at."""


class Address(Struct, frozen=True):
    """Where to listen."""

    host: str
    port: int
    cert: Path | None = None
    key: Path | None = None
    client_ca: Path | None = None
    """Only who shows a certificate of this authority is let in."""
    client_crl: Path | None = None
    """Except who is on this list of revoked certificates."""

    @property
    def url(self) -> str:
        """For people and programs."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{'https' if self.cert else 'http'}://{host}:{self.port}"


def read_address(
    text: str,
    cert: Path | None = None,
    key: Path | None = None,
    client_ca: Path | None = None,
    client_crl: Path | None = None,
) -> Address:
    """Reads `127.0.0.1:8080`, `:8080` (this machine only) or `[::1]:8080`. Raises ConfigError."""
    host, separator, port = text.rpartition(":")
    if not separator or not port.isascii() or not port.isdigit() or int(port) > 65535:
        raise ConfigError(f"{text!r} is no address to listen at; give HOST:PORT, such as 127.0.0.1:8080, or :8080")
    if (cert is None) != (key is None):
        raise ConfigError("a certificate and its key belong together: give --cert and --cert-key")
    if client_ca is not None and cert is None:
        raise ConfigError("--client-ca needs a certificate of this server: give --cert and --cert-key, or --identity")
    if client_crl is not None and client_ca is None:
        raise ConfigError("--client-crl is of no use without --client-ca: nobody is asked for a certificate")
    for path in (cert, key, client_ca, client_crl):
        if path is not None and not path.is_file():
            raise ConfigError(f"{path}: there is no such file")
    return Address(host.strip("[]") or "127.0.0.1", int(port), cert, key, client_ca, client_crl)


def check_addresses(addresses: Sequence[Address]) -> None:
    """Raises ConfigError for what could not be listened at: a port that is taken, a certificate that does not fit its
    key. Whoever starts others first learns it before it does."""
    with contextlib.ExitStack() as listening:
        for address in addresses:
            listening.enter_context(_bound(address))
            if address.cert is not None:
                try:
                    _context(address)
                except (OSError, ssl.SSLError) as error:
                    raise _unusable(address, error) from None


def _context(address: Address) -> ssl.SSLContext:
    return server_context(
        str(address.cert), str(address.key), str(address.client_ca or ""), str(address.client_crl or "")
    )


def _unusable(address: Address, error: Exception) -> ConfigError:
    return ConfigError(f"{address.cert}: certificate and key cannot be used: {error}")


class HttpListener:
    """A server that listens from `start` to `close`."""

    def __init__(self, app: Any, address: Address) -> None:
        self._app = app
        self.address = address
        self._server: Server | None = None
        self._socket: socket.socket | None = None
        self._watching: asyncio.Task[None] | None = None

    async def start(self) -> Address:
        """Listens; returns the address, with the port that was chosen if none was given. Raises ConfigError."""
        address = self.address
        config = Config(
            self._app,
            http=LimitedProtocol,
            ws="websockets-sansio",
            ws_max_size=WEBSOCKET_BYTES_MAX,
            ws_per_message_deflate=False,
            lifespan="off",
            loop="none",
            log_config=None,
            log_level="critical",
            access_log=False,
            server_header=False,
            date_header=False,
            timeout_keep_alive=IDLE_S_MAX,
            timeout_graceful_shutdown=CLOSING_S_MAX,
            ssl_certfile=address.cert,
            ssl_keyfile=address.key,
            backlog=BACKLOG,
        )
        try:
            config.load()
            if address.cert is not None:
                config.ssl = _context(address)  # takes up a renewed certificate
        except (OSError, ssl.SSLError) as error:
            raise _unusable(address, error) from None
        self._socket = _bound(address)
        self.address = msgspec.structs.replace(address, port=self._socket.getsockname()[1])
        server = Server(config)
        server.lifespan = config.lifespan_class(config)
        try:
            await server.startup(sockets=[self._socket])
        except BaseException:  # also a start that is given up at its last step: the socket listens by then
            asyncio.get_running_loop().remove_reader(self._socket)
            self._socket.close()
            raise
        self._server = server
        if address.client_crl is not None:
            self._watching = asyncio.ensure_future(self._watch(address.client_crl, server))
        return self.address

    async def _watch(self, listed: Path, server: Server) -> None:
        """Ends all connections when the list changes: whoever is not on it comes back."""
        seen = file_state(str(listed))
        while True:
            await asyncio.sleep(LIST_EVERY_S)
            with contextlib.suppress(OSError):  # a handshake that cannot read it fails
                if (now := file_state(str(listed))) != seen:
                    seen = now
                    for connection in list(server.server_state.connections):
                        if (transport := getattr(connection, "transport", None)) is not None:
                            transport.abort()

    async def close(self) -> None:
        """Takes nothing more, and lets requests under way end."""
        await end_tasks(self._watching)
        if self._server is not None:
            self._server.should_exit = True
            with contextlib.suppress(OSError):
                await self._server.shutdown(sockets=[self._socket] if self._socket else None)


def _bound(address: Address) -> socket.socket:
    family = socket.AF_INET6 if ":" in address.host else socket.AF_INET
    # With the protocol named, asyncio turns Nagle off: an answer in two pieces would wait 40 ms for the second.
    listening = socket.socket(family, socket.SOCK_STREAM | socket.SOCK_CLOEXEC, socket.IPPROTO_TCP)
    try:
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listening.bind((address.host, address.port))
        listening.setblocking(False)
    except OSError as error:
        listening.close()
        raise ConfigError(f"cannot listen at {address.url}: {error.strerror or error}; choose another port") from None
    return listening


class _Joined:
    """What one answer is written to: its head waits for the body that follows at once, and both go out in one piece."""

    __slots__ = ("_head", "_loop", "_transport")

    def __init__(self, transport: asyncio.Transport, loop: asyncio.AbstractEventLoop) -> None:
        self._transport = transport
        self._loop = loop
        self._head: bytes | None = None

    def write(self, data: bytes) -> None:
        if self._head is None:
            self._head = data
            self._loop.call_soon(self._flush)
        else:
            self._transport.write(self._head + data if self._head else data)
            self._head = b""

    def is_closing(self) -> bool:
        return self._transport.is_closing()

    def close(self) -> None:
        self._flush()
        self._transport.close()

    def _flush(self) -> None:
        if self._head and not self._transport.is_closing():
            self._transport.write(self._head)
        self._head = b""


class LimitedProtocol(HttpToolsProtocol):
    """Refuses connections beyond a number, and headers that are too long or take too long."""

    _header_bytes = 0
    _is_in_header = False
    _deadline: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        if len(self.connections) > CONNECTIONS_MAX:
            self._refuse(503, f"{CONNECTIONS_MAX} connections are open already; try again in a moment")
            return
        self._deadline = self.loop.call_later(HEADER_S_MAX, self.transport.close)

    def connection_lost(self, exc: Exception | None) -> None:
        self._end_deadline()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        # Most headers come whole, and need no timer.
        if self._is_in_header and self._deadline is None:
            self._deadline = self.loop.call_later(HEADER_S_MAX, self.transport.close)

    def on_message_begin(self) -> None:
        self._header_bytes = 0
        self._is_in_header = True
        super().on_message_begin()
        # A client that does not read must not be waited for when it is left.
        self.scope["state"]["abort"] = self.transport.abort

    def on_url(self, url: bytes) -> None:
        if self._has_room(len(url)):
            super().on_url(url)

    def on_header(self, name: bytes, value: bytes) -> None:
        if self._has_room(len(name) + len(value)):
            super().on_header(name, value)

    def on_headers_complete(self) -> None:
        self._end_deadline()
        if self._header_bytes <= HEADER_BYTES_MAX:
            before = self.cycle
            super().on_headers_complete()
            if self.cycle is not before:
                self.cycle.transport = _Joined(self.transport, self.loop)  # type: ignore[assignment]

    def on_body(self, body: bytes) -> None:
        if self.cycle is not None:
            super().on_body(body)

    def on_message_complete(self) -> None:
        if self.cycle is not None:
            super().on_message_complete()

    def send_400_response(self, msg: str) -> None:
        self._refuse(400, msg)

    def _has_room(self, size: int) -> bool:
        before = self._header_bytes
        self._header_bytes += size
        if before <= HEADER_BYTES_MAX < self._header_bytes:
            self._refuse(431, f"a header of more than {HEADER_BYTES_MAX} bytes; send less")
        return self._header_bytes <= HEADER_BYTES_MAX

    def _refuse(self, status: int, why: str) -> None:
        body = msgspec.json.encode(problem_of(DeniedRequest(status, why)))
        head = f"HTTP/1.1 {status} Refused\r\nconnection: close\r\ncontent-length: {len(body)}\r\n"
        self.transport.write(head.encode() + b"content-type: application/problem+json\r\n\r\n" + body)
        self.transport.close()

    def _end_deadline(self) -> None:
        self._is_in_header = False
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None
