"""The proof of membership has teeth: a fleet that is too slow or too loud is found."""

import pytest

from proofs import membership
from proofs.membership import Findings, prove_calm, prove_load


@pytest.mark.prove
def test_a_fleet_within_its_bounds_shows_figures(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(membership, "NODES", 52)
    found = Findings()
    prove_calm(found, 1)
    assert found.violations == []
    assert found.cases == 5
    assert len(found.gone_s) == 2 * 51


@pytest.mark.prove
def test_what_is_out_of_bounds_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(membership, "NODES", 52)
    monkeypatch.setattr(membership, "JOIN_S_MAX", 0.1)
    monkeypatch.setattr(membership, "HEAL_S_MAX", 0.1)
    found = Findings()
    prove_calm(found, 1)
    assert len(found.violations) == 2


def test_load_is_measured() -> None:
    found = Findings()
    prove_load(found, 5)
    assert 2 < found.loads[5].datagrams < 3
    assert 0 < found.loads[5].bytes < 1_000
