"""The laws of each type against its specification: a few hundred of the cases of `proofs.crdt_laws`, and its teeth."""

from __future__ import annotations

from random import Random

import pytest
from msgspec.structs import replace

from proofs.crdt_laws import History, Part, check_part
from proofs.crdt_specifications import SPECIFICATIONS
from stigmergy.crdt.store import ReplicaStore

CASES = 150


@pytest.mark.parametrize("name", SPECIFICATIONS)
def test_replicas_converge_to_the_specification(name: str) -> None:
    outcome = check_part(Part(name, 0, CASES, 7))
    assert outcome.violations == []
    assert outcome.writes > CASES
    assert outcome.refused > 0, "nothing ever came too early"


def test_a_wrong_specification_is_found() -> None:
    wrong = SPECIFICATIONS["GCounter"]._replace(expected=len)
    with pytest.raises(AssertionError, match="expected"):
        History(wrong, Random(1)).run()


def test_removals_that_get_lost_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    apply = ReplicaStore.apply
    monkeypatch.setattr(ReplicaStore, "apply", lambda store, delta: apply(store, replace(delta, removed=())))
    assert check_part(Part("ORSet", 0, CASES, 7)).violations
