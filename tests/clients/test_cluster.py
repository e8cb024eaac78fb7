"""A fleet on workers, driven over HTTP and gRPC only: commands, states, lists and streams of all its shards."""

import asyncio
from pathlib import Path

import pytest

import stigmergy as st
from stigmergy.app.cluster_client import find_workers
from stigmergy.app.config import Config
from stigmergy.app.workers import NatsWorker
from stigmergy.serve.asker import WorkersAsker
from stigmergy.testing.nats import NatsCluster
from tests.clients.rig import SCHEMES, WAIT_S_MAX, Cart, Drive, Driven, Seen, client, serving

harbour = st.Fleet("warehouse", agents=[Cart], shards=3)
COUNT = 30


async def test_a_cluster_is_driven_over_both(tmp_path: Path, nats_server: NatsCluster) -> None:
    async with (
        asyncio.timeout(WAIT_S_MAX),
        NatsWorker(harbour, nats_server.url, Config(settings=st.Settings(lease_s=60)), key=tmp_path / "key") as worker,
    ):
        working = asyncio.ensure_future(worker.run())
        while len(worker.owned()) < harbour.shards:  # noqa: ASYNC110 - nobody tells
            await asyncio.sleep(0.05)
        workers, bus = await find_workers(nats_server.url, harbour, "serve")
        assert workers is not None
        async with serving(harbour, WorkersAsker(workers), tmp_path) as urls:
            for scheme in SCHEMES:
                async with client(urls, scheme) as far:
                    await drive(far, scheme)
        await bus.close()
        worker.stop()
        await working


async def drive(far: st.Client, scheme: str) -> None:
    """All calls, for agents of this scheme's own."""
    watching = far.watch(kind=Driven)
    await watching.wait_ready()
    names = [f"Cart/{scheme}-{number:02}" for number in range(COUNT)]
    for name in names:
        first = await far.send(name, Drive(to=name), command_id=name)
        assert isinstance(first, st.Accepted)
        assert await far.send(name, Drive(to=name), command_id=name) == first
    await far.observe(names[0], Seen(by="gate"))
    assert await far.query(names[0], Cart) == Cart(id=names[0][5:], at=names[0], drives=1, seen=("gate",))
    assert await far.send(names[0], "Drive", {"to": "moon"}) == st.Refused("no track leads there")
    assert [name for name in await far.agents(Cart) if scheme in name] == names
    heard = [await anext(watching) for _ in range(COUNT)]
    assert sorted(one.event.to for one in heard) == names
    again = far.watch(kind=Driven, after=heard[COUNT // 2].after)
    rest = [(await anext(again)).event.to for _ in range(COUNT - COUNT // 2 - 1)]
    assert sorted(rest) == sorted(one.event.to for one in heard[COUNT // 2 + 1 :])
    with pytest.raises(st.StigmergyError, match="Ship"):
        await far.query("Ship/s")
