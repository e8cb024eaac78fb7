"""Journals in parts, which an earlier version wrote with `run --processes N`: all of them are read, none is run."""

import json
import shutil
from pathlib import Path

import pytest

from tests.cli.conftest import Folder

FIXTURE = Path(__file__).parent.parent / "fixtures" / "parts"
JOURNALS = ("sqlite:delivery.db", "segments:delivery")
PART = {"sqlite:delivery.db": "sqlite:delivery.db/2-of-2.db", "segments:delivery": "segments:delivery/2-of-2"}


@pytest.fixture(params=JOURNALS)
def journal(request: pytest.FixtureRequest, here: Folder) -> str:
    shutil.copytree(FIXTURE, here.path, dirs_exist_ok=True)
    return str(request.param)


def test_log_of_all_parts_is_listed_in_the_order_of_time(here: Folder, journal: str) -> None:
    entries = here.lines("log", "show", "--journal", journal)
    assert [entry["time_ns"] for entry in entries] == sorted(entry["time_ns"] for entry in entries)
    counted = [entry["fields"]["number"] for entry in entries if entry["type"] == "Counted@1"]
    heard = [entry["fields"]["number"] for entry in entries if entry["type"] == "Heard@1"]
    assert (counted, sorted(heard)) == ([1, 2, 3, 4], [1, 2, 3, 4])
    assert {entry["shard"] for entry in entries if entry["agent"] in ("Relay/0", "Relay/1")} == {1, 2}
    exported = here.cli("log", "export", "--journal", journal).stdout.splitlines()
    assert [json.loads(line) for line in exported] == entries


def test_log_of_all_parts_is_verified(here: Folder, journal: str) -> None:
    found = here.json("log", "verify", "--journal", journal)
    assert found["sound"]
    assert (found["commits"], found["signatures"]) == (13, 13)
    assert [head["shard"] for head in found["heads"]] == [0, 1, 2]


def test_state_is_found_in_its_part_now_and_as_it_was(here: Folder, journal: str) -> None:
    asked = ("--fleet", "relay:fleet", "--journal", journal)
    state = here.json("state", "Relay/1", *asked)["state"]
    assert (state["counted"], state["heard"]) == ([2, 4], [["Relay/0", 1], ["Relay/0", 3]])
    assert here.json("state", "Relay/1", "--at", "4", *asked)["state"]["counted"] == [2]


def test_replay_takes_one_part_at_a_time(here: Folder, journal: str) -> None:
    assert "1-of-2" in here.error("replay", "relay:fleet", "--journal", journal, code=2)
    assert here.json("replay", "relay:fleet", "--journal", PART[journal])["same"]


def test_doctor_looks_at_all_parts(here: Folder, journal: str) -> None:
    done = here.cli("doctor", "--journal", journal, "--json")
    (found,) = [json.loads(line) for line in done.stdout.splitlines()]
    verified = [one for one in found["checks"] if one["check"] == "journal.verifies"]
    assert [(one["level"], one["facts"]["commits"]) for one in verified] == [("ok", 6), ("ok", 7)]


def test_run_says_how_to_go_on_and_changes_nothing(here: Folder, journal: str) -> None:
    before = sorted(str(path) for path in here.path.rglob("*") if "__pycache__" not in str(path))
    said = here.error("run", "relay:fleet", "--journal", journal, code=2)
    assert "an earlier version wrote it with run --processes 2" in said
    assert "name another --journal" in said
    assert "stigmergy up" in said
    part = here.error("run", "relay:fleet", "--journal", PART[journal], code=4)
    assert "an earlier version wrote it with run --processes" in part
    assert sorted(str(path) for path in here.path.rglob("*") if "__pycache__" not in str(path)) == before


def test_more_processes_are_refused_with_the_command_for_workers(here: Folder) -> None:
    said = here.error("run", "drone:fleet", "--processes", "2", code=2)
    assert "--processes 2: a node is one process" in said
    assert "stigmergy up drone:fleet --workers 2" in said
    (here.path / "stigmergy.toml").write_text('[fleet]\nmodule = "drone:fleet"\nprocesses = 3\n')
    said = here.error("run", code=2)
    assert "processes in stigmergy.toml: a node is one process" in said
    assert "stigmergy up drone:fleet --workers 3" in said
    assert "--processes" not in here.cli("run", "--help").stdout
