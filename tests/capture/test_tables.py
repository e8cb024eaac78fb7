"""Which table an event goes into, and which row it is there."""

import pytest

from stigmergy import Agent, Event, Fleet, evolve
from stigmergy.agents.codec import encode
from stigmergy.base.errors import ConfigError
from stigmergy.capture.tables import OTHERS, EventTables, snake_case, table_of
from stigmergy.shard.commit_reader import KeptEvent
from tests.capture.fleets import EVERYTHING, Archived, Everything, Measured, declare

TIME_NS = 1_763_193_600_123_456_789


def kept(event: Event, address: str = "Meter/m1") -> KeptEvent:
    body = encode(event)
    return KeptEvent(3, address, type(event).__message__.tag, body, TIME_NS, "test")


def test_names_are_written_as_sql_writes_them() -> None:
    assert [snake_case(name) for name in ("MissionStarted", "HTTPFailed", "Gas2Measured", "x-y")] == [
        "mission_started",
        "http_failed",
        "gas2_measured",
        "x_y",
    ]


def test_each_field_has_a_column_of_its_type() -> None:
    types = {column.name: column.type for column in table_of(Everything).columns}
    assert types == {
        "flag": "boolean",
        "count": "bigint",
        "ratio": "double precision",
        "text": "text",
        "raw": "bytea",
        "gas": "text",
        "level": "bigint",
        "mode": "text",
        "at": "timestamp with time zone",
        "day": "date",
        "took": "interval",
        "key": "uuid",
        "price": "numeric",
        "place": "jsonb",
        "route": "jsonb",
        "names": "jsonb",
        "note": "text",
        "either": "jsonb",
    }


def test_a_row_says_where_the_event_is_in_the_log() -> None:
    table, row = EventTables(declare().plans).row_of(2, 41, kept(Measured(number=7, label="a")))
    assert (table.name, row[:3], row[4:]) == ("measured", (2, 41, 3), ("Meter/m1", 7, "a"))
    assert row[3].isoformat() == "2025-11-15T08:00:00.123456+00:00"


def test_an_event_that_is_only_yielded_has_a_table_too() -> None:
    tables = EventTables(declare().plans)
    assert [table.name for table in tables.tables] == ["archived", "everything", "measured", "other_events"]
    assert tables.row_of(0, 1, kept(Archived(number=1)))[0].name == "archived"


@pytest.mark.parametrize(
    ("event", "reason"),
    [
        (Measured(number=2**63), "number: 9223372036854775808 has more than 64 bits"),
        (Measured(number=1, label="a\0b"), "label: a text of PostgreSQL cannot hold the character U+0000"),
    ],
)
def test_what_a_column_cannot_hold_is_kept_as_it_is_with_the_reason(event: Measured, reason: str) -> None:
    one = kept(event)
    table, row = EventTables(declare().plans).row_of(0, 1, one)
    assert table is OTHERS
    assert (row[5], row[6], row[8]) == ("Measured@1", reason, one.body)


def test_an_event_that_the_code_does_not_know_any_more_is_kept_as_it_is() -> None:
    body = encode({"type": "Forgotten@1", "number": 5})
    table, row = EventTables(declare().plans).row_of(0, 1, KeptEvent(0, "Meter/m1", "Forgotten@1", body, 0, ""))
    assert table is OTHERS
    assert row[5:8] == ("Forgotten@1", "the fleet's code has no event Forgotten@1", '{"number":5}')


def test_only_some_types() -> None:
    tables = EventTables(declare().plans, only=["Archived"])
    assert [table.name for table in tables.tables] == ["archived", "other_events"]
    assert tables.takes("Archived@1")
    assert not tables.takes("Measured@1")
    with pytest.raises(ConfigError, match="--only Missing: the fleet has no such event; it has Archived, Everything"):
        EventTables(declare().plans, only=["Missing"])


def test_a_field_with_the_name_of_our_own_columns_is_refused() -> None:
    class Logged(Event):
        log_time: int

    with pytest.raises(ConfigError, match=r"Logged.log_time: every table has such a column; rename the field"):
        table_of(Logged)


def test_a_table_of_the_capture_itself_is_refused() -> None:
    class OtherEvents(Event):
        number: int

    with pytest.raises(ConfigError, match="a table of the capture itself"):
        table_of(OtherEvents)


def test_two_types_in_one_table_are_refused() -> None:
    class GasFound(Event):
        number: int

    class Found(Event, name="gas_found"):
        number: int

    class Finder(Agent):
        last: int = 0

        @evolve
        def one(self, event: GasFound) -> None:
            self.last = event.number

        @evolve
        def other(self, event: Found) -> None:
            self.last = event.number

    with pytest.raises(ConfigError, match="would share the table gas_found"):
        EventTables(Fleet("finders", agents=[Finder]).plans)


def test_a_new_version_is_another_table() -> None:
    class Weighed(Event, version=2):
        grams: int

    assert table_of(Weighed).name == "weighed_v2"


def test_what_was_not_set_is_null() -> None:
    table, row = EventTables(declare().plans).row_of(0, 1, kept(EVERYTHING))
    assert dict(zip([column.name for column in table.columns], row[5:], strict=True))["note"] is None
