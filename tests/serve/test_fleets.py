"""Fleets driven by HTTP alone: a node that is killed under load, and workers on NATS."""

import signal
import subprocess
import threading
import time
from collections import Counter
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from stigmergy.shard.homes import shard_of
from stigmergy.testing.nats import start_single
from tests.serve.rig import HttpAnswer, ServedProcess, SseClient, make_folder, run_served, wait_until
from tests.warm import Warm

CLIENTS = 4
COMMANDS = 20
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
        for kills in (1, 2):
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


SHARDS = 4


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[tuple[Path, str]]:
    folder = make_folder(tmp_path)
    text = (folder / "drone.py").read_text().replace("settings=settings", f"settings=settings, shards={SHARDS}")
    (folder / "drone.py").write_text(text)
    (folder / "server").mkdir()
    with start_single(folder / "server") as server:
        yield folder, server.url


def start_worker(folder: Path, url: str, name: str) -> subprocess.Popen[str]:
    command = ["worker", "drone:fleet", "--nats", url, "--name", name, "--json"]
    return Warm(*command, cwd=folder, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)


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
