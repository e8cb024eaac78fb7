"""Captures a log: reads its commits from where the tables are, writes them there, and goes on live.

What fails for a while, a server or a node that is away, is tried again: the writer is opened anew and says where to go
on. What cannot work, a log that is not the captured one or a column of another type, is raised.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from typing import Protocol

from msgspec import Struct

from stigmergy.base.errors import (
    JournalLocked,
    LinkDown,
    NoAnswer,
    NotOwned,
    NotRunning,
    Overloaded,
    StoreUnavailable,
)
from stigmergy.node.feed import FeedCommit
from stigmergy.shard.commit import seal
from stigmergy.shard.commit_reader import KeptEvent

READ_S = 10.0
"""So long a read waits for something to become durable."""
PAUSE_S = 0.2
PAUSE_S_MAX = 5.0
"""Between tries to reach what is away: from the first to the second, doubled each time, until it is back."""
PASSING = (StoreUnavailable, NotRunning, NotOwned, NoAnswer, LinkDown, Overloaded, JournalLocked)
"""What passes by itself once the capture has begun. At its start it is raised, for the address may be wrong."""


class CapturedCommit(Struct, array_like=True, frozen=True):
    """A commit as it is captured: its events, and its place in the chain of its shard."""

    shard: int
    position: int
    previous: bytes
    """The digest of the commit before it."""
    digest: bytes
    """Its own."""
    events: list[KeptEvent]


class Captured(Struct, frozen=True):
    """How far a shard is captured: the position of the last commit and its digest; 0 and empty before the first."""

    position: int = 0
    digest: bytes = b""


class CaptureLog(Protocol):
    """A log that is captured.

    Ordering: commits of a shard in order, positions dense. Durability: only what is durable is read.
    Errors: LogCut for a position that retention has dropped, what is in PASSING, and what its journal raises.
    """

    async def first_positions(self) -> Mapping[int, int]:
        """The first position that each shard still has."""
        ...

    async def end_positions(self) -> Mapping[int, int]:
        """The last position of each shard at present; 0 or none for one that has no commit."""
        ...

    async def read(self, after: Mapping[int, int], within_s: float) -> Sequence[CapturedCommit]:
        """The next commits behind these positions, some of them; waits so long for the first."""
        ...

    async def close(self) -> None:
        """Reads no more."""
        ...


class CaptureWriter(Protocol):
    """Where events are captured to. One call at a time; after an error close it and open it again."""

    async def open(self) -> Mapping[int, Captured]:
        """How far each shard is captured."""
        ...

    async def begin(self, shard: int, first: int) -> None:
        """Begins a shard of which nothing is captured at this position: retention has dropped what was before."""
        ...

    async def write(self, commits: Sequence[CapturedCommit]) -> Mapping[int, Captured]:
        """Adds the events of these commits and moves the positions, all or nothing; returns the positions."""
        ...

    async def close(self) -> None:
        """Closing twice does nothing."""
        ...


Say = Callable[[str], None]


class Capture:
    """One log into one writer."""

    def __init__(
        self, open_log: Callable[[], Awaitable[CaptureLog]], writer: CaptureWriter, say: Say = lambda _: None
    ) -> None:
        self._open_log = open_log
        self._writer = writer
        self._say = say
        self._began = False
        self.captured: dict[int, Captured] = {}
        self.events = 0
        """Events written since the start."""

    async def run(self, *, once: bool = False) -> None:
        """Captures until it is cancelled; with `once` until the end that the log has then."""
        pause_s = PAUSE_S
        while True:
            try:
                await self._follow(once)
                return
            except PASSING as error:
                if not self._began:
                    raise
                self._say(f"waits: {error}")
                await asyncio.sleep(pause_s)
                pause_s = min(2 * pause_s, PAUSE_S_MAX)

    async def _follow(self, once: bool) -> None:
        log = await self._open_log()
        try:
            first_positions = await log.first_positions()
            self.captured = dict(await self._writer.open())
            await self._begin(first_positions)
            self._began = True
            while True:
                after = {shard: captured.position for shard, captured in self.captured.items()}
                commits = await log.read(after, 0.0 if once else READ_S)
                if commits:
                    self.captured = dict(await self._writer.write(commits))
                    self.events += sum(len(one.events) for one in commits)
                elif once:
                    return
        finally:
            await self._writer.close()
            await log.close()

    async def _begin(self, first_positions: Mapping[int, int]) -> None:
        for shard, first in first_positions.items():
            if first > 1 and self.captured[shard].position == 0:
                self._say(f"shard {shard}: retention has dropped what was before position {first}; captured from there")
                await self._writer.begin(shard, first)
                self.captured[shard] = Captured(first - 1)


def log_commits(commits: Iterable[FeedCommit]) -> list[CapturedCommit]:
    """Commits of a feed, taken apart."""
    return [
        CapturedCommit(commit.shard, commit.position, commit.previous, seal(commit).digest, list(one.events()))
        for one in commits
        for commit in (one.commit,)
    ]
