"""Small systems in every order of events, to a bound: the commit protocol, with the core that ships inside the search.

Simulations draw what goes wrong; here everything that can go wrong does, once in each order that there is, for a few
inputs and a crash or two. No state may break a promise, and from each there must be a way to the end. The counterproof:
with each rule of the host broken on purpose, the same search must find it; it prints the shortest schedule.

    python -m proofs.exhaustive [--items N] [--crashes N] [--tells] [--no-asks]
"""

from __future__ import annotations

import argparse
import sys
import time
from typing import Any

from proofs.report import Proof
from rigs.commit_model import Bounds, CommitModel, Mistake, World
from rigs.dead_ends import explore_to_the_end
from stigmergy.sim.explore import Exploration

BOUNDS = (
    Bounds(items=2, crashes=2),
    Bounds(items=3, crashes=2, asks=False),
    Bounds(items=2, crashes=2, asks=False, tells=True),
    Bounds(items=1, crashes=2, tells=True),
    Bounds(items=1, crashes=4),
)
BOUNDS_QUICK = (Bounds(items=2, crashes=1, asks=False), Bounds(items=1, crashes=1, tells=True))


def search_commits(bounds: Bounds, mistake: Mistake | None = None) -> Exploration[World]:
    """Every order of a shard's commits, with one rule of its host broken or none."""
    return explore_to_the_end(CommitModel(bounds, mistake))


def unseen_mistakes(*scopes: Bounds) -> list[str]:
    """Rules of the host that can be broken without the search of any scope noticing: there must be none."""
    return [
        mistake.value
        for mistake in Mistake
        if all(search_commits(bounds, mistake).counterexample is None for bounds in scopes)
    ]


def prove(*, quick: bool = False) -> Proof:
    """The proof as `make prove` runs it."""
    violations: list[str] = []
    figures: dict[str, Any] = {}
    states = 0
    for bounds in BOUNDS_QUICK if quick else BOUNDS:
        begin_s = time.monotonic()
        found = search_commits(bounds)
        states += found.states
        seconds = time.monotonic() - begin_s
        figures[_named(bounds)] = (
            f"{found.states:,} states, {found.transitions:,} transitions, depth {found.depth}, {seconds:.0f} s"
        )
        if not found.complete:
            violations.append(f"{_named(bounds)}: {found.schedule()}")
    # One input cannot come too early: that rule takes two, here without a command, which is quick.
    scopes = (Bounds(items=1, crashes=1), BOUNDS_QUICK[0]) if quick else (Bounds(items=2, crashes=1),)
    unseen = unseen_mistakes(*scopes)
    figures["rules broken on purpose"] = len(Mistake)
    figures["of which were found"] = len(Mistake) - len(unseen)
    violations += [f"not found: {mistake}" for mistake in unseen]
    return Proof(
        name="exhaustive",
        promise="in no order of events, to these bounds, is a promise of the commit broken or an end out of reach",
        cases=states,
        violations=violations,
        figures=figures,
    )


def _named(bounds: Bounds) -> str:
    parts = [f"{bounds.items} inputs", f"{bounds.crashes} crashes"]
    return ", ".join([*parts, *(["a command"] if bounds.asks else []), *(["tells"] if bounds.tells else [])])


def main(arguments: list[str] | None = None) -> int:
    """One search, and the schedule that it has found."""
    parser = argparse.ArgumentParser(prog="python -m proofs.exhaustive", description=__doc__)
    parser.add_argument("--items", type=int, default=2)
    parser.add_argument("--crashes", type=int, default=1)
    parser.add_argument("--tells", action="store_true", help="the agent tells another one, too")
    parser.add_argument("--no-asks", dest="asks", action="store_false", help="without a command")
    options = parser.parse_args(arguments)
    bounds = Bounds(options.items, options.crashes, options.asks, options.tells)
    found = search_commits(bounds)
    print(f"{_named(bounds)}: {found.schedule()}" if found.complete else f"violation: {found.schedule()}")
    return 0 if found.complete else 1


if __name__ == "__main__":
    sys.exit(main())
