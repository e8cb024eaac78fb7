"""What an event costs as the fleet grows and as the log grows, and how long a start takes then.

Everything is measured in turn: fleets of each size, and logs of each length, written with snapshots as they are by
default and without any, are hosts in processes of their own that take one window after the other. What an event costs
with history is what it costs behind that length. A start is timed as `bench interpreted` does it: file checked, digests
and signatures verified, ready; with snapshots it is one behind a fresh snapshot. Beside it stands one from the log as
the load left it: snapshots take at most a twentieth of the time, so a log that was written within seconds may have a
long tail behind its last one.
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

from bench.charts import Chart, Lines, Series
from bench.engines import ENGINES, Engine
from bench.footprint import Start
from bench.growth_host import MODULE, WITH, WITHOUT, Grow, Grown
from bench.options import add_common
from bench.subjects import Subject
from bench.targets import Target
from bench.workload import DRONES

QUICK_FLEETS = (500, 2_000)
QUICK_HISTORIES = (6_000, 20_000)
QUICK_WINDOW_EVENTS = 2_000
QUICK_HISTORY_EVENTS = 1_000
RATIOS = ("fleet_ratio", "history_ratio", "history_ratio_without_snapshots")
"""Figures of each engine; none where something is missing that it needs."""
WAYS = {WITH: "with snapshots", WITHOUT: "without snapshots"}
TARGETS = tuple(
    Target(f"{engine.name}_fleet_ratio", f"cost per event, {engine.name}: largest fleet / smallest", 4.0)
    for engine in ENGINES
)


class Sizes(Struct, frozen=True):
    """How much is measured."""

    windows: int = 5
    starts: int = 3
    quick: bool = False

    def fleets(self, engine: Engine) -> tuple[int, ...]:
        return QUICK_FLEETS if self.quick else engine.fleets

    def histories(self, engine: Engine) -> tuple[int, ...]:
        return QUICK_HISTORIES if self.quick else engine.histories

    def window_events(self, engine: Engine) -> int:
        return QUICK_WINDOW_EVENTS if self.quick else engine.window_events

    def history_events(self, engine: Engine) -> int:
        return QUICK_HISTORY_EVENTS if self.quick else engine.history_events


FULL = Sizes()
QUICK = Sizes(windows=1, starts=1, quick=True)


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
        if engine.missing:
            figures |= {f"{engine.name}_{figure}": None for figure in RATIOS}
            continue
        with tempfile.TemporaryDirectory(prefix="stigmergy-bench-", dir=arguments.directory) as name:
            folder = Path(name)
            rows, ratio = measure_fleets(engine, folder, sizes)
            fleet += rows
            logs = _histories(engine, folder, sizes)
            history += [_row(engine, log) for log in logs]
            ratios = (ratio, _end_to_begin(logs, WITH), _end_to_begin(logs, WITHOUT))
            figures |= {f"{engine.name}_{figure}": value for figure, value in zip(RATIOS, ratios, strict=True)}
    missing = [{"name": one.name, "missing": ", ".join(one.missing)} for one in ENGINES if one.missing]
    return figures | {"fleet": fleet, "history": history, "not_installed": missing}


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


def measure_fleets(engine: Engine, folder: Path, sizes: Sizes) -> tuple[list[dict[str, Any]], float]:
    """What an event costs at each size; and the largest's cost over the smallest's, window by window."""
    fleets = sizes.fleets(engine)
    windows: dict[int, list[Grown]] = {agents: [] for agents in fleets}
    with ExitStack() as stack:
        hosts = {
            agents: stack.enter_context(Subject(Grown, MODULE, engine.name, folder / f"fleet-{agents}.db", WITH))
            for agents in fleets
        }
        for agents, host in hosts.items():
            host.ask(Grow(sizes.window_events(engine), agents, enrol=agents))
        for _ in range(sizes.windows):
            for agents, host in hosts.items():
                windows[agents].append(host.ask(Grow(sizes.window_events(engine), agents)))
    rows = [
        {
            "engine": engine.name,
            "agents": agents,
            **_cost(windows[agents]),
            "resident_mb": round(windows[agents][-1].resident_mb, 1),
        }
        for agents in fleets
    ]
    return rows, _ratio(windows[fleets[-1]], windows[fleets[0]])


class _Log(Struct):
    """A journal of one length, written with snapshots or without, and what was measured behind it."""

    path: Path
    events: int
    way: str
    as_left: list[Start] = []
    """Starts from it as the load left it."""
    behind: list[Start] = []
    """Starts behind a fresh snapshot, where there are snapshots."""
    windows: list[Grown] = []


def _histories(engine: Engine, folder: Path, sizes: Sizes) -> list[_Log]:
    """What an event and a start cost behind each length, with snapshots and without; all in turn."""
    module: Any = importlib.import_module(f"bench.engines.{engine.module}")
    logs = [
        _Log(folder / f"{way}-{length}.db", length, way)
        for length in sizes.histories(engine)
        for way in (WITH, WITHOUT)
    ]
    for log in logs:
        with Subject(Grown, MODULE, engine.name, log.path, log.way) as host:
            host.ask(Grow(log.events - DRONES, DRONES, enrol=DRONES))
    for _ in range(sizes.starts):
        for log in logs:
            log.as_left.append(module.start(log.path))
    for log in logs:
        if log.way == WITH:
            module.snapshot(log.path)
    for _ in range(sizes.starts):
        for log in logs:
            log.behind.append(module.start(log.path) if log.way == WITH else log.as_left[len(log.behind)])
    with ExitStack() as stack:
        hosts = [stack.enter_context(Subject(Grown, MODULE, engine.name, log.path, log.way)) for log in logs]
        for window in range(sizes.windows + 1):
            for log, host in zip(logs, hosts, strict=True):
                grown = host.ask(Grow(sizes.history_events(engine), DRONES))
                if window:  # the first one warms everything up
                    log.windows.append(grown)
    return logs


def _row(engine: Engine, log: _Log) -> dict[str, Any]:
    as_left, behind = _median_start(log.as_left), _median_start(log.behind)
    return {
        "engine": engine.name,
        "snapshots": log.way == WITH,
        "events": log.events,
        **_cost(log.windows),
        "start_s": round(behind.seconds, 4),
        "start_as_left_s": round(as_left.seconds, 4),
        "replayed_as_left": as_left.events,
    }


def _median_start(starts: list[Start]) -> Start:
    return sorted(starts, key=lambda start: start.seconds)[len(starts) // 2]


def _cost(windows: list[Grown]) -> dict[str, Any]:
    return {
        "events_per_s": round(statistics.median(window.events / window.seconds for window in windows)),
        "us_per_event": round(statistics.median(window.us_per_event for window in windows), 3),
        "cpu_us_per_event": round(statistics.median(window.cpu_us_per_event for window in windows), 3),
    }


def _ratio(large: list[Grown], small: list[Grown]) -> float:
    """Of what an event costs, window by window."""
    pairs = zip(large, small, strict=True)
    return round(statistics.median(one.us_per_event / other.us_per_event for one, other in pairs), 2)


def _end_to_begin(logs: list[_Log], way: str) -> float:
    windows = [log.windows for log in logs if log.way == way]
    return _ratio(windows[-1], windows[0])
