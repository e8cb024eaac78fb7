"""The registry of agents on a bus, as a node reads it before it starts: refuses to run an agent that another runs.

Each node's last announcement is retained by the broker. A node that names its agents looks at these for a moment before
it opens its journal: once its agents run, two would carry out the same commands. Without a link it starts all the same,
because it must work offline; then an overlap is a trouble of both nodes while they run.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Mapping, Sequence
from urllib.parse import urlsplit

from msgspec import structs

from stigmergy.agents.assignment import ANY, Assignment, shown
from stigmergy.app.node_config import NodeConfig, open_bus
from stigmergy.base.clock import Entropy
from stigmergy.base.errors import ConfigError, PeerError
from stigmergy.bus.port import BusMessage
from stigmergy.bus.presence import MEMBERS_COUNT_MAX, Member, read_presence
from stigmergy.bus.topics import Channel, Topics

LINK_S_MAX = 2.0
"""How long a start waits for the bus, if it names agents; then it does without the registry."""
LOOK_S_MAX = 1.0
QUIET_S = 0.3
"""It looks until no announcement has come for so long, at most for the former."""
MQTT = {"mqtt": 0, "mqtts": 0}
NATS = {**MQTT, "nats": 1, "tls": 1}
"""How long a broker is to keep the session of a client that only looks, in seconds, by the scheme of its URL."""


async def check_claims(node_config: NodeConfig, fleet: str, agents: Sequence[str], entropy: Entropy) -> None:
    """Raises ConfigError if a node that is here runs one of these agents. With `take_over` the announcements of such
    nodes are removed instead."""
    if node_config.bus is None or not agents:
        return
    looking = structs.replace(node_config, bus=without_session(node_config.bus, NATS), node=f"{node_config.node}:start")
    bus = open_bus(looking, fleet, entropy)
    topics = Topics(fleet, node_config.site or "")
    found: dict[str, Member] = {}
    news = asyncio.Event()

    async def hear(message: BusMessage) -> None:
        try:
            member = read_presence(message)
        except PeerError:
            return
        if len(found) < MEMBERS_COUNT_MAX or member.node in found:
            found[member.node] = member
        news.set()

    assert bus is not None
    bus.on_link(lambda _: news.set())
    await bus.subscribe(topics.nodes_pattern(Channel.PRESENCE), hear)
    await bus.open()
    try:
        if not bus.is_up:
            await _has_news(news, LINK_S_MAX)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(LOOK_S_MAX):
                while bus.is_up and await _has_news(news, QUIET_S):
                    continue
        for member in sorted(found.values(), key=lambda one: one.node):
            both = [] if member.node == node_config.node else certain_overlap(agents, member)
            if both and node_config.take_over and bus.is_up:
                topic = topics.of_node(member.node, Channel.PRESENCE)
                await bus.publish(BusMessage(topic, b"", retained=True))
            elif both and member.online:
                raise ConfigError(
                    f"node {member.node!r}, here since {member.since or 'before'}, runs {shown(both)}, and this one "
                    f"is to run it too: take it out of agents of one of them; if {member.node!r} is gone for good, "
                    "start with --take-over"
                )
    finally:
        await bus.close()


async def _has_news(news: asyncio.Event, within_s: float) -> bool:
    news.clear()
    try:
        async with asyncio.timeout(within_s):
            await news.wait()
    except TimeoutError:
        return False
    return True


def certain_overlap(agents: Sequence[str], member: Member) -> list[str]:
    """Entries of ours that another node runs for certain: it names that agent or that very pattern, or has a pattern
    that the agent fits. Two patterns that differ may have no agent in common; a node that names no agents at all may be
    a gateway, which runs copies of what its devices run."""
    theirs = member.assignment
    if theirs is None or not member.agents:
        return []
    mine = Assignment(agents)
    both = [entry for entry in agents if entry in member.agents or (ANY not in entry and theirs.runs(entry))]
    return both or [entry for entry in member.agents if ANY not in entry and mine.runs(entry)]


def without_session(url: str, seconds: Mapping[str, int] = MQTT) -> str:
    """The same broker, which is to keep nothing for a client that has left, or hardly anything."""
    kept_s = seconds.get(urlsplit(url).scheme)
    return url if kept_s is None or "session_s=" in url else f"{url}{'&' if '?' in url else '?'}session_s={kept_s}"
