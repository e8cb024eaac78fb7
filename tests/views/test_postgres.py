"""Views in a real PostgreSQL that is killed and comes back: agents go on, and every event is in the rows once."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from rigs.postgres import NoPostgres, start_postgres
from stigmergy import Fleet
from tests.conftest import without
from tests.views.zones import Battery as Readings
from tests.views.zones import Drone, Measured

WAIT_S_MAX = 240.0


@pytest.mark.timeout(600)
def test_a_killed_server_costs_no_event_and_holds_up_no_agent(tmp_path: Path) -> None:
    try:
        server = start_postgres()
    except NoPostgres as missing:
        without(str(missing), "NOT TESTED ON POSTGRESQL")
    fleet = Fleet("zones", agents=[Drone], views=[Readings], shards=2)

    async def main(url: str) -> None:
        sent = 0
        async with fleet.running(journal=f"sqlite:{tmp_path}/zones.db", views=url) as live:

            async def measure(count: int) -> None:
                nonlocal sent
                for _ in range(count):
                    await live.observe(f"Drone/D-{sent % 5}", Measured(percent=float(sent)))
                    sent += 1

            for _ in range(3):
                await measure(30)
                await asyncio.to_thread(server.kill)
                await measure(30)
                await asyncio.to_thread(server.start)
            ends = {f"zones/{shard}": at.position for shard, at in live.host.feed.positions().items()}
            rows = await live.view(Readings).after(ends, within_s=WAIT_S_MAX).all()
            assert sum(row.measured for row in rows) == sent == 180
            assert {row.agent: row.percent for row in rows} == {
                address: live.query(address, Drone).battery for address in live.agents()
            }

    with server:
        asyncio.run(main(server.new_database()))
