"""`stigmergy proto`: the files that it writes, what it refuses, and --check for CI."""

from pathlib import Path

import pytest

from tests.cli.conftest import DRONE, Folder
from tests.cli.in_process import Here


@pytest.fixture
def drones(tmp_path: Path) -> Folder:
    (tmp_path / "drone.py").write_text(DRONE, encoding="utf-8")
    return Here(tmp_path)


def test_writes_the_file_and_keeps_the_numbers(drones: Folder) -> None:
    first = drones.cli("proto", "drone:fleet", "--out", "fleet.proto")
    assert first.returncode == 0
    assert "fleet.proto: written" in first.stderr
    text = (drones.path / "fleet.proto").read_text()
    assert "rpc Send(SendRequest) returns (SendReply);" in text
    assert "optional string mission = 1;  // required" in text
    assert drones.cli("proto", "drone:fleet").stdout == text
    assert drones.json("proto", "drone:fleet", "--out", "fleet.proto", "--check") == {
        "numbers": str(next(drones.path.glob("*.proto.lock"))),
        "proto": "fleet.proto",
        "changes": [],
        "stale": [],
    }


def test_check_fails_until_the_change_is_committed(drones: Folder) -> None:
    drones.cli("proto", "drone:fleet", "--out", "fleet.proto")
    changed = DRONE.replace("    mission: str\n", "    mission: str\n    urgent: bool = False\n", 1)
    assert changed != DRONE
    (drones.path / "drone.py").write_text(changed, encoding="utf-8")
    before = (drones.path / "fleet.proto").read_bytes()
    checked = drones.cli("proto", "drone:fleet", "--out", "fleet.proto", "--check")
    assert checked.returncode == 1
    assert "fleet.proto: out of date" in checked.stderr
    assert (drones.path / "fleet.proto").read_bytes() == before
    assert drones.cli("proto", "drone:fleet", "--out", "fleet.proto").returncode == 0
    assert drones.cli("proto", "drone:fleet", "--out", "fleet.proto", "--check").returncode == 0
    (drones.path / "drone.py").write_text(DRONE, encoding="utf-8")
    gone = drones.cli("proto", "drone:fleet")
    assert gone.returncode == 2
    assert ".urgent is gone, and old clients still use its number" in gone.stderr


@pytest.mark.parametrize("options", [("--grpc", ":0"), ("--serve", "0.0.0.0:0")], ids=["no numbers", "no tokens"])
def test_a_node_that_could_not_be_served_opens_nothing(drones: Folder, options: tuple[str, ...]) -> None:
    refused = drones.cli("run", "drone:fleet", *options)
    assert refused.returncode == 2
    assert ("field numbers" if "--grpc" in options else "token") in refused.stderr
    assert [path.name for path in drones.path.iterdir() if path.name != "__pycache__"] == ["drone.py"]
