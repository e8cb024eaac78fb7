"""Limits and numbers that people rely on: the code has the value that the manual gives, byte for byte."""

from __future__ import annotations

import inspect
import re
from pathlib import Path

import msgspec
import pytest
from msgspec import Struct

from stigmergy.agents import codec, columns, effects, messages, supervision, windows
from stigmergy.agents import columns as tables
from stigmergy.audit import flight_format as flight
from stigmergy.bus import cloudevents
from stigmergy.bus import cloudevents as strict_json
from stigmergy.devices import fence
from stigmergy.shard import (
    batches,
    commit,
    draft,
    homes,
    marks,
    memory,
    outbox,
    shard,
    snapshot,
    state,
    timers,
    tracing,
)
from stigmergy.shard import (
    column_dispatch as columnar,
)
from stigmergy.shard import (
    dispatch as handling,
)
from stigmergy.shard import (
    draft as outcome,
)
from stigmergy.shard import (
    outbox as blocks,
)
from stigmergy.shard.draft import ShardCounters
from stigmergy.shard.inputs import Delivery
from stigmergy.shard.state import Limits
from stigmergy.uplink import messages as uplink_messages
from stigmergy.uplink import rules as uplink

DOCS = Path(__file__).resolve().parent.parent.parent / "docs"
KIB, MIB = 1024, 1024 * 1024
DAY_NS = 86_400 * 10**9
MODULES = {
    module.__name__.removeprefix("stigmergy."): module
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
        tracing,
        uplink,
        uplink_messages,
        windows,
    )
}
PROMISED = {
    "shard.batches.BATCH_FORMAT": 1,
    "shard.batches.BATCH_BYTES_MAX": MIB,
    "shard.batches.HEADER_BYTES_MAX": KIB,
    "shard.outbox.BLOCK_INDEX": 524_288,
    "bus.cloudevents.EVENT_BYTES_MAX": 256 * KIB,
    "bus.cloudevents.ATTRIBUTES_COUNT_MAX": 40,
    "bus.cloudevents.ATTRIBUTE_CHARS_MAX": 1_024,
    "bus.cloudevents.INTEGER_END": 2_147_483_648,
    "agents.codec.MESSAGE_BYTES_MAX": 64 * KIB,
    "agents.codec.ENVELOPE_FORMAT": 1,
    "agents.codec.ENVELOPE_BYTES_MAX": MIB,
    "agents.codec.ENVELOPE_ITEMS_MAX": 10_000,
    "agents.codec.NUMBERS_END": 9_223_372_036_854_775_808,
    "agents.codec.SOURCE_CHARS_MAX": 256,
    "agents.codec.REASON_CHARS_MAX": 500,
    "agents.codec.NESTING_RESERVE": 100,
    "agents.codec.SURELY_FLAT_BYTES": 256,
    "shard.column_dispatch.DECLARED_BYTES_MAX": 64 * KIB,
    "shard.column_dispatch.ENROLLED_BYTES_MAX": 32 * KIB,
    "shard.column_dispatch.NAME_BYTES": 2,
    "shard.commit.COLUMN_CAUSES": -2,
    "agents.columns.LAYOUT_FORMAT": 1,
    "agents.columns.ALIGNMENT": 8,
    "agents.columns.RECORD_HEAD_BYTES": 8,
    "agents.columns.ACTION_HEAD_BYTES": 16,
    "agents.columns.SLOT_BYTES": 8,
    "agents.columns.RECORD_BYTES_MAX": KIB,
    "agents.columns.ROW_BYTES_MAX": 16 * KIB,
    "agents.columns.FORMS_COUNT_MAX": 1_000,
    "agents.columns.FORMAT_WIDTH_MAX": 250,
    "agents.columns.DIGEST_BYTES": 16,
    "agents.columns.CHECK_BYTES": 8,
    "agents.columns.NOT_KEPT": 4_294_967_295,
    "agents.columns.NO_FORM": 65_535,
    "shard.commit.COMMIT_FORMAT": 1,
    "shard.commit.COLUMNS_FORMAT": 2,
    "shard.commit.COMMIT_BYTES_MAX": 512 * KIB,
    "shard.commit.SHARED_HASH_BYTES": 1024 * KIB,
    "shard.draft.NEVER_NS": 4_611_686_018_427_387_904,
    "shard.draft.DRAFT_BYTES_MAX": 240 * KIB,
    "shard.draft.COLUMNS_REST_BYTES": 80 * KIB,
    "shard.draft.JOINED_BYTES_MAX": 16 * KIB,
    "shard.draft.OVERHEAD_BYTES": 64,
    "shard.draft.REMOTE_ADDRESSES_MAX": 50_000,
    "shard.draft.WITHIN_S_MAX": 31_622_400,
    "agents.messages.EXPIRES_S_MAX": 86_400,
    "devices.fence.FENCED_COUNT_MAX": 1_000_000,
    "audit.flight_format.FLIGHT_FORMAT": 1,
    "audit.flight_format.KEYED_FLIGHT_FORMAT": 2,
    "audit.flight_format.AGENTS_MAX": 10_000_000,
    "audit.flight_format.RECORD_BYTES_MAX": 18 * MIB,
    "audit.flight_format.FLIGHT_SHARDS_MAX": 4_096,
    "audit.flight_format.RECORD_HEADER_BYTES": 5,
    "audit.flight_format.RECORD_CHECKSUM_BYTES": 4,
    "shard.draft.ADDRESS_CHARS_MAX": 200,
    "shard.dispatch.REACTIONS_BYTES_MAX": 16 * KIB,
    "shard.dispatch.WINDOW_CLOSINGS_MAX": 1_000,
    "shard.homes.KEY_CHARS_MAX": 256,
    "shard.homes.ADDRESSES_KNOWN_MAX": 1_000_000,
    "shard.homes.AGENTS_CHECKED_MAX": 10_000,
    "shard.marks.SOURCES_COUNT_MAX": 100_000,
    "shard.memory.ANSWERS_COUNT_MAX": 10_000,
    "shard.memory.ANSWERS_COUNT_MIN": 1_000,
    "shard.memory.ANSWERS_AGE_NS_MAX": DAY_NS,
    "shard.memory.SHARE_COUNT_MAX": 1_000,
    "shard.memory.OPAQUE_COUNT_MAX": 5_000,
    "shard.memory.OPAQUE_PER_CLIENT_MAX": 2_500,
    "shard.memory.FLOORS_COUNT_MAX": 10_000,
    "shard.memory.AHEAD_NS_MAX": 300 * 10**9,
    "shard.memory.LETTERS_COUNT_MAX": 1_000,
    "shard.memory.LETTERS_BYTES_MAX": 8 * MIB,
    "shard.memory.PASTS_COUNT_MAX": 8,
    "agents.messages.SECOND_NS": 10**9,
    "shard.commit.NO_CAUSE": -1,
    "shard.outbox.INDEX_BITS": 20,
    "shard.shard.COMMAND_ID_CHARS_MAX": 200,
    "shard.shard.COMMIT_NOTE_BYTES": 96,
    "shard.shard.MARKS_WAIT_NS": 10**9,
    "shard.snapshot.SNAPSHOT_FORMAT": 1,
    "shard.snapshot.AGENTS_PER_PART": 200,
    "shard.snapshot.PART_BYTES": 4 * MIB,
    "shard.snapshot.PART_BYTES_MAX": 64 * MIB,
    "shard.draft.TRACE_BYTES": 120,
    "shard.draft.TRACES_BYTES_MAX": 48 * KIB,
    "shard.tracing.DEPTH_MAX": 64,
    "shard.tracing.STATE_CHARS_MAX": 512,
    "shard.tracing.NAME_CHARS_MAX": 200,
    "shard.state.COLUMNS_BYTES_MAX": 4096 * KIB,
    "shard.state.AGENTS_COUNT_MAX": 1_000_000,
    "shard.state.DECISION_BYTES_MAX": 80 * KIB,
    "bus.cloudevents.NESTING_MAX": 32,
    "bus.cloudevents.INTEGER_MAX": 9_223_372_036_854_775_808,
    "agents.supervision.NEVER": 2_147_483_648,
    "agents.supervision.FAILURES_COUNT_MAX": 1_000,
    "agents.columns.INPUT_BYTES_MAX": 80 * KIB,
    "agents.columns.OTHER_BYTES": 257,
    "shard.timers.MOMENT_S_END": 8_589_934_592,
    "uplink.rules.SLOT_BITS": 22,
    "uplink.rules.FIRST_EVENT": 2_097_152,
    "uplink.rules.WHOLE": 4_194_303,
    "uplink.rules.BUCKETS_COUNT_MAX": 100_000,
    "uplink.rules.SAMPLES_COUNT_MAX": 100_000,
    "uplink.rules.NAMES_COUNT_MAX": 1_000,
    "uplink.rules.EVERY_MS_MAX": 86_400_000,
    "uplink.messages.SHARDS_MAX": 4_096,
    "uplink.messages.ITEMS_COUNT_MAX": 10_000,
    "uplink.messages.MARKS_COUNT_MAX": 10_000,
    "uplink.messages.NAME_CHARS_MAX": 200,
    "uplink.messages.OPENED_BYTES_MAX": MIB,
    "uplink.messages.ITEM_OVERHEAD_BYTES": 20,
    "uplink.messages.DIGEST_BYTES": 8,
    "uplink.messages.PACK_FROM_BYTES": 200,
    "uplink.messages.PACK_LEVEL": 1,
    "agents.windows.ENTRIES_COUNT_MAX": 4_096,
    "agents.windows.HEAD_BYTES": 32,
    "agents.windows.TIME_BYTES": 8,
    "shard.snapshot.PART_FORMAT": 1,
    "agents.windows.TIME_NS_MAX": 4_611_686_018_427_387_904,
    "agents.windows.AHEAD_S": 300.0,
}


@pytest.mark.parametrize("name", PROMISED)
def test_a_limit_is_changed_on_purpose_only(name: str) -> None:
    module, _, constant = name.rpartition(".")
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
    inside = (
        "agents.columns.RECORD_BYTES_MAX",
        "uplink.messages.DIGEST_BYTES",
    )  # of the same name, and not in that table
    named = {name.rpartition(".")[2]: value for name, value in PROMISED.items() if name not in inside}
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
    *(
        commit.EventRun,
        commit.MarkMoved,
        commit.Answer,
        commit.Owed,
        commit.Settled,
        commit.SnapshotNote,
        commit.Commit,
    ),
    *(commit.Head, commit.Signature),
    *(snapshot.SnapshotHeader, snapshot.KindVersion, snapshot.SnapshotTables),
    *(columns.Layout, columns.Form, columns.Column, columns.Templates, columns.Template, columns.ColumnRun),
    *(columns.Constant, columns.Slot, columns.Text, columns.Formatted, columns.OwnName, blocks.Block),
    batches.BatchHeader,
    *(outbox.Pending, memory.Remembered, memory.DeadLetter, timers.TimerSet, timers.PendingTimer, state.EnrolledSigner),
    *(flight.FlightOpening, flight.FlightCommit, flight.FlightSection, flight.FlightManifest, flight.FlightSeal),
    *(uplink_messages.UplinkMark, uplink_messages.Inquiry, uplink_messages.Told, uplink_messages.Batch),
)


@pytest.mark.parametrize("cls", ARRAYS, ids=lambda cls: cls.__name__)
def test_a_format_is_a_list_of_its_fields(cls: type[Struct]) -> None:
    assert cls.__struct_config__.array_like


@pytest.mark.parametrize("cls", [Limits, uplink.Aggregate, uplink.UplinkRule])
def test_a_setting_that_is_unknown_is_refused(cls: type[Struct]) -> None:
    with pytest.raises(msgspec.ValidationError, match="unknown"):
        msgspec.convert({"every": "1s", "unknown": 1}, cls)


def test_counting_begins_at_nothing() -> None:
    for counters in (ShardCounters(), uplink.SieveCounters()):
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
    assert not timers.PendingTimer(1, "Drone/a", "t").follows_wall
    window: windows.Window[messages.Event] = windows.Window(shape=windows.Shape.LAST, span=1)
    assert (window.count_max, window.late_ns, window.start_ns, window.seen_ns) == (4_096, 0, -1, 0)
    assert (window.dropped, window.late, window.ahead, window.ahead_ns) == (0, 0, 0, 300 * 10**9)
