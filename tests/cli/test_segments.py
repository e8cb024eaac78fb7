"""A node on a journal in segments: every command that looks at a journal works, running or not, named or found."""

import json
import signal

from tests.cli.conftest import Folder

RUN = ("drone:fleet", "--journal", "segments:delivery")


def work(folder: Folder, place: list[str]) -> None:
    for number in range(6):
        folder.json("send", "Drone/D-17", "StartMission", f"mission=M{number}", *place)
    folder.json("observe", "Drone/D-17", "BatteryMeasured", "percent=12", *place)


def test_run_ask_kill_and_look(folder: Folder) -> None:
    node = folder.start(*RUN)
    assert node.listening["socket"] == "delivery.sock"
    assert sorted(path.name for path in folder.path.iterdir() if "delivery" in path.name) == [
        "delivery",
        "delivery.key",
        "delivery.sock",
    ]
    work(folder, ["--journal", "segments:delivery"])
    running = folder.json("state", "Drone/D-17")
    assert running["state"]["mission"] == "M5"
    assert folder.json("status")["journal_bytes"] > 0
    shown = folder.lines("log", "show")
    held = folder.json("log", "hold", "set", "Drone/D-17", "--reason", "incident 7")
    node.end(signal.SIGKILL)

    assert (
        folder.json("state", "Drone/D-17", "--fleet", "drone:fleet", "--journal", "delivery")["state"]
        == running["state"]
    )
    assert folder.lines("log", "show", "--journal", "delivery") == shown
    assert folder.json("log", "verify")["sound"] is True
    assert folder.json("log", "hold", "list")["holds"] == [held]
    assert len(folder.cli("log", "export").stdout.splitlines()) >= 7
    folder.json("log", "export", "--flight", "all.flight")
    replayed = folder.json("replay", "drone:fleet", "--journal", "segments:delivery")
    assert replayed["same"] is True
    from_flight = folder.json("replay", "drone:fleet", "--journal", "flight:all.flight")
    assert from_flight["digests"] == replayed["digests"]
    findings = json.loads(folder.cli("doctor", "--json").stdout)["checks"]
    checks = {finding["check"]: finding["level"] for finding in findings}
    assert (checks["journal.opens"], checks["journal.verifies"], checks["keys.journal"]) == ("ok", "ok", "ok")

    again = folder.start(*RUN)
    assert again.recovered["agents"] == 1
    assert folder.json("state", "Drone/D-17")["state"] == running["state"]
    assert "process" in folder.error("replay", *RUN, code=3)
    assert again.end()[0] == 0


def test_keys_are_rotated_in_a_stopped_journal(folder: Folder) -> None:
    folder.start(*RUN).end()
    folder.json("keys", "new", "next.key")
    assert folder.json("keys", "rotate", "--old", "delivery.key", "--new", "next.key")["enrolled"] is True
    folder.start(*RUN, "--key", "next.key").end()
    assert folder.json("keys", "revoke", "delivery.key", "--with", "next.key")["revoked"] is True
    assert folder.json("log", "verify")["sound"] is True


def test_configured_folder_is_beside_the_configuration(folder: Folder) -> None:
    (folder.path / "data").mkdir()
    (folder.path / "stigmergy.toml").write_text('[fleet]\nmodule = "drone:fleet"\njournal = "segments:data/log"\n')
    node = folder.start("--config", str(folder.path / "stigmergy.toml"))
    folder.json("send", "Drone/D-1", "StartMission", "mission=M1")
    node.end()
    assert (folder.path / "data" / "log" / "identity").exists()
    assert folder.json("state", "Drone/D-1")["state"]["mission"] == "M1"


def test_two_journals_are_not_mixed_up(folder: Folder) -> None:
    folder.start().end()
    folder.start(*RUN).end()
    assert "more than one journal" in folder.error("log", "verify", code=2)
    assert folder.json("log", "verify", "--journal", "delivery.db")["sound"] is True
    assert folder.json("log", "verify", "--journal", "delivery")["sound"] is True
