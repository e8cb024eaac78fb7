"""The client library's connection, with two additions: it leaves a server that hangs, and enforces encryption.

Before it leaves a connection, the library waits until the server has read everything. A stopped server, or a link that
drops everything, would block us forever.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
import socket
import ssl
from typing import Any

from nats import errors as nats_errors
from nats.aio.client import Client

from stigmergy.base.errors import ConfigError, LinkDown, StigmergyError
from stigmergy.base.tls import RenewingContext, follow_as_client
from stigmergy.nats.address import NatsAddress

HEADERS_KNOWN_MAX = 256
HEADERS_BYTES_MAX = 256
"""Bounds of the cache of parsed headers: entries, and bytes of each."""
CLOSE_S = 1.0
"""The limit for flushing when we close."""


class NotEncrypted(nats_errors.Error):
    """The URL asks for TLS, and the server does not offer it."""

    def __str__(self) -> str:
        return "the server does not speak TLS; nothing was sent to it"


class NatsConnection(Client):
    """A connection of the library that also reconnects."""

    def __init__(self) -> None:
        super().__init__()
        self._is_over = False
        """We were closed. The library's reconnecting task may miss its cancellation, and would go on without us."""
        self._closing_task: asyncio.Task[None] | None = None
        self._headers_known: dict[bytes, dict[str, str]] = {}

    def _connect_command(self) -> bytes:
        # The library uses TLS only if the server asks for it. A man in the middle could leave that out and get the
        # password.
        if self.options.get("tls") is not None and not self._is_encrypted():
            raise NotEncrypted
        # The library begins TLS on a plain connection, and asyncio would complain at its end that nobody told it.
        if (writer := getattr(self._transport, "_io_writer", None)) is not None and self._is_encrypted():
            writer.transport.get_protocol()._over_ssl = True
        command: bytes = super()._connect_command()
        return command

    async def _process_headers(self, headers: Any) -> dict[str, str] | None:
        # Most messages repeat the headers of another one, and parsing took a fifth of a message's time.
        raw = bytes(headers or b"")
        known = self._headers_known.get(raw)
        if known is None:
            read: dict[str, str] | None = await super()._process_headers(headers)
            if not read or len(raw) > HEADERS_BYTES_MAX:
                return read
            if len(self._headers_known) >= HEADERS_KNOWN_MAX:
                self._headers_known.clear()
            known = self._headers_known[raw] = read
        return dict(known)

    async def _process_pong(self) -> None:
        # The waiter for this pong may have given up. The library would treat that as a broken connection.
        if self._pongs and self._pongs[0].done():
            del self._pongs[0]
            self._pongs_received += 1
            self._pings_outstanding = 0
            return
        await super()._process_pong()

    async def _attempt_reconnect(self) -> None:
        self._abort()
        # The library sets the result of a future here that it may have cancelled itself.
        with contextlib.suppress(asyncio.InvalidStateError):
            await super()._attempt_reconnect()
        if self._is_over and not self.is_closed:
            self._closing_task = asyncio.get_running_loop().create_task(super()._close(Client.CLOSED, do_cbs=False))

    async def _select_next_server(self) -> None:
        if self._is_over:
            raise asyncio.CancelledError
        # A server that accepted the connection and then hung: the library would drop the socket without closing it.
        self._abort()
        await super()._select_next_server()

    async def _close(self, status: int, do_cbs: bool = True) -> None:
        self._is_over = self._is_over or status == Client.CLOSED  # the library also calls this between two attempts
        timer = asyncio.get_running_loop().call_later(CLOSE_S, self._abort)
        try:
            if self._write_pending() and self._transport is not None:
                with contextlib.suppress(OSError):
                    await self._transport.drain()  # type: ignore[no-untyped-call]
            await super()._close(status, do_cbs)
        finally:
            timer.cancel()

    async def _send_ping(self, future: asyncio.Future[Any] | None = None) -> None:
        # The library writes a ping before messages that were published earlier: then the pong would confirm nothing.
        self._write_pending()
        await super()._send_ping(future)

    def _write_pending(self) -> bool:
        """Writes pending data in order; returns whether there was any."""
        if not self.is_connected or not self._pending or self._transport is None:
            return False
        self._transport.writelines(self._pending[:])
        self._pending.clear()
        self._pending_data_size = 0
        return True

    def _is_encrypted(self) -> bool:
        writer = getattr(self._transport, "_io_writer", None)
        return writer is not None and writer.get_extra_info("ssl_object") is not None

    def _abort(self) -> None:
        """Ends the connection without flushing."""
        writer = getattr(self._transport, "_io_writer", None)
        if writer is not None:
            writer.transport.abort()


# Connecting to NATS: certificates, and connection errors translated to ours.

CONNECTING_FAILS = (
    nats_errors.Error,
    OSError,
    ssl.SSLError,
    TimeoutError,
    ValueError,
    StigmergyError,
    asyncio.CancelledError,
)
"""The exceptions of a failed connect; for the last one see `is_cancelled`."""

_ERRNO = re.compile(r"\[Errno (\d+)\]")
_ENDED = (ConnectionResetError, BrokenPipeError, EOFError, nats_errors.StaleConnectionError)


def tls_context(address: NatsAddress) -> ssl.SSLContext | None:
    """The TLS settings; None for a plain connection."""
    if not address.servers[0].startswith("tls:"):
        return None
    try:
        context = RenewingContext(ssl.PROTOCOL_TLS_CLIENT)
        follow_as_client(context, address.ca, address.cert, address.key)
    except (OSError, ssl.SSLError) as error:
        raise ConfigError(
            f"{address.shown}: a certificate or key cannot be read ({error}); check ca, cert, key"
        ) from None
    return context


def explain(address: NatsAddress, error: BaseException, before: StigmergyError | None = None) -> StigmergyError:
    """Translates an error of the client library; returns `before` if the error itself says nothing."""
    if isinstance(error, StigmergyError):
        return error
    if isinstance(error, asyncio.CancelledError) and before is not None:
        return before
    if isinstance(error, _ENDED) and isinstance(before, ConfigError):
        # A server that rejects us says why and closes; its message is lost if we were still writing.
        return before
    text = _said(error)
    if isinstance(error, nats_errors.AuthorizationError) or "uthorization" in text:
        if address.cert:
            return ConfigError(
                f"{address.shown}: it does not let our certificate in ({address.cert}): its name is unknown there, or "
                "it was revoked; see `stigmergy ca list`, and `stigmergy cluster users`"
            )
        return ConfigError(f"{address.shown}: the server does not let us in; check user and password in the URL")
    if not address.servers[0].startswith("tls:") and isinstance(error, ssl.SSLError):
        return ConfigError(
            f"{address.shown}: no encrypted connection, and this server takes no other; write tls://, and give "
            "--identity DIR, identity = in stigmergy.toml, or ca, cert and key in the URL"
        )
    if (
        isinstance(error, ssl.SSLError | NotEncrypted)
        or "tls" in text.lower()
        or isinstance(error, nats_errors.SecureConnRequiredError)
    ):
        return ConfigError(
            f"{address.shown}: no encrypted connection ({text}); check tls://, ca, cert and key in the URL"
        )
    if "permissions violation" in text.lower():
        return ConfigError(f"{address.shown}: {text}; let this user publish and subscribe there")
    return LinkDown(f"{address.shown}: {text}; check the URL, and that the server runs")


def _said(error: BaseException) -> str:
    """The reason, without the name of the call that failed."""
    if isinstance(error, TimeoutError) and not error.errno:
        return "no answer in time"
    if isinstance(error, socket.gaierror):
        return str(error.strerror)
    text = str(error) or type(error).__name__
    number = _ERRNO.search(text)  # a host name may have several addresses: the first one's error
    return os.strerror(int(number[1])) if number is not None else text


def is_cancelled() -> bool:
    """Whether this task itself was cancelled, and not only what it waits for.

    The library cancels its own futures when a server goes away during a connect: that must not end its caller.
    """
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0


async def end_quietly(client: Client) -> None:
    """Closes a client of the library and ignores its errors."""
    try:
        await client.close()
    except (Exception, asyncio.CancelledError):
        if is_cancelled():
            raise
