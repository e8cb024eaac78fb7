"""What users do wrong ends in one sentence, the right exit code, and no traceback."""

import subprocess
import sys
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path

import pytest

from stigmergy.cli.main import main
from tests.cli.conftest import Folder

WRONG_MODULES = {
    "nothere:fleet": "there is no module 'nothere'",
    "drone:nothere": "drone has no 'nothere'; it has fleet",
    "drone:number": "number is a int, not a Fleet; it has fleet",
    "drone.py:fleet": "there is no module 'drone.py'",
    "./drone": "is not MODULE:FLEET",
    "broken": "cannot be imported",
    "lacking": "No module named 'surely_not_installed'",
    "unfinished": "SyntaxError",
}


@pytest.mark.parametrize("spec", WRONG_MODULES)
def test_wrong_modules(here: Folder, spec: str) -> None:
    (here.path / "broken.py").write_text("x = 1\nraise ValueError('not today')\n")
    (here.path / "lacking.py").write_text("import surely_not_installed\n")
    (here.path / "unfinished.py").write_text("def f(:\n")
    said = here.error("run", spec, code=2)
    assert WRONG_MODULES[spec] in said


def test_a_broken_module_is_named_with_its_line(here: Folder) -> None:
    (here.path / "broken.py").write_text("x = 1\nraise ValueError('not today')\n")
    assert "broken.py, line 2: ValueError: not today" in here.error("run", "broken:fleet", code=2)
    assert "Traceback" in here.cli("run", "broken:fleet", "--debug").stderr


def test_run_without_a_module(here: Folder) -> None:
    assert "which fleet?" in here.error("run", code=2)


def test_a_configuration_with_an_unknown_key(here: Folder) -> None:
    (here.path / "stigmergy.toml").write_text('[fleet]\njurnal = "x"\n')
    assert "jurnal" in here.error("run", "drone:fleet", code=2)


WRONG_SENDS = {
    ("Drone/D-17", "Fly"): "Drone has no command 'Fly'; it knows StartMission(mission: str, priority: int = 0), FlyTo(",
    ("Drone/D-17", "MissionStarted", "mission=M1"): "Drone has no command 'MissionStarted'",
    ("Bird/1", "StartMission", "mission=M1"): "'Bird/1' is no address of an agent here",
    ("Drone", "StartMission", "mission=M1"): "'Drone' is no address",
    ("Drone/D-17", "StartMission"): "'mission' is missing",
    ("Drone/D-17", "StartMission", "misson=M1"): "has no field 'misson'",
    ("Drone/D-17", "StartMission", "mission=M1", "priority=high"): "priority=high does not fit, it is of type int",
    ("Drone/D-17", "StartMission", "mission:=7"): "mission=7 does not fit, it is of type str",
    ("Drone/D-17", "FlyTo", "waypoints=[[1]]"): "waypoints=[[1]] does not fit",
    ("Drone/D-17", "StartMission", "M1"): "'M1' is not FIELD=VALUE",
    ("Drone/D-17", "StartMission", "mission=M1", "mission=M2"): "'mission' is given twice",
    ("Drone/D-17", "StartMission", "mission:={"): "is not JSON",
}


Refused = Callable[..., str]


@pytest.fixture
def refused(shared: Folder, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Refused:
    """Runs a command beside the shared node, in this process because there are many: the one sentence it ends in."""
    monkeypatch.chdir(shared.path)

    def run(*arguments: str, code: int) -> str:
        assert main(arguments) == code
        out, err = capfd.readouterr()
        assert out == ""
        assert err.startswith("error: ")
        assert err.count("\n") == 1
        return err

    return run


@pytest.mark.parametrize("arguments", WRONG_SENDS)
def test_wrong_sends(refused: Refused, arguments: tuple[str, ...]) -> None:
    assert WRONG_SENDS[arguments] in refused("send", *arguments, code=2)


WRONG_QUESTIONS = {
    ("state", "Bird/1"): (2, "is no address of an agent here"),
    ("state", "Drone/D-17", "--at", "yesterday"): (2, "neither a position nor a time"),
    ("state", "Drone/D-17", "--at", "2026-11-15T08:00:00"): (2, "has no time zone"),
    ("state", "Drone/D-17", "--at", "999"): (2, "position 999: the log of shard 0 goes from 0 to"),
    ("log", "show", "--from", "5", "--to", "2"): (2, "the end comes before the beginning"),
    ("log", "show", "--limit", "0"): (2, "give 1 to"),
    ("log", "show", "--shard", "7"): (2, "shards 0 to 0"),
    ("letters", "retry", "0.99.0"): (2, "there is no dead letter '0.99.0'"),
    ("letters", "retry"): (2, "give the ID"),
    ("resume", "Drone/D-17"): (2, "is not stopped"),
    ("status", "--socket", "nothere.sock"): (3, "no node answers at 'nothere.sock'"),
    ("log", "shout"): (2, "invalid choice"),
    ("fly",): (2, "invalid choice"),
    ("bench", "nothing"): (2, "'nothing' is no benchmark; there are: "),
}


@pytest.mark.parametrize("arguments", WRONG_QUESTIONS)
def test_wrong_questions(refused: Refused, arguments: tuple[str, ...]) -> None:
    code, text = WRONG_QUESTIONS[arguments]
    assert text in refused(*arguments, code=code)


def test_an_error_in_json(shared: Folder) -> None:
    assert shared.json("send", "Drone/D-17", "Fly", code=2)["kind"] == "UnknownTag"
    assert shared.json("log", "shout", code=2)["kind"] == "ConfigError"
    assert shared.json("status", "--socket", "nothere.sock", code=3)["kind"] == "NotRunning"
    assert set(shared.json("letters", "drop", "x", code=2)) == {"error", "kind"}


def test_nothing_runs_here(here: Folder) -> None:
    for arguments in (("send", "Drone/D-17", "StartMission", "mission=M1"), ("status",), ("letters",)):
        assert "no node is running here; start it: stigmergy run MODULE:FLEET" in here.error(*arguments, code=3)
    assert "there is no journal in this folder" in here.error("log", "show", code=2)


def test_more_than_one_to_choose_from(here: Folder) -> None:
    here.start()
    here.start("drone:fleet", "--journal", "other.db", "--key", "other.key")
    assert "more than one running node in this folder (delivery.db.sock, other.db.sock)" in here.error("status", code=2)
    assert here.json("status", "--journal", "other.db")["journal"] == "sqlite:other.db"


def test_the_version_is_said_without_loading_the_runtime() -> None:
    script = (
        "import sys; from stigmergy_program import main; sys.argv[1:] = ['--version']; assert main() == 0; "
        "assert 'stigmergy' not in sys.modules and 'asyncio' not in sys.modules"
    )
    said = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=240, check=True)
    assert said.stdout == f"stigmergy {version('stigmergy')}\n"


def test_help_and_version(here: Folder) -> None:
    alone = here.cli()
    assert alone.returncode == 0
    assert "exit codes:" in alone.stdout
    assert here.cli("--version").stdout.startswith("stigmergy ")
    for command in ("run", "send", "observe", "state", "log", "keys", "letters", "status", "resume", "stop", "bench"):
        assert command in alone.stdout
    assert "examples:" in here.cli("send", "--help").stdout


@pytest.mark.parametrize("command", [("doctor",), ("log", "verify"), ("letters",)])
def test_an_unknown_option_leads_to_the_help_of_its_command(here: Folder, command: tuple[str, ...]) -> None:
    said = here.error(*command, "--copies", "x", code=2)
    assert f"see stigmergy {' '.join(command)} --help" in said


def test_bench_is_imported_when_it_is_asked_for(here: Folder) -> None:
    said = here.cli("bench", "interpreted", "--help")
    assert said.returncode == 0
    assert "usage: stigmergy bench interpreted" in said.stdout
    assert here.json("bench", "interpreted", "--nope", code=2)["kind"] == "ConfigError"


def test_what_few_commands_need_is_imported_by_those_only() -> None:
    # The client library of NATS alone took a third of the time that a command needs before it does anything.
    told = "import sys, stigmergy.cli.main; print([one for one in ('bench', 'nats', 'numba') if one in sys.modules])"
    said = subprocess.run([sys.executable, "-c", told], capture_output=True, text=True, check=True)
    assert said.stdout.strip() == "[]"


def test_no_colours_where_nobody_sees_them(shared: Folder) -> None:
    for environment in ({}, {"NO_COLOR": "1"}, {"TERM": "dumb"}):
        assert "\x1b" not in shared.cli("status", **environment).stdout


def test_control_characters_do_not_reach_the_terminal(shared: Folder) -> None:
    shared.json("send", "Drone/evil", "StartMission", "mission=\x1b[2J\x07M")
    for arguments in (("state", "Drone/evil"), ("log", "show", "Drone/evil")):
        said = shared.cli(*arguments).stdout
        assert "\x1b" not in said
        assert "\x07" not in said
        assert "M" in said


FULL = Path("/dev/full")


@pytest.mark.skipif(not FULL.is_char_device(), reason="this machine has no /dev/full")
@pytest.mark.parametrize(
    "arguments", [("log", "show"), ("log", "export"), ("--json", "status"), ("--json", "log", "show")]
)
def test_output_that_goes_to_a_full_disk(shared: Folder, arguments: tuple[str, ...]) -> None:
    command = [sys.executable, "-m", "stigmergy", *arguments]
    with FULL.open("w") as full:
        result = subprocess.run(
            command, stdout=full, stderr=subprocess.PIPE, text=True, cwd=shared.path, timeout=240, check=False
        )
    assert result.returncode == 4
    assert "Traceback" not in result.stderr
    assert "the output cannot be written: No space left on device; free some" in result.stderr
