"""`python -m stigmergy.bench`: one benchmark after the other, or the one that is named."""

from __future__ import annotations

import argparse
import sys

import msgspec

from stigmergy.bench import interpreted


def main(arguments: list[str] | None = None) -> int:
    """Runs what the command line says."""
    parser = argparse.ArgumentParser(prog="python -m stigmergy.bench", description=__doc__)
    parser.add_argument("benchmark", nargs="?", choices=["interpreted"], default="interpreted")
    parser.add_argument("--json", action="store_true", help="figures for machines")
    interpreted.add_arguments(parser)
    figures = interpreted.run(parser.parse_args(arguments))
    print(msgspec.json.format(msgspec.json.encode(figures), indent=2).decode())
    return 0


if __name__ == "__main__":
    sys.exit(main())
