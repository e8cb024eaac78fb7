"""A policy from a store on a real server: workers ask it, put reaches them, and an API says whose token it was."""

import asyncio
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import stigmergy
import stigmergy as st
from stigmergy.app.config import Config
from stigmergy.app.node_config import NodeConfig
from stigmergy.app.policy import publish_policy
from stigmergy.app.workers import NatsWorker
from stigmergy.testing.bus_rig import wait_until
from stigmergy.testing.nats import NatsCluster, start_single
from tests.policy.drones import KEYS, Drone, Erase, Land, StartMission, policy_bytes

WAIT_S = 240.0
WAYS = "package stigmergy\n\nimport rego.v1\n\ndefault allow := false\n\nreason := json.marshal(input.sender)\n"


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[NatsCluster]:
    with start_single(tmp_path_factory.mktemp("server")) as running:
        yield running


async def test_workers_ask_the_policy_of_the_store(server: NatsCluster, tmp_path: Path) -> None:
    fleet = st.Fleet("delivery", agents=[Drone], shards=2)
    settings = st.Settings(policy=st.PolicySettings(look_s=0.1, within_s=WAIT_S))
    where = NodeConfig(site="local", node="w", policy=server.url, policy_keys=tuple(KEYS))
    await publish_policy(server.url, "delivery", "delivery-1.policy", policy_bytes(1))
    config = Config(settings=settings)
    async with NatsWorker(fleet, server.url, config, key=tmp_path / "key", node_config=where) as worker:
        task = asyncio.ensure_future(worker.run())
        await wait_until(lambda: len(worker.owned()) == fleet.shards, within_s=WAIT_S)
        async with stigmergy.connect(server.url, fleet="delivery", within_s=WAIT_S) as far:
            for name in ("a", "b", "c", "d"):
                assert await far.send(f"Drone/{name}", StartMission(mission="M1"))
                refused = await far.send(f"Drone/{name}", Erase())
                assert refused.reason == "denied by policy delivery 1: no rule allows it"  # type: ignore[union-attr]
            await publish_policy(server.url, "delivery", "delivery-2.policy", policy_bytes(2, WAYS))

            async def sender() -> dict[str, Any]:
                answer = await far.send("Drone/a", StartMission(mission="M1"))
                reason = getattr(answer, "reason", "")
                if not reason.startswith("denied by policy delivery 2: "):
                    return {}
                found: dict[str, Any] = json.loads(reason.partition("delivery 2: ")[2])
                return found

            async with asyncio.timeout(WAIT_S):
                while not (found := await sender()):  # noqa: ASYNC110
                    await asyncio.sleep(0.05)
            assert found["how"] in ("cluster", "bus")
            assert await far.send("Drone/a", Land())
        worker.stop()
        async with asyncio.timeout(WAIT_S):
            await task
