"""`stigmergy bench`: runs the benchmarks of a checkout. They are not part of the installed package.

They are in the folder `bench` beside `src`, and are imported only when one is run.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from stigmergy.base.errors import ConfigError
from stigmergy.cli.display import exits
from stigmergy.cli.display.output import Output, Parser


def add_commands(commands: Any) -> None:
    """Adds `bench`."""
    parser = commands.add_parser(
        "bench",
        run=run,
        help="measure the speed of this machine",
        description="Measures on this machine. `stigmergy bench NAME --help` lists the options of a benchmark.",
    )
    parser.add_argument(
        "benchmark",
        metavar="NAME",
        nargs="?",
        help="interpreted, compiled, edge, alternatives, growth, shared, nats, observed, serve, web, workflows, "
        "inference, policy, swarm, federated, secure, sim, all",
    )
    parser.add_argument("rest", metavar="OPTION", nargs=argparse.REMAINDER, help="options of that benchmark")


def run(arguments: argparse.Namespace, output: Output) -> int:
    """Runs a benchmark."""
    if not benchmarks():
        raise ConfigError(
            "the benchmarks are not part of the installed package; clone the repository and run `make bench` there"
        )
    if arguments.benchmark not in benchmarks():
        given = f"{arguments.benchmark!r} is no benchmark" if arguments.benchmark else "which benchmark?"
        raise ConfigError(f"{given}; there are: {', '.join(benchmarks())}")
    from bench.catalogue import measure
    from bench.display import show

    words = [one for one in arguments.rest if one not in {"--json", "--debug"}]
    if not {"--quick", "-h", "--help"} & set(words):
        output.note("measuring, for minutes: whatever else runs here slows it down (--quick only shows that it runs)")
    measured = measure(arguments.benchmark, words, Parser(prog=f"stigmergy bench {arguments.benchmark}"))
    output.document(measured.figures)
    if not output.json:
        show(measured, output.console)
    return exits.OK


def benchmarks() -> dict[str, str]:
    """The names of the benchmarks, and what each is about; none if this is no checkout. Imports none of them."""
    checkout = Path(__file__).resolve().parents[3]
    if not (checkout / "bench" / "catalogue.py").is_file():
        return {}
    from bench.catalogue import BENCHMARKS

    return {name: listed.about for name, listed in BENCHMARKS.items()}
