"""Reads the events of a running node for clients: from positions on, page by page, with a bounded wait for the next.

A client gives the positions that the last answer had, and misses nothing and gets nothing twice. Its reader waits for
it meanwhile, so that the next page comes from memory; a client that does not return is forgotten. Readers hold up
neither the agents nor retention.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from typing import Any

from msgspec import UNSET, Struct

from stigmergy.base.errors import ConfigError, Overloaded
from stigmergy.control.live import Live
from stigmergy.control.protocol import PLACES, EventsRequest
from stigmergy.control.replies import EventReply, EventsReply
from stigmergy.node.feed import (
    FeedEntry,
    FeedPosition,
    FeedReader,
    read_key,
    read_positions,
    shard_key,
    write_positions,
)

EVENTS_COUNT_MAX = 5_000
"""So many events are on one page."""
WITHIN_S_MAX = 30.0
"""So long the first event of a page is waited for."""
WAITING_MAX = 32
"""Pages that are read at once; one more is refused."""
KEPT_MAX = 32
KEPT_S = 60.0
"""So many readers wait for their clients to return, and each so long."""
GIVE_WAY_EVENTS = 200


class _KeptReader(Struct, eq=False):
    """A reader whose client may return."""

    reader: FeedReader
    expiry: asyncio.TimerHandle


class EventFeed:
    """Reads events for the clients of one node."""

    def __init__(self, live: Live, is_only: Callable[[], bool]) -> None:
        """`is_only` says whether this node has the only log of its fleet, or of its shards."""
        self._is_only = is_only
        self._host = live.host
        self._kept: dict[str, _KeptReader] = {}
        """By the positions with which its client returns."""
        self._closing: asyncio.Future[None] | None = None
        self._reading = 0

    async def read(self, request: EventsRequest) -> EventsReply:
        """The page that is asked for. Raises LogCut, ConfigError and Overloaded."""
        if not 1 <= request.limit <= EVENTS_COUNT_MAX:
            raise ConfigError(f"limit {request.limit}: give 1 to {EVENTS_COUNT_MAX}")
        if not 0 <= request.within_s <= WITHIN_S_MAX:
            raise ConfigError(f"within_s {request.within_s}: give 0 to {WITHIN_S_MAX:g}")
        if self._reading >= WAITING_MAX:
            raise Overloaded(f"{WAITING_MAX} clients read events already; try again when one has left")
        feed = self._host.feed
        if request.shard is not None and list(feed.positions()) != [request.shard]:
            raise ConfigError(f"shard {request.shard}: a node reads all its shards together; leave it out")
        if request.after is None and request.since_ns is None:
            return EventsReply([], self._written(feed.positions()))
        reader = self._reader(request)
        self._reading += 1
        try:
            entries = await reader.read(request.limit, request.within_s)
            events = await self._described(entries)
        except BaseException:
            await reader.close()
            raise
        finally:
            self._reading -= 1
        positions = self._written(reader.positions)
        await self._keep(positions, reader)
        return EventsReply(events, positions)

    def _reader(self, request: EventsRequest) -> FeedReader:
        feed = self._host.feed
        if request.after is None:
            return feed.reader(feed.positions_at(request.since_ns or 0))
        kept = self._kept.pop(request.after, None)
        if kept is None:
            return feed.reader(self._start(request.after))
        kept.expiry.cancel()
        return kept.reader

    def _written(self, positions: Mapping[int, FeedPosition]) -> str:
        log = self._host.feed.log
        return write_positions({shard_key(shard, log): at for shard, at in positions.items()})

    def _start(self, text: str) -> dict[int, FeedPosition]:
        """The positions of this log that a client gives. Raises ConfigError for those of another."""
        found: dict[int, FeedPosition] = {}
        for key, at in read_positions(text).items():
            shard, log = read_key(key)
            self._host.feed.check_log(log, at.position, is_only=self._is_only())
            found[shard] = at
        return found

    async def _keep(self, positions: str, reader: FeedReader) -> None:
        """Two clients at the same positions share nothing: the second one's reader is closed."""
        if positions in self._kept or len(self._kept) >= KEPT_MAX:
            await reader.close()
            return
        loop = asyncio.get_running_loop()
        self._kept[positions] = _KeptReader(reader, loop.call_later(KEPT_S, self._forget, positions, reader))

    def _forget(self, positions: str, reader: FeedReader) -> None:
        del self._kept[positions]
        self._closing = asyncio.ensure_future(reader.close())

    async def _described(self, entries: list[FeedEntry]) -> list[EventReply]:
        found: list[EventReply] = []
        for number, entry in enumerate(entries, start=1):
            if number % GIVE_WAY_EVENTS == 0:
                await asyncio.sleep(0)
            if not entry.agent:
                continue  # A fact about the shard, such as a new signer.
            fields = entry.fields
            found.append(
                EventReply(
                    entry.shard,
                    entry.position,
                    entry.index,
                    entry.time_ns,
                    entry.agent,
                    entry.type,
                    fields,
                    place_in(fields) or self._place_of(entry.agent) or UNSET,
                    entry.kept_ns - entry.time_ns,
                )
            )
        return found

    def _place_of(self, address: str) -> tuple[float, float] | None:
        """Where an agent is by its durable state."""
        plan = self._host.declaration.plans.get(address.partition("/")[0])
        if plan is None or not any(names[0] in plan.cls.__struct_fields__ for names in PLACES):
            return None
        agent = self._host.durable_image(address)
        return None if agent is None else _pair(lambda name: getattr(agent, name, None))


def place_in(fields: Any) -> tuple[float, float] | None:
    """Where an event says that something is."""
    return _pair(fields.get) if isinstance(fields, dict) else None


def _pair(value_of: Any) -> tuple[float, float] | None:
    for first, second in PLACES:
        pair = (value_of(first), value_of(second))
        if all(isinstance(one, int | float) and not isinstance(one, bool) for one in pair):
            return (float(pair[0]), float(pair[1]))
    return None
