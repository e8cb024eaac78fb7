"""The command: `python -m apps.traffic` shows a town; `latency` and `outage` measure it over a real broker."""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import sys
import tempfile
from pathlib import Path

from rich.console import Console

from apps.traffic.latency import add_latency
from apps.traffic.nodes import Town
from apps.traffic.outage import add_outage
from apps.traffic.traffic import Rates
from apps.traffic.view import watch
from stigmergy.testing.brokers import NoBroker


def add_show(options: argparse.ArgumentParser) -> None:
    """What can be said about the show."""
    options.add_argument("--rows", type=int, default=3)
    options.add_argument("--columns", type=int, default=4)
    options.add_argument("--seconds", type=float, default=120.0, help="how long")
    options.add_argument("--seed", type=int, default=1, help="of the traffic")
    options.add_argument(
        "--street", type=float, default=10.0, help="vehicles a minute into each street, from each side"
    )
    options.add_argument("--serve", metavar="HOST:PORT", help="show the page there too, such as 127.0.0.1:8080")
    options.add_argument("--avenue", type=float, default=5.0, help="vehicles a minute into each avenue, from each side")


async def show(options: argparse.Namespace) -> int:
    """A town on one node, in this program."""
    console = Console()
    rates = Rates(street_per_min=options.street, avenue_per_min=options.avenue)
    with tempfile.TemporaryDirectory(prefix="stigmergy-traffic-") as folder:
        async with Town(
            *(options.rows, options.columns, Path(folder)),
            bus="memory:traffic",
            seed=options.seed,
            rates=rates,
            serve=options.serve,
        ) as town:
            if town.url:
                console.print(f"the town's page: {town.url}/", highlight=False)
            await watch(town, console, options.seconds)
            trips = town.traffic.figures.trips
            tripped = [cabinet.name for cabinet in town.roadside.all() if cabinet.monitor.trips]
    console.print(f"{trips} trips; monitors that had to step in: {', '.join(tripped) or 'none'}", highlight=False)
    return 1 if tripped else 0


def main(arguments: list[str] | None = None) -> int:
    """Runs a command."""
    parser = argparse.ArgumentParser(prog="python -m apps.traffic", description=__doc__)
    add_show(parser)
    commands = parser.add_subparsers(dest="command")
    add_latency(commands)
    add_outage(commands)
    options = parser.parse_args(arguments)
    run = getattr(options, "run", show)
    try:
        code: int = asyncio.run(run(options))
    except NoBroker as error:
        print(error, file=sys.stderr)
        return 1
    return code


if __name__ == "__main__":
    with contextlib.suppress(KeyboardInterrupt):
        sys.exit(main())
    sys.exit(130)
