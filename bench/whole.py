"""Every benchmark, one after the other. With --quick it shows that all of them run here, in about a minute.

One that cannot run in this installation is named, and the others go on.
"""

from __future__ import annotations

import argparse
from typing import Any

from bench.catalogue import BENCHMARKS, WHOLE, benchmark_of
from bench.charts import Chart
from bench.options import add_common
from bench.targets import Target
from stigmergy.base.errors import ConfigError

TARGETS: tuple[Target, ...] = ()
NOT_RUN = "not_run"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of `bench all`."""
    add_common(parser)


def run(arguments: argparse.Namespace) -> dict[str, Any]:
    """The figures of each benchmark under its name."""
    words = ["--directory", str(arguments.directory), *(["--quick"] if arguments.quick else [])]
    figures: dict[str, Any] = {}
    for name in BENCHMARKS:
        if name != WHOLE:
            try:
                figures[name] = _run(name, words)
            except ConfigError as error:
                figures[name] = {NOT_RUN: str(error)}
    return figures


def charts(figures: dict[str, Any]) -> list[Chart]:
    """Those of every benchmark that was run."""
    return [chart for name, own in figures.items() if NOT_RUN not in own for chart in benchmark_of(name).charts(own)]


def _run(name: str, words: list[str]) -> dict[str, Any]:
    benchmark = benchmark_of(name)
    parser = argparse.ArgumentParser(prog=name)
    benchmark.add_arguments(parser)
    return benchmark.run(parser.parse_args(words))
