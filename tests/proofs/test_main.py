"""The driver of the proofs: it runs, reports, skips loudly, and fails when a promise does not hold."""

import io
import json
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from rich.console import Console

from proofs.__main__ import BY_NAME, END_S, TIME_FACTOR, Missing, find, main, run_apart, show, show_all
from proofs.mutation import Survivor, Tally
from proofs.mutation_tests import digests, pytest_command, what_to_run
from proofs.report import Proof

ROOT = Path(__file__).resolve().parents[2]


def test_every_row_has_a_stated_time() -> None:
    assert all(row.minutes > 0 for row in BY_NAME.values())


@pytest.mark.parametrize("file", ["Makefile", "CONTRIBUTING.md"])
def test_the_time_of_a_night_is_stated_as_it_is(file: str) -> None:
    """`make nightly` runs all of them: what it says about hours must follow when a proof is added or takes longer."""
    hours = sum(row.minutes for row in BY_NAME.values()) / 60
    said = f"about {hours:.0f} hours on two cores, {TIME_FACTOR * hours:.0f} at most"
    assert said in (ROOT / file).read_text(), f"{file} must say: {said}"


def test_a_proof_that_is_not_there_is_named() -> None:
    with pytest.raises(Missing, match=r"proofs/nothing\.py is not there"):
        find("nothing")
    with pytest.raises(Missing, match=r"proofs/report\.py has no prove"):
        find("report")


def test_an_unknown_name_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["kills"])
    assert "'kills' is no proof; there are kill," in capsys.readouterr().err


@pytest.mark.timeout(1200)
def test_one_proof_for_machines() -> None:
    command = [sys.executable, "-m", "proofs", "crdt_churn", "--quick", "--json"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    outcome = json.loads(done.stdout)
    assert outcome["holds"]
    assert [proof["name"] for proof in outcome["proofs"]] == ["crdt_churn"]
    assert "crdt_churn: holds" in done.stderr


def test_a_process_that_ends_without_a_result_is_a_violation() -> None:
    proof = run_apart("nothing", quick=True, seconds_max=600.0)
    assert not proof.holds
    assert "without a result" in proof.violations[0]


def test_a_proof_that_takes_longer_than_its_time_fails_and_is_ended() -> None:
    """By its Ctrl-C, also where that is ignored by whoever runs us: otherwise it would go on for half a minute."""
    before_s = time.monotonic()
    ours = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        proof = run_apart("kill", quick=False, seconds_max=0.1)
    finally:
        signal.signal(signal.SIGINT, ours)
    assert not proof.holds
    assert "not done after 0.0 minutes" in proof.violations[0]
    assert time.monotonic() - before_s < END_S, "it ended by itself"


def test_nothing_tried_proves_nothing() -> None:
    assert not Proof(name="kill", promise="", cases=0).holds
    assert Proof(name="kill", promise="", cases=1).holds
    assert not Proof(name="kill", promise="", cases=1, violations=["lost"]).holds


def test_a_violation_is_shown() -> None:
    console = Console(record=True, width=120, file=io.StringIO())
    bad = Proof(name="kill", promise="nothing is lost", cases=3, violations=["event 7 is lost"], figures={"kills": 3})
    show(bad, console)
    show_all([bad], {"fuzz": "proofs/fuzz.py is not there"}, 61.0, console)
    text = console.export_text()
    assert "kill: DOES NOT HOLD" in text
    assert "violation: event 7 is lost" in text
    assert "does not hold" in text
    assert "SKIPPED: proofs/fuzz.py is not there" in text


def test_the_score_counts_what_was_tried() -> None:
    tally = Tally(possible=100, killed=9, survived=1, incompetent=5)
    assert tally.score == 0.9
    assert Tally().score == 0.0
    assert str(Survivor("src/x.py", 7, "NumberReplacer", 2)) == "src/x.py:7 NumberReplacer #2"


def test_the_own_tests_a_changed_module_come_first_and_then_those_of_its_package(tmp_path: Path) -> None:
    source = tmp_path / "src" / "stigmergy"
    for module in ("agents/windows", "shard/marks", "crdt/store"):
        path = source / f"{module}.py"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("one")
    before = digests(tmp_path)
    assert list(before) == ["agents/windows", "crdt/store", "shard/marks"]
    (source / "shard" / "marks.py").write_text("two")
    after = digests(tmp_path)
    assert [module for module in after if after[module] != before[module]] == ["shard/marks"]
    core, crdt = ["tests/agents", "tests/shard", "tests/testing"], ["tests/crdt", "tests/shard/test_sharing.py"]
    assert what_to_run(["shard/marks"], ROOT) == ["tests/shard/test_marks.py", *core]
    assert what_to_run(["crdt/store"], ROOT) == ["tests/crdt/test_store.py", *crdt]
    assert what_to_run(["agents/now"], ROOT) == core, "it has no file of its own"
    assert pytest_command("tests/crdt")[-1] == "tests/crdt"
