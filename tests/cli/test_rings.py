"""A node that is fed by a program of its own, through rings: real processes, and some of them killed."""

import asyncio
import importlib
import json
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from stigmergy.base.errors import ConfigError, NotRunning, RingLocked, StigmergyError, UnknownKind
from stigmergy.ring import open_blocking_consumer
from tests.cli.conftest import START_S_MAX, Folder
from tests.cli.in_process import Here

np = pytest.importorskip("numpy")
pytest.importorskip("numba")
from stigmergy.rings import open_blocking_feed, open_feed  # noqa: E402

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"
JOURNAL = ("--journal", "segments:telemetry")
NAMES = [f"D-{number}" for number in range(50)]


@pytest.fixture
def fed(tmp_path: Path) -> Iterator[Folder]:
    """The folder of the examples, with a node that takes from a ring."""
    for name in ("telemetry.py", "producer.py"):
        shutil.copy(EXAMPLES / name, tmp_path / name)
    folder = Here(tmp_path)
    yield folder
    for node in folder.nodes:
        node.process.kill()
        node.process.communicate()


def started(folder: Folder, *more: str) -> Any:
    return folder.start("telemetry:fleet", *JOURNAL, "--ring", "telemetry.ring", *more)


def positions(folder: Folder, names: list[str]) -> list[int]:
    found = []
    for name in names:
        done = folder.cli("state", f"Drone/{name}", "--json")
        assert done.returncode == 0, done.stderr
        found.append(json.loads(done.stdout)["state"]["positions"])
    return found


def status(folder: Folder) -> dict[str, Any]:
    done = folder.cli("status", "--json")
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def test_the_example_feeds_the_example(fed: Folder) -> None:
    node = started(fed)
    done = subprocess.run(
        [sys.executable, "producer.py", "20"],
        cwd=fed.path,
        capture_output=True,
        text=True,
        timeout=START_S_MAX,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("20,000 events durable, ")
    found = status(fed)
    assert found["agents"] == 1_000
    assert found["counters"]["ring_messages"] >= 4
    assert not found["troubles"]
    assert positions(fed, ["D-0", "D-999"]) == [20, 20]
    roster = json.loads(fed.cli("roster", "Drone", "--json").stdout)
    assert [shard["shard"] for shard in roster["shards"]] == [0, 1, 2, 3]
    assert sum(shard["agents"] for shard in roster["shards"]) == 1_000
    assert roster["processes"] == 1
    shown = fed.cli("roster", "Drone").stdout
    assert "1,000 agents, records of 32 bytes" in shown
    assert "north_m f8, east_m f8, altitude_m f8" in shown
    refused = fed.cli("roster", "Dron")
    assert refused.returncode == 2
    assert "'Dron' is no compiled kind of this fleet; there are Drone" in refused.stderr
    code, _ = node.end()
    assert code == 0


def fill(feed: Any, rounds: int) -> None:
    for _ in range(rounds):
        feed.add("Positioned", NAMES, north_m=1.0, east_m=np.arange(50.0), altitude_m=2.0)
        feed.send(within_s=240.0)


def test_a_node_that_is_killed_takes_the_rest_once_when_it_is_back(fed: Folder) -> None:
    node = started(fed)
    with open_blocking_feed(fed.path / "telemetry.sock", fed.path / "telemetry.ring", "Drone", source="t") as feed:
        feed.enroll(NAMES)
        fill(feed, 50)
        node.end(signal.SIGKILL)
        fill(feed, 50)
        with pytest.raises(NotRunning):
            feed.enroll(["new"])
        started(fed)
        feed.wait_durable(within_s=240.0)
        assert len(feed.enroll(["new", "D-3"]).places) == 51
        feed.add("Positioned", ["new", "D-3"], north_m=1.0, east_m=0.0, altitude_m=2.0)
        feed.send()
        feed.wait_durable()
    assert positions(fed, ["D-0", "D-3", "D-49", "new"]) == [100, 101, 100, 1]
    with open_blocking_feed(fed.path / "telemetry.sock", fed.path / "telemetry.ring", "Drone", source="t") as feed:
        feed.enroll(NAMES[:2])
        feed.add("Positioned", [0, 1], north_m=1.0, east_m=0.0, altitude_m=2.0)
        feed.send()
        feed.wait_durable()
    assert positions(fed, ["D-0", "D-1"]) == [101, 101], "the next producer counts anew, and is not taken for the first"


def test_a_feed_on_an_event_loop_reaches_agents_of_all_shards(fed: Folder) -> None:
    node = started(fed)

    async def feed_it() -> Any:
        async with await open_feed(
            fed.path / "telemetry.sock", fed.path / "telemetry.ring", "Drone", source="t"
        ) as feed:
            roster = await feed.enroll(NAMES)
            for _ in range(30):
                feed.add("Positioned", NAMES, north_m=1.0, east_m=np.arange(50.0), altitude_m=2.0)
                await feed.send()
            await feed.wait_durable()
            return roster

    roster = asyncio.run(feed_it())
    found = status(fed)
    assert found["agents"] == 50
    assert not found["troubles"]
    chosen = [
        next(name for name, place in zip(roster.names, roster.places, strict=True) if place.shard == shard)
        for shard in range(4)
    ]
    assert positions(fed, chosen) == [30] * 4
    described = json.loads(fed.cli("roster", "Drone", "--json").stdout)
    assert [shard["agents"] for shard in described["shards"]] == [shard.agents for shard in roster.shards]
    code, _ = node.end()
    assert code == 0


def test_what_cannot_be_opened_is_said(fed: Folder) -> None:
    with pytest.raises(NotRunning):
        open_blocking_feed(fed.path / "telemetry.sock", fed.path / "telemetry.ring", "Drone", source="t")
    with open_blocking_consumer(fed.path / "telemetry.ring"):
        done = fed.cli("run", "telemetry:fleet", *JOURNAL, "--ring", "telemetry.ring")
        assert done.returncode == 3
        assert "telemetry.ring: has a consumer already; stop that one first" in done.stderr
    twice = fed.cli("run", "telemetry:fleet", *JOURNAL, "--ring", "telemetry.ring", "--ring", "./telemetry.ring")
    assert twice.returncode == 2
    assert "name each ring once" in twice.stderr
    started(fed)
    with pytest.raises(UnknownKind, match="'Dron' is no compiled kind"):
        open_blocking_feed(fed.path / "telemetry.sock", fed.path / "telemetry.ring", "Dron", source="t")
    with open_blocking_feed(fed.path / "telemetry.sock", fed.path / "telemetry.ring", "Drone", source="t") as feed:
        with pytest.raises(RingLocked, match="has a producer already"):
            open_blocking_feed(fed.path / "telemetry.sock", fed.path / "telemetry.ring", "Drone", source="u")
        with pytest.raises(ConfigError, match="give a list of names, also for one alone"):
            feed.enroll("D-1")
        with pytest.raises(StigmergyError):
            feed.enroll(["no name / at all"])
        assert len(feed.enroll([f"E-{number}" for number in range(4_500)]).places) == 4_500, "in parts of 2,000"


def test_the_example_is_found_from_its_own_folder(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(EXAMPLES))
    producer = importlib.import_module("producer")
    assert len(producer.NAMES) == 1_000
