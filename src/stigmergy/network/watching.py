"""Watching over a bus. `TopicWatching` hands over what is published from now on, as it comes, at most once.

`NodesWatching` has history: it asks each node for its log, portion by portion, and hands over what comes. Each node is
asked by itself, with the position that was reached there: the next request is sent when the portion before is here, and
while not too much waits to be taken. So a slow reader is waited for, a lost message is asked for again, and a node that
was away goes on where it was. Nodes are found by asking all, and by their presence.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import deque
from collections.abc import Awaitable, Callable, Iterable, Sequence

import msgspec
from msgspec import Struct

from stigmergy.agents.messages import Event, spec_of
from stigmergy.base.errors import LinkDown, NoAnswer, StigmergyError, error_named
from stigmergy.base.tasks import end_tasks
from stigmergy.bus.cloudevents import body_of, read_event
from stigmergy.bus.history import (
    WAIT_S,
    HistoryReply,
    HistoryRequest,
    LogPosition,
    WatchPosition,
    read_frame,
    write_frame,
)
from stigmergy.bus.port import Bus, BusMessage
from stigmergy.bus.topics import EVERY_NODE, Channel, Topics, parse_topic
from stigmergy.node.watching import HELD_MAX, Heard, LogWatching, Watching

AGAIN_S = WAIT_S + 5.0
"""A node that has not answered after so long is asked again."""
FIND_S = 5.0
"""How often all nodes are asked who is there, until one answers."""
FIND_LATER_S = 30.0
"""And then, for nodes that do not announce themselves here."""
PAUSE_S = 0.1
REFUSED_PAUSE_S = 5.0
"""A node that has refused is asked again after so long."""
NODES_MAX = 4_096


class TopicWatching(Watching):
    """What agents publish on their topics, as it comes. `dropped` counts what came faster than it was taken."""

    def __init__(self, bus: Bus, pattern: str, kind: type[Event] | None, check: Callable[[], Awaitable[None]]) -> None:
        """`check` is waited for first: it raises where nobody could be heard."""
        self._kind = kind
        self._tag = None if kind is None else spec_of(kind).tag
        self._decoder = None if kind is None else msgspec.msgpack.Decoder(kind)
        self._held: deque[Heard] = deque()
        self._some = asyncio.Event()
        self._ended = False
        self._subscribed = asyncio.ensure_future(self._subscribe(bus, pattern, check))
        self.dropped = 0
        self.refused = 0

    async def _subscribe(self, bus: Bus, pattern: str, check: Callable[[], Awaitable[None]]) -> None:
        await check()
        await bus.subscribe(pattern, self._hear)

    async def wait_ready(self) -> None:
        """Returns when the broker has the subscription: what is published from now on is heard. Raises ConfigError
        where nobody could be."""
        await asyncio.shield(self._subscribed)

    async def __anext__(self) -> Heard:
        await self.wait_ready()
        while not self._held:
            if self._ended:
                raise StopAsyncIteration
            self._some.clear()
            await self._some.wait()
        return self._held.popleft()

    async def aclose(self) -> None:
        self.end()

    def end(self) -> None:
        """Hears no more."""
        self._ended = True
        self._some.set()
        if not self._subscribed.done():
            self._subscribed.cancel()

    async def _hear(self, message: BusMessage) -> None:
        if self._ended:
            return
        try:
            topic = parse_topic(message.topic)
            event = read_event(message.payload, message.content_type, message.properties)
            if self._tag is not None and event.type != self._tag:
                return
            data = event.data
            if self._decoder is not None and self._tag is not None:
                data = self._decoder.decode(body_of(event, self._tag))
        except (StigmergyError, msgspec.MsgspecError):
            self.refused += 1
            return
        if len(self._held) >= HELD_MAX:
            self._held.popleft()
            self.dropped += 1
        self._held.append(Heard(topic.name, topic.about, event.type, data, event.time or ""))
        self._some.set()


class HistoryClient:
    """The requests of one client for history. Watches register here for replies."""

    def __init__(self, bus: Bus, topics: Topics, name: str, members: Callable[[], Iterable[str]]) -> None:
        """`members` says which nodes have announced themselves."""
        self._bus = bus
        self._topics = topics
        self.name = name
        self.members = members
        self._watches: dict[str, NodesWatching] = {}
        self._subscribed: asyncio.Task[None] | None = None

    async def begin(self, watch: NodesWatching) -> None:
        """Has replies given to this watch; returns when they will be heard."""
        self._watches[watch.id] = watch
        if self._subscribed is None:
            pattern = self._topics.published_pattern(self.name)
            self._subscribed = asyncio.ensure_future(self._bus.subscribe(pattern, self._hear))
        await asyncio.shield(self._subscribed)

    def end(self, watch: NodesWatching) -> None:
        """Has it no more."""
        self._watches.pop(watch.id, None)

    def link(self, up: bool) -> None:
        """The link came or went: what was asked for may be lost."""
        if up:
            for watch in self._watches.values():
                watch.ask_again()

    def found(self, node: str, *, is_new: bool) -> None:
        """A node announces itself. If it was started since the last time, what it was asked for is lost."""
        for watch in self._watches.values():
            watch.found(node)
            if is_new:
                watch.ask_again(node)

    async def ask(self, node: str, request: HistoryRequest) -> bool:
        """Whether the broker has the request."""
        try:
            await self._bus.publish(BusMessage(self._topics.of_node(node, Channel.HISTORY), write_frame(request)))
        except LinkDown:
            return False
        return True

    async def _hear(self, message: BusMessage) -> None:
        try:
            reply, node = read_frame(message.payload, HistoryReply), parse_topic(message.topic).name
        except StigmergyError:
            return  # somebody else's words on a topic that is not theirs
        watch = self._watches.get(reply.watch)
        if watch is not None:
            watch.heard(node, reply)


class _Node(Struct, eq=False):
    """What a watch knows of a node."""

    at: dict[int, LogPosition]
    """Up to where its log is here: the next request asks for what is behind."""
    number: int = 0
    reply: asyncio.Future[HistoryReply | None] | None = None
    task: asyncio.Task[None] | None = None
    refusal: str = ""
    """What it has said instead of an answer; raised once."""
    is_silent: bool = True
    """Whether it has not answered the last request in time, or none yet."""


class NodesWatching(LogWatching):
    """What agents of all nodes of a fleet publish, from their logs."""

    def __init__(
        self,
        client: HistoryClient,
        watch_id: str,
        topics: str,
        kind: type[Event] | None,
        start: WatchPosition,
        within_s: float,
        check: Callable[[], Awaitable[None]],
        members: Callable[[], str],
    ) -> None:
        """`check` is waited for first: it raises where nobody could be heard. `members` says which nodes are known, for
        the error when none answers within `within_s`."""
        super().__init__(kind, start)
        self.id = watch_id
        self._client = client
        self._topics = topics
        self._within_s = within_s
        self._members = members
        self._nodes: dict[str, _Node] = {}
        self._some = asyncio.Event()
        """Set when something is held, and at the end."""
        self._room = asyncio.Event()
        """Set when less is held than may be."""
        self._reached = asyncio.Event()
        self._begun = asyncio.ensure_future(self._begin(check))
        self._finding: asyncio.Task[None] | None = None

    @property
    def unanswered(self) -> Sequence[str]:  # type: ignore[override]  # worked out when it is asked for
        """Nodes that were asked and do not answer at present: what they have published comes when they are back."""
        return sorted(name for name, node in self._nodes.items() if node.is_silent)

    async def wait_ready(self) -> None:
        """Returns when a node has answered. Raises NoAnswer if none does in time, ConfigError where none could."""
        try:
            async with asyncio.timeout(self._within_s):
                await asyncio.shield(self._begun)
                await self._reached.wait()
        except TimeoutError:
            raise NoAnswer(
                f"no node has sent its history within {self._within_s:g} s; nodes that are known: {self._members()}"
            ) from None

    async def aclose(self) -> None:
        self.end()
        await end_tasks(self._begun, self._finding, *(node.task for node in self._nodes.values()))

    def end(self) -> None:
        """Hears no more; the tasks end by themselves."""
        self._ended = True
        self._client.end(self)
        self._some.set()
        self._reached.set()
        for task in (self._begun, self._finding, *(node.task for node in self._nodes.values())):
            if task is not None:
                task.cancel()

    def found(self, name: str) -> None:
        """A node is there: from now on it is asked."""
        if name not in self._nodes and len(self._nodes) < NODES_MAX and not self._ended:
            node = self._nodes[name] = _Node(dict(self._at.get(name, {})))
            node.task = asyncio.ensure_future(self._follow(name, node))

    def ask_again(self, name: str | None = None) -> None:
        """What a node was asked for, or all were, may be lost."""
        for each, node in self._nodes.items():
            if name in (None, each) and node.reply is not None and not node.reply.done():
                node.reply.set_result(None)

    def heard(self, name: str, reply: HistoryReply) -> None:
        """A reply came."""
        self.found(name)
        node = self._nodes.get(name)
        if node is not None and reply.number == node.number and node.reply is not None and not node.reply.done():
            node.reply.set_result(reply)

    async def _fill(self) -> None:
        await self.wait_ready()
        self._some.clear()
        if not self._held and not self._ended:
            await self._some.wait()

    def _taken(self) -> None:
        if len(self._held) < HELD_MAX:
            self._room.set()

    async def _begin(self, check: Callable[[], Awaitable[None]]) -> None:
        await check()
        await self._client.begin(self)
        for name in (*self._start.at, *self._client.members()):
            self.found(name)
        self._finding = asyncio.ensure_future(self._find())

    async def _find(self) -> None:
        """Asks who is there."""
        while True:
            with contextlib.suppress(StigmergyError):  # told when one of them is asked itself
                await self._client.ask(EVERY_NODE, HistoryRequest(self._client.name, self.id, 0))
            await asyncio.sleep(FIND_LATER_S if self._reached.is_set() else FIND_S)

    async def _follow(self, name: str, node: _Node) -> None:
        """Asks one node, again and again. What it refuses with is raised where the next event is waited for."""
        while True:
            try:
                reply = await self._ask(name, node)
                if reply is None:
                    continue
                self._reached.set()
                node.is_silent = False
                if reply.error:
                    raise error_named(reply.kind, f"node {name!r}: {reply.error}")
            except StigmergyError as error:
                # Raised once; the node may answer again after a restart, or when others have left.
                if str(error) != node.refusal:
                    node.refusal = str(error)
                    self._held.append(error)
                    self._some.set()
                await asyncio.sleep(REFUSED_PAUSE_S)
                continue
            node.refusal = ""
            self._hold(name, reply.portion, node.at)
            node.at = reply.portion.at
            self._some.set()
            while len(self._held) >= HELD_MAX:
                self._room.clear()
                await self._room.wait()

    async def _ask(self, name: str, node: _Node) -> HistoryReply | None:
        """The reply to the next request; None if it may be lost, and has to be asked for again."""
        node.number += 1
        node.reply = asyncio.get_running_loop().create_future()
        begin = self._start
        request = HistoryRequest(
            self._client.name,
            self.id,
            node.number,
            self._topics,
            self.event_tag,
            node.at,
            begin.since_ns,
            begin.latest,
        )
        if not await self._client.ask(name, request):
            await asyncio.sleep(PAUSE_S)
            return None
        try:
            async with asyncio.timeout(AGAIN_S):
                return await node.reply
        except TimeoutError:
            node.is_silent = True
            return None
