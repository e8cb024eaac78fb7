"""The names of topics on the bus and their meaning. Pure. docs/topics.md is the manual.

    delivery/north/agents/Drone/D-17/commands           in   commands for the agent
    delivery/north/agents/Drone/D-17/answers            out  their verdicts
    delivery/north/agents/Drone/D-17/inputs             in   observed events for the agent
    delivery/north/agents/Drone/D-17/queries            in   queries for the agent's state
    delivery/north/agents/Drone/D-17/states             out  its state, in reply to a query
    delivery/north/agents/Drone/D-17/tells              in   tells of agents that other nodes run
    delivery/north/agents/Drone/D-17/events/battery     out  what the agent publishes as `battery`
    delivery/north/nodes/gateway/presence               out  that the node is here, retained by the broker
    delivery/north/nodes/gateway/refusals               out  what this node has refused
    delivery/north/nodes/gateway/acknowledgements       in   which of this node's tells are durable where they went
    delivery/north/nodes/gateway/history                in   requests for what its agents have published
    delivery/north/nodes/gateway/published/op-1         out  the replies to the client op-1

A level is a text without `/`. Characters that have a meaning for brokers (`/ + # * > $ . %`), spaces, control and
non-ASCII characters are percent-encoded as in URLs, so names and topics map one to one.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from enum import Enum
from urllib.parse import unquote_to_bytes

from msgspec import Struct

from stigmergy.base.errors import ConfigError, DefinitionError, Malformed

AGENTS = "agents"
NODES = "nodes"
AGENT_LEVELS = 6
"""fleet, site, agents, kind, name, channel."""
EMPTY_LEVEL = "%"
"""Stands for an empty level: an escape that no other text has."""
_UNSAFE = re.compile(r"[^!\"&-),\-0-9:;<=?@-Z\[-~]")
_PLACEHOLDER = re.compile(r"\{([a-z_][a-z0-9_]*)\}")
_LEVEL_NAME = re.compile(r"[A-Za-z0-9_.-]{1,64}", re.ASCII)


class Channel(Enum):
    """The purpose of a topic of an agent or a node."""

    COMMANDS = "commands"
    ANSWERS = "answers"
    INPUTS = "inputs"
    EVENTS = "events"
    QUERIES = "queries"
    STATES = "states"
    TELLS = "tells"
    PRESENCE = "presence"
    REFUSALS = "refusals"
    ACKNOWLEDGEMENTS = "acknowledgements"
    HISTORY = "history"
    PUBLISHED = "published"


OF_AGENTS = (
    Channel.COMMANDS,
    Channel.ANSWERS,
    Channel.INPUTS,
    Channel.EVENTS,
    Channel.QUERIES,
    Channel.STATES,
    Channel.TELLS,
)
OF_NODES = (Channel.PRESENCE, Channel.REFUSALS, Channel.ACKNOWLEDGEMENTS, Channel.HISTORY, Channel.PUBLISHED)
EVERY_NODE = ""
"""Instead of a node's name: each node hears it."""


class Topic(Struct, frozen=True):
    """A parsed topic: whose it is and its purpose."""

    fleet: str
    site: str
    channel: Channel
    name: str
    """An agent's address, or a node's name."""
    about: str = ""
    """For events: the topic that the agent gave. For replies with history: the client."""


class Topics(Struct, frozen=True):
    """The topics of one fleet at one site."""

    fleet: str
    site: str

    @property
    def root(self) -> str:
        """The prefix of all topics of this fleet and site."""
        return f"{escape(self.fleet)}/{escape(self.site)}"

    def of_agent(self, address: str, channel: Channel) -> str:
        """The topic of an agent for commands, answers or inputs."""
        kind, _, name = address.partition("/")
        return f"{self.root}/{AGENTS}/{escape(kind)}/{escape(name)}/{channel.value}"

    def events(self, address: str, about: str) -> str:
        """The topic of an agent's published events."""
        levels = "/".join(escape(level) for level in about.split("/"))
        return f"{self.of_agent(address, Channel.EVENTS)}/{levels}"

    def of_node(self, node: str, channel: Channel) -> str:
        """The topic of a node."""
        return f"{self.root}/{NODES}/{escape(node)}/{channel.value}"

    def published(self, node: str, client: str) -> str:
        """Where a node sends a client the history that it asked for."""
        return f"{self.of_node(node, Channel.PUBLISHED)}/{escape(client)}"

    def published_pattern(self, client: str) -> str:
        """The same of all nodes."""
        return f"{self.nodes_pattern(Channel.PUBLISHED)}/{escape(client)}"

    def agents_pattern(self, channel: Channel, address: str = "*/*") -> str:
        """The pattern for a channel of one agent, or of several: a level with `*` in it matches any."""
        kind, _, name = address.partition("/")
        levels = "/".join("+" if "*" in level else escape(level) for level in (kind, name))
        return f"{self.root}/{AGENTS}/{levels}/{channel.value}"

    def nodes_pattern(self, channel: Channel) -> str:
        """The pattern for a channel of all nodes."""
        return f"{self.root}/{NODES}/+/{channel.value}"

    def source_of(self, address: str) -> str:
        """The CloudEvents source of an agent: a path."""
        kind, _, name = address.partition("/")
        return f"/{self.root}/{AGENTS}/{escape(kind)}/{escape(name)}"

    def source_of_node(self, node: str) -> str:
        """The CloudEvents source of a node."""
        return f"/{self.root}/{NODES}/{escape(node)}"


def escape(level: str) -> str:
    """Encodes any name as one level."""
    if not level:
        return EMPTY_LEVEL
    return _UNSAFE.sub(
        lambda found: "".join(f"%{byte:02X}" for byte in found.group().encode("utf-8", "replace")), level
    )


def unescape(level: str) -> str:
    """The name of a level. Raises Malformed unless it is encoded as `escape` does."""
    if level == EMPTY_LEVEL:
        return ""
    try:
        name = unquote_to_bytes(level).decode("utf-8")
    except UnicodeDecodeError:
        name = ""
    if not name or escape(name) != level:
        raise Malformed(f"the topic level {level[:100]!r} is not escaped as docs/topics.md says")
    return name


def parse_topic(topic: str) -> Topic:
    """Parses a topic of this scheme. Raises Malformed for any other."""
    levels = topic.split("/")
    try:
        fleet, site, group = unescape(levels[0]), unescape(levels[1]), levels[2]
        if group == AGENTS and len(levels) >= 6:
            channel = Channel(levels[5])
            address = f"{unescape(levels[3])}/{unescape(levels[4])}"
            about = "/".join(unescape(level) for level in levels[6:])
            if channel in OF_AGENTS and (len(levels) > 6) == (channel is Channel.EVENTS):
                return Topic(fleet, site, channel, address, about)
        if group == NODES and len(levels) in (5, 6) and (channel := Channel(levels[4])) in OF_NODES:
            about = "/".join(unescape(level) for level in levels[5:])
            if (len(levels) > 5) == (channel is Channel.PUBLISHED):
                return Topic(fleet, site, channel, unescape(levels[3]), about)
    except (IndexError, ValueError):
        pass
    raise Malformed(f"{topic[:200]!r} is not a topic of docs/topics.md")


def check_level_name(what: str, name: object) -> str:
    """Checks a site's or node's name."""
    if not isinstance(name, str) or _LEVEL_NAME.fullmatch(name) is None:
        raise ConfigError(f"{what} {name!r}: a name is 1 to 64 letters, digits, '_', '-' and '.'")
    return name


def safe_node_name(host_name: str) -> str:
    """A node's name derived from the machine's."""
    return re.sub(r"[^A-Za-z0-9_-]", "-", host_name.partition(".")[0])[:64] or "node"


class TopicTemplate(Struct, frozen=True):
    """A topic with named places, such as `agents/{id}/battery`: `{id}` stands for one level."""

    text: str
    levels: tuple[str, ...]
    """Each a fixed text, or `{name}`, or `+`."""
    escaped: bool = True
    """Whether the topics are ours, whose levels are escaped."""

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(level[1:-1] for level in self.levels if _PLACEHOLDER.fullmatch(level))

    @property
    def pattern(self) -> str:
        """The pattern to subscribe to."""
        return "/".join("+" if _PLACEHOLDER.fullmatch(level) else level for level in self.levels)

    def match(self, topic: str) -> dict[str, str] | None:
        """The places' values in a topic; None if it does not match. Raises Malformed for a badly escaped level."""
        found = topic.split("/")
        if len(found) != len(self.levels):
            return None
        values: dict[str, str] = {}
        for level, text in zip(self.levels, found, strict=True):
            if _PLACEHOLDER.fullmatch(level):
                values[level[1:-1]] = unescape(text) if self.escaped else text
            elif level not in ("+", text):
                return None
        return values

    def fill(self, values: Mapping[str, str]) -> str:
        """The topic with these values."""
        write = escape if self.escaped else str
        return "/".join(write(values[level[1:-1]]) if _PLACEHOLDER.fullmatch(level) else level for level in self.levels)


def read_template(text: str, *, escaped: bool = True) -> TopicTemplate:
    """Parses a template. Raises DefinitionError for one that cannot be subscribed to."""
    levels = tuple(text.split("/"))
    for level in levels:
        fixed = _PLACEHOLDER.fullmatch(level) is None and level != "+"
        if fixed and (not level or "{" in level or "}" in level or "#" in level or "+" in level or " " in level):
            raise DefinitionError(
                f"topic {text!r}: a level is a fixed text, a place such as {{id}}, or +; {level!r} is none of these"
            )
    template = TopicTemplate(text, levels, escaped)
    if len(dict.fromkeys(template.names)) < len(template.names):
        raise DefinitionError(f"topic {text!r}: a place is named twice; give each its own name")
    return template


def fill_address(text: str, values: Mapping[str, str]) -> str:
    """An address such as `Drone/{id}` with these values."""
    return _PLACEHOLDER.sub(lambda found: values[found.group(1)], text)


def places_of(text: str) -> tuple[str, ...]:
    """The names of the places in an address."""
    return tuple(_PLACEHOLDER.findall(text))


def quota_source(topic: str) -> str:
    """The source whose quota a message counts against: all events of an agent together, whatever their topics."""
    levels = topic.split("/", AGENT_LEVELS)
    if len(levels) > AGENT_LEVELS and levels[2] == AGENTS:
        return "/".join(levels[:AGENT_LEVELS])
    return topic
