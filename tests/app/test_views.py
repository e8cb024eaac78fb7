"""Views of an embedded fleet on real files: found again after a kill, and refused where they cannot work."""

from __future__ import annotations

import asyncio
import signal
import sqlite3
import subprocess
import sys
from pathlib import Path

import pytest

from stigmergy import Accepted, Fleet
from stigmergy.base.errors import ConfigError, StoreCorrupt, StoreForeign
from tests.views.zones import VIEWS, Drone, Enter, Measured, ZoneLoad

fleet = Fleet("zones", agents=[Drone], views=VIEWS, shards=2)

CHILD = """
import asyncio, itertools, sys
from tests.app.test_views import fleet
from tests.views.zones import Enter

async def main() -> None:
    async with fleet.running(journal=f"sqlite:{sys.argv[1]}/zones.db") as live:
        for number in itertools.count():
            await live.send(f"Drone/D-{number % 11}", Enter(zone=f"Z{number % 3}"))
            print(number, flush=True)

asyncio.run(main())
"""


def rows(path: Path) -> dict[str, int]:
    with sqlite3.connect(path) as connection:
        return dict(connection.execute("SELECT zone, active FROM ZoneLoad"))


def test_killed_again_and_again_the_rows_are_those_of_the_agents(tmp_path: Path) -> None:
    for turn in range(2):
        child = subprocess.Popen([sys.executable, "-c", CHILD, str(tmp_path)], stdout=subprocess.PIPE, text=True)
        assert child.stdout is not None
        for _ in range(30 + 80 * turn):
            assert child.stdout.readline()
        child.send_signal(signal.SIGKILL)
        child.wait()
        child.stdout.close()

    async def look() -> None:
        async with fleet.running(journal=f"sqlite:{tmp_path}/zones.db") as live:
            ends = {f"zones/{shard}": at.position for shard, at in live.host.feed.positions().items()}
            found = await live.view(ZoneLoad).after(ends, within_s=240).all()
            zones = [live.query(address, Drone).zone for address in live.agents()]
            assert {row.zone: row.active for row in found} == {zone: zones.count(zone) for zone in zones}

    asyncio.run(look())
    assert rows(tmp_path / "zones.views")


def test_rows_follow_in_segments_and_in_memory(tmp_path: Path) -> None:
    async def use(journal: str) -> None:
        async with fleet.running(journal=journal, key=tmp_path / "node.key") as live:
            answer = await live.send("Drone/D-1", Enter(zone="A"))
            assert isinstance(answer, Accepted)
            asked = live.view(ZoneLoad).after_command("Drone/D-1", answer.position, within_s=240)
            assert await asked.all() == [ZoneLoad(zone="A", active=1)]
            status = await live.views.statuses() if live.views else []
            assert [one.view for one in status] == ["ZoneLoad", "Battery"]
            assert live.standing().counters["view_events"] == 1

    asyncio.run(use(f"segments:{tmp_path}/zones"))
    asyncio.run(use("memory:"))
    assert rows(tmp_path / "zones.views") == {"A": 1}


def test_rows_are_kept_where_the_configuration_says(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "stigmergy.toml").write_text('[fleet]\nviews = "sqlite:elsewhere.views"\n')

    async def use() -> None:
        async with fleet.running() as live:
            await live.observe("Drone/D-1", Measured(percent=3))

    asyncio.run(use())
    assert (tmp_path / "elsewhere.views").exists()


def test_what_cannot_work_is_refused_at_the_start(tmp_path: Path) -> None:
    def start(journal: str, views: str | None = None) -> None:
        async def use() -> None:
            async with fleet.running(journal=journal, key=tmp_path / "node.key", views=views):
                pass

        asyncio.run(use())

    with pytest.raises(ConfigError, match=r"its journal nats://hub:4222 is no file that theirs could be beside"):
        start("nats://hub:4222")
    with pytest.raises(ConfigError, match="no adapter for 'mysql'"):
        start("memory:", "mysql://db")
    other = tmp_path / "other.db"
    with sqlite3.connect(other) as connection:
        connection.execute("CREATE TABLE mine (x)")
    with pytest.raises(StoreForeign, match="not a file of views"):
        start("memory:", f"sqlite:{other}")
    (tmp_path / "text").write_text("no database, whatever its name is; just text of some length " * 30)
    with pytest.raises(StoreCorrupt, match="remove the file: its rows are made again from the log"):
        start("memory:", f"sqlite:{tmp_path}/text")
