"""Subjects of uplink topics on NATS. Pure.

    delivery/north/uplink/gateway          stig.delivery.up.north.gateway      into the site's stream, and so to the hub
    delivery/north/uplink/gateway/marks    stig.delivery.down.north.gateway    from the hub, a plain message
    delivery/+/uplink/+                    stig.delivery.up.*.*

They are separate from the fleet's own subjects, which stay at the site.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

from stigmergy.base.errors import ConfigError, Malformed
from stigmergy.nats import naming

UPLINK = "uplink"
MARKS = "marks"
UP = "up"
DOWN = "down"
ANY = "+"
INNER = ("bus", "kept", "part", "log", "owner", "grown", "snapshots", "tells", "control", "ledger")
"""Subjects of ours that belong to the servers of one level: buses, logs, workers and ledgers."""
SITE_CHARS_MAX = 32
_SITE = re.compile(r"[A-Za-z0-9_-]{1,32}")
_ESCAPED = re.compile(r"(?:_[0-9A-F]{2})+")


def subject_of(topic: str) -> str:
    """The subject of an uplink's topic, or of a pattern of such. Raises Malformed for any other."""
    match topic.split("/"):
        case [fleet, site, "uplink", node]:
            way = UP
        case [fleet, site, "uplink", node, "marks"]:
            way = DOWN
        case _:
            raise Malformed(f"{topic[:200]!r} is no topic of an uplink; nothing else goes between levels")
    return ".".join((naming.ROOT, _token(fleet), way, _token(site), _token(node)))


def topic_of(subject: str) -> str:
    """The topic of a subject. Raises Malformed if it is none of an uplink's."""
    match subject.split("."):
        case [naming.ROOT, fleet, "up", site, node]:
            levels = [fleet, site, UPLINK, node]
        case [naming.ROOT, fleet, "down", site, node]:
            levels = [fleet, site, UPLINK, node, MARKS]
        case _:
            raise Malformed(f"{subject[:200]!r} is no subject of an uplink")
    return "/".join(_level(level) for level in levels)


def check_site(site: str) -> str:
    """The name of a site, which names a JetStream domain too. Raises ConfigError if it cannot."""
    if _SITE.fullmatch(site) is None:
        raise ConfigError(
            f"site {site!r}: it names a JetStream domain; give 1 to {SITE_CHARS_MAX} letters, digits, _ and -"
        )
    return site


def site_subjects(site: str) -> str:
    """All that goes up from a site, of whatever fleet."""
    return f"{naming.ROOT}.*.{UP}.{naming.token(site)}.>"


def kept_subjects(roots: Iterable[str]) -> tuple[str, ...]:
    """What stays at a site: topics that begin so, and what a fleet says to itself on one level."""
    topics = (f"{root.replace('.', '//')}.>" for root in dict.fromkeys(roots))
    return (*topics, *(f"{naming.ROOT}.*.{what}.>" for what in INNER), "$MQTT.>")


def deliver_subject(client_id: str) -> str:
    """Where a node at the hub is given what came up."""
    return f"{naming.ROOT}.collect.{naming.token(client_id)}"


def _token(level: str) -> str:
    return "*" if level == ANY else naming.token(level)


def _level(token: str) -> str:
    if token == "*":
        return ANY
    return _ESCAPED.sub(lambda found: bytes.fromhex(found.group().replace("_", "")).decode("utf-8", "replace"), token)
