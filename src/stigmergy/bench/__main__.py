"""`python -m stigmergy.bench [interpreted] [--json] [--quick]`: measures, and prints a table or JSON."""

from __future__ import annotations

import argparse
import sys

import msgspec
from rich.console import Console

from stigmergy.bench import interpreted


def main(arguments: list[str] | None = None) -> int:
    """Runs what the command line says."""
    parser = argparse.ArgumentParser(prog="python -m stigmergy.bench", description=__doc__)
    parser.add_argument("benchmark", nargs="?", choices=["interpreted"], default="interpreted")
    interpreted.add_arguments(parser)
    options = parser.parse_args(arguments)
    figures = interpreted.run(options)
    if options.json:
        print(msgspec.json.format(msgspec.json.encode(figures), indent=2).decode())
    else:
        interpreted.show(figures, Console())
    return 0


if __name__ == "__main__":
    sys.exit(main())
