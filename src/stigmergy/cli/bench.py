"""`stigmergy bench`: measures. The benchmarks are imported only when one is asked for."""

from __future__ import annotations

import argparse
import importlib
import pkgutil
from typing import Any

from stigmergy.cli import exits
from stigmergy.cli.output import Output, shown
from stigmergy.cli.parsing import Parser
from stigmergy.core.errors import ConfigError

PACKAGE = "stigmergy.bench"


def add_commands(commands: Any, common: argparse.ArgumentParser) -> None:
    """Adds `bench`."""
    parser = commands.add_parser(
        "bench",
        parents=[common],
        help="measure how fast it is here",
        description="Measures on this machine. `stigmergy bench NAME --help` lists the options of a benchmark.",
    )
    parser.add_argument("benchmark", metavar="NAME", nargs="?", help="such as interpreted")
    parser.add_argument("rest", metavar="OPTION", nargs=argparse.REMAINDER, help="options of that benchmark")
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace, output: Output) -> int:
    """Runs a benchmark."""
    rest = [one for one in arguments.rest if one != "--json"]
    known = benchmarks()
    if arguments.benchmark not in known:
        given = f"{arguments.benchmark!r} is no benchmark" if arguments.benchmark else "which benchmark?"
        raise ConfigError(f"{given}; there are: {', '.join(known) or 'none in this installation'}")
    module = importlib.import_module(f"{PACKAGE}.{arguments.benchmark}")
    parser = Parser(prog=f"stigmergy bench {arguments.benchmark}", description=module.__doc__)
    module.add_arguments(parser)
    figures: dict[str, Any] = module.run(parser.parse_args(rest))
    output.document(figures)
    output.fields((name, _figure(value)) for name, value in figures.items())
    return exits.OK


def benchmarks() -> list[str]:
    """The modules of the benchmarks' package that can be run from here."""
    try:
        package = importlib.import_module(PACKAGE)
    except ModuleNotFoundError:
        return []
    names = sorted(module.name for module in pkgutil.iter_modules(package.__path__) if not module.name.startswith("_"))
    return [name for name in names if hasattr(importlib.import_module(f"{PACKAGE}.{name}"), "add_arguments")]


def _figure(value: Any) -> str:
    if isinstance(value, float):
        return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.4g}"
    return f"{value:,}" if isinstance(value, int) and not isinstance(value, bool) else shown(value)
