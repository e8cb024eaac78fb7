"""The interpreted engine measured: speed, latency, memory, recovery; each next to its limit or its target.

Every figure of speed is a ratio within one run, because the machine is never ours alone: a window of the host on SQLite
is followed by one of the bare limit and one of the host on segments, and the median of the ratios is what counts.
"""

from __future__ import annotations

import argparse
import asyncio
import tempfile
from pathlib import Path
from typing import Any

from msgspec import Struct

from bench.charts import Bar, Bars, Chart
from bench.footprint import Start, fill, recover, snapshot, weigh
from bench.latency import EVENTS_PER_S, measure_latency
from bench.options import add_common
from bench.targets import Target
from bench.throughput import measure_throughput
from stigmergy.base.system import make_process_ours

WINDOWS = 5


class Sizes(Struct, frozen=True):
    """How much is measured."""

    envelopes: int = 200
    """Of 1,000 events, in each window."""
    window_s: float = 3.0
    agents: int = 100_000
    events: int = 1_000_000
    starts: int = 3
    """Recoveries of each kind; the median counts."""


FULL = Sizes()
QUICK = Sizes(envelopes=5, window_s=0.1, agents=2_000, events=10_000, starts=1)


TARGETS = (
    Target("ratio", "throughput of the whole host / bare loop", 0.4, at_least=True),
    Target("p99_over_fdatasync", "p99 event to effect / p99 of append and fdatasync", 3.0),
    Target("segments_ratio", "the same throughput on a journal in segments", 0.4, at_least=True),
    Target("segments_p99_over_fdatasync", "the same latency on a journal in segments", 3.0),
    Target("agents_100k_mb", "resident memory of a process with 100,000 agents, MB", 150.0),
    Target("replay_1m_s", "start by replay of 1,000,000 events, s", 5.0),
    Target("snapshot_recovery_s", "start from a snapshot of the same, s", 0.3),
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of `bench interpreted`."""
    add_common(parser)
    parser.add_argument("--windows", type=int, default=WINDOWS, help="windows of each measurement, at least 5")


def run(arguments: argparse.Namespace) -> dict[str, Any]:
    """Measures everything and returns the figures by name."""
    sizes = QUICK if arguments.quick else FULL
    windows = max(5, arguments.windows)
    make_process_ours()
    with tempfile.TemporaryDirectory(prefix="stigmergy-bench-", dir=arguments.directory) as name:
        folder = Path(name)
        latency = asyncio.run(measure_latency(folder, windows, sizes.window_s))
        throughput = measure_throughput(folder, windows, sizes.envelopes)
        weight = weigh(folder, sizes.agents)
        replayed, restored = _recoveries(folder, sizes)
    return {
        "events_per_s": round(throughput.events_per_s),
        "limit_events_per_s": round(throughput.limit_events_per_s),
        "ratio": round(throughput.ratio, 3),
        "ratio_per_window": [round(ratio, 3) for ratio in throughput.ratios],
        "cpu_us_per_event": round(throughput.cpu_us_per_event, 2),
        "limit_cpu_us_per_event": round(throughput.limit_cpu_us_per_event, 2),
        "nested_limit_events_per_s": round(throughput.nested_limit_events_per_s),
        "nested_ratio": round(throughput.nested_ratio, 3),
        "segments_events_per_s": round(throughput.segments_events_per_s),
        "segments_ratio": round(throughput.segments_ratio, 3),
        "segments_cpu_us_per_event": round(throughput.segments_cpu_us_per_event, 2),
        "open_loop_events_per_s": EVENTS_PER_S,
        "open_loop_actions": latency.actions,
        "p50_ms": round(latency.p50_ms, 3),
        "p99_ms": round(latency.p99_ms, 3),
        "fdatasync_p50_ms": round(latency.fdatasync_p50_ms, 3),
        "fdatasync_p99_ms": round(latency.fdatasync_p99_ms, 3),
        "p99_over_fdatasync": round(latency.p99_over_fdatasync, 2),
        "segments_p50_ms": round(latency.segments_p50_ms, 3),
        "segments_p99_ms": round(latency.segments_p99_ms, 3),
        "segments_p99_over_fdatasync": round(latency.segments_p99_over_fdatasync, 2),
        "sender_late_p99_ms": round(latency.sender_late_p99_ms, 3),
        "agents": weight.agents,
        "agents_100k_mb": round(weight.total_mb, 1),
        "agents_100k_growth_mb": round(weight.total_mb - weight.before_mb, 1),
        "replay_events": replayed.events,
        "replay_1m_s": round(replayed.seconds, 3),
        "snapshot_tail_events": restored.events,
        "snapshot_recovery_s": round(restored.seconds, 3),
    }


def charts(figures: dict[str, Any]) -> list[Chart]:
    """Speed, latency, recovery, each next to what it is held against."""
    speed = [
        Bar("host on SQLite", figures["events_per_s"]),
        Bar("host on segments", figures["segments_events_per_s"]),
        Bar("bare loop", figures["limit_events_per_s"], ours=False),
        Bar("bare loop, nested", figures["nested_limit_events_per_s"], ours=False),
    ]
    latency = [
        Bar("SQLite, p50", figures["p50_ms"]),
        Bar("SQLite, p99", figures["p99_ms"]),
        Bar("segments, p50", figures["segments_p50_ms"]),
        Bar("segments, p99", figures["segments_p99_ms"]),
        Bar("sync alone, p50", figures["fdatasync_p50_ms"], ours=False),
        Bar("sync alone, p99", figures["fdatasync_p99_ms"], ours=False),
    ]
    starts = [
        Bar(f"replay of {figures['replay_events']:,} events", figures["replay_1m_s"]),
        Bar("from a snapshot", figures["snapshot_recovery_s"]),
    ]
    return [
        Bars("durable throughput of ordinary agents", "events/s", speed),
        Bars(f"event to action at {figures['open_loop_events_per_s']:,} events/s", "ms", latency),
        Bars("start of a node", "s", starts),
    ]


def _recoveries(folder: Path, sizes: Sizes) -> tuple[Start, Start]:
    """The median start by replay, and from a snapshot; both must end in the state that was left."""
    path = folder / "recovery.db"
    left = fill(path, sizes.events)
    replayed = _median_start([recover(path) for _ in range(sizes.starts)], left.digest)
    left = snapshot(path)
    restored = _median_start([recover(path) for _ in range(sizes.starts)], left.digest)
    if replayed.from_snapshot or not restored.from_snapshot:
        raise RuntimeError("a start took another way than the one that was to be timed")
    return replayed, restored


def _median_start(starts: list[Start], digest: str) -> Start:
    for start in starts:
        if start.digest != digest:
            raise RuntimeError("a recovered state is not the one that was left")
    return sorted(starts, key=lambda start: start.seconds)[len(starts) // 2]
