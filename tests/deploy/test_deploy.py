"""Dashboards and alert rules: made from the list of metrics, and each query finds data in a real Prometheus that
scrapes a fleet: two nodes on a bus with shared state, claims, a view and an uplink, a worker, and a server beside."""

import json
import shutil
import signal
import subprocess
import sys
import time
import urllib.parse
import urllib.request
from collections.abc import Iterator
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any

import pytest

from deploy.__main__ import files
from deploy.dashboards import DASHBOARDS
from deploy.queries import rate, total, value
from deploy.rules import ALERTS
from stigmergy.app.cluster_client import ClusterClient
from stigmergy.cli.display.places import load_fleet
from stigmergy.control.protocol import SendRequest, answers_to
from stigmergy.control.socket import ControlClient
from stigmergy.metrics.catalogue import METRICS
from stigmergy.testing.brokers import free_port
from stigmergy.testing.nats import start_single
from tests.conftest import without

WAIT_S_MAX = 240.0
UNPACKED = Path("build/prometheus/usr/bin")
TOWN = """
import asyncio

import stigmergy as st


class Look(st.Command):
    at: str


class Looked(st.Event):
    at: str


class Heard(st.Event):
    at: str


class Lamp(st.Action):
    at: str


class Plan(st.Work):
    at: str


class Planned(st.Event):
    at: str


class Spot(st.Entry):
    name: str


spots = st.Ledger("spots", Spot)


class SpotNoted(st.Event):
    name: str


class Haze(st.Model, name="haze"):
    share: float

    @classmethod
    def fallback(cls, inputs: st.Inputs) -> "Haze":
        return cls(share=inputs[0])


class Scout(st.Agent):
    looks: int = 0
    heard: int = 0
    seen: st.Shared[st.ORSet[str]] = st.shared(by="town")
    tower: st.Ordered[st.Claim] = st.ordered(of="tower")

    @st.decide
    def look(self, command: Look) -> st.Events:
        yield Looked(at=command.at)
        yield self.seen.add(command.at)

    @st.evolve
    def looked(self, event: Looked) -> None:
        self.looks += 1

    @st.evolve
    def listened(self, event: Heard) -> None:
        self.heard += 1

    @st.evolve
    def planned(self, event: Planned) -> None:
        pass

    @st.evolve
    def judged(self, event: st.Inferred[Haze]) -> None:
        pass

    @st.decide
    def spotted(self, entry: st.Entered[Spot]) -> st.Events:
        yield SpotNoted(name=entry.entry.name)

    @st.react
    def act(self, event: Looked) -> st.Effects:
        yield spots.propose(Spot(name=f"{event.at} {self.looks}"))
        yield Haze.ask([0.5])
        yield st.Publish("looks", Heard(at=event.at))
        yield Lamp(at=event.at)
        yield Plan(at=event.at)
        yield self.tower.claim(for_s=1)


class Places(st.View):
    at: st.Key[str]
    looks: int = 0

    @st.project
    def looked(self, event: Looked) -> None:
        self.looks += 1


fleet = st.Fleet("town", agents=[Scout], views=[Places], ledgers=[spots])
fleet.listen("Scout/{id}/looks", to="Scout/a-ear")


@fleet.actuator(Lamp)
async def light(order: st.Order[Lamp]) -> None:
    await asyncio.sleep(0.001)


@fleet.worker(Plan)
async def plan(order: st.Order[Plan]) -> Planned:
    return Planned(at=order.effect.at)
"""
PLAIN = """
import stigmergy as st


class Count(st.Command):
    pass


class Counted(st.Event):
    pass


class Tally(st.Agent):
    count: int = 0

    @st.decide
    def add(self, command: Count) -> st.Events:
        yield Counted()

    @st.evolve
    def counted(self, event: Counted) -> None:
        self.count += 1


fleet = st.Fleet("tally", agents=[Tally], shards=2)
"""
NODE = """
[fleet]
module = "town:fleet"
journal = "sqlite:{name}.db"
key = "{name}.key"
agents = ["Scout/{name}*"]
bus = "{bus}"
node = "{name}"
ledger = "sqlite:ledger.db"
metrics = "127.0.0.1:0"
{more}
[settings.traces]
export = "http://127.0.0.1:9"
[settings.metrics]
agents = true
[settings.snapshots]
every_events = 5
tail_ratio = 0.0
share_max = 1.0
"""


def program(name: str) -> str:
    found = shutil.which(name) or (str((UNPACKED / name).resolve()) if (UNPACKED / name).is_file() else "")
    if not found:
        without(f"{name} is not there; apt install prometheus, or run .ci/prometheus", "NOT TESTED WITH PROMETHEUS")
    return found


class Processes:
    """Commands that run until the test is over."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._running: list[subprocess.Popen[bytes]] = []

    def start(self, name: str, *command: str) -> Path:
        log = self.folder / f"{name}.log"
        with_us = ["setpriv", "--pdeathsig", "KILL"] if shutil.which("setpriv") else []
        with log.open("wb") as out:
            self._running.append(
                subprocess.Popen([*with_us, *command], cwd=self.folder, stdout=out, stderr=subprocess.STDOUT)
            )
        return log

    def stigmergy(self, name: str, *arguments: str) -> str:
        """Starts a command of ours; the first URL that it says, which is that of its metrics or of its API."""
        log = self.start(name, sys.executable, "-m", "stigmergy", *arguments, "--json")
        deadline_s = time.monotonic() + WAIT_S_MAX
        while time.monotonic() < deadline_s:
            for line in log.read_text(encoding="utf-8").splitlines():
                if line.startswith("{") and json.loads(line).get("url"):
                    return str(urllib.parse.urlsplit(json.loads(line)["url"]).netloc)
            assert self._running[-1].poll() is None, log.read_text(encoding="utf-8")
            time.sleep(0.1)
        raise AssertionError(f"{name} did not say where it is: {log.read_text(encoding='utf-8')}")

    def end(self) -> None:
        for process in reversed(self._running):
            process.send_signal(signal.SIGTERM)
        for process in self._running:
            try:
                process.wait(60)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait(60)


class Prometheus:
    """A server that scrapes these targets each second."""

    def __init__(self, processes: Processes, targets: list[str]) -> None:
        folder, self.port = processes.folder, free_port()
        for path, text in files().items():
            if path.name == "rules.yml":
                (folder / "rules.yml").write_text(text, encoding="utf-8")
        listed = ", ".join(f'"{target}"' for target in targets)
        (folder / "prometheus.yml").write_text(
            "global: {scrape_interval: 1s, evaluation_interval: 1s}\n"
            "rule_files: [rules.yml]\n"
            "scrape_configs:\n"
            f"  - {{job_name: stigmergy, static_configs: [{{targets: [{listed}]}}]}}\n",
            encoding="utf-8",
        )
        checked = subprocess.run(
            [program("promtool"), "check", "config", "prometheus.yml"],
            cwd=folder,
            capture_output=True,
            text=True,
            check=False,
        )
        assert checked.returncode == 0, checked
        processes.start(
            "prometheus",
            program("prometheus"),
            "--config.file=prometheus.yml",
            "--storage.tsdb.path=data",
            f"--web.listen-address=127.0.0.1:{self.port}",
        )

    def ask(self, path: str, **parameters: str) -> Any:
        query = urllib.parse.urlencode(parameters)
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{self.port}{path}?{query}", timeout=60) as answer:
                return json.load(answer)["data"]
        except (OSError, ValueError) as error:
            return {"error": str(error)}

    def values(self, query: str) -> list[float]:
        """What a query finds, without what is no number."""
        found = self.ask("/api/v1/query", query=query)
        values = [float(one["value"][1]) for one in found.get("result", [])]
        return [one for one in values if one == one]


def send(folder: Path, node: str, number: int) -> None:
    with closing(ControlClient(folder / f"{node}.db.sock")) as client:
        request = SendRequest(agent=f"Scout/{node}{number % 3}", command="Look", fields={"at": f"{number}"})
        with closing(client.ask(request)) as replies:
            answers_to(replies)


@pytest.fixture
def town(tmp_path: Path) -> Iterator[tuple[Processes, Prometheus, str]]:
    (tmp_path / "town.py").write_text(TOWN, encoding="utf-8")
    (tmp_path / "tally.py").write_text(PLAIN, encoding="utf-8")
    program("prometheus")
    processes = Processes(tmp_path)
    with ExitStack() as stack:
        server = stack.enter_context(start_single(tmp_path / "server"))
        stack.callback(processes.end)
        for name, more in (("a", "collects = true"), ("b", "uplink = {}")):
            text = NODE.format(name=name, bus=server.url, more=more)
            (tmp_path / f"{name}.toml").write_text(text, encoding="utf-8")
        targets = [processes.stigmergy(name, "run", "--config", f"{name}.toml") for name in ("a", "b")]
        worker = ("worker", "tally:fleet", "--nats", server.url, "--metrics", "127.0.0.1:0")
        targets.append(processes.stigmergy("worker", *worker))
        beside = ("serve", "town:fleet", "--journal", "a.db", "--listen", "127.0.0.1:0")
        targets.append(processes.stigmergy("serve", *beside))
        yield processes, Prometheus(processes, targets), server.url


def test_every_query_of_a_panel_and_of_a_rule_finds_data(town: tuple[Processes, Prometheus, str]) -> None:
    processes, prometheus, nats = town
    left = {
        query.replace("$instance", ".*").replace("$__rate_interval", "1m"): f"{board.name}: {panel.title}"
        for board in DASHBOARDS
        for panel in board.panels
        for query, _ in panel.queries
    }
    left |= {alert.query: f"alert {alert.name}" for alert in ALERTS}
    tally = load_fleet("tally:fleet", processes.folder)
    deadline_s, number = time.monotonic() + WAIT_S_MAX, 0
    with closing(ClusterClient(nats, tally)) as workers:
        while left and time.monotonic() < deadline_s:
            for _ in range(3):
                number += 1
                send(processes.folder, "a", number)
                send(processes.folder, "b", number)
                count = SendRequest(agent=f"Tally/{number % 9}", command="Count")
                with closing(workers.ask(count)) as replies:
                    answers_to(replies)
            time.sleep(1.5)
            left = {query: where for query, where in left.items() if not prometheus.values(query)}
    assert not left, "\n".join(f"{where}: {query}" for query, where in left.items())
    rules = prometheus.ask("/api/v1/rules")["groups"][0]["rules"]
    assert {one["name"] for one in rules} == {alert.name for alert in ALERTS}
    assert [one["lastError"] for one in rules if one.get("lastError")] == [], "all of them can be evaluated"
    assert prometheus.values('count(up{job="stigmergy"} == 1)') == [4]
    assert sum(prometheus.values("stigmergy_shards_owned")) == 2


def test_what_is_checked_in_is_what_is_made() -> None:
    for path, text in files().items():
        assert path.read_text(encoding="utf-8") == text, f"{path.name} is old: run make dashboards"


def test_a_query_names_only_what_is_in_the_list() -> None:
    with pytest.raises(KeyError):
        value("stigmergy_agnets")
    with pytest.raises(KeyError):
        total("stigmergy_agents", "colour")
    with pytest.raises(KeyError):
        rate("stigmergy_events_total", shart="1")


def test_every_metric_has_a_panel_or_a_reason_for_none() -> None:
    shown = " ".join(query for board in DASHBOARDS for panel in board.panels for query, _ in panel.queries)
    unshown = [name for name in METRICS if name not in shown]
    assert unshown == []


def test_alerts_fire_when_they_should_and_only_then(tmp_path: Path) -> None:
    """By Prometheus' own tester: of gauges, the value that is beyond the bound, and the one that is not."""
    (tmp_path / "rules.yml").write_text(
        next(text for path, text in files().items() if path.name == "rules.yml"), encoding="utf-8"
    )
    cases = {
        "StigmergyAgentsStopped": ("stigmergy_agents_stopped", 0, 1),
        "StigmergyDown": ("up", 1, 0),
        "StigmergyJournalNearlyFull": ("stigmergy_journal_free_bytes", 2_000_000_000, 5_000_000),
        "StigmergyLinkDown": ("stigmergy_link_up", 1, 0),
        "StigmergyNotConverging": ("stigmergy_shared_behind_seconds", 1, 61),
    }
    tests = []
    for name, (metric, good, bad) in cases.items():
        for number, fires in ((good, False), (bad, True)):
            series = {"series": f'{metric}{{job="stigmergy",instance="n"}}', "values": f"{number}x30"}
            (alert,) = [one for one in ALERTS if one.name == name]
            labels = {"severity": alert.severity, "instance": "n"}
            if name in ("StigmergyDown", "StigmergyLinkDown"):
                labels["job"] = "stigmergy"
            expected = [{"exp_labels": labels, "exp_annotations": {"summary": alert.about}}] if fires else []
            tests.append(
                {
                    "interval": "1m",
                    "input_series": [series],
                    "alert_rule_test": [{"eval_time": "10m", "alertname": name, "exp_alerts": expected}],
                }
            )
    (tmp_path / "tests.yml").write_text(json.dumps({"rule_files": ["rules.yml"], "tests": tests}), encoding="utf-8")
    told = subprocess.run(
        [program("promtool"), "test", "rules", "tests.yml"], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert told.returncode == 0, told.stdout + told.stderr
