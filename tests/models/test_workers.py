"""Models on a worker of a cluster: one service for all its shards, on a real server."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import stigmergy as st
from stigmergy.app.config import Config
from stigmergy.app.keyring import load_signer
from stigmergy.app.node_config import NodeConfig, open_store
from stigmergy.app.workers import NatsWorker
from stigmergy.base.errors import ConfigError
from stigmergy.base.system import SystemClock
from stigmergy.models.rollout import CountsReport, VersionCounts, write_counts
from stigmergy.nats.naming import models_bucket
from stigmergy.shard.homes import shard_of
from stigmergy.testing.nats import NatsCluster, start_single
from tests.models import gas
from tests.models.sensors import KEY, PATIENT, Counter, GasSensor, bundle, judged, put, sample, until

SHARDS = 2
ROLLOUT = "ModelRollout/gas-level"


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[NatsCluster]:
    with start_single(tmp_path_factory.mktemp("server")) as running:
        yield running


async def test_the_shards_of_a_worker_ask_the_same_models(server: NatsCluster, tmp_path: Path) -> None:
    put(tmp_path, bundle())
    said: list[tuple[str, dict[str, Any]]] = []
    places = NodeConfig(models=f"folder:{tmp_path}", model_keys=(KEY,))
    fleet = st.Fleet("gas1", agents=[GasSensor], shards=SHARDS, settings=PATIENT)
    made = NatsWorker(
        fleet, server.url, Config(), key=tmp_path / "key", node_config=places, tell=lambda *one: said.append(one)
    )
    sensors = [
        next(name for name in (f"GasSensor/{n}" for n in range(99)) if shard_of(name, SHARDS) == shard)
        for shard in range(SHARDS)
    ]
    async with made as worker:
        running = asyncio.ensure_future(worker.run())
        await until(lambda: len(worker.owned()) == SHARDS)
        for shard, name in enumerate(sensors):
            live = worker.live(shard)
            await sample(live, 1, 1, agent=name)
            await until(lambda live=live, name=name: judged(live, name).judged == 1)  # type: ignore[misc]
            assert (judged(live, name).co, judged(live, name).fallback) == (0.5, "")
            assert live.troubles() == []
        assert worker.live(0).models is worker.live(1).models
        worker.stop()
        await running
    assert "notice" not in [event for event, _ in said]


async def test_a_worker_says_whose_rule_answers_and_refuses_a_model_without_one(
    server: NatsCluster, tmp_path: Path
) -> None:
    said: list[tuple[str, dict[str, Any]]] = []
    fleet = st.Fleet("gas2", agents=[GasSensor])
    async with NatsWorker(
        fleet, server.url, Config(), key=tmp_path / "key", tell=lambda *one: said.append(one)
    ) as worker:
        running = asyncio.ensure_future(worker.run())
        await until(lambda: len(worker.owned()) == 1)
        worker.stop()
        await running
    (notice,) = [fields["what"] for event, fields in said if event == "notice"]
    assert notice.startswith("no bundle for gas-alarm (this node has no place for models): the rules")
    refused = NatsWorker(st.Fleet("counts", agents=[Counter]), server.url, Config(), key=tmp_path / "key")
    with pytest.raises(ConfigError, match="'head-count', which has no fallback"):
        await refused.__aenter__()


async def test_counts_of_a_worker_that_is_trusted_by_its_key_are_taken(server: NatsCluster, tmp_path: Path) -> None:
    """Workers with keys of their own name each other with --trust."""
    settings = st.Settings(raw_may_leave=("GasLevelSampled to cluster",))
    fleet = gas.gas_fleet(shards=SHARDS, settings=settings)
    places = NodeConfig(models=server.url, model_keys=(gas.SIGNER.public_key.hex(),))
    other = load_signer(tmp_path / "b.key", create=True)
    made = NatsWorker(
        fleet, server.url, Config(), key=tmp_path / "a.key", trust=[other.public_key.hex()], node_config=places
    )
    store = await open_store(server.url, SystemClock())
    async with made as worker:
        running = asyncio.ensure_future(worker.run())
        await until(lambda: len(worker.owned()) == SHARDS)
        live = worker.live(shard_of(ROLLOUT, SHARDS))
        await live.send(ROLLOUT, st.BeginRollout(version="1.3.0", stable="1.2.0"))
        revision = live.query(ROLLOUT, st.ModelRollout).revision
        report = CountsReport("gas", "gas-level", "b", revision, VersionCounts(asks=3), VersionCounts(asks=2))
        keys = await store.key_value(models_bucket("gas"))
        await keys.put("counts.gas-level.b", write_counts(report, other))
        await until(lambda: "b" in live.query(ROLLOUT, st.ModelRollout).stables)
        assert not [text for text in live.troubles() if "counts" in text]
        worker.stop()
        await running
    await store.close()
