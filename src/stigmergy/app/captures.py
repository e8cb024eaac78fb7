"""Opens logs for a capture: of a running node by its control socket, of a stopped one, of a fleet on NATS.
And captures views: a projector folds such a log into rows of PostgreSQL, in a process of its own.

A journal has one owner, who locks it. So while a node runs it is asked for its commits; while none does, its journal is
read to the end and closed at once, so that a node can start.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec
from msgspec import structs

from stigmergy.agents.view import plan_of
from stigmergy.app.fleet import Fleet
from stigmergy.app.journals import inspect_all
from stigmergy.app.parts import journal_path, shown_url
from stigmergy.app.projection import ClusterLogs
from stigmergy.app.workers import cluster_address
from stigmergy.audit.directories import Directories
from stigmergy.base.errors import ConfigError, JournalForeign, LinkDown, NotRunning
from stigmergy.capture.log import PASSING, CapturedCommit, CaptureLog, Say, log_commits
from stigmergy.control.protocol import CommitsRequest, read_reply
from stigmergy.control.replies import CommitPiece
from stigmergy.control.router import close_answers
from stigmergy.control.socket import ControlCall, answers_at
from stigmergy.journal.port import Journal
from stigmergy.node.feed import BATCH_COMMITS, POLL_S, FeedCommit, FeedPosition, FeedReader, cut_at
from stigmergy.shard.commit import Commit, EventRun, open_commit
from stigmergy.shard.directory import Directory
from stigmergy.views.port import ViewStore, shard_name
from stigmergy.views.projector import Projector

if TYPE_CHECKING:
    from stigmergy.nats.link import NatsLink

READ_BYTES = 4 * 1024 * 1024
"""Of a stopped journal so much is read at a time; a larger commit is read all the same."""
CLUSTER_COMMITS = 64
"""Of a cluster so many commits are read at a time: each may have 512 KiB and more."""
LOOK_S = 0.2
"""So often a capture of views looks whether something is wrong with one."""
_decoder = msgspec.msgpack.Decoder(CapturedCommit)


class RunningLog:
    """The log of a node that runs, by its control socket."""

    def __init__(self, path: Path, fleet: str) -> None:
        self._call = ControlCall(path)
        self._path = path
        self._fleet = fleet

    async def first_positions(self) -> Mapping[int, int]:
        """As the node says."""
        return (await self._ask({}, 0.0))[0].first

    async def end_positions(self) -> Mapping[int, int]:
        """As the node says."""
        return (await self._ask({}, 0.0))[0].end

    async def read(self, after: Mapping[int, int], within_s: float) -> Sequence[CapturedCommit]:
        """The next commits."""
        found: list[CapturedCommit] = []
        begun: list[CapturedCommit] = []
        for piece in (await self._ask(after, within_s))[1:]:
            begun.append(_decoder.decode(piece.data))
            if not piece.more:
                events = [kept for part in begun for kept in part.events]
                found.append(structs.replace(begun[0], events=events))
                begun = []
        return found

    async def close(self) -> None:
        """Nothing is open between two requests."""

    async def _ask(self, after: Mapping[int, int], within_s: float) -> list[CommitPiece]:
        request = CommitsRequest(after=dict(after), within_s=within_s)
        pieces: list[CommitPiece] = []
        lines = self._call.ask(request)
        try:
            async for line in lines:
                reply = read_reply(line, request)
                if reply.item is None:
                    break
                pieces.append(reply.item)
        finally:
            await close_answers(lines)
        if not pieces:
            raise NotRunning(f"{self._path}: the node did not answer; is it stopping?")
        if pieces[0].fleet != self._fleet:
            raise JournalForeign(f"{self._path} is of the fleet {pieces[0].fleet!r}, not of {self._fleet!r}")
        return pieces


class StoppedLog:
    """A journal that nobody runs. It is locked until its end is read, and read again only when its files change."""

    def __init__(self, url: str, fleet: Fleet, socket: Path | None) -> None:
        self._url = url
        self._fleet = fleet
        self._socket = socket
        self._journal: Journal | None = None
        self._directories: Directories | None = None
        self._read_at: list[tuple[str, int, int]] | None = None
        """The state of its files when the end was reached."""

    async def first_positions(self) -> Mapping[int, int]:
        """As its log says."""
        journal, _ = self._opened()
        return {shard: journal.first_position(shard) for shard in journal.identity.owned}

    async def end_positions(self) -> Mapping[int, int]:
        """As its log says."""
        return {head.shard: head.position for head in self._opened()[0].heads()}

    async def read(self, after: Mapping[int, int], within_s: float) -> Sequence[CapturedCommit]:
        """The next commits. Raises NotRunning when a node has started meanwhile: open the log again."""
        files = self._files()
        if self._journal is None and self._socket is not None and answers_at(self._socket):
            raise NotRunning("a node has started on the journal")
        if files != self._read_at:
            if found := self._read(after):
                return found
            await self.close()
            self._read_at = self._files()
        await asyncio.sleep(min(within_s, POLL_S))
        return []

    async def close(self) -> None:
        """Lets a node have the journal."""
        journal, self._journal = self._journal, None
        if journal is not None:
            await journal.close()

    def _read(self, after: Mapping[int, int]) -> list[CapturedCommit]:
        journal, directories = self._opened()
        found: list[CapturedCommit] = []
        size_bytes = 0
        for shard in journal.identity.owned:
            first = journal.first_position(shard)
            if after[shard] + 1 < first:
                raise cut_at(shard, after[shard], first)
            for stored in islice(journal.read(shard, after=after[shard]), BATCH_COMMITS - len(found)):
                commit = open_commit(stored.sealed.body)
                found += log_commits([FeedCommit(commit, directories.of(commit))])
                size_bytes += len(stored.sealed.body)
                if size_bytes >= READ_BYTES:
                    return found
        return found

    def _opened(self) -> tuple[Journal, Directories]:
        if self._journal is None or self._directories is None:
            self._journal = _checked(inspect_all(self._url), self._fleet, self._url)
            self._directories = Directories(self._journal)
        return self._journal, self._directories

    def _files(self) -> list[tuple[str, int, int]]:
        path = journal_path(self._url)
        if path is None:
            return []
        files = path.rglob("*") if path.is_dir() else path.parent.glob(f"{path.name}*")
        return sorted((str(one), one.stat().st_mtime_ns, one.stat().st_size) for one in files if one.is_file())


class ClusterLog:
    """The logs of a fleet's shards on NATS, followed while workers write to them."""

    def __init__(self, link: NatsLink, logs: ClusterLogs) -> None:
        self._link = link
        self._logs = logs
        self._reader: FeedReader | None = None

    async def first_positions(self) -> Mapping[int, int]:
        """As the streams say."""
        return await self._logs.first_positions()

    async def end_positions(self) -> Mapping[int, int]:
        """As the streams say."""
        return await self._logs.end_positions()

    async def read(self, after: Mapping[int, int], within_s: float) -> Sequence[CapturedCommit]:
        """The next commits; from the second call on, those behind what it has returned."""
        if self._reader is None:
            self._reader = await self._logs.reader({shard: FeedPosition(at) for shard, at in after.items()})
        return log_commits(await self._reader.read_commits(within_s, CLUSTER_COMMITS))

    async def close(self) -> None:
        """Ends the connection."""
        if self._reader is not None:
            await self._reader.close()
        await self._link.close()


async def open_log(fleet: Fleet, url: str, socket: Path | None, nats: str | None = None) -> CaptureLog:
    """The log of a fleet: of workers, whose servers `nats` names; of the node that listens at this socket; or in a
    journal that nobody runs."""
    if nats is not None:
        from stigmergy.nats.link import NatsLink

        link = await NatsLink.open(cluster_address(nats), name=f"capture of {fleet.name}")
        return ClusterLog(link, ClusterLogs(fleet, nats, link))
    if socket is not None and answers_at(socket):
        return RunningLog(socket, fleet.name)
    return StoppedLog(url, fleet, socket)


def _checked(journal: Journal, fleet: Fleet, url: str) -> Journal:
    identity = journal.identity
    if (identity.fleet, identity.shards) != (fleet.name, fleet.shards):
        raise JournalForeign(
            f"{shown_url(url)} is of the fleet {identity.fleet!r} with {identity.shards} shards, not of {fleet.name!r} "
            f"with {fleet.shards}"
        )
    return journal


class CapturedLogs:
    """A log that is captured, as the FleetLogs of a projector. What passes by itself is LinkDown: it is tried again,
    with the log opened anew."""

    def __init__(self, fleet: str, opener: Callable[[], Awaitable[CaptureLog]]) -> None:
        self.fleet = fleet
        self._opener = opener
        self._log: CaptureLog | None = None

    def log_of(self, shard: int) -> str:
        """Not known, and nobody asks: a capture answers no questions."""
        return ""

    async def first_positions(self) -> dict[int, int]:
        """As the log says that is there now."""
        await self.close()
        with _retried():
            self._log = await self._opener()
            return dict(await self._log.first_positions())

    async def end_positions(self) -> dict[int, int]:
        """As the log says that was opened."""
        with _retried():
            return {} if self._log is None else dict(await self._log.end_positions())

    async def reader(self, start: Mapping[int, FeedPosition]) -> CapturedReader:
        """Reads the log that was opened."""
        if self._log is None:
            raise LinkDown("the log is not open; it is opened again")
        return CapturedReader(self._log, {shard: at.position for shard, at in start.items()})

    async def close(self) -> None:
        """Lets the log go."""
        log, self._log = self._log, None
        if log is not None:
            await log.close()


class CapturedReader:
    """Commits of a captured log for a projector: whatever agents they are of, their events are messages."""

    def __init__(self, log: CaptureLog, after: dict[int, int]) -> None:
        self._log = log
        self._after = after
        self._time_ns: dict[int, int] = {}
        """By shard the time of the last event."""

    async def read_commits(self, within_s: float = 0.0) -> list[FeedCommit]:
        """The next ones."""
        with _retried():
            found = await self._log.read(self._after, within_s)
        return [FeedCommit(self._commit(one), Directory()) for one in found]

    async def close(self) -> None:
        """Lets the log go."""
        await self._log.close()

    def _commit(self, one: CapturedCommit) -> Commit:
        self._after[one.shard] = one.position
        runs = [EventRun(1, kept.time_ns, kept.source) for kept in one.events]
        if not runs:
            runs = [EventRun(0, self._time_ns.get(one.shard, 0), "")]
        self._time_ns[one.shard] = runs[-1].time_ns
        events = [(kept.address, kept.body) for kept in one.events]
        return Commit(0, 0, one.shard, one.position, 0, one.previous, runs, events)


@contextmanager
def _retried() -> Iterator[None]:
    try:
        yield
    except PASSING as error:
        raise LinkDown(str(error)) from error


class ViewCapture:
    """Keeps the rows of a view of a fleet in a store, from a log that is captured."""

    def __init__(
        self,
        fleet: Fleet,
        view: str,
        store: ViewStore,
        opener: Callable[[], Awaitable[CaptureLog]],
        say: Say = lambda _: None,
    ) -> None:
        """Raises ConfigError for a view that the fleet does not have, or that is of other fleets too."""
        plans = {plan.name: plan for plan in map(plan_of, fleet.views)}
        if view not in plans:
            raise ConfigError(f"--view {view}: the fleet has the views {', '.join(plans) or 'none'}")
        if plans[view].fleets not in ((), (fleet.name,)):
            raise ConfigError(f"--view {view}: it is of several fleets; stigmergy project keeps such a view")
        self._fleet = fleet.name
        self._store = store
        self._opener = opener
        self._say = say
        self.projector = Projector(plans[view], store, [CapturedLogs(fleet.name, opener)])

    async def run(self, *, once: bool = False) -> None:
        """Follows until it is cancelled; with `once` until the end that the log has now. Raises ViewFailed, and at the
        start also what passes by itself: the address may be wrong."""
        projector, said = self.projector, ""
        try:
            ends = {shard_name(self._fleet, shard): end for shard, end in (await self._ends()).items()}
            await self._store.find(projector.plan.name)
            await projector.start()
            while not once or projector.building or not projector.covers(ends):
                await asyncio.sleep(LOOK_S)
                projector.check()
                if projector.trouble and projector.trouble != said:
                    self._say(f"waits: {projector.trouble}")
                said = projector.trouble
        finally:
            await projector.stop()
            await self._store.close()

    async def _ends(self) -> Mapping[int, int]:
        log = await self._opener()
        try:
            await log.first_positions()
            return await log.end_positions()
        finally:
            await log.close()
