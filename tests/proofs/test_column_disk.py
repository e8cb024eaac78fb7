"""Compiled agents on a failing disk: some losses of power, failed calls, flipped bits; `make prove` does them all."""

from functools import cache

import pytest

from proofs.column_agents import ready_fleet
from proofs.column_disk import Subject, fail_calls, flip_bits, lose_power
from stigmergy import Fleet

FLIPS = 90


@cache
def fleet() -> Fleet:
    return ready_fleet()


@pytest.mark.prove
def test_power_is_lost_and_nothing_else() -> None:
    figures, violations = lose_power(fleet(), 20, lying=2, seed=1_000)
    assert violations == []
    assert figures["in the middle of a large frame"] > 2
    assert figures["lies found"] == 2
    assert figures["actions"] > 500


@pytest.mark.prove
def test_calls_fail_in_turn() -> None:
    figures, violations = fail_calls(fleet(), every=18)
    assert violations == []
    assert figures["failed calls"] > 20
    assert figures["after which it was started again"] > 2


@pytest.mark.prove
def test_no_flipped_bit_leads_to_another_state() -> None:
    figures, violations = flip_bits(fleet(), FLIPS, seed=3)
    assert violations == []
    for part in ("header", "index", "bodies"):
        assert figures[f"large frame, {part}: refused"] >= FLIPS // 10
    assert figures["large frame, filling: same"] >= FLIPS // 10
    assert figures["snapshot: same"] > 0


def test_another_state_would_be_noticed() -> None:
    """The control: without its last segment and its mark it is a whole journal, and not the one that was left."""
    subject = Subject(fleet())
    assert subject.outcome(subject.image) == "same"
    last = max(path for path in subject.image if path.endswith(".log"))
    shorter = {path: data for path, data in subject.image.items() if path not in (last, "fleet-mark")}
    shorter = {path: data for path, data in shorter.items() if "snapshot" not in path}
    assert subject.outcome(shorter).startswith("violation: recovered silently")
