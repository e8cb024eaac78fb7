"""The delivery of the manual on a real NATS cluster: the worker that runs it is killed while a step is under way."""

import asyncio
import json
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from subprocess import DEVNULL
from typing import Any

import pytest

import stigmergy as st
from stigmergy.cli.display.places import ClusterPlace, ask_list
from stigmergy.control.protocol import LogRequest
from stigmergy.shard.homes import shard_of
from stigmergy.testing.bus_rig import wait_until
from stigmergy.testing.nats import NatsCluster
from tests.warm import Warm
from tests.workflows.delivery import Arrived, Drone, delivery

MANUAL = Path(__file__).parents[2] / "docs" / "workflows.md"
RUN, DRONE, SHARDS = "Delivery/J-17", "Drone/D-1", 2
WAIT_S_MAX = 240.0


def source() -> str:
    """The first sample of the manual, with two shards and a planner that writes down what it plans."""
    sample = MANUAL.read_text(encoding="utf-8").partition("```python\n")[2].partition("```")[0]
    planned = '    with open("planned", "a") as planned:\n        planned.write(order.key + "\\n")\n'
    for old, new in (
        ("workflows=[delivery])", f"workflows=[delivery], shards={SHARDS})"),
        ("    return RoutePlanned(legs=3)", f"{planned}    return RoutePlanned(legs=3)"),
    ):
        assert old in sample
        sample = sample.replace(old, new)
    return sample


class WorkerProcess:
    """`stigmergy worker` with the delivery."""

    def __init__(self, folder: Path, url: str, name: str) -> None:
        self._said = folder / f"{name}.json"
        command = ["worker", "delivery:fleet", "--nats", f"{url}?replicas=3"]
        command += ["--bus", url, "--key", "key", "--name", name, "--json"]
        with self._said.open("w") as said:
            self.process = Warm(*command, cwd=folder, stdout=said, stderr=DEVNULL)

    def owned(self) -> set[int]:
        """The shards that it has now, as far as it has said so."""
        owned: set[int] = set()
        for line in self._said.read_text().splitlines(keepends=True):
            one: dict[str, Any] = json.loads(line) if line.endswith("\n") else {}
            if one.get("event") == "owns":
                owned.add(one["shard"])
            elif one.get("event") in ("released", "lost"):
                owned.discard(one["shard"])
        return owned

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()


@contextmanager
def working(folder: Path, url: str) -> Iterator[list[WorkerProcess]]:
    (folder / "delivery.py").write_text(source(), encoding="utf-8")
    workers: list[WorkerProcess] = []
    try:
        yield workers
    finally:
        for worker in workers:
            worker.kill()


async def until(condition: Callable[[], Awaitable[bool]]) -> None:
    async with asyncio.timeout(WAIT_S_MAX):
        while not await condition():  # noqa: ASYNC110 - what is looked at has no event
            await asyncio.sleep(0.05)


def events_of(url: str, agent: str) -> list[str]:
    """What an agent has kept, of the whole cluster's log."""
    fleet = st.Fleet("delivery", agents=[Drone], workflows=[delivery], shards=SHARDS)
    listing = ask_list(ClusterPlace(url, fleet), LogRequest(agent=agent, limit=1_000))
    assert not listing.missing
    return [entry.type for entry in listing.items]


@pytest.mark.timeout(600)
async def test_a_run_ends_although_its_worker_is_killed_while_a_step_is_under_way(tmp_path: Path) -> None:
    with await asyncio.to_thread(NatsCluster.start, tmp_path, 3) as cluster, working(tmp_path, cluster.url) as workers:
        for name in ("v", "w"):
            workers.append(WorkerProcess(tmp_path, cluster.url, name))
            await wait_until((tmp_path / "key").exists, within_s=WAIT_S_MAX)  # the first one makes it
        await wait_until(lambda: [len(worker.owned()) for worker in workers] == [1, 1], within_s=WAIT_S_MAX)
        async with st.connect(cluster.url, fleet="delivery", within_s=WAIT_S_MAX) as far:
            assert await far.send(RUN, "Deliver", {"drone": "D-1", "parcel": "P"})

            async def flies() -> bool:
                return any(one["step"] == "FlyTo" for one in (await far.query(DRONE))["steps"]["open"])

            async def has_ended() -> bool:
                return (await far.query(RUN))["status"] in ("done", "undone", "stuck")

            await until(flies)
            next(worker for worker in workers if shard_of(RUN, SHARDS) in worker.owned()).kill()
            await far.observe(DRONE, Arrived())
            await until(has_ended)
            assert (await far.query(RUN))["status"] == "done"
        kept = await asyncio.to_thread(events_of, cluster.url, DRONE)
        own = [kind for kind in kept if not kind.startswith("stigmergy.")]
        assert own == ["Airborne@1", "Departed@1", "Arrived@1", "ParcelDropped@1", "Landed@1"]
        kept = await asyncio.to_thread(events_of, cluster.url, RUN)
        assert kept.count("stigmergy.StepBegun@1") == kept.count("stigmergy.StepDone@1") == 5
        assert len((tmp_path / "planned").read_text().splitlines()) == 1
