"""Row 6: one seed, one trace: in the same process, in another one, under other hash seeds.

Of a node in trouble, of whole fleets on a network (`stigmergy sim`), of claims on a ledger.

    python -m proofs.determinism
"""

from __future__ import annotations

import os
import subprocess
import sys
from importlib.metadata import entry_points
from pathlib import Path

from blake3 import blake3
from msgspec import structs

from proofs.report import Proof
from rigs.airspace import Airspace, fly
from rigs.trial import run_trial
from stigmergy.agents.codec import encode
from stigmergy.sim.simulation import GROUP, find_scenario, run_seed

SEEDS = 40
SEEDS_QUICK = 5
FLEETS_EVERY = 4
"""A fleet takes longer than a node: of so many seeds one is run with fleets, too."""
HASH_SEEDS = ("0", "1", "4711", "random")
ROOT = Path(__file__).resolve().parent.parent


def traces(seed: int) -> str:
    """One text for all that happens with this seed, wherever it is simulated."""
    found = [run_trial(seed).trace_hash]
    if seed % FLEETS_EVERY == 0:
        for name in sorted(entry.name for entry in entry_points(group=GROUP)):
            scenario = find_scenario(name)
            found.append(run_seed(structs.replace(scenario.setup, for_s=10.0), seed, scenario.test).trace)
        flight = fly(seed, Airspace(nodes=3, agents=12, cells=4, for_s=8.0, calm_s=4.0))
        found.append(blake3(encode(flight)).hexdigest()[:16])
    return "-".join(found)


def hashes_elsewhere(seeds: list[int], hash_seed: str) -> list[str]:
    """The traces of these seeds, computed in a fresh process."""
    path = os.pathsep.join((str(ROOT / "src"), str(ROOT)))
    environment = {**os.environ, "PYTHONHASHSEED": hash_seed, "PYTHONPATH": path}
    program = "import sys; from proofs.determinism import traces\nfor s in sys.argv[1:]: print(traces(int(s)))"
    command = [sys.executable, "-c", program, *map(str, seeds)]
    return subprocess.run(command, env=environment, capture_output=True, text=True, check=True).stdout.split()


def prove(*, quick: bool = False) -> Proof:
    """The proof as `make prove` runs it."""
    seeds = list(range(SEEDS_QUICK if quick else SEEDS))
    here = [traces(seed) for seed in seeds]
    violations: list[str] = []
    runs = {"again": [traces(seed) for seed in seeds]}
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
