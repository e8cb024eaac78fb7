"""A few kills in every test run; `make prove` does a thousand. And a world that was lied to must say so."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from proofs.kill import Siege
from proofs.kill_node import Answered, Release

ROOT = Path(__file__).resolve().parents[2]
KILLS = 12


@pytest.mark.timeout(1200)
@pytest.mark.parametrize("journal", ["sqlite", pytest.param("segments", marks=pytest.mark.prove)])
def test_killed_again_and_again(journal: str) -> None:
    command = [sys.executable, "-m", "proofs.kill", "--kills", str(KILLS), "--seed", "2", "--journal", journal]
    done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    figures = json.loads(done.stdout)["figures"]
    # Otherwise it was no test: some kills must have come while something was on its way.
    assert figures["killed_with_writes_under_way"] > KILLS // 4
    assert figures["envelopes_sent_again"] > 0
    assert figures["events_acknowledged"] > 100
    assert figures["signatures_verified"] == figures["commits"]


class TestTheWorldNotices:
    """The checks themselves, against a world whose memory says something else than the journal."""

    @pytest.fixture
    def siege(self, tmp_path: Path) -> Siege:
        return Siege(tmp_path / "killed.db", seed=1)

    def test_another_answer_to_the_same_command(self, siege: Siege) -> None:
        siege._hear_answer(Answered("c1", 7, ""))
        siege._hear_answer(Answered("c1", 7, ""))
        assert siege.world.violations == []
        siege._hear_answer(Answered("c1", 8, ""))
        assert len(siege.world.violations) == 1

    def test_another_effect_under_the_same_sequence(self, siege: Siege) -> None:
        siege._receive_action(Release(1, "k1", 3))
        siege._receive_action(Release(1, "k1", 3))
        assert siege.world.violations == []
        assert siege.world.effects_repeated == 1
        siege._receive_action(Release(1, "k2", 6))
        assert len(siege.world.violations) == 1

    def test_marks_move_over_what_came_out_of_order(self, siege: Siege) -> None:
        siege._receive_action(Release(2, "k2", 6))
        assert siege.world.done_contiguous == 0
        siege._receive_action(Release(1, "k1", 3))
        assert siege.world.done_contiguous == 2

    @pytest.mark.timeout(1200)
    def test_a_journal_that_has_less_than_was_acknowledged(self, tmp_path: Path) -> None:
        script = (
            "import sys; from pathlib import Path; from proofs.kill import Siege; from proofs.kill_check import *\n"
            "siege = Siege(Path(sys.argv[1]), 3)\n"
            "while siege.world.next_number < 500: siege.live(0.05, count_from_ready=True)\n"  # for a snapshot
            "siege.finish()\n"
            "world = siege.world; check_journal(Path(sys.argv[1]), world, siege.stopped)\n"
            "assert world.violations == [], world.violations\n"
            "world.acknowledged += 1\n"
            "world.done[max(world.done) + 1] = ('again', world.done[1][1])\n"
            "check_journal(Path(sys.argv[1]), world, siege.stopped)\n"
            "print(len(world.violations), *world.violations, sep='\\n')\n"
        )
        command = [sys.executable, "-c", script, str(tmp_path / "killed.db")]
        done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, check=False)
        assert done.returncode == 0, done.stderr
        assert "1 acknowledged events are not in the log" in done.stdout
        assert "1 actions were carried out twice" in done.stdout
