"""A few of the histories that `make prove` lives by the ten thousand, and the bugs that they would find."""

from __future__ import annotations

from typing import Any

import pytest

from proofs.replay import HistoriesChecked, check_histories
from stigmergy.agents.codec import encode
from stigmergy.shard import dispatch as handling
from stigmergy.shard import draft as outcome
from stigmergy.shard import snapshot


def test_replay_and_snapshots_end_in_the_state_that_was_lived() -> None:
    checked = check_histories(60, seed=20_000)
    assert checked.histories == 60
    assert checked.failures > 400
    assert checked.snapshots > 120
    assert "60 histories with" in str(checked)


def test_the_result_says_how_fast_it_was() -> None:
    shown = str(HistoriesChecked(histories=10, commits=1, events=2, failures=3, snapshots=4, seconds=2.0))
    assert shown.endswith("all replays alike (5 histories/s)")


def skip_fold_of_facts(agent_plan: Any, agent: Any, event: Any, now_ns: int) -> Any:
    return agent


def always_same(value: Any) -> bytes:
    return b""


class LastImageWins(snapshot.SnapshotWriter):
    def keep_images(self, touched: Any) -> None:
        self._images.update(touched)


@pytest.mark.parametrize(
    ("module", "name", "bug"),
    [
        (handling, "fold_fact", skip_fold_of_facts),
        (outcome, "canonical_bytes", always_same),
        (snapshot, "canonical_bytes", lambda value: encode(str(value))),
    ],
)
def test_a_planted_bug_is_found(monkeypatch: pytest.MonkeyPatch, module: Any, name: str, bug: Any) -> None:
    monkeypatch.setattr(module, name, bug)
    with pytest.raises(AssertionError, match=r"repeat it with check_histories\(1, \d+\)"):
        check_histories(300, seed=0)


def test_a_snapshot_that_takes_the_wrong_images_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("proofs.replay.SnapshotWriter", LastImageWins)
    with pytest.raises(AssertionError, match="is not the state that was lived"):
        check_histories(300, seed=0)
