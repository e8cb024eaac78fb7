"""The proof of row 11, in small, and that it would notice."""

import pytest

from proofs.returning import History, Tally, run_histories
from stigmergy.crdt.causality import Context
from stigmergy.crdt.store import EMPTY, ReplicaStore
from tests.crdt.anti_entropy.fleet import Fleet


@pytest.mark.prove
def test_who_returns_revives_nothing_and_loses_nothing() -> None:
    tally, violations = run_histories(12, first=1000)
    assert violations == []
    assert tally.absences > 5
    assert tally.removals > 50
    assert tally.states_sent > 0


def test_what_is_revived_or_lost_is_seen() -> None:
    history = History(1, Tally())
    history.fleet.start()
    history.fleet["a"].add("there")
    history.removed["there"] = None
    history.added["not there"] = None
    wrong = history._judge()
    assert any("'there' was removed and is there" in one for one in wrong)
    assert any("'not there' was added and is not there" in one for one in wrong)


def test_forgetting_a_replica_would_revive_what_was_removed() -> None:
    """Why its entry stays in stores: without it, whoever was away brings back what was removed meanwhile."""
    fleet = Fleet("a b").start()
    fleet["a"].add("x")
    fleet["b"].add("y")
    fleet.run_until_converged(30)
    fleet.cut = lambda sender, to: True
    fleet["a"].remove("x")
    here, away = fleet["a"].replica().store, fleet["b"].replica().store
    assert here.join(away).live_count == 1
    left = Context.of(one for one in here.context.vector() if one[0] != fleet["a"].replica().id)
    forgetful = ReplicaStore(here.root, left, EMPTY._frontier, here.live_count, here.live_bytes, here._sum)
    assert forgetful.join(away).live_count == 2
