"""The bytes of compiled agents: read as they were written, by our code and by nothing but docs/formats.md."""

from __future__ import annotations

import struct
import zlib
from typing import Any

import msgspec
import pytest
from blake3 import blake3

from stigmergy.agents.codec import encode
from stigmergy.agents.columns import read_actions, read_layout, read_records, read_templates, roster_check
from stigmergy.agents.messages import Message, own_fields, spec_of
from stigmergy.shard.batches import open_batch
from stigmergy.shard.commit import Commit, open_commit, seal
from stigmergy.shard.snapshot import SnapshotTables, digest_of_parts, encode_header, read_header
from tests.formats import golden_columns as golden
from tests.formats import messagepack
from tests.formats.golden import read_hex, read_lines
from tests.formats.test_golden import by_the_manual, plain

COLUMNS = read_lines("columns-1.txt")


@pytest.mark.parametrize("message", golden.MESSAGES, ids=lambda message: spec_of(type(message)).tag)
def test_messages_have_these_bytes(message: Message) -> None:
    stored = read_lines("messages-2.txt")[spec_of(type(message)).tag]
    assert encode(message) == stored
    assert msgspec.msgpack.decode(stored, type=type(message)) == message
    assert list(messagepack.decode(stored)) == ["type", *own_fields(type(message))]


def test_commit() -> None:
    stored = read_hex("commit-2.hex")
    assert open_commit(stored) == golden.COMMIT
    assert seal(golden.COMMIT).body == stored
    assert seal(golden.COMMIT).events == 3 + 3


def test_commit_read_by_the_manual_alone() -> None:
    named = by_the_manual("Commit", messagepack.decode(read_hex("commit-2.hex")))
    assert named == {name: plain(getattr(golden.COMMIT, name)) for name in Commit.__struct_fields__[:17]}
    assert (named["format"], named["confirmed"]) == (2, [["Meter", 40]])
    run, other = (by_the_manual("ColumnRun", array) for array in named["columns"])
    assert (run["kind"], run["count"], run["first"], run["actions_count"]) == ("Meter", 2, 41, 2)
    assert (other["templates"], other["first"], other["actions_count"], other["actions"]) == (b"", 0, 0, b"")
    assert [owed[3] for owed in named["owed"]] == [-3, -2], "the second and the first event of the columns"


def test_layout_and_templates() -> None:
    assert read_layout(COLUMNS["layout"]) == golden.LAYOUT
    assert read_templates(COLUMNS["templates"]) == golden.TEMPLATES
    assert encode(golden.LAYOUT) == COLUMNS["layout"]
    assert encode(golden.TEMPLATES) == COLUMNS["templates"]
    assert golden.LAYOUT.digest() == COLUMNS["layout digest"]
    assert golden.TEMPLATES.digest() == COLUMNS["templates digest"]


def digest(value: Any, length: int, context: str, before: bytes = b"") -> bytes:
    return blake3(before + msgspec.msgpack.encode(value), derive_key_context=context).digest()[:length]


def test_digests_by_the_manual() -> None:
    layout, templates = messagepack.decode(COLUMNS["layout"]), messagepack.decode(COLUMNS["templates"])
    assert digest(layout[:4], 16, "stigmergy 2026 layout of columns") == COLUMNS["layout digest"]
    assert digest(templates, 16, "stigmergy 2026 layout of columns") == COLUMNS["templates digest"]
    first = digest(["M-1", "M-2", "M-7"], 8, "stigmergy 2026 roster of agents", bytes(8))
    assert [COLUMNS[f"check {number}"] for number in range(2)] == [bytes(8), first]
    assert COLUMNS["check 2"] == digest(["M-8"], 8, "stigmergy 2026 roster of agents", first)
    assert COLUMNS["check 2"] == roster_check(first, ["M-8"])


CODES = {"f8": "<d", "i8": "<q", "i4": "<i", "i2": "<h", "i1": "<b", "u4": "<I", "u2": "<H", "u1": "<B", "b1": "<?"}


def value_of(data: bytes, column: dict[str, Any]) -> Any:
    """One value of a record, as the manual says."""
    code, offset = column["code"], column["offset"]
    if code == "e2":
        return messagepack.decode(column["members"][struct.unpack_from("<H", data, offset)[0]][1])
    if code.startswith("S"):
        return data[offset : offset + int(code[1:])]
    return struct.unpack_from(CODES[code], data, offset)[0]


def test_records_by_the_manual() -> None:
    layout = by_the_manual("Layout", messagepack.decode(COLUMNS["layout"]))
    forms = [by_the_manual("Form", form) for form in layout["forms"]]
    assert [form["is_command"] for form in forms] == [False, True, False]
    records = messagepack.decode(read_hex("commit-2.hex"))[15][0][5]
    found = []
    for start in range(0, len(records), layout["record_bytes"]):
        record = records[start : start + layout["record_bytes"]]
        agent, number, zero = struct.unpack_from("<IHH", record)
        assert zero == 0
        columns = [by_the_manual("Column", column) for column in forms[number]["columns"]]
        fields = {column["name"]: value_of(record, column) for column in columns}
        found.append((agent, {"type": forms[number]["tag"], **fields}))
    assert found == [
        (2, {"type": "Measured@1", **golden.MEASURED}),
        (0, {"type": "MeterReset@2", "by": -9, "low": -1, "port": 65_535}),
    ]
    ours = [(one.agent, messagepack.decode(one.body)) for one in read_records(records, golden.LAYOUT)]
    assert ours == found


def test_batch() -> None:
    stored = read_hex("batch-1.hex")
    batch = open_batch(stored)
    assert (batch.header, batch.records) == (golden.BATCH_HEADER, golden.RECORDS)
    assert stored == golden.BATCH


def test_batch_by_the_manual() -> None:
    stored = read_hex("batch-1.hex")
    assert stored[:4] == b"STGB"
    length = int.from_bytes(stored[4:8], "little")
    named = by_the_manual("BatchHeader", messagepack.decode(stored[8 : 8 + length]))
    assert (named["format"], named["source"], named["sequence"], named["count"]) == (1, "radio/7", 1_000, 2)
    assert (named["layout"], named["generation"]) == (COLUMNS["layout digest"], 1)
    assert named["check"] == COLUMNS["check 1"]
    start = -(-(8 + length) // 8) * 8
    assert stored[8 + length : start] == bytes(start - 8 - length)
    assert len(stored) - start == 2 * 48


def test_actions_by_the_manual() -> None:
    templates = by_the_manual("Templates", messagepack.decode(COLUMNS["templates"]))
    alarm, say, _ = (by_the_manual("Template", template) for template in templates["templates"])
    assert [part[0] for _, part in alarm["fields"]] == ["constant", "slot", "slot"]
    assert by_the_manual("Constant", alarm["fields"][0][1][1:]) == {"value": b"\xc3"}
    assert by_the_manual("Slot", alarm["fields"][1][1][1:]) == {"slot": 0, "code": "f8", "members": []}
    kind, pieces = say["fields"][0][1]
    assert (kind, pieces[1], pieces[3]) == ("text", " at ", " of ")
    assert by_the_manual("Text", [pieces]) == {"pieces": pieces}
    assert [pieces[0][0], pieces[2][0]] == ["name", "formatted"]
    assert by_the_manual("OwnName", pieces[4][1:]) == {"with_kind": True}
    assert by_the_manual("Formatted", pieces[2][1:]) == {"slot": 0, "code": "f8", "how": ".1f"}
    actions = messagepack.decode(read_hex("commit-2.hex"))[15][0][9]
    width = templates["action_bytes"]
    heads = [struct.unpack_from("<IHHII", actions, start) for start in range(0, len(actions), width)]
    assert heads == [(2, 0, 0, 0, 0), (0, 1, 0, 1, 0)]
    assert struct.unpack_from("<dq", actions, 16) == (99.5, 1)
    assert struct.unpack_from("<dqq3s5x", actions, width + 16) == (1.25, -9, 1, b"xyz")
    first, second = read_actions(actions, golden.TEMPLATES, golden.NAMES.__getitem__)
    assert (first.agent, first.cause, first.tag) == (2, 0, "Alarm@1")
    assert list(messagepack.decode(first.body).items()) == [
        ("type", "Alarm@1"),
        ("loud", True),
        ("level", 99.5),
        ("mode", 7),
    ]
    assert messagepack.decode(second.body) == {
        "type": "Say@1",
        "text": "M-1 at 1.2 of Meter/M-1",
        "count": -9,
        "ok": True,
        "code": b"xyz",
    }


def test_snapshot() -> None:
    stored = read_lines("snapshot-columns-1.txt")
    parts = [stored["part 0"], stored["part 1"]]
    assert read_header(parts[0]) == golden.HEADER
    assert encode_header(golden.HEADER) == zlib.decompress(parts[0])
    assert parts[1] == golden.ROWS_PART
    assert digest_of_parts(parts) == stored["digest"]


def test_snapshot_by_the_manual() -> None:
    stored = read_lines("snapshot-columns-1.txt")
    named = by_the_manual("SnapshotHeader", messagepack.decode(zlib.decompress(stored["part 0"])))
    tables = by_the_manual("SnapshotTables", named["tables"])
    assert tables == {name: plain(getattr(golden.TABLES, name)) for name in SnapshotTables.__struct_fields__[:20]}
    (block,) = tables["blocks"]
    expected = {name: getattr(golden.BLOCK, name) for name in type(golden.BLOCK).__struct_fields__}
    assert by_the_manual("Block", block) == expected
    assert stored["part 1"][:4] == b"STGT"
    kind, layout, rows = messagepack.decode(stored["part 1"][4:])
    assert (kind, layout, rows) == ("Meter", COLUMNS["layout"], b"the rows")
