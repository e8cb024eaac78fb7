"""Runs simulations until one finds something: how planted bugs are caught by what our users use, too.

    python -m proofs.planted_trial 0..59 [--segments] [--power]     a node at work while everything goes wrong
    python -m proofs.planted_trial 1..5 --scenario missions           a fleet, as `stigmergy sim` runs it
    python -m proofs.planted_trial 1..5 --airspace                  claims on a ledger

Ends with 1 and the first violation as soon as there is one, with 0 if there is none in all these seeds.
"""

from __future__ import annotations

import argparse
import functools
import sys
from collections.abc import Callable

from rigs.airspace import Airspace, fly
from rigs.trial import run_trial
from stigmergy.sim.simulation import find_scenario, run_seed


def seeds_between(text: str) -> range:
    """`A..B`: from A up to B, B included."""
    first, _, last = text.partition("..")
    return range(int(first), int(last or first) + 1)


def in_a_trial(seed: int, *, segments: bool, power: bool) -> list[str]:
    """What a node at work shows."""
    return run_trial(seed, in_segments=segments, power_only=power).violations


def in_a_fleet(seed: int, *, scenario: str) -> list[str]:
    """What a scenario shows."""
    found = find_scenario(scenario)
    return run_seed(found.setup, seed, found.test).violations


def in_the_air(seed: int) -> list[str]:
    """What agents that contend for cells show."""
    return fly(seed, Airspace()).violations


def main(arguments: list[str] | None = None) -> int:
    """The command line."""
    parser = argparse.ArgumentParser(prog="python -m proofs.planted_trial", description=__doc__)
    parser.add_argument("seeds", type=seeds_between, metavar="A..B")
    parser.add_argument("--segments", action="store_true", help="on a journal in segments")
    parser.add_argument("--power", action="store_true", help="nothing but losses of power")
    parser.add_argument("--scenario", help="a fleet instead of one node: as `stigmergy sim` names it")
    parser.add_argument("--airspace", action="store_true", help="claims on a ledger instead of one node")
    options = parser.parse_args(arguments)
    look: Callable[[int], list[str]] = functools.partial(in_a_trial, segments=options.segments, power=options.power)
    if options.airspace:
        look = in_the_air
    elif options.scenario:
        look = functools.partial(in_a_fleet, scenario=options.scenario)
    for seed in options.seeds:
        violations = look(seed)
        if violations:
            print(f"violation of seed {seed}: {violations[0]}")
            return 1
    print(f"{len(options.seeds)} seeds, nothing found")
    return 0


if __name__ == "__main__":
    sys.exit(main())
