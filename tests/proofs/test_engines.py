"""The proof that both engines do the same: it says what it has tried, and a difference is a violation."""

from pathlib import Path

import pytest

from proofs import engines
from proofs.engines_both import Difference, Tried


@pytest.mark.prove
def test_it_tells_what_was_tried() -> None:
    proof = engines.prove(seed=7, programs=2, machine_codes=0)
    assert proof.holds
    assert proof.cases == proof.figures["inputs, plain Python"] == 2 * engines.INPUTS
    assert proof.figures["programs, machine code"] == 0


def test_a_difference_is_a_violation(monkeypatch: pytest.MonkeyPatch) -> None:
    def differs(seed: int, folder: Path, **options: object) -> Tried:
        raise Difference("input 3: other effects")

    monkeypatch.setattr(engines, "try_seed", differs)
    proof = engines.prove(seed=7, programs=100, machine_codes=0)
    assert not proof.holds
    assert len(proof.violations) == 5, "enough is enough"
    assert proof.violations[0] == "seed 7: input 3: other effects"
