"""The interpreted engine measured: speed, latency, memory, recovery; each next to its limit or its target."""

from __future__ import annotations

import argparse
import asyncio
import tempfile
from pathlib import Path
from typing import Any

from stigmergy.bench.throughput import measure_throughput

ENVELOPES = 200
WINDOWS = 7


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of `bench interpreted`."""
    parser.add_argument("--quick", action="store_true", help="small counts: whether it runs, not what it reaches")
    parser.add_argument(
        "--directory", type=Path, default=Path(), help="where the files go; must be on the disk that is to be measured"
    )
    parser.add_argument("--windows", type=int, default=WINDOWS, help="windows of each measurement, at least 5")


def run(arguments: argparse.Namespace) -> dict[str, Any]:
    """Measures everything and returns the figures by name."""
    envelopes = 20 if arguments.quick else ENVELOPES
    with tempfile.TemporaryDirectory(prefix="stigmergy-bench-", dir=arguments.directory) as name:
        throughput = asyncio.run(measure_throughput(Path(name), max(5, arguments.windows), envelopes))
    return {
        "events_per_s": throughput.events_per_s,
        "limit_events_per_s": throughput.limit_events_per_s,
        "ratio": throughput.ratio,
    }
