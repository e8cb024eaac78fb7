"""Whole fleets driven by HTTP alone: a node that is killed under load, three nodes on a broker, workers on NATS."""

import json
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from stigmergy.shard.homes import shard_of
from stigmergy.testing.brokers import Broker
from stigmergy.testing.nats import start_single
from tests.cli.conftest import DRONE
from tests.serve.rig import HttpAnswer, ServedProcess, SseClient, make_folder, run_served, wait_until

CLIENTS = 4
COMMANDS = 30
IN_DOUBT = (503, 504)


class Pilot(threading.Thread):
    """Sends commands one after the other, each with the same key until it is accepted."""

    def __init__(self, served: ServedProcess, number: int) -> None:
        super().__init__()
        self._served = served
        self._name = f"Drone/p{number}"
        self.statuses: Counter[int] = Counter()
        self.wrong: list[Any] = []

    def run(self) -> None:
        for number in range(COMMANDS):
            tries = 0
            while not self._send(number) and tries < 5_000:
                tries += 1
                threading.Event().wait(0.05)

    def _send(self, number: int) -> bool:
        key = f"{self._name}-{number}"
        try:
            path = f"/v1/agents/{self._name}/StartMission"
            answer: HttpAnswer = self._served.post(path, {"mission": key}, Idempotency_Key=key)
        except OSError as error:
            self.wrong.append(error)
            return False
        self.statuses[answer.status] += 1
        if answer.status not in (200, 429, *IN_DOUBT):
            self.wrong.append(answer)
        if answer.status == 504 and answer.json["command_id"] != key:
            self.wrong.append(answer)
        return answer.status == 200


def accepted_by(pilots: list[Pilot], count: int) -> bool:
    return sum(one.statuses[200] for one in pilots) >= count


def missions(served: ServedProcess, agents: int) -> dict[str, list[str]]:
    """The missions that each agent has started, by its log."""
    found: dict[str, list[str]] = {}
    for number in range(agents):
        page = served.get(f"/v1/agents/Drone/p{number}/events?type=MissionStarted&limit=1000").json
        found[f"Drone/p{number}"] = [one["fields"]["mission"] for one in page["entries"] if one["kind"] == "event"]
    return found


def expected(agents: int) -> dict[str, list[str]]:
    return {f"Drone/p{n}": [f"Drone/p{n}-{number}" for number in range(COMMANDS)] for n in range(agents)}


def test_node_killed_under_load_and_each_command_is_done_once(tmp_path: Path) -> None:
    folder = make_folder(tmp_path)
    node = run_served(folder)
    beside = ServedProcess(folder, "serve", "drone:fleet", "--listen", ":0", "--rate", "100000")
    stream = SseClient(beside, "?type=MissionStarted")
    pilots = [Pilot(beside, number) for number in range(CLIENTS)]
    try:
        for pilot in pilots:
            pilot.start()
        for kills in range(1, 4):
            wait_until(partial(accepted_by, pilots, 20 * kills))
            node.end(signal.SIGKILL)
            wait_until(lambda: beside.get("/readyz").status == 503)
            node = run_served(folder)
        for pilot in pilots:
            pilot.join()
        assert [one.wrong for one in pilots] == [[]] * CLIENTS
        assert sum(one.statuses[status] for one in pilots for status in IN_DOUBT) > 0
        assert missions(beside, CLIENTS) == expected(CLIENTS)
        heard: dict[str, list[str]] = {}
        for event in stream.take(CLIENTS * COMMANDS):
            heard.setdefault(event["agent"], []).append(event["fields"]["mission"])
        assert heard == expected(CLIENTS)
    finally:
        for pilot in pilots:
            pilot.join()
        stream.close()
        beside.end()
        node.end()


@contextmanager
def three_nodes(folder: Path, broker: Broker) -> Iterator[list[ServedProcess]]:
    """Each runs agents of its own, and serves HTTP."""
    nodes: list[ServedProcess] = []
    try:
        for number in range(3):
            place = folder / f"n{number}"
            place.mkdir()
            (place / "drone.py").write_text(DRONE, encoding="utf-8")
            toml = (
                f'[fleet]\nbus = "{broker.url}"\nsite = "north"\nnode = "n{number}"\nagents = ["Drone/n{number}-*"]\n'
            )
            (place / "stigmergy.toml").write_text(toml)
            nodes.append(run_served(place))
        yield nodes
    finally:
        for node in nodes:
            node.end()


def test_three_nodes_on_a_broker(tmp_path: Path, mosquitto: Broker) -> None:
    with three_nodes(tmp_path, mosquitto) as nodes:
        for number, node in enumerate(nodes):
            sent = node.post(f"/v1/agents/Drone/n{number}-a/StartMission", {"mission": "M1"})
            assert sent.status == 200, sent
            assert node.get(f"/v1/agents/Drone/n{number}-a").json["state"]["mission"] == "M1"
        # A command for an agent of another node is carried there, and done once however often it is sent.
        path = "/v1/agents/Drone/n1-b/StartMission"

        def carried() -> bool:
            answer = nodes[0].post(path, {"mission": "far"}, Idempotency_Key="far-1")
            assert answer.status in (200, 421, *IN_DOUBT), answer
            return answer.status == 200

        wait_until(carried)
        assert carried()
        log = nodes[1].get("/v1/agents/Drone/n1-b/events?type=MissionStarted").json["entries"]
        assert len([one for one in log if one["kind"] == "event"]) == 1
        # An agent that nobody runs is refused, not invented.
        nobody = nodes[0].post("/v1/agents/Drone/stray/StartMission", {"mission": "M"})
        assert nobody.status in (404, 421, 504), nobody
        for node in nodes:
            assert not [one for one in node.get("/v1/agents").json["agents"] if one["agent"] == "Drone/stray"]


SHARDS = 4


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[tuple[Path, str]]:
    folder = make_folder(tmp_path)
    text = (folder / "drone.py").read_text().replace("settings=settings", f"settings=settings, shards={SHARDS}")
    (folder / "drone.py").write_text(text)
    (folder / "server").mkdir()
    with start_single(folder / "server") as server:
        yield folder, server.url


def start_worker(folder: Path, url: str, name: str) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-m", "stigmergy", "worker", "drone:fleet", "--nats", url, "--name", name, "--json"]
    return subprocess.Popen(command, cwd=folder, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)


def test_workers_on_nats_and_one_of_them_is_killed(cluster: tuple[Path, str]) -> None:
    folder, url = cluster
    workers = [start_worker(folder, url, name) for name in ("w1", "w2")]
    served: ServedProcess | None = None
    try:
        until_s = time.monotonic() + 240
        while served is None:
            try:
                served = ServedProcess(folder, "serve", "drone:fleet", "--nats", url, "--listen", ":0")
            except AssertionError:
                assert time.monotonic() < until_s
        api = served
        wait_until(lambda: api.get("/readyz").status == 200)
        stream = SseClient(api, "?type=MissionStarted")
        assert stream.status == 200
        pilots = [Pilot(api, number) for number in range(CLIENTS)]
        assert len({shard_of(f"Drone/p{number}", SHARDS) for number in range(CLIENTS)}) > 1
        for pilot in pilots:
            pilot.start()
        wait_until(partial(accepted_by, pilots, 30))
        workers[0].kill()
        for pilot in pilots:
            pilot.join()
        assert [one.wrong for one in pilots] == [[]] * CLIENTS
        wait_until(lambda: api.get("/readyz").status == 200)
        assert missions(api, CLIENTS) == expected(CLIENTS)
        listed = api.get("/v1/agents?kind=Drone&limit=2").json
        assert [one["agent"] for one in listed["agents"]] == ["Drone/p0", "Drone/p1"]
        assert listed["next"] == "Drone/p1"
        assert api.get("/v1/agents/Drone/p0/explain").json["state"]["mission"] == f"Drone/p0-{COMMANDS - 1}"
        heard: dict[str, list[str]] = {}
        for event in stream.take(CLIENTS * COMMANDS):
            heard.setdefault(event["agent"], []).append(event["fields"]["mission"])
        assert heard == expected(CLIENTS)
        batch = [{"agent": f"Drone/p{n}", "event": "BatteryMeasured", "fields": {"percent": 50 + n}} for n in range(4)]
        assert [one["observed"] for one in api.post("/v1/observations", batch).json["results"]] == [True] * 4
        assert api.get("/v1/agents/Drone/p3").json["state"]["battery"] == 53.0
        stream.close()
    finally:
        if served is not None:
            served.end()
        for worker in workers:
            worker.kill()
            worker.wait()


def test_cluster_on_this_machine_with_its_api(tmp_path: Path) -> None:
    """`stigmergy up --serve`: a request as soon as the shards have owners."""
    folder = make_folder(tmp_path)
    options = ["--nodes", "1", "--workers", "1", "--serve", ":0"]
    process = subprocess.Popen(
        [sys.executable, "-m", "stigmergy", "up", "drone:fleet", *options, "--json"],
        cwd=folder,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )
    try:
        assert process.stdout is not None
        url = ""
        for line in process.stdout:
            said = json.loads(line).get("said", {})
            if said.get("event") == "serving":
                url = said["url"]
                break
        api = ServedProcess.at(url)

        def sent() -> bool:
            return api.post("/v1/agents/Drone/u/StartMission", {"mission": "M"}, Idempotency_Key="u").status == 200

        wait_until(sent)
        assert api.get("/v1/agents").json["agents"][0]["agent"] == "Drone/u"
    finally:
        process.send_signal(signal.SIGTERM)
        process.communicate(timeout=240)
    assert process.returncode == 0
