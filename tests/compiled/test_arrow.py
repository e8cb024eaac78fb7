"""What compiled agents have kept is read as Arrow record batches, written as Parquet, and sent again."""

from __future__ import annotations

import asyncio
import importlib
import subprocess
import sys
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as arrow  # type: ignore[import-untyped,unused-ignore]
import pytest
from msgspec import msgpack, structs

from stigmergy.agents.codec import encode
from stigmergy.agents.columns import NOT_KEPT, Constant, Slot, Template, Templates, Text, read_records
from stigmergy.arrow import add_table, kind_and_type, read_log
from stigmergy.base.errors import ConfigError, JournalCorrupt, Malformed
from stigmergy.columns import Batcher
from stigmergy.compiled.arrow import EventBatches, EventFilter
from stigmergy.compiled.arrow_actions import OrderBatches
from stigmergy.journal.port import JournalIdentity
from stigmergy.journal.sqlite import open_journal
from stigmergy.shard.batches import open_batch
from stigmergy.shard.commit_reader import learn, walk
from stigmergy.shard.directory import Directory
from tests.audit.column_log import FLEET, SECOND_NS, a_log, a_run, measured
from tests.compiled.metering import Measured, a_roster
from tests.formats.golden_columns import ACTIONS, COMMIT, LAYOUT, NAMES, RECORDS, RUN


@pytest.fixture
def url(tmp_path: Path) -> str:
    async def make() -> None:
        journal = open_journal(f"sqlite:{tmp_path / 'columns.db'}", JournalIdentity(FLEET, 1, 7))
        await a_log(journal)
        await journal.close()

    asyncio.run(make())
    return f"sqlite:{tmp_path / 'columns.db'}"


def known() -> Directory:
    directory = Directory()
    learn(directory, COMMIT)
    return directory


def rows(batches: Any) -> list[dict[str, Any]]:
    """Without times: nanoseconds are more than Python's datetime can say."""
    return [row for batch in batches for row in batch.drop_columns(["time"]).to_pylist()]


def test_a_log_is_read_as_record_batches_with_typed_columns(url: str) -> None:
    (batch,) = read_log(url)
    assert kind_and_type(batch) == ("Meter", "Measured@1")
    types = {field.name: str(field.type) for field in batch.schema}
    assert types == {
        "agent": "dictionary<values=string, indices=int32, ordered=0>",
        "shard": "int32",
        "position": "int64",
        "index": "int32",
        "time": "timestamp[ns, tz=UTC]",
        "source": "dictionary<values=string, indices=int32, ordered=0>",
        "level": "double",
        "count": "int64",
        "mode": "dictionary<values=string, indices=int32, ordered=0>",
        "small": "int16",
        "wide": "uint32",
        "ok": "bool",
        "code": "fixed_size_binary[3]",
        "tiny": "uint8",
    }
    assert not any(field.nullable for field in batch.schema)
    read = batch.to_pylist()
    assert [(row["agent"], row["level"], row["position"], row["index"]) for row in read] == [
        ("Meter/M-7", 1.5, 3, 1),
        ("Meter/M-1", 2.5, 4, 1),
        ("Meter/M-8", 3.5, 4, 2),
        ("Meter/M-1", 4.5, 4, 3),
        ("Meter/M-2", 5.5, 5, 0),
    ]
    assert [row["source"] for row in read] == ["radio/7", "radio/7", "radio/7", "local", "radio/7"]
    assert {name: read[0][name] for name in ("count", "mode", "small", "wide", "ok", "code", "tiny")} == {
        "count": -3,
        "mode": "WILD",
        "small": -2,
        "wide": 4_000_000_000,
        "ok": True,
        "code": b"abc",
        "tiny": 255,
    }
    assert batch.column("time").cast(arrow.int64()).to_pylist() == [place * SECOND_NS for place in (3, 4, 4, 4, 5)]


def test_what_is_read_is_chosen(url: str) -> None:
    def levels(**chosen: Any) -> list[float]:
        return [row["level"] for row in rows(read_log(url, **chosen))]

    assert levels(agent="Meter/M-1") == [2.5, 4.5]
    assert levels(agent="Meter/M-99") == []
    assert levels(kind="Gauge") == []
    assert levels(type="Measured") == levels(type="Measured@1") == [1.5, 2.5, 3.5, 4.5, 5.5]
    assert levels(type="MeterReset") == []
    assert levels(first=4, last=4) == [2.5, 3.5, 4.5]
    assert levels(since="1970-01-01T00:00:05Z") == [5.5]
    assert levels(until=datetime(1970, 1, 1, 0, 0, 3, tzinfo=UTC)) == [1.5]
    assert levels(shard=0, rows=1) == [1.5, 2.5, 3.5, 4.5, 5.5]
    assert [len(batch) for batch in read_log(url, rows=2)] == [3, 2]
    with pytest.raises(ConfigError, match="give a time with its zone"):
        levels(since="17")


async def test_it_is_read_inside_of_a_loop_too(tmp_path: Path) -> None:
    journal = open_journal(f"sqlite:{tmp_path / 'columns.db'}", JournalIdentity(FLEET, 1, 7))
    await a_log(journal)
    await journal.close()
    assert len(rows(read_log(f"sqlite:{tmp_path / 'columns.db'}"))) == 5


def test_orders_are_read_alike(url: str) -> None:
    (batch,) = read_log(url, orders=True)
    assert kind_and_type(batch) == ("Meter", "Alarm@1")
    (row,) = batch.to_pylist()
    assert (row["agent"], row["position"], row["index"], row["sequence"]) == ("Meter/M-8", 4, 2, 1)
    assert (row["loud"], row["level"], row["mode"]) == (True, 99.5, "WILD")
    assert list(read_log(url, orders=True, agent="Meter/M-1")) == []
    assert list(read_log(url, orders=True, type="Say")) == []


def test_records_of_several_types_in_one_run_come_apart() -> None:
    batches = EventBatches()
    made = [*batches.take(COMMIT, known()), *batches.rest()]
    assert [(kind_and_type(batch)[1], len(batch)) for batch in made] == [("Measured@1", 2), ("MeterReset@2", 1)]
    by_index = {row["index"]: row for row in rows(made)}
    for kept in walk(COMMIT, known()):
        if kept.index >= len(COMMIT.events):
            row, fields = by_index[kept.index], msgpack.decode(kept.body)
            assert row["agent"] == kept.address
            assert {name: row[name] for name in fields if name not in ("type", "mode")} == {
                name: value for name, value in fields.items() if name not in ("type", "mode")
            }
    assert list(batches.rest()) == []


def test_texts_constants_and_slots_of_actions_become_columns() -> None:
    batches = OrderBatches()
    made = [*batches.take(COMMIT, known()), *batches.rest()]
    said = next(batch for batch in made if kind_and_type(batch)[1] == "Say@1").to_pylist()
    assert [(row["agent"], row["sequence"], row["index"], row["text"]) for row in said] == [
        ("Meter/M-1", 42, 4, "M-1 at 1.2 of Meter/M-1")
    ]
    assert (said[0]["count"], said[0]["ok"], said[0]["code"]) == (-9, True, b"xyz")


def test_an_action_that_is_made_in_several_ways_has_one_column_for_each_field() -> None:
    templates = Templates(
        1,
        "Meter",
        48,
        [
            Template("Go@1", [("to", Constant(encode(1))), ("how", Constant(encode("fast"))), ("x", Slot(0, "i8"))]),
            Template("Go@1", [("to", Slot(0, "f8")), ("how", Text(["slow"])), ("x", Constant(encode("no")))]),
        ],
    )
    head = ACTIONS[:4]
    one = head + b"\0\0" + bytes(10) + (7).to_bytes(8, "little") + bytes(24)
    other = head + b"\1\0" + bytes(10) + np.float64(2.5).tobytes() + bytes(24)
    loose = head + b"\1\0" + bytes(2) + NOT_KEPT.to_bytes(4, "little") + bytes(4) + bytes(32)
    run = structs.replace(RUN, templates=templates.digest(), actions_count=3, actions=other + one + loose)
    directory = known()
    directory.templates[templates.digest()] = templates
    batches = OrderBatches()
    commit = structs.replace(COMMIT, columns=[run])
    read = rows([*batches.take(commit, directory), *batches.rest()])
    assert [(row["to"], row["how"], row["x"]) for row in read] == [
        (2.5, "slow", "no"),
        (1.0, "fast", "7"),
        (0.0, "slow", "no"),
    ]
    assert [row["index"] for row in read] == [3, 3, None]


@pytest.mark.parametrize(
    ("run", "what"),
    [
        (structs.replace(RUN, layout=b"?" * 16), "does not declare"),
        (structs.replace(RUN, records=RECORDS[:-8]), "88 bytes for 2 records"),
        (structs.replace(RUN, records=RECORDS[:4] + b"\x09\0" + RECORDS[6:]), "form 9, and Meter has 3"),
        (structs.replace(RUN, records=b"\x09" + RECORDS[1:]), "agent 9 of Meter was never enrolled"),
        (structs.replace(RUN, records=RECORDS[:24] + b"\x02\0" + RECORDS[26:]), "member 2 of an enum that has 2"),
    ],
)
def test_records_that_cannot_be_read_are_said(run: Any, what: str) -> None:
    batches = EventBatches()
    with pytest.raises(JournalCorrupt, match=what):
        [*batches.take(structs.replace(COMMIT, columns=[run]), known()), *batches.rest()]


@pytest.mark.parametrize(
    ("run", "what"),
    [
        (structs.replace(RUN, templates=b"?" * 16), "does not declare"),
        (structs.replace(RUN, actions=ACTIONS[:-8]), "88 bytes for 2 actions"),
        (structs.replace(RUN, actions=ACTIONS[:4] + b"\x09" + ACTIONS[5:]), "template 9"),
        (structs.replace(RUN, actions=ACTIONS[:24] + b"\x09" + ACTIONS[25:]), "a member of an enum that has 2"),
    ],
)
def test_actions_that_cannot_be_read_are_said(run: Any, what: str) -> None:
    batches = OrderBatches()
    with pytest.raises(JournalCorrupt, match=what):
        [*batches.take(structs.replace(COMMIT, columns=[run]), known()), *batches.rest()]


def test_enums_of_whole_numbers_and_fields_with_our_names() -> None:
    members = [("LOW", encode(3)), ("HIGH", encode(9))]
    forms = [structs.replace(LAYOUT.forms[0], columns=[structs.replace(LAYOUT.forms[0].columns[2], name="time")])]
    columns = [structs.replace(forms[0].columns[0], members=members)]
    layout = structs.replace(LAYOUT, forms=[structs.replace(forms[0], columns=columns)])
    directory = known()
    directory.layouts[layout.digest()] = layout
    run = a_run([measured(0, 1.0)], 5, layout=layout.digest())
    batches = EventBatches(EventFilter(kind="Meter"))
    (batch,) = [*batches.take(structs.replace(COMMIT, columns=[run]), directory), *batches.rest()]
    assert (str(batch.schema.field("time_").type), rows([batch])[0]["time_"]) == ("int64", 9)


# ---- in


def a_batcher() -> Batcher:
    return Batcher(a_roster(NAMES), source="gateway-7")


FIELDS: dict[str, Any] = {
    "level": arrow.array([1.5, 2.5]),
    "count": arrow.array([1, 2], arrow.int32()),
    "mode": arrow.array(["calm", "calm"]),
    "small": arrow.array([-100, 100], arrow.int16()),
    "wide": arrow.array([0, 2**32 - 1], arrow.uint32()),
    "ok": arrow.array([True, False]),
    "code": arrow.array([b"abc", b"x\0\0"], arrow.binary(3)),
    "tiny": arrow.array([0, 255], arrow.uint8()),
}
WHOSE = {"agent": arrow.array(["M-7", "Meter/M-1"])}


def test_a_record_batch_becomes_records() -> None:
    batcher = a_batcher()
    assert add_table(batcher, Measured, arrow.RecordBatch.from_pydict({**WHOSE, **FIELDS})) == 2
    (batch,) = batcher.take()
    read = list(read_records(open_batch(batch).records, LAYOUT))
    assert [one.agent for one in read] == [2, 0]
    assert msgpack.decode(read[1].body) == {
        "type": "Measured@1",
        "level": 2.5,
        "count": 2,
        "mode": "calm",
        "small": 100,
        "wide": 2**32 - 1,
        "ok": False,
        "code": b"x\0\0",
        "tiny": 255,
    }


def test_tables_in_chunks_slices_dictionaries_and_numbers() -> None:
    table = arrow.table({"number": arrow.array([2, 0]), **FIELDS})
    chunked = arrow.concat_tables([table, table]).slice(1, 2)
    coded = chunked.set_column(3, "mode", chunked.column("mode").combine_chunks().dictionary_encode())
    coded = coded.set_column(7, "code", coded.column("code").cast(arrow.binary()))
    for one in (chunked, coded):
        batcher = a_batcher()
        assert add_table(batcher, Measured, one) == 2
        read = list(read_records(open_batch(batcher.take()[0]).records, LAYOUT))
        assert [(row.agent, msgpack.decode(row.body)["code"]) for row in read] == [(0, b"x\0\0"), (2, b"abc")]


def test_what_was_read_can_be_sent(url: str) -> None:
    (batch,) = read_log(url)
    batch = batch.set_column(batch.schema.names.index("mode"), "mode", arrow.array(["calm"] * len(batch)))
    batcher = Batcher(a_roster([*NAMES, "M-8"]), source="again")
    assert add_table(batcher, "Measured", batch) == 5
    read = list(read_records(open_batch(batcher.take()[0]).records, LAYOUT))
    assert [(one.agent, msgpack.decode(one.body)["level"]) for one in read] == [
        (2, 1.5),
        (0, 2.5),
        (3, 3.5),
        (0, 4.5),
        (1, 5.5),
    ]


@pytest.mark.parametrize(
    ("changes", "what"),
    [
        ({"level": arrow.array([1.0, None])}, "column level, row 1: null"),
        ({"agent": arrow.array(["M-1", None])}, "column agent, row 1: null"),
        ({"agent": arrow.array(["M-1", "M-9"])}, "row 1: 'M-9' is not in the roster"),
        ({"agent": arrow.array([1, 2])}, "column agent: names belong there"),
        ({"number": arrow.array([1, 2])}, "give either a column agent or a column number"),
        ({"level": arrow.array(["1", "2"])}, r"Measured\.level: .* where numbers belong"),
        ({"level": arrow.array([0.0, float("nan")])}, r"Measured\.level, row 1: nan is not allowed"),
        ({"level": arrow.array([1, 2], arrow.timestamp("ns"))}, r"Measured\.level: datetime64\[ns\] where numbers"),
        ({"count": arrow.array([1.0, 2.0])}, r"Measured\.count: float64 where whole numbers belong"),
        ({"ok": arrow.array([1, 0])}, r"Measured\.ok: int64 where booleans belong"),
        ({"code": arrow.array([b"abc", b"ab"])}, r"Measured\.code, row 1"),
        ({"mode": arrow.array(["calm", "odd"])}, r"Measured\.mode, row 1: 'odd' is no value"),
        ({"speed": arrow.array([1, 2])}, "does not know speed"),
    ],
)
def test_what_does_not_fit_names_its_column_and_row(changes: dict[str, Any], what: str) -> None:
    batcher = a_batcher()
    with pytest.raises(Malformed, match=what):
        add_table(batcher, Measured, arrow.RecordBatch.from_pydict({**WHOSE, **FIELDS, **changes}))
    assert batcher.waiting == 0


def test_columns_must_all_be_there() -> None:
    given = {name: column for name, column in {**WHOSE, **FIELDS}.items() if name != "ok"}
    with pytest.raises(Malformed, match="has no ok"):
        add_table(a_batcher(), Measured, arrow.RecordBatch.from_pydict(given))
    with pytest.raises(Malformed, match="give either a column agent"):
        add_table(a_batcher(), Measured, arrow.RecordBatch.from_pydict(FIELDS))
    with pytest.raises(Malformed, match="where whole numbers belong"):
        add_table(a_batcher(), Measured, arrow.table({"number": arrow.array(["a", "b"]), **FIELDS}))
    with pytest.raises(Malformed, match="neither a RecordBatch nor a Table"):
        add_table(a_batcher(), Measured, {"level": [1]})


@pytest.mark.parametrize(
    ("module", "missing", "extra"),
    [("columns", "numpy", "compiled"), ("arrow", "pyarrow", "parquet"), ("arrow", "numpy", "parquet")],
)
def test_without_its_packages_it_says_which_extra_has_them(module: str, missing: str, extra: str) -> None:
    code = f"import sys; sys.modules[{missing!r}] = None; import stigmergy.{module}"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert f'stigmergy.{module} needs {missing}: pip install "stigmergy[{extra}]"' in done.stderr


def test_nothing_of_numba_is_needed_to_read() -> None:
    for name in ("arrow", "arrow_actions", "arrays", "batcher"):
        source = Path(str(importlib.import_module(f"stigmergy.compiled.{name}").__file__)).read_text(encoding="utf-8")
        assert "import numba" not in source
