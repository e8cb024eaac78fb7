"""The events nearest to a moment or to an event, of all shards in one order: by the times of their commits.

A running fleet orders events within a shard only. Here the nearest ones of each shard are found by its positions, and
merged by (time of the commit, shard, position, index): whoever steps on and back again meets the same events.
"""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Mapping

from msgspec import Struct

from stigmergy.audit.listing import readable_time
from stigmergy.base.errors import ConfigError, LogCut
from stigmergy.control.protocol import EventsRequest
from stigmergy.control.replies import EventReply
from stigmergy.node.feed import FeedPosition, read_key, read_positions, write_positions
from stigmergy.serve.events import EventHub, StreamedEvent, StreamFilter, positions_before

NEAREST_COUNT_MAX = 1_000
"""So many events are found at once."""
PAGE_COUNT = 500
WINDOW_COMMITS = 16
WINDOW_GROWTH = 8
"""So many commits of each shard are looked at first for what was before, and each time so many times as many."""
_PLACE = re.compile(r"(?P<shard>\d{1,4}):(?P<position>\d{1,18})\.(?P<index>\d{1,9})", re.ASCII)

Bounds = dict[int, FeedPosition]
"""For each shard the last event that is not behind."""


class NearestEvent(StreamedEvent, frozen=True, kw_only=True):
    """An event, and the moment from which on its agent shows it."""

    kept: str


class EventPlace(Struct, frozen=True):
    """Where an event is in the log: what tells it from all others."""

    shard: int
    at: FeedPosition


def read_place(text: str) -> EventPlace:
    """Reads `0:41.2`, the event 2 of the commit at 41 of shard 0. Raises ConfigError."""
    found = _PLACE.fullmatch(text)
    if found is None:
        raise ConfigError(f"event={text[:50]}: give shard, position and index of an event, such as 0:41.2")
    return EventPlace(int(found["shard"]), FeedPosition(int(found["position"]), int(found["index"])))


class NearestEvents:
    """Finds events of the log of one hub that a filter lets through."""

    def __init__(self, hub: EventHub, wanted: StreamFilter) -> None:
        self._hub = hub
        self._wanted = wanted
        self._keys: dict[int, str] = {}
        """How positions name each shard."""
        self._end: Bounds = {}

    async def find(self, start: EventPlace | int | None, count: int, *, back: bool) -> list[NearestEvent]:
        """The first events behind an event or the microsecond of a time (ns), or with `back` the last before it; for
        None, before the end of the log. In order. Raises what the node refuses with."""
        if not 1 <= count <= NEAREST_COUNT_MAX:
            raise ConfigError(f"limit={count}: give 1 to {NEAREST_COUNT_MAX}")
        await self._look()
        if start is None:
            bounds = dict(self._end)
        elif isinstance(start, int):
            bounds = await self._bounds_at(start if back else start + 1_000)
        else:
            bounds = await self._bounds_of(start, back=back)
        lanes = await (self._before if back else self._behind)(bounds, count, self._wanted)
        found = sorted((one for lane in lanes.values() for one in lane), key=_order)
        return [self._described(one) for one in (found[-count:] if back else found[:count])]

    async def _look(self) -> None:
        """Where the log ends now: what is written from now on is not waited for."""
        positions = read_positions((await self._hub.ask(EventsRequest())).positions)
        self._keys = {read_key(key)[0]: key for key in positions}
        self._end = {read_key(key)[0]: at for key, at in positions.items()}

    async def _bounds_at(self, time_ns: int) -> Bounds:
        """All commits before this time."""
        reply = await self._hub.ask(EventsRequest(since_ns=max(0, time_ns), limit=1))
        found = positions_before(reply.events, read_positions(reply.positions))
        return {read_key(key)[0]: at for key, at in found.items()}

    async def _bounds_of(self, place: EventPlace, *, back: bool) -> Bounds:
        """All up to an event in the order of all shards; with `back`, all before it."""
        if place.shard not in self._keys:
            raise ConfigError(f"shard {place.shard} is none of this fleet; give the place of an event of it")
        before = _just_before(place.at)
        # Of the other shards nothing is read.
        lanes = await self._behind({**self._end, place.shard: before}, 1, StreamFilter())
        if not (lane := lanes[place.shard]) or FeedPosition(lane[0].position, lane[0].index) != place.at:
            raise ConfigError(f"shard {place.shard} has no event {place.at.position}.{place.at.index}")
        kept_ns = lane[0].time_ns + lane[0].kept_after_ns
        earlier, equal = await self._bounds_at(kept_ns), await self._bounds_at(kept_ns + 1)
        bounds = {shard: (equal if shard < place.shard else earlier)[shard] for shard in self._keys}
        return {**bounds, place.shard: before if back else place.at}

    async def _behind(self, bounds: Bounds, count: int, wanted: StreamFilter) -> dict[int, list[EventReply]]:
        """The first events of each shard behind these bounds."""
        lanes: dict[int, list[EventReply]] = {shard: [] for shard in self._keys}
        at = bounds
        while any(at[shard] < self._end[shard] and len(lanes[shard]) < count for shard in lanes):
            events, at = await self._page(at)
            for one in events:
                if len(lanes[one.shard]) < count and wanted.lets_through(one):
                    lanes[one.shard].append(one)
        return lanes

    async def _before(self, bounds: Bounds, count: int, wanted: StreamFilter) -> dict[int, deque[EventReply]]:
        """The last events of each shard up to these bounds. Looks at longer and longer ends of the log before them."""
        window, first = max(WINDOW_COMMITS, count), dict.fromkeys(self._keys, FeedPosition(0))
        while True:
            start = {one: max(first[one], FeedPosition(max(0, at.position - window))) for one, at in bounds.items()}
            try:
                lanes = await self._within(start, bounds, count, wanted)
            except LogCut:
                if any(at.position for at in first.values()):
                    raise
                first = await self._bounds_at(0)
                continue
            if all(len(lanes[shard]) == count or at <= first[shard] for shard, at in start.items()):
                return lanes
            window *= WINDOW_GROWTH

    async def _within(
        self, start: Bounds, bounds: Bounds, count: int, wanted: StreamFilter
    ) -> dict[int, deque[EventReply]]:
        lanes: dict[int, deque[EventReply]] = {shard: deque(maxlen=count) for shard in self._keys}
        at = start
        while any(at[shard] < min(bounds[shard], self._end[shard]) for shard in lanes):
            events, at = await self._page(at)
            for one in events:
                if FeedPosition(one.position, one.index) <= bounds[one.shard] and wanted.lets_through(one):
                    lanes[one.shard].append(one)
        return lanes

    async def _page(self, at: Mapping[int, FeedPosition]) -> tuple[list[EventReply], Bounds]:
        after = write_positions({self._keys[shard]: one for shard, one in at.items()})
        reply = await self._hub.ask(EventsRequest(after=after, limit=PAGE_COUNT))
        return reply.events, {read_key(key)[0]: one for key, one in read_positions(reply.positions).items()}

    def _described(self, one: EventReply) -> NearestEvent:
        return NearestEvent(
            one.agent,
            one.type,
            readable_time(one.time_ns),
            one.fields,
            one.shard,
            one.position,
            one.index,
            f"{self._keys[one.shard]}:{one.position}.{one.index}",
            kept=readable_time(one.time_ns + one.kept_after_ns),
        )


def _order(one: EventReply) -> tuple[int, int, int, int]:
    return (one.time_ns + one.kept_after_ns, one.shard, one.position, one.index)


def _just_before(at: FeedPosition) -> FeedPosition:
    return FeedPosition(at.position, at.index - 1) if at.index else FeedPosition(at.position - 1)
