"""The tests that take too long for every run: those that are marked `prove`, and properties with many examples."""

from __future__ import annotations

import os
import re
import subprocess
import sys

from proofs.report import Proof

EXAMPLES = 500
EXAMPLES_QUICK = 100


def prove(*, quick: bool = False) -> Proof:
    """Runs them, with pytest; there are few marked ones, so `quick` runs them all as well."""
    command = [sys.executable, "-m", "pytest", "-q", "-n=0", "-m", "prove or hypothesis", "-p", "no:randomly"]
    environment = {**os.environ, "STIGMERGY_EXAMPLES": str(EXAMPLES_QUICK if quick else EXAMPLES)}
    done = subprocess.run([*command, "--timeout=3600"], capture_output=True, text=True, check=False, env=environment)
    said = done.stdout.strip().splitlines() or [done.stderr.strip()]
    passed = re.search(r"(\d+) passed", said[-1])
    return Proof(
        name="long_tests",
        promise="what is true of tests that are run each time is true of the long ones",
        cases=int(passed[1]) if passed else 0,
        violations=[] if done.returncode == 0 else [line for line in said if line.startswith("FAILED")] or [said[-1]],
    )
