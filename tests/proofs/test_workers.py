"""Workers on a real server, as processes, added, killed and held up once each: one of the long tests of `make prove`.

What every run has of it: tests/cluster in virtual time, tests/cli/test_worker.py with processes.
"""

from typing import Any

import pytest

from proofs.workers import Siege, compare, trouble
from proofs.workers_node import SHARDS
from stigmergy.shard.homes import shard_of

DEEDS = ("kill", "hold", "add")
"""At the end all of them are stopped anyhow, each handing over to those that are left."""
TO = "Relay/1"


@pytest.mark.prove
@pytest.mark.timeout(1200)
def test_workers_come_go_die_and_sleep_under_load(capsys: pytest.CaptureFixture[str]) -> None:
    proof = trouble(len(DEEDS), seed=2, servers=1, deeds=DEEDS)
    assert proof.violations == []
    # Otherwise it was no test.
    assert proof.figures["deeds"] == dict.fromkeys(DEEDS, 1)
    assert proof.figures["asked_again"] > 0
    assert proof.figures["moved"] >= 4
    assert proof.figures["answered"] > 50
    with capsys.disabled():
        pauses = {name: value for name, value in proof.figures.items() if name.startswith("pause_ms")}
        print(f"\nworkers on one server, {proof.figures['answered']} commands: {pauses}")


def test_effects_that_did_not_come_or_came_under_two_keys_are_found() -> None:
    siege = Siege.__new__(Siege)
    siege.answered = {"Relay/1": [1, 2]}
    siege.bell = type("Bell", (), {"keys": {"a": ("Relay/1", 1), "b": ("Relay/1", 1)}})()
    assert siege.compare_effects() == [
        "the effect of ('Relay/1', 2) never came",
        "the effect of ('Relay/1', 1) came under 2 keys",
    ]


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
