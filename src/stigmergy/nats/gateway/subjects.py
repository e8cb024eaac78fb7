"""Subjects of uplink topics on NATS. Pure.

    delivery/north/uplink/gateway          stig.delivery.up.north.gateway      into the site's stream, and so to the hub
    delivery/north/uplink/gateway/marks    stig.delivery.down.north.gateway    from the hub, a plain message
    delivery/+/uplink/+                    stig.delivery.up.*.*
    delivery/north/uplink/gateway/routed         stig.delivery.rise.HUB.north.gateway    plain messages to the hub, and
    delivery/north/uplink/gateway/routed-down    stig.delivery.fall.HUB.north.gateway    from it; HUB is its domain

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
ROUTED = {"routed": "rise", "routed-down": "fall"}
ANY = "+"
INNER = ("bus", "kept", "part", "log", "owner", "grown", "snapshots", "tells", "control", "ledger")
"""Our subjects that stay within the servers of one level: buses, logs, workers and ledgers."""
SITE_CHARS_MAX = 32
_SITE = re.compile(r"[A-Za-z0-9_-]{1,32}")
_ESCAPED = re.compile(r"(?:_[0-9A-F]{2})+")


def subject_of(topic: str) -> str:
    """The subject of an uplink's topic or pattern. Raises Malformed for any other topic."""
    match topic.split("/"):
        case [fleet, site, "uplink", node]:
            way = UP
        case [fleet, site, "uplink", node, "marks"]:
            way = DOWN
        case _:
            raise Malformed(f"{topic[:200]!r} is not an uplink topic; nothing else crosses levels")
    return ".".join((naming.ROOT, _token(fleet), way, _token(site), _token(node)))


def topic_of(subject: str) -> str:
    """The topic of an uplink's subject. Raises Malformed for any other subject."""
    match subject.split("."):
        case [naming.ROOT, fleet, "up", site, node]:
            levels = [fleet, site, UPLINK, node]
        case [naming.ROOT, fleet, "down", site, node]:
            levels = [fleet, site, UPLINK, node, MARKS]
        case _:
            raise Malformed(f"{subject[:200]!r} is not an uplink subject")
    return "/".join(_level(level) for level in levels)


def is_routed(topic: str) -> bool:
    """Whether a topic or pattern is for agents of other levels: then it crosses one link, to the hub of that name."""
    return topic.rpartition("/")[2] in ROUTED


def routed_subject(topic: str, hub: str) -> str:
    """The subject of such a topic or pattern, at the hub with this domain; + for any.

    The hub is in it because plain messages cross all leaf links where somebody listens, and names of sites are unique
    only below one hub.
    """
    match topic.split("/"):
        case [fleet, site, "uplink", node, ("routed" | "routed-down") as way]:
            return ".".join((naming.ROOT, _token(fleet), ROUTED[way], _token(hub), _token(site), _token(node)))
        case _:
            raise Malformed(f"{topic[:200]!r} is not a topic for agents of other levels")


def routed_topic(subject: str) -> tuple[str, str]:
    """The topic of such a subject, and the domain of the hub. Raises Malformed for any other subject."""
    ways = {way: ending for ending, way in ROUTED.items()}
    match subject.split("."):
        case [naming.ROOT, fleet, way, hub, site, node] if way in ways:
            return "/".join((_level(fleet), _level(site), UPLINK, _level(node), ways[way])), _level(hub)
        case _:
            raise Malformed(f"{subject[:200]!r} is no subject for agents of other levels")


def check_site(site: str) -> str:
    """Returns the site's name if it can name a JetStream domain; else raises ConfigError."""
    if _SITE.fullmatch(site) is None:
        raise ConfigError(
            f"site {site!r}: it names a JetStream domain; give 1 to {SITE_CHARS_MAX} letters, digits, _ and -"
        )
    return site


def site_subjects(site: str) -> str:
    """The subjects that go up from a site, of any fleet."""
    return f"{naming.ROOT}.*.{UP}.{naming.token(site)}.>"


def kept_subjects(roots: Iterable[str]) -> tuple[str, ...]:
    """The subjects that stay at a site: topics with these first levels, and a fleet's internal ones on one level."""
    topics = (f"{root.replace('.', '//')}.>" for root in dict.fromkeys(roots))
    return (*topics, *(f"{naming.ROOT}.*.{what}.>" for what in INNER), "$MQTT.>")


def deliver_subject(client_id: str) -> str:
    """Where a node at the hub receives uplink messages."""
    return f"{naming.ROOT}.collect.{naming.token(client_id)}"


def _token(level: str) -> str:
    return "*" if level == ANY else naming.token(level)


def _level(token: str) -> str:
    if token == "*":
        return ANY
    return _ESCAPED.sub(lambda found: bytes.fromhex(found.group().replace("_", "")).decode("utf-8", "replace"), token)
