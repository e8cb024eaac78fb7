"""Requests for history over a bus, and their replies: what agents of a node have published, read from its log.

    Client                                              node
      HistoryRequest(after = the position it has) ──►   reads its log behind that position
      ◄── HistoryReply(items, at = the new position)    answers at once, or within `wait_s` when there is something

A client asks again with the position of each reply, also once it has reached the end of the log: so nothing is missed
or repeated, whatever was lost on the way. Frames are MessagePack (docs/formats.md); topics are in docs/topics.md.
"""

from __future__ import annotations

from typing import TypeVar

import msgspec
from msgspec import Struct

from stigmergy.agents.codec import UNDECODABLE
from stigmergy.base.errors import ConfigError, Malformed, TooLarge
from stigmergy.bus.port import matches
from stigmergy.bus.topics import escape, read_template

FRAME_BYTES_MAX = 1024 * 1024
REPLY_BYTES = 64 * 1024
"""A reply ends with the item that reaches this."""
WAIT_S = 10.0
"""A node without anything new answers after so long."""
WAIT_S_MAX = 60.0
WHOLE = 2**62
"""As an index: all of the commit."""
POSITION_CHARS_MAX = 1024 * 1024
TOPICS_KNOWN_MAX = 10_000
"""Topics of which is remembered whether they are wanted."""


class LogPosition(Struct, array_like=True, frozen=True):
    """How far the log of a shard was read: up to this commit, and in it up to the effect with this index."""

    incarnation: int
    """Of the log when the commit was written. After a restore from a copy another one goes on from an earlier place."""
    position: int
    index: int = WHOLE
    latest: bool = False
    """The newest of each topic up to here were sent, and others are still to come."""


class Published(Struct, array_like=True, frozen=True):
    """An event that an agent has published, with its place in the log."""

    shard: int
    incarnation: int
    position: int
    index: int
    epoch: int
    sequence: int
    """Its number among all that the shard has published, as on the agent's topic."""
    time_ns: int
    agent: str
    topic: str
    body: bytes


class HistoryRequest(Struct, tag_field="type", tag="stigmergy.HistoryRequest@1", frozen=True, omit_defaults=True):
    """Asks a node for what its agents have published behind a position, or to wait until there is something."""

    client: str
    """Who gets the reply."""
    watch: str
    number: int
    """Of the request in its watch; the reply has it too. 0: only whether the node is there."""
    topics: str = ""
    """Kind, name and topic, escaped as on the bus; `+` for any level, `#` for all that follow."""
    event: str = ""
    """Only events with this tag; empty: all."""
    after: dict[int, LogPosition] = {}
    """By shard. A shard that is missing begins as `since_ns` and `latest` say, or at the beginning of the log."""
    since_ns: int | None = None
    latest: bool = False
    """Of what is there at first, only the newest event of each topic."""
    wait_s: float = WAIT_S


class Portion(Struct, frozen=True, omit_defaults=True):
    """A portion of what was published, in the order of each shard's log."""

    at: dict[int, LogPosition] = {}
    """The position behind the items: what to ask with next."""
    items: list[Published] = []
    newest_count: int = 0
    """So many of the first items are the newest of their topics up to now, as `latest` wants it; the others are all."""
    cut: dict[int, int] = {}
    """By shard: the log begins at this position, and what was asked for began before. Retention has dropped it."""


class HistoryReply(Struct, tag_field="type", tag="stigmergy.HistoryReply@1", frozen=True, omit_defaults=True):
    """The answer of a node."""

    watch: str
    number: int
    portion: Portion = Portion()
    error: str = ""
    kind: str = ""
    """The name of the error, if it is one."""


class WatchPosition(Struct, frozen=True, omit_defaults=True):
    """How far a watch has come with all nodes, and how it began, for nodes that come later."""

    at: dict[str, dict[int, LogPosition]]
    since_ns: int | None = None
    latest: bool = False
    v: int = 1


FrameT = TypeVar("FrameT", HistoryRequest, HistoryReply)
_encode = msgspec.msgpack.Encoder().encode
_write_text = msgspec.json.Encoder().encode
_position = msgspec.json.Decoder(WatchPosition)


def write_frame(frame: HistoryRequest | HistoryReply) -> bytes:
    """The bytes of a request or reply."""
    return _encode(frame)


def read_frame(payload: bytes, kind: type[FrameT]) -> FrameT:
    """Raises Malformed or TooLarge for what is no such frame."""
    if len(payload) > FRAME_BYTES_MAX:
        raise TooLarge(f"a frame of {len(payload)} bytes, {FRAME_BYTES_MAX} at most")
    try:
        return msgspec.msgpack.decode(payload, type=kind)
    except UNDECODABLE as error:
        raise Malformed(f"no {kind.__name__}: {error}") from None


def write_position(position: WatchPosition) -> str:
    """A position as programs keep it."""
    return _write_text(position).decode()


def read_position(text: object) -> WatchPosition:
    """Raises ConfigError for a text that is no position of a watch."""
    try:
        if not isinstance(text, str) or len(text) > POSITION_CHARS_MAX:
            raise ValueError("not a text, or too long")
        position = _position.decode(text)
    except (*UNDECODABLE, ValueError) as error:
        raise ConfigError(f"after={str(text)[:80]!r} is no position of a watch ({error}); give heard.after") from None
    if position.v != 1:
        raise ConfigError(f"after=…: a position of version {position.v}; a newer program has written it, use that one")
    return position


def read_topics(text: str) -> str:
    """What is watched, as a pattern of kind, name and topic. Raises Malformed."""
    levels = text.split("/")
    if len(levels) < 3 or not all(levels):
        raise Malformed(f"topic {text!r}: give kind, name and topic of an agent, like 'Cart/+/place' or 'Cart/+/#'")
    template = read_template("/".join(level for level in levels if level != "#"))
    pattern = [*template.pattern.split("/"), *(["#"] if levels[-1] == "#" else [])]
    return "/".join(level if level in ("+", "#") else escape(level) for level in pattern)


class WantedTopics:
    """Whether a pattern of `read_topics` has what an agent publishes."""

    def __init__(self, pattern: str) -> None:
        self._pattern = pattern
        self._known: dict[tuple[str, str], bool] = {}

    def has(self, agent: str, topic: str) -> bool:
        """Whether an agent's topic is wanted."""
        known = self._known.get((agent, topic))
        if known is None:
            if len(self._known) >= TOPICS_KNOWN_MAX:
                self._known.clear()
            kind, _, name = agent.partition("/")
            levels = "/".join(escape(level) for level in (kind, name, *topic.split("/")))
            known = self._known[agent, topic] = matches(self._pattern, levels)
        return known
