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
from stigmergy.app.models import publish_bundle
from stigmergy.app.node_config import NodeConfig
from stigmergy.app.workers import NatsWorker
from stigmergy.base.errors import ConfigError
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


async def test_workers_with_keys_of_their_own_count_for_one_rollout(server: NatsCluster, tmp_path: Path) -> None:
    """What a worker counts is signed with its key, which the one that runs the rollout is told to trust."""
    settings = st.Settings(models=st.ModelSettings(hung_s=3_600), raw_may_leave=("GasLevelSampled to cluster",))
    fleet = gas.gas_fleet(shards=SHARDS, settings=settings)
    await publish_bundle(server.url, "gas", "gas-level-1.2.0.model", gas.bundle("1.2.0", 10))
    await publish_bundle(server.url, "gas", "gas-level-1.3.0.model", gas.bundle("1.3.0", 9))
    places = NodeConfig(models=server.url, model_keys=(gas.SIGNER.public_key.hex(),))
    keys = [load_signer(tmp_path / f"{name}.key", create=True).public_key.hex() for name in "ab"]
    sensors = [
        next(name for name in (f"GasSensor/{n}" for n in range(99)) if shard_of(name, SHARDS) == shard)
        for shard in range(SHARDS)
    ]
    about: dict[str, Any] = {"trust": keys, "node_config": places}
    first = NatsWorker(fleet, server.url, Config(), key=tmp_path / "a.key", name="a", **about)
    second = NatsWorker(fleet, server.url, Config(), key=tmp_path / "b.key", name="b", **about)
    async with first as one, second as two:
        running = [asyncio.ensure_future(worker.run()) for worker in (one, two)]
        await until(lambda: len(one.owned()) == len(two.owned()) == 1)
        lives = [(one if shard in one.owned() else two).live(shard) for shard in range(SHARDS)]
        home = lives[shard_of(ROLLOUT, SHARDS)]
        rule = st.RolloutRule(shadow_s=0, canary=0.5, report_s=0.05)
        await home.send(ROLLOUT, st.BeginRollout(version="1.3.0", stable="1.2.0", rule=rule))

        async def ask() -> set[str]:
            for live, sensor in zip(lives, sensors, strict=True):
                await live.observe(sensor, gas.GasLevelSampled(co=1.0))
            return {source[0] for source in home.query(ROLLOUT, st.ModelRollout).stables}

        async with asyncio.timeout(120):
            while await ask() != {"a", "b"}:  # noqa: ASYNC110 - it is asked again and again
                await asyncio.sleep(0.05)
        assert not [text for text in home.troubles() if "counts" in text]
        for worker in (one, two):
            worker.stop()
        await asyncio.gather(*running)
