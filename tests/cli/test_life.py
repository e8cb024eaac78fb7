"""A node from its start to its end: run, use, stop, kill, start again."""

import contextlib
import json
import signal
import subprocess
import sys

from stigmergy.base.errors import NotRunning
from tests.cli.conftest import Folder


def test_run_send_state_stop_restart(folder: Folder) -> None:
    node = folder.start()
    assert node.recovered["commits"] == 0
    assert node.listening["socket"] == "delivery.db.sock"
    answer = folder.json("send", "Drone/D-17", "StartMission", "mission=M1", "priority=3")
    assert (answer["accepted"], answer["position"], answer["reason"]) == (True, 2, None)
    folder.json("send", "Drone/D-17", "FlyTo", "waypoints=[[1, 2], [3, 4]]", "urgent=yes", code=2)
    folder.json("send", "Drone/D-17", "FlyTo", "waypoints=[[1, 2], [3, 4]]", "urgent=true")
    assert folder.json("observe", "Drone/D-17", "BatteryMeasured", "percent=12")["observed"] is True
    refused = folder.json("send", "Drone/D-17", "StartMission", "mission=M2", code=1)
    assert (refused["accepted"], refused["reason"]) == (False, "battery at 12 %, 20 % needed")
    seen = folder.json("state", "Drone/D-17")
    assert seen["state"] == {"id": "D-17", "battery": 12.0, "mission": "M1", "route": [[1.0, 2.0], [3.0, 4.0]]}
    code, out = node.end(signal.SIGTERM)
    assert code == 0
    assert json.loads(out) == {"event": "stopped", "fleet": "delivery", "reason": "SIGTERM"}
    assert not (folder.path / "delivery.db.sock").exists()
    assert (folder.path / "landed.txt").read_text() == "Drone/D-17\n"

    again = folder.start()
    assert again.recovered["agents"] == 1
    assert again.recovered["snapshots"]["0"] > 1
    assert again.recovered["commits"] > 0
    assert folder.json("state", "Drone/D-17")["state"] == seen["state"]
    assert again.end(signal.SIGINT)[0] == 0


def test_a_command_id_is_answered_once(here: Folder) -> None:
    here.start()
    first = here.json("send", "Drone/D-1", "StartMission", "mission=M1", "--command-id", "order-1")
    again = here.json("send", "Drone/D-1", "StartMission", "mission=M1", "--command-id", "order-1")
    assert first == again
    other = here.json("send", "Drone/D-1", "StartMission", "mission=M2", "--command-id", "order-1", code=1)
    assert other["accepted"] is False
    assert other["reason"] == "another command had the id 'order-1'; send this one with an id of its own"
    assert here.json("state", "Drone/D-1")["state"]["mission"] == "M1"
    answers = [entry for entry in here.lines("log", "show") if entry["kind"] == "answer"]
    assert len(answers) == 1
    assert answers[0]["cause"]["command_id"] == "order-1"


def test_killed_and_started_again_on_its_stale_socket(here: Folder) -> None:
    node = here.start()
    here.json("send", "Drone/D-17", "StartMission", "mission=M1")
    assert node.end(signal.SIGKILL)[0] == -signal.SIGKILL
    assert (here.path / "delivery.db.sock").exists()
    assert "start it: stigmergy run" in here.error("send", "Drone/D-17", "StartMission", "mission=M2", code=3)
    again = here.start()
    assert again.recovered["events"] == 2
    assert here.json("state", "Drone/D-17")["state"]["mission"] == "M1"
    assert (here.path / "delivery.db.sock").stat().st_mode & 0o777 == 0o600


def test_a_second_run_on_one_journal_is_refused(here: Folder) -> None:
    node = here.start()
    said = here.error("run", "drone:fleet", code=3)
    assert f"process {node.process.pid} has the journal open" in said
    assert here.json("status")["pid"] == node.process.pid
    # Another journal, but the same socket: the living one keeps it.
    done = here.cli("run", "drone:fleet", "--journal", "other.db", "--socket", "delivery.db.sock")
    assert done.returncode == 3
    assert "another node answers there" in done.stderr
    assert here.json("status")["pid"] == node.process.pid


def test_a_journal_that_fails_ends_the_node(here: Folder) -> None:
    node = here.start(file_bytes_max=60_000)
    acknowledged = 0
    with contextlib.suppress(KeyError, NotRunning):
        while acknowledged < 1000:
            fields = {"mission": "x" * 1000}
            here.ask(do="send", agent=f"Drone/D-{acknowledged}", command="StartMission", fields=fields)
            acknowledged += 1
    assert 0 < acknowledged < 1000
    out, _ = node.process.communicate(timeout=240)
    assert node.process.returncode == 4
    said = json.loads(out)
    assert said["kind"] == "JournalUnknown"
    assert "nobody knows whether it was kept" in said["error"]
    # Everything acknowledged is there.
    again = here.start()
    assert again.recovered["agents"] >= acknowledged
    assert again.end()[0] == 0
    assert here.json("log", "verify")["sound"] is True


def test_stop_waits_for_the_end(here: Folder) -> None:
    node = here.start()
    assert here.json("stop") == {"stopped": True}
    assert node.process.wait(timeout=240) == 0
    here.error("stop", code=3)


def test_configured_by_a_file(here: Folder) -> None:
    (here.path / "data").mkdir()
    (here.path / "stigmergy.toml").write_text(
        '[fleet]\nmodule = "drone:fleet"\njournal = "sqlite:data/north.db"\nkey = "data/north.key"\n'
    )
    process = subprocess.Popen(
        [sys.executable, "-m", "stigmergy", "run", "--json"], cwd=here.path, stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    process.stdout.readline()
    process.stdout.readline()
    try:
        here.json("send", "Drone/D-17", "StartMission", "mission=M1")
        assert (here.path / "data" / "north.db.sock").exists()
        assert (here.path / "data" / "north.key").exists()
    finally:
        process.terminate()
        process.communicate(timeout=240)
    assert here.json("state", "Drone/D-17")["state"]["mission"] == "M1"
    assert here.json("log", "verify")["sound"] is True
    assert "start it: stigmergy run\n" in here.error("status", code=3)


def test_a_long_path_is_reached_through_its_folder(here: Folder) -> None:
    deep = here.path / ("d" * 60) / ("e" * 60)
    deep.mkdir(parents=True)
    here.start("drone:fleet", "--journal", f"sqlite:{deep}/fleet.db")
    assert len(str(deep / "fleet.db.sock")) > 107
    assert here.json("status", "--journal", f"{deep}/fleet.db")["fleet"] == "delivery"


def test_something_else_in_the_place_of_the_socket(folder: Folder) -> None:
    (folder.path / "delivery.db.sock").write_text("mine")
    done = folder.cli("run", "drone:fleet")
    assert done.returncode == 2
    assert "is no socket" in done.stderr
    assert (folder.path / "delivery.db.sock").read_text() == "mine"


def test_in_memory_with_a_socket_of_its_own(here: Folder) -> None:
    here.start("drone:fleet", "--journal", "memory:")
    here.json("send", "Drone/D-17", "StartMission", "mission=M1")
    assert here.json("state", "Drone/D-17", "--at", "1")["state"]["mission"] is None
    assert not (here.path / "delivery.key").exists()


STUBBORN = """
import asyncio
import sys

from stigmergy import Agent, Event, Fleet, Settings, evolve


class Measured(Event):
    value: float


class Meter(Agent):
    value: float = 0.0

    @evolve
    def measured(self, event: Measured) -> None:
        self.value = event.value


fleet = Fleet("delivery", agents=[Meter], settings=Settings(drain_s=0.2))


@fleet.sensor(Meter, every_s=0.1, agents=["M-1"])
async def deaf(name: str) -> Measured:
    while True:
        try:
            await asyncio.sleep(3600)
        except asyncio.CancelledError:
            pass


@fleet.sensor(Meter, every_s=0.1, agents=["M-1"])
async def whole(name: str) -> Measured:
    return Measured(value=1.0)
"""


def test_a_sensor_that_cannot_be_cancelled_keeps_no_node_from_ending(folder: Folder) -> None:
    (folder.path / "stubborn.py").write_text(STUBBORN)
    node = folder.start("stubborn:fleet")
    assert "socket" in node.listening
    code, out = node.end(signal.SIGTERM)
    assert (code, json.loads(out)["event"]) == (0, "stopped")
    assert folder.start("stubborn:fleet").process.poll() is None


def test_a_sensor_that_ends_the_program_has_it_drained(folder: Folder) -> None:
    ending = STUBBORN.replace("    return Measured(value=1.0)", "    sys.exit(7)")
    (folder.path / "stubborn.py").write_text(
        ending.split("@fleet.sensor")[0] + "@fleet.sensor" + ending.split("@fleet.sensor")[2]
    )
    done = folder.cli("run", "stubborn:fleet")
    assert done.returncode == 7
    assert "Traceback" not in done.stderr
    assert not (folder.path / "delivery.db.sock").exists()
    assert folder.json("log", "verify")["sound"] is True


def test_agents_that_the_configuration_left_out_are_named_at_the_start(folder: Folder) -> None:
    node = folder.start()
    for name in ("a1", "a2", "b1"):
        folder.ask(do="send", agent=f"Drone/{name}", command="StartMission", fields={"mission": "M"})
    node.end()
    (folder.path / "stigmergy.toml").write_text('[fleet]\nagents = ["Drone/a*"]\n', encoding="utf-8")
    again = folder.start()
    assert again.recovered["at_rest"] == ["Drone/b1"]
