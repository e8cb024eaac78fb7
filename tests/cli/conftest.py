"""A folder with a fleet in it, and the program run in that folder as a process of its own (see tests/warm.py)."""

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from stigmergy.control.socket import ControlClient
from tests.warm import Warm

START_S_MAX = 240.0
RUN_S_MAX = 240.0

DRONE = """
from stigmergy import (
    Action, Agent, Command, Effects, Event, Events, Fleet, Order, Settings, Snapshots, Supervise,
    decide, evolve, react, reject,
)


class StartMission(Command):
    mission: str
    priority: int = 0


class FlyTo(Command):
    waypoints: tuple[tuple[float, float], ...]
    urgent: bool = False


class Stumble(Command):
    pass


class MissionStarted(Event):
    mission: str
    priority: int


class RouteSet(Event):
    waypoints: tuple[tuple[float, float], ...]
    urgent: bool


class BatteryMeasured(Event):
    percent: float


class Land(Action):
    reason: str


class Drone(Agent):
    battery: float = 100.0
    mission: str | None = None
    route: tuple[tuple[float, float], ...] = ()
    supervision = Supervise(stop_after=2)

    @decide
    def start(self, command: StartMission) -> Events:
        if self.battery < 20:
            reject(f"battery at {self.battery:.0f} %, 20 % needed")
        yield MissionStarted(mission=command.mission, priority=command.priority)

    @decide
    def fly(self, command: FlyTo) -> Events:
        yield RouteSet(waypoints=command.waypoints, urgent=command.urgent)

    @decide
    def stumble(self, command: Stumble) -> Events:
        raise RuntimeError("over its own feet")

    @evolve
    def started(self, event: MissionStarted) -> None:
        self.mission = event.mission

    @evolve
    def routed(self, event: RouteSet) -> None:
        self.route = event.waypoints

    @evolve
    def measured(self, event: BatteryMeasured) -> None:
        self.battery = event.percent

    @react
    def land_when_low(self, event: BatteryMeasured) -> Effects:
        if self.battery < 15:
            yield Land(reason="battery")


settings = Settings(snapshots=Snapshots(every_events=4, tail_ratio=0.0))
fleet = Fleet("delivery", agents=[Drone], settings=settings)
number = 42


@fleet.actuator(Land)
def land(order: Order[Land]) -> None:
    with open("landed.txt", "a") as file:
        file.write(order.agent + "\\n")
"""
VIEWS = """
from stigmergy import Key, View, project


class Missions(View):
    mission: Key[str]
    started: int = 0

    @project
    def began(self, event: MissionStarted) -> None:
        self.started += 1


fleet = Fleet("delivery", agents=[Drone], views=[Missions], shards=4)
"""
"""Put it behind DRONE for a fleet with a view."""


def sentences(stderr: str) -> str:
    """What a command said on stderr; of a log in JSON only why the process has failed."""
    said: list[str] = []
    for line in stderr.splitlines(keepends=True):
        if not line.startswith("{"):
            said.append(line)
        elif (logged := json.loads(line))["code"] == "process-failed":
            said.append(f"error: {logged['message']!s}".replace("\n", "\\n") + "\n")
    return "".join(said)


class Node:
    """A running `stigmergy run`."""

    def __init__(self, process: subprocess.Popen[str], began: list[dict[str, Any]]) -> None:
        self.process = process
        self.recovered, self.listening = began

    def end(self, number: signal.Signals = signal.SIGTERM) -> tuple[int, str]:
        """Signals it and waits; the exit code and what it printed after it had begun."""
        self.process.send_signal(number)
        out, _ = self.process.communicate(timeout=START_S_MAX)
        return self.process.returncode, out


class Folder:
    """A folder in which the program runs."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.nodes: list[Node] = []

    def cli(self, *arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
        """Runs a command to its end."""
        pipe = subprocess.PIPE
        with Warm(*arguments, cwd=self.path, env={**os.environ, **environment}, stdout=pipe, stderr=pipe) as process:
            out, err = process.communicate(timeout=RUN_S_MAX)
        return subprocess.CompletedProcess(process.args, process.returncode, out, err)

    def json(self, *arguments: str, code: int = 0) -> Any:
        """Runs a command with --json; its one document. Nothing else may be on stdout."""
        done = self.cli(*arguments, "--json")
        assert done.returncode == code, (arguments, done)
        assert "Traceback" not in done.stderr
        return json.loads(done.stdout)

    def lines(self, *arguments: str, code: int = 0) -> list[Any]:
        """Runs a command whose --json is a stream; its documents."""
        done = self.cli(*arguments, "--json")
        assert done.returncode == code, (arguments, done)
        return [json.loads(line) for line in done.stdout.splitlines()]

    def error(self, *arguments: str, code: int) -> str:
        """Runs a command that must fail: one sentence on stderr, nothing on stdout."""
        done = self.cli(*arguments)
        assert done.returncode == code, (arguments, done)
        assert done.stdout == ""
        said = sentences(done.stderr)
        assert said.startswith("error: "), done.stderr
        assert said.count("\n") == 1, done.stderr
        return said

    def ask(self, **request: Any) -> Any:
        """Asks the node here directly, which is quicker than a process for each request."""
        client = ControlClient(self.path / "delivery.db.sock")
        try:
            line = next(client.lines(json.dumps({"v": 1, **request}).encode() + b"\n"))
            return json.loads(line)["ok"]
        finally:
            client.close()

    def start(self, *arguments: str, file_bytes_max: int | None = None) -> Node:
        """Starts a node and waits until it listens. Past the limit of bytes every write to a file fails."""
        command = ["run", *(arguments or ("drone:fleet",)), "--json"]
        pipes: dict[str, Any] = {"cwd": self.path, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
        if file_bytes_max is None:
            process: subprocess.Popen[str] = Warm(*command, **pipes)
        else:
            limited = ["prlimit", f"--fsize={file_bytes_max}", sys.executable, "-m", "stigmergy", *command]
            process = subprocess.Popen(limited, **pipes, text=True)
        assert process.stdout is not None
        began = [process.stdout.readline() for _ in range(2)]
        if not all(began):
            out, err = process.communicate(timeout=START_S_MAX)
            raise AssertionError(f"the node did not start: {began} {out} {err}")
        node = Node(process, [json.loads(line) for line in began])
        self.nodes.append(node)
        return node

    def start_beside_capture(self) -> Node:
        """Starts a node as a supervisor does: `capture` reads the log itself while there is none, and has it open for
        that moment, in which a start is refused."""
        until_s = time.monotonic() + START_S_MAX
        while True:
            try:
                return self.start()
            except AssertionError as refused:
                if "has the journal open" not in str(refused) or time.monotonic() > until_s:
                    raise

    def close(self) -> None:
        """Ends what still runs."""
        for node in self.nodes:
            with contextlib.suppress(ProcessLookupError):
                node.process.kill()
            node.process.communicate(timeout=START_S_MAX)


def _folder(path: Path) -> Iterator[Folder]:
    (path / "drone.py").write_text(DRONE, encoding="utf-8")
    folder = Folder(path)
    yield folder
    folder.close()


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Folder]:
    """A folder of a test's own."""
    yield from _folder(tmp_path)


@pytest.fixture
def here(folder: Folder) -> Folder:
    """The same, but commands run in this very process, and only nodes are others: for tests of what commands say."""
    from tests.cli.in_process import Here

    same = Here(folder.path)
    same.nodes = folder.nodes
    return same


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Folder]:
    """A folder with a running node, for tests that leave it as it is; commands run in this very process."""
    from tests.cli.in_process import Here

    for made in _folder(tmp_path_factory.mktemp("shared")):
        folder = Here(made.path)
        folder.nodes = made.nodes
        folder.start()
        folder.ask(do="send", agent="Drone/D-17", command="StartMission", fields={"mission": "M1"})
        yield folder
