"""Answers requests for history over the bus: what agents of this node have published, read from its log.

Each watch of a client has one request here at a time, and one reader of the log. A newer request replaces an older one:
what a broker has kept for a node that was away costs one answer. A watch that asks nothing for a while is forgotten;
its next request says itself where to go on.
"""

from __future__ import annotations

import asyncio
import contextlib

from msgspec import Struct

from stigmergy.agents.codec import REASON_CHARS_MAX, printable
from stigmergy.base.errors import ConfigError, Malformed, Overloaded, StigmergyError
from stigmergy.base.tasks import end_tasks
from stigmergy.bus.history import WAIT_S_MAX, HistoryReply, HistoryRequest, read_frame, write_frame
from stigmergy.bus.port import Bus, BusMessage, check_pattern
from stigmergy.bus.topics import EVERY_NODE, Channel, Topics, check_level_name
from stigmergy.node.history import HistoryReader
from stigmergy.node.host import Host

WATCHES_MAX = 256
"""Watches that a node answers at the same time; one more is refused until another one has ended."""
IDLE_S_MAX = 60.0
"""A watch that asks nothing for so long is forgotten."""


class HistoryCounters(Struct):
    """What was asked for, and sent."""

    history_requests: int = 0
    history_sent: int = 0
    """Publications in replies."""
    history_refused: int = 0


class _Watch:
    """One watch of a client."""

    def __init__(self) -> None:
        self.request: HistoryRequest | None = None
        """The newest that is not answered."""
        self.asked = asyncio.Event()
        self.reader: HistoryReader | None = None
        self.task: asyncio.Task[None] | None = None


class HistoryService:
    """The node's side. `start` subscribes, `stop` ends all watches."""

    def __init__(self, bus: Bus, topics: Topics, node: str, host: Host) -> None:
        self._bus = bus
        self._topics = topics
        self._node = node
        self._host = host
        self._watches: dict[tuple[str, str], _Watch] = {}
        self._closed = False
        self.counters = HistoryCounters()

    async def start(self) -> None:
        """Call it before the bus opens."""
        for node in (self._node, EVERY_NODE):
            await self._bus.subscribe(self._topics.of_node(node, Channel.HISTORY), self._hear)

    async def stop(self) -> None:
        """Answers nobody any more."""
        self._closed = True
        await end_tasks(*(watch.task for watch in self._watches.values() if watch.task is not None))

    async def _hear(self, message: BusMessage) -> None:
        if self._closed:
            return  # The client asks again, and this node answers when it is back.
        request = _read_request(message)
        self.counters.history_requests += 1
        key = (request.client, request.watch)
        watch = self._watches.get(key)
        if request.number == 0:
            await self._send(request, HistoryReply(request.watch, 0))
        elif watch is not None:
            watch.request = request
            watch.asked.set()
        elif not self._host.settings.bus.queries:
            await self._refuse(request, ConfigError("this node answers no queries (queries = false): no history"))
        elif len(self._watches) >= WATCHES_MAX:
            full = f"node {self._node!r} answers {WATCHES_MAX} watches with history already; try again later"
            await self._refuse(request, Overloaded(full))
        else:
            watch = self._watches[key] = _Watch()
            watch.request = request
            watch.asked.set()
            watch.task = asyncio.ensure_future(self._serve(watch))
            watch.task.add_done_callback(lambda _: self._watches.pop(key, None))

    async def _serve(self, watch: _Watch) -> None:
        """Answers one request after the other."""
        try:
            while True:
                async with asyncio.timeout(IDLE_S_MAX):
                    await watch.asked.wait()
                watch.asked.clear()
                request, watch.request = watch.request, None
                if request is not None:
                    await self._answer(watch, request)
        except TimeoutError:
            pass
        finally:
            await _close(watch)

    async def _answer(self, watch: _Watch, request: HistoryRequest) -> None:
        try:
            reader = await self._reader(watch, request)
            portion = await reader.read(min(max(request.wait_s, 0.0), WAIT_S_MAX))
        except StigmergyError as error:
            await _close(watch)
            await self._refuse(request, error)
            return
        newer = watch.request
        if newer is not None and newer.after == request.after:
            # Asked again while it waited: the client listens for the newer number only.
            request, watch.request = newer, None
            watch.asked.clear()
        self.counters.history_sent += len(portion.items)
        await self._send(request, HistoryReply(request.watch, request.number, portion))

    async def _reader(self, watch: _Watch, request: HistoryRequest) -> HistoryReader:
        """The one of the last request, if this one goes on where it has come to."""
        reader = watch.reader
        if reader is None or reader.at != request.after:
            await _close(watch)
            reader = watch.reader = HistoryReader(
                self._host,
                request.topics,
                request.event,
                after=request.after,
                since_ns=request.since_ns,
                latest=request.latest,
            )
        return reader

    async def _refuse(self, request: HistoryRequest, error: StigmergyError) -> None:
        self.counters.history_refused += 1
        said, kind = printable(error, REASON_CHARS_MAX), type(error).__name__
        await self._send(request, HistoryReply(request.watch, request.number, error=said, kind=kind))

    async def _send(self, request: HistoryRequest, reply: HistoryReply) -> None:
        """A reply that is lost is asked for again."""
        topic = self._topics.published(self._node, request.client)
        with contextlib.suppress(StigmergyError):
            await self._bus.publish(BusMessage(topic, write_frame(reply)))


def _read_request(message: BusMessage) -> HistoryRequest:
    """Raises Malformed or TooLarge for what no client of ours sends."""
    request = read_frame(message.payload, HistoryRequest)
    try:
        check_level_name("client", request.client)
        check_level_name("watch", request.watch)
    except ConfigError as error:
        raise Malformed(str(error)) from None
    if request.number:
        check_pattern(request.topics)
    return request


async def _close(watch: _Watch) -> None:
    reader, watch.reader = watch.reader, None
    if reader is not None:
        await reader.close()
