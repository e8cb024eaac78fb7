"""Row 6: one seed, one trace: in the same process, in another one, under other hash seeds.

python -m proofs.determinism
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from proofs.report import Proof
from stigmergy.sim.trial import run_trial

SEEDS = 40
SEEDS_QUICK = 5
HASH_SEEDS = ("0", "1", "4711", "random")
_PROGRAM = (
    "import sys; from stigmergy.sim.trial import run_trial\nfor s in sys.argv[1:]: print(run_trial(int(s)).trace_hash)"
)


def hashes_elsewhere(seeds: list[int], hash_seed: str) -> list[str]:
    """The trace hashes of these seeds, computed in a fresh process."""
    source = Path(__file__).resolve().parent.parent / "src"
    environment = {**os.environ, "PYTHONHASHSEED": hash_seed, "PYTHONPATH": str(source)}
    command = [sys.executable, "-c", _PROGRAM, *map(str, seeds)]
    return subprocess.run(command, env=environment, capture_output=True, text=True, check=True).stdout.split()


def prove(*, quick: bool = False) -> Proof:
    """The proof as `make prove` runs it."""
    seeds = list(range(SEEDS_QUICK if quick else SEEDS))
    here = [run_trial(seed).trace_hash for seed in seeds]
    violations: list[str] = []
    runs = {"again": [run_trial(seed).trace_hash for seed in seeds]}
    runs.update({f"PYTHONHASHSEED={hash_seed}": hashes_elsewhere(seeds, hash_seed) for hash_seed in HASH_SEEDS})
    for name, hashes in runs.items():
        for seed, left, right in zip(seeds, here, hashes, strict=True):
            if left != right:
                violations.append(f"seed {seed}, {name}: {right} instead of {left}")
    return Proof(
        name="determinism",
        promise="the same seed gives the same trace, whatever the process and its hash seed",
        cases=len(seeds) * len(runs),
        violations=violations,
        figures={"seeds": len(seeds), "processes": 1 + len(HASH_SEEDS), "different traces": len(set(here))},
    )


def main() -> int:
    """The command line."""
    proof = prove()
    print(proof)
    return 0 if proof.holds else 1


if __name__ == "__main__":
    sys.exit(main())
