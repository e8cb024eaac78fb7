"""The tests that take too long for every run: those that are marked `prove`."""

from __future__ import annotations

import re
import subprocess
import sys

from proofs.report import Proof


def prove(*, quick: bool = False) -> Proof:
    """Runs them, with pytest; there are few, so `quick` runs them all as well."""
    del quick
    command = [sys.executable, "-m", "pytest", "-q", "-n=0", "-m", "prove", "-p", "no:randomly"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    said = done.stdout.strip().splitlines() or [done.stderr.strip()]
    passed = re.search(r"(\d+) passed", said[-1])
    return Proof(
        name="long_tests",
        promise="what is true of tests that are run each time is true of the long ones",
        cases=int(passed[1]) if passed else 0,
        violations=[] if done.returncode == 0 else [line for line in said if line.startswith("FAILED")] or [said[-1]],
    )
