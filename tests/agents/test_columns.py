"""Records, layouts and templates: what is written comes back, and what is damaged is said to be."""

from __future__ import annotations

import math
import re
import struct
from contextlib import suppress
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import msgpack, structs

from stigmergy.agents.codec import encode
from stigmergy.agents.columns import (
    ENUM,
    NO_CHECK,
    Column,
    ColumnRun,
    Constant,
    Form,
    Formatted,
    Layout,
    OwnName,
    Slot,
    Template,
    Templates,
    Text,
    canonical_nan,
    check_actions,
    check_run,
    read_actions,
    read_columns,
    read_layout,
    read_records,
    read_templates,
    roster_check,
    size_of,
    write_columns,
    write_record,
)
from stigmergy.base.errors import JournalCorrupt, Malformed

MODES = [("CALM", encode("calm")), ("WILD", encode(7)), ("NONE", encode(None))]
RANGES = {
    "i8": (-(2**63), 2**63 - 1),
    "i4": (-(2**31), 2**31 - 1),
    "i2": (-(2**15), 2**15 - 1),
    "i1": (-128, 127),
    "u4": (0, 2**32 - 1),
    "u2": (0, 2**16 - 1),
    "u1": (0, 255),
}
CODES = ["f8", *RANGES, "b1", ENUM, "S1", "S16"]


def layout_of(codes: list[str]) -> Layout:
    """A layout with one form that has a column of each code, without room between them."""
    columns, at = [], 8
    for number, code in enumerate(codes):
        columns.append(Column(f"c{number}", code, at, MODES if code == ENUM else []))
        at += size_of(code)
    return Layout(1, "Meter", -(-at // 8) * 8, [Form("Measured@1", columns)], 8, [Column("level", "f8", 0)])


LAYOUT = layout_of(["f8", ENUM, "S3"])
SMALL = {"c0": 1.5, "c1": 7, "c2": b"abc"}


def values(code: str) -> st.SearchStrategy[Any]:
    match code:
        case "f8":
            return st.floats(allow_nan=False)
        case "b1":
            return st.booleans()
        case "e2":
            return st.sampled_from(["calm", 7, None])
        case _ if code.startswith("S"):
            return st.binary(min_size=int(code[1:]), max_size=int(code[1:]))
        case _:
            return st.integers(*RANGES[code])


@st.composite
def written(draw: st.DrawFn) -> tuple[list[str], list[dict[str, Any]]]:
    codes = draw(st.lists(st.sampled_from(CODES), max_size=8))
    rows = draw(st.lists(st.tuples(*(values(code) for code in codes)), min_size=1, max_size=4))
    return codes, [{f"c{number}": value for number, value in enumerate(row)} for row in rows]


@given(written())
def test_what_is_written_comes_back(case: tuple[list[str], list[dict[str, Any]]]) -> None:
    codes, rows = case
    layout = read_layout(encode(layout_of(codes)))
    records = b"".join(write_record(layout, 0, number, row) for number, row in enumerate(rows))
    assert len(records) == len(rows) * layout.record_bytes
    found = list(read_records(records, layout))
    assert [(one.agent, one.tag) for one in found] == [(number, "Measured@1") for number in range(len(rows))]
    assert [msgpack.decode(one.body) for one in found] == [{"type": "Measured@1", **row} for row in rows]
    for number, row in enumerate(rows):
        assert read_columns(layout.forms[0].columns, records, number * layout.record_bytes) == row


def test_the_head_of_a_record() -> None:
    record = write_record(LAYOUT, 0, 0x01020304, SMALL)
    assert record[:8] == bytes([4, 3, 2, 1, 0, 0, 0, 0])
    assert record[8:16] == struct.pack("<d", 1.5)
    assert record[16:21] == b"\x01\x00abc"
    assert record[21:] == bytes(3)


@pytest.mark.parametrize(
    ("code", "value", "text"),
    [
        *((code, low - 1, f"does not fit into {code}") for code, (low, _) in RANGES.items()),
        *((code, high + 1, f"does not fit into {code}") for code, (_, high) in RANGES.items()),
        ("f8", "1", "Measured@1.c0: '1' does not fit into f8 (required argument is not a float); send what fits"),
        ("f8", 10**400, "does not fit into f8"),
        (ENUM, "loud", "does not fit into e2"),
        ("S3", b"ab", "Measured@1.c0: 2 bytes, and it has 3"),
        ("S3", 3, "does not fit into S3"),
    ],
)
def test_what_does_not_fit_is_refused(code: str, value: object, text: str) -> None:
    with pytest.raises(Malformed, match=re.escape(text)):
        write_columns(layout_of([code]).forms[0].columns, {"c0": value}, bytearray(40), "Measured@1")


@pytest.mark.parametrize("code", ["", "f4", "S", "S0", "S1025", "S-1", "S1.5", "S²", "e1", "F8"])
def test_no_way_to_store_a_value(code: str) -> None:
    with pytest.raises(Malformed, match=re.escape(f"{code!r} is no way to store a value; there are f8, i8,")):
        size_of(code)
    assert (size_of("S1024"), size_of("e2"), size_of("i4")) == (1024, 2, 4)


def test_one_nan() -> None:
    other = struct.unpack("<d", b"\x01\0\0\0\0\0\xf8\xff")[0]
    assert struct.pack("<d", canonical_nan(other)) == struct.pack("<d", math.nan)
    assert canonical_nan(2.5) == 2.5


def test_a_digest_stands_for_the_records_alone() -> None:
    other_state = structs.replace(LAYOUT, row_bytes=16, columns=[])
    assert other_state.digest() == LAYOUT.digest()
    assert len(LAYOUT.digest()) == 16
    others: list[dict[str, Any]] = [{"kind": "Other"}, {"record_bytes": 32}, {"forms": []}, {"format": 2}]
    for changed in others:
        assert structs.replace(LAYOUT, **changed).digest() != LAYOUT.digest()


def test_a_check_stands_for_all_names_in_their_order() -> None:
    first = roster_check(NO_CHECK, ["a", "b"])
    assert len(first) == 8
    others = [roster_check(NO_CHECK, names) for names in (["b", "a"], ["ab"], ["a"], [])]
    assert first not in [*others, roster_check(roster_check(NO_CHECK, ["a"]), ["b"])]
    assert roster_check(NO_CHECK, ("a", "b")) == first


# Damaged.


@pytest.mark.parametrize(
    ("changed", "text"),
    [
        ({"format": 2}, "a layout of format 2; use the version that wrote it, or a later one"),
        ({"record_bytes": 23}, "a layout of format 1"),
        ({"record_bytes": 16}, "a layout does not decode (column c1 lies outside); restore from a copy"),
        ({"row_bytes": 7}, "column level lies outside"),
        ({"record_bytes": 1_032}, "records of 1032 bytes and rows of 8, 1024 and 16384 at most; restore from a copy"),
        ({"record_bytes": 0, "forms": []}, "records of 0 bytes"),
        ({"row_bytes": 16_385}, "rows of 16385"),
        ({"row_bytes": -1, "columns": []}, "rows of -1"),
        ({"columns": [Column("level", "f8", -8)]}, "column level lies outside"),
        ({"columns": [Column("level", "f9", 0)]}, "'f9' is no way to store a value"),
        ({"forms": [Form("Measured@1", [Column("level", "u1", 7)])]}, "column level lies outside"),
        ({"kind": 3}, "a layout does not decode (Expected `str`, got `int`"),
    ],
)
def test_what_is_no_layout(changed: dict[str, Any], text: str) -> None:
    fields = {**{name: getattr(LAYOUT, name) for name in Layout.__struct_fields__}, **changed}
    with pytest.raises(JournalCorrupt, match=re.escape(text)):
        read_layout(encode(list(fields.values())))


def templates_of(*parts: Any, slots: int = 2) -> Templates:
    return Templates(
        1, "Meter", 16 + 8 * slots, [Template("Alarm@1", [(f"p{n}", part) for n, part in enumerate(parts)])]
    )


@pytest.mark.parametrize(
    ("templates", "text"),
    [
        (structs.replace(templates_of(), format=2), "templates of format 2; use the version that wrote them"),
        (structs.replace(templates_of(), action_bytes=17), "templates of format 1"),
        (templates_of(Slot(2, "f8")), "templates of actions do not decode (Alarm@1.p0 lies outside of its action)"),
        (templates_of(Slot(-1, "f8")), "lies outside of its action"),
        (templates_of(Slot(0, "S17")), "lies outside of its action"),
        (templates_of(Slot(0, "f4")), "'f4' is no way to store a value"),
        (templates_of(Text(["x", Formatted(2, "i8")])), "lies outside of its action"),
        (templates_of(Text([Formatted(0, "f8", "251")])), "a number formatted with '251'; give widths of 250 at most"),
        (templates_of(Text([Formatted(0, "f8", ".999999999999f")])), "give widths of 250 at most"),
        (templates_of(Text([Formatted(0, "i8", "%H")])), "a number cannot be formatted with '%H' (Invalid format"),
        (templates_of(Text([Formatted(0, "f8", "d")])), "a number cannot be formatted with 'd'"),
        (templates_of(Text([Formatted(0, "b1", "s")])), "a number cannot be formatted with 's'"),
    ],
)
def test_what_are_no_templates(templates: Templates, text: str) -> None:
    with pytest.raises(JournalCorrupt, match=re.escape(text)):
        read_templates(encode(templates))


def test_what_decodes_to_nothing() -> None:
    for body in (b"", b"\x91" * 2_000, encode(["x"]), b"\xa2\xff\xff"):
        with pytest.raises(JournalCorrupt, match="a layout does not decode"):
            read_layout(body)
        with pytest.raises(JournalCorrupt, match="templates of actions do not decode"):
            read_templates(body)


@given(st.binary(max_size=60))
def test_any_bytes_are_records_or_said_to_be_damaged(data: bytes) -> None:
    records = data + bytes(-len(data) % LAYOUT.record_bytes)
    with suppress(JournalCorrupt):
        assert len(list(read_records(records, LAYOUT))) == len(records) // LAYOUT.record_bytes


def test_damaged_records() -> None:
    record = bytearray(write_record(LAYOUT, 0, 5, SMALL))
    record[4] = 1
    with pytest.raises(JournalCorrupt, match="a record of form 1, and Meter has 1; restore from a copy"):
        list(read_records(bytes(record), LAYOUT))
    record[4], record[16] = 0, 3
    with pytest.raises(JournalCorrupt, match="member 3 of an enum that has 3; restore from a copy"):
        list(read_records(bytes(record), LAYOUT))


def test_a_run_has_as_many_records_as_it_says() -> None:
    records = write_record(LAYOUT, 0, 5, SMALL) * 2
    run = ColumnRun("Meter", LAYOUT.digest(), 1, "s", 2, records)
    check_run(run, LAYOUT)
    check_run(structs.replace(run, count=0, records=b"", actions_count=1), LAYOUT)
    for changed in ({"count": 1}, {"count": 3}, {"records": records[:-1]}, {"count": 0, "records": b""}):
        with pytest.raises(JournalCorrupt, match=r"bytes for \d records of 24; restore from a copy"):
            check_run(structs.replace(run, **changed), LAYOUT)


def test_a_run_has_the_next_actions() -> None:
    templates = templates_of(Slot(0, "f8"))
    run = ColumnRun("Meter", LAYOUT.digest(), 1, "s", 0, b"", templates.digest(), 7, 2, bytes(64))
    check_actions(run, templates, 7)
    for changed in ({"actions": bytes(63)}, {"actions_count": 1}, {"first": 8}):
        with pytest.raises(JournalCorrupt, match=r"from number \d on where 7 is the next; restore from a copy"):
            check_actions(structs.replace(run, **changed), templates, 7)


# Actions.

EVERYTHING = Templates(
    1,
    "Meter",
    16 + 8 * 6,
    [
        Template("Hush@1", []),
        Template(
            "Alarm@1",
            [
                ("fixed", Constant(encode(("a", 1)))),
                ("level", Slot(0, "f8")),
                ("count", Slot(1, "u1")),
                ("ok", Slot(2, "b1")),
                ("mode", Slot(3, ENUM, MODES)),
                ("code", Slot(4, "S10")),
                (
                    "text",
                    Text(
                        [
                            OwnName(),
                            "/",
                            OwnName(with_kind=True),
                            ": ",
                            Formatted(0, "f8", ">8.2f"),
                            Formatted(1, "i8"),
                            Formatted(2, "b1"),
                        ]
                    ),
                ),
            ],
        ),
    ],
)


def action(template: int = 1, *, mode: int = 1, level: float = 2.5) -> bytes:
    return struct.pack("<IHHIIdqqq10s6x", 3, template, 0, 9, 0, level, -4, 1, mode, b"0123456789")


def test_an_action_is_made_of_its_template() -> None:
    templates = read_templates(encode(EVERYTHING))
    assert templates == EVERYTHING
    hush, alarm = read_actions(action(0) + action(), templates, lambda number: f"m-{number}")
    assert (hush.agent, hush.cause, hush.tag, msgpack.decode(hush.body)) == (3, 9, "Hush@1", {"type": "Hush@1"})
    assert list(msgpack.decode(alarm.body).items()) == [
        ("type", "Alarm@1"),
        ("fixed", ["a", 1]),
        ("level", 2.5),
        ("count", -4),
        ("ok", True),
        ("mode", 7),
        ("code", b"0123456789"),
        ("text", "m-3/Meter/m-3:     2.50-4True"),
    ]


@pytest.mark.parametrize("mode", [-1, 3])
def test_damaged_actions(mode: int) -> None:
    with pytest.raises(JournalCorrupt, match=f"member {mode} of an enum that has 3; restore from a copy"):
        list(read_actions(action(mode=mode), EVERYTHING, str))
    with pytest.raises(JournalCorrupt, match="an action of template 2; restore from a copy"):
        list(read_actions(action(2), EVERYTHING, str))


@given(st.floats(allow_nan=False), st.integers(-(2**63), 2**63 - 1), st.text(max_size=5))
def test_texts_are_those_of_python(level: float, count: int, name: str) -> None:
    templates = templates_of(
        Text([Formatted(0, "f8", ".3g"), "|", Formatted(0, "f8"), "|", Formatted(1, "i8", "+d"), OwnName()])
    )
    data = struct.pack("<IHHIIdq", 0, 0, 0, 0, 0, level, count)
    (made,) = read_actions(data, templates, lambda _: name)
    assert msgpack.decode(made.body)["p0"] == f"{level:.3g}|{level}|{count:+d}{name}"


def test_digests_of_templates() -> None:
    assert EVERYTHING.digest() != structs.replace(EVERYTHING, templates=[]).digest()
    assert EVERYTHING.digest() != structs.replace(EVERYTHING, kind="Other").digest()
    assert EVERYTHING.digest() != LAYOUT.digest()
