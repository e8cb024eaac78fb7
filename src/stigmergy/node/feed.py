"""The feed of a log: its commits from given positions on and then live, without a gap and without a double.

`LogFeed` is the log of a running host. Many readers follow it: each has its own positions, and what became durable a
moment ago they all take from memory. Older commits are read from the journal in small portions, beside the node's own
work. A `FeedReader` reads shards, whatever is behind them: a host (`LogFeed`), or the log of a shard that another
process owns (`FollowedLog`).

Ordering: per shard as written; between shards none. Durability: only what is durable is read. Readers hold up neither
the node nor retention: a position that was dropped meanwhile is refused with the first that is left (`LogCut`).
"""

from __future__ import annotations

import asyncio
import re
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Protocol

from msgspec import Struct

from stigmergy.audit.directories import Directories
from stigmergy.audit.listing import readable_fields
from stigmergy.base.errors import Bug, ConfigError, LogCut, NotRunning
from stigmergy.journal.port import Journal, ShardLog, StoredCommit, last_before
from stigmergy.shard.commit import Commit, open_commit
from stigmergy.shard.commit_reader import KeptEvent, Reading, walk
from stigmergy.shard.shard import Shards

RECENT_COMMITS_MAX = 4_096
RECENT_BYTES_MAX = 8 * 1024 * 1024
"""So much of the newest log is kept in memory while somebody follows it; a slower reader reads the journal."""
PORTION_COMMITS = 64
PORTION_BYTES = 64 * 1024
"""Read from a journal in one go; a larger commit is read all the same."""
BATCH_COMMITS = 512
"""Commits that one `read_commits` returns at most, unless told otherwise."""
REST_FACTOR = 4
"""A node that has work to do gets this many times as long as a portion took to read."""
QUIET_TRIES = 20
QUIET_PAUSE_S = 0.001
POLL_S = 1.0
"""How often a log of another process is read although nobody said that it has grown: such hints can be lost."""
WHOLE = 2**62
"""As an index: all events of the commit."""
_POSITION = re.compile(
    r"(?P<shard>\d{1,4}(?:@[0-9a-f]{1,8})?):(?P<position>\d{1,18})(?:\.(?P<index>\d{1,9}))?", re.ASCII
)


class FeedPosition(Struct, frozen=True, order=True):
    """How far a shard was read: up to this commit, and in it up to the event with this index."""

    position: int
    index: int = WHOLE


def log_name(incarnation: int) -> str:
    """How positions name a log: by its incarnation. One that was restored from a copy is another log."""
    return f"{incarnation & 0xFFFFFFFF:x}"


def shard_key(shard: int, log: str) -> str:
    """How positions name a shard: `0@5f3a9c1e`, shard 0 of that log."""
    return f"{shard}@{log}"


def read_key(key: str) -> tuple[int, str]:
    """The shard, and the log; the log is empty where it is not named, as earlier versions wrote it."""
    shard, _, log = key.partition("@")
    return int(shard), log


def write_positions(positions: Mapping[str, FeedPosition]) -> str:
    """Positions as a text: `0@5f3a9c1e:41,1@5f3a9c1e:17.2` is shard 0 of that log up to 41, and shard 1 up to the event
    2 of the commit at 17."""
    return ",".join(
        f"{key}:{at.position}" if at.index == WHOLE else f"{key}:{at.position}.{at.index}"
        for key, at in sorted(positions.items(), key=lambda one: read_key(one[0]))
    )


def read_positions(text: str) -> dict[str, FeedPosition]:
    """Reads what `write_positions` has written. Raises ConfigError."""
    found: dict[str, FeedPosition] = {}
    for part in text.split(",") if text else ():
        match = _POSITION.fullmatch(part)
        if match is None or match["shard"] in found:
            raise ConfigError(f"positions {text[:100]!r}: give them as they came, such as 0@5f3a9c1e:41,1@5f3a9c1e:7.2")
        index = WHOLE if match["index"] is None else int(match["index"])
        found[match["shard"]] = FeedPosition(int(match["position"]), index)
    return found


class FeedEntry(Struct, frozen=True):
    """An event of the log. `type` is its tag, such as `MissionStarted@1`; `body` are the bytes that were kept."""

    shard: int
    position: int
    index: int
    time_ns: int
    agent: str
    """Whose event it is; empty for facts about the shard itself."""
    type: str
    body: bytes
    kept_ns: int
    """When its commit was made: an event that may wait has happened before."""

    @property
    def fields(self) -> Any:
        """The fields of the event as plain values, for people and other programs."""
        return readable_fields(self.body)


class FeedCommit(Struct, frozen=True):
    """A commit, with what it takes to read the column runs of compiled agents in it."""

    commit: Commit
    reading: Reading

    def events(self) -> Iterator[KeptEvent]:
        """Its events in order, those of compiled agents included."""
        return walk(self.commit, self.reading)


class ShardFeed(Protocol):
    """The log of one shard, for a FeedReader.

    Ordering: commits in order, positions dense. Concurrency: one reader each.
    Errors: LogCut for a position before the first that is kept, NotRunning once the node behind it has ended, and what
        its journal raises.
    """

    @property
    def shard(self) -> int:
        """Its number."""
        ...

    @property
    def poll_s(self) -> float:
        """How often to read although nobody said that the log has grown; 0: never."""
        ...

    async def read(self, after: int, count_max: int) -> Sequence[FeedCommit]:
        """The next commits behind a position, a portion of at most so many; none where the log ends."""
        ...

    def watch(self, grown: Callable[[], None]) -> None:
        """Has this called whenever the log may have grown."""
        ...

    async def close(self) -> None:
        """Reads no more."""
        ...


class FeedReader:
    """Reads some shards: `read` events, or `read_commits`, one call at a time; `close` it at the end.

    A call that is cancelled loses nothing: the next one returns what it would have returned.
    """

    def __init__(self, feeds: Sequence[ShardFeed], start: Mapping[int, FeedPosition]) -> None:
        """`start` says for each shard up to where it was read before; one that it lacks begins at its beginning."""
        self.positions = {feed.shard: start.get(feed.shard, FeedPosition(0)) for feed in feeds}
        """How far each shard was read: what to start with after a restart."""
        self._skip = {shard: at for shard, at in self.positions.items() if at.index < WHOLE}
        """The commits that were read in part, and are read once more."""
        self._taken = {shard: at.position - (shard in self._skip) for shard, at in self.positions.items()}
        self._feeds = deque(feeds)
        self._may_have_more = dict.fromkeys(self.positions, True)
        self._woken = asyncio.Event()
        self._commits: list[FeedCommit] = []
        """Taken from the feeds and not returned yet."""
        self._entries: deque[FeedEntry] = deque()
        self._poll_s = min((feed.poll_s for feed in feeds if feed.poll_s), default=0.0)
        for feed in feeds:
            feed.watch(self._watcher(feed.shard))

    async def read(self, limit: int, within_s: float = 0.0) -> list[FeedEntry]:
        """The next events, at most so many; waits so long for the first. An empty list: nothing became durable."""
        until_s = _now_s() + within_s
        while not self._entries:
            commits = await self._next(BATCH_COMMITS, until_s - _now_s())
            if not commits:
                self.positions = self._whole()
                return []
            for one in commits:
                self._entries.extend(self._entries_of(one))
        found = [self._entries.popleft() for _ in range(min(limit, len(self._entries)))]
        for entry in found:
            self.positions[entry.shard] = FeedPosition(entry.position, entry.index)
        if not self._entries:
            self.positions = self._whole()
        return found

    async def read_commits(self, within_s: float = 0.0, count_max: int = BATCH_COMMITS) -> list[FeedCommit]:
        """The next commits, at most so many; waits so long for the first. One that was read in part comes whole."""
        found = await self._next(count_max, within_s)
        for one in found:
            self.positions[one.commit.shard] = FeedPosition(one.commit.position)
        return found

    async def close(self) -> None:
        """Reads no more."""
        for feed in self._feeds:
            await feed.close()

    def _whole(self) -> dict[int, FeedPosition]:
        """How far all was returned that was taken; a commit that is yet to be read once more stays where it was."""
        return {shard: self._skip.get(shard, FeedPosition(taken)) for shard, taken in self._taken.items()}

    async def _next(self, count_max: int, within_s: float) -> list[FeedCommit]:
        until_s = _now_s() + within_s
        while True:
            self._woken.clear()
            await self._gather(count_max)
            left_s = until_s - _now_s()
            if self._commits or left_s <= 0:
                break
            try:
                async with asyncio.timeout(min(left_s, self._poll_s or left_s)):
                    await self._woken.wait()
            except TimeoutError:
                if self._poll_s:
                    self._may_have_more = dict.fromkeys(self._may_have_more, True)
        found, self._commits = self._commits, []
        return found

    async def _gather(self, count_max: int) -> None:
        """A portion of each shard that may have more, until there are enough; the next call goes on with the next."""
        for _ in range(len(self._feeds)):
            count_left = count_max - len(self._commits)
            if count_left <= 0:
                return
            feed = self._feeds[0]
            if self._may_have_more[feed.shard]:
                self._may_have_more[feed.shard] = False
                portion = await self._portion(feed, count_left)
                self._commits += portion
                if portion:
                    self._may_have_more[feed.shard] = True
                    self._taken[feed.shard] = portion[-1].commit.position
            self._feeds.rotate(-1)

    async def _portion(self, feed: ShardFeed, count_max: int) -> Sequence[FeedCommit]:
        try:
            return await feed.read(self._taken[feed.shard], count_max)
        except BaseException:
            self._may_have_more[feed.shard] = True
            raise

    def _entries_of(self, one: FeedCommit) -> Iterator[FeedEntry]:
        shard, position = one.commit.shard, one.commit.position
        skip, kept_ns = self._skip.pop(shard, None), one.commit.runs[-1].time_ns
        for kept in one.events():
            if skip is None or kept.index > skip.index:
                yield FeedEntry(shard, position, kept.index, kept.time_ns, kept.address, kept.tag, kept.body, kept_ns)

    def _watcher(self, shard: int) -> Callable[[], None]:
        def grown() -> None:
            self._may_have_more[shard] = True
            self._woken.set()

        return grown


class LogFeed:
    """The log of a host, for any number of readers. The host calls `durable` with each commit, `end` at its end."""

    def __init__(
        self, journal: Journal, shards: Shards, durable_position: Callable[[int], int], is_busy: Callable[[], bool]
    ) -> None:
        """`is_busy` says whether the node has work to do, or a write under way."""
        self._journal = journal
        self._durable_position = durable_position
        self._is_busy = is_busy
        self._readings = shards.reading
        self._recent: dict[tuple[int, int], Commit] = {}
        """By shard and position, oldest first; kept only while somebody reads."""
        self._sizes: deque[tuple[int, int, int]] = deque()
        self._size_bytes = 0
        self._watchers: dict[int, list[Callable[[], None]]] = {shard: [] for shard in journal.identity.owned}
        self.log = log_name(journal.identity.incarnation)
        """How positions name this log."""
        self.listeners: list[Callable[[Commit], None]] = []
        """Told each commit when it is durable, at once: for what needs no commit twice and none of the past."""
        self.ended = ""
        """Why nothing more comes; empty while the host runs."""

    # ------------------------------------------------------------------ where to begin

    def reader(self, start: Mapping[int, FeedPosition] | None = None) -> FeedReader:
        """A reader behind these positions; a shard that they lack is read from its beginning. Without any: from now on.

        Raises LogCut where the log begins later by now, ConfigError for a position that it does not reach.
        """
        start = self.positions() if start is None else dict(start)
        for shard, at in start.items():
            if shard not in self._watchers:
                raise ConfigError(f"shard {shard}: this node has shards {', '.join(map(str, self._watchers))}")
            end = self._durable_position(shard)
            if at.position > end:
                raise ConfigError(
                    f"shard {shard}: position {at.position} is beyond the end of the log, which is {end}; the position "
                    "is of another journal, or this one has lost data: start again from a position that it has"
                )
            self.check_kept(shard, at.position - (at.index < WHOLE))
        return FeedReader([HostShardFeed(self, shard) for shard in self._watchers], start)

    def after(self, shard: int, position: int) -> str:
        """How a position of this log is named where several logs could be meant."""
        return f"{shard_key(shard, self.log)}:{position}"

    def positions(self) -> dict[int, FeedPosition]:
        """Where the log ends at present."""
        return {shard: FeedPosition(self._durable_position(shard)) for shard in self._watchers}

    def check_log(self, log: str, position: int, *, is_only: bool) -> None:
        """Raises ConfigError for a position of another log. One without a name is ours if this log is the only one."""
        if log == self.log or position == 0 or (is_only and not log):
            return
        whose = f"is of the log {log}" if log else "does not say of which log it is"
        raise ConfigError(
            f"position {position} {whose}, and this node has the log {self.log}; give it as it came, to the node that "
            "it came from, or begin at a time"
        )

    def positions_at(self, time_ns: int) -> dict[int, FeedPosition]:
        """The positions behind which everything from this time on follows. Reads a few commits of each shard."""
        found: dict[int, FeedPosition] = {}
        for shard in self._watchers:
            first, last = self._journal.first_position(shard), self._durable_position(shard)
            found[shard] = FeedPosition(last_before(self._journal, shard, first, last, time_ns))
        return found

    def first_positions(self) -> dict[int, FeedPosition]:
        """The positions behind which everything follows that the log still has."""
        return {shard: FeedPosition(self._journal.first_position(shard) - 1) for shard in self._watchers}

    def check_kept(self, shard: int, after: int) -> None:
        """Raises LogCut if the commit behind this position was dropped, NotRunning if the host has ended."""
        if self.ended:
            raise NotRunning(self.ended)
        first = self._journal.first_position(shard)
        if after + 1 < first:
            raise cut_at(shard, after, first)

    # ------------------------------------------------------------------ what the host calls

    def durable(self, commit: Commit, size_bytes: int) -> None:
        """A commit is on disk."""
        for told in self.listeners:
            told(commit)
        watchers = self._watchers[commit.shard]
        if not watchers:
            return
        self._recent[commit.shard, commit.position] = commit
        self._sizes.append((commit.shard, commit.position, size_bytes))
        self._size_bytes += size_bytes
        while len(self._sizes) > RECENT_COMMITS_MAX or self._size_bytes > RECENT_BYTES_MAX:
            shard, position, size_bytes = self._sizes.popleft()
            del self._recent[shard, position]
            self._size_bytes -= size_bytes
        for grown in watchers:
            grown()

    def end(self, why: str) -> None:
        """The host has ended: readers are told so."""
        self.ended = self.ended or why
        for watchers in self._watchers.values():
            for grown in watchers:
                grown()

    # ------------------------------------------------------------------ what its readers call

    def watch(self, shard: int, grown: Callable[[], None]) -> None:
        """Has this called when the shard has grown."""
        self._watchers[shard].append(grown)

    def unwatch(self, shard: int, grown: Callable[[], None]) -> None:
        """Calls it no more. When nobody is left, nothing is kept in memory."""
        self._watchers[shard].remove(grown)
        if not any(self._watchers.values()):
            self._recent.clear()
            self._sizes.clear()
            self._size_bytes = 0

    def recent(self, shard: int, after: int, count_max: int) -> list[Commit]:
        """Commits behind a position that are in memory; none if the first of them is not."""
        found: list[Commit] = []
        while len(found) < count_max and (commit := self._recent.get((shard, after + 1 + len(found)))) is not None:
            found.append(commit)
        return found

    async def portion(
        self, lines: Iterator[StoredCommit], shard: int, after: int, count_max: int
    ) -> tuple[list[Commit], bool]:
        """Some commits from an open read of the journal, and whether it has come to the end that it had."""
        for _ in range(QUIET_TRIES):
            # Reading would wait for a write under way, and the agents with it.
            if not self._is_busy():
                break
            await asyncio.sleep(QUIET_PAUSE_S)
        self.check_kept(shard, after)
        began_s, size_bytes = _now_s(), 0
        found: list[Commit] = []
        end = self._durable_position(shard)
        at_end = False
        while len(found) < min(count_max, PORTION_COMMITS) and size_bytes < PORTION_BYTES:
            stored = next(lines, None) if after + len(found) < end else None
            if stored is None:
                at_end = True
                break
            found.append(open_commit(stored.sealed.body))
            size_bytes += len(stored.sealed.body)
        await asyncio.sleep(REST_FACTOR * (_now_s() - began_s) if self._is_busy() else 0)
        return found, at_end

    def lines(self, shard: int, after: int) -> Iterator[StoredCommit]:
        """Reads the journal from behind a position on."""
        return self._journal.read(shard, after=after)

    def commit(self, commit: Commit) -> FeedCommit:
        """A commit with what it takes to read it."""
        return FeedCommit(commit, self._readings(commit.shard))

    def end_of(self, shard: int) -> int:
        """Where a shard ends at present."""
        return self._durable_position(shard)


class HostShardFeed:
    """One shard of a host, for one reader."""

    poll_s = 0.0

    def __init__(self, feed: LogFeed, shard: int) -> None:
        self.shard = shard
        self._feed = feed
        self._grown: Callable[[], None] | None = None
        self._lines: Iterator[StoredCommit] | None = None
        """An open read of the journal, and the last position that it has returned."""
        self._upto = -1

    async def read(self, after: int, count_max: int) -> Sequence[FeedCommit]:
        """The next commits: from memory if they are there."""
        feed = self._feed
        if feed.ended:
            raise NotRunning(feed.ended)
        if after >= feed.end_of(self.shard):
            return []
        found = feed.recent(self.shard, after, count_max)
        if found:
            self._lines = None
        else:
            found = await self._read_journal(after, count_max)
        return [feed.commit(commit) for commit in found]

    async def _read_journal(self, after: int, count_max: int) -> list[Commit]:
        if self._lines is None or self._upto != after:
            self._lines = self._feed.lines(self.shard, after)
        # Open again after a call that was cancelled: what it had read was not returned.
        lines, self._lines = self._lines, None
        try:
            found, at_end = await self._feed.portion(lines, self.shard, after, count_max)
        except Bug:
            self._feed.check_kept(self.shard, after)  # a journal calls it a bug to read what is dropped meanwhile
            raise
        self._lines, self._upto = None if at_end else lines, after + len(found)
        return found

    def watch(self, grown: Callable[[], None]) -> None:
        """Has this called when the shard has grown."""
        self._grown = grown
        self._feed.watch(self.shard, grown)

    async def close(self) -> None:
        """Reads no more."""
        grown, self._grown = self._grown, None
        if grown is not None:
            self._feed.unwatch(self.shard, grown)


class FollowedLog:
    """The log of a shard that another process owns, as a ShardFeed. `close` closes it."""

    poll_s = POLL_S

    def __init__(self, log: ShardLog, directories: Directories) -> None:
        self.shard = log.identity.owned[0]
        self._log = log
        self._directories = directories

    async def read(self, after: int, count_max: int) -> Sequence[FeedCommit]:
        """The next commits, as soon as its owner has made them durable."""
        found = await self._log.read(after, count_max)
        if found and found[0].sealed.position != after + 1:
            raise cut_at(self.shard, after, found[0].sealed.position)
        commits = [open_commit(stored.sealed.body) for stored in found]
        return [FeedCommit(commit, self._directories.of(commit)) for commit in commits]

    def watch(self, grown: Callable[[], None]) -> None:
        """Has this called when its owner says that it has written."""
        self._log.watch(grown)

    async def close(self) -> None:
        """Reads no more."""
        await self._log.close()


def cut_at(shard: int, after: int, first: int) -> LogCut:
    """What is said to a reader whose position was dropped."""
    text = (
        f"shard {shard}: position {after + 1} was dropped by retention, the log begins at {first}; start from there, "
        "or read the archive"
    )
    return LogCut(text, shard=shard, first_position=first)


def _now_s() -> float:
    return asyncio.get_running_loop().time()
