"""`stigmergy sim`: seeds, figures, failures with their commands, the page; and the same trace everywhere."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from stigmergy.base.errors import ConfigError
from stigmergy.cli.main import main
from stigmergy.cli.sim import read_seeds

LIGHTS = """
from stigmergy import Agent, Event, Fleet, evolve
from stigmergy.sim import World, simulate


class Seen(Event):
    number: int


class Lamp(Agent):
    seen: int = 0

    @evolve
    def count(self, event: Seen) -> None:
        self.seen += 1


fleet = Fleet("lights", agents=[Lamp])


@simulate(fleet, agents=3, for_s=8.0, faults="none")
def test_holds(world: World) -> None:
    world.each(1.0, lambda lamp: world.observe(lamp, Seen(number=1)))


@simulate(fleet, agents=3, for_s=8.0, faults="crash,loss")
def test_breaks(world: World) -> None:
    world.each(1.0, lambda lamp: world.observe(lamp, Seen(number=1)))
    world.always(lambda: sum(lamp.seen for lamp in world.states(Lamp)) < 9, name="few were seen")


@simulate(fleet, agents=3, for_s=8.0, faults="none")
def test_hangs(world: World) -> None:
    if world.seed == 2:
        open("hangs", "w").close()
    while world.seed == 2:
        pass
"""


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "lights_sim.py").write_text(LIGHTS)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])
    monkeypatch.delitem(sys.modules, "lights_sim", raising=False)
    return tmp_path


def sim(capsys: pytest.CaptureFixture[str], *words: str) -> tuple[int, str]:
    code = main(["sim", *words])
    return code, capsys.readouterr().out


def sim_json(capsys: pytest.CaptureFixture[str], *words: str) -> tuple[int, Any]:
    code, out = sim(capsys, *words, "--json")
    return code, json.loads(out)


def test_good_seeds_are_counted(capsys: pytest.CaptureFixture[str]) -> None:
    code, out = sim(capsys, "lights_sim:test_holds", "--seeds", "3..5", "--jobs", "1")
    assert code == 0
    assert "no violations in 3 seeds" in out
    assert "messages" in out
    code, told = sim_json(capsys, "lights_sim:test_holds", "--seeds", "3..5", "--jobs", "1")
    assert code == 0
    assert (told["seeds"], told["violations"], told["failing"], told["shrunk"]) == (3, 0, [], None)
    assert len(told["trace"]) == 64
    assert told["trace"] in out
    assert told["messages"] > 3 * 3 * 8
    assert told["messages_per_s"] > 0
    assert told["simulated_s"] >= 24


def test_a_failing_seed_is_printed_with_its_command_and_made_smaller(capsys: pytest.CaptureFixture[str]) -> None:
    code, out = sim(capsys, "lights_sim:test_breaks", "--seeds", "2..3", "--jobs", "1")
    assert code == 1
    assert "failed seed 2: at " in out
    assert "always few were seen: it does not hold" in out
    assert "\n         stigmergy sim lights_sim:test_breaks --seed 3\n" in out
    assert "X always few were seen" in out
    page, smaller = (line.strip() for line in out.splitlines() if "--keep" in line)
    assert page == f"all of it, as a page: {smaller} --html run.html"
    assert smaller == "stigmergy sim lights_sim:test_breaks --seed 2 --nodes 3 --until 3 --keep none"
    code, again = sim_json(capsys, *smaller.split()[2:], "--no-shrink")
    assert code == 1
    assert again["failing"][0]["command"] == smaller
    code, told = sim_json(capsys, "lights_sim:test_breaks", "--seeds", "2..3", "--jobs", "1")
    assert told["shrunk"]["command"] == smaller
    assert [one["seed"] for one in told["failing"]] == [2, 3]


def test_what_fails_is_named_while_others_run(capsys: pytest.CaptureFixture[str]) -> None:
    code = main(["sim", "lights_sim:test_breaks", "--seeds", "2..3", "--jobs", "1", "--no-shrink"])
    told = capsys.readouterr().err
    assert code == 1
    assert "seed 2 fails, after " in told
    assert "seed 3 fails, after " in told
    assert main(["sim", "lights_sim:test_breaks", "--seed", "2", "--no-shrink", "--json"]) == 1
    assert capsys.readouterr().err == ""


def test_a_seed_that_hangs_is_ended_and_shown_with_its_stack(capsys: pytest.CaptureFixture[str]) -> None:
    words = ("lights_sim:test_hangs", "--seeds", "1..3", "--hang-after", "4")
    assert main(["sim", *words]) == 1
    out, told = capsys.readouterr()
    assert "seed 2 hangs, after 4.0 s: hung: ended after 4 s, " in told
    assert " on no node at 0 virtual seconds" in told
    assert "failed seed 2: hung: ended after 4 s" in out
    assert "in test_hangs" in out
    assert "1 of 3 seeds failed" in out
    code, found = sim_json(capsys, *words[:-4], "--seed", "2", *words[-2:])
    assert code == 1
    assert "in test_hangs" in found["failing"][0]["stack"]
    assert found["shrunk"] is None


def test_what_was_found_before_an_interruption_is_shown(folder: Path) -> None:
    words = ["lights_sim:test_hangs", "--seeds", "1..3", "--jobs", "1", "--hang-after", "60", "--json"]
    command = [sys.executable, "-m", "stigmergy", "sim", *words]
    with subprocess.Popen(command, cwd=folder, stdout=subprocess.PIPE, text=True) as process:
        while not (folder / "hangs").exists():
            time.sleep(0.05)
        process.send_signal(signal.SIGTERM)  # it interrupts as SIGINT does, which is ignored in the background
        out, _ = process.communicate()
    found = json.loads(out)
    assert (process.returncode, found["interrupted"], found["seeds"]) == (130, True, 1)


def test_one_seed_shows_its_timeline_and_writes_a_page(capsys: pytest.CaptureFixture[str], folder: Path) -> None:
    code, out = sim(capsys, "lights_sim:test_holds", "--seed", "4", "--html", "run.html", "--nodes", "2")
    assert code == 0
    assert "seconds    node-1" in out
    assert "= Lamp/1 Seen" in out
    assert '"title":"lights_sim:test_holds"' in (folder / "run.html").read_text()


def test_several_processes_and_another_hash_seed_find_the_same() -> None:
    root = Path(__file__).resolve().parents[2]
    found: list[Any] = []
    for hash_seed, jobs in (("0", "1"), ("4711", "2")):
        environment = {**os.environ, "PYTHONHASHSEED": hash_seed, "PYTHONPATH": str(root / "src")}
        command = [sys.executable, "-m", "stigmergy", "sim", "missions", "--seeds", "1..3", "--for", "6"]
        ran = subprocess.run(
            [*command, "--jobs", jobs, "--json"], capture_output=True, text=True, env=environment, check=False
        )
        assert ran.returncode == 0, ran.stdout + ran.stderr
        found.append(json.loads(ran.stdout))
    assert found[0]["violations"] == 0
    assert found[0]["trace"] == found[1]["trace"]
    assert found[0]["messages"] == found[1]["messages"]


@pytest.mark.parametrize(
    ("words", "error"),
    [
        (("nothing",), "'nothing' is no scenario; there are city, drones"),
        (("lights_sim:nobody",), "has no 'nobody'"),
        (("lights_sim:fleet",), "name a Scenario, or a test with @simulate"),
        (("no_such_module:x",), "there is no module 'no_such_module' here"),
        (("missions", "--seeds", "9..3"), "give the smaller number first"),
        (("missions", "--seeds", "few"), "give a range like 1..200"),
        (("missions", "--faults", "rain"), "'rain' is no fault"),
        (("missions", "--keep", "a,b"), "give numbers of faults"),
        (("missions", "--for", "-1"), "give more than 0 seconds"),
        (("missions", "--jobs", "0"), "give 1 or more"),
        (("missions", "--hang-after", "0"), "give 1 second or more"),
        (("missions", "--html", "nowhere/run.html"), "there is no folder nowhere"),
        (("missions", "--agents", "0"), "give"),
    ],
)
def test_what_cannot_be_run_is_said(capsys: pytest.CaptureFixture[str], words: tuple[str, ...], error: str) -> None:
    assert main(["sim", *words]) == 2
    assert error in capsys.readouterr().err.replace("\n", " ")


def test_seeds_are_ranges_or_counts() -> None:
    assert list(read_seeds("3")) == [1, 2, 3]
    assert list(read_seeds("7..9")) == [7, 8, 9]
    with pytest.raises(ConfigError):
        read_seeds("1..99999999999")
