"""The proof of row 15 for shared state, in small."""

from proofs.deltas import MUTATIONS_QUICK, Trial, prove, run_trials


def test_nothing_bad_is_taken_and_everything_good_is() -> None:
    kinds, violations = run_trials(MUTATIONS_QUICK, seed=7)
    assert violations == []
    assert len(kinds) == 6
    assert min(kinds.values()) > 100


def test_a_bad_one_that_is_taken_is_seen() -> None:
    trial = Trial(1, trusted=True)
    trial._bad = lambda genuine, data: ("genuine", "author", data)  # type: ignore[method-assign]
    trial.victim.step = lambda sender, data: False  # type: ignore[method-assign]
    trial.run(10)
    assert "a genuine datagram was refused" in trial.violations[0]


def test_it_reports() -> None:
    proof = prove(quick=True)
    assert proof.holds
    assert proof.figures["refused"] == "100.000 %"
