"""How an uplink's topics and sources are named. Pure.

delivery/north/uplink/drone-7            up     from the node drone-7 of fleet delivery at site north
delivery/north/uplink/drone-7/marks      down   to it
"""

from __future__ import annotations

from msgspec import Struct

from stigmergy.core.codec import SOURCE_CHARS_MAX
from stigmergy.core.errors import Malformed
from stigmergy.runtime.ingress import UPLINK_SOURCES
from stigmergy.runtime.topics import Topics, escape, unescape

UPLINK = "uplink"
MARKS = "marks"
SHARD_DIGITS = 5


class Sender(Struct, frozen=True):
    """The node whose uplink it is."""

    fleet: str
    site: str
    node: str

    @property
    def topic(self) -> str:
        """Where it sends."""
        return f"{Topics(self.fleet, self.site).root}/{UPLINK}/{escape(self.node)}"

    @property
    def marks_topic(self) -> str:
        """Where it is told how far the receiver has come."""
        return f"{self.topic}/{MARKS}"

    @property
    def prefix(self) -> str:
        """What the names of its sources begin with."""
        return f"{UPLINK_SOURCES}{escape(self.fleet)}/{escape(self.site)}/{escape(self.node)}/"

    def source(self, shard: int) -> str:
        """Under which name the receiver's marks know one of its shards."""
        return f"{self.prefix}{shard}"


def uplinks_pattern(fleet: str, site: str) -> str:
    """What to subscribe to for all uplinks of a fleet at a site; + stands for any."""
    levels = (level if level == "+" else escape(level) for level in (fleet, site))
    return f"{'/'.join(levels)}/{UPLINK}/+"


def sender_of(topic: str) -> Sender:
    """Whose uplink a topic is. Raises Malformed for any other."""
    levels = topic.split("/")
    if len(levels) == 4 and levels[2] == UPLINK:
        sender = Sender(*(unescape(levels[number]) for number in (0, 1, 3)))
        if len(sender.prefix) + SHARD_DIGITS <= SOURCE_CHARS_MAX:
            return sender
    raise Malformed(f"{topic[:200]!r} is no topic of an uplink")
