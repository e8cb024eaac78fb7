"""Names of an uplink's topics and sources. Pure.

delivery/north/uplink/drone-7            up     from the node drone-7 of fleet delivery at site north
delivery/north/uplink/drone-7/marks      down   to it
delivery/north/uplink/drone-7/routed     up     for agents of other levels, see network/level_links.py
delivery/north/uplink/drone-7/routed-down  down
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from msgspec import Struct

from stigmergy.agents.codec import SOURCE_CHARS_MAX
from stigmergy.agents.messages import spec_of
from stigmergy.base.errors import Malformed
from stigmergy.bus.port import Bus
from stigmergy.bus.subscriptions import Collect
from stigmergy.bus.topics import Topics, escape, fill_address, unescape
from stigmergy.node.declaration import Declaration
from stigmergy.node.ingress import UPLINK_SOURCES
from stigmergy.uplink.rules import OURS, Summary

UPLINK = "uplink"
MARKS = "marks"
ROUTED = "routed"
ROUTED_DOWN = "routed-down"
SHARD_DIGITS = 5


class CollectedBus(Struct, frozen=True):
    """A bus that uplinks arrive on."""

    bus: Bus
    site: str
    """The site of senders if a declaration names none; + for any."""


class UplinkSource(Struct, frozen=True):
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
        """Where the receiver answers."""
        return f"{self.topic}/{MARKS}"

    @property
    def routed_topic(self) -> str:
        """What it sends to the level above for agents there."""
        return f"{self.topic}/{ROUTED}"

    @property
    def routed_down_topic(self) -> str:
        """What the level above sends to it for agents below."""
        return f"{self.topic}/{ROUTED_DOWN}"

    @property
    def prefix(self) -> str:
        """The prefix of the names of its sources."""
        return f"{UPLINK_SOURCES}{escape(self.fleet)}/{escape(self.site)}/{escape(self.node)}/"

    def source(self, shard: int) -> str:
        """The name of one of its shards in the receiver's marks."""
        return f"{self.prefix}{shard}"


def uplinks_pattern(fleet: str, site: str) -> str:
    """The pattern for all uplinks of a fleet at a site; + matches any."""
    levels = (level if level == "+" else escape(level) for level in (fleet, site))
    return f"{'/'.join(levels)}/{UPLINK}/+"


def routed_topics_pattern(fleet: str, site: str) -> str:
    """The pattern for what all gateways of a site, + for any, send for agents of other levels."""
    return f"{uplinks_pattern(fleet, site)}/{ROUTED}"


def routed_sender(topic: str) -> UplinkSource:
    """The node that sent something for agents of other levels."""
    return sender_of(topic.removesuffix(f"/{ROUTED}"))


def sender_of(topic: str) -> UplinkSource:
    """The node of an uplink's topic. Raises Malformed for any other topic."""
    levels = topic.split("/")
    if len(levels) == 4 and levels[2] == UPLINK:
        sender = UplinkSource(*(unescape(levels[number]) for number in (0, 1, 3)))
        if len(sender.prefix) + SHARD_DIGITS <= SOURCE_CHARS_MAX:
            return sender
    raise Malformed(f"{topic[:200]!r} is not an uplink topic")


# Which uplinks a node subscribes to, which agents their events are for, and which are refused. Pure.

SUMMARY = spec_of(Summary).name


class UplinkRoutes:
    """A fleet's declarations about events from uplinks."""

    def __init__(
        self, declaration: Declaration, collects: Sequence[Collect], runs: Callable[[str], bool] = lambda _: True
    ) -> None:
        """`runs` says whether an agent runs here."""
        self._runs = runs
        self._fleet = declaration.name
        self._collects = tuple(collects)
        self._commands = {
            kind: {spec_of(message).name: None for message, plan in agent_plan.plans.items() if plan.is_command}
            for kind, agent_plan in declaration.plans.items()
        }

    def patterns(self, site: str) -> list[str]:
        """The topics to subscribe to, each once; `site` if a declaration names none."""
        wanted = (uplinks_pattern(one.fleet or self._fleet, one.site or site) for one in self._collects)
        return list(dict.fromkeys(wanted))

    def address(self, address: str) -> str:
        """The receiving agent here: by the first matching declaration, else the same address."""
        for collect in self._collects:
            places = collect.match(address)
            if places is not None:
                return fill_address(collect.to, places)
        return address

    def unwanted(self, to: str, name: str) -> str:
        """Why a message of this name is refused; empty if it is accepted."""
        if not self._runs(to):
            return f"{to[:200]} does not run on this node; collect its uplink where it does"
        if name in self._commands.get(to.partition("/")[0], ()):
            return f"{name[:100]} is a command; an uplink carries events only"
        if name.startswith(OURS) and name != SUMMARY:
            return f"{name[:100]} comes only from this node's own framework"
        return ""
