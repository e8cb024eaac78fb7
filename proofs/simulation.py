"""Row 5: many seeds of a whole node at work while everything goes wrong; no promise is broken, everything ends.

Each seed draws a workload, settings, and faults: power loss at any call, torn and lost writes, kills, EIO, full disks,
stalls, clocks that jump or start in 1970, pauses, envelopes lost, doubled and overtaken, devices that fail. Every third
seed has compiled agents among the others, fed with column batches that are lost, doubled and overtaken, too.

    python -m proofs.simulation --seeds 10000 [--first N] [--processes 2]
"""

from __future__ import annotations

import argparse
import functools
import os
import sys
import time
from concurrent.futures import ProcessPoolExecutor
from typing import Any

from proofs.report import Proof
from rigs.gauges import KIND, Gauge
from rigs.trial import TrialResult, run_trial
from stigmergy import Fleet
from stigmergy.agents.plans import AgentPlan

SEEDS = 10_000
SEEDS_QUICK = 200
CHUNK = 20
SEGMENTS_EVERY = 4
"""Every so many seeds the journal is one in segments."""
GAUGES_EVERY = 3
"""Every so many seeds there are compiled agents as well, fed with column batches."""


@functools.cache
def gauge_plan() -> AgentPlan:
    """Gauges in machine code, made ready once a process."""
    fleet = Fleet("gauges", agents=[Gauge], compiled=True)
    fleet.prepare(lambda _: None)
    return fleet.plans[KIND]


def try_seeds(first: int, count: int) -> tuple[dict[str, int], list[TrialResult]]:
    """Runs so many seeds; returns the sums of their counts and the trials that went wrong."""
    totals: dict[str, int] = {}
    failed: list[TrialResult] = []
    for seed in range(first, first + count):
        gauges = gauge_plan() if seed % GAUGES_EVERY == 0 else None
        result = run_trial(seed, in_segments=seed % SEGMENTS_EVERY == 0, gauges=gauges)
        for name, value in result.counts.items():
            totals[name] = totals.get(name, 0) + value
        if result.violations:
            failed.append(result)
    return totals, failed


def run(count: int = SEEDS, first: int = 0, processes: int | None = None) -> dict[str, Any]:
    """Runs so many seeds on all cores; returns figures and what was found."""
    begin_s = time.monotonic()
    chunks = [(number, min(CHUNK, first + count - number)) for number in range(first, first + count, CHUNK)]
    totals: dict[str, int] = {}
    failed: list[TrialResult] = []
    with ProcessPoolExecutor(processes or os.cpu_count() or 1) as pool:
        for sums, wrong in pool.map(try_seeds, *zip(*chunks, strict=True)):
            failed += wrong
            for name, value in sums.items():
                totals[name] = totals.get(name, 0) + value
    seconds = time.monotonic() - begin_s
    return {
        "seeds": count,
        "seeds per second": round(count / seconds, 1),
        "violations": [f"seed {result.seed}: {violation}" for result in failed for violation in result.violations],
        "failed": [str(result) for result in failed],
        **totals,
    }


def prove(*, quick: bool = False) -> Proof:
    """The proof as `make prove` runs it."""
    figures = run(SEEDS_QUICK if quick else SEEDS, first=1_000_000)
    figures["failed"] = figures["failed"][:2]
    return Proof(
        name="simulation",
        promise="whatever the seed lets go wrong, no promise is broken and everything comes to its end",
        cases=figures.pop("seeds"),
        violations=figures.pop("violations"),
        figures=figures,
    )


def main() -> int:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=1_000)
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--processes", type=int, default=None)
    arguments = parser.parse_args()
    figures = run(arguments.seeds, arguments.first, arguments.processes)
    for failed in figures.pop("failed"):
        print(failed, end="\n\n")
    for name, value in figures.items():
        print(f"{name:24} {value}")
    return 1 if figures["violations"] else 0


if __name__ == "__main__":
    sys.exit(main())
