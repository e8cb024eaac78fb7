"""Row 2: power is lost 200 times while a fleet works; nothing that was acknowledged is lost, nothing is done twice.

The disk forgets what was not synced, and tears what was being written. The counterproof: on a disk that only says that
it has synced, the very same trials must find losses; otherwise they would prove nothing.

    python -m proofs.power_loss --losses 200 [--seed N] [--journal sqlite|segments]
"""

from __future__ import annotations

import argparse
import sys
from typing import Any

from proofs.report import Proof
from rigs.trial import run_trial

LOSSES = 200
LOSSES_QUICK = 30
LYING_TRIALS = 20
LYING_TRIALS_QUICK = 5


def run(
    count: int = LOSSES, seed: int = 0, lying_trials: int = LYING_TRIALS, *, in_segments: bool = False
) -> dict[str, Any]:
    """Loses power so many times; returns figures and what was found."""
    losses = trials = 0
    totals: dict[str, int] = {}
    violations: list[str] = []
    while losses < count and not violations:
        result = run_trial(seed + trials, power_only=True, in_segments=in_segments)
        trials += 1
        losses += result.counts["power losses"]
        for name in ("acknowledged", "answered", "carried out", "repeated", "groups", "events"):
            totals[name] = totals.get(name, 0) + result.counts[name]
        violations += [f"seed {result.seed}: {violation}" for violation in result.violations]
    caught = 0
    for number in range(lying_trials):
        lied = run_trial(seed + number, power_only=True, sync_lies=True, in_segments=in_segments)
        caught += bool(lied.violations)
    if caught < lying_trials:
        violations.append(f"with fsync switched off, only {caught} of {lying_trials} trials found a loss")
    return {
        "losses": losses,
        "trials": trials,
        "violations": violations,
        "lying_trials": lying_trials,
        "lying_trials_that_found_it": caught,
        **totals,
    }


def prove(*, quick: bool = False) -> Proof:
    """The proof as `make prove` runs it: on each kind of journal."""
    sizes = (LOSSES_QUICK, 0, LYING_TRIALS_QUICK) if quick else (LOSSES, 0, LYING_TRIALS)
    figures, in_segments = run(*sizes), run(*sizes, in_segments=True)
    figures["violations"] += [f"segments: {violation}" for violation in in_segments.pop("violations")]
    figures |= {f"segments_{name}": value for name, value in in_segments.items()}
    return Proof(
        name="power_loss",
        promise="a loss of power takes nothing that was acknowledged, and makes nothing happen twice",
        cases=figures["losses"] + figures["segments_losses"],
        violations=figures.pop("violations"),
        figures=figures,
    )


def main() -> int:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--losses", type=int, default=LOSSES)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--journal", choices=("sqlite", "segments"), default="sqlite")
    arguments = parser.parse_args()
    figures = run(arguments.losses, arguments.seed, in_segments=arguments.journal == "segments")
    for name, value in figures.items():
        print(f"{name:28} {value}")
    return 1 if figures["violations"] else 0


if __name__ == "__main__":
    sys.exit(main())
