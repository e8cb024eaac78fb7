"""The proofs of shared types: they run, and would say so if something did not hold."""

from __future__ import annotations

import pytest

from proofs import crdt_churn, crdt_laws
from proofs.crdt_specifications import SPECIFICATIONS


def test_every_type_gets_its_cases() -> None:
    outcomes = crdt_laws.check(("GCounter", "ORMap of sets"), 40, 1, 1)
    assert [(one.name, one.cases) for one in outcomes] == [("GCounter", 40), ("ORMap of sets", 40)]
    assert not any(one.violations for one in outcomes)


def test_all_types_have_a_specification() -> None:
    named = {name.split(" ")[0] for name in SPECIFICATIONS}
    assert named == {
        "GCounter", "PNCounter", "LWWRegister", "MVRegister", "EnableWinsFlag", "DisableWinsFlag", "ORSet", "ORMap",
    }  # fmt: skip


def test_churn_leaves_nothing_behind(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(crdt_churn, "WRITES_QUICK", 6_000)
    assert crdt_churn.prove(quick=True).holds
    monkeypatch.setattr(crdt_churn, "DOT_BYTES_MAX", 1)
    monkeypatch.setattr(crdt_churn, "REPLICA_BYTES_MAX", 1)
    assert not crdt_churn.prove(quick=True).holds
