"""Shards with subscribers and open proposals move between workers on real servers, by plan and by kill -9."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, closing, contextmanager, suppress
from pathlib import Path
from typing import TypeVar

import pytest

from stigmergy import Agent, Client, NoAnswer, connect
from stigmergy.app.cluster_client import ClusterClient
from stigmergy.control.protocol import LedgerRequest, answers_to
from stigmergy.ledgers.records import ShownEntry
from stigmergy.shard.homes import shard_of
from stigmergy.testing.nats import NatsCluster, start_single
from tests.ledgers.incident_desk import Desk, Report, Sensor
from tests.ledgers.moving_desks import DESKS, SHARDS, fleet

ROOT = Path(__file__).resolve().parents[2]
WITHIN_S = 240.0
SENSORS = tuple(f"Sensor/{number}" for number in range(6))
AgentT = TypeVar("AgentT", bound=Agent)
LOOK_S, PERIOD_S = 0.1, 0.2


class Crew:
    """Workers, as processes."""

    def __init__(self, folder: Path, url: str, ledger: str) -> None:
        self._folder = folder
        self._command = [sys.executable, "-m", "stigmergy", "worker", "tests.ledgers.moving_desks:fleet", "--json"]
        self._command += ["--nats", url, "--ledger", ledger, "--key", str(folder / "movers.key")]
        self.processes: dict[str, subprocess.Popen[bytes]] = {}

    def start(self, name: str) -> None:
        paths = os.pathsep.join(filter(None, (str(ROOT), os.environ.get("PYTHONPATH"))))
        with (self._folder / f"{name}.jsonl").open("wb") as out:
            self.processes[name] = subprocess.Popen(
                [*self._command, "--name", name],
                cwd=ROOT,
                stdout=out,
                stderr=subprocess.STDOUT,
                env={**os.environ, "PYTHONPATH": paths},
            )

    def owned(self, name: str) -> set[int]:
        """The shards that a worker has, by what it has said."""
        found: set[int] = set()
        for line in (self._folder / f"{name}.jsonl").read_text(encoding="utf-8").splitlines():
            said = json.loads(line) if line.startswith("{") and line.endswith("}") else {}
            if said.get("event") == "owns":
                found.add(said["shard"])
            elif said.get("event") in ("released", "lost"):
                found.discard(said.get("shard", -1))
        return found

    def said(self) -> str:
        return "\n".join(path.read_text(encoding="utf-8")[-1500:] for path in sorted(self._folder.glob("*.jsonl")))

    async def until(self, holds: Callable[[], object]) -> None:
        try:
            async with asyncio.timeout(WITHIN_S):
                while not holds():  # noqa: ASYNC110 - other processes have no event
                    await asyncio.sleep(LOOK_S)
        except TimeoutError:
            raise AssertionError(f"it did not come; they said {self.said()}") from None

    def all_owned(self, *names: str) -> bool:
        """Whether each of these has some of the shards, and together they have all."""
        owned = [self.owned(name) for name in names]
        return all(owned) and sorted(shard for one in owned for shard in one) == list(range(SHARDS))


@contextmanager
def crew_of(folder: Path, url: str, ledger: str) -> Iterator[Crew]:
    crew = Crew(folder, url, ledger)
    try:
        yield crew
    finally:
        for process in crew.processes.values():
            process.kill()
            process.wait(30)


@asynccontextmanager
async def reporting(client: Client, step: int) -> AsyncIterator[None]:
    """All sensors report incidents while the block runs; of two that report one, one is told that it was first."""
    over = asyncio.Event()

    async def report(number: int) -> None:
        count, sensor = 0, SENSORS[number]
        while not over.is_set():
            what = Report(incident=f"I-{step}-{count}-{number // 2}")
            with suppress(NoAnswer):  # a shard that moves answers nobody for a while; again by the same id
                await client.send(sensor, what, command_id=f"{sensor} {what.incident}")
                count += 1
            await asyncio.sleep(PERIOD_S)

    tasks = [asyncio.ensure_future(report(number)) for number in range(len(SENSORS))]
    try:
        yield
    finally:
        over.set()
        await asyncio.gather(*tasks)


async def sensors_of(client: Client) -> list[Sensor]:
    return [await state_of(client, sensor, Sensor) for sensor in SENSORS]


async def state_of(client: Client, address: str, kind: type[AgentT]) -> AgentT:
    """Asks until its shard has an owner that answers."""
    async with asyncio.timeout(WITHIN_S):
        while True:
            with suppress(NoAnswer):
                return await client.query(address, kind)


async def wait_asked(client: Client, more: int, *, open_proposals: int = 0) -> None:
    """Waits until the sensors have proposed so many more, and so many of these have no outcome yet."""
    before = sum(one.asked for one in await sensors_of(client))
    async with asyncio.timeout(WITHIN_S):
        while True:
            found = await sensors_of(client)
            asked, answered = sum(one.asked for one in found), sum(len(one.outcomes) for one in found)
            if asked >= before + more and asked - answered >= open_proposals:
                return
            await asyncio.sleep(LOOK_S)


@pytest.mark.timeout(900)
async def test_subscribers_and_open_proposals_move_with_their_shards(tmp_path: Path) -> None:
    assert {shard_of(agent, SHARDS) for agent in (*DESKS, *SENSORS)} == set(range(SHARDS))
    with (
        await asyncio.to_thread(NatsCluster.start, tmp_path / "servers", 3, sync_always=False) as cluster,
        await asyncio.to_thread(start_single, tmp_path / "ledger", sync_always=False) as ledger,
        crew_of(tmp_path, f"{cluster.url}?replicas=3", ledger.url) as crew,
    ):
        for name in ("w1", "w2"):
            crew.start(name)
        await crew.until(lambda: crew.all_owned("w1", "w2"))
        async with connect(cluster.url, fleet=fleet, within_s=WITHIN_S) as client:
            async with reporting(client, 1):
                await wait_asked(client, 30)
                ledger.kill(0)
                await wait_asked(client, 1, open_proposals=12)
                crew.start("w3")
                await crew.until(lambda: crew.all_owned("w1", "w2", "w3"))
                await wait_asked(client, 6)
                ledger.start_again(0)
            async with reporting(client, 2):
                await wait_asked(client, 30)
                crew.processes["w1"].send_signal(signal.SIGKILL)
                await crew.until(lambda: crew.all_owned("w2", "w3"))
                await wait_asked(client, 30)
            await wait_asked(client, 0)
            await check(client, cluster.url)
        for name in ("w2", "w3"):
            crew.processes[name].terminate()
            assert await asyncio.to_thread(crew.processes[name].wait, WITHIN_S) == 0, crew.said()


def read_all(url: str) -> list[ShownEntry]:
    """The ledger, as the workers have it."""
    found: list[ShownEntry] = []
    with closing(ClusterClient(url, fleet)) as client:
        while True:
            request = LedgerRequest(ledger="incidents", after=found[-1].position if found else 0, fresh=True)
            with closing(client.ask(request)) as replies:
                (page,) = answers_to(replies)
            if not page.entries:
                return found
            found += page.entries


async def check(client: Client, url: str) -> None:
    """All that was proposed has its outcome, once; each desk has each entry, once, in the order of the ledger."""
    async with asyncio.timeout(WITHIN_S):
        while any(one.asked > len(one.outcomes) for one in await sensors_of(client)):  # noqa: ASYNC110 - as above
            await asyncio.sleep(LOOK_S)
    sensors = await sensors_of(client)
    entries = await asyncio.to_thread(read_all, url)
    order = tuple((one.id, one.position) for one in entries)
    positions = dict(order)
    assert len(positions) == len(order), "each id is in the ledger once"
    told: Counter[str] = Counter()
    for sensor in sensors:
        assert len(sensor.outcomes) == sensor.asked, "no proposal is lost or doubled"
        for incident, position, duplicate, reason in sensor.outcomes:
            assert (reason, positions[incident]) == ("", position)
            told[incident] += 0 if duplicate else 1
    assert told == dict.fromkeys(positions, 1), "of each id exactly one is told that its proposal is the entry"
    for desk in DESKS:
        async with asyncio.timeout(WITHIN_S):
            while (seen := (await state_of(client, desk, Desk)).seen) != order:
                assert seen == order[: len(seen)], "every entry exactly once, in order"
                await asyncio.sleep(LOOK_S)
