"""What an event costs as the fleet grows and as the log grows, and how long a start takes then.

The fleets are hosts in processes of their own, one window after the other in turn. A log grows twice, with snapshots as
they are by default and without any; what an event costs behind a length is the median over windows in turn. A start is
timed as `bench interpreted` does it: file checked, digests and signatures verified, ready; with snapshots it is one
behind a fresh snapshot. How the load itself left the log stands beside it: snapshots take at most a twentieth of the
time, so a log that was written within seconds may have a long tail behind its last one.
"""

from __future__ import annotations

import argparse
import importlib
import statistics
import tempfile
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from msgspec import Struct

from stigmergy.bench.charts import Chart, Lines, Series
from stigmergy.bench.engines import ENGINES, Engine
from stigmergy.bench.footprint import Start
from stigmergy.bench.growing import MODULE, WITH, WITHOUT, Grow, Grown
from stigmergy.bench.options import add_common
from stigmergy.bench.subjects import Subject
from stigmergy.bench.targets import Target
from stigmergy.bench.workload import DRONES

QUICK_FLEETS = (500, 2_000)
QUICK_HISTORIES = (6_000, 20_000)
WAYS = {WITH: "with snapshots", WITHOUT: "without snapshots"}
TARGETS = tuple(
    Target(f"{engine.name}_fleet_ratio", f"cost per event, {engine.name}: largest fleet / smallest", 4.0)
    for engine in ENGINES
)


class Sizes(Struct, frozen=True):
    """How much is measured."""

    windows: int = 5
    window_events: int = 50_000
    history_events: int = 5_000
    """In each window behind a length: little beside the shortest."""
    starts: int = 3
    quick: bool = False

    def fleets(self, engine: Engine) -> tuple[int, ...]:
        return QUICK_FLEETS if self.quick else engine.fleets

    def histories(self, engine: Engine) -> tuple[int, ...]:
        return QUICK_HISTORIES if self.quick else engine.histories


FULL = Sizes()
QUICK = Sizes(windows=1, window_events=2_000, history_events=1_000, starts=1, quick=True)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of `bench growth`."""
    add_common(parser)


def run(arguments: argparse.Namespace) -> dict[str, Any]:
    """Measures everything and returns the figures by name."""
    sizes = QUICK if arguments.quick else FULL
    figures: dict[str, Any] = {}
    fleet: list[dict[str, Any]] = []
    history: list[dict[str, Any]] = []
    for engine in ENGINES:
        with tempfile.TemporaryDirectory(prefix="stigmergy-bench-", dir=arguments.directory) as name:
            folder = Path(name)
            rows, ratio = _fleets(engine, folder, sizes)
            fleet += rows
            figures[f"{engine.name}_fleet_ratio"] = ratio
            rows = _histories(engine, folder, sizes)
            history += rows
            figures[f"{engine.name}_history_ratio"] = _end_to_begin(rows, snapshots=True)
            figures[f"{engine.name}_history_ratio_without_snapshots"] = _end_to_begin(rows, snapshots=False)
    return figures | {"fleet": fleet, "history": history}


def charts(figures: dict[str, Any]) -> list[Chart]:
    """Cost by size, cost by length, start by length."""
    fleet, history = figures["fleet"], figures["history"]
    by_engine = [
        Series(name, [(row["agents"], row["us_per_event"]) for row in fleet if row["engine"] == name])
        for name in dict.fromkeys(row["engine"] for row in fleet)
    ]
    logs = list(dict.fromkeys((row["engine"], row["snapshots"]) for row in history))

    def lines(figure: str) -> list[Series]:
        return [
            Series(
                f"{name}, {WAYS[WITH if snapshots else WITHOUT]}",
                [(r["events"], r[figure]) for r in history if (r["engine"], r["snapshots"]) == (name, snapshots)],
            )
            for name, snapshots in logs
        ]

    return [
        Lines("cost with the size of the fleet", "agents", "µs per event", by_engine, y_from_zero=True),
        Lines("cost with history", "events in the log", "µs per event", lines("us_per_event"), y_from_zero=True),
        Lines("start with history", "events in the log", "s until ready", lines("start_s")),
    ]


def _fleets(engine: Engine, folder: Path, sizes: Sizes) -> tuple[list[dict[str, Any]], float]:
    """What an event costs at each size; and the largest's cost over the smallest's, window by window."""
    fleets = sizes.fleets(engine)
    windows: dict[int, list[Grown]] = {agents: [] for agents in fleets}
    with ExitStack() as stack:
        hosts = {
            agents: stack.enter_context(Subject(Grown, MODULE, engine.name, folder / f"fleet-{agents}.db", WITH))
            for agents in fleets
        }
        for agents, host in hosts.items():
            host.ask(Grow(sizes.window_events, agents, enrol=agents))
        for _ in range(sizes.windows):
            for agents, host in hosts.items():
                windows[agents].append(host.ask(Grow(sizes.window_events, agents)))
    rows = [
        {
            "engine": engine.name,
            "agents": agents,
            **_cost(windows[agents]),
            "resident_mb": round(windows[agents][-1].resident_mb, 1),
        }
        for agents in fleets
    ]
    pairs = zip(windows[fleets[-1]], windows[fleets[0]], strict=True)
    return rows, round(statistics.median(large.us_per_event / small.us_per_event for large, small in pairs), 2)


def _histories(engine: Engine, folder: Path, sizes: Sizes) -> list[dict[str, Any]]:
    """What an event and a start cost at each length, with snapshots and without."""
    module: Any = importlib.import_module(f"stigmergy.bench.engines.{engine.module}")
    paths = {way: folder / f"{way}.db" for way in WAYS}
    rows: list[dict[str, Any]] = []
    reached = 0
    for length in sizes.histories(engine):
        _grow(engine, paths, length - reached, enrol=0 if reached else DRONES)
        starts: dict[str, tuple[Start, Start]] = {}
        for way, path in paths.items():
            as_left = behind = _median_start([module.start(path) for _ in range(sizes.starts)])
            if way == WITH:
                module.snapshot(path)
                behind = _median_start([module.start(path) for _ in range(sizes.starts)])
            starts[way] = as_left, behind
        windows = _windows(engine, paths, sizes)
        for way, (as_left, behind) in starts.items():
            rows.append(
                {
                    "engine": engine.name,
                    "snapshots": way == WITH,
                    "events": length,
                    **_cost(windows[way]),
                    "start_s": round(behind.seconds, 4),
                    "start_as_left_s": round(as_left.seconds, 4),
                    "replayed_as_left": as_left.events,
                }
            )
        reached = length + (sizes.windows + 1) * sizes.history_events
    return rows


def _grow(engine: Engine, paths: dict[str, Path], events: int, enrol: int) -> None:
    """Makes both logs longer."""
    for way, path in paths.items():
        with Subject(Grown, MODULE, engine.name, path, way) as host:
            host.ask(Grow(events - enrol, DRONES, enrol=enrol))


def _windows(engine: Engine, paths: dict[str, Path], sizes: Sizes) -> dict[str, list[Grown]]:
    """What comes after that length, in turn; the first window of each warms its process up."""
    found: dict[str, list[Grown]] = {way: [] for way in paths}
    with ExitStack() as stack:
        hosts = {
            way: stack.enter_context(Subject(Grown, MODULE, engine.name, path, way)) for way, path in paths.items()
        }
        for window in range(sizes.windows + 1):
            for way, host in hosts.items():
                grown = host.ask(Grow(sizes.history_events, DRONES))
                if window:
                    found[way].append(grown)
    return found


def _median_start(starts: list[Start]) -> Start:
    return sorted(starts, key=lambda start: start.seconds)[len(starts) // 2]


def _cost(windows: list[Grown]) -> dict[str, Any]:
    return {
        "events_per_s": round(statistics.median(window.events / window.seconds for window in windows)),
        "us_per_event": round(statistics.median(window.us_per_event for window in windows), 3),
        "cpu_us_per_event": round(statistics.median(window.cpu_us_per_event for window in windows), 3),
    }


def _end_to_begin(rows: list[dict[str, Any]], *, snapshots: bool) -> float:
    costs = [row["us_per_event"] for row in rows if row["snapshots"] == snapshots]
    return float(round(costs[-1] / costs[0], 2))
