"""A few kills of processes that share a fleet in every test run, many in `make prove`; and the comparison can fail."""

from typing import Any

import pytest

from proofs.processes import compare, kill_on
from proofs.processes_node import SHARDS
from stigmergy.shard.state import shard_of

KILLS = 8
TO = "Relay/1"


@pytest.mark.timeout(1200)
@pytest.mark.parametrize(
    ("journal", "processes"), [("sqlite", 2), pytest.param("segments", 3, marks=pytest.mark.prove)]
)
def test_killed_again_and_again(journal: str, processes: int) -> None:
    proof = kill_on(journal, KILLS, seed=2, processes=processes)
    assert proof.violations == []
    # Otherwise it was no test.
    assert proof.figures["kills"] == KILLS
    assert proof.figures["asked_again"] > 0
    assert proof.figures["answered"] > 50
    assert proof.figures["tells_between_processes"] > 20


def entry(agent: str, kind: str, **fields: Any) -> dict[str, Any]:
    return {"agent": agent, "shard": shard_of(agent, SHARDS), "type": f"{kind}@1", "fields": fields}


def log(counted: list[int], heard: list[int]) -> list[dict[str, Any]]:
    return [
        *(entry("Relay/0", "Counted", number=number, to=TO) for number in counted),
        *(entry(TO, "Heard", by="Relay/0", number=number) for number in heard),
    ]


@pytest.mark.parametrize(
    ("counted", "heard", "word"),
    [
        ([1, 2], [1, 2], "answered commands are lost"),
        ([1, 2, 3, 3], [1, 2, 3], "in the log twice"),
        ([2, 1, 3], [2, 1, 3], "out of order"),
        ([1, 2, 3], [1, 3], "1 tells are lost"),
        ([1, 2, 3], [1, 2, 2, 3], "arrived twice"),
        ([1, 2, 3], [1, 3, 2], "arrived out of order"),
        ([1, 2, 3], [1, 2, 3, 4], "from nowhere"),
    ],
)
def test_comparison_notices(counted: list[int], heard: list[int], word: str) -> None:
    assert word in compare({"Relay/0": [1, 2, 3]}, log(counted, heard))[0]


def test_what_was_not_answered_may_be_there() -> None:
    assert compare({"Relay/0": [1, 2]}, log([1, 2, 3], [1, 2, 3])) == []
