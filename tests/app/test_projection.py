"""The views of fleets on workers, on a real NATS server: one process reads all shards, is killed, and goes on."""

from __future__ import annotations

import asyncio
import contextlib
import json
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator, Sequence
from pathlib import Path
from typing import Any

import httpx
import pytest

from stigmergy import Event, Fleet, Key, View, evolve, project
from stigmergy.agents.agent import Agent
from stigmergy.app.cluster_client import Workers
from stigmergy.app.config import Config
from stigmergy.app.projection import ClusterProjection
from stigmergy.app.workers import NatsWorker, cluster_address
from stigmergy.base.errors import NotRunning, ViewBehind
from stigmergy.control.protocol import ObserveRequest, ViewRequest, ViewsRequest
from stigmergy.nats.link import NatsLink
from stigmergy.node.settings import LEASE_S_MAX, Settings
from stigmergy.testing.nats import NatsCluster, start_single
from tests.views.zones import Drone, ZoneEntered

WAIT_S_MAX = 240.0
SHARDS = 3
STEADY = Config(settings=Settings(lease_s=LEASE_S_MAX))
"""A worker on a busy machine may be held up for longer than a short lease, and what it was asked then is in doubt."""


class Entries(View):
    zone: Key[str]
    entered: int = 0

    @project
    def came(self, event: ZoneEntered) -> None:
        self.entered += 1


class Walked(Event):
    zone: str


class Guard(Agent):
    @evolve
    def walked(self, event: Walked) -> None:
        pass


class Busy(View, fleets=("zones", "ground")):
    """What both fleets do in a zone."""

    zone: Key[str]
    drones: int = 0
    guards: int = 0

    @project
    def flew(self, event: ZoneEntered) -> None:
        self.drones += 1

    @project
    def walked(self, event: Walked) -> None:
        self.guards += 1


zones = Fleet("zones", agents=[Drone], shards=SHARDS, views=[Entries])
ground = Fleet("ground", agents=[Guard], shards=1, views=[Busy])


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[NatsCluster]:
    with start_single(tmp_path_factory.mktemp("server")) as running:
        yield running


@contextlib.asynccontextmanager
async def working(server: NatsCluster, folder: Path, *fleets: Fleet) -> AsyncIterator[list[Workers]]:
    """A worker for each fleet, and a client to ask."""
    async with contextlib.AsyncExitStack() as stack:
        link = await NatsLink.open(cluster_address(server.url), name="test")
        stack.push_async_callback(link.close)
        clients: list[Workers] = []
        for fleet in fleets:
            worker = await stack.enter_async_context(NatsWorker(fleet, server.url, STEADY, key=folder / fleet.name))
            running = asyncio.ensure_future(worker.run())

            async def end(worker: Any = worker, running: asyncio.Future[None] = running) -> None:
                worker.stop()
                async with asyncio.timeout(WAIT_S_MAX):
                    await running

            stack.push_async_callback(end)
            async with asyncio.timeout(WAIT_S_MAX):
                while len(worker.owned()) < fleet.shards:  # noqa: ASYNC110 - what is looked at has no event
                    await asyncio.sleep(0.05)
            clients.append(Workers(link, fleet.homes, fleet.name))
        yield clients


async def enter(workers: Workers, numbers: Sequence[int]) -> None:
    for number in numbers:
        fields = {"zone": f"Z{number % 4}"}
        await workers.ask(ObserveRequest(agent=f"Drone/D-{number}", event="ZoneEntered", fields=fields))


async def rows(workers: Workers, view: str = "Entries", total: int = 0, field: str = "entered") -> dict[str, Any]:
    """The rows, once they add up to so many."""
    async with asyncio.timeout(WAIT_S_MAX):
        while True:
            with contextlib.suppress(NotRunning, ViewBehind):
                found = await workers.ask(ViewRequest(view=view))
                if sum(row[field] for row in found.rows) >= total:
                    return {row["zone"]: row for row in found.rows}
            await asyncio.sleep(0.1)


@pytest.mark.timeout(600)
async def test_one_process_projects_the_logs_of_all_workers(server: NatsCluster, tmp_path: Path) -> None:
    store = f"sqlite:{tmp_path}/zones.views"
    async with working(server, tmp_path, zones, ground) as (drones, guards):
        await enter(drones, range(40))
        with pytest.raises(NotRunning, match="run stigmergy project MODULE:FLEET --nats URL"):
            await drones.ask(ViewRequest(view="Entries"))
        async with ClusterProjection([zones, ground], server.url, store):
            found = await rows(drones, total=40)
            assert {zone: row["entered"] for zone, row in found.items()} == {f"Z{n}": 10 for n in range(4)}
            await enter(drones, range(40, 80))
            await guards.ask(ObserveRequest(agent="Guard/g", event="Walked", fields={"zone": "Z1"}))
            assert sum(row["entered"] for row in (await rows(drones, total=80)).values()) == 80
            await rows(guards, "Busy", 80, "drones")
            busy = await rows(guards, "Busy", 1, "guards")
            assert busy["Z1"] == {"zone": "Z1", "drones": 20, "guards": 1}
            (status,) = (await drones.ask(ViewsRequest())).views
            assert (status.view, status.building, status.trouble) == ("Entries", False, "")
            with pytest.raises(ViewBehind):
                await drones.ask(ViewRequest(view="Entries", after=["0:99999"], within_s=0.2))
        await enter(drones, range(80, 100))
        async with ClusterProjection([zones], server.url, store):
            assert sum(row["entered"] for row in (await rows(drones, total=100)).values()) == 100


def start(command: list[str]) -> subprocess.Popen[bytes]:
    return subprocess.Popen(command, stdout=subprocess.PIPE, cwd=Path(__file__).parents[2])


async def wait_told(url: str, sample: str) -> None:
    """Until the page of metrics says this, among what the process is."""
    async with asyncio.timeout(WAIT_S_MAX), httpx.AsyncClient() as http:
        while sample not in (page := (await http.get(url)).text):  # noqa: ASYNC110 - nobody says that it has changed
            await asyncio.sleep(0.2)
    assert 'role="project"' in page


@pytest.mark.timeout(600)
async def test_killed_at_any_moment_nothing_is_missing_or_twice(server: NatsCluster, tmp_path: Path) -> None:
    """`stigmergy project`, killed while events come, and started again."""
    command = [sys.executable, "-m", "stigmergy", "project", "tests.app.test_projection:killed", "--json"]
    command += ["--nats", server.url, "--to", f"sqlite:{tmp_path}/killed.views", "--metrics", "127.0.0.1:0"]
    async with working(server, tmp_path, killed) as (workers,):
        sent = 0
        for turn in range(3):
            process = await asyncio.to_thread(start, command)
            assert process.stdout is not None
            line = await asyncio.to_thread(process.stdout.readline)
            assert json.loads(line)["event"] == "projecting"
            for _ in range(3 + turn):
                await enter(workers, range(sent, sent + 7))
                sent += 7
            if turn == 2:
                assert sum(row["entered"] for row in (await rows(workers, total=sent)).values()) == sent
                told = json.loads(await asyncio.to_thread(process.stdout.readline))
                await wait_told(told["url"], 'stigmergy_view_lag_commits{view="Entries"} 0.0')
            process.send_signal(signal.SIGTERM if turn == 2 else signal.SIGKILL)
            code = await asyncio.to_thread(process.wait, WAIT_S_MAX)
            process.stdout.close()
            assert code == (0 if turn == 2 else -signal.SIGKILL)


killed = Fleet("killed", agents=[Drone], shards=SHARDS, views=[Entries])
