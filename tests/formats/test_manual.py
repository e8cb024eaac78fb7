"""The manual and the code say the same: field names and order, limits, contexts, tables, settings and defaults."""

from __future__ import annotations

import importlib
import inspect
import re
from typing import Any

import pytest
from msgspec import NODEFAULT, Struct
from msgspec.structs import fields

from stigmergy.agents import codec, columns, effects, steps, supervision
from stigmergy.agents import ordered as claiming
from stigmergy.agents import shared as sharing
from stigmergy.agents.messages import Effect, Event, Message, spec_of
from stigmergy.audit import flight_format as flight
from stigmergy.audit.copy_format import CopySettings
from stigmergy.audit.flight_format import (
    FlightCommit,
    FlightDirectory,
    FlightManifest,
    FlightNames,
    FlightOpening,
    FlightSeal,
    FlightSection,
)
from stigmergy.bus import presence
from stigmergy.compiled import storage as parts
from stigmergy.journal.segments import frames
from stigmergy.journal.segments import journal as snapshots
from stigmergy.journal.segments import opener as opening
from stigmergy.journal.sqlite import schema
from stigmergy.models.service import ModelSettings
from stigmergy.node.settings import BusSettings, Retention, Settings, SharedSettings, Snapshots
from stigmergy.shard import batches, commit, draft, snapshot, state
from stigmergy.shard import column_dispatch as columnar
from stigmergy.shard.commit import Answer, Commit, EventRun, Head, MarkMoved, Owed, Settled, Signature, SnapshotNote
from stigmergy.shard.memory import DeadLetter, Remembered
from stigmergy.shard.outbox import Block, Pending
from stigmergy.shard.snapshot import KindVersion, SnapshotHeader, SnapshotTables
from stigmergy.shard.state import EnrolledSigner, Limits
from stigmergy.shard.timers import PendingTimer, TimerSet
from stigmergy.shard.tracing import OwedTrace, TracedCommit, TracedEffect, TracedInput
from stigmergy.workflows import messages as workflows
from tests.formats.manual import DOCS, fields_of, tables

STRUCTURES: tuple[type[Struct], ...] = (
    codec.Envelope,
    Commit,
    EventRun,
    Answer,
    Owed,
    MarkMoved,
    Settled,
    SnapshotNote,
    Head,
    Signature,
    SnapshotHeader,
    KindVersion,
    SnapshotTables,
    Pending,
    PendingTimer,
    TimerSet,
    Remembered,
    DeadLetter,
    EnrolledSigner,
    Block,
    TracedInput,
    TracedEffect,
    TracedCommit,
    OwedTrace,
    columns.Layout,
    columns.Form,
    columns.Column,
    columns.Templates,
    columns.Template,
    columns.Constant,
    columns.Slot,
    columns.Text,
    columns.Formatted,
    columns.OwnName,
    columns.ColumnRun,
    batches.BatchHeader,
    parts.NamesPart,
    parts.RowsPart,
    FlightOpening,
    FlightCommit,
    FlightDirectory,
    FlightNames,
    FlightManifest,
    FlightSection,
    FlightSeal,
    opening.SegmentIdentity,
    frames.SegmentHead,
    frames.SegmentGroup,
    frames.SegmentIndex,
    frames.IndexedCommit,
    frames.SegmentCommit,
    frames.KeptCommit,
    snapshots.SegmentPart,
)
MANUAL = (DOCS / "formats.md").read_text(encoding="utf-8")


@pytest.mark.parametrize("structure", STRUCTURES, ids=lambda structure: structure.__name__)
def test_fields_are_documented_in_their_order(structure: type[Struct]) -> None:
    assert structure.__struct_config__.array_like
    documented = fields_of(structure.__name__)
    tagged = structure.__struct_config__.tag is not None and documented[0] == ""
    assert documented[1 if tagged else 0 :] == list(structure.__struct_fields__)


def own_messages() -> dict[str, type[Message]]:
    """The messages of the framework that people may meet in a log or on a wire."""
    bases = (Message, Event, Effect)
    found = [
        value
        for module in (effects, supervision, presence, sharing, claiming, steps, workflows)
        for value in vars(module).values()
        if inspect.isclass(value) and issubclass(value, bases) and spec_of(value).name.startswith("stigmergy.")
    ]
    return {spec_of(message).tag: message for message in found}


def test_messages_of_the_framework_are_documented() -> None:
    rows = {row[0].strip("`"): row[1] for row in tables("formats.md")["Framework messages"] if row[0].startswith("`")}
    written = {tag: ", ".join(message.__struct_fields__) for tag, message in own_messages().items()}
    assert rows == written


def test_limits_are_documented() -> None:
    documented = {row[0].strip("`"): int(row[1]) for row in tables("formats.md")["Limits"]}
    modules = (batches, columns, codec, commit, draft, state, columnar, snapshot, flight)
    known = {name: value for module in modules for name, value in vars(module).items()}
    assert documented == {name: known[name] for name in documented}


def test_contexts_and_numbers_are_documented() -> None:
    modules: tuple[str, ...] = (
        "agents.columns",
        "shard.commit",
        "shard.snapshot",
        "shard.tracing",
        "audit.flight_format",
        "keys.keyfile",
    )
    modules += ("membership.packets", "membership.udp")
    for module in (*modules, "compiled.storage"):
        source = inspect.getsource(importlib.import_module(f"stigmergy.{module}"))
        contexts = re.findall(r'"(stigmergy 2026 [^"]+)"', source)
        assert contexts
        for context in contexts:
            assert f"derive_key, `{context}`" in MANUAL
    formats = (
        codec.ENVELOPE_FORMAT,
        commit.COMMIT_FORMAT,
        snapshot.SNAPSHOT_FORMAT,
        schema.FORMAT,
        flight.FLIGHT_FORMAT,
        frames.FORMAT,
        columns.LAYOUT_FORMAT,
        parts.PART_FORMAT,
    )
    assert formats == (1, 1, 1, 1, 1, 1, 1, 1), (
        "a new number needs its own section in docs/formats.md and its own fixtures"
    )
    assert commit.COLUMNS_FORMAT == 2


def test_kinds_of_frames_are_documented() -> None:
    (row,) = [row for row in tables("formats.md")["Frames"] if row[2].startswith("the kind")]
    assert row[2] == "the kind: " + ", ".join(f"{kind.value} {kind.name.lower()}" for kind in frames.SegmentFrameKind)
    rows = [row for row in tables("formats.md")["Frames"] if row[1]]
    assert int(rows[-1][0]) + int(rows[-1][1]) == frames.HEADER_BYTES
    assert "`stigmergy 2026 identity of a journal in segments`" in MANUAL


def test_sqlite_tables_are_documented() -> None:
    (block,) = re.findall(r"```sql\n(.*?)```", MANUAL, re.DOTALL)
    assert block.strip() == schema.TABLES.strip()
    assert f"{schema.APPLICATION_ID:#X}".replace("X", "x") in MANUAL


# Settings.


def shown(value: Any) -> str:
    """A default as the configuration file would write it."""
    match value:
        case None:
            return "none"
        case bool():
            return str(value).lower()
        case float():
            return repr(value)
        case Struct():
            return "see below"
        case _:
            return str(value)


def default_of(field: Any) -> Any:
    return field.default_factory() if field.default is NODEFAULT else field.default


@pytest.mark.parametrize(
    ("section", "structure"),
    [
        ("settings", Settings),
        ("settings.snapshots", Snapshots),
        ("settings.retention", Retention),
        ("settings.limits", Limits),
        ("settings.bus", BusSettings),
        ("settings.copies", CopySettings),
        ("settings.models", ModelSettings),
        ("settings.shared", SharedSettings),
    ],
)
def test_every_setting_is_documented_with_its_default(section: str, structure: type[Struct]) -> None:
    documented = {row[0].strip("`"): row[1].strip("`").replace("_", "") for row in tables("configuration.md")[section]}
    assert documented == {field.name: shown(default_of(field)) for field in fields(structure)}
    assert all(row[2] for row in tables("configuration.md")[section]), "each setting says what it means"


# ARCHITECTURE.md.

ROOT = DOCS.parent
ARCHITECTURE = (ROOT / "ARCHITECTURE.md").read_text(encoding="utf-8")


def test_every_file_that_the_architecture_names_exists() -> None:
    named = set(re.findall(r"`((?:\w+/)+\w+\.py)`", ARCHITECTURE))
    assert len(named) > 30
    missing = [
        name for name in sorted(named) if not any((ROOT / top / name).exists() for top in (".", "src/stigmergy"))
    ]
    assert not missing


def test_every_test_that_the_architecture_names_exists() -> None:
    semantics = (ROOT / "tests" / "shard" / "test_semantics.py").read_text(encoding="utf-8")
    prefixes = set(re.findall(r"`(test_\d+_)…`", ARCHITECTURE)) | {"test_1_"}
    names = set(re.findall(r"`(test_\d+_\w+)`", ARCHITECTURE))
    assert len(prefixes) > 5
    for name in sorted(prefixes | names):
        assert f"def {name}" in semantics, f"{name} is in no test"


LINK = re.compile(r"\]\((?!https?:)([^)#]*)(#[^)]*)?\)")
FENCED = re.compile(r"^```.*?^```", re.MULTILINE | re.DOTALL)
"""Programs, in which `Proposed[Incident](id=…)` is no link."""


def anchors(text: str) -> set[str]:
    """The anchors of a page's headings, as GitHub makes them."""
    titles = re.findall(r"^#+ (.+)$", text, re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in titles}


@pytest.mark.parametrize(
    "page",
    ["README.md", "ARCHITECTURE.md", "CHANGELOG.md", *(str(p.relative_to(ROOT)) for p in sorted(DOCS.rglob("*.md")))],
)
def test_links_lead_somewhere(page: str) -> None:
    text = (ROOT / page).read_text(encoding="utf-8")
    for target, anchor in LINK.findall(FENCED.sub("", text)):
        path = (ROOT / page).parent / target if target else ROOT / page
        assert path.exists(), f"{page} links to {target}"
        if anchor:
            assert anchor[1:] in anchors(path.read_text(encoding="utf-8")), f"{page} links to {target}{anchor}"
