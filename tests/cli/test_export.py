"""`log export` and `log verify FILE`: for other tools, and as a file that proves itself."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from pyarrow import parquet  # type: ignore[import-untyped,unused-ignore]

from stigmergy.audit.listing import Cause, LogEntry
from stigmergy.cli import export
from stigmergy.cli import export as tables
from tests.cli.conftest import DRONE, Folder
from tests.cli.in_process import Here


@pytest.fixture(scope="module")
def stopped(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the journal of a node that has stopped, and exports that were made while it ran; tests copy it."""
    path = tmp_path_factory.mktemp("stopped")
    (path / "drone.py").write_text(DRONE, encoding="utf-8")
    folder = Here(path)
    node = folder.start()
    for number in range(5):
        fields = {"mission": f"mission-number-{number}"}
        folder.ask(do="send", agent=f"Drone/D-{number % 2}", command="StartMission", fields=fields)
    folder.ask(do="observe", agent="Drone/D-0", event="BatteryMeasured", fields={"percent": 12.0})
    folder.json("log", "export", "--to", "live.jsonl")
    folder.json("log", "export", "--flight", "live.flight")
    folder.json("log", "export", "--format", "parquet", "--to", "live/")
    node.end()
    return path


@pytest.fixture
def copy(stopped: Path, tmp_path: Path) -> Folder:
    shutil.copytree(stopped, tmp_path / "copy")
    return Here(tmp_path / "copy")


def entries(text: str) -> list[dict[str, object]]:
    return [json.loads(line) for line in text.splitlines()]


def test_a_running_node_and_its_journal_export_the_same(copy: Folder) -> None:
    after = entries(copy.cli("log", "export").stdout)
    live = entries((copy.path / "live.jsonl").read_text())
    assert live == after[: len(live)]
    assert [one["type"] for one in live if one["kind"] == "event"].count("MissionStarted@1") == 5
    assert copy.json("log", "verify", "live.flight")["sound"] is True


def test_a_folder_of_tables_is_made_beside_a_running_node(copy: Folder) -> None:
    table: Any = parquet.read_table(copy.path / "live" / "log.parquet")
    live = entries((copy.path / "live.jsonl").read_text())
    assert table.column("type").to_pylist() == [one["type"] for one in live]
    assert [path.name for path in copy.path.iterdir() if path.name.startswith("stigmergy-export")] == []


def test_filters(copy: Folder) -> None:
    def types(*arguments: str) -> list[object]:
        return [one["type"] for one in entries(copy.cli("log", "export", *arguments).stdout)]

    assert types("Drone/D-0", "--type", "BatteryMeasured") == ["BatteryMeasured@1"]
    measured = entries(copy.cli("log", "export", "--type", "BatteryMeasured@1").stdout)[0]
    assert types("--from", str(measured["position"]), "--upto", str(measured["position"])) == ["BatteryMeasured@1"]
    assert "BatteryMeasured@1" in types("--since", str(measured["time"]).replace("Z", "+00:00"))
    assert "BatteryMeasured@1" not in types("--until", "2020-01-01T00:00:00Z")
    assert "give a time" in copy.error("log", "export", "--since", "7", code=2)
    assert "shards 0 to 0" in copy.error("log", "export", "--shard", "9", code=2)


def test_cloudevents(copy: Folder) -> None:
    said = copy.json("log", "export", "Drone/D-0", "--format", "cloudevents", "--to", "events.jsonl")
    events = entries((copy.path / "events.jsonl").read_text())
    assert said["entries"] == len(events) == 4
    last = events[-1]
    assert last["specversion"] == "1.0"
    assert (last["type"], last["subject"]) == ("BatteryMeasured@1", "Drone/D-0")
    assert last["source"] == "/delivery/agents/Drone/D-0"
    assert last["data"] == {"percent": 12.0}
    assert len({event["id"] for event in events}) == 4


def test_parquet(copy: Folder) -> None:
    copy.json("log", "export", "--format", "parquet", "--to", "log.parquet")
    table: Any = parquet.read_table(copy.path / "log.parquet")
    lines = entries(copy.cli("log", "export").stdout)
    assert table.num_rows == len(lines)
    rows = table.to_pylist()
    assert [row["type"] for row in rows] == [line["type"] for line in lines]
    assert [json.loads(row["fields"]) for row in rows] == [line["fields"] for line in lines]
    assert [row["time_ns"] for row in rows] == [line["time_ns"] for line in lines]
    assert table.schema.field("time").type.tz == "UTC"
    assert "--to FILE" in copy.error("log", "export", "--format", "parquet", code=2)


def test_parquet_is_written_in_groups_of_rows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """So that memory does not grow with the log; also where there is nothing to write."""
    monkeypatch.setattr(tables, "ROWS_PER_GROUP", 10)
    entry = LogEntry("event", 0, 1, 0, "", 1_500, "Drone/D-1", "Seen@1", {"a": 1}, Cause("radio"))
    for count, groups in ((35, 4), (0, 1)):
        with (tmp_path / "x").open("wb") as file:
            rows = (export._Described("fleet", 1, entry) for _ in range(count))
            assert export._write_parquet(rows, file) == count
        metadata: Any = parquet.read_metadata(tmp_path / "x")
        assert (metadata.num_rows, metadata.num_row_groups) == (count, groups)


def test_nothing_half_written_is_left(copy: Folder) -> None:
    (copy.path / "kept.jsonl").write_text("before")
    assert "shards 0 to 0" in copy.error("log", "export", "--to", "kept.jsonl", "--shard", "3", code=2)
    assert (copy.path / "kept.jsonl").read_text() == "before"
    assert not list(copy.path.glob("*.new"))
    assert "cannot be written" in copy.error("log", "export", "--to", "no/such/folder/file", code=4)


def test_a_flight_log_is_checked_without_anything_else(copy: Folder, tmp_path: Path) -> None:
    said = copy.json("log", "export", "Drone/D-0", "--flight", "d0.flight", "--reason", "incident 7")
    assert said["flight"] is True
    line = copy.json("keys", "show", "delivery.key")["line"]
    elsewhere = Here(tmp_path / "elsewhere")
    elsewhere.path.mkdir()
    shutil.copy(copy.path / "d0.flight", elsewhere.path)
    found = elsewhere.json("log", "verify", "d0.flight", "--key", line)
    assert found["sound"] is True
    assert (found["fleet"], found["agent"], found["reason"]) == ("delivery", "Drone/D-0", "incident 7")
    assert found["agents"]["Drone/D-0"] == 4
    shown = elsewhere.cli("log", "verify", "d0.flight").stdout
    assert "sound" in shown
    assert "incident 7" in shown
    assert elsewhere.lines("log", "show", "Drone/D-0", "--journal", "flight:d0.flight", "--type", "BatteryMeasured")


def test_a_flipped_byte_in_a_flight_log_is_found_and_named(copy: Folder) -> None:
    file = copy.path / "live.flight"
    file.write_bytes(file.read_bytes().replace(b"mission-number-3", b"mission-number-4"))
    found = copy.json("log", "verify", "live.flight", code=1)
    assert found["sound"] is False
    assert (found["problems"][0]["shard"], found["problems"][0]["position"]) == (0, 5)
    done = copy.cli("log", "verify", "live.flight")
    assert "wrong  shard 0, position 5" in done.stdout
    file.write_bytes(file.read_bytes()[:-40])
    assert copy.json("log", "verify", "live.flight", code=1)["sealed_by"] is None
    file.write_bytes(b"something else")
    assert "not a flight log" in copy.error("log", "verify", "live.flight", code=4)


def test_several_flight_logs_follow_each_other(copy: Folder) -> None:
    copy.json("log", "export", "--flight", "all.flight")
    *_, both = copy.lines("log", "verify", "live.flight", "all.flight")
    assert (both["files"], both["sound"], both["seams"]) == (2, True, [])


def test_what_a_flight_log_cannot_be_cut_by(copy: Folder) -> None:
    assert "whole commits" in copy.error("log", "export", "--flight", "x", "--type", "BatteryMeasured", code=2)
    (copy.path / "delivery.key").unlink()
    assert "--key FILE" in copy.error("log", "export", "--flight", "x", code=2)
    assert not (copy.path / "x").exists()


def test_a_flight_log_is_not_sealed_with_a_key_that_would_not_verify(copy: Folder) -> None:
    """It said that the file can be checked anywhere, and every check of it failed."""
    copy.json("keys", "new", "other.key")
    before = str(entries((copy.path / "live.jsonl").read_text())[-1]["time"])
    refused = copy.error("log", "export", "--flight", "x", "--key", "other.key", code=4)
    assert "would not verify" in refused
    assert not (copy.path / "x").exists()
    copy.json("keys", "rotate", "--old", "delivery.key", "--new", "other.key")
    copy.json("log", "export", "--flight", "x", "--key", "other.key")
    assert copy.json("log", "verify", "x")["sound"] is True
    # Of the time before its enrolment.
    assert "would not verify" in copy.error(
        "log", "export", "--flight", "y", "--key", "other.key", "--until", before, code=4
    )
    copy.json("keys", "revoke", "delivery.key", "--with", "other.key")
    assert "or is revoked" in copy.error("log", "export", "--flight", "z", "--key", "delivery.key", code=4)


def test_nothing_found_is_said(copy: Folder) -> None:
    for arguments in (("Bird/B-1",), ("--since", "2999-01-01T00:00:00Z"), ("--type", "Nothing")):
        result = copy.cli("log", "export", *arguments)
        assert (result.returncode, result.stdout) == (0, "")
        assert "nothing in the log is like that" in result.stderr


@pytest.mark.parametrize("name", ["", "Drone", "Drone/", "/D-1"])
def test_a_name_that_is_none(copy: Folder, name: str) -> None:
    assert "is no agent; write it like Drone/D-17" in copy.error("log", "export", name, code=2)
    assert "is no agent" in copy.error("log", "export", name, "--flight", "x.flight", code=2)


def test_a_flight_log_has_one_form(copy: Folder) -> None:
    assert "either --flight or --format" in copy.error(
        "log", "export", "--flight", "x.flight", "--format", "parquet", code=2
    )


def test_a_part_of_a_flight_log_is_not_taken_for_all_of_it(copy: Folder) -> None:
    """Replay of half a log found nothing different, which is no proof of anything."""
    whole = (copy.path / "live.flight").read_bytes()
    for damaged in (whole[: len(whole) // 2], whole.replace(b"number-3", b"number-4"), whole + whole):
        (copy.path / "part.flight").write_bytes(damaged)
        for command in (("replay", "drone:fleet"), ("log", "show"), ("log", "export")):
            said = copy.error(*command, "--journal", "flight:part.flight", code=4)
            assert "stigmergy log verify part.flight says what is wrong" in said
