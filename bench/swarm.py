"""How the swarm of apps/drones grows: the whole application with 100 to 10,000 drones, and how good its assignment is.

Each size is one run of `python -m apps.drones`: a broker, a simulated world in real time, nodes in processes of their
own, customers, and the checker afterwards. A run slows its world down when the machine cannot keep up, so
`real_time_factor` says whether it could; processor time for each drone and second of the world says what a drone costs
whatever else the machine does. Jobs are not waited for at the end: those under way are counted as such. One run, of
5,000 drones, has the samples of their airframes beside it, 420 a second of each: 2.1 million events a second.

The figures of quality are those of `python -m apps.drones quality`: the application's assignment next to the nearest
drone, on the same jobs, and next to the least that any assignment can reach. It needs what `make setup` installs.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from msgspec import Struct

from bench.charts import Chart, Lines, Series
from bench.options import add_common
from bench.targets import Target
from stigmergy.base.errors import ConfigError

ROOT = Path(__file__).resolve().parents[1]
NEEDS = ("numpy", "scipy", "shapely", "nats")
TARGETS = (
    Target("real_time_factor", "of the largest swarm", 1.0, at_least=True),
    Target("violations", "of all swarms, by the checker", 0),
    Target("telemetry_events_per_s", "samples of airframes, beside the drones", 2_000_000, at_least=True),
    Target("telemetry_event_to_action_p50_ms", "from a sample to its action; the seed's case has 88 ms", 88),
    Target("quality_mean_ratio", "mean delivery time / that of the nearest drone", 1.0),
    Target("quality_static_solver_over_bound", "delivery times of one round / their lower bound", 1.05),
)
SETTLE_S = 300.0
"""Beside the time of the world, which may be slower: for starting, stopping and checking."""
SLOWEST = 10.0
"""A swarm that is slower than this is stopped."""


class Sizes(Struct, frozen=True):
    """How much is measured."""

    drones: tuple[int, ...] = (100, 1_000, 3_000, 10_000)
    minutes: float = 3.0
    drain_s: float = 10.0
    telemetry_drones: int = 5_000
    quality_drones: int = 200
    quality_minutes: float = 40.0


FULL = Sizes()
QUICK = Sizes(drones=(20,), minutes=0.2, drain_s=1.0, quality_drones=40, quality_minutes=5.0, telemetry_drones=20)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of `bench swarm`."""
    add_common(parser)
    parser.add_argument("--drones", type=int, action="append", help="these sizes instead; repeatable")
    parser.add_argument("--minutes", type=float, help="for so long customers place jobs, in each")
    parser.add_argument("--seed", type=int, default=7)


def run(arguments: argparse.Namespace) -> dict[str, Any]:
    """One swarm after the other, the smallest first."""
    missing = [name for name in NEEDS if find_spec(name) is None]
    if missing:
        raise ConfigError(f"bench swarm flies apps/drones, which needs {', '.join(missing)}: make setup installs it")
    sizes = QUICK if arguments.quick else FULL
    minutes = arguments.minutes or sizes.minutes
    found: dict[int, dict[str, Any]] = {}
    with tempfile.TemporaryDirectory(prefix="stigmergy-bench-", dir=arguments.directory) as folder:
        swarms = sorted(set(arguments.drones or sizes.drones))
        for drones in sorted({*swarms, sizes.telemetry_drones}):
            words = ["--drones", str(drones), "--minutes", str(minutes), "--drain", str(sizes.drain_s)]
            words += ["--seed", str(arguments.seed), "--keep", str(Path(folder) / str(drones))]
            words += ["--telemetry"] if drones == sizes.telemetry_drones else []
            found[drones] = _ask(words, within_s=SETTLE_S + SLOWEST * (60 * minutes + sizes.drain_s))
    rows = [row_of(found[drones]) for drones in swarms]
    sampled = found[sizes.telemetry_drones]
    words = ["--drones", str(sizes.quality_drones), "--minutes", str(sizes.quality_minutes)]
    quality = _ask(["quality", *words, "--seed", str(arguments.seed)], within_s=SETTLE_S)
    loads = quality.pop("loads")
    return {
        "largest_drones": rows[-1]["drones"],
        "minutes": minutes,
        "load": round(os.getloadavg()[0], 1),
        "real_time_factor": rows[-1]["real_time_factor"],
        "cpu_us_per_drone_s": rows[-1]["cpu_us_per_drone_s"],
        "cpu_growth": round(rows[-1]["cpu_us_per_drone_s"] / rows[0]["cpu_us_per_drone_s"], 2),
        "violations": sum(one["violations"] for one in found.values()),
        "sizes": rows,
        "telemetry_real_time_factor": sampled["real_time_factor"],
        **{name: value for name, value in sampled.items() if name.startswith("telemetry_")},
        **{f"quality_{name}": value for name, value in quality.items()},
        "quality_loads": loads,
    }


def row_of(found: dict[str, Any]) -> dict[str, Any]:
    """What counts of one run. Processor time is that of all processes: nodes, broker, and the world itself."""
    cores = sum(found["busy_share"].values())
    nodes = {name: share for name, share in found["busy_share"].items() if name not in ("world", "broker")}
    factor = found["real_time_factor"]
    return {
        "drones": found["drones"],
        "real_time_factor": factor,
        "cores": round(cores, 2),
        "cpu_us_per_drone_s": _per_drone_us(cores, found),
        "of_nodes_us": _per_drone_us(sum(nodes.values()), found),
        "busiest_share": round(max(nodes.values(), default=0.0), 2),
        "jobs": found["jobs"],
        "delivered": found["delivered"],
        "under_way": found["under_way"],
        "reassignment_p99_s": found["reassignment_p99_s"],
        "least_distance_m": found["least_distance_m"],
        "violations": found["violations"],
    }


def _per_drone_us(cores: float, found: dict[str, Any]) -> float:
    """Seconds of processor time for each second of the wall, made one for each drone and second of the world."""
    return round(1e6 * cores / float(found["real_time_factor"] * found["drones"]), 1)


def _ask(words: Sequence[str], within_s: float) -> dict[str, Any]:
    """Runs the application, and reads its figures. It ends with 1 if it found violations: they are figures too."""
    command = [sys.executable, "-m", "apps.drones", *words, "--json"]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    try:
        ended = subprocess.run(
            command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=within_s, check=False
        )
    except subprocess.TimeoutExpired:
        raise ConfigError(f"{' '.join(command[2:])} did not end within {within_s:.0f} s") from None
    try:
        figures: dict[str, Any] = json.loads(ended.stdout)
    except ValueError:
        said = ended.stderr.strip()[-2_000:] or f"nothing, exit code {ended.returncode}"
        raise ConfigError(f"{' '.join(command[2:])} gave no figures; it said: {said}") from None
    return figures


def charts(figures: dict[str, Any]) -> list[Chart]:
    """What a drone costs, and how fast the world was, by size; if there are several."""
    rows = figures["sizes"]
    if len(rows) < 2:
        return []
    made: list[Chart] = []
    for title, label, name in (
        ("processor time of a drone", "us/s", "cpu_us_per_drone_s"),
        ("seconds of the world for each second", "factor", "real_time_factor"),
    ):
        points = [(float(row["drones"]), float(row[name])) for row in rows]
        made.append(Lines(title, "drones", label, [Series("apps/drones", points)], y_from_zero=True))
    return made
