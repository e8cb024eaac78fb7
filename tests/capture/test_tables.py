"""Which table an event goes into, and which row it is there."""

import datetime
from typing import Annotated, Literal

import pytest
from msgspec import UNSET, Meta, UnsetType, field

from stigmergy import Agent, Event, Fleet, evolve
from stigmergy.agents.codec import encode
from stigmergy.agents.supervision import InputFailed
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


def test_types_that_are_less_common() -> None:
    class Odd(Event):
        local: Annotated[datetime.datetime, Meta(tz=False)]
        small: Annotated[int, Meta(ge=0, description="a count")]
        mixed: Literal[1, "one"]
        maybe: int | UnsetType = UNSET
        many: tuple[int, ...] = field(default_factory=tuple)

    table = table_of(Odd)
    assert [column.type for column in table.columns] == [
        "timestamp without time zone",
        "bigint",
        "jsonb",
        "bigint",
        "jsonb",
    ]
    assert [column.before for column in table.columns] == [None, None, None, None, "[]"]
    row = table.row((), Odd(local=datetime.datetime(2026, 1, 1), small=1, mixed="one"))  # noqa: DTZ001
    assert row[1:] == (1, '"one"', None, "[]")


def test_a_default_that_no_column_holds_is_refused() -> None:
    class Wide(Event):
        number: int = 2**63

    with pytest.raises(ConfigError, match=r"Wide.number: no column can hold it: number: 9223372036854775808 has more"):
        table_of(Wide)


def test_a_name_that_is_too_long_is_refused() -> None:
    class Long(Event, name="L" + "o" * 63):
        number: int

    with pytest.raises(ConfigError, match="has over 63 bytes; give a shorter one"):
        table_of(Long)


def test_json_with_a_character_that_postgres_refuses() -> None:
    class Noted(Event):
        notes: tuple[str, ...]

    class Notes(Agent):
        last: int = 0

        @evolve
        def noted(self, event: Noted) -> None:
            self.last = 1

    tables = EventTables(Fleet("notes", agents=[Notes]).plans)
    table, row = tables.row_of(0, 1, kept(Noted(notes=("a\0",)), "Notes/n"))
    assert table is OTHERS
    assert row[6:8] == ("notes: JSON in PostgreSQL cannot hold the character U+0000", None)


def test_an_event_of_the_runtime_and_one_that_does_not_decode() -> None:
    tables = EventTables(declare().plans)
    failed = InputFailed(letter="0.1.0", to="Meter/m1", source="s", error="e", input=b"")
    assert tables.row_of(0, 1, kept(failed))[1][6] == "an event of the runtime itself"
    broken = KeptEvent(0, "Meter/m1", "Measured@1", encode({"type": "Measured@1", "number": "x"}), 0, "")
    assert tables.row_of(0, 1, broken)[1][6].startswith("does not decode: ")


def test_an_event_of_another_module_is_found_when_it_comes() -> None:
    tables = EventTables(declare().plans)
    table, row = tables.row_of(0, 1, kept(Strange(number=4), "Gone/g"))
    assert (table.name, row[5:]) == ("strange_thing_in_test_tables", (4,))
    assert tables.row_of(0, 2, kept(Strange(number=5), "Gone/g"))[0] is table


class Strange(Event, name="StrangeThing_in_test_tables"):
    number: int


def test_what_was_not_set_is_null() -> None:
    table, row = EventTables(declare().plans).row_of(0, 1, kept(EVERYTHING))
    assert dict(zip([column.name for column in table.columns], row[5:], strict=True))["note"] is None
