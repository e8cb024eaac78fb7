"""Workers on a real server whose streams are deleted while they run: what is soft comes back, what is lost is said."""

import asyncio
import json
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import msgspec
import pytest

from stigmergy.app.config import Config
from stigmergy.app.workers import NatsWorker
from stigmergy.base.errors import StigmergyError
from stigmergy.cli.display import exits
from stigmergy.cli.display.output import Output
from stigmergy.cli.display.places import ClusterPlace, ask_list
from stigmergy.cluster import membership as roster
from stigmergy.cluster.worker import Worker
from stigmergy.control.protocol import LogRequest
from stigmergy.nats import naming
from stigmergy.nats.address import parse_address
from stigmergy.nats.journal import stream
from stigmergy.nats.link import NatsLink
from stigmergy.shard.homes import shard_of
from stigmergy.testing.nats import NatsCluster, start_single
from tests.cluster.town import Add, Fleet, Land, Ring

WAIT_S_MAX = 240.0
SHARDS = 2
ADDRESS = next(name for name in (f"Meter/{n}" for n in range(100)) if shard_of(name, SHARDS) == 0)


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[NatsCluster]:
    with start_single(tmp_path_factory.mktemp("server")) as running:
        yield running


class Scene:
    """One worker, what it said, and a link of our own to the same server."""

    def __init__(self, worker: Worker, link: NatsLink, said: list[tuple[str, dict[str, Any]]]) -> None:
        self.worker = worker
        self.link = link
        self.said = said

    async def delete(self, name: str) -> None:
        await self.link.api(f"STREAM.DELETE.{name}")

    async def send(self, number: int) -> None:
        async with asyncio.timeout(WAIT_S_MAX):
            await self.worker.live(0).send(ADDRESS, Add(number=number), command_id=f"c{number}")

    async def until(self, reached: Callable[[], bool]) -> None:
        async with asyncio.timeout(WAIT_S_MAX):
            while not reached():  # noqa: ASYNC110 - what is looked at has no event
                await asyncio.sleep(0.05)

    def reasons(self, event: str) -> list[str]:
        return [str(fields.get("reason")) for said, fields in self.said if said == event]


@asynccontextmanager
async def working(server: NatsCluster, name: str, folder: Path) -> AsyncIterator[Scene]:
    fleet = Fleet(name, SHARDS)
    fleet.actuator(Ring)(lambda _: None)
    fleet.actuator(Land)(lambda _: None)
    said: list[tuple[str, dict[str, Any]]] = []
    link = await NatsLink.open(parse_address(server.url), name="a hand that deletes")
    made = NatsWorker(fleet, server.url, Config(), key=folder / "key", tell=lambda *one: said.append(one))
    async with made as worker:
        task = asyncio.ensure_future(worker.run())
        scene = Scene(worker, link, said)
        await scene.until(lambda: len(worker.owned()) == SHARDS)
        yield scene
        worker.stop()
        async with asyncio.timeout(WAIT_S_MAX):
            await task
    await link.close()


@pytest.mark.timeout(600)
async def test_a_worker_that_starts_before_a_majority_is_there_waits_for_it(tmp_path: Path) -> None:
    """After a power cut servers and workers come up in any order."""
    fleet = Fleet("early", SHARDS)
    fleet.actuator(Ring)(lambda _: None)
    fleet.actuator(Land)(lambda _: None)
    said: list[tuple[str, dict[str, Any]]] = []
    owned = asyncio.Event()

    async def live() -> None:
        made = NatsWorker(fleet, cluster.url, Config(), key=tmp_path / "key", tell=lambda *one: said.append(one))
        async with made as worker:
            running = asyncio.ensure_future(worker.run())
            while len(worker.owned()) < SHARDS:  # noqa: ASYNC110 - what is looked at has no event
                await asyncio.sleep(0.05)
            owned.set()
            worker.stop()
            await running

    with await asyncio.to_thread(NatsCluster.start, tmp_path / "servers", 3) as cluster:
        cluster.kill(0)
        cluster.kill(1)
        task = asyncio.ensure_future(live())
        async with asyncio.timeout(WAIT_S_MAX):
            while not any(event == "waits" for event, _ in said):
                assert not task.done(), task.exception()
                await asyncio.sleep(0.05)
        cluster.start_again(0, wait=False)
        cluster.start_again(1, wait=False)
        async with asyncio.timeout(3 * WAIT_S_MAX):
            await task
    assert owned.is_set()


async def test_a_bucket_that_is_lost_is_made_anew(
    server: NatsCluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(roster, "JOIN_S_MAX", 1.0)
    async with working(server, "forgetful", tmp_path) as scene:
        await scene.send(1)
        await scene.delete(f"KV_{naming.cluster_bucket('forgetful')}")
        await scene.until(lambda: scene.worker.memberships == 2 and len(scene.worker.owned()) == SHARDS)
        await scene.send(2)
        assert scene.worker.live(0).host.durable_image(ADDRESS).numbers == (1, 2), "the logs were not in it"


async def test_a_log_that_was_deleted_is_not_begun_again_as_if_nothing_had_been(
    server: NatsCluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(stream, "WRITE_WITHIN_S", 1.0)
    async with working(server, "robbed", tmp_path) as scene:
        await scene.send(1)
        await scene.delete(naming.log_stream("robbed", 0, 0))
        with pytest.raises(StigmergyError):
            await scene.send(2)
        await scene.until(lambda: bool(scene.reasons("unfit")))
        assert "deleted" in scene.reasons("unfit")[-1]
        assert scene.worker.owned() == [1], "the other shard goes on"
        place: Any = ClusterPlace(server.url, Fleet("robbed", SHARDS))  # type: ignore[arg-type]
        listing = await asyncio.to_thread(ask_list, place, LogRequest(limit=100))
        assert {entry.shard for entry in listing.items} == {1}, "and what it says is shown"
        (missing,) = listing.missing
        assert missing.shard == 0
        assert missing.why.startswith("shard 0 has no owner that answers")
        capsys.readouterr()
        assert listing.end(Output(json=True)) == exits.NOT_RUNNING
        assert json.loads(capsys.readouterr().out) == {"missing": [msgspec.to_builtins(missing)]}
        assert listing.end(Output(json=False)) == exits.NOT_RUNNING
        shown = capsys.readouterr()
        assert (shown.out, "not shown: shard 0 has no owner" in shown.err) == ("", True)
