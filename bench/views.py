"""How far views are behind what is durable, and how fast they catch up with a log.

The lag of a commit is the time from the moment it is durable, when callers get their answers, to the moment its rows
are in the store. Catching up is measured over a whole log, from the start of the projector to rows that are up to
date, on a node that does nothing else; it includes reading the journal and writing the rows.
"""

from __future__ import annotations

import asyncio
import tempfile
import time
from collections import deque
from pathlib import Path
from typing import Any

from bench.targets import Target
from stigmergy import Agent, Event, Fleet, Key, Live, View, evolve, project
from stigmergy.shard.commit import Commit

RATE_PER_S = 5_000
LAG_S = 20.0
LOG_EVENTS = 500_000
AGENTS = 500
ZONES = 100
FILL_BATCH = 2_000
TICK_S = 0.002
WITHIN_S = 600.0
TARGETS = (
    Target("view_lag_p99_ms", f"a view behind what is durable, at {RATE_PER_S} events a second", 50.0),
    Target("view_catch_up_events_per_s", "events of a log into the rows of a view", 150_000, at_least=True),
)


class Moved(Event):
    """A cart is in a zone."""

    zone: int
    metres: float


class Cart(Agent):
    """Counts what it has driven."""

    metres: float = 0.0

    @evolve
    def moved(self, event: Moved) -> None:
        """Adds up."""
        self.metres += event.metres


class ZoneLoad(View):
    """What was driven in each zone."""

    zone: Key[int]
    moves: int = 0
    metres: float = 0.0

    @project
    def moved(self, event: Moved) -> None:
        """Adds up."""
        self.moves += 1
        self.metres += event.metres


def _fleet(*, with_view: bool) -> Fleet:
    return Fleet("views", agents=[Cart], views=[ZoneLoad] if with_view else [])


def _event(number: int) -> tuple[str, Moved]:
    return f"Cart/{number % AGENTS}", Moved(zone=number % ZONES, metres=1.0)


def view_catch_up_events_per_s(events: int = LOG_EVENTS) -> float:
    """Events a second from a log on SQLite into the rows of a view on SQLite."""
    with tempfile.TemporaryDirectory() as folder:
        journal = f"sqlite:{folder}/views.db"
        asyncio.run(_fill(journal, events))
        return asyncio.run(_catch_up(journal, events))


async def _fill(journal: str, events: int) -> None:
    async with _fleet(with_view=False).running(journal=journal) as live:
        for start in range(0, events, FILL_BATCH):
            numbers = range(start, min(events, start + FILL_BATCH))
            await asyncio.gather(*(live.observe(*_event(number)) for number in numbers))


async def _catch_up(journal: str, events: int) -> float:
    async with _fleet(with_view=True).running(journal=journal) as live:
        began_s = time.perf_counter()
        ends = {f"views/{shard}": at.position for shard, at in live.host.feed.positions().items()}
        rows = await live.view(ZoneLoad).after(ends, within_s=WITHIN_S).all()
        took_s = time.perf_counter() - began_s
    if sum(row.moves for row in rows) != events:
        raise RuntimeError(f"{sum(row.moves for row in rows)} of {events} events are in the rows")
    return events / took_s


def view_lag_ms(seconds: float = LAG_S, rate_per_s: int = RATE_PER_S) -> dict[str, float]:
    """p50, p99 and the largest lag of commits, and the rate that was reached."""
    with tempfile.TemporaryDirectory() as folder:
        return asyncio.run(_lag(Path(folder), seconds, rate_per_s))


async def _lag(folder: Path, seconds: float, rate_per_s: int) -> dict[str, float]:
    async with _fleet(with_view=True).running(journal=f"sqlite:{folder}/views.db") as live:
        probe = LagProbe(live)
        following = asyncio.ensure_future(probe.follow())
        sending: set[asyncio.Future[Any]] = set()
        began_s, sent = time.perf_counter(), 0
        while (passed_s := time.perf_counter() - began_s) < seconds:
            due = int(passed_s * rate_per_s)
            if due > sent:
                one = asyncio.gather(*(live.observe(*_event(number)) for number in range(sent, due)))
                sending.add(one)
                one.add_done_callback(sending.discard)
                sent = due
            await asyncio.sleep(TICK_S)
        await asyncio.gather(*sending)
        while probe.pending:  # noqa: ASYNC110
            await asyncio.sleep(TICK_S)
        took_s = time.perf_counter() - began_s
        following.cancel()
    lags = sorted(probe.lags_s)
    return {
        "view_lag_p50_ms": 1e3 * lags[len(lags) // 2],
        "view_lag_p99_ms": 1e3 * lags[len(lags) * 99 // 100],
        "view_lag_max_ms": 1e3 * lags[-1],
        "view_lag_events_per_s": sent / took_s,
    }


class LagProbe:
    """Notes when commits become durable, and when they are in the rows."""

    def __init__(self, live: Live) -> None:
        assert live.views is not None
        self._projector = live.views.projectors[ZoneLoad.__name__]
        self.pending: deque[tuple[int, float]] = deque()
        self.lags_s: list[float] = []
        feed = live.host.feed
        self._durable = feed.durable
        feed.durable = self._note  # type: ignore[method-assign]

    def _note(self, commit: Commit, size_bytes: int) -> None:
        self.pending.append((commit.position, time.perf_counter()))
        self._durable(commit, size_bytes)

    async def follow(self) -> None:
        """Until it is cancelled."""
        while True:
            if not self.pending:
                await asyncio.sleep(TICK_S)
                continue
            await self._projector.wait_written({"views/0": self.pending[0][0]}, WITHIN_S)
            written, now_s = self._projector.written["views/0"], time.perf_counter()
            while self.pending and self.pending[0][0] <= written:
                self.lags_s.append(now_s - self.pending.popleft()[1])


def measure_views(*, quick: bool = False) -> dict[str, float]:
    """All figures of views, for a report."""
    lag = view_lag_ms(1.0 if quick else LAG_S)
    return {**lag, "view_catch_up_events_per_s": view_catch_up_events_per_s(20_000 if quick else LOG_EVENTS)}
