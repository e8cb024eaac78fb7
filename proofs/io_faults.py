"""Row 3: every I/O call of a piece of work fails in turn, as EIO, ENOSPC, and a sync that fails.

The acknowledgement is withheld, every agent's safe action goes out, a restart resolves what was unknown, and a command
sent again has one answer. Each fault is tried on a system that goes on showing data whose sync failed (as Linux does)
and on one that does not.

    python -m proofs.io_faults
"""

from __future__ import annotations

import itertools
import sys
from typing import Any

from proofs.report import Proof
from rigs.io_trial import run_io_trial
from stigmergy.sim.disk import AfterFailedSync, DiskFault

FAULTS = (DiskFault.EIO, DiskFault.ENOSPC, DiskFault.POWER_LOSS, DiskFault.KILL)


def run(every: int = 1) -> dict[str, Any]:
    """Lets every n-th call fail in every way, on each kind of journal; returns figures and what was found."""
    figures: dict[str, Any] = {"cases": 0, "on segments": 0, "stopped": 0, "went on": 0, "safe actions at a stop": 0}
    violations: list[str] = []
    for in_segments, fault, after in itertools.product((False, True), FAULTS, AfterFailedSync):
        for call in range(1, run_io_trial(0, None, in_segments=in_segments).calls, every):
            result = run_io_trial(call, fault, after_failed_sync=after, in_segments=in_segments)
            if not result.reached:
                break
            figures["cases"] += 1
            figures["on segments"] += in_segments
            figures["stopped" if result.stopped else "went on"] += 1
            figures["safe actions at a stop"] += result.safe
            violations += [f"{'segments' if in_segments else 'sqlite'}: {found}" for found in result.violations]
    return {**figures, "violations": violations}


def prove(*, quick: bool = False) -> Proof:
    """The proof as `make prove` runs it."""
    figures = run(every=7 if quick else 1)
    return Proof(
        name="io_faults",
        promise="whatever call fails: no false acknowledgement, agents safe, the restart resolves it",
        cases=figures.pop("cases"),
        violations=figures.pop("violations"),
        figures=figures,
    )


def main() -> int:
    """The command line."""
    proof = prove()
    print(proof.cases, "faults", proof.figures)
    for violation in proof.violations:
        print("violation:", violation)
    return 0 if proof.holds else 1


if __name__ == "__main__":
    sys.exit(main())
