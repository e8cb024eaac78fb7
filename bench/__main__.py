"""`python -m bench [NAME] [--json] [--quick] [--plot FILE.png]`: tables and charts, or JSON."""

from __future__ import annotations

import argparse
import sys

import msgspec
from rich.console import Console

from bench.catalogue import BENCHMARKS, measure
from bench.display import show
from stigmergy.base.errors import ConfigError

DEFAULT = "interpreted"


def main(arguments: list[str] | None = None) -> int:
    """Runs what the command line says."""
    given = sys.argv[1:] if arguments is None else arguments
    words = [word for word in given if word != "--json"]
    name = words.pop(0) if words and not words[0].startswith("-") else DEFAULT
    if name not in BENCHMARKS:
        print(f"{name!r} is no benchmark; there are: {', '.join(BENCHMARKS)}", file=sys.stderr)
        return 2
    try:
        measured = measure(name, words, argparse.ArgumentParser(prog=f"python -m bench {name}"))
    except ConfigError as error:
        print(error, file=sys.stderr)
        return 2
    if "--json" in given:
        print(msgspec.json.format(msgspec.json.encode(measured.figures), indent=2).decode())
    else:
        show(measured, Console())
    return 0


if __name__ == "__main__":
    sys.exit(main())
