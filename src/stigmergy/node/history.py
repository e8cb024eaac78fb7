"""Reads what the agents of a node have published, from its log: from a position on and then live, for one watch.

Only what is durable is read, in the order of each shard's log. A reader holds up neither agents nor retention: where
the log begins later than what was asked for, the portion says so.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Iterator, Mapping

import msgspec
from msgspec import structs

from stigmergy.agents.codec import tag_of
from stigmergy.agents.effects import PUBLISH
from stigmergy.agents.messages import Event
from stigmergy.agents.raw import BUS, inner_tag
from stigmergy.base.errors import LogCut, TooLarge
from stigmergy.bus.history import (
    REPLY_BYTES,
    WAIT_S,
    WHOLE,
    LogPosition,
    Portion,
    Published,
    WantedTopics,
    WatchPosition,
)
from stigmergy.node.feed import FeedCommit, FeedPosition, FeedReader, HostShardFeed
from stigmergy.node.host import Host
from stigmergy.node.watching import LogWatching
from stigmergy.shard.commit import Commit, open_commit

LATEST_COUNT_MAX = 100_000
"""Topics whose newest event one reader holds."""
ITEM_BYTES = 128
"""What an item takes beside its event, about."""
_published = msgspec.msgpack.Decoder(tuple[str, bytes])


class HistoryReader:
    """What one watch wants of the log. `read` portion by portion; `at` is the position behind what was returned."""

    def __init__(
        self,
        host: Host,
        topics: str,
        event: str = "",
        *,
        after: Mapping[int, LogPosition] | None = None,
        since_ns: int | None = None,
        latest: bool = False,
    ) -> None:
        """`topics` is a pattern of `read_topics`. A shard that `after` lacks begins at `since_ns`, or at its beginning;
        with `latest` the newest event of each topic comes first, instead of all."""
        self._host = host
        self._wanted = WantedTopics(topics)
        self._event = event
        self._after = dict(after or {})
        self._cut: dict[int, int] = {}
        self.at: dict[int, LogPosition] = {}
        self._starts: dict[int, int] = {}
        since = None if since_ns is None else host.feed.positions_at(since_ns)
        for shard in host.journal.identity.owned:
            before = self._after.get(shard)
            if before is not None:
                self._starts[shard], self.at[shard] = self._start_behind(shard, before), before
            else:
                start = self._starts[shard] = self._first_start(shard, since)
                self.at[shard] = LogPosition(_incarnation_at(host, shard, start), start, latest=latest)
        newest = [shard for shard, at in self.at.items() if at.latest]
        self._waiting: deque[tuple[int, LogPosition, Published | None]] = deque()
        """Read and not returned: what was published, and after each commit, without one, where it ends."""
        self._newest: dict[tuple[int, str, str], Published] = {}
        self._ends: dict[int, LogPosition] = {}
        """Of the newest: where the log was read to."""
        self._orders = host.declaration.device_orders
        self._scanned = self._reader(newest) if newest else None
        self._live: FeedReader | None = None

    async def read(self, within_s: float, bytes_max: int = REPLY_BYTES) -> Portion:
        """The next ones; waits so long for the first. Raises NotRunning at the end of the host, and TooLarge."""
        until_s = _now_s() + within_s
        items: list[Published] = []
        size_bytes = newest_count = 0
        while True:
            is_more = bool(self._waiting) or await self._fill(until_s - _now_s())
            while self._waiting and size_bytes < bytes_max:
                shard, self.at[shard], one = self._waiting.popleft()
                if one is not None:
                    items.append(one)
                    size_bytes += len(one.body) + ITEM_BYTES
                    newest_count += self.at[shard].latest
            if items or not is_more or _now_s() >= until_s:
                cut, self._cut = self._cut, {}
                return Portion(dict(self.at), items, newest_count, cut)

    async def close(self) -> None:
        """Reads no more."""
        readers, self._scanned, self._live = (self._scanned, self._live), None, None
        for reader in readers:
            if reader is not None:
                await reader.close()

    async def _fill(self, within_s: float) -> bool:
        """Reads more of the log; False if the time is over."""
        try:
            if self._scanned is not None:
                return await self._scan(self._scanned, within_s)
            if self._live is None:
                self._live = self._reader(list(self.at))
            commits = await self._live.read_commits(max(0.0, within_s))
        except LogCut as cut:
            await self._go_on_at(cut.shard, cut.first_position)
            return True
        for one in commits:
            shard, end = one.commit.shard, _end_of(one.commit)
            if not self._is_known(shard, end):
                self._waiting.extend((shard, _behind(item), item) for item in self._published(one))
                self._waiting.append((shard, end, None))
            self._starts[shard] = one.commit.position
        return bool(commits)

    async def _scan(self, reader: FeedReader, within_s: float) -> bool:
        """Reads to the end of the log, and keeps the newest of each topic. False if the time is over before."""
        until_s = _now_s() + within_s
        while commits := await reader.read_commits():
            for one in commits:
                shard = one.commit.shard
                for item in self._published(one):
                    self._newest.pop((shard, item.agent, item.topic), None)
                    self._newest[shard, item.agent, item.topic] = item
                self._ends[shard], self._starts[shard] = _end_of(one.commit), one.commit.position
            if len(self._newest) > LATEST_COUNT_MAX:
                raise TooLarge(f"more than {LATEST_COUNT_MAX:,} topics have a newest event here; watch fewer topics")
            if _now_s() >= until_s:
                return False
        self._waiting.extend((one.shard, _behind(one, latest=True), one) for one in self._newest.values())
        for shard, at in self.at.items():
            if at.latest:
                self._waiting.append((shard, self._ends.get(shard) or structs.replace(at, latest=False), None))
        self._newest.clear()
        self._scanned = None
        await reader.close()
        return True

    async def _go_on_at(self, shard: int, first: int) -> None:
        """Retention was faster than this reader, which goes on where the log begins now."""
        self._cut[shard] = first
        self._starts[shard] = first - 1
        is_scanned = self._scanned is not None
        await self.close()
        if is_scanned:
            self._scanned = self._reader([one for one, at in self.at.items() if at.latest])

    def _reader(self, shards: list[int]) -> FeedReader:
        feeds = [HostShardFeed(self._host.feed, shard) for shard in shards]
        return FeedReader(feeds, {shard: FeedPosition(self._starts[shard]) for shard in shards})

    def _published(self, one: FeedCommit) -> Iterator[Published]:
        commit = one.commit
        shard, incarnation = commit.shard, commit.incarnation
        times = [run.time_ns for run in commit.runs] + [run.time_ns for run in commit.columns]
        for index, owed in enumerate(commit.owed):
            if owed.sink != PUBLISH or self._is_known(shard, LogPosition(incarnation, commit.position, index)):
                continue
            topic, body = _published.decode(owed.body)
            if not self._wanted.has(owed.agent, topic) or (self._event and tag_of(body) != self._event):
                continue
            if not self._host.raw.is_idle and self._host.raw.stays(inner_tag(body), BUS):
                continue  # it was never published
            # What a device gets as plain JSON is not published on the agent's own topic.
            if any(order.about == topic and order.agent.match(owed.agent) is not None for order in self._orders):
                continue
            numbers = (commit.position, index, commit.epoch, owed.sequence)
            yield Published(shard, incarnation, *numbers, max(times, default=0), owed.agent, topic, body)

    def _is_known(self, shard: int, at: LogPosition) -> bool:
        """Whether the watch had it before. Of another incarnation it had nothing, whatever the position."""
        before = self._after.get(shard)
        return (
            before is not None
            and before.incarnation == at.incarnation
            and (at.position, at.index) <= (before.position, before.index)
        )

    # ------------------------------------------------------------------ where to begin

    def _first_start(self, shard: int, since: Mapping[int, FeedPosition] | None) -> int:
        """Where to begin with a shard that the watch has not read yet."""
        first = self._host.journal.first_position(shard)
        start = first - 1 if since is None else since[shard].position
        if start == first - 1 > 0:
            self._cut[shard] = first
        return start

    def _start_behind(self, shard: int, before: LogPosition) -> int:
        """Where to go on behind a position: there, if it is one of this log."""
        host = self._host
        first, end = host.journal.first_position(shard), host.durable_position(shard)
        start = before.position - (before.index < WHOLE)
        is_there = first - 1 <= start and before.position <= end
        if is_there and (
            before.position < first or _incarnation_at(host, shard, before.position) == before.incarnation
        ):
            return start
        # Dropped; or the log was restored from a copy, and what the copy lacked was read from the original.
        if first > 1 and not (before.position >= first and _incarnation_at(host, shard, first) == before.incarnation):
            self._cut[shard] = first
        return first - 1


class LocalWatching(LogWatching):
    """What the agents of a node in this process publish, read from its log."""

    def __init__(
        self, host: Host, node: str, topics: str, kind: type[Event] | None, start: WatchPosition | None
    ) -> None:
        """Without a start: from now on."""
        super().__init__(kind, start or WatchPosition({node: end_of_log(host)}))
        begin = self._start
        self._node = node
        self._reader = HistoryReader(
            host,
            topics,
            self.event_tag,
            after=self._at.get(node),
            since_ns=begin.since_ns,
            latest=begin.latest,
        )
        self._asked = dict(self._at.get(node, {}))

    async def aclose(self) -> None:
        await super().aclose()
        await self._reader.close()

    async def _fill(self) -> None:
        portion = await self._reader.read(WAIT_S)
        self._hold(self._node, portion, self._asked)
        self._asked = portion.at


def end_of_log(host: Host) -> dict[int, LogPosition]:
    """The position behind which everything follows that becomes durable from now on."""
    ends = {shard: host.durable_position(shard) for shard in host.journal.identity.owned}
    return {shard: LogPosition(_incarnation_at(host, shard, end), end) for shard, end in ends.items()}


def _incarnation_at(host: Host, shard: int, position: int) -> int:
    """Of a commit; of one that is not there, the log's own."""
    journal = host.journal
    if journal.first_position(shard) <= position <= host.durable_position(shard):
        stored = next(iter(journal.read(shard, after=position - 1)), None)
        if stored is not None:
            return open_commit(stored.sealed.body).incarnation
    return journal.identity.incarnation


def _behind(one: Published, *, latest: bool = False) -> LogPosition:
    return LogPosition(one.incarnation, one.position, one.index, latest)


def _end_of(commit: Commit) -> LogPosition:
    return LogPosition(commit.incarnation, commit.position)


def _now_s() -> float:
    return asyncio.get_running_loop().time()
