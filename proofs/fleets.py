"""Rows 5, 6 and 21: many seeds of whole fleets while everything goes wrong; no promise is broken, everything ends.

Each seed draws faults for several machines, their disks, clocks and links, for a fleet of drones (commands, timers,
actions, news over the bus, safe actions on silence) and for a garage (shared sets and totals, a gate that is claimed).
Some of the garage's seeds have a liar as well. Some seeds are run once more in a process with another hash seed.

    python -m proofs.fleets --seeds 1000 [--first N] [--processes 2]
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
from stigmergy.sim.campaign import Campaign, Options, run_campaign

SEEDS = 5_000
"""Of each scenario."""
SEEDS_QUICK = 30
SEEDS_AGAIN = 40
SEEDS_AGAIN_QUICK = 3
RUNS = (("drones", Options()), ("garage", Options()), ("garage", Options(faults="all,liar")))
HASH_SEED = "4711"


def run(count: int, first: int = 1, processes: int | None = None) -> dict[str, Any]:
    """Runs so many seeds of each scenario; a tenth of them with a liar."""
    figures: dict[str, Any] = {"seeds": 0, "violations": [], "messages": 0}
    jobs = processes or os.cpu_count() or 1
    seconds = simulated_s = 0.0
    for name, options in RUNS:
        some = count if options.faults is None else max(1, count // 10)
        campaign = run_campaign(name, options, range(first, first + some), jobs)
        figures["seeds"] += some
        figures["violations"] += _violations(name, options, campaign)
        figures["messages"] += campaign.messages
        figures[f"trace of {name}{'' if options.faults is None else ' with a liar'}"] = campaign.trace[:16]
        seconds += campaign.seconds
        simulated_s += campaign.simulated_s
    figures["simulated hours"] = round(simulated_s / 3600, 1)
    figures["messages per second"] = round(figures["messages"] / seconds)
    figures["seeds per second"] = round(figures["seeds"] / seconds, 1)
    return figures


def traces_elsewhere(name: str, count: int) -> tuple[str, str]:
    """The hash over so many seeds here, and in a fresh process under another hash seed."""
    here = run_campaign(name, Options(), range(1, count + 1), 1).trace
    source = Path(__file__).resolve().parent.parent / "src"
    command = [sys.executable, "-m", "stigmergy", "sim", name, "--seeds", f"1..{count}", "--jobs", "2", "--json"]
    environment = {**os.environ, "PYTHONHASHSEED": HASH_SEED, "PYTHONPATH": str(source)}
    told = subprocess.run(command, env=environment, capture_output=True, text=True, check=False).stdout
    return here, str(json.loads(told)["trace"])


def prove(*, quick: bool = False) -> Proof:
    """The proof as `make prove` runs it."""
    figures = run(SEEDS_QUICK if quick else SEEDS, first=1_000_000)
    violations = figures.pop("violations")
    for name in ("drones", "garage"):
        here, there = traces_elsewhere(name, SEEDS_AGAIN_QUICK if quick else SEEDS_AGAIN)
        if here != there:
            violations.append(f"{name}: trace {there} under PYTHONHASHSEED={HASH_SEED} instead of {here}")
    return Proof(
        name="fleets",
        promise="whatever a seed lets go wrong, a fleet keeps its promises and comes to its end; one seed, one trace",
        cases=figures.pop("seeds"),
        violations=violations,
        figures=figures,
    )


def _violations(name: str, options: Options, campaign: Campaign) -> list[str]:
    words = " ".join(options.words())
    return [
        f"{violation} (stigmergy sim {name} --seed {result.seed} {words})"
        for result in campaign.failing
        for violation in result.violations
    ]


def main() -> int:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=200)
    parser.add_argument("--first", type=int, default=1)
    parser.add_argument("--processes", type=int, default=None)
    arguments = parser.parse_args()
    figures = run(arguments.seeds, arguments.first, arguments.processes)
    for name, value in figures.items():
        print(f"{name:28} {value}")
    return 1 if figures["violations"] else 0


if __name__ == "__main__":
    sys.exit(main())
