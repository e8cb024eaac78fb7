"""Many seeds of everything going wrong; the same seed, the same trace; and planted bugs that must be found."""

import itertools
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest

from rigs.trial import run_trial
from stigmergy.devices.staleness import Staleness
from stigmergy.journal import recovery
from stigmergy.node.committer import Committer
from stigmergy.node.effector import Effector
from stigmergy.node.host import Host
from stigmergy.shard import snapshot
from stigmergy.shard.marks import Marks
from stigmergy.shard.memory import Answers
from stigmergy.shard.outbox import Outbox

SEEDS = 18
"""`make prove` tries ten thousand (proofs/simulation.py)."""
CHUNK = 6


@pytest.mark.parametrize(
    "first", [0, *(pytest.param(one, marks=pytest.mark.prove) for one in range(CHUNK, SEEDS, CHUNK))]
)
def test_no_promise_is_broken_whatever_goes_wrong(first: int) -> None:
    for seed in range(first, first + CHUNK):
        result = run_trial(seed)
        assert not result.violations, str(result)
        assert result.counts["acknowledged"] > 0


@pytest.mark.parametrize("shards", [1, 4])
def test_without_faults_everything_comes_to_its_end(shards: int) -> None:
    result = run_trial(1, faults=False, shards=shards)
    assert not result.violations, str(result)
    assert result.counts["lives"] == 2


# Row 2: power loss.


def test_nothing_acknowledged_is_lost_over_thirty_losses_of_power() -> None:
    losses = 0
    for seed in itertools.count(5_000):
        result = run_trial(seed, power_only=True)
        assert not result.violations, str(result)
        losses += result.counts["power losses"]
        if losses >= 30:
            return


def test_on_a_disk_that_lies_about_syncs_the_same_trial_finds_a_loss() -> None:
    found = [run_trial(seed, power_only=True, sync_lies=True).violations for seed in range(5_000, 5_004)]
    assert all(found)


# Row 6: the same seed, the same trace.


@pytest.mark.parametrize("seed", [3, 11])
def test_the_same_seed_has_the_same_trace_in_another_process_with_another_hash_seed(seed: int) -> None:
    here = run_trial(seed)
    again = run_trial(seed)
    assert here.trace_hash == again.trace_hash
    program = f"from rigs.trial import run_trial; print(run_trial({seed}).trace_hash)"
    source = Path(__file__).resolve().parents[2] / "src"
    environment = {**os.environ, "PYTHONHASHSEED": "4711", "PYTHONPATH": str(source)}
    there = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, env=environment)
    assert there.stdout.strip() == here.trace_hash


def test_another_seed_has_another_trace() -> None:
    assert run_trial(3).trace_hash != run_trial(4).trace_hash


def test_a_failing_trial_names_its_seed_and_shows_the_end_of_the_timeline(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Answers, "get", lambda self, *key: None)
    result = next(result for result in map(run_trial, range(20)) if result.violations)
    text = str(result)
    assert f"seed {result.seed}" in text
    assert "answers_are_stable" in text
    assert "node durable" in text


# A check that cannot fail checks nothing: each bug below must be found within a few seeds.


def effects_before_the_journal(patch: pytest.MonkeyPatch) -> None:
    start = Committer._start

    def early(self: Any, write: Any, monotonic_ns: int) -> None:
        if self.flight is not None:
            self._durable(type(self.flight)(self.flight.readies, []))
        start(self, write, monotonic_ns)

    patch.setattr(Committer, "_start", early)


def acknowledged_before_the_journal(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Committer, "notify", lambda self, ticket, *, written: ticket.resolve())


def refused_but_acknowledged(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Host, "_refuse", lambda self, stepped, letters: None)


def repeated_inputs_are_taken(patch: pytest.MonkeyPatch) -> None:
    admit = Marks.admit
    patch.setattr(Marks, "admit", lambda self, *place: min(0, admit(self, *place)))


def answers_are_forgotten(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Answers, "get", lambda self, *key: None)


def tokens_change_with_the_attempt(patch: pytest.MonkeyPatch) -> None:
    order = Effector._order

    def other(self: Any, hand: Any, shard: int, pending: Any, attempt: int) -> Any:
        made = order(self, hand, shard, pending, attempt)
        return msgspec.structs.replace(made, token=made.token + attempt)

    patch.setattr(Effector, "_order", other)


def queries_show_what_is_not_durable(patch: pytest.MonkeyPatch) -> None:
    def newest(self: Any, address: str) -> Any:
        return self.shards[self.intake.shard_of(address)].state.agents.get(address)

    patch.setattr(Host, "durable_image", newest)


def a_snapshot_forgets_the_answers(patch: pytest.MonkeyPatch) -> None:
    load_tables = snapshot.load_tables

    def forgetful(state: Any, tables: Any) -> None:
        load_tables(state, tables)
        state.answers.restore([])

    patch.setattr(recovery, "load_tables", forgetful)


def silence_goes_unnoticed(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Staleness, "due", lambda self, monotonic_ns: self._watches.clear() or [])


def what_is_owed_is_forgotten_at_the_start(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Outbox, "owed", lambda self: iter(()))


PLANTS: tuple[Callable[[pytest.MonkeyPatch], None], ...] = (
    effects_before_the_journal,
    acknowledged_before_the_journal,
    refused_but_acknowledged,
    repeated_inputs_are_taken,
    answers_are_forgotten,
    tokens_change_with_the_attempt,
    queries_show_what_is_not_durable,
    a_snapshot_forgets_the_answers,
    silence_goes_unnoticed,
    what_is_owed_is_forgotten_at_the_start,
)
FEW = 2
"""So many show in every run that the trial can fail; the long proofs plant the others."""


@pytest.mark.parametrize(
    "plant",
    [*PLANTS[:FEW], *(pytest.param(plant, marks=pytest.mark.prove) for plant in PLANTS[FEW:])],
    ids=lambda plant: plant.__name__,
)
def test_a_planted_bug_is_found(plant: Callable[[pytest.MonkeyPatch], None], monkeypatch: pytest.MonkeyPatch) -> None:
    plant(monkeypatch)
    assert any(run_trial(seed).violations for seed in range(60))
