"""Rows 24 and 14: 1,000 agents contend for airspace under partition, with clocks wrong in every way: no two holders.

python -m proofs.airspace

Every flight runs the shipping claims over a ledger on a bad line: nodes are cut off, crash, are held up; appends are
refused, unanswered, and land late. Monotonic clocks drift by as much as they may, wall clocks jump by an hour either
way, stand still, and begin in 1970. A last flight with clocks far beyond the bound shows that the check has teeth.
"""

from __future__ import annotations

import sys
from typing import Any

from msgspec import structs

from proofs.report import Proof
from rigs.airspace import Airspace, Flight, fly

LARGE = Airspace(nodes=20, agents=1_000, cells=300, for_s=60.0, calm_s=20.0, cuts_per_node=6, crashes=12, holdups=40)
SMALL = Airspace(nodes=6, agents=60, cells=15, for_s=30.0, calm_s=10.0)
LARGE_FLIGHTS = 2
SMALL_FLIGHTS = 40
SMALL_FLIGHTS_QUICK = 3
WILD = structs.replace(SMALL, drift_ppm=400_000)


def prove(*, quick: bool = False) -> Proof:
    """The proof as `make prove` runs it."""
    flights: list[Flight] = []
    for seed in range(0 if quick else LARGE_FLIGHTS):
        flights.append(fly(seed, LARGE))
    for seed in range(100, 100 + (SMALL_FLIGHTS_QUICK if quick else SMALL_FLIGHTS)):
        flights.append(fly(seed, SMALL))
    wild = sum(len(fly(seed, WILD).violations) for seed in range(3))
    violations = [one for flight in flights for one in flight.violations]
    if not wild:
        violations.append("clocks far beyond the bound led to no overlap: the check cannot see one")
    figures: dict[str, Any] = {
        "flights": len(flights),
        "agents in the largest": SMALL.agents if quick else LARGE.agents,
    }
    for name in structs.fields(Flight):
        if name.name not in ("violations", "digests"):
            figures[name.name.replace("_", " ")] = sum(getattr(flight, name.name) for flight in flights)
    figures["overlapping grants"] = sum("and so does" in one for one in violations)
    figures["overlaps with clocks beyond the bound"] = wild
    return Proof(
        name="airspace",
        promise="no cell has two holders, whatever the network and the clocks do, and no lease is over-extended",
        cases=sum(flight.grants for flight in flights),
        violations=violations,
        figures=figures,
    )


def main() -> int:
    """The command line."""
    proof = prove(quick="--quick" in sys.argv)
    print(proof)
    return 0 if proof.holds else 1


if __name__ == "__main__":
    sys.exit(main())
