"""The projector of a view: follows the logs of its fleets, folds them, and writes rows and positions together.

It never holds up a host: it reads what is durable through the feed, folds a few hundred events at a time, and writes
beside everything else. A view that is new, or whose code has changed, is made in a table of its own beside the old one,
which goes on answering, and takes its place when it has caught up.

What cannot be right stops it, and is said: a handler that raises, a log that has lost its beginning, a damaged log.
What may mend itself is tried again, with growing pauses: a store that is away, a device that fails to read the log.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from typing import Protocol

from msgspec import Struct, structs

from stigmergy.agents.view import ViewPlan
from stigmergy.base.errors import (
    ConfigError,
    JournalCorrupt,
    JournalUnreadable,
    LinkDown,
    LogCut,
    NotRunning,
    StigmergyError,
    StoreConflict,
    StoreUnavailable,
    StoreUnknown,
    ViewBehind,
    ViewChanged,
    ViewFailed,
)
from stigmergy.base.tasks import end_tasks
from stigmergy.diagnostics.logger import Log
from stigmergy.node.feed import FeedCommit, FeedPosition
from stigmergy.shard.commit import Commit
from stigmergy.views.fold import Fold
from stigmergy.views.joins import HALVES_MAX
from stigmergy.views.port import (
    KEYS_MAX,
    NEXT,
    Positions,
    RowChanges,
    StoredView,
    ViewPosition,
    ViewStore,
    shard_name,
)

log = Log("views")
LINGER_S = 0.005
"""After a write it waits so long for more events, so that a busy log is not written commit by commit."""
WAIT_S = 1.0
"""So long it waits for events at a time."""
ROUND_S = 0.02
"""With several fleets it waits for each in turn, so long."""
SLICE_EVENTS = 500
"""Folded in one go; then the node's own work has its turn."""
WRITE_EVENTS = 20_000
WRITE_EVERY_S = 0.25
"""While it catches up it writes after so many events, or after so long."""
NOTE_EVERY_S = 5.0
"""So often the position is written although no row has changed: each write wears the flash of a device. What is not
written is read again by the next start, and changes no row once more."""
SYNC_EVERY_S = 5.0
ROWS_MAX = 200_000
"""Rows of a view in memory; with more of them it reads those that it needs from the store."""
PAUSE_S = 0.1
PAUSE_S_MAX = 5.0
PATIENCE_S = 10.0
"""A view that waits for less is no trouble: at the first start of a fleet its workers have yet to make the logs. A log
that cannot be read is one at once, and until it was read."""
CONFLICT_S = 5.0
"""If another process writes the rows, it looks after so long whether it still does."""

RETRIED = (StoreUnavailable, StoreUnknown, LinkDown, JournalUnreadable)


class CommitReader(Protocol):
    """Reads commits of some shards behind the positions that it was made with."""

    async def read_commits(self, within_s: float = 0.0) -> list[FeedCommit]:
        """The next ones; waits so long for the first. Raises what is in RETRIED, NotRunning at its end, LogCut."""
        ...

    async def close(self) -> None:
        """Reads no more."""
        ...


class FleetLogs(Protocol):
    """The logs of all shards of one fleet."""

    @property
    def fleet(self) -> str:
        """Its name."""
        ...

    def log_of(self, shard: int) -> str:
        """How positions name the log of a shard; empty while that is not known."""
        ...

    async def first_positions(self) -> dict[int, int]:
        """The first position of each shard that is still there."""
        ...

    async def end_positions(self) -> dict[int, int]:
        """Where each shard ends at present, as far as it is known."""
        ...

    async def reader(self, start: Mapping[int, FeedPosition]) -> CommitReader:
        """Reads behind these positions. Raises LogCut, and ConfigError for a position that a log does not reach."""
        ...


class ViewStatus(Struct, frozen=True):
    """Where a view stands."""

    view: str
    behind: int
    """Commits that are durable and not in the rows yet."""
    events: int
    """Events folded since the start."""
    rows_written: int
    building: bool
    """Its rows are made anew; the old ones answer meanwhile, if there are any that can."""
    trouble: str = ""
    late: int = 0
    """Events that came later than the view allows, since the start; so are the next ones."""
    waiting: int = 0
    """Events that wait for others to be joined with, now."""
    unmatched: int = 0
    """Events that were joined with none within the time."""
    dropped: int = 0
    """Events that waited and were dropped, because there were too many."""


class Projector:
    """Keeps the rows of one view. `start` it, `stop` it at the end."""

    def __init__(self, plan: ViewPlan, store: ViewStore, sources: Sequence[FleetLogs]) -> None:
        self.plan = plan
        self.store = store
        self._sources = sources
        self._task: asyncio.Task[None] | None = None
        self._readers: list[tuple[FleetLogs, CommitReader]] = []
        self._checks: Positions = {}
        """The commits that the rows end with. They are read once more, to see whether they are the same."""
        self._other_log = False
        """The rows are of another log: of a journal that was restored from a copy, or begun anew."""
        self._fold = Fold(plan, empty=True)
        self._table = plan.name
        self._revision = 0
        self._read: Positions = {}
        """What is folded."""
        self._times_ns: dict[str, int] = {}
        """By shard the time of the last commit that was folded since the start."""
        self._expected: set[str] = set()
        """The shards that had commits at the start."""
        self._written: Positions = {}
        """What of it is in the rows of the store."""
        self.written_ns: dict[str, int] = {}
        """By shard the time of the last commit of these, if it was folded since the start."""
        self._noted: Positions = {}
        """What the store says: less, where later events have changed no row."""
        self._synced: Positions = {}
        """What of that survives loss of power."""
        self._noted_s = self._synced_s = 0.0
        self.on_traced: Callable[[ViewPlan, Sequence[Commit]], None] | None = None
        """Told of commits with notes of traces, once they are in the rows."""
        self._traced: list[Commit] = []
        self._moved = asyncio.Event()
        self._started = False
        self._told_dropped = False
        self.building = True
        self.trouble = ""
        self.waits_long = False
        """It waits for longer than a start takes, with `trouble` as the reason."""
        self.failed = False
        """It has stopped for good, with `trouble` as the reason."""
        self.events = 0
        self.rows_written = 0

    async def start(self) -> None:
        """Begins to follow. Raises ViewChanged if the view may not be made anew, although its code has changed."""
        try:
            self._check_known(await self.store.find(self.plan.name))
        except RETRIED as error:
            self.trouble = str(error)  # the task tries again; agents run without their views
        self._task = asyncio.ensure_future(self._live())

    def _check_known(self, known: StoredView | None) -> None:
        """Refuses rows that may not be made anew, and those of another fleet that has a view of the same name."""
        if known is None:
            return
        if known.digest != self.plan.digest and self.plan.on_change == "refuse":
            raise ViewChanged(
                f"view {self.plan.name}: its rows were made by other code, and it is declared with on_change='refuse'; "
                "go back to that code, or declare on_change='rebuild' to make the rows anew from the log"
            )
        own = [source.fleet for source in self._sources]
        others = sorted({name.rpartition("/")[0] for name in known.positions} - set(own))
        if others:
            raise ViewFailed(
                f"view {self.plan.name}: the rows there are of the fleet {', '.join(others)}, not of {', '.join(own)}; "
                "give each fleet a file or a database of its own"
            )

    async def stop(self) -> None:
        """Ends. What is not written is read again by the next start."""
        task, self._task = self._task, None
        await end_tasks(task)
        await self._close_readers()

    # ------------------------------------------------------------------ for those who ask

    @property
    def written(self) -> dict[str, int]:
        """By fleet and shard, the position up to which everything is in the rows."""
        return {name: at.position for name, at in self._written.items()}

    def floor(self, fleet: str, shard: int) -> int:
        """The last position of a log that is not needed any more, whatever happens."""
        at = self._synced.get(shard_name(fleet, shard))
        if at is None:
            return 0
        return min(at.position, at.halves_from - 1) if at.halves_from else at.position

    async def wait_written(self, after: Mapping[str, int], within_s: float) -> None:
        """Waits until these positions are in the rows. Raises ViewBehind when the time is over, ViewFailed."""
        if not await self._wait(lambda: self.covers(after), within_s):
            lacking = [f"{name} is at {self.written.get(name, 0)} of {at}" for name, at in after.items()]
            why = "it is being made anew" if self.building else self.trouble or "it is behind"
            raise ViewBehind(
                f"view {self.plan.name}: not so far within {within_s:g} s ({', '.join(lacking)}): {why}; ask again"
            )

    async def wait_built(self, within_s: float) -> None:
        """Waits until its rows are made for the first time. Raises ViewBehind when the time is over, ViewFailed."""
        if not await self._wait(lambda: not self.building, within_s):
            why = self.trouble or f"{self.events} events are in it so far"
            raise ViewBehind(f"view {self.plan.name}: its rows are being made from the log: {why}; ask again")

    async def _wait(self, reached: Callable[[], bool], within_s: float) -> bool:
        try:
            async with asyncio.timeout(within_s):
                while not reached():
                    self.check()
                    self._moved.clear()
                    await self._moved.wait()
        except TimeoutError:
            return False
        return True

    def covers(self, after: Mapping[str, int]) -> bool:
        """Whether these positions are in the rows that answer."""
        if not after:
            return True
        return not self.building and all(self.written.get(name, 0) >= at for name, at in after.items())

    def check(self) -> None:
        """Raises ViewFailed if it has stopped for good."""
        if self.failed:
            raise ViewFailed(self.trouble)

    def behind(self, ends: Mapping[str, Mapping[int, int]]) -> int:
        """Commits that are durable and not in the rows yet, where the logs of each fleet end so."""
        found = [(source.fleet, shard, end) for source in self._sources for shard, end in ends[source.fleet].items()]
        return sum(max(0, end - self.written.get(shard_name(fleet, shard), 0)) for fleet, shard, end in found)

    async def status(self) -> ViewStatus:
        """Where it stands."""
        behind = self.behind({source.fleet: await source.end_positions() for source in self._sources})
        halves = self._fold.halves
        return ViewStatus(
            self.plan.name,
            behind,
            self.events,
            self.rows_written,
            self.building,
            self.trouble,
            self._fold.late,
            halves.count,
            halves.unmatched,
            halves.dropped,
        )

    # ------------------------------------------------------------------ the task

    async def _live(self) -> None:
        pause_s, failing_s = PAUSE_S, _now_s()
        while True:
            before = self._revision
            try:
                await self._open()
                await self._follow()
            except NotRunning:
                return
            except _OtherLog:
                self._other_log = True
            except StoreConflict as error:
                self.trouble, self.waits_long = str(error), True
                await self._wait_alone()
            except RETRIED as error:
                self.trouble = str(error)
                pause_s = PAUSE_S if self._revision != before else min(2 * pause_s, PAUSE_S_MAX)
                failing_s = _now_s() if self._revision != before else failing_s
                self.waits_long = _now_s() - failing_s >= PATIENCE_S
                if isinstance(error, JournalUnreadable):
                    self.trouble, self.waits_long = f"view {self.plan.name}: {error}; it is tried again", True
                await asyncio.sleep(pause_s)
            except Exception as error:
                self._fail(error)
                return
            finally:
                await self._close_readers()

    def _fail(self, error: Exception) -> None:
        text = str(error) if isinstance(error, StigmergyError) else f"{type(error).__name__}: {error}"
        if isinstance(error, JournalCorrupt):
            text = f"view {self.plan.name}: its log is damaged: {text}; then start again"
        self.trouble = text
        self.failed = True
        self._moved.set()
        log.say("view-failed", text, is_trouble=True)

    async def _wait_alone(self) -> None:
        """Waits until whoever writes the rows has stopped doing so."""
        seen = None
        while True:
            try:
                known = await self.store.find(self._table)
                if known is None or known.revision == seen:
                    return
                seen = known.revision
            except RETRIED as error:
                self.trouble = str(error)
            await asyncio.sleep(CONFLICT_S)

    async def _open(self) -> None:
        """Finds the table to go on with, or makes one, and the place in the logs."""
        plan = self.plan
        known = await self.store.find(plan.name)
        self._check_known(known)
        self.building = known is None or known.digest != plan.digest
        self._table = plan.name + (NEXT if self.building else "")
        if self.building:
            known = await self.store.find(self._table)
            if known is None or known.digest != plan.digest or known.shape != plan.shape:
                known = await self._create()
        assert known is not None
        other_log, self._other_log = self._other_log, False
        if other_log or not await self._open_readers(known.positions):
            log.say("view-rebuilt", f"view {plan.name}: its rows are of another log, and are made anew from this one")
            self.building, self._table = True, plan.name + NEXT
            known = await self._create()
            await self._open_readers({})
        self._fold = Fold(plan, empty=not known.positions)
        times_ns = ((name, at.newest_ns) for name, at in known.positions.items())
        self._fold.newest_ns = {name: newest_ns for name, newest_ns in times_ns if newest_ns is not None}
        self._times_ns, self._traced = {}, []
        self._revision = known.revision
        self._read = dict(known.positions)
        self._written = self._noted = known.positions
        self._moved.set()  # whoever asked before: it may be all there is

    async def _create(self) -> StoredView:
        self._synced = {}
        return await self.store.create(self._table, self.plan.columns, self.plan.digest)

    async def _open_readers(self, positions: Positions) -> bool:
        """Opens the logs behind these positions; whether they are the logs that the positions are of."""
        await self._close_readers()
        self._checks = {}
        for source in self._sources:
            firsts, ends = await source.first_positions(), await source.end_positions()
            start: dict[int, FeedPosition] = {}
            self._expected |= {shard_name(source.fleet, shard) for shard, end in ends.items() if end}
            for shard, first in firsts.items():
                name = shard_name(source.fleet, shard)
                at = positions.get(name)
                if at is None:
                    self._check_history(name, first)
                    start[shard] = FeedPosition(first - 1)
                elif at.position > ends.get(shard, at.position):
                    return False
                elif first <= at.position:
                    if first > at.halves_from > 0:
                        self._check_history(name, first)
                    start[shard] = FeedPosition(max(first, at.halves_from or at.position) - 1)
                    self._checks[name] = at
                else:
                    start[shard] = FeedPosition(at.position)
            try:
                self._readers.append((source, await source.reader(start)))
            except LogCut as error:
                raise ViewFailed(f"view {self.plan.name}: {error}; its rows cannot be right any more") from None
            except ConfigError:
                return False
        return True

    def _check_history(self, name: str, first: int) -> None:
        if first > 1 and self.plan.history == "all":
            raise ViewFailed(
                f"view {self.plan.name}: the log of {name} begins at position {first}, what was before has been "
                "dropped, and rows made from the rest would be wrong; restore the log from its archive, or declare "
                "the view with history='kept' if the rest is enough"
            )

    async def _close_readers(self) -> None:
        readers, self._readers = self._readers, []
        for _, reader in readers:
            await reader.close()

    async def _follow(self) -> None:
        wait_s = WAIT_S if len(self._readers) == 1 else ROUND_S
        wrote_s = _now_s()
        unwritten, has_read = 0, False
        while True:
            at_end = True
            for source, reader in self._readers:
                waiting = has_read and not unwritten and not self.building
                commits = await reader.read_commits(wait_s if waiting else 0.0)
                at_end &= not commits
                unwritten += await self._take(source.fleet, commits)
            self.trouble, self.waits_long, has_read = "", False, True
            if at_end or unwritten >= WRITE_EVENTS or _now_s() - wrote_s >= WRITE_EVERY_S:
                await self._write(at_end)
                wrote_s, unwritten = _now_s(), 0
                if at_end and self.building:
                    await self.store.swap(self._table, self.plan.name)
                    self._table, self.building = self.plan.name, False
                    self._moved.set()
                    log.say("view-rebuilt", f"view {self.plan.name}: made from the log, and up to date")

    async def _take(self, fleet: str, commits: Sequence[FeedCommit]) -> int:
        """Folds commits, some events at a time; returns how many events."""
        count = sliced = 0
        for one in commits:
            name = shard_name(fleet, one.commit.shard)
            if (check := self._checks.get(name)) is not None:
                if one.commit.position == check.position:
                    del self._checks[name]
                    if position_of(one) != structs.replace(check, newest_ns=None, halves_from=0):
                        raise _OtherLog
                if self.plan.has_joins:
                    self._fold.remember(one.commit, one.reading, fleet)
                    self._times_ns[name] = one.commit.runs[-1].time_ns
                continue
            sliced += self._fold.gather(one.commit, one.reading, fleet)
            if sliced >= SLICE_EVENTS:
                await self._apply()
                count, sliced = count + sliced, 0
                await asyncio.sleep(0)
            self._read[name] = position_of(one)
            self._times_ns[name] = one.commit.runs[-1].time_ns
            if one.commit.traces and self.on_traced is not None and not self.building:
                self._traced.append(one.commit)
        await self._apply()
        self.events += count + sliced
        return count + sliced

    async def _apply(self) -> None:
        missing = self._fold.missing()
        for start in range(0, len(missing), KEYS_MAX):
            keys = missing[start : start + KEYS_MAX]
            rows = await self.store.load(self._table, self.plan.columns, keys)
            self._fold.add(keys, [self.plan.row_of(values) for values in rows])
        self._fold.apply()

    async def _write(self, at_end: bool) -> None:
        """Writes what was folded. Where no row has changed, the position alone is written now and then."""
        rows, removed = self._fold.take_changes()
        read, times_ns = self._positions(), dict(self._times_ns)
        now_s = _now_s()
        if rows or removed or (read != self._noted and now_s - self._noted_s >= NOTE_EVERY_S):
            await self.store.write(self._table, self.plan.columns, RowChanges(rows, removed, read, self._revision))
            self._revision += 1
            self.rows_written += len(rows) + len(removed)
            self._noted, self._noted_s = read, now_s
        if self._traced and self.on_traced is not None:
            traced, self._traced = self._traced, []
            self.on_traced(self.plan, traced)
        if read != self._written:
            self._written, self.written_ns = read, times_ns
            self._moved.set()
        if self._fold.rows_count > ROWS_MAX:
            self._fold.forget()
        if now_s - self._synced_s >= SYNC_EVERY_S and self._synced != self._noted:
            await self.store.sync()
            self._synced, self._synced_s = self._noted, now_s
        if at_end and (rows or removed):
            await asyncio.sleep(LINGER_S)

    def _positions(self) -> Positions:
        """How far the logs are folded, and what it takes to go on from there."""
        if self.plan.has_joins and self._times_ns.keys() >= self._expected:
            self._fold.halves.expire(min(self._times_ns.values(), default=0))
        newest_ns, halves = self._fold.newest_ns, self._fold.halves
        if halves.dropped and not self._told_dropped:
            self._told_dropped = True
            what = f"over {HALVES_MAX} events wait to be joined, the oldest are dropped"
            log.say("view-join-full", f"view {self.plan.name}: {what}")
        found = dict(self._read)
        for name, at in self._read.items():
            if name not in self._checks:  # otherwise its halves are being read again
                found[name] = structs.replace(at, newest_ns=newest_ns.get(name), halves_from=halves.oldest(name))
        return found


class _OtherLog(Exception):
    """A commit is not the one that the rows were made from."""


def position_of(one: FeedCommit) -> ViewPosition:
    """Names a commit, so that another one at the same position is told from it."""
    commit = one.commit
    return ViewPosition(commit.position, commit.previous, commit.epoch, commit.incarnation)


def _now_s() -> float:
    return asyncio.get_running_loop().time()
