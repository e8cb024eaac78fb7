"""Row 21, and the traffic application: its lamps under 200 seeds of faults, its phases over a real broker, an outage.

    python -m proofs.traffic [--seeds 200] [--first N]

The simulator watches lamps from outside: never two greens, no clearance too short, red within T and a tick of silence,
vehicles neither lost nor doubled, everything flows again. The rest runs on real sockets, disks and a real broker.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

from proofs.report import Proof
from stigmergy.sim.campaign import Options, run_campaign

ROOT = Path(__file__).resolve().parent.parent
SEEDS, SEEDS_QUICK = 200, 6
SEEDS_AGAIN, SEEDS_AGAIN_QUICK = 10, 2
SECONDS, SECONDS_QUICK = 180, 20
HASH_SEED = "4711"
RUN_S_MAX = 1_200


def simulate(count: int, first: int = 1) -> dict[str, Any]:
    """So many seeds of the grid."""
    os.chdir(ROOT)
    campaign = run_campaign("traffic", Options(), range(first, first + count), os.cpu_count() or 1)
    return {
        "seeds": count,
        "violations": [
            f"{violation} (stigmergy sim traffic --seed {result.seed})"
            for result in campaign.failing
            for violation in result.violations
        ],
        "trace": campaign.trace[:16],
        "simulated hours": round(campaign.simulated_s / 3600, 1),
        "messages per second": round(campaign.messages / campaign.seconds),
    }


def ask(*command: str, hash_seed: str | None = None) -> dict[str, Any]:
    """What a command of ours prints as JSON."""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT / "src"), str(ROOT)])}
    if hash_seed is not None:
        environment["PYTHONHASHSEED"] = hash_seed
    done = subprocess.run(
        [sys.executable, "-m", *command],
        cwd=ROOT,
        env=environment,
        capture_output=True,
        text=True,
        timeout=RUN_S_MAX,
        check=False,
    )
    try:
        told: dict[str, Any] = json.loads(done.stdout)
    except ValueError:
        return {"holds": False, "error": (done.stderr or done.stdout)[-300:]}
    return told


def prove(*, quick: bool = False) -> Proof:
    """The proof as `make prove` runs it."""
    figures = simulate(SEEDS_QUICK if quick else SEEDS)
    violations = figures.pop("violations")
    again = SEEDS_AGAIN_QUICK if quick else SEEDS_AGAIN
    here = run_campaign("traffic", Options(), range(1, again + 1), 1).trace
    there = ask("stigmergy", "sim", "traffic", "--seeds", f"1..{again}", "--json", hash_seed=HASH_SEED).get("trace")
    if here != there:
        violations.append(f"trace {there} under PYTHONHASHSEED={HASH_SEED} instead of {here}")
    seconds = str(SECONDS_QUICK if quick else SECONDS)
    took = ask("apps.traffic", "latency", "--seconds", seconds, "--compare", "--json")
    outage = ask("apps.traffic", "outage", "--json")
    for name, found in (("latency", took), ("outage", outage)):
        if not found.get("holds"):
            violations.append(f"{name}: {found}")
    for name in ("p50_ms", "p99_ms", "fdatasync_p50_ms", "fdatasync_share", "memory_p99_ms", "load"):
        figures[f"phase to neighbour {name}"] = took.get(name)
    figures["alone after s"] = outage.get("alone_s")
    figures["together again after s"] = outage.get("together_s")
    return Proof(
        name="traffic",
        promise="lamps are lawful whatever breaks, red in time, and traffic flows again; a phase is at its neighbours "
        "in 30 ms, and a dead broker leaves everybody safe",
        cases=figures.pop("seeds"),
        violations=violations,
        figures=figures,
    )


def main() -> int:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=SEEDS)
    parser.add_argument("--first", type=int, default=1)
    arguments = parser.parse_args()
    figures = simulate(arguments.seeds, arguments.first)
    for name, value in figures.items():
        print(f"{name:28} {value}")
    return 1 if figures["violations"] else 0


if __name__ == "__main__":
    sys.exit(main())
