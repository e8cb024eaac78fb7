"""A site's stream at the hub: made, claimed by one gateway, and woken up when it stalls.

It sources the stream that the gateway writes on its leaf. The first gateway to make it owns the site: one makes the
stream and all others find it. That needs nobody at the hub, and no restart there: the gateway does it over its leaf
link.
"""

from __future__ import annotations

import asyncio
import contextlib
from typing import TYPE_CHECKING, Any

import msgspec
from msgspec import Struct, structs

from stigmergy.base.errors import ConfigError, LinkDown
from stigmergy.nats import naming
from stigmergy.nats.address import parse_address
from stigmergy.nats.errors import STREAM_NOT_FOUND, JetStreamRefused, NoResponders, no_jetstream
from stigmergy.nats.streams import ensure_stream, find_stream

if TYPE_CHECKING:
    from stigmergy.nats.link import NatsLink

KEPT_S = 3_600
KEPT_COUNT = 512
"""Uncollected messages beyond this age or count are dropped: the gateway's journal still has them. A count and not a
size, because a server reserves a stream's maximum size, for each site."""
NS = 1_000_000_000
ASK_S = 2.0
PREFIX = naming.uplink_stream("")
GATEWAY = "stigmergy-gateway"
HOST = "stigmergy-host"


class SiteClaim(Struct, frozen=True):
    """Which gateway owns a site."""

    site: str
    gateway: str
    """An id made once for a gateway's folder."""
    host: str = ""
    """For people."""


class SiteStream(Struct, frozen=True):
    """A site's stream at the hub."""

    arrived: int
    """The last sequence of the leaf's stream that is here."""
    is_sourced: bool
    """False if a gateway was stopped between removing and restoring the source."""


def leaf_settings(site_subjects: str) -> dict[str, Any]:
    """Settings of the stream on the leaf."""
    return {"subjects": [site_subjects], "storage": "file", "retention": "limits", "discard": "old", **_bounds()}


def _bounds() -> dict[str, Any]:
    return {"max_age": KEPT_S * NS, "max_msgs": KEPT_COUNT, "duplicate_window": 10 * NS}


def _sources(site: str) -> list[dict[str, Any]]:
    return [{"name": naming.uplink_stream(site), "external": {"api": f"$JS.{site}.API", "deliver": ""}}]


async def find_site(link: NatsLink, claim: SiteClaim) -> SiteStream | None:
    """The site's stream; None if it does not exist. Raises ConfigError if another gateway owns it."""
    try:
        info = await link.api(f"STREAM.INFO.{naming.uplink_stream(claim.site)}", within_s=ASK_S)
    except JetStreamRefused as refused:
        if refused.code == STREAM_NOT_FOUND:
            return None
        raise
    _check_claim(claim, info["config"].get("metadata") or {})
    sources = info.get("sources") or [{}]
    return SiteStream(int(sources[0].get("seq", 0)), is_sourced=bool(info["config"].get("sources")))


async def make_site(link: NatsLink, claim: SiteClaim, replicas: int) -> None:
    """Makes the stream, and so claims the site. Raises ConfigError if another gateway was first."""
    settings = {
        "storage": "file",
        "retention": "limits",
        "discard": "old",
        "num_replicas": replicas,
        "sources": _sources(claim.site),
        "metadata": {GATEWAY: claim.gateway, HOST: claim.host},
        **_bounds(),
    }
    try:
        await ensure_stream(link, naming.uplink_stream(claim.site), settings, ASK_S)
    except ConfigError:
        found = await find_stream(link, naming.uplink_stream(claim.site))
        if found is not None:
            _check_claim(claim, found.metadata)
        raise


async def wake_site(link: NatsLink, site: str) -> None:
    """Removes and restores the source. The stream's messages tell the server where to go on."""
    name = naming.uplink_stream(site)
    config = (await link.api(f"STREAM.INFO.{name}", within_s=ASK_S))["config"]
    await link.api(f"STREAM.UPDATE.{name}", {**config, "sources": []}, within_s=ASK_S)
    await link.api(f"STREAM.UPDATE.{name}", {**config, "sources": _sources(site)}, within_s=ASK_S)


async def drop_site(link: NatsLink, site: str) -> None:
    """Deletes a site's stream with its messages: then nobody owns the site."""
    try:
        await link.api(f"STREAM.DELETE.{naming.uplink_stream(site)}", within_s=ASK_S)
    except JetStreamRefused as refused:
        if refused.code != STREAM_NOT_FOUND:
            raise


def _check_claim(claim: SiteClaim, metadata: dict[str, str]) -> None:
    owner = metadata.get(GATEWAY)
    if owner != claim.gateway:
        where = f" on {metadata[HOST]}" if metadata.get(HOST) else ""
        raise ConfigError(
            f"site {claim.site}: another gateway{where} has this name at the hub (its id is {owner}, ours "
            f"{claim.gateway}); give this one another --site, or, if the other is permanently gone, start this one "
            "once with --take-over"
        )


# A hub's first line on its leaf port, before a connection: its domain, and whether it has JetStream.

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
    """Only sent to clients: then it is the wrong port."""


def read_greeting(where: str, line: bytes) -> Greeting:
    """Parses the line; raises ConfigError if a gateway cannot use this hub."""
    if not line.startswith(_PREFIX):
        raise ConfigError(f"{where}: not a NATS server; give host:port of the hub's leaf listener")
    try:
        greeting = msgspec.json.decode(line[len(_PREFIX) :], type=Greeting)
    except msgspec.DecodeError:
        raise ConfigError(
            f"{where}: not a NATS server that we know; give host:port of the hub's leaf listener"
        ) from None
    if greeting.client_ip:
        raise ConfigError(
            f"{where}: clients connect here; give the port that leafnodes {{ listen: … }} of the hub names"
        )
    if not greeting.jetstream:
        raise no_jetstream(where)
    if not greeting.domain:
        raise ConfigError(
            f"{where}: the hub's JetStream has no domain, so a leaf cannot distinguish it from its own; write "
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
    """Asks the hubs in turn; returns the first answer. Raises ConfigError, or LinkDown if nobody answers."""
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
            trouble = ConfigError(f"{host}:{port}: not a NATS server; give host:port of the hub's leaf listener")
        except (OSError, TimeoutError, ValueError, asyncio.IncompleteReadError):
            continue
    raise trouble or LinkDown(f"no hub answers at {shown}; trying again until one does")


async def _first_line(host: str, port: int) -> bytes:
    reader, writer = await asyncio.open_connection(host, port, limit=GREETING_BYTES_MAX)
    try:
        return await reader.readuntil(b"\n")
    finally:
        writer.close()
        with contextlib.suppress(OSError):
            await writer.wait_closed()


# Frees a site at its hub, for a gateway that replaces another one.

LINK_S = 10.0
"""A leaf needs a moment after its start to link to its hub."""


async def forget_site(leaf: str, hubs: tuple[str, ...], site: str) -> None:
    """Frees the site over the leaf at this address. The site's stream at the hub is dropped; its sender sends the
    messages again."""
    from stigmergy.nats.link import NatsLink

    domain = (await greet(hubs)).domain
    address = structs.replace(parse_address(f"nats://{leaf}"), domain=domain)
    link = NatsLink(address, name=f"{site} takes over")
    link.start()
    try:
        await link.wait_up(LINK_S)
        await _drop(link, site)
    finally:
        await link.close()


async def _drop(link: NatsLink, site: str) -> None:
    deadline_s = asyncio.get_running_loop().time() + LINK_S
    while True:
        try:
            await drop_site(link, site)
        except JetStreamRefused as refused:
            raise LinkDown(f"the hub does not free site {site}: {refused}") from None
        except NoResponders:
            if asyncio.get_running_loop().time() > deadline_s:
                raise
            await asyncio.sleep(0.1)
        else:
            return
