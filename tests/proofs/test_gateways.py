"""The comparison of the proof must be able to fail; that it holds is tried in `tests/cli/test_gateway.py` and at length
in `make prove`."""

from typing import Any

import pytest

from proofs.gateways import compare

WELL = {"heard": 7, "skipped": 0, "doubled": 0, "moved": 0}


def test_what_is_well_is_well() -> None:
    assert compare("north", 7, WELL) == []


@pytest.mark.parametrize(
    ("wrong", "why"),
    [
        ({"heard": 6}, "7 were sent, 6 heard"),
        ({"skipped": 1}, "1 lost or out of order"),
        ({"doubled": 2}, "2 doubled"),
        ({"moved": 3}, "3 went up that the rule keeps back"),
    ],
)
def test_what_is_wrong_is_found(wrong: dict[str, Any], why: str) -> None:
    (found,) = compare("north", 7, {**WELL, **wrong})
    assert why in found


def test_a_region_that_knows_nothing_is_wrong() -> None:
    assert compare("north", 7, {}) != []
