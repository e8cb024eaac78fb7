"""The logs that a capture reads: of a running node by its socket, of a stopped one, with records of compiled agents."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

import numpy as np
import psycopg
import pytest

from stigmergy import Agent, Event, Fleet, Key, View, evolve, project
from stigmergy.agents.view import plan_of
from stigmergy.app.captures import CapturedLogs, RunningLog, StoppedLog, ViewCapture, open_log
from stigmergy.app.journals import open_journal
from stigmergy.base.errors import ConfigError, JournalForeign, LinkDown, LogCut, NotRunning
from stigmergy.capture.log import Capture, CapturedCommit
from stigmergy.capture.postgres import CaptureSource, PostgresWriter
from stigmergy.capture.tables import EventTables
from stigmergy.columns import Batcher
from stigmergy.control import log_service
from stigmergy.control.live import Live
from stigmergy.node.feed import FeedPosition
from stigmergy.views.memory import MemoryViewStore
from stigmergy.views.port import RowSelection


class Positioned(Event):
    east_m: float
    number: int


class Glider(Agent):
    east_m: float = 0.0
    seen: int = 0

    @evolve
    def moved(self, event: Positioned) -> None:
        self.east_m = event.east_m
        self.seen += 1


class Noted(Event):
    number: int


class Note(Agent):
    seen: int = 0

    @evolve
    def noted(self, event: Noted) -> None:
        self.seen += 1


class Flown(View):
    agent: Key[str]
    seen: int = 0
    total: int = 0

    @project
    def moved(self, event: Positioned) -> None:
        self.seen += 1
        self.total += event.number


def declare(name: str = "gliders") -> Fleet:
    return Fleet(name, agents=[Glider, Note], views=[Flown], compiled=[Glider])


@asynccontextmanager
async def running(fleet: Fleet, folder: Path) -> AsyncIterator[Live]:
    """A node in this process, with its control socket."""
    node = fleet.running(journal=f"segments:{folder / 'log'}")
    async with node as live:
        server = node.control(node.service(live, "test", lambda: None), folder / "node.sock")
        await server.start()
        try:
            yield live
        finally:
            await server.close()


async def glide(live: Live, incarnation: int, numbers: Sequence[int]) -> None:
    """Records in one batch, and an ordinary event."""
    names = [f"G-{number % 7}" for number in numbers]
    batcher = Batcher(await live.enroll(Glider, sorted(set(names))), source="test", incarnation=incarnation)
    batcher.add(Positioned, names, east_m=np.array(numbers, dtype=float), number=np.array(numbers))
    for batch in batcher.take():
        await live.deliver(batch)
    await live.observe("Note/n", Noted(number=numbers[0]))


@pytest.fixture
def captured(postgres: str, tmp_path: Path) -> tuple[Capture, str]:
    fleet = declare()
    writer = PostgresWriter(postgres, "gliders", EventTables(fleet.plans), CaptureSource(fleet.name, fleet.shards))
    url, socket = f"segments:{tmp_path / 'log'}", tmp_path / "node.sock"
    return Capture(lambda: open_log(fleet, url, socket), writer), postgres


def rows_of(url: str) -> list[tuple[str, float, int]]:
    with psycopg.connect(url) as connection:
        return connection.execute(
            "SELECT log_agent, east_m, number FROM gliders.positioned ORDER BY log_position, log_index"
        ).fetchall()


async def test_records_of_compiled_agents_by_the_socket_and_from_the_journal(
    captured: tuple[Capture, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each time from the middle of the log on: layouts and names are of before."""
    monkeypatch.setattr(log_service, "PIECE_EVENTS", 16)
    capture, url = captured
    async with running(declare(), tmp_path) as live:
        await glide(live, 1, range(100))
        await capture.run(once=True)
        await glide(live, 2, range(100, 150))
        await capture.run(once=True)
        await glide(live, 3, range(150, 200))
    await capture.run(once=True)
    assert rows_of(url) == [(f"Glider/G-{number % 7}", float(number), number) for number in range(200)]
    with psycopg.connect(url) as connection:
        assert connection.execute("SELECT number FROM gliders.noted ORDER BY 1").fetchall() == [(0,), (100,), (150,)]


async def test_both_ways_read_the_same(tmp_path: Path) -> None:
    async with running(declare(), tmp_path) as live:
        await glide(live, 1, range(30))
        by_socket = await read_all(RunningLog(tmp_path / "node.sock", "gliders"))
    from_journal = await read_all(StoppedLog(f"segments:{tmp_path / 'log'}", declare(), None))
    assert by_socket == from_journal[: len(by_socket)]
    assert sum(len(one.events) for one in by_socket) >= 31
    assert [one.previous for one in by_socket[1:]] == [one.digest for one in by_socket[:-1]]


async def read_all(log: RunningLog | StoppedLog) -> list[CapturedCommit]:
    found: list[CapturedCommit] = []
    while commits := await log.read({0: found[-1].position if found else 0}, 0.0):
        found += commits
    await log.close()
    return found


async def test_what_a_node_refuses(tmp_path: Path) -> None:
    socket = tmp_path / "node.sock"
    async with running(declare(), tmp_path) as live:
        await glide(live, 1, range(3))
        log = RunningLog(socket, "gliders")
        assert await log.first_positions() == {0: 1}
        with pytest.raises(ConfigError, match="no position for shard 0; give one for each of 1 shards"):
            await log.read({7: 1}, 0.0)
        with pytest.raises(ConfigError, match=r"within_s 31.0: give 0 to 30"):
            await log.read({0: 0}, 31)
        with pytest.raises(ConfigError, match="position 99 is beyond the end of the log"):
            await log.read({0: 99}, 0.0)
        with pytest.raises(JournalForeign, match="is of the fleet 'gliders', not of 'others'"):
            await RunningLog(socket, "others").first_positions()
    with pytest.raises(NotRunning):
        await RunningLog(socket, "gliders").first_positions()


async def test_a_stopped_journal_is_free_for_a_node_once_its_end_is_read(tmp_path: Path) -> None:
    async with running(declare(), tmp_path) as live:
        await glide(live, 1, range(3))
    log = StoppedLog(f"segments:{tmp_path / 'log'}", declare(), tmp_path / "node.sock")
    commits = await log.read({0: 0}, 0.0)
    end = {0: commits[-1].position}
    assert await log.read(end, 0.0) == []
    async with running(declare(), tmp_path) as live:
        await glide(live, 2, range(3))
        with pytest.raises(NotRunning, match="a node has started on the journal"):
            await log.read(end, 10.0)
    assert [one.position for one in await log.read(end, 0.0)][:1] == [end[0] + 1]
    await log.close()
    with pytest.raises(JournalForeign, match="is of the fleet 'gliders' with 1 shards, not of 'others' with 1"):
        await StoppedLog(f"segments:{tmp_path / 'log'}", declare("others"), None).first_positions()


async def test_a_gap_is_refused_and_a_cut_beginning_is_told(captured: tuple[Capture, str], tmp_path: Path) -> None:
    """Retention has dropped the beginning of the log: a capture that begins then says so, another one refuses."""
    _, postgres = captured
    url, fleet = f"segments:{tmp_path / 'log'}", declare()
    async with running(fleet, tmp_path) as live:
        for number in range(6):
            await live.observe("Note/n", Noted(number=number))
    journal = open_journal(url, fleet.name, fleet.shards)
    first = journal.heads()[0].position - 1
    await journal.drop(0, first - 1)
    await journal.close()
    log = StoppedLog(url, fleet, None)
    with pytest.raises(LogCut, match=f"position 2 was dropped by retention, the log begins at {first}"):
        await log.read({0: 1}, 0.0)
    await log.close()
    said: list[str] = []
    writer = PostgresWriter(postgres, "late", EventTables(fleet.plans), CaptureSource(fleet.name, fleet.shards))
    late = Capture(lambda: open_log(fleet, url, None), writer, said.append)
    await late.run(once=True)
    assert said == [f"shard 0: retention has dropped what was before position {first}; captured from there"]
    assert late.captured[0].position == first + 1


class KeptStore(MemoryViewStore):
    """Rows that outlive a capture."""

    async def close(self) -> None:
        pass


async def test_a_view_of_compiled_agents_by_the_socket_and_from_the_journal(tmp_path: Path) -> None:
    store, url, socket = KeptStore(), f"segments:{tmp_path / 'log'}", tmp_path / "node.sock"

    async def capture() -> None:
        fleet = declare()
        await ViewCapture(fleet, "Flown", store, lambda: open_log(fleet, url, socket)).run(once=True)

    async with running(declare(), tmp_path) as live:
        await glide(live, 1, range(100))
        await capture()
        await glide(live, 2, range(100, 150))
        await capture()
        await glide(live, 3, range(150, 200))
    await capture()
    await capture()
    rows, _ = await store.select("Flown", plan_of(Flown).columns, RowSelection((), (("agent", False),), 100))
    numbers = {name: range(name, 200, 7) for name in range(7)}
    assert rows == [(f"Glider/G-{name}", len(some), sum(some)) for name, some in numbers.items()]


async def test_a_node_that_stops_is_tried_again_and_not_taken_for_the_end(tmp_path: Path) -> None:
    """A projector that hears NotRunning ends: for the host that it is of has ended."""
    fleet, url, socket = declare(), f"segments:{tmp_path / 'log'}", tmp_path / "node.sock"
    logs = CapturedLogs(fleet.name, lambda: open_log(fleet, url, socket))
    async with running(fleet, tmp_path) as live:
        await glide(live, 1, range(3))
        assert await logs.first_positions() == {0: 1}
        reader = await logs.reader({0: FeedPosition(0)})
        before = await reader.read_commits()
    with pytest.raises(LinkDown):
        await reader.read_commits(1.0)
    await logs.first_positions()
    ends = await logs.end_positions()
    again = await logs.reader({0: FeedPosition(before[-1].commit.position)})
    rest = await again.read_commits()
    assert [one.commit.position for one in rest] == [*range(before[-1].commit.position + 1, ends[0] + 1)]
    await logs.close()
