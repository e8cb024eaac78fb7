"""Captured events in a real PostgreSQL: each once, in typed columns that grow with the code."""

from __future__ import annotations

import types
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import psycopg
import pytest

from rigs.postgres import PostgresServer
from stigmergy import Agent, Event, Fleet, evolve
from stigmergy.base.errors import ConfigError, StoreConflict, StoreError, StoreForeign, StoreUnavailable
from stigmergy.capture import postgres as writing
from stigmergy.capture.log import Captured, CapturedCommit, log_commits
from stigmergy.capture.postgres import CaptureSource, PostgresWriter
from stigmergy.capture.tables import EventTables
from tests.capture.fleets import EVERYTHING, Archive, Measured, declare, log_of


def writer_to(url: str, fleet: Fleet, only: Sequence[str] = (), schema: str = "meters") -> PostgresWriter:
    return PostgresWriter(url, schema, EventTables(fleet.plans, only), CaptureSource(fleet.name, fleet.shards))


def ask(url: str, query: str) -> list[Any]:
    with psycopg.connect(url) as connection:
        return connection.execute(query.encode()).fetchall()


async def test_every_event_is_one_row_with_its_values(postgres: str, tmp_path: Path) -> None:
    fleet = declare()
    commits = await log_of(fleet, tmp_path, [EVERYTHING, Measured(number=1), Archive(number=5), Measured(number=2)])
    writer = writer_to(postgres, fleet)
    assert await writer.open() == {0: Captured()}
    await writer.write(commits)
    await writer.close()
    assert ask(postgres, "SELECT log_agent, number FROM meters.measured ORDER BY log_position, log_index") == [
        ("Meter/1", 1),
        ("Meter/0", 2),
    ]
    assert ask(postgres, "SELECT number FROM meters.archived") == [(5,)]
    with psycopg.connect(postgres) as connection:
        connection.execute("SET TimeZone = 'UTC'")
        found = connection.execute("SELECT * FROM meters.everything").fetchone()
    assert found is not None
    sent = EVERYTHING
    plain = (sent.flag, sent.count, sent.ratio, sent.text, sent.raw, "co", 2, "hand", sent.at, sent.day, sent.took)
    nested = ({"x": 1.0, "y": -2.5}, [[0.0, 1.0], [2.0, 3.0]], {"a": 1}, None, 0)
    assert found[5:] == (*plain, sent.key, sent.price, *nested)
    assert writer.rows == 4 + len(ask(postgres, "SELECT type FROM meters.other_events"))


async def test_what_is_written_twice_or_in_part_is_not_there_twice(postgres: str, tmp_path: Path) -> None:
    fleet = declare(shards=2)
    commits = await log_of(fleet, tmp_path, [Measured(number=number) for number in range(40)])
    first = writer_to(postgres, fleet)
    await first.open()
    await first.write(commits[:10])
    with pytest.raises(StoreConflict, match="does not follow; read the log from the captured position on"):
        await first.write(commits[9:12])
    await first.close()
    second = writer_to(postgres, fleet)
    captured = await second.open()
    assert captured == first.captured
    await second.write([one for one in commits if one.position > captured[one.shard].position])
    await second.close()
    numbers = [row[0] for row in ask(postgres, "SELECT number FROM meters.measured")]
    assert sorted(numbers) == list(range(40))


async def test_a_failure_within_a_batch_leaves_nothing_of_it(postgres: str, tmp_path: Path) -> None:
    fleet = declare()
    commits = await log_of(fleet, tmp_path, [EVERYTHING, Measured(number=1), Measured(number=2)])
    writer = writer_to(postgres, fleet)
    await writer.open()
    with psycopg.connect(postgres) as connection:
        connection.execute("DROP TABLE meters.measured")
    with pytest.raises(
        StoreError, match=r'PostgreSQL refused to write to the schema meters: relation "meters.measured"'
    ):
        await writer.write(commits)
    await writer.close()
    assert ask(postgres, "SELECT count(*) FROM meters.everything") == [(0,)]
    again = writer_to(postgres, fleet)
    assert await again.open() == {0: Captured()}
    await again.write(commits)
    await again.close()
    assert ask(postgres, "SELECT number FROM meters.measured ORDER BY log_position") == [(1,), (2,)]


async def test_the_positions_decide_even_if_the_lock_does_not(postgres: str, tmp_path: Path) -> None:
    """A writer that was cut off may hold the lock no more, and not know it."""
    fleet = declare()
    commits = await log_of(fleet, tmp_path, [Measured(number=1), Measured(number=2)])
    slow = writer_to(postgres, fleet)
    await slow.open()
    with psycopg.connect(postgres, autocommit=True) as connection:
        connection.execute("UPDATE meters.capture_positions SET position = 1")
    with pytest.raises(StoreConflict, match="another capture has written to the schema meters meanwhile"):
        await slow.write(commits)
    await slow.close()
    assert ask(postgres, "SELECT count(*) FROM meters.measured") == [(0,)]


async def test_one_writer_at_a_time(postgres: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(writing, "LOCK_S_MAX", 0.2)
    first, second = writer_to(postgres, declare()), writer_to(postgres, declare())
    await first.open()
    with pytest.raises(StoreConflict, match="another capture writes to the schema meters; stop it, or choose another"):
        await second.open()
    await second.close()
    other = writer_to(postgres, declare(), schema="others")
    await other.open()
    await other.close()
    await first.close()
    monkeypatch.setattr(writing, "LOCK_S_MAX", 240.0)
    await second.open()
    await second.close()


# ---------------------------------------------------------------------- code that changes


class BeforeMeasured(Event, name="Weighed"):
    grams: int


class AfterMeasured(Event, name="Weighed"):
    grams: int
    unit: str = "it's g"
    where: tuple[float, ...] = (0.5,)
    by: str | None = None


class OtherMeasured(Event, name="Weighed"):
    grams: str


def scale(event: type[Event]) -> Fleet:
    def weighed(self: Any, event: Any) -> None:
        self.last = 1

    weighed.__annotations__ = {"event": event, "return": None}
    body = {"__annotations__": {"last": int}, "last": 0, "weighed": evolve(weighed), "__module__": __name__}
    made: type[Agent] = types.new_class("Scale", (Agent,), exec_body=lambda namespace: namespace.update(body))
    return Fleet("scales", agents=[made])


async def weigh(fleet: Fleet, folder: Path, events: list[Event]) -> list[CapturedCommit]:
    async with fleet.running(journal=f"sqlite:{folder / 'scales.db'}") as live:
        reader = live.host.feed.reader({})
        for event in events:
            await live.observe("Scale/s1", event)
        return log_commits(await reader.read_commits(0.0))


async def test_a_new_field_is_a_new_column_filled_as_old_events_decode(postgres: str, tmp_path: Path) -> None:
    before, after = scale(BeforeMeasured), scale(AfterMeasured)
    writer = writer_to(postgres, before)
    await writer.open()
    first = await weigh(before, tmp_path, [BeforeMeasured(grams=1)])
    await writer.write(first)
    await writer.close()
    writer = writer_to(postgres, after)
    captured = await writer.open()
    log = await weigh(after, tmp_path, [AfterMeasured(grams=2, unit="kg", by="me")])
    await writer.write([one for one in log if one.position > captured[0].position])
    await writer.close()
    rows = ask(postgres, 'SELECT grams, unit, "where", by FROM meters.weighed ORDER BY grams')
    assert rows == [(1, "it's g", [0.5], None), (2, "kg", [0.5], "me")]
    anew = writer_to(postgres, after, schema="anew")
    await anew.open()
    await anew.write(log)
    await anew.close()
    assert ask(postgres, "SELECT * FROM anew.weighed ORDER BY grams") == ask(
        postgres, "SELECT * FROM meters.weighed ORDER BY grams"
    )


async def test_a_field_that_is_gone_leaves_its_column_empty(postgres: str, tmp_path: Path) -> None:
    writer = writer_to(postgres, scale(AfterMeasured))
    await writer.open()
    await writer.close()
    fleet = scale(BeforeMeasured)
    writer = writer_to(postgres, fleet)
    await writer.open()
    await writer.write(await weigh(fleet, tmp_path, [BeforeMeasured(grams=1)]))
    await writer.close()
    assert ask(postgres, "SELECT grams, unit FROM meters.weighed") == [(1, None)]


async def test_a_changed_type_is_refused(postgres: str) -> None:
    writer = writer_to(postgres, scale(BeforeMeasured))
    await writer.open()
    await writer.close()
    writer = writer_to(postgres, scale(OtherMeasured))
    with pytest.raises(ConfigError, match=r"OtherMeasured.grams is text now, and the column grams .* is bigint; give"):
        await writer.open()
    await writer.close()


async def test_another_log_is_refused(postgres: str) -> None:
    writer = writer_to(postgres, declare())
    await writer.open()
    await writer.close()
    for fleet, only, said in [
        (scale(BeforeMeasured), [], "holds the fleet 'meters' with 1 shards, not 'scales' with 1"),
        (declare(shards=2), [], "holds the fleet 'meters' with 1 shards, not 'meters' with 2"),
        (declare(), ["Measured"], "captures all events, not Measured: older events would be missing"),
    ]:
        other = writer_to(postgres, fleet, only)
        with pytest.raises(StoreForeign, match=said):
            await other.open()
        await other.close()


async def test_a_journal_that_lost_what_was_captured_is_refused(postgres: str, tmp_path: Path) -> None:
    fleet = declare()
    (tmp_path / "a").mkdir()
    (tmp_path / "b").mkdir()
    writer = writer_to(postgres, fleet)
    await writer.open()
    commits = await log_of(fleet, tmp_path / "a", [Measured(number=1), Measured(number=2)])
    await writer.write(commits[:-1])
    other = await log_of(fleet, tmp_path / "b", [Measured(number=3), Measured(number=4)])
    assert [one.position for one in other] == [one.position for one in commits]
    with pytest.raises(StoreForeign, match="is not the one that was captured; the journal was restored"):
        await writer.write(other[-1:])
    await writer.write(commits[-1:])
    await writer.close()


async def test_a_log_that_begins_later_is_captured_from_there(postgres: str, tmp_path: Path) -> None:
    fleet = declare()
    commits = await log_of(fleet, tmp_path, [Measured(number=number) for number in range(5)])
    writer = writer_to(postgres, fleet)
    await writer.open()
    await writer.begin(0, commits[2].position)
    await writer.write(commits[2:])
    with pytest.raises(StoreConflict):
        await writer.begin(0, 2)
    await writer.close()
    assert writer.captured[0].position == commits[-1].position


async def test_a_server_that_is_not_there_and_an_url_that_is_none(postgres_server: PostgresServer) -> None:
    with pytest.raises(ConfigError, match="give a PostgreSQL server, such as postgresql://"):
        writer_to("mysql://localhost/x", declare())
    writer = writer_to(postgres_server.url_of("nothing_like_it"), declare())
    with pytest.raises(StoreUnavailable, match='database "nothing_like_it" does not exist'):
        await writer.open()
