"""Some kills of a node with compiled agents in every test run; `make prove` does a thousand."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from proofs.column_agents import Expected, Model
from proofs.column_node import Release
from proofs.column_receiver import Receiver

ROOT = Path(__file__).resolve().parents[2]
KILLS = 40


@pytest.mark.prove
@pytest.mark.timeout(1200)
def test_killed_again_and_again() -> None:
    command = [sys.executable, "-m", "proofs.column_kill", "--kills", str(KILLS), "--seed", "2"]
    done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    figures = json.loads(done.stdout)["figures"]
    # Otherwise it was no test: many kills must have come while something was on its way.
    assert figures["killed_with_writes_under_way"] > KILLS // 4
    assert figures["killed_with_large_writes_under_way"] > 3
    assert figures["batches_sent_again"] > KILLS // 2
    assert figures["actions_dropped_by_marks"] > KILLS // 2
    assert figures["snapshots_used"] > KILLS // 5
    assert figures["enrolments"] > 3
    assert figures["largest_commit_bytes"] > 1 << 15


class TestTheWorldNotices:
    """The checks themselves, against what did not happen or happened twice."""

    def test_an_action_that_comes_again_is_dropped_and_must_be_the_same(self) -> None:
        receiver = Receiver()
        assert receiver.receive(Release("1", 0, "act", [1, 2], [64, 128], [0, 0])) == []
        assert receiver.receive(Release("1", 0, "act", [1, 2], [64, 128], [0, 0])) == []
        assert (receiver.count, receiver.repeated) == (2, 2)
        assert len(receiver.receive(Release("1", 0, "act", [2], [192], [0]))) == 1

    def test_actions_that_are_missing_or_too_many(self) -> None:
        model, receiver = Model(), Receiver()
        for number in (64, 200):
            model.gauged("g-1", number)
        assert len(receiver.differences(model)) == 2
        receiver.receive(Release("1", 0, "act", [1], [64], [0]))
        receiver.receive(Release("2", 0, "warn", [2], [200], [2]))
        assert receiver.differences(model) == []
        receiver.receive(Release("3", 0, "act", [4], [64], [0]))
        assert [why.split(",")[0] for why in receiver.differences(model)] == [
            "1 acts are due",
            "shard 0: the sequences of actions have a gap",
        ]

    def test_the_model_depends_on_the_order(self) -> None:
        one, other = Model(), Model()
        for number in (1, 2):
            one.gauged("g-1", number)
            other.gauged("g-1", 3 - number)
        assert one.gauges["g-1"] == Expected(count=2, total=3, chain=33)
        assert other.gauges["g-1"] != one.gauges["g-1"]
        assert one.differences([]) == [
            f"Gauge/g-1 is None, and should be {Expected(count=2, total=3, chain=33)}",
        ]


TOO_EARLY = """
from rigs import node_process

async def deliver(self, live, frame):
    self._channel.send(node_process.Delivered(frame.last))
    await live.deliver(frame.envelope)

node_process.ToldNode._deliver = deliver
"""
RUN = """
from proofs.column_kill import kill_often
print(*kill_often(30, 5).violations, sep="\\n")
"""


@pytest.mark.prove
@pytest.mark.timeout(1200)
def test_a_node_that_acknowledges_too_early_is_found() -> None:
    command = [sys.executable, "-c", TOO_EARLY + RUN]
    done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, check=False)
    assert "was acknowledged, and only" in done.stdout, done.stdout + done.stderr
