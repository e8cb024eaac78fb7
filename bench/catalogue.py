"""The benchmarks by name, and how one of them is run. None is imported before it is asked for: some need extras.

A benchmark is a module with `TARGETS`, `add_arguments(parser)`, `run(arguments)`, which returns its figures by name,
and `charts(figures)`. Adding one is the module, and a line in the table.
"""

from __future__ import annotations

import argparse
import importlib
import importlib.util
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Protocol, cast

from msgspec import Struct

from bench.charts import Chart
from bench.targets import Target
from stigmergy.base.errors import ConfigError


class Benchmark(Protocol):
    """What such a module has."""

    __doc__: str | None
    TARGETS: Sequence[Target]

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        """Adds its options."""

    def run(self, arguments: argparse.Namespace) -> dict[str, Any]:
        """Measures, and returns the figures by name; a list of dicts is a table."""

    def charts(self, figures: dict[str, Any]) -> list[Chart]:
        """What is drawn of them."""


class Listed(Struct, frozen=True):
    """One line of the table."""

    module: str
    about: str


BENCHMARKS = {
    "interpreted": Listed("interpreted", "speed, latency, memory and recovery of ordinary agents"),
    "compiled": Listed("compiled", "the same of compiled agents, next to the machine's limit"),
    "edge": Listed("edge", "the budgets of a small device"),
    "alternatives": Listed("alternatives", "the same events on other Python libraries"),
    "growth": Listed("growth", "cost per event with the fleet's size and the log's length"),
    "shared": Listed("shared", "what shared state costs: writes, deltas, bytes, stores"),
    "nats": Listed("nats.whole", "a fleet on NATS next to the raw engine, and what it does when something dies"),
    "observed": Listed("observed", "what metrics cost: the same events with them and without"),
    "serve": Listed("serve", "commands and events over HTTP next to the same in process; views"),
    "web": Listed("web", "what the page costs a browser and the node, with 10,000 agents that move"),
    "workflows": Listed("workflows", "durable steps of workflows, next to dbos and Restate"),
    "inference": Listed("inference", "models on a node next to bare ONNX Runtime, and what INT8 saves"),
    "policy": Listed("policy", "rulings of a policy, and commands with one next to without"),
    "swarm": Listed("swarm", "apps/drones with 100 to 10,000 drones, and how good its assignment is"),
    "federated": Listed("federated", "federated learning: how good next to all rows, each site alone, and Flower"),
    "secure": Listed("secure", "what signatures cost on a bus, between two nodes"),
    "sim": Listed("simulated", "how fast fleets are simulated"),
    "all": Listed("whole", "everything, one after the other"),
}
WHOLE = "all"


class Measured(Struct, frozen=True):
    """What one run gave."""

    name: str
    benchmark: Benchmark
    figures: dict[str, Any]
    picture: Path | None = None
    """Where the charts were drawn, if that was asked for."""
    quick: bool = False


def benchmark_of(name: str) -> Benchmark:
    """The module behind a name of the table."""
    return cast("Benchmark", importlib.import_module(f"bench.{BENCHMARKS[name].module}"))


def measure(name: str, words: Sequence[str], parser: argparse.ArgumentParser) -> Measured:
    """Runs a benchmark with these words of the command line."""
    benchmark = benchmark_of(name)
    parser.description = benchmark.__doc__
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    benchmark.add_arguments(parser)
    parser.add_argument("--plot", metavar="FILE.png", type=Path, help="draw the main figures (needs the extra [bench])")
    arguments = parser.parse_args(list(words))
    if arguments.plot is not None:
        check_picture(arguments.plot)
    figures = benchmark.run(arguments)
    if arguments.plot is not None:
        from bench.picture import draw

        draw(benchmark.charts(figures), arguments.plot)
    return Measured(name, benchmark, figures, arguments.plot, arguments.quick)


def check_picture(path: Path) -> None:
    """Says before an hour of measuring, and not after it, that there will be no picture."""
    if importlib.util.find_spec("matplotlib") is None:
        raise ConfigError("--plot needs matplotlib, which is not installed: run it with `make bench`")
    if path.suffix.lower() != ".png":
        raise ConfigError(f"--plot draws a PNG, and {path} is none by its name; call it {path.with_suffix('.png')}")
    if not path.absolute().parent.is_dir():
        raise ConfigError(f"--plot {path}: there is no folder {path.parent}; make it first")
