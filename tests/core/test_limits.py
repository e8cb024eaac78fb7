"""Limits and numbers that people rely on: the code has the value that the manual gives, byte for byte."""

from __future__ import annotations

import inspect
import re
from pathlib import Path

import msgspec
import pytest
from msgspec import Struct

from stigmergy.core import (
    batches,
    blocks,
    cloudevents,
    codec,
    columnar,
    columns,
    commit,
    draft,
    effects,
    fence,
    flight,
    handling,
    homes,
    marks,
    memory,
    messages,
    outbox,
    outcome,
    shard,
    snapshot,
    state,
    strict_json,
    supervision,
    tables,
    timers,
    uplink,
    uplink_messages,
    windows,
)
from stigmergy.core.counters import Counters
from stigmergy.core.inputs import Delivery
from stigmergy.core.state import Limits

DOCS = Path(__file__).resolve().parent.parent.parent / "docs"
KIB, MIB = 1024, 1024 * 1024
DAY_NS = 86_400 * 10**9
MODULES = {
    module.__name__.rpartition(".")[2]: module
    for module in (
        batches,
        blocks,
        cloudevents,
        codec,
        columnar,
        columns,
        commit,
        draft,
        fence,
        flight,
        handling,
        homes,
        marks,
        memory,
        messages,
        outcome,
        shard,
        snapshot,
        state,
        strict_json,
        supervision,
        tables,
        timers,
        uplink,
        uplink_messages,
        windows,
    )
}
PROMISED = {
    "batches.BATCH_FORMAT": 1,
    "batches.BATCH_BYTES_MAX": MIB,
    "batches.HEADER_BYTES_MAX": KIB,
    "blocks.BLOCK_INDEX": 524_288,
    "cloudevents.EVENT_BYTES_MAX": 256 * KIB,
    "cloudevents.ATTRIBUTES_COUNT_MAX": 40,
    "cloudevents.ATTRIBUTE_CHARS_MAX": 1_024,
    "cloudevents.INTEGER_END": 2_147_483_648,
    "codec.MESSAGE_BYTES_MAX": 64 * KIB,
    "codec.ENVELOPE_FORMAT": 1,
    "codec.ENVELOPE_BYTES_MAX": MIB,
    "codec.ENVELOPE_ITEMS_MAX": 10_000,
    "codec.NUMBERS_END": 9_223_372_036_854_775_808,
    "codec.SOURCE_CHARS_MAX": 256,
    "codec.REASON_CHARS_MAX": 500,
    "codec.NESTING_RESERVE": 100,
    "codec.SURELY_FLAT_BYTES": 256,
    "columnar.DECLARED_BYTES_MAX": 64 * KIB,
    "columnar.ENROLLED_BYTES_MAX": 32 * KIB,
    "columnar.NAME_BYTES": 2,
    "columnar.COLUMN_CAUSES": -2,
    "columns.LAYOUT_FORMAT": 1,
    "columns.ALIGNMENT": 8,
    "columns.RECORD_HEAD_BYTES": 8,
    "columns.ACTION_HEAD_BYTES": 16,
    "columns.SLOT_BYTES": 8,
    "columns.RECORD_BYTES_MAX": KIB,
    "columns.ROW_BYTES_MAX": 16 * KIB,
    "columns.FORMS_COUNT_MAX": 1_000,
    "columns.FORMAT_WIDTH_MAX": 250,
    "columns.DIGEST_BYTES": 16,
    "columns.CHECK_BYTES": 8,
    "columns.NOT_KEPT": 4_294_967_295,
    "columns.NO_FORM": 65_535,
    "commit.COMMIT_FORMAT": 1,
    "commit.COLUMNS_FORMAT": 2,
    "commit.COMMIT_BYTES_MAX": 512 * KIB,
    "commit.SHARED_HASH_BYTES": 1024 * KIB,
    "draft.NEVER_NS": 4_611_686_018_427_387_904,
    "draft.DRAFT_BYTES_MAX": 240 * KIB,
    "draft.COLUMNS_REST_BYTES": 80 * KIB,
    "draft.JOINED_BYTES_MAX": 16 * KIB,
    "draft.OVERHEAD_BYTES": 64,
    "fence.FENCED_COUNT_MAX": 1_000_000,
    "flight.FLIGHT_FORMAT": 1,
    "flight.KEYED_FLIGHT_FORMAT": 2,
    "flight.AGENTS_MAX": 10_000_000,
    "flight.RECORD_BYTES_MAX": 18 * MIB,
    "flight.FLIGHT_SHARDS_MAX": 4_096,
    "flight.RECORD_HEADER_BYTES": 5,
    "flight.RECORD_CHECKSUM_BYTES": 4,
    "handling.ADDRESS_CHARS_MAX": 200,
    "handling.REACTIONS_BYTES_MAX": 16 * KIB,
    "handling.WINDOW_CLOSINGS_MAX": 1_000,
    "homes.KEY_CHARS_MAX": 256,
    "homes.ADDRESSES_KNOWN_MAX": 1_000_000,
    "homes.AGENTS_CHECKED_MAX": 10_000,
    "marks.SOURCES_COUNT_MAX": 100_000,
    "memory.ANSWERS_COUNT_MAX": 10_000,
    "memory.ANSWERS_COUNT_MIN": 1_000,
    "memory.ANSWERS_AGE_NS_MAX": DAY_NS,
    "memory.SHARE_COUNT_MAX": 1_000,
    "memory.OPAQUE_COUNT_MAX": 5_000,
    "memory.OPAQUE_PER_CLIENT_MAX": 2_500,
    "memory.FLOORS_COUNT_MAX": 10_000,
    "memory.AHEAD_NS_MAX": 300 * 10**9,
    "memory.LETTERS_COUNT_MAX": 1_000,
    "memory.LETTERS_BYTES_MAX": 8 * MIB,
    "memory.PASTS_COUNT_MAX": 8,
    "messages.SECOND_NS": 10**9,
    "outcome.NO_CAUSE": -1,
    "shard.COMMAND_ID_CHARS_MAX": 200,
    "shard.COMMIT_NOTE_BYTES": 96,
    "shard.MARKS_WAIT_NS": 10**9,
    "snapshot.SNAPSHOT_FORMAT": 1,
    "snapshot.AGENTS_PER_PART": 200,
    "snapshot.PART_BYTES": 4 * MIB,
    "snapshot.PART_BYTES_MAX": 64 * MIB,
    "state.COLUMNS_BYTES_MAX": 4096 * KIB,
    "state.AGENTS_COUNT_MAX": 1_000_000,
    "state.DECISION_BYTES_MAX": 80 * KIB,
    "strict_json.NESTING_MAX": 32,
    "strict_json.INTEGER_MAX": 9_223_372_036_854_775_808,
    "supervision.NEVER": 2_147_483_648,
    "supervision.FAILURES_COUNT_MAX": 1_000,
    "tables.INPUT_BYTES_MAX": 80 * KIB,
    "tables.OTHER_BYTES": 257,
    "timers.MOMENT_S_END": 8_589_934_592,
    "uplink.SLOT_BITS": 22,
    "uplink.FIRST_EVENT": 2_097_152,
    "uplink.WHOLE": 4_194_303,
    "uplink.BUCKETS_COUNT_MAX": 100_000,
    "uplink.SAMPLES_COUNT_MAX": 100_000,
    "uplink.NAMES_COUNT_MAX": 1_000,
    "uplink.EVERY_MS_MAX": 86_400_000,
    "uplink_messages.SHARDS_MAX": 4_096,
    "uplink_messages.ITEMS_COUNT_MAX": 10_000,
    "uplink_messages.MARKS_COUNT_MAX": 10_000,
    "uplink_messages.NAME_CHARS_MAX": 200,
    "uplink_messages.OPENED_BYTES_MAX": MIB,
    "uplink_messages.ITEM_OVERHEAD_BYTES": 20,
    "uplink_messages.DIGEST_BYTES": 8,
    "uplink_messages.PACK_FROM_BYTES": 200,
    "uplink_messages.PACK_LEVEL": 1,
    "windows.ENTRIES_COUNT_MAX": 4_096,
    "windows.TIME_NS_MAX": 4_611_686_018_427_387_904,
    "windows.AHEAD_S": 300.0,
}


@pytest.mark.parametrize("name", PROMISED)
def test_a_limit_is_changed_on_purpose_only(name: str) -> None:
    module, _, constant = name.partition(".")
    assert getattr(MODULES[module], constant) == PROMISED[name]


def test_every_limit_of_the_core_is_listed_here() -> None:
    own = {
        f"{name}.{constant}"
        for name, module in MODULES.items()
        for constant in re.findall(r"^([A-Z][A-Z0-9_]+) = ", inspect.getsource(module), re.MULTILINE)
        if isinstance(getattr(module, constant), int | float)
    }
    assert own == set(PROMISED)


def table(page: str, heading: str) -> list[list[str]]:
    """The rows of the first table behind a heading of the manual."""
    text = (DOCS / page).read_text(encoding="utf-8")
    section = text.partition(f"\n## {heading}\n")[2].partition("\n## ")[0]
    rows = [line.strip("|").split("|") for line in section.splitlines() if line.startswith("|")]
    return [[cell.strip().strip("`") for cell in row] for row in rows[2:]]


def test_the_limits_of_the_formats_are_those_of_the_manual() -> None:
    inside = ("columns.RECORD_BYTES_MAX", "uplink_messages.DIGEST_BYTES")  # of the same name, and not in that table
    named = {name.partition(".")[2]: value for name, value in PROMISED.items() if name not in inside}
    rows = table("formats.md", "Limits")
    assert rows
    assert {row[0]: int(row[1]) for row in rows} == {row[0]: named[row[0]] for row in rows}


def test_what_cannot_be_set_is_as_the_manual_says() -> None:
    documented = {row[0]: row[1] for row in table("configuration.md", "What cannot be set")}
    kib = codec.MESSAGE_BYTES_MAX // KIB
    envelope = f"{codec.ENVELOPE_BYTES_MAX // MIB} MiB, {codec.ENVELOPE_ITEMS_MAX:,} items"
    hours = memory.ANSWERS_AGE_NS_MAX // (3_600 * messages.SECOND_NS)
    answers = f"{hours} hours, {memory.ANSWERS_COUNT_MAX:,} per shard; the last {memory.ANSWERS_COUNT_MIN:,} whatever"
    letters = f"{memory.LETTERS_COUNT_MAX:,} per shard, {memory.LETTERS_BYTES_MAX // MIB} MiB"
    assert documented["a message"] == f"{kib} KiB"
    assert documented["an envelope"] == envelope
    assert documented["a commit"] == f"{commit.COMMIT_BYTES_MAX // KIB} KiB"
    assert documented["answers remembered"].startswith(answers)
    assert documented["sources remembered"] == f"{marks.SOURCES_COUNT_MAX:,} per shard"
    assert documented["dead letters"] == letters
    assert documented["shards"] == f"{uplink_messages.SHARDS_MAX:,}" == f"{flight.FLIGHT_SHARDS_MAX:,}"


def test_what_can_be_set_has_the_default_of_the_manual() -> None:
    documented = {row[0]: int(row[1]) for row in table("configuration.md", "settings.limits")}
    limits = Limits()
    assert documented == {name: getattr(limits, name) for name in Limits.__struct_fields__}


def test_the_manual_of_topics_names_the_limits_of_an_event() -> None:
    text = (DOCS / "topics.md").read_text(encoding="utf-8")
    wire, whole = cloudevents.EVENT_BYTES_MAX // KIB, codec.MESSAGE_BYTES_MAX // KIB
    assert (
        f"at most {wire} KiB on the wire and {whole} KiB as a message, {cloudevents.ATTRIBUTES_COUNT_MAX} attributes "
        f"of at most {cloudevents.ATTRIBUTE_CHARS_MAX:,} characters, and data nested at most {strict_json.NESTING_MAX}"
    ) in text


def test_algorithms_and_kinds_keep_their_numbers() -> None:
    assert [(kind.name, kind.value) for kind in flight.RecordKind] == [
        ("OPENING", 1),
        ("COMMIT", 2),
        ("MANIFEST", 3),
        ("SEAL", 4),
        ("DIRECTORY", 5),
    ]
    assert [(kind.name, kind.value) for kind in windows.Shape] == [("LAST", 1), ("SLIDING", 2), ("TUMBLING", 3)]
    assert [kind.value for kind in (*commit.HashAlgorithm, *commit.SignatureAlgorithm)] == [1, 1]
    assert bytes(32) == commit.GENESIS


ARRAYS: tuple[type[Struct], ...] = (
    codec.Envelope,
    *(commit.Run, commit.MarkMoved, commit.Answer, commit.Owed, commit.Settled, commit.SnapshotNote, commit.Commit),
    *(commit.Head, commit.Signature),
    *(snapshot.Header, snapshot.Kind, snapshot.Tables),
    *(columns.Layout, columns.Form, columns.Column, columns.Templates, columns.Template, columns.ColumnRun),
    *(columns.Constant, columns.Slot, columns.Text, columns.Formatted, columns.OwnName, blocks.Block),
    batches.BatchHeader,
    *(outbox.Pending, memory.Remembered, memory.Letter, timers.TimerSet, timers.Timer, state.Signer),
    *(flight.FlightOpening, flight.FlightCommit, flight.FlightSection, flight.FlightManifest, flight.FlightSeal),
    *(uplink_messages.Mark, uplink_messages.Inquiry, uplink_messages.Told, uplink_messages.Batch),
)


@pytest.mark.parametrize("cls", ARRAYS, ids=lambda cls: cls.__name__)
def test_a_format_is_a_list_of_its_fields(cls: type[Struct]) -> None:
    assert cls.__struct_config__.array_like


@pytest.mark.parametrize("cls", [Limits, uplink.Aggregate, uplink.UplinkRule])
def test_a_setting_that_is_unknown_is_refused(cls: type[Struct]) -> None:
    with pytest.raises(msgspec.ValidationError, match="unknown"):
        msgspec.convert({"every": "1s", "unknown": 1}, cls)


def test_counting_begins_at_nothing() -> None:
    for counters in (Counters(), uplink.SieveCounters()):
        assert {getattr(counters, name) for name in counters.__struct_fields__} == {0}


def test_what_is_left_out_means_what_the_manual_says() -> None:
    envelope = codec.Envelope(1, "s", 0, 0, 1, [])
    first = commit.Commit(1, 1, 0, 1, 0, b"", [], [])
    delivery = Delivery("s", [])
    assert (envelope.lost, first.incarnation) == (0, 0)
    assert (delivery.sequence, delivery.incarnation, delivery.epoch, delivery.size_bytes) == (0, 0, 0, 0)
    assert effects.Order("Drone/a", effects.CancelWake(name="t"), "k", 1, 1).attempt == 1
    assert supervision.SignerEnrolled(algorithm=1, public_key=b"", cites=b"").epoch == 0
    assert not timers.TimerSet("t", 1).follows_wall
    assert not timers.Timer(1, "Drone/a", "t").follows_wall
    window: windows.Window[messages.Event] = windows.Window(shape=windows.Shape.LAST, span=1)
    assert (window.count_max, window.late_ns, window.start_ns, window.seen_ns) == (4_096, 0, -1, 0)
    assert (window.dropped, window.late, window.ahead, window.ahead_ns) == (0, 0, 0, 300 * 10**9)
