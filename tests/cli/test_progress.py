"""Long jobs say how far they have come: on a terminal, and nowhere else."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.cli.conftest import DRONE, Folder
from tests.cli.terminal import in_terminal

JOB = """
import sys, time
from stigmergy.cli.display.output import Output
from stigmergy.cli.display.output import Progress
json, quiet_s, rounds = sys.argv[1] == "json", float(sys.argv[2]), int(sys.argv[3])
with Progress(Output(json=json), "sorting", "stones", quiet_s=quiet_s) as progress:
    for done in range(rounds):
        progress.show(done + 1200, None if rounds == 2 else 3000)
        time.sleep(0.11)
    if rounds == 3:
        raise KeyboardInterrupt
print("done")
"""


def test_a_terminal_sees_it_and_is_left_clean(tmp_path: Path) -> None:
    with in_terminal([sys.executable, "-c", JOB, "people", "0", "4"], tmp_path) as terminal:
        assert terminal.wait_end() == 0
        assert "sorting" in terminal.text
        assert "1,200 of 3,000 stones" in terminal.text
        # The line was erased and the cursor is shown again before anything else is printed.
        assert b"\x1b[2K" in terminal.written
        assert terminal.written.rindex(b"\x1b[?25h") < terminal.written.rindex(b"done")


def test_an_unknown_end(tmp_path: Path) -> None:
    with in_terminal([sys.executable, "-c", JOB, "people", "0", "2"], tmp_path) as terminal:
        assert terminal.wait_end() == 0
        assert "1,201 stones" in terminal.text


def test_an_interrupted_job_leaves_the_cursor(tmp_path: Path) -> None:
    with in_terminal([sys.executable, "-c", JOB, "people", "0", "3"], tmp_path) as terminal:
        assert terminal.wait_end() != 0
        assert terminal.written.rindex(b"\x1b[?25h") > terminal.written.rindex(b"\x1b[?25l")


@pytest.mark.parametrize(
    ("form", "quiet_s", "environment"),
    [("json", "0", {}), ("people", "60", {}), ("people", "0", {"TERM": "dumb"})],
    ids=["json", "a quick job", "a dumb terminal"],
)
def test_silence(tmp_path: Path, form: str, quiet_s: str, environment: dict[str, str]) -> None:
    with in_terminal([sys.executable, "-c", JOB, form, quiet_s, "4"], tmp_path, environment=environment) as terminal:
        assert terminal.wait_end() == 0
        assert terminal.text.split() == ["done"]


def test_silence_where_nobody_looks(tmp_path: Path) -> None:
    program = [sys.executable, "-c", JOB, "people", "0", "4"]
    done = subprocess.run(program, capture_output=True, text=True, check=True, env={"FORCE_COLOR": "1"})
    assert (done.stdout, done.stderr) == ("done\n", "")


@pytest.mark.parametrize("running", [True, False], ids=["a running node", "a stopped one"])
def test_verify_shows_it(folder: Folder, running: bool) -> None:
    often = "\nimport stigmergy.control.server as control\ncontrol.VERIFY_TOLD_COMMITS = 10\n"
    (folder.path / "drone.py").write_text(DRONE + often)
    node = folder.start()
    for number in range(40):
        folder.ask(do="send", agent="Drone/D-1", command="StartMission", fields={"mission": f"M{number}"})
    if not running:
        node.end()
    # As if every job were a long one.
    program = (
        "import sys; from stigmergy.cli import main; from stigmergy.cli.display import output;"
        "output.Progress.__init__.__kwdefaults__['quiet_s'] = 0.0; sys.exit(main.main(['log', 'verify']))"
    )
    with in_terminal([sys.executable, "-c", program], folder.path) as terminal:
        assert terminal.wait_end() == 0
        assert "sound" in terminal.text
        assert "verifying" in terminal.text
        told = re.search(r"\d+ of (\d+) commits", terminal.text)
        assert told is not None
        assert int(told[1]) >= 41, "one for each command, and what timers have added meanwhile"
