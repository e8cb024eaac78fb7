"""`python -m stigmergy.bench [interpreted|edge] [--json] [--quick]`: measures, and prints a table or JSON."""

from __future__ import annotations

import argparse
import sys

import msgspec
from rich.console import Console

from stigmergy.bench import edge, interpreted
from stigmergy.bench.targets import show

BENCHMARKS = {"interpreted": interpreted, "edge": edge}


def main(arguments: list[str] | None = None) -> int:
    """Runs what the command line says."""
    parser = argparse.ArgumentParser(prog="python -m stigmergy.bench", description=__doc__)
    parser.add_argument("--json", action="store_true", help="print the figures for machines")
    commands = parser.add_subparsers(dest="benchmark")
    for name, benchmark in BENCHMARKS.items():
        benchmark.add_arguments(commands.add_parser(name, description=benchmark.__doc__))
    given = sys.argv[1:] if arguments is None else arguments
    named = any(word in BENCHMARKS for word in given)
    json = "--json" in given
    rest = [word for word in given if word != "--json"]
    options = parser.parse_args(rest if named else ["interpreted", *rest])
    benchmark = BENCHMARKS[options.benchmark]
    figures = benchmark.run(options)
    if json:
        print(msgspec.json.format(msgspec.json.encode(figures), indent=2).decode())
    else:
        show(options.benchmark, benchmark.TARGETS, figures, Console())
    return 0


if __name__ == "__main__":
    sys.exit(main())
