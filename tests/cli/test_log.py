"""What the log says, and whether it is what was written: damage is found and named."""

import shutil
import subprocess
import sys
from datetime import datetime, timedelta
from pathlib import Path

import pytest

from tests.cli.conftest import DRONE, Folder
from tests.cli.in_process import Here


@pytest.fixture(scope="module")
def stopped(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the journal of a node that has stopped; tests copy it."""
    path = tmp_path_factory.mktemp("stopped")
    (path / "drone.py").write_text(DRONE, encoding="utf-8")
    folder = Here(path)
    node = folder.start()
    for number in range(6):
        fields = {"mission": f"mission-number-{number}"}
        folder.ask(do="send", agent=f"Drone/D-{number % 2}", command="StartMission", fields=fields)
    folder.ask(do="observe", agent="Drone/D-0", event="BatteryMeasured", fields={"percent": 12.0})
    folder.ask(do="send", agent="Drone/D-0", command="StartMission", fields={"mission": "late"})
    folder.ask(do="send", agent="Drone/D-1", command="Stumble")
    node.end()
    return path


@pytest.fixture
def copy(stopped: Path, tmp_path: Path) -> Folder:
    shutil.copytree(stopped, tmp_path / "copy")
    return Here(tmp_path / "copy")


def test_show_lists_events_answers_effects_and_causes(copy: Folder) -> None:
    entries = copy.lines("log", "show")
    assert [entry["position"] for entry in entries] == sorted(entry["position"] for entry in entries)
    started = next(entry for entry in entries if entry["type"] == "MissionStarted@1")
    assert started["agent"] == "Drone/D-0"
    assert started["fields"] == {"mission": "mission-number-0", "priority": 0}
    assert started["cause"]["command"] == "StartMission@1"
    assert started["time"].endswith("Z")
    measured = next(entry for entry in entries if entry["type"] == "BatteryMeasured@1")
    assert [(effect["sink"], effect["type"]) for effect in measured["effects"]] == [("actuators", "Land@1")]
    assert [entry["refused"] for entry in entries if entry["kind"] == "answer" and entry["refused"]] == [
        "battery at 12 %, 20 % needed",
        "the handler failed: RuntimeError: over its own feet; the command is in the dead letters",
    ]


def test_show_filters(copy: Folder) -> None:
    assert {entry["agent"] for entry in copy.lines("log", "show", "Drone/D-1")} == {"Drone/D-1"}
    assert len(copy.lines("log", "show", "--type", "MissionStarted")) == 6
    assert len(copy.lines("log", "show", "--type", "MissionStarted@1", "--limit", "2")) == 2
    last = copy.lines("log", "show", "--type", "MissionStarted", "--limit", "1")
    first = copy.lines("log", "show", "--type", "MissionStarted", "--limit", "1", "--from", "1")
    assert [entry["fields"]["mission"] for entry in first + last] == ["mission-number-0", "mission-number-5"]
    assert {entry["position"] for entry in copy.lines("log", "show", "--from", "3", "--to", "4")} == {3, 4}
    assert copy.lines("log", "show", "--type", "Nothing") == []


def test_show_for_people(copy: Folder) -> None:
    said = copy.cli("log", "show").stdout
    assert "POSITION  TIME" in said
    assert "→ Land" in said
    assert "refused" in said


@pytest.mark.parametrize("form", [(), ("--json",)])
def test_whoever_reads_may_stop_reading(copy: Folder, form: tuple[str, ...]) -> None:
    program = [sys.executable, "-m", "stigmergy", "log", "show", *form]
    process = subprocess.Popen(program, cwd=copy.path, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    assert process.stdout is not None
    assert process.stderr is not None
    process.stdout.close()
    said = process.stderr.read()
    process.stderr.close()
    assert (process.wait(timeout=240), said) == (0, b"")


def test_state_back_then(copy: Folder) -> None:
    first, second, _ = copy.lines("log", "show", "Drone/D-0", "--type", "MissionStarted")
    for at in (str(second["position"]), _a_moment_after(second["time"])):
        seen = copy.json("state", "Drone/D-0", "--at", at, "--fleet", "drone:fleet")
        assert seen["state"]["mission"] == second["fields"]["mission"]
        assert seen["position"] == second["position"]
    before = copy.json("state", "Drone/D-0", "--at", str(second["position"] - 1), "--fleet", "drone:fleet")
    assert before["state"]["mission"] == first["fields"]["mission"]
    assert copy.json("state", "Drone/D-0", "--at", "0", "--fleet", "drone:fleet")["known"] is False
    assert copy.json("state", "Drone/D-0", "--fleet", "drone")["state"]["battery"] == 12.0
    early = copy.cli("state", "Drone/D-0", "--at", "2020-01-01T00:00:00Z", "--fleet", "drone:fleet")
    assert early.returncode == 2
    assert "this log begins at 20" in early.stderr


def _a_moment_after(time: str) -> str:
    return (datetime.fromisoformat(time) + timedelta(milliseconds=1)).isoformat()


def test_verify_finds_nothing_wrong(copy: Folder) -> None:
    found = copy.json("log", "verify")
    assert found["sound"] is True
    assert found["problems"] == []
    assert found["commits"] == found["heads"][0]["position"] == found["signatures"]
    assert found["snapshots"] > 0
    assert [signer["enrolled_at"] for signer in found["signers"]] == [1]
    assert copy.json("log", "verify", "--key", "delivery.key")["sound"] is True
    assert "sound" in copy.cli("log", "verify").stdout
    other = copy.json("keys", "new", "other.key")["line"]
    refused = copy.json("log", "verify", "--key", other, code=1)
    assert refused["problems"][0]["what"] == "the key given neither began this log nor signed its end"
    said = copy.cli("log", "verify", "--key", other).stderr
    assert "everything else verifies" in said
    assert "restore a copy" not in said


def test_a_flipped_byte_is_found_and_named(copy: Folder) -> None:
    file = copy.path / "delivery.db"
    data = file.read_bytes()
    # All places, because a page may also hold what SQLite has moved elsewhere.
    file.write_bytes(data.replace(b"mission-number-3", b"mission-number-4"))
    found = copy.json("log", "verify", code=1)
    assert found["sound"] is False
    wrong = found["problems"][0]
    assert (wrong["shard"], wrong["position"]) == (0, 5)
    assert "do not have the digest" in wrong["what"]
    done = copy.cli("log", "verify")
    assert done.returncode == 1
    assert "wrong  shard 0, position 5" in done.stdout


def test_a_truncated_journal(copy: Folder) -> None:
    file = copy.path / "delivery.db"
    file.write_bytes(file.read_bytes()[:-4096])
    assert "restore the journal from a copy" in copy.error("log", "verify", code=4)
    assert "restore the journal from a copy" in copy.error("run", "drone:fleet", code=4)
    file.write_bytes(b"SQLite format 3\0 and no more")
    assert "cut off" in copy.error("log", "show", code=4)


def test_a_foreign_file(copy: Folder) -> None:
    (copy.path / "letter.db").write_text("Dear Sir or Madam, " * 100)
    for arguments in (("log", "verify"), ("log", "show"), ("run", "drone:fleet")):
        assert "not a journal" in copy.error(*arguments, "--journal", "letter.db", code=4)
    (copy.path / "bird.py").write_text((copy.path / "drone.py").read_text().replace('"delivery"', '"birds"'))
    assert "belongs to fleet 'delivery', not to 'birds'" in copy.error(
        "run", "bird:fleet", "--journal", "delivery.db", code=4
    )
    assert "belongs to the fleet 'delivery'" in copy.error(
        "state", "Drone/D-0", "--fleet", "bird:fleet", "--journal", "delivery.db", code=4
    )
