"""`log hold` and the archive: through a running node and on a stopped journal; it survives restarts."""

import time
from pathlib import Path

from tests.cli.conftest import DRONE, Folder

ARCHIVING = """[fleet]
module = "drone:fleet"

[settings.snapshots]
every_events = 5
tail_ratio = 0.0
share_max = 1.0

[settings.retention]
keep_s = 0.01
check_every_s = 0.05
reserve_bytes = 0
archive = "archive"
"""


def send(folder: Folder, first: int, count: int) -> None:
    for number in range(first, first + count):
        folder.ask(do="send", agent="Drone/D-1", command="StartMission", fields={"mission": f"M{number}"})


def first_position(folder: Folder) -> int:
    entries = folder.lines("log", "show", "--from", "1", "--limit", "1")
    return int(entries[0]["position"])


def test_a_hold_is_set_listed_cleared_and_survives(here: Folder) -> None:
    node = here.start()
    held = here.json("log", "hold", "set", "Drone/D-1", "--reason", "incident 7", "--by", "Ada")
    assert (held["hold"], held["open"], held["agent"], held["by"]) == (1, True, "Drone/D-1", "Ada")
    node.end()
    listed = here.json("log", "hold", "list")["holds"]
    assert listed == [held]
    assert "incident 7" in here.cli("log", "hold", "list").stdout
    cleared = here.json("log", "hold", "clear", "1", "--reason", "settled", "--by", "Bea")
    assert (cleared["open"], cleared["cleared_by"], cleared["cleared_why"]) == (False, "Bea", "settled")
    here.start()
    assert here.json("log", "hold", "list")["holds"] == [cleared]
    assert "cleared already" in here.error("log", "hold", "clear", "1", "--reason", "again", code=2)
    assert "no agent" in here.error("log", "hold", "set", "Drone", "--reason", "x", code=2)
    misspelt = here.error("log", "hold", "set", "Dron/D-1", "--reason", "x", code=2)
    assert "'Dron/D-1' is no address of an agent here" in misspelt
    assert "give a time" in here.error("log", "hold", "set", "--since", "7", "--reason", "x", code=2)


def test_log_is_archived_before_it_is_dropped_and_held_log_is_not(here: Folder, tmp_path: Path) -> None:
    (tmp_path / "stigmergy.toml").write_text(ARCHIVING)
    node = here.start("--config", "stigmergy.toml")
    here.json("log", "hold", "set", "--reason", "incident 7")
    send(here, 0, 30)
    time.sleep(0.5)
    assert first_position(here) == 1
    assert not (tmp_path / "archive").exists()
    here.json("log", "hold", "clear", "1", "--reason", "settled")
    send(here, 30, 10)
    until = time.monotonic() + 240
    while first_position(here) == 1 and time.monotonic() < until:
        send(here, 50, 1)
    first = first_position(here)
    assert first > 1
    node.end()
    segments = sorted(str(path.relative_to(tmp_path)) for path in (tmp_path / "archive").iterdir())
    assert segments
    assert all(name.endswith(".flight") for name in segments)
    found = here.lines("log", "verify", *segments, "--key", "delivery.key")
    assert all(one["sound"] for one in found)
    archived = [head["position"] for one in found for head in one.get("heads", [])]
    assert max(archived) >= first - 1
    assert (tmp_path / "drone.py").read_text() == DRONE


def test_an_archive_that_cannot_be_written_is_said(here: Folder, tmp_path: Path) -> None:
    (tmp_path / "stigmergy.toml").write_text(ARCHIVING)
    (tmp_path / "archive").write_text("not a folder")
    here.start("--config", "stigmergy.toml")
    send(here, 0, 30)
    until = time.monotonic() + 240
    while not here.ask(do="status")["troubles"] and time.monotonic() < until:
        send(here, 30, 1)
    status = here.ask(do="status")
    assert "the archive takes nothing" in status["troubles"][0]
    assert status["counters"]["commits_dropped"] == 0
    assert status["counters"]["archive_failures"] > 0
