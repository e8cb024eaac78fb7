"""`stigmergy replay`: the gate before an upgrade, as CI would use it."""

import shutil
from pathlib import Path

import pytest

from tests.cli.conftest import DRONE, Folder
from tests.cli.in_process import Here


@pytest.fixture(scope="module")
def stopped(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("stopped")
    (path / "drone.py").write_text(DRONE, encoding="utf-8")
    folder = Here(path)
    node = folder.start()
    for number in range(6):
        folder.ask(do="send", agent="Drone/D-0", command="StartMission", fields={"mission": f"M{number}"})
    folder.ask(do="observe", agent="Drone/D-0", event="BatteryMeasured", fields={"percent": 12.0})
    folder.ask(do="send", agent="Drone/D-0", command="StartMission", fields={"mission": "late"})
    node.end()
    return path


@pytest.fixture
def copy(stopped: Path, tmp_path: Path) -> Folder:
    shutil.copytree(stopped, tmp_path / "copy")
    return Here(tmp_path / "copy")


def change(folder: Folder, old: str, new: str) -> None:
    assert DRONE.count(old) == 1
    (folder.path / "drone.py").write_text(DRONE.replace(old, new), encoding="utf-8")


def test_the_same_code_passes(copy: Folder) -> None:
    found = copy.json("replay", "drone:fleet")
    assert found["same"] is True
    assert (found["commands"], found["effects"], found["differences"]) == (7, 1, [])
    assert found["states"] >= 1
    shown = copy.cli("replay", "drone:fleet").stdout
    assert "the same" in shown
    copy.json("log", "export", "--flight", "all.flight")
    from_flight = copy.json("replay", "drone:fleet", "--journal", "flight:all.flight")
    assert from_flight["digests"] == found["digests"]


def test_a_change_of_behaviour_fails_the_gate(copy: Folder) -> None:
    change(copy, "if self.battery < 20:", "if self.battery < 10:")
    found = copy.json("replay", "drone:fleet", code=1)
    (difference,) = found["differences"]
    assert (difference["kind"], difference["agent"], difference["field"]) == ("answer", "Drone/D-0", "refused")
    assert (difference["old"], difference["new"]) == ("battery at 12 %, 20 % needed", None)
    shown = copy.cli("replay", "drone:fleet")
    assert shown.returncode == 1
    assert "1 difference" in shown.stdout
    assert "Drone/D-0" in shown.stdout


def test_a_state_that_comes_out_differently(copy: Folder) -> None:
    change(copy, "self.mission = event.mission", "self.mission = event.mission.lower()")
    found = copy.json("replay", "drone:fleet", code=1)
    assert {(one["kind"], one["field"]) for one in found["differences"]} == {("state", "mission")}


def test_a_running_journal_is_left_alone(copy: Folder) -> None:
    node = copy.start()
    try:
        assert "has the journal open" in copy.error("replay", "drone:fleet", code=3)
    finally:
        node.end()


def test_what_is_asked_wrongly(copy: Folder) -> None:
    assert "give 1 or more" in copy.error("replay", "drone:fleet", "--differences", "0", code=2)
    assert "there is no module" in copy.error("replay", "plane:fleet", code=2)
    (copy.path / "bird.py").write_text(DRONE.replace('"delivery"', '"birds"'))
    assert "belongs to the fleet 'delivery'" in copy.error("replay", "bird:fleet", "--journal", "delivery.db", code=4)
