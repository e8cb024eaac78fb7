"""Arrays become batches whose records are those that single messages have; what does not fit is named."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec import msgpack, structs

from stigmergy.agents.columns import read_records, write_record
from stigmergy.base.errors import ConfigError, Malformed, Overloaded
from stigmergy.columns import Batcher
from stigmergy.compiled import batcher as module
from stigmergy.shard.batches import BATCH_BYTES_MAX, HEADER_BYTES_MAX, open_batch
from tests.compiled.metering import Elsewhere, Measured, Mode, a_roster
from tests.formats.golden_columns import LAYOUT, NAMES

GOOD: dict[str, Any] = {
    "level": [1.5, 2.5],
    "count": [1, -(2**63)],
    "mode": [Mode.WILD, "calm"],
    "small": np.array([-100, 100], np.int8),
    "wide": [0, 2**32 - 1],
    "ok": [True, False],
    "code": [b"abc", b"x\0\0"],
    "tiny": 255,
}


def a_batcher(**changes: Any) -> Batcher:
    return Batcher(**{"roster": a_roster(NAMES), "source": "gateway-7", "incarnation": 3, **changes})


def records(batches: list[bytes]) -> list[bytes]:
    width = LAYOUT.record_bytes
    whole = b"".join(open_batch(batch).records for batch in batches)
    return [whole[start : start + width] for start in range(0, len(whole), width)]


def test_records_are_those_of_single_messages() -> None:
    batcher = a_batcher()
    assert batcher.add(Measured, ["M-7", "M-1"], **GOOD) == 2
    assert batcher.waiting == 2
    (batch,) = batcher.take()
    header = open_batch(batch).header
    assert (header.source, header.incarnation, header.sequence, header.count) == ("gateway-7", 3, 1, 2)
    assert (header.shard, header.kind, header.layout, header.generation) == (0, "Meter", LAYOUT.digest(), 1)
    rows = [{name: GOOD[name][row] if name != "tiny" else 255 for name in GOOD} for row in (0, 1)]
    assert records([batch]) == [write_record(LAYOUT, 0, agent, row) for agent, row in zip((2, 0), rows, strict=True)]
    assert batcher.waiting == 0
    assert batcher.take() == []


def test_types_are_mixed_in_the_order_in_which_they_were_added() -> None:
    batcher = a_batcher()
    batcher.add("MeterReset@2", np.array([1]), by=[4], low=[0], port=[9])
    batcher.add(Measured, np.array([0, 2]), **GOOD)
    batcher.add("MeterReset@2", np.array([2]), by=[5], low=[-1], port=[9])
    read = list(read_records(b"".join(records(batcher.take())), LAYOUT))
    assert [(one.agent, one.tag) for one in read] == [
        (1, "MeterReset@2"),
        (0, "Measured@1"),
        (2, "Measured@1"),
        (2, "MeterReset@2"),
    ]
    assert msgpack.decode(read[3].body) == {"type": "MeterReset@2", "by": 5, "low": -1, "port": 9}


def test_no_memory_of_ours_is_sent_along_when_records_are_split_by_shard() -> None:
    """Of the rows that a mask chooses numpy copies the fields; what lies between them is whatever was there."""
    names = [f"M-{number}" for number in range(8)]
    for _ in range(50):
        batcher = a_batcher(roster=a_roster(names, shards=3))
        waste = [np.full(LAYOUT.record_bytes * 8, 255, np.uint8) for _ in range(20)]
        del waste
        batcher.add(Measured, names, **{name: value if name == "tiny" else value[0] for name, value in GOOD.items()})
        for record in records(batcher.take()):
            (read,) = read_records(record, LAYOUT)
            fields = {name: value if name == "tiny" else value[0] for name, value in GOOD.items()}
            assert record == write_record(LAYOUT, 0, read.agent, fields)


def test_each_shard_is_counted_on_its_own_without_a_gap() -> None:
    names = [f"M-{number}" for number in range(10)]
    batcher = a_batcher(roster=a_roster(names, shards=3))
    batches: list[bytes] = []
    for _ in range(2):
        for _ in range(3):
            batcher.add("MeterReset@2", names, by=0, low=0, port=np.arange(10, dtype=np.uint16))
        batches = batcher.take(limit_bytes=HEADER_BYTES_MAX + 16 + 5 * LAYOUT.record_bytes)
        assert all(len(batch) <= HEADER_BYTES_MAX + 16 + 5 * LAYOUT.record_bytes for batch in batches)
    headers = [open_batch(batch).header for batch in batches]
    assert {header.count for header in headers} == {5, 2, 4}
    expected = {0: 13, 1: 10, 2: 10}
    for header in headers:
        assert header.sequence == expected[header.shard]
        expected[header.shard] += header.count
    assert batcher.sequences == expected == {0: 25, 1: 19, 2: 19}
    ports = [msgpack.decode(one.body)["port"] for one in read_records(open_batch(batches[0]).records, LAYOUT)]
    assert ports == [0, 3, 6, 9, 0]


def test_who_goes_on_says_from_where() -> None:
    batcher = a_batcher(sequences={0: 41})
    batcher.add("MeterReset@2", ["M-1"], by=0, low=0, port=0)
    assert open_batch(batcher.take()[0]).header.sequence == 41


def test_a_newer_roster_knows_more_agents() -> None:
    batcher = a_batcher()
    with pytest.raises(Malformed, match="'M-8' is not in the roster of Meter; enrol it first"):
        batcher.add("MeterReset@2", ["M-1", "M-8"], by=0, low=0, port=0)
    batcher.add("MeterReset@2", ["M-1"], by=0, low=0, port=0)
    batcher.renew(a_roster((*NAMES, "M-8")))
    batcher.add("MeterReset@2", ["M-8"], by=0, low=0, port=0)
    assert [one.agent for one in read_records(b"".join(records(batcher.take())), LAYOUT)] == [0, 3]


def test_a_roster_of_one_shard_without_names_takes_numbers() -> None:
    batcher = a_batcher(roster=a_roster(NAMES, named=False))
    batcher.add("MeterReset@2", [2, 0], by=0, low=0, port=0)
    with pytest.raises(Malformed, match="row 1: agent 3, and 3 are enrolled"):
        batcher.add("MeterReset@2", [2, 3], by=0, low=0, port=0)
    with pytest.raises(Malformed, match="does not say in which shard"):
        a_batcher(roster=a_roster(NAMES, 2, named=False)).add("MeterReset@2", [0], by=0, low=0, port=0)


BAD: list[tuple[dict[str, Any], str]] = [
    ({"level": [1.0, float("nan")]}, r"Measured\.level, row 1: nan is not allowed \(x >= 0 and x < 1e\+06\)"),
    ({"level": [-1.0, 2.0]}, r"Measured\.level, row 0: -1\.0 is not allowed"),
    ({"level": [1.0, 1e6]}, r"Measured\.level, row 1: 1000000\.0 is not allowed"),
    ({"level": ["a", "b"]}, r"Measured\.level: <U1 where numbers belong"),
    ({"level": np.array([1, 2**60])}, r"Measured\.level, row 1: 1152921504606846976 is no float without a loss"),
    ({"level": [True, False]}, r"Measured\.level: bool where numbers belong"),
    ({"level": [1.0, 2.0, 3.0]}, r"Measured\.level: 3 values for 2 rows"),
    ({"level": np.ma.masked_array([1.0, 2.0], [False, True])}, r"Measured\.level, row 1: no value"),
    ({"count": [1.0, 2.0]}, r"Measured\.count: float64 where whole numbers belong"),
    ({"count": np.array([1, 2**63], np.uint64)}, r"Measured\.count, row 1: 9223372036854775808 is not within"),
    ({"small": [0, 101]}, r"Measured\.small, row 1: 101 is not within -100 to 100"),
    ({"small": [-101, 0]}, r"Measured\.small, row 0: -101 is not within"),
    ({"wide": [0, 2**32]}, r"Measured\.wide, row 1"),
    ({"tiny": -1}, r"Measured\.tiny, row 0: -1 is not within 0 to 255"),
    ({"ok": [0, 1]}, r"Measured\.ok: int64 where booleans belong"),
    ({"code": [b"abc", b"abcd"]}, r"Measured\.code, row 1: b'abcd' where 3 bytes belong"),
    ({"code": ["abc", b"abc"]}, r"Measured\.code, row 0: 'abc' where 3 bytes belong"),
    ({"mode": [Mode.CALM, "mild"]}, r"Measured\.mode, row 1: 'mild' is no value of CALM, WILD"),
    ({"mode": np.array([7, 8])}, r"Measured\.mode, row 1: 8 is no value"),
    ({"mode": [[], {}]}, r"Measured\.mode, row 0: \[\] is no value"),
    ({"mode": [object(), 7]}, r"Measured\.mode, row 0"),
    ({"speed": [1, 2]}, r"Measured: give level, .*; what was given does not know speed"),
]


@pytest.mark.parametrize(("changes", "what"), BAD)
def test_what_does_not_fit_is_named_and_nothing_is_added(changes: dict[str, Any], what: str) -> None:
    batcher = a_batcher()
    with pytest.raises(Malformed, match=what):
        batcher.add(Measured, ["M-1", "M-2"], **{**GOOD, **changes})
    assert batcher.waiting == 0
    assert batcher.take() == []


def test_columns_that_are_missing_are_named() -> None:
    given = {name: GOOD[name] for name in GOOD if name not in ("level", "ok")}
    with pytest.raises(Malformed, match="what was given has no level, ok"):
        a_batcher().add(Measured, ["M-1", "M-2"], **given)


def test_messages_that_no_batch_can_have_are_named() -> None:
    for message in (Elsewhere, "ResetMeter@2", "Nothing"):
        with pytest.raises(
            Malformed, match="is no event that Meter takes in batches; there are Measured@1, MeterReset"
        ):
            a_batcher().add(message, ["M-1"], by=0)


def test_without_the_class_only_what_has_no_place_is_refused() -> None:
    batcher = a_batcher()
    batcher.add("Measured", ["M-1", "M-2"], **{**GOOD, "level": [np.nan, -1], "small": [-(2**15), 2**15 - 1]})
    with pytest.raises(Malformed, match="row 0: 32768 is not within -32768 to 32767"):
        batcher.add("Measured", ["M-1"], **{**{name: one[:1] for name, one in GOOD.items() if name != "tiny"},
                                            "tiny": 1, "small": [2**15]})  # fmt: skip


def test_every_nan_is_the_one_that_records_have() -> None:
    strange = np.array([0x7FF8000000000123, 0xFFF8000000000000], np.uint64).view(np.float64)
    batcher = a_batcher()
    batcher.add("Measured", ["M-1", "M-2"], **{**GOOD, "level": strange})
    assert [one[8:16].hex() for one in records(batcher.take())] == ["000000000000f87f"] * 2


@pytest.mark.parametrize(
    "code",
    [
        np.array([b"abc", b"x\0\0"], "S3"),
        np.array([[97, 98, 99], [120, 0, 0]], np.uint8),
        np.frombuffer(b"abcx\0\0", "V3"),
        [b"abc", b"x\0\0"],
    ],
)
def test_fixed_bytes_keep_their_zeros(code: Any) -> None:
    batcher = a_batcher()
    batcher.add(Measured, ["M-1", "M-2"], **{**GOOD, "code": code})
    assert [one[33:36] for one in records(batcher.take())] == [b"abc", b"x\0\0"]


def test_one_value_may_stand_for_all_rows() -> None:
    batcher = a_batcher()
    one = {"level": 1, "count": np.int64(3), "mode": Mode.CALM, "small": 0, "wide": 1, "ok": True, "code": b"abc"}
    batcher.add(Measured, list(NAMES), **one, tiny=1)
    batcher.add(Measured, list(NAMES), **{**one, "mode": "calm"}, tiny=1)
    made = records(batcher.take())
    assert len({one[4:] for one in made}) == 1
    assert batcher.add(Measured, [], **one, tiny=1) == 0


def test_agents_outside_of_the_roster_are_named() -> None:
    for agents, what in (([0, 3], "row 1: agent 3, and the roster has 3"), ([-1, 0], "row 0: agent -1")):
        with pytest.raises(Malformed, match=what):
            a_batcher().add("MeterReset@2", agents, by=0, low=0, port=0)


def test_what_waits_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "WAITING_BYTES_MAX", 3 * LAYOUT.record_bytes)
    batcher = a_batcher()
    batcher.add("MeterReset@2", [0, 1], by=0, low=0, port=0)
    with pytest.raises(Overloaded, match="4 records wait"):
        batcher.add("MeterReset@2", [0, 1], by=0, low=0, port=0)
    batcher.add("MeterReset@2", [0], by=0, low=0, port=0)
    assert len(records(batcher.take())) == 3


def test_batches_are_never_larger_than_a_node_takes() -> None:
    batcher = a_batcher()
    batcher.add("MeterReset@2", np.zeros(50_000, np.int64), by=0, low=0, port=0)
    batches = batcher.take(limit_bytes=2**40)
    assert len(batches) == 3
    assert all(BATCH_BYTES_MAX - 2000 < len(batch) <= BATCH_BYTES_MAX for batch in batches[:-1])
    batcher.add("MeterReset@2", [0], by=0, low=0, port=0)
    with pytest.raises(ConfigError, match="no record fits"):
        batcher.take(limit_bytes=100)
    assert batcher.waiting == 1


def test_a_source_has_a_name_and_a_layout_stays_while_records_wait() -> None:
    with pytest.raises(ConfigError, match="source"):
        a_batcher(source="")
    batcher = a_batcher()
    batcher.add("MeterReset@2", [0], by=0, low=0, port=0)
    with pytest.raises(ConfigError, match="another layout"):
        batcher.renew(structs.replace(a_roster(NAMES), layout=structs.replace(LAYOUT, row_bytes=8)))


@settings(max_examples=50, deadline=None)
@given(
    st.lists(
        st.tuples(
            st.integers(0, 2),
            st.floats(0, 1e5),
            st.integers(-(2**63), 2**63 - 1),
            st.sampled_from(Mode),
            st.integers(-100, 100),
            st.binary(min_size=3, max_size=3),
            st.booleans(),
        ),
        max_size=20,
    )
)
def test_any_rows_are_written_as_single_messages_are(rows: list[tuple[Any, ...]]) -> None:
    names = ("level", "count", "mode", "small", "code", "ok")
    columns = {name: [row[place + 1] for row in rows] for place, name in enumerate(names)}
    columns = {name: values if name in ("mode", "code") else _array(name, values) for name, values in columns.items()}
    batcher = a_batcher()
    batcher.add(Measured, _array("count", [row[0] for row in rows]), **columns, wide=7, tiny=7)
    expected = [
        write_record(LAYOUT, 0, row[0], {**dict(zip(names, row[1:], strict=True)), "wide": 7, "tiny": 7})
        for row in rows
    ]
    assert records(batcher.take()) == expected


def _array(name: str, values: list[Any]) -> Any:
    return np.array(values, {"level": np.float64, "ok": bool}.get(name, np.int64))
