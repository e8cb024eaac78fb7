"""A new project works as it is: its tests, its types, its style, its build; and it runs. Nothing is overwritten."""

import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from stigmergy.base.errors import ConfigError
from stigmergy.cli.scaffold import NAME_CHARS_MAX, name_project, render
from tests.cli.conftest import Folder
from tests.cli.in_process import Here

ROOT = Path(__file__).resolve().parents[2]
FILES = [".gitignore", "README.md", "pyproject.toml", "stigmergy.toml", "test_water_pump.py", "water_pump.py"]


def ran(folder: Path, *program: str, **environment: str) -> subprocess.CompletedProcess[str]:
    known = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")}
    return subprocess.run(
        [sys.executable, *program],
        cwd=folder,
        env={**known, **environment},
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )


def made(folder: Path, *arguments: str) -> Path:
    done = Here(folder).cli("new", *arguments)
    assert done.returncode == 0, done
    return folder / arguments[-1]


def test_its_own_tests_pass_and_can_fail(tmp_path: Path) -> None:
    project = made(tmp_path, "water_pump")
    assert sorted(path.name for path in project.iterdir()) == FILES
    alone = ("-m", "pytest", "-q", "-p", "no:xdist", "-p", "no:randomly", "-p", "no:asyncio", "-p", "no:schemathesis")
    done = ran(project, *alone)
    assert done.returncode == 0, done.stdout
    assert "8 passed" in done.stdout
    module = project / "water_pump.py"
    module.write_text(module.read_text().replace("HOT_CELSIUS = 80.0", "HOT_CELSIUS = 95.0"))
    assert "2 failed, 6 passed" in ran(project, *alone).stdout


@pytest.mark.parametrize("name", ["x", "x2", "water_pump", "z" * NAME_CHARS_MAX])
def test_style_whatever_the_name(tmp_path: Path, name: str) -> None:
    project = made(tmp_path, name)
    for check in (("check", "."), ("format", "--check", "--diff", ".")):
        done = ran(project, "-m", "ruff", *check, "--no-cache")
        assert done.returncode == 0, done.stdout


def test_types(tmp_path: Path) -> None:
    project = made(tmp_path, "water_pump")
    # From the cache of `make check`, with its options: with others mypy would first check all of the package again.
    strictly = ("-m", "mypy", "--strict", *(str(path) for path in sorted(project.rglob("*.py"))))
    done = ran(ROOT, *strictly)
    assert done.returncode == 0, done.stdout
    module = project / "water_pump.py"
    module.write_text(module.read_text().replace("celsius: float = 20.0", "celsius: str = ''"))
    wrong = ran(ROOT, *strictly)
    assert wrong.returncode == 1


def test_it_builds(tmp_path: Path) -> None:
    project = made(tmp_path, "water_pump")
    done = ran(project, "-m", "hatchling", "build", "-t", "wheel")
    assert done.returncode == 0, done.stderr
    (wheel,) = (project / "dist").glob("water_pump-0.1.0-*.whl")
    assert [name for name in zipfile.ZipFile(wheel).namelist() if "dist-info" not in name] == ["water_pump.py"]


def test_it_runs(tmp_path: Path) -> None:
    folder = Here(made(tmp_path, "water_pump"))
    try:
        node = folder.start("--socket", "water_pump.db.sock")
        assert folder.json("send", "WaterPump/one", "Start", "job=J1", "minutes=0.5")["accepted"] is True
        assert "at work on J1" in folder.json("send", "WaterPump/one", "Start", "job=J2", code=1)["reason"]
        folder.json("observe", "WaterPump/one", "TemperatureMeasured", "celsius=85")
        assert folder.json("state", "WaterPump/one")["state"] == {
            "id": "one",
            "job": None,
            "celsius": 85.0,
            "stopped_because": "85 °C",
            "is_blind": False,
        }
        assert "85 °C, below 80 °C needed" in folder.json("send", "WaterPump/one", "Start", "job=J2", code=1)["reason"]
        folder.json("observe", "WaterPump/one", "TemperatureMeasured", "celsius=25")
        assert folder.json("send", "WaterPump/one", "Start", "job=J2")["accepted"] is True
        code, out = node.end()
        assert code == 0
        assert "WaterPump/one: motor off, 85 °C" in out
        assert folder.json("log", "verify")["sound"] is True
    finally:
        folder.close()


def test_the_readme_names_commands_that_there_are(tmp_path: Path) -> None:
    readme = (made(tmp_path, "water_pump") / "README.md").read_text()
    commands = [line.removeprefix("$ ").split("#")[0].split() for line in readme.splitlines() if line.startswith("$ ")]
    assert [command[:2] for command in commands] == [
        ["pytest"],
        ["stigmergy", "run"],
        ["stigmergy", "send"],
        ["stigmergy", "observe"],
        ["stigmergy", "log"],
    ]
    assert "@" not in readme


def test_in_an_empty_folder(tmp_path: Path) -> None:
    (tmp_path / ".git").mkdir()
    assert made(tmp_path, "water_pump", "--dir", ".") == tmp_path
    assert sorted(path.name for path in tmp_path.iterdir()) == [".git", *FILES]
    made(tmp_path, "water_pump", "--dir", "further/down")
    assert (tmp_path / "further" / "down" / "water_pump.py").exists()


def test_for_programs(tmp_path: Path) -> None:
    assert Folder(tmp_path).json("new", "water_pump") == {
        "name": "water_pump",
        "folder": "water_pump",
        "files": FILES,
        "module": "water_pump:fleet",
        "agent": "WaterPump",
    }


WRONG = {
    "class": "is a word of Python itself",
    "none": "would be called None",
    "queue": "would hide the module 'queue'",
    "rich": "would hide the module 'rich'",
    "stigmergy": "would hide the module 'stigmergy'",
    "event": "would be called Event",
    "switch_off": "would be called SwitchOff",
    "Water-Pump": "such as water_pump",
    "WaterPump": "such as water_pump",
    "7x": "such as x",
    "../x": "such as x",
    "pömpe": "cannot be the name",
    "a__b": "such as a_b",
    "": "such as water_pump",
    "x" * (NAME_CHARS_MAX + 1): "has 33 letters",
}


@pytest.mark.parametrize("name", WRONG)
def test_wrong_names_are_refused_with_a_remedy(name: str) -> None:
    with pytest.raises(ConfigError) as refused:
        name_project(name, frozenset({"rich"}))
    assert WRONG[name] in str(refused.value)
    if "such as " in str(refused.value):
        assert render(name_project(str(refused.value).rpartition("such as ")[2]))


def test_nothing_is_overwritten(tmp_path: Path) -> None:
    folder = Here(tmp_path)
    made(tmp_path, "water_pump")
    (tmp_path / "water_pump" / "water_pump.py").write_text("mine")
    assert "has '.gitignore' in it; nothing is overwritten" in folder.error("new", "water_pump", code=2)
    assert (tmp_path / "water_pump" / "water_pump.py").read_text() == "mine"
    (tmp_path / "file").write_text("mine")
    assert "is no folder" in folder.error("new", "pump", "--dir", "file", code=2)
    assert "cannot be written" in folder.error("new", "pump", "--dir", "file/below", code=2)
    (tmp_path / "kept").mkdir()
    (tmp_path / "kept" / ".gitignore").write_text("mine")
    assert "has '.gitignore' in it" in folder.error("new", "pump", "--dir", "kept", code=2)
    assert "rich.py would hide" in folder.error("new", "rich", code=2)


def test_half_a_project_is_none(tmp_path: Path) -> None:
    program = ("-m", "stigmergy", "new", "pump")
    # Past so many bytes every write fails, as on a full disk.
    done = subprocess.run(
        ["prlimit", "--fsize=2000", sys.executable, *program], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert done.returncode == 2
    assert "cannot be written" in done.stderr
    assert list(tmp_path.iterdir()) == []


@pytest.mark.prove
def test_the_templates_are_in_the_wheel(tmp_path: Path) -> None:
    done = ran(ROOT, "-m", "hatchling", "build", "-t", "wheel", "-d", str(tmp_path))
    assert done.returncode == 0, done.stderr
    (wheel,) = tmp_path.glob("*.whl")
    new = ran(tmp_path, "-P", "-m", "stigmergy", "new", "water_pump", PYTHONPATH=str(wheel))
    assert new.returncode == 0, new
    assert sorted(path.name for path in (tmp_path / "water_pump").iterdir()) == FILES
