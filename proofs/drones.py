"""Row 21, and the swarm: 200 seeds of faults in the simulator, and whole runs on real nodes with faults.

    python -m proofs.drones [--seeds 200] [--first N]

The simulator watches from outside: nobody too close, every parcel in a box once, every job to its end, the same trace
twice. The runs are those of `python -m apps.drones`, on processes that are killed; a checker that is not part of the
application judges them.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from typing import Any

from proofs.report import Proof
from proofs.traffic import ROOT, ask
from stigmergy.sim.campaign import Options, run_campaign

SEEDS, SEEDS_QUICK = 200, 4
SEEDS_AGAIN = 2
DRONES, MINUTES = 500, 3
DRONES_QUICK, MINUTES_QUICK = 40, 0.5
HASH_SEED = "4711"
SHOWN = ("jobs", "delivered", "lost", "doubled", "separation_violations", "least_distance_m", "reassignment_p99_s")


def simulate(count: int, first: int = 1) -> dict[str, Any]:
    """So many seeds of the swarm."""
    os.chdir(ROOT)
    campaign = run_campaign("drones", Options(), range(first, first + count), os.cpu_count() or 1)
    return {
        "seeds": count,
        "violations": [
            f"{violation} (stigmergy sim drones --seed {result.seed})"
            for result in campaign.failing
            for violation in result.violations
        ],
        "trace": campaign.trace[:16],
        "simulated hours": round(campaign.simulated_s / 3600, 1),
    }


def prove(*, quick: bool = False) -> Proof:
    """The proof as `make prove` runs it."""
    figures = simulate(SEEDS_QUICK if quick else SEEDS)
    violations = figures.pop("violations")
    here = run_campaign("drones", Options(), range(1, SEEDS_AGAIN + 1), 1).trace
    there = ask("stigmergy", "sim", "drones", "--seeds", f"1..{SEEDS_AGAIN}", "--json", hash_seed=HASH_SEED)
    if here != there.get("trace"):
        violations.append(f"trace {there.get('trace')} under PYTHONHASHSEED={HASH_SEED} instead of {here}")
    drones, minutes = (DRONES_QUICK, MINUTES_QUICK) if quick else (DRONES, MINUTES)
    flown = ask("apps.drones", "--drones", str(drones), "--minutes", str(minutes), "--faults", "all", "--json")
    if flown.get("violations", 1):
        violations.append(f"python -m apps.drones: {flown.get('details') or flown.get('error')}")
    return Proof(
        name="drones",
        promise="nobody is too close, every parcel is delivered once, every job comes to its end, whatever breaks",
        cases=figures.pop("seeds"),
        violations=violations,
        figures={**figures, **{key: flown.get(key) for key in SHOWN}},
    )


def main(arguments: list[str] | None = None) -> int:
    """Prints one JSON line; 1 if a promise was broken."""
    parser = argparse.ArgumentParser(prog="python -m proofs.drones", description=__doc__)
    parser.add_argument("--seeds", type=int, default=SEEDS)
    parser.add_argument("--first", type=int, default=1)
    options = parser.parse_args(arguments)
    found = simulate(options.seeds, options.first)
    print(json.dumps(found))
    return 1 if found["violations"] else 0


if __name__ == "__main__":
    sys.exit(main())
