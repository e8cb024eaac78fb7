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
    """Runs them, with pytest; there are few marked ones, so `quick` runs them all as well. None may be skipped."""
    command = [sys.executable, "-m", "pytest", "-q", "-rs", "-n=2", "-m", "prove or hypothesis", "-p", "no:randomly"]
    environment = {**os.environ, "STIGMERGY_EXAMPLES": str(EXAMPLES_QUICK if quick else EXAMPLES)}
    done = subprocess.run([*command, "--timeout=3600"], capture_output=True, text=True, check=False, env=environment)
    said = done.stdout.strip().splitlines() or [done.stderr.strip()]
    passed = re.search(r"(\d+) passed", said[-1])
    return Proof(
        name="long_tests",
        promise="what is true of tests that are run each time is true of the long ones",
        cases=int(passed[1]) if passed else 0,
        violations=_violations(done.returncode, said),
    )


def _violations(code: int, said: list[str]) -> list[str]:
    wrong = [line for line in said if line.startswith(("FAILED", "ERROR", "SKIPPED"))]
    return wrong if code == 0 or wrong else [said[-1]]
