"""Runs simulations until one finds something: how planted bugs are caught by what our users use, too.

    python -m proofs.planted_trial 0..60 [--segments] [--power]

Ends with 1 and the first violation as soon as there is one, with 0 if there is none in all these seeds.
"""

from __future__ import annotations

import argparse
import sys

from stigmergy.sim.trial import run_trial


def seeds_between(text: str) -> range:
    """`A..B`: from A up to B, B included."""
    first, _, last = text.partition("..")
    return range(int(first), int(last or first) + 1)


def main(arguments: list[str] | None = None) -> int:
    """The command line."""
    parser = argparse.ArgumentParser(prog="python -m proofs.planted_trial", description=__doc__)
    parser.add_argument("seeds", type=seeds_between, metavar="A..B")
    parser.add_argument("--segments", action="store_true", help="on a journal in segments")
    parser.add_argument("--power", action="store_true", help="nothing but losses of power")
    options = parser.parse_args(arguments)
    for seed in options.seeds:
        result = run_trial(seed, in_segments=options.segments, power_only=options.power)
        if result.violations:
            print(f"violation of seed {seed}: {result.violations[0]}")
            return 1
    print(f"{len(options.seeds)} seeds, nothing found")
    return 0


if __name__ == "__main__":
    sys.exit(main())
