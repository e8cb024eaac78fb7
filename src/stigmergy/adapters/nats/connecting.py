"""What it takes to connect to NATS: certificates; and why it did not work, in our words."""

from __future__ import annotations

import asyncio
import os
import re
import socket
import ssl

from nats import errors as nats_errors
from nats.aio.client import Client

from stigmergy.adapters.nats.address import NatsAddress
from stigmergy.adapters.nats.client import NotEncrypted
from stigmergy.core.errors import ConfigError, LinkDown, StigmergyError

CONNECTING_FAILS = (
    nats_errors.Error,
    OSError,
    ssl.SSLError,
    TimeoutError,
    ValueError,
    StigmergyError,
    asyncio.CancelledError,
)
"""What the library raises where it cannot connect; the last one, see `is_cancelled`."""

_ERRNO = re.compile(r"\[Errno (\d+)\]")
_ENDED = (ConnectionResetError, BrokenPipeError, EOFError, nats_errors.StaleConnectionError)


def tls_context(address: NatsAddress) -> ssl.SSLContext | None:
    """For an encrypted connection; None for a plain one."""
    if not address.servers[0].startswith("tls:"):
        return None
    try:
        context = ssl.create_default_context(cafile=address.ca or None)
        if address.cert:
            context.load_cert_chain(address.cert, address.key)
    except (OSError, ssl.SSLError) as error:
        raise ConfigError(
            f"{address.shown}: a certificate or key cannot be read ({error}); check ca, cert, key"
        ) from None
    return context


def explain(address: NatsAddress, error: BaseException, before: StigmergyError | None = None) -> StigmergyError:
    """An error of the client library in our words; what was known before, if it says nothing."""
    if isinstance(error, StigmergyError):
        return error
    if isinstance(error, asyncio.CancelledError) and before is not None:
        return before
    if isinstance(error, _ENDED) and isinstance(before, ConfigError):
        # A server that lets nobody in says why and hangs up; what it said is lost if we were still writing.
        return before
    text = _said(error)
    if isinstance(error, nats_errors.AuthorizationError) or "uthorization" in text:
        return ConfigError(f"{address.shown}: the server does not let us in; check user and password in the URL")
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
    """What went wrong, without the call that it went wrong in."""
    if isinstance(error, TimeoutError) and not error.errno:
        return "no answer in time"
    if isinstance(error, socket.gaierror):
        return str(error.strerror)
    text = str(error) or type(error).__name__
    number = _ERRNO.search(text)  # also of the first of several addresses, which a name may have
    return os.strerror(int(number[1])) if number is not None else text


def is_cancelled() -> bool:
    """Whether somebody means this task, and not only what it waits for.

    The library cancels what it waits for itself when a server goes while it connects: whoever called it must not end.
    """
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0


async def end_quietly(client: Client) -> None:
    """Closes a client of the library, whatever that says."""
    try:
        await client.close()
    except (Exception, asyncio.CancelledError):
        if is_cancelled():
            raise
