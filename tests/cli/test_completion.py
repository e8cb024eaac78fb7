"""Completion: what may come next, from the parser and from a real node; and in the shells, by pressing Tab."""

import argparse
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from functools import cache
from pathlib import Path

import pytest

from stigmergy.cli.completion import CompletionNames, complete, split_line
from stigmergy.cli.main import build_parser
from tests.cli.conftest import DRONE, Folder
from tests.cli.terminal import Terminal, in_terminal

Completed = Callable[[str], list[str]]
parser = cache(build_parser)


@pytest.fixture
def completed(shared: Folder, monkeypatch: pytest.MonkeyPatch) -> Completed:
    """What completes a line, beside the shared node; in this process because there are many."""
    monkeypatch.chdir(shared.path)
    return lambda line: [word.text for word in complete(parser(), split_line(line), CompletionNames())]


LINES = {
    "stigmergy sta": ["state", "status"],
    "stigmergy nothing": [],
    "stigmergy nothing ": [],
    "stigmergy log ver": ["verify"],
    "stigmergy log show --f": ["--from"],
    "stigmergy log show --from 3 --f": [],
    "stigmergy log show --from ": [],
    "stigmergy run --trust a.key --tr": ["--trust"],
    "stigmergy letters ": ["list", "retry", "drop"],
    "stigmergy letters retry ": [],
    "stigmergy send Dr": ["Drone/D-17"],
    "stigmergy send Drone/D-17 ": ["StartMission", "FlyTo", "Stumble"],
    "stigmergy send 'Drone/D-17' Fl": ["FlyTo"],
    "stigmergy send Bird/1 ": [],
    "stigmergy send Drone/D-99 StartMission ": ["mission=", "priority="],
    "stigmergy send Drone/D-99 StartMission mission=M1 ": ["priority="],
    "stigmergy send Drone/D-99 StartMission 'mission=M 1": [],
    "stigmergy send --socket delivery.db.sock Drone/D-17 St": ["StartMission", "Stumble"],
    "stigmergy send --socket=delivery.db.sock Drone/D-17 St": ["StartMission", "Stumble"],
    "stigmergy send --socket nothere.sock Drone/D-17 St": [],
    "stigmergy send Drone/D-17 -- --": [],
    "stigmergy observe Drone/D-17 B": ["BatteryMeasured"],
    "stigmergy observe Drone/D-17 BatteryMeasured ": ["percent="],
    "stigmergy log show --type Fl": ["FlyTo"],
    "stigmergy run ": ["drone:fleet"],
    "stigmergy run drone:f": ["drone:fleet"],
    "stigmergy keys new ": [":files"],
    "stigmergy status --socket ": [":files"],
    "stigmergy status --socket=de": [":files"],
    "stigmergy status --journal ": [":files"],
    "stigmergy run --bus ": [],
    "stigmergy new x --dir ": [":folders"],
    "stigmergy bench inter": ["interpreted"],
    "stigmergy bench interpreted ": [],
    "stigmergy completion ": ["bash", "zsh", "fish"],
    "A=1 ./bin/stigmergy log ver": ["verify"],
    'stigmergy "log" "ver': ["verify"],
    "stigmergy 'it\"s": [],
}


@pytest.mark.parametrize("line", LINES)
def test_what_may_come_next(completed: Completed, line: str) -> None:
    assert completed(line) == LINES[line]


def test_all_that_the_parser_knows(completed: Completed) -> None:
    def check(parser: argparse.ArgumentParser, line: str) -> int:
        shown = [action for action in parser._actions if action.help != argparse.SUPPRESS]
        options = [action.option_strings[-1] for action in shown if action.option_strings]
        assert completed(f"{line} -") == options
        count = 1
        for action in parser._actions:
            if isinstance(action, argparse._SubParsersAction):
                listed = [choice.dest for choice in action._choices_actions]
                assert completed(f"{line} ") == listed
                count += sum(check(action.choices[name], f"{line} {name}") for name in listed)
        return count

    assert check(build_parser(), "stigmergy") > 20


def test_letters(folder: Folder, monkeypatch: pytest.MonkeyPatch) -> None:
    folder.start()
    folder.ask(do="send", agent="Drone/D-1", command="Stumble")
    monkeypatch.chdir(folder.path)
    (word,) = complete(build_parser(), ["letters", "retry", ""], CompletionNames())
    assert (word.text, word.about) == ("0.2.0", "Drone/D-1 RuntimeError: over its own feet")


def test_without_a_node_the_module_is_asked(here: Folder) -> None:
    noisy = 'import sys\nprint("good morning")\nprint("hello", file=sys.stderr)\n' + DRONE
    (here.path / "drone.py").write_text(noisy)
    assert words(here, "send", "D") == ""
    (here.path / "stigmergy.toml").write_text('[fleet]\nmodule = "drone:fleet"\n')
    assert words(here, "send", "D") == "Drone/\tagents of this kind\n"
    assert words(here, "send", "Drone/1", "Fl") == "FlyTo\twaypoints urgent\n"
    (here.path / "drone.py").write_text("raise SystemExit('no')")
    assert words(here, "send", "D") == ""
    (here.path / "stigmergy.toml").write_text("not toml")
    assert words(here, "send", "D") == ""


def words(folder: Folder, *given: str) -> str:
    done = folder.cli("completion", "words", "--", *given)
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout


def test_nobody_waits_long(folder: Folder, monkeypatch: pytest.MonkeyPatch) -> None:
    node = folder.start()
    assert words(folder, "send", "Drone/1", "Fl") == "FlyTo\twaypoints urgent\n"
    monkeypatch.setenv("STIGMERGY_COMPLETING_S", "2")  # as users have it: from here on everybody waits in vain
    node.process.send_signal(signal.SIGSTOP)
    began_s = time.monotonic()
    assert words(folder, "send", "Drone/1", "Fl") == ""
    node.process.send_signal(signal.SIGCONT)
    node.end()
    (folder.path / "drone.py").write_text("import time\ntime.sleep(200)\n")
    assert words(folder, "send", "--fleet", "drone:fleet", "D") == ""
    assert time.monotonic() - began_s < 180


def test_scripts(shared: Folder) -> None:
    for shell in ("bash", "zsh", "fish"):
        assert "completion words" in shared.json("completion", shell)["script"]
        assert "completion words" in shared.cli("completion", shell).stdout
    assert "invalid choice" in shared.error("completion", "tcsh", code=2)


# ---------------------------------------------------------------------- the shells

UNPACKED = Path(__file__).resolve().parents[2] / "build" / "shells" / "bin"
"""Where `.ci/shells` puts those that are not installed."""
SHELLS = {
    "bash": (["bash", "--norc", "--noprofile", "-i"], 'PS1="> "; eval "$(stigmergy completion bash)"'),
    "zsh": (
        ["zsh", "-f", "-i"],
        'PS1="> "; autoload -Uz compinit; compinit -u -D; source <(stigmergy completion zsh)',
    ),
    "fish": (["fish", "--no-config", "-i"], "stigmergy completion fish | source"),
}
TABS = {
    "stigmergy log ver": "ify ",
    "stigmergy send Drone/D-1": "7 ",
    "stigmergy send Drone/D-17 Fl": "yTo ",
    "stigmergy send Drone/D-17 StartMission mi": "ssion=",
    "stigmergy send Drone/D-17 StartMission mission=M1 pr": "iority=",
    "stigmergy run dr": "one:fleet ",
    "stigmergy run drone:fl": "eet ",
    "stigmergy log show --typ": "e ",
    "stigmergy keys show delivery.key-j": "ournals ",
    "stigmergy new x --dir nes": "t/",
    "bin/stigmergy log ver": "ify ",
}


@pytest.fixture
def program(shared: Folder) -> Path:
    """A folder with `stigmergy` in it, for the path of the shell."""
    folder = shared.path / "bin"
    folder.mkdir(exist_ok=True)
    (shared.path / "nest").mkdir(exist_ok=True)
    (folder / "stigmergy").write_text(f'#!/bin/sh\nexec {sys.executable} -m stigmergy "$@"\n')
    (folder / "stigmergy").chmod(0o755)
    return folder


FEW_TABS = (
    "stigmergy log ver",
    "stigmergy send Drone/D-17 StartMission mi",
    "stigmergy run drone:fl",
    "stigmergy new x --dir nes",
)
"""What shells do in their own ways: a space behind it or none, a colon in a word, folders."""


@pytest.mark.parametrize(
    ("shell", "lines"),
    [
        pytest.param("bash", FEW_TABS, id="bash"),
        pytest.param("zsh", FEW_TABS, id="zsh"),
        pytest.param("fish", FEW_TABS, id="fish"),
        pytest.param("bash", tuple(TABS), id="bash-all", marks=pytest.mark.prove),
        pytest.param("zsh", tuple(TABS), id="zsh-all", marks=pytest.mark.prove),
        pytest.param("fish", tuple(TABS), id="fish-all", marks=pytest.mark.prove),
    ],
)
def test_pressing_tab(shared: Folder, program: Path, shell: str, lines: tuple[str, ...], tmp_path: Path) -> None:
    found = shutil.which(shell, path=f"{os.environ['PATH']}:{UNPACKED}")
    if found is None:
        why = f"{shell} is not installed here: its completion is not tested; run .ci/shells, or apt install {shell}"
        assert not os.environ.get("STIGMERGY_REQUIRE_BROKERS"), why
        pytest.skip(why)
    (_, *options), script = SHELLS[shell]
    command = [found, *options]
    environment = {"PATH": f"{program}:{os.environ['PATH']}", "HOME": str(tmp_path), "INPUTRC": "/dev/null"}
    with in_terminal(command, shared.path, columns=200, environment=environment) as terminal:
        type_line(terminal, f"{script}; echo rea''dy")
        terminal.wait_text("ready")
        for line in lines:
            rest, seen = TABS[line], len(terminal.written)
            terminal.press(f"{line}\t")
            # The cursor says what was completed, also whether there is a space behind it.
            terminal.press("@")
            terminal.wait_text(f"{rest}@", after=seen)
            terminal.press("\x15")
        type_line(terminal, "exit")
        assert terminal.wait_end() == 0


def type_line(terminal: Terminal, line: str) -> None:
    terminal.press(f"{line}\r")


def test_the_bash_script_is_sound() -> None:
    script = subprocess.run(
        [sys.executable, "-m", "stigmergy", "completion", "bash"], capture_output=True, text=True, check=True
    ).stdout
    checked = subprocess.run(["bash", "-n"], input=script, capture_output=True, text=True, check=False)
    assert (checked.returncode, checked.stderr) == (0, "")
