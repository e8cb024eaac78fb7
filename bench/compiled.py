"""The compiled engine measured: speed, latency, recovery, memory; each next to its limit or its target.

Every figure of speed is a ratio within one run, because the machine is never ours alone: a window of the whole host is
followed by one of the bare limit at its best, and one of the limit with batches as large as our commits; the median of
the ratios is what counts. Host, limit and sender are processes of their own. Needs the extra [compiled].
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
from collections.abc import Sequence
from contextlib import ExitStack
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

from msgspec import Struct

from bench import growth
from bench.alternatives import Sizes as ContestSizes
from bench.alternatives import contest
from bench.charts import Bar, Bars, Chart, Lines, Series
from bench.contestants import entry_of
from bench.engines import COMPILED
from bench.footprint import Start
from bench.options import add_common
from bench.subjects import Subject
from bench.targets import Target
from stigmergy.base.errors import ConfigError

if TYPE_CHECKING:
    from bench.columns.latency import Flowed

WINDOWS = 7
LOADED_EVENTS_PER_S, LOADED_RECORDS = 2_000_000, 2_000
"""Sustained: a batch of so many records every millisecond."""
SINGLE_EVENTS_PER_S, SINGLE_ACTING = 5_000, 0.25
"""One by one, each in a batch of its own; many of them acting, so that there are enough to count."""
LOADED_ACTING = 0.03
MILLISECOND_NS = 1_000_000
SHARED_MEMORY = Path("/dev/shm")
AGAINST = ("compiled", "sqlite_loop_batched", "bytewax_default")
"""Of the alternatives, the quickest; `bench alternatives` has all of them."""


class Sizes(Struct, frozen=True):
    """How much is measured."""

    batches: int = 300
    """Of 13,312 records, in each window of throughput."""
    limit_s: float = 0.4
    limit_file_bytes: int = 256 << 20
    flow_windows: int = 5
    window_s: float = 2.0
    events: int = 10_000_000
    starts: int = 3
    """Recoveries of each kind; the median counts."""
    agents: int = 1_000_000
    fleets: growth.Sizes = growth.FULL
    contest: ContestSizes = ContestSizes(windows=3)


FULL = Sizes()
QUICK = Sizes(
    batches=12,
    limit_s=0.02,
    limit_file_bytes=16 << 20,
    flow_windows=1,
    window_s=0.1,
    events=50_000,
    starts=1,
    agents=20_000,
    fleets=growth.QUICK,
    contest=ContestSizes(windows=1, window_s=0.05, checked_events=1_000, events_max=20_000),
)


TARGETS = (
    Target("events_per_s", "durable events/s of the whole host", 10e6, at_least=True),
    Target("ratio", "the same / bare loop, append and sync, at the limit's best batch", 0.5, at_least=True),
    Target("alternative_ratio", "the same / the fastest durable alternative", 20.0, at_least=True),
    Target("loaded_p99_ms", "p99 event to effect at 2,000,000 events/s, ms", 20.0),
    Target("single_p99_over_fdatasync", "p99 event to effect at 5,000/s / p99 of append and fdatasync", 3.0),
    Target("replay_10m_s", "start by replay of 10,000,000 events, s", 1.5),
    Target("snapshot_recovery_s", "start from a snapshot of the same, s", 0.05),
    Target("agents_1m_mb", "resident memory of a process with 1,000,000 agents, MB", 300.0),
    Target("fleet_ratio", "cost per event, 1,000,000 agents / 1,000", 4.0),
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of `bench compiled`."""
    add_common(parser)
    parser.add_argument("--windows", type=int, default=WINDOWS, help="windows of throughput (default: 7)")


def run(arguments: argparse.Namespace) -> dict[str, Any]:
    """Measures everything and returns the figures by name."""
    missing = [name for name in COMPILED.needs if find_spec(name) is None]
    if missing:
        raise ConfigError(f'{", ".join(missing)} is not installed; pip install "stigmergy[compiled]"')
    sizes = QUICK if arguments.quick else FULL
    from bench.columns.footprint import prepare

    loaded = prepare()
    figures: dict[str, Any] = {}
    with tempfile.TemporaryDirectory(prefix="stigmergy-bench-", dir=arguments.directory) as name:
        folder = Path(name)
        figures |= throughput(folder, sizes, 1 if arguments.quick else arguments.windows)
        figures |= against_others(folder, sizes)
        figures |= latencies(folder, sizes)
        figures |= recoveries(folder / "recovery", sizes)
        figures |= memory(folder, sizes)
    return figures | {"code_ready_s": round(loaded.seconds, 3)}


def charts(figures: dict[str, Any]) -> list[Chart]:
    """Speed, latency, recovery, each next to what it is held against; cost by the fleet's size."""
    speed = [
        Bar("whole host", figures["events_per_s"]),
        Bar("two processes", figures["two_processes_events_per_s"]),
        Bar("bare loop", figures["limit_events_per_s"], ours=False),
        Bar("bare loop, our batches", figures["limit_same_batch_events_per_s"], ours=False),
        Bar(figures["alternative"], figures["alternative_events_per_s"], ours=False),
    ]
    latency = [
        Bar("2 M events/s, p50", figures["loaded_p50_ms"]),
        Bar("2 M events/s, p99", figures["loaded_p99_ms"]),
        Bar("5,000 events/s, p50", figures["single_p50_ms"]),
        Bar("5,000 events/s, p99", figures["single_p99_ms"]),
        Bar("sync alone, p50", figures["fdatasync_p50_ms"], ours=False),
        Bar("sync alone, p99", figures["fdatasync_p99_ms"], ours=False),
    ]
    starts = [
        Bar(f"replay of {figures['replay_events']:,} events", figures["replay_10m_s"]),
        Bar("from a snapshot", figures["snapshot_recovery_s"]),
    ]
    cost = [(row["agents"], row["us_per_event"]) for row in figures["fleet"]]
    return [
        Bars("durable throughput of compiled agents", "events/s", speed),
        Bars("event to action", "ms", latency),
        Bars("start of a node", "s", starts),
        Lines(
            "cost with the size of the fleet", "agents", "µs per event", [Series("compiled", cost)], y_from_zero=True
        ),
    ]


def throughput(folder: Path, sizes: Sizes, windows: int) -> dict[str, Any]:
    """The host, the limit at its best and with batches like our commits, and a fleet in two processes; in turn."""
    from bench.columns.bare import MODULE as BARE
    from bench.columns.bare import RunBare
    from bench.columns.throughput import MODULE as NODE
    from bench.columns.throughput import Ran, Run
    from bench.limit import Bare

    own: list[Ran] = []
    best: list[Bare] = []
    same: list[Bare] = []
    both_events_per_s: list[float] = []
    with ExitStack() as stack:
        alone = stack.enter_context(Subject(Ran, NODE, folder / "alone", 1, 1))
        both = [stack.enter_context(Subject(Ran, NODE, folder / f"{one}-of-2", one, 2)) for one in (1, 2)]
        limit = stack.enter_context(Subject(Bare, BARE, folder, sizes.limit_file_bytes))
        for host in (alone, *both):
            host.ask(Run(max(1, sizes.batches // 4)))  # warms everything up
        limit.ask(RunBare(sizes.limit_s))
        for _ in range(windows):
            own.append(alone.ask(Run(sizes.batches)))
            best.append(limit.ask(RunBare(sizes.limit_s)))
            same.append(limit.ask(RunBare(sizes.limit_s, own[-1].commit_events)))
            for host in both:
                host.begin(Run(sizes.batches))
            ran = [host.finish() for host in both]
            both_events_per_s.append(sum(one.events for one in ran) / max(one.seconds for one in ran))
    ratios = [mine.events_per_s / bare.events_per_s for mine, bare in zip(own, best, strict=True)]
    same_ratios = [mine.events_per_s / bare.events_per_s for mine, bare in zip(own, same, strict=True)]
    gains = [two / mine.events_per_s for two, mine in zip(both_events_per_s, own, strict=True)]
    return {
        "events_per_s": round(statistics.median(one.events_per_s for one in own)),
        "limit_events_per_s": round(statistics.median(one.events_per_s for one in best)),
        "ratio": round(statistics.median(ratios), 3),
        "ratio_per_window": [round(ratio, 3) for ratio in ratios],
        "limit_batch_events": best[-1].batch_events,
        "limit_same_batch_events_per_s": round(statistics.median(one.events_per_s for one in same)),
        "same_batch_ratio": round(statistics.median(same_ratios), 3),
        "commit_events": own[-1].commit_events,
        "cpu_us_per_event": round(statistics.median(one.cpu_s / one.events for one in own) * 1e6, 4),
        "events_per_s_per_window": [round(one.events_per_s) for one in own],
        "events": sum(one.events for one in own),
        "actions": sum(one.actions for one in own),
        "two_processes_events_per_s": round(statistics.median(both_events_per_s)),
        "two_processes_gain": round(statistics.median(gains), 2),
    }


def against_others(folder: Path, sizes: Sizes) -> dict[str, Any]:
    """The same events on the quickest of the alternatives; all give the same actions, or there is no answer."""
    found = contest(folder, sizes.contest, tuple(entry_of(name) for name in AGAINST))
    alternative = next(one for one in found["contestants"] if one["name"] == found["fastest_alternative"])
    return {
        "alternative": alternative["name"],
        "alternative_events_per_s": alternative["events_per_s"],
        "alternative_ratio": found["ratio"],
        "same_actions": found["same_actions"],
    }


def latencies(folder: Path, sizes: Sizes) -> dict[str, Any]:
    """Event to effect under load, then one by one with bare windows in between."""
    from bench.columns.latency import MODULE, Flow, Flowed

    def flow(events_per_s: int, batch_records: int, acting: float, *, bare: bool = False) -> Flow:
        return Flow(int(sizes.window_s * events_per_s) // batch_records, batch_records, events_per_s, acting, bare)

    loaded: list[Flowed] = []
    single: list[Flowed] = []
    synced: list[Flowed] = []
    place = SHARED_MEMORY if SHARED_MEMORY.is_dir() else folder
    with (
        tempfile.TemporaryDirectory(prefix="stigmergy-bench-", dir=place) as name,
        Subject(Flowed, MODULE, folder, Path(name) / "events.ring") as node,
    ):
        for window in range(sizes.flow_windows + 1):
            flowed = node.ask(flow(LOADED_EVENTS_PER_S, LOADED_RECORDS, LOADED_ACTING))
            loaded += [flowed] if window else []  # the first one warms everything up
        for window in range(sizes.flow_windows + 1):
            flowed = node.ask(flow(SINGLE_EVENTS_PER_S, 1, SINGLE_ACTING))
            bare = node.ask(flow(SINGLE_EVENTS_PER_S, 1, SINGLE_ACTING, bare=True))
            single += [flowed] if window else []
            synced += [bare] if window else []
    over = statistics.median(mine.p99_ns / bare.p99_ns for mine, bare in zip(single, synced, strict=True))
    return {
        "loaded_events_per_s": LOADED_EVENTS_PER_S,
        **_percentiles("loaded", loaded),
        "single_events_per_s": SINGLE_EVENTS_PER_S,
        **_percentiles("single", single),
        "fdatasync_p50_ms": _milliseconds([one.p50_ns for one in synced]),
        "fdatasync_p99_ms": _milliseconds([one.p99_ns for one in synced]),
        "single_p99_over_fdatasync": round(over, 2),
    }


def recoveries(path: Path, sizes: Sizes) -> dict[str, Any]:
    """Starts by replay and from a snapshot; both must end in the state that was left."""
    from bench.columns.footprint import fill, recover, snapshot

    left = fill(path, sizes.events)
    replayed = _median_start([recover(path) for _ in range(sizes.starts)], left.digest)
    left = snapshot(path)
    restored = _median_start([recover(path) for _ in range(sizes.starts)], left.digest)
    if replayed.from_snapshot or not restored.from_snapshot:
        raise RuntimeError("a start took another way than the one that was to be timed")
    return {
        "replay_events": replayed.events,
        "replay_10m_s": round(replayed.seconds, 3),
        "snapshot_tail_events": restored.events,
        "snapshot_recovery_s": round(restored.seconds, 4),
    }


def memory(folder: Path, sizes: Sizes) -> dict[str, Any]:
    """A process with a million agents, and what an event costs as the fleet grows."""
    from bench.columns.footprint import weigh

    weight = weigh(folder / "agents", sizes.agents)
    rows, ratio = growth.measure_fleets(COMPILED, folder, sizes.fleets)
    return {
        "agents": weight.agents,
        "agents_1m_mb": round(weight.total_mb, 1),
        "agents_1m_growth_mb": round(weight.total_mb - weight.before_mb, 1),
        "fleet_ratio": ratio,
        "fleet": rows,
    }


def _percentiles(name: str, windows: Sequence[Flowed]) -> dict[str, Any]:
    return {
        f"{name}_p50_ms": _milliseconds([one.p50_ns for one in windows]),
        f"{name}_p99_ms": _milliseconds([one.p99_ns for one in windows]),
        f"{name}_p99_ms_per_window": [round(one.p99_ns / MILLISECOND_NS, 3) for one in windows],
        f"{name}_sender_late_p99_ms": _milliseconds([one.sender_late_p99_ns for one in windows]),
        f"{name}_commits": sum(one.commits for one in windows),
        f"{name}_actions": sum(one.actions for one in windows),
    }


def _milliseconds(values: Sequence[int]) -> float:
    return round(statistics.median(values) / MILLISECOND_NS, 3)


def _median_start(starts: list[Start], digest: str) -> Start:
    for start in starts:
        if start.digest != digest:
            raise RuntimeError("a recovered state is not the one that was left")
    return sorted(starts, key=lambda start: start.seconds)[len(starts) // 2]
