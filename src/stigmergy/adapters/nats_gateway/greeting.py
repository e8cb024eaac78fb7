"""What a hub says of itself on its leaf port, before anybody connects: its domain, and whether it has JetStream."""

from __future__ import annotations

import asyncio
import contextlib

import msgspec
from msgspec import Struct

from stigmergy.adapters.nats.errors import no_jetstream
from stigmergy.core.errors import ConfigError, LinkDown

GREETING_BYTES_MAX = 64 * 1024
GREET_S = 3.0
LEAF_PORT = 7422
_PREFIX = b"INFO "


class Greeting(Struct, frozen=True):
    """A server's first line."""

    server_name: str = ""
    domain: str = ""
    jetstream: bool = False
    client_ip: str = ""
    """Only said to clients: then it is the wrong port."""


def read_greeting(where: str, line: bytes) -> Greeting:
    """Reads it, and raises ConfigError if no gateway can have this hub."""
    if not line.startswith(_PREFIX):
        raise ConfigError(f"{where}: this is no NATS server; give host:port of the hub's leaf listener")
    try:
        greeting = msgspec.json.decode(line[len(_PREFIX) :], type=Greeting)
    except msgspec.DecodeError:
        raise ConfigError(
            f"{where}: this is no NATS server that we know; give host:port of the hub's leaf listener"
        ) from None
    if greeting.client_ip:
        raise ConfigError(
            f"{where}: clients connect here; give the port that leafnodes {{ listen: … }} of the hub names"
        )
    if not greeting.jetstream:
        raise no_jetstream(where)
    if not greeting.domain:
        raise ConfigError(
            f"{where}: the hub's JetStream has no domain, so that a leaf cannot tell it from its own; write "
            "domain: hub into its jetstream { … } block and restart it"
        )
    return greeting


def split_hub(hub: str) -> tuple[str, int]:
    """Host and port of `[user:password@]host[:port]`."""
    host, colon, port = hub.rpartition("@")[2].rpartition(":")
    if not colon:
        host, port = port, str(LEAF_PORT)
    host = host.strip("[]")
    if not host or not port.isdecimal() or not 0 < int(port) < 65536:
        raise ConfigError(
            f"hub {hub.rpartition('@')[2]!r}: give host:port of the hub's leaf listener, like hub:{LEAF_PORT}"
        )
    return host, int(port)


async def greet(hubs: tuple[str, ...], within_s: float = GREET_S) -> Greeting:
    """Asks them in turn; the first that answers. Raises ConfigError, or LinkDown if nobody answers."""
    shown = ", ".join(hub.rpartition("@")[2] for hub in hubs)
    trouble: ConfigError | None = None
    for hub in hubs:
        host, port = split_hub(hub)
        try:
            async with asyncio.timeout(within_s):
                return read_greeting(f"{host}:{port}", await _first_line(host, port))
        except ConfigError as error:
            trouble = error
        except asyncio.LimitOverrunError:
            trouble = ConfigError(f"{host}:{port}: this is no NATS server; give host:port of the hub's leaf listener")
        except (OSError, TimeoutError, ValueError, asyncio.IncompleteReadError):
            continue
    raise trouble or LinkDown(f"no hub answers at {shown}; it is tried again until one does")


async def _first_line(host: str, port: int) -> bytes:
    reader, writer = await asyncio.open_connection(host, port, limit=GREETING_BYTES_MAX)
    try:
        return await reader.readuntil(b"\n")
    finally:
        writer.close()
        with contextlib.suppress(OSError):
            await writer.wait_closed()
