"""Watching what agents publish: an async iterator over it, wherever it comes from.

    async for heard in live.watch("Cart/+/place", after=position):
        ...
        position = heard.after                         # keep it: `after=position` goes on behind it after a restart

`LogWatching` hands over what comes from logs: a log has an order, so nothing is missed, repeated or out of order, and a
slow reader is waited for. `node/history.py` reads the log of a node in this process, `network/watching.py` asks nodes
elsewhere.
"""

from __future__ import annotations

import abc
from collections import deque
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta
from types import MappingProxyType
from typing import Any, Self

import msgspec
from msgspec import Struct, structs

from stigmergy.agents.agent import Agent
from stigmergy.agents.messages import Event, spec_of
from stigmergy.audit.history import read_moment
from stigmergy.audit.listing import readable_time
from stigmergy.base.errors import ConfigError, LogCut, StigmergyError
from stigmergy.bus.cloudevents import data_of
from stigmergy.bus.history import (
    LogPosition,
    Portion,
    Published,
    WatchPosition,
    read_position,
    read_topics,
    write_position,
)

ANY_TOPIC = "+/+/#"
START = "start"
"""As a position: before everything that the logs have."""
HELD_MAX = 1_000
"""Events of a watch that wait to be taken. From logs no more are read then; from topics the oldest are dropped."""
MICROSECOND_NS = 1_000
Step = tuple[str, int, LogPosition, Published | None]
"""A node, a shard, the position that was reached there, and what was published."""
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


class Heard(Struct, frozen=True):
    """What an agent has published, or, over HTTP and gRPC, an event of its log."""

    agent: str
    topic: str
    """What the agent calls it: the topic of its `Publish`. Empty for an event of a log."""
    type: str
    """The tag of the event, such as "Driven@1"."""
    event: Any
    """The event, made from its class, if `watch` was given that; else its fields."""
    time: str = ""
    """When it was decided, in ISO 8601; empty if the sender did not say."""
    after: str = ""
    """Where to go on: `watch(after=heard.after)`. Empty over a bus without history."""


class Watching(abc.ABC):
    """What agents publish, or keep, as it comes: an async iterator."""

    dropped = 0
    """How much came faster than it was taken, and is lost. Always 0 with history."""
    refused = 0
    """Messages that are no events, or none of the class, although they say so."""
    after = ""
    """Where to go on, as that of an event; it moves also while nothing is heard. Empty over a bus without history."""
    truncated: Mapping[str, str] = MappingProxyType({})
    """By node: what it did not send, because retention has dropped it."""
    unanswered: Sequence[str] = ()
    """Nodes that do not answer at present: what they have published comes when they are back."""
    missing: Sequence[str] = ()
    """Nodes with logs of their own, whose events are not in it: an API tells those of one log."""

    @abc.abstractmethod
    async def wait_ready(self) -> None:
        """Returns when what happens from now on is heard."""

    def __aiter__(self) -> Self:
        return self

    @abc.abstractmethod
    async def __anext__(self) -> Heard: ...

    @abc.abstractmethod
    async def aclose(self) -> None:
        """Hears no more."""


def read_watched(
    topic: str, kind: type[Event] | type[Agent] | None, agent: str | None
) -> tuple[str, type[Event] | None]:
    """What a watch wants: a pattern of topics, and the class of events. Raises ConfigError or Malformed."""
    if isinstance(kind, type) and issubclass(kind, Agent):
        agent, kind = agent or f"{kind.__agent_kind__}/+", None
    if agent is not None and topic != ANY_TOPIC:
        raise ConfigError(f"watch({topic!r}): the topic names the agent already; leave agent= and the class out")
    return read_topics(topic if agent is None else f"{agent}/#"), kind


def read_start(after: object, since: object, latest: object) -> WatchPosition | None:
    """Where a watch begins; None for one without history. Raises ConfigError."""
    if sum(one not in (None, False) for one in (after, since, latest)) > 1:
        raise ConfigError("give one of after=, since= and latest=: each says where to begin")
    if after is not None:
        return WatchPosition({}) if after == START else read_position(after)
    if since is not None:
        return WatchPosition({}, since_ns=_time_ns(since))
    return WatchPosition({}, latest=True) if latest else None


class LogWatching(Watching):
    """Hands over what comes from logs, each in its order. Subclasses feed it: `_hold` takes a portion of a node's log.

    An error about one node is raised once where the next event is waited for; whoever waits again gets what follows.
    """

    def __init__(self, kind: type[Event] | None, start: WatchPosition) -> None:
        self.event_tag = "" if kind is None else spec_of(kind).tag
        self._decoder = None if kind is None else msgspec.msgpack.Decoder(kind)
        self._start = start
        self._at = {node: dict(at) for node, at in start.at.items()}
        """How far what was handed over goes, by node and shard."""
        self._held: deque[Step | StigmergyError] = deque()
        self._ended = False
        self._truncated: dict[str, str] = {}
        self.truncated = MappingProxyType(self._truncated)

    @property
    def after(self) -> str:  # type: ignore[override]  # worked out when it is asked for
        """Where to go on after a restart."""
        return write_position(structs.replace(self._start, at=self._at))

    async def wait_ready(self) -> None:
        """Nothing has to be waited for where the log is at hand."""

    async def __anext__(self) -> Heard:
        while True:
            _, _, _, one = await self.step()
            if one is not None and (heard := self._heard(one)) is not None:
                return heard

    async def step(self) -> Step:
        """The next one as it is in the log; or, without one, how far the log of a node was read."""
        while not self._held:
            if self._ended:
                raise StopAsyncIteration
            await self._fill()
        step = self._held.popleft()
        self._taken()
        if isinstance(step, StigmergyError):
            raise step
        node, shard, at, _ = step
        self._at.setdefault(node, {})[shard] = at
        return step

    def _taken(self) -> None:
        """Less is held than before."""

    async def aclose(self) -> None:
        """Hears no more."""
        self._ended = True

    async def _fill(self) -> None:
        """Waits until there may be more, or the end."""
        raise NotImplementedError

    def _hold(self, node: str, portion: Portion, asked: Mapping[int, LogPosition]) -> None:
        """Takes a portion of a node's log, with the positions that it was asked for with."""
        for shard, first in portion.cut.items():
            where = f"node {node!r}, shard {shard}" if node else f"shard {shard}"
            why = f"{where}: what was published before position {first} of its log was dropped by retention"
            if shard in asked:
                self._held.append(LogCut(f"{why}; wait again to go on from there", shard=shard, first_position=first))
            else:
                self._truncated[node] = why
        for number, one in enumerate(portion.items):
            behind = LogPosition(one.incarnation, one.position, one.index, number < portion.newest_count)
            self._held.append((node, one.shard, behind, one))
        self._held.extend((node, shard, behind, None) for shard, behind in portion.at.items())

    def _heard(self, one: Published) -> Heard | None:
        try:
            tag, _, data = data_of(one.body)
            if self._decoder is not None:
                data = self._decoder.decode(one.body)
        except (StigmergyError, msgspec.MsgspecError):
            self.refused += 1
            return None
        return Heard(one.agent, one.topic, tag, data, readable_time(one.time_ns) if one.time_ns else "", self.after)


def _time_ns(since: object) -> int:
    if isinstance(since, str):
        moment = read_moment(since)
        if moment.time_ns is not None:
            return moment.time_ns
    elif isinstance(since, datetime) and since.tzinfo is not None:
        return (since - _EPOCH) // timedelta(microseconds=1) * MICROSECOND_NS
    raise ConfigError(f"since={since!r}: give a time with its zone, like 2026-11-15T08:00:00Z or datetime.now(UTC)")
