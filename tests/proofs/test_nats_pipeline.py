"""One leader and the node killed among the long tests, a hundred in the proof itself; and the comparison can fail."""

from __future__ import annotations

from pathlib import Path

import pytest

from proofs import nats_pipeline
from proofs.nats_pipeline import Pipeline, kill_leaders
from proofs.nats_pipeline_node import Released
from stigmergy.testing.nats import NatsCluster


@pytest.mark.prove
@pytest.mark.timeout(1200)
def test_leader_and_node_are_killed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(nats_pipeline, "NODE_KILL_EVERY", 1)
    proof = kill_leaders(1, seed=2)
    assert proof.violations == []
    # Otherwise it was no test.
    assert proof.figures["kills"] == proof.figures["node_kills"] == 1
    assert proof.figures["effects"] == proof.figures["inputs"] > 50
    assert proof.figures["repeated_and_taken"] > 0


@pytest.fixture
def pipeline(tmp_path: Path) -> Pipeline:
    """One whose two inputs had their effects."""
    pipeline = Pipeline(NatsCluster([]), tmp_path, seed=1)
    pipeline.sent = {("s0", 1): 0.0, ("s0", 2): 0.0}
    pipeline.take(Released("a", 1, "s0", 1))
    pipeline.take(Released("b", 2, "s0", 2))
    return pipeline


def test_repeated_effects_are_dropped(pipeline: Pipeline) -> None:
    pipeline.take(Released("a", 1, "s0", 1))
    pipeline.compare()
    assert pipeline.violations == []
    assert (pipeline.tally.effects, pipeline.tally.effects_repeated) == (2, 1)


def test_what_goes_wrong_is_noticed(pipeline: Pipeline) -> None:
    pipeline.sent["s1", 1] = 0.0
    pipeline.take(Released("c", 4, "s0", 2))
    pipeline.take(Released("c", 5, "s9", 9))
    pipeline.take(Released("z", 1, "s0", 7))
    pipeline.compare()
    said = " ".join(pipeline.violations)
    for word in ("came as", "no effect", "two effects", "no input", "gaps", "same key"):
        assert word in said
