"""Incidents on a ledger of three real servers, of which the leader is killed: none is lost or comes twice."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack
from pathlib import Path

from stigmergy.app.keyring import load_signer
from stigmergy.nats.naming import ledger_stream
from stigmergy.testing.journal_contract import in_a_loop
from stigmergy.testing.nats import NatsCluster
from tests.ledgers.incident_desk import Report, city
from tests.ledgers.test_ledger import outcomes, seen

COUNT = 10
WITHIN_S = 240.0


async def wait_for(holds: object) -> None:
    async with asyncio.timeout(WITHIN_S):
        while not holds():  # type: ignore[operator]  # noqa: ASYNC110 - what is looked at has no event
            await asyncio.sleep(0.05)


@in_a_loop
async def test_the_leader_is_killed_and_everybody_has_one_order(tmp_path: Path) -> None:
    keys = [tmp_path / f"{number}.key" for number in range(2)]
    peers = [load_signer(key, create=True).public_key.hex() for key in keys]
    with NatsCluster.start(tmp_path / "servers", nodes=3) as cluster:
        async with AsyncExitStack() as stack:
            nodes = []
            for number in range(2):
                url = f"{cluster.url}?replicas=3"
                journal = f"sqlite:{tmp_path}/{number}.db"
                running = city().running(journal=journal, key=keys[number], ledger=url, peers=peers)
                nodes.append(await stack.enter_async_context(running))

            async def report(first: int) -> None:
                for number in range(first, first + COUNT):
                    for node in nodes:
                        await node.send("Sensor/1", Report(incident=f"I-{number}"))

            await report(0)
            await wait_for(lambda: all(len(outcomes(node)) == COUNT for node in nodes))
            leader = await cluster.leader_of(ledger_stream("city.incidents"))
            assert leader is not None
            cluster.kill(leader)
            await report(COUNT)
            await wait_for(lambda: all(len(outcomes(node)) == len(seen(node)) == 2 * COUNT for node in nodes))
            assert seen(nodes[0]) == seen(nodes[1])
            assert sorted(incident for incident, _ in seen(nodes[0])) == sorted(f"I-{n}" for n in range(2 * COUNT))
            told = [outcome for node in nodes for outcome in outcomes(node)]
            assert sorted(one[0] for one in told if not one[2]) == sorted(dict(seen(nodes[0])))
            assert {
                one.writer for one in await nodes[0].ledger(city().ledgers["incidents"]).entries(fresh=True)
            } <= set(peers)
