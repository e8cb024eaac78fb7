"""H6: every interleaving of a small scope of claims: two or three claimants, crashes, lost answers, drift at the bound.

python -m proofs.claims
"""

from __future__ import annotations

import sys

from proofs.report import Proof
from rigs.claims_model import ClaimsModel, Faults
from stigmergy.sim.explore import explore

STATES_MAX = 800_000
STATES_MAX_QUICK = 60_000

SCOPES: dict[str, Faults] = {
    "lease and expiry, every clock": Faults(entries=4, all_clocks=True),
    "out of reach, sent again": Faults(entries=3, refusals=True, all_clocks=True),
    "answers lost, entries doubled": Faults(entries=4, repeats=1),
    "queue, offer, take, release": Faults(entries=5, waits=True, releases=True),
    "renewals": Faults(entries=4, renew=True),
    "a crash, and what the dead life still sends": Faults(entries=3, crashes=1),
    "a crash, and asking again": Faults(entries=3, crashes=1, asks=2),
    "a shorter lease": Faults(entries=2, asks=2, short_ms=250),
    "a shorter lease, and more": Faults(entries=3, asks=2, short_ms=250),
    "three claimants": Faults(entries=2, claimants=3),
    "three claimants in a queue": Faults(entries=3, claimants=3, waits=True, releases=True),
    "a pool of two, a queue": Faults(entries=5, claimants=3, pool=2, waits=True, releases=True),
    "a pool of two, a crash, and asking again": Faults(entries=4, pool=2, crashes=1, asks=2, waits=True),
    "a pool of two, answers lost": Faults(entries=4, pool=2, repeats=1, waits=True, releases=True),
}


def prove(*, quick: bool = False) -> Proof:
    """The proof as `make prove` runs it."""
    violations: list[str] = []
    lines: list[str] = []
    states = 0
    for name, faults in SCOPES.items():
        model = ClaimsModel(faults)
        found = explore(model, states_count_max=STATES_MAX_QUICK if quick else STATES_MAX)
        states += found.states
        seen = "all there are" if found.complete else "cut by the bound"
        lines.append(f"{name}: {found.states:,} states, {found.transitions:,} transitions, {seen}, depth {found.depth}")
        if found.counterexample is not None:
            violations.append(f"{name}: {found.schedule(model.describe)}")
    return Proof(
        name="claims",
        promise="in every order of a small scope nobody believes that it holds what the ledger has given to others",
        cases=states,
        violations=violations,
        figures={"scopes": lines, "states": states},
    )


def main() -> int:
    """The command line."""
    proof = prove(quick="--quick" in sys.argv)
    print(proof)
    return 0 if proof.holds else 1


if __name__ == "__main__":
    sys.exit(main())
