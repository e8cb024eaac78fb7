"""A node of several processes, run as its users run it: real processes, and some of them killed."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from stigmergy.base.errors import StigmergyError
from stigmergy.cli.processes import PAUSE_S, PAUSE_S_MAX, RESTARTS_MAX, RESTARTS_WITHIN_S, Restarts
from stigmergy.network.shares import process_of
from stigmergy.shard.state import shard_of
from tests.cli.conftest import START_S_MAX, Folder, Node
from tests.cli.in_process import Here

SHARDS = 4
RELAY = f"""
import os

from stigmergy import (
    Agent, Command, Effects, Event, Events, Fleet, Settings, Snapshots, Tell, decide, evolve, react,
)


class Count(Command):
    number: int
    to: str


class Counted(Event):
    number: int
    to: str


class Heard(Event):
    by: str
    number: int


class Fall(Command):
    pass


class Relay(Agent):
    counted: tuple[int, ...] = ()
    heard: tuple[tuple[str, int], ...] = ()

    @decide
    def count(self, command: Count) -> Events:
        yield Counted(number=command.number, to=command.to)

    @decide
    def fall(self, command: Fall) -> Events:
        os._exit(7)

    @evolve
    def was_counted(self, event: Counted) -> None:
        self.counted = (*self.counted, event.number)

    @react
    def pass_on(self, event: Counted) -> Effects:
        yield Tell(event.to, Heard(by=self.address, number=event.number))

    @evolve
    def was_heard(self, event: Heard) -> None:
        self.heard = (*self.heard, (event.by, event.number))


settings = Settings(snapshots=Snapshots(every_events=50, tail_ratio=0.0))
fleet = Fleet("delivery", agents=[Relay], shards={SHARDS}, settings=settings)
"""


def process_with(agent: str, processes: int = 2) -> int:
    return process_of(shard_of(agent, SHARDS), processes, SHARDS)


HERE = next(f"Relay/{n}" for n in range(99) if process_with(f"Relay/{n}") == 1)
THERE = next(f"Relay/{n}" for n in range(99) if process_with(f"Relay/{n}") == 2)


@pytest.fixture
def relays(folder: Folder) -> Folder:
    (folder.path / "relay.py").write_text(RELAY, encoding="utf-8")
    return folder


@pytest.fixture(scope="module")
def shared_relays(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Folder]:
    """A running node of two processes, for tests that leave it as it is."""
    folder = Here(tmp_path_factory.mktemp("relays"))
    (folder.path / "relay.py").write_text(RELAY, encoding="utf-8")
    start(folder)
    for number, agent in enumerate((HERE, THERE) * 3):
        other = THERE if agent == HERE else HERE
        folder.ask(do="send", agent=agent, command="Count", fields={"number": number, "to": other})
    yield folder
    folder.close()


def start(folder: Folder, *arguments: str) -> Node:
    return folder.start("relay:fleet", "--processes", "2", *arguments)


def retried(folder: Folder, within_s: float = START_S_MAX, **request: Any) -> Any:
    """Asks until somebody answers: a process may be down for a moment."""
    deadline_s = time.monotonic() + within_s
    while True:
        try:
            return folder.ask(**request)
        except (KeyError, StigmergyError):
            assert time.monotonic() < deadline_s, request
            time.sleep(0.05)


def eventually(check: Callable[[], bool], within_s: float = START_S_MAX) -> None:
    deadline_s = time.monotonic() + within_s
    while not check():
        assert time.monotonic() < deadline_s
        time.sleep(0.05)


def runs(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    state = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()[0]
    return state != "Z"


class TestAsking:
    def test_agents_are_asked_where_they_live_and_tell_each_other(self, shared_relays: Folder) -> None:
        for agent, other, numbers in ((HERE, THERE, [0, 2, 4]), (THERE, HERE, [1, 3, 5])):
            state = retried(shared_relays, do="state", agent=agent)["state"]
            assert state["counted"] == numbers
            eventually(
                lambda other=other, agent=agent, numbers=numbers: (  # type: ignore[misc]
                    retried(shared_relays, do="state", agent=other)["state"]["heard"] == [[agent, n] for n in numbers]
                )
            )

    def test_status_adds_up_and_names_the_processes(self, shared_relays: Folder) -> None:
        status = shared_relays.json("status")
        assert status["agents"] == 2
        assert status["pid"] == shared_relays.nodes[0].process.pid
        assert [head["shard"] for head in status["heads"]] == [0, 1, 2, 3]
        assert status["counters"]["accepted"] == 6
        assert status["counters"]["neighbour_tells_settled"] == 6
        assert len(status["signers"]) == 1
        assert [(one["first_shard"], one["last_shard"]) for one in status["processes"]] == [(0, 1), (2, 3)]
        assert [one["pid"] for one in status["processes"]] == shared_relays.nodes[0].listening["pids"]
        shown = shared_relays.cli("status")
        assert "PROCESS" in shown.stdout
        assert "2 to 3" in shown.stdout
        (top,) = shared_relays.lines("top", "--once")
        assert top["status"]["agents"] == 2

    def test_log_of_all_is_in_the_order_of_time(self, shared_relays: Folder) -> None:
        entries = shared_relays.lines("log", "show")
        assert [entry["time_ns"] for entry in entries] == sorted(entry["time_ns"] for entry in entries)
        counted = [entry["fields"]["number"] for entry in entries if entry["type"] == "Counted@1"]
        assert counted == [0, 1, 2, 3, 4, 5]
        assert len(shared_relays.lines("log", "show", "--limit", "3")) == 3
        assert shared_relays.lines("log", "show", "--limit", "3") == entries[-3:]
        mine = shared_relays.lines("log", "show", THERE)
        assert mine == [entry for entry in entries if entry["agent"] == THERE]
        exported = shared_relays.cli("log", "export").stdout.splitlines()
        assert [json.loads(line) for line in exported] == entries
        assert shared_relays.lines("log", "show", "--shard", "9", code=2)
        found = shared_relays.json("log", "verify")
        assert found["sound"]
        assert [head["shard"] for head in found["heads"]] == sorted({entry["shard"] for entry in entries})

    def test_names_are_those_of_all(self, shared_relays: Folder) -> None:
        found = shared_relays.ask(do="names")
        assert found["agents"] == sorted([HERE, THERE])
        assert "Count" in found["kinds"]["Relay"]["commands"]

    def test_what_cannot_be_asked_of_all_says_whom_to_ask(self, shared_relays: Folder) -> None:
        said = shared_relays.error("log", "hold", "list", code=2)
        assert "delivery.db/1-of-2.db.sock" in said
        held = shared_relays.json("log", "hold", "list", "--socket", "delivery.db/1-of-2.db.sock")
        assert held == {"holds": []}
        assert "9.1.1" in shared_relays.error("letters", "drop", "9.1.1", code=2)
        assert "no address of an agent here" in shared_relays.error("send", "Nobody/1", "Count", code=2)

    def test_a_process_says_who_has_an_agent(self, shared_relays: Folder) -> None:
        socket = ("--socket", "delivery.db/1-of-2.db.sock")
        said = shared_relays.error("send", THERE, "Count", "number=1", f"to={HERE}", *socket, code=3)
        assert "which process 2 of 2 has" in said


class TestLife:
    def test_stop_look_and_start_again(self, relays: Folder) -> None:
        node = start(relays)
        relays.ask(do="send", agent=HERE, command="Count", fields={"number": 1, "to": THERE})
        eventually(lambda: retried(relays, do="status")["owed"] == 0)
        pids = node.listening["pids"]
        code, out = node.end(signal.SIGTERM)
        assert code == 0
        assert json.loads(out) == {"event": "stopped", "fleet": "delivery", "reason": "SIGTERM"}
        assert not any(runs(pid) for pid in pids)
        assert sorted(os.listdir(relays.path / "delivery.db")) == [
            f"{part}.db{ending}" for part in ("1-of-2", "2-of-2") for ending in ("", "-mark", "-reserve")
        ]
        assert relays.json("log", "verify")["sound"]
        assert relays.json("state", THERE, "--fleet", "relay:fleet")["state"]["heard"] == [[HERE, 1]]
        assert len(relays.lines("log", "show")) == len(relays.cli("log", "export").stdout.splitlines())
        assert "1-of-2.db" in relays.error("replay", "relay:fleet", code=2)
        assert relays.json("replay", "relay:fleet", "--journal", "sqlite:delivery.db/2-of-2.db")["same"]
        again = start(relays)
        assert again.recovered["agents"] == 2
        relays.json("stop")
        assert again.process.wait(START_S_MAX) == 0

    def test_numbers_that_do_not_fit_are_refused_with_the_way_out(self, relays: Folder) -> None:
        assert "each needs one at least" in relays.error("run", "relay:fleet", "--processes", "5", code=2)
        start(relays).end()
        said = relays.error("run", "relay:fleet", "--processes", "3", code=2)
        assert "made for 2 processes, not for 3" in said
        assert "--processes 2" in said
        assert "run it with --processes 2" in relays.error("run", "relay:fleet", code=2)

    def test_parts_that_were_swapped_are_refused(self, relays: Folder) -> None:
        (relays.path / "stigmergy.toml").write_text('[fleet]\nmodule = "relay:fleet"\nprocesses = 2\n')
        node = relays.start("--processes", "2")
        node.end()
        parts = relays.path / "delivery.db"
        for name in ("", "-mark"):
            (parts / f"1-of-2.db{name}").rename(parts / "kept")
            (parts / f"2-of-2.db{name}").rename(parts / f"1-of-2.db{name}")
            (parts / "kept").rename(parts / f"2-of-2.db{name}")
        said = relays.error("run", code=4)
        assert "process" in said
        assert "run it with as many as it was made for" in said

    @pytest.mark.prove
    def test_segments_too(self, relays: Folder) -> None:
        node = start(relays, "--journal", "segments:fleet")
        path = relays.path / "fleet.sock"
        assert path.exists()
        journal = ("--journal", "segments:fleet")
        assert relays.json("send", THERE, "Count", "number=1", f"to={HERE}", *journal)["accepted"]
        node.end()
        assert relays.json("log", "verify", "--journal", "fleet")["sound"]
        assert relays.json("state", THERE, "--fleet", "relay:fleet", *journal)["state"]["counted"] == [1]


class TestDeath:
    def test_killed_process_is_started_again_and_nothing_is_lost(self, relays: Folder) -> None:
        node = start(relays)
        count = 40
        for number in range(count):
            agent, other = (HERE, THERE) if number % 2 else (THERE, HERE)
            if number % 10 == 5:
                victim = retried(relays, do="status")["processes"][number // 10 % 2]["pid"]
                os.kill(victim, signal.SIGKILL)
            fields = {"number": number, "to": other}
            retried(relays, do="send", agent=agent, command="Count", fields=fields, command_id=f"c{number}")
        eventually(lambda: len(retried(relays, do="state", agent=HERE)["state"]["heard"]) >= count // 2)
        eventually(lambda: len(retried(relays, do="state", agent=THERE)["state"]["heard"]) >= count // 2)
        for agent, other, parity in ((HERE, THERE, 1), (THERE, HERE, 0)):
            numbers = list(range(parity, count, 2))
            assert retried(relays, do="state", agent=agent)["state"]["counted"] == numbers
            assert retried(relays, do="state", agent=other)["state"]["heard"] == [[agent, n] for n in numbers]
        code, out = node.end()
        assert code == 0
        said = [json.loads(line) for line in out.splitlines()]
        assert [one["event"] for one in said].count("process ended") == 4
        assert all(one["code"] == -signal.SIGKILL for one in said if one["event"] == "process ended")
        assert relays.json("log", "verify")["sound"]

    def test_supervisor_that_is_killed_leaves_nobody_behind(self, relays: Folder) -> None:
        node = start(relays)
        relays.ask(do="send", agent=HERE, command="Count", fields={"number": 1, "to": THERE})
        pids = node.listening["pids"]
        assert all(runs(pid) for pid in pids)
        node.end(signal.SIGKILL)
        eventually(lambda: not any(runs(pid) for pid in pids))
        assert relays.json("log", "verify")["sound"]
        assert start(relays).recovered["agents"] >= 1

    def test_second_signal_ends_all_at_once(self, relays: Folder) -> None:
        node = start(relays)
        for pid in node.listening["pids"]:
            os.kill(pid, signal.SIGSTOP)
        node.process.send_signal(signal.SIGTERM)
        time.sleep(0.3)
        assert node.process.poll() is None
        node.process.send_signal(signal.SIGTERM)
        assert node.process.wait(START_S_MAX) == 0
        assert not any(runs(pid) for pid in node.listening["pids"])

    def test_process_that_cannot_stay_up_ends_the_node_loudly(self, relays: Folder) -> None:
        (relays.path / "relay.py").write_text(
            RELAY + "\nif '--process' in __import__('sys').argv and os.path.exists('fall'):\n    os._exit(7)\n"
        )
        node = start(relays)
        (relays.path / "fall").write_text("")
        os.kill(node.listening["pids"][1], signal.SIGKILL)
        out, err = node.process.communicate(timeout=240)
        assert node.process.returncode == 3, (out, err)
        assert out.count('"process ended"') == RESTARTS_MAX
        assert "process 2 has ended 6 times within 60 s, the last time with code 7" in out + err
        assert not any(runs(pid) for pid in node.listening["pids"])

    def test_error_that_no_start_mends_ends_the_node_at_once(self, relays: Folder) -> None:
        start(relays).end()
        (relays.path / "delivery.key").unlink()
        assert "put the file back" in relays.error("run", "relay:fleet", "--processes", "2", code=4)
        assert not (relays.path / "delivery.key").exists()
        relays.json("keys", "new", "delivery.key")
        said = relays.error("run", "relay:fleet", "--processes", "2", code=4)
        assert "not enrolled in this journal" in said

    def test_process_alone_is_not_for_people(self, relays: Folder) -> None:
        command = [sys.executable, "-m", "stigmergy", "run", "relay:fleet", "--processes", "2", "--process", "1"]
        done = subprocess.run(command, cwd=relays.path, capture_output=True, text=True, timeout=240, check=False)
        assert done.returncode == 2
        assert "a supervisor starts" in done.stderr


class TestRestarts:
    def test_pause_grows_and_too_often_is_too_often(self) -> None:
        restarts = Restarts()
        pauses = [restarts.died(float(number)) for number in range(RESTARTS_MAX + 1)]
        assert pauses[0] == PAUSE_S
        assert pauses[-1] is None
        assert pauses[:-1] == sorted(pauses[:-1], key=lambda pause: pause or 0.0)

    def test_one_that_dies_now_and_then_goes_on_for_ever(self) -> None:
        restarts = Restarts()
        for number in range(100):
            pause_s = restarts.died(number * RESTARTS_WITHIN_S / 2)
            assert pause_s is not None
            assert pause_s <= PAUSE_S_MAX
