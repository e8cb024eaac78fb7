"""A node on a journal in segments: every command that looks at a journal works, running or not, named or found."""

import json
import signal

from tests.cli.conftest import Folder

RUN = ("drone:fleet", "--journal", "segments:delivery")


def work(folder: Folder, place: list[str]) -> None:
    for number in range(6):
        folder.json("send", "Drone/D-17", "StartMission", f"mission=M{number}", *place)
    folder.json("observe", "Drone/D-17", "BatteryMeasured", "percent=12", *place)


def test_run_ask_kill_and_look(here: Folder) -> None:
    node = here.start(*RUN)
    assert node.listening["socket"] == "delivery.sock"
    # The reserve comes with the first commit.
    assert sorted(
        path.name for path in here.path.iterdir() if "delivery" in path.name and "reserve" not in path.name
    ) == [
        "delivery",
        "delivery-mark",
        "delivery.key",
        "delivery.key-journals",
        "delivery.sock",
    ]
    work(here, ["--journal", "segments:delivery"])
    running = here.json("state", "Drone/D-17")
    assert running["state"]["mission"] == "M5"
    assert here.json("status")["journal_bytes"] > 0
    shown = here.lines("log", "show")
    held = here.json("log", "hold", "set", "Drone/D-17", "--reason", "incident 7")
    node.end(signal.SIGKILL)

    assert (
        here.json("state", "Drone/D-17", "--fleet", "drone:fleet", "--journal", "delivery")["state"] == running["state"]
    )
    assert here.lines("log", "show", "--journal", "delivery") == shown
    assert here.json("log", "verify")["sound"] is True
    assert here.json("log", "hold", "list")["holds"] == [held]
    assert len(here.cli("log", "export").stdout.splitlines()) >= 7
    here.json("log", "export", "--flight", "all.flight")
    replayed = here.json("replay", "drone:fleet", "--journal", "segments:delivery")
    assert replayed["same"] is True
    from_flight = here.json("replay", "drone:fleet", "--journal", "flight:all.flight")
    assert from_flight["digests"] == replayed["digests"]
    findings = json.loads(here.cli("doctor", "--json").stdout)["checks"]
    checks = {finding["check"]: finding["level"] for finding in findings}
    assert (checks["journal.opens"], checks["journal.verifies"], checks["keys.journal"]) == ("ok", "ok", "ok")

    again = here.start(*RUN)
    assert again.recovered["agents"] == 1
    assert here.json("state", "Drone/D-17")["state"] == running["state"]
    assert "process" in here.error("replay", *RUN, code=3)
    assert again.end()[0] == 0


def test_keys_are_rotated_in_a_stopped_journal(here: Folder) -> None:
    here.start(*RUN).end()
    here.json("keys", "new", "next.key")
    assert here.json("keys", "rotate", "--old", "delivery.key", "--new", "next.key")["enrolled"] is True
    here.start(*RUN, "--key", "next.key").end()
    assert here.json("keys", "revoke", "delivery.key", "--with", "next.key")["revoked"] is True
    assert here.json("log", "verify")["sound"] is True


def test_configured_folder_is_beside_the_configuration(here: Folder) -> None:
    (here.path / "data").mkdir()
    (here.path / "stigmergy.toml").write_text('[fleet]\nmodule = "drone:fleet"\njournal = "segments:data/log"\n')
    node = here.start("--config", str(here.path / "stigmergy.toml"))
    here.json("send", "Drone/D-1", "StartMission", "mission=M1")
    node.end()
    assert (here.path / "data" / "log" / "identity").exists()
    assert here.json("state", "Drone/D-1")["state"]["mission"] == "M1"


def test_two_journals_are_not_mixed_up(here: Folder) -> None:
    here.start().end()
    here.start(*RUN).end()
    assert "more than one journal" in here.error("log", "verify", code=2)
    assert here.json("log", "verify", "--journal", "delivery.db")["sound"] is True
    assert here.json("log", "verify", "--journal", "delivery")["sound"] is True
