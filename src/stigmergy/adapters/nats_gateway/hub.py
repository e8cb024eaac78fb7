"""A site's stream at the hub: made, claimed by one gateway, and woken up when it has fallen asleep.

It sources the stream that the gateway writes on its leaf. Whoever makes it first has the site: a stream is made by one
and found by all others. That needs nobody at the hub, and no restart there: the gateway does it over its leaf link.
"""

from __future__ import annotations

from typing import Any

from msgspec import Struct

from stigmergy.adapters.nats import naming
from stigmergy.adapters.nats.errors import STREAM_NOT_FOUND, JetStreamRefused
from stigmergy.adapters.nats.link import NatsLink
from stigmergy.adapters.nats.streams import ensure_stream, find_stream
from stigmergy.core.errors import ConfigError

KEPT_S = 3_600
KEPT_COUNT = 512
"""What was sent up and not collected for so long, or beyond so many, goes: the gateway's journal still has it. A count
and no size, because a server sets aside what a size allows, for each site."""
NS = 1_000_000_000
ASK_S = 2.0
PREFIX = naming.uplink_stream("")
GATEWAY = "stigmergy-gateway"
HOST = "stigmergy-host"


class Claim(Struct, frozen=True):
    """Whose a site is."""

    site: str
    gateway: str
    """Made once for a gateway's folder. Another gateway has another one."""
    host: str = ""
    """For people."""


class SiteStream(Struct, frozen=True):
    """A site's stream at the hub, as it is."""

    arrived: int
    """The last number of the leaf's stream that is here."""
    is_sourced: bool
    """False if somebody was ended between taking the source away and giving it back."""


def leaf_settings(site_subjects: str) -> dict[str, Any]:
    """Of the stream on the leaf."""
    return {"subjects": [site_subjects], "storage": "file", "retention": "limits", "discard": "old", **_bounds()}


def _bounds() -> dict[str, Any]:
    return {"max_age": KEPT_S * NS, "max_msgs": KEPT_COUNT, "duplicate_window": 10 * NS}


def _sources(site: str) -> list[dict[str, Any]]:
    return [{"name": naming.uplink_stream(site), "external": {"api": f"$JS.{site}.API", "deliver": ""}}]


async def find_site(link: NatsLink, claim: Claim) -> SiteStream | None:
    """The site's stream; None if nobody has made it. Raises ConfigError if it is another gateway's."""
    try:
        info = await link.api(f"STREAM.INFO.{naming.uplink_stream(claim.site)}", within_s=ASK_S)
    except JetStreamRefused as refused:
        if refused.code == STREAM_NOT_FOUND:
            return None
        raise
    _check_claim(claim, info["config"].get("metadata") or {})
    sources = info.get("sources") or [{}]
    return SiteStream(int(sources[0].get("seq", 0)), is_sourced=bool(info["config"].get("sources")))


async def make_site(link: NatsLink, claim: Claim, replicas: int) -> None:
    """Makes it, and so claims the site. Raises ConfigError if another gateway was first."""
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
    """Takes the source away and gives it back. What is there tells the server where it was."""
    name = naming.uplink_stream(site)
    config = (await link.api(f"STREAM.INFO.{name}", within_s=ASK_S))["config"]
    await link.api(f"STREAM.UPDATE.{name}", {**config, "sources": []}, within_s=ASK_S)
    await link.api(f"STREAM.UPDATE.{name}", {**config, "sources": _sources(site)}, within_s=ASK_S)


async def drop_site(link: NatsLink, site: str) -> None:
    """Takes a site's stream away, with what is in it: nobody has the site then."""
    try:
        await link.api(f"STREAM.DELETE.{naming.uplink_stream(site)}", within_s=ASK_S)
    except JetStreamRefused as refused:
        if refused.code != STREAM_NOT_FOUND:
            raise


def _check_claim(claim: Claim, metadata: dict[str, str]) -> None:
    owner = metadata.get(GATEWAY)
    if owner != claim.gateway:
        where = f" on {metadata[HOST]}" if metadata.get(HOST) else ""
        raise ConfigError(
            f"site {claim.site}: another gateway{where} has this name at the hub (its id is {owner}, ours "
            f"{claim.gateway}); give this one another --site, or, if the other is gone for good, start this one once "
            "with --take-over"
        )
