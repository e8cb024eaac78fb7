"""Scorecard rows 24 and 14, small: drones contend for cells on a bad line, with clocks at the bound of their drift.

`make prove` flies 1,000 of them (proofs/airspace.py).
"""

from __future__ import annotations

import pytest
from msgspec import structs

from rigs.airspace import Airspace, fly

SMALL = Airspace(nodes=4, agents=32, cells=10, for_s=20.0, calm_s=8.0)


@pytest.mark.parametrize("seed", [1, 2])
def test_no_cell_has_two_holders(seed: int) -> None:
    flight = fly(seed, SMALL)
    assert flight.violations == []
    assert flight.grants > 40
    assert min(flight.losses, flight.released, flight.expired, flight.repeated, flight.cuts, flight.crashes) > 0
    assert flight.grants_in_the_calm > 0
    assert flight.digests == 1


def test_one_seed_is_one_run() -> None:
    tiny = structs.replace(SMALL, nodes=3, agents=9, cells=3, for_s=6.0, calm_s=3.0)
    assert fly(5, tiny) == fly(5, tiny)


def test_clocks_beyond_the_bound_are_what_the_margin_is_for() -> None:
    """The search has teeth: with clocks that drift far more than is allowed, somebody holds too long."""
    wild = structs.replace(SMALL, drift_ppm=400_000)
    assert any(fly(seed, wild).violations for seed in range(3))
