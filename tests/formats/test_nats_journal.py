"""Replays a log on NATS that an earlier version wrote, and reads it by the manual alone."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from blake3 import blake3
from msgspec import Struct

from stigmergy.journal.recovery import Recovery
from stigmergy.keys.ed25519 import Ed25519Verifier
from stigmergy.nats import naming
from stigmergy.nats.address import parse_address
from stigmergy.nats.journal import inspect_journals, messages, open_journal
from stigmergy.nats.journal import snapshots as shelf
from stigmergy.nats.link import NatsLink
from stigmergy.shard.commit import digest_commit
from stigmergy.shard.snapshot import digest_of_state
from stigmergy.shard.state import Limits, plan_agents
from stigmergy.testing.nats import start_single
from tests.formats import golden, messagepack
from tests.formats.golden import read_lines
from tests.formats.manual import DOCS, fields_of, tables

PLANS = plan_agents([golden.Drone, golden.Tower])
LOG = naming.log_stream("golden", 0, 1)
SHELF = naming.snapshots_bucket("golden")
STRUCTURES: tuple[type[Struct], ...] = (
    messages.LogGroup,
    messages.LogCommit,
    messages.LogPiece,
    messages.LogNote,
    messages.ShardNote,
    shelf.SnapshotChunk,
)


@pytest.mark.parametrize("structure", STRUCTURES, ids=lambda structure: structure.__name__)
def test_fields_are_documented_in_their_order(structure: type[Struct]) -> None:
    assert structure.__struct_config__.array_like
    assert fields_of(structure.__name__) == list(structure.__struct_fields__)


def test_names_and_numbers_are_documented() -> None:
    manual = (DOCS / "formats.md").read_text(encoding="utf-8")
    documented = [row[0].strip("`") for row in tables("formats.md")["The log on NATS"]]
    assert documented == [
        f"{naming.log_subject('FLEET', 0, 1).replace('0-1', 'A-B')}.{kind}" for kind in messages.KINDS
    ]
    assert f"`{naming.log_stream('FLEET', 0, 1).replace('0_1', 'A_B')}`" in manual
    assert f"`{naming.snapshots_bucket('FLEET')}`" in manual
    assert f"`{naming.snapshots_subject('FLEET')}.SHARD.POSITION.EPOCH.PART.CHUNK`" in manual
    assert f"`{naming.log_owner_subject('FLEET', 0, 1).replace('0-1', 'A-B')}`" in manual
    assert f"`{naming.log_grown_subject('FLEET', 0, 1).replace('0-1', 'A-B')}`" in manual
    for name in messages.describe(golden.IDENTITY):
        assert f"`{name}`" in manual
    assert messages.FORMAT == 1


def read_fixture() -> dict[str, list[tuple[int, str, bytes]]]:
    """Per stream its messages: number, subject, payload."""
    found: dict[str, list[tuple[int, str, bytes]]] = {}
    for name, payload in read_lines("journal-nats-1.txt").items():
        stream, sequence, subject = name.split(" ")
        found.setdefault(stream, []).append((int(sequence), subject, payload))
    return found


async def test_log_recovers_to_the_same_state(tmp_path: Path) -> None:
    with start_single(tmp_path) as server:
        await open_journal(f"{server.url}/other", golden.IDENTITY).close()
        link = await NatsLink.open(parse_address(server.url), name="golden")
        fixture = read_fixture()
        log = {"name": LOG, "subjects": [f"{naming.log_subject('golden', 0, 1)}.*"], "allow_direct": True}
        log |= {"discard": "new", "deny_delete": True, "metadata": messages.describe(golden.IDENTITY)}
        await link.api(f"STREAM.CREATE.{LOG}", {**log, "first_seq": fixture[LOG][0][0]})
        kept = {"name": SHELF, "subjects": [f"{naming.snapshots_subject('golden')}.>"], "allow_direct": True}
        await link.api(f"STREAM.CREATE.{SHELF}", {**kept, "discard": "new", "max_msgs_per_subject": 1})
        for stream, written in fixture.items():
            for sequence, subject, payload in written:
                ack = await link.publish(subject, payload)
                assert stream == SHELF or ack.sequence == sequence
        await link.close()
        (looked_at,) = inspect_journals(f"{server.url}/golden")
        await looked_at.close()
        journal = open_journal(server.url, golden.IDENTITY)
        found = Recovery(journal, PLANS, Ed25519Verifier(), Limits(), every_signature=True).recover()
        states = {
            f"shard {number} position {state.position} state": digest_of_state(state)
            for number, state in enumerate(found.states)
        }
        assert states == read_lines("journal-1.txt"), "the very same life is in the SQLite journal"
        assert sorted(found.snapshots) == [0, 1]
        assert [journal.first_position(shard) for shard in range(2)] == [7, 2]
        await journal.close()


def named(structure: str, values: list[Any]) -> dict[str, Any]:
    fields = fields_of(structure)
    assert len(values) <= len(fields)
    return dict(zip(fields, values, strict=False))  # fields that came later may be missing


def test_log_by_the_manual() -> None:
    positions: dict[int, int] = {}
    kinds: dict[str, int] = {}
    pieces: list[bytes] = []
    for _, subject, payload in read_fixture()[LOG]:
        kind = subject.rpartition(".")[2]
        kinds[kind] = kinds.get(kind, 0) + 1
        value = messagepack.decode(payload)
        if kind in ("piece", "end"):
            piece = named("LogPiece", value)
            assert piece["number"] == len(pieces)
            pieces.append(piece["body"])
            if kind == "piece":
                continue
            value = messagepack.decode(b"".join(pieces))
            pieces.clear()
        if kind == "note":
            note = named("LogNote", value)
            assert note["format"] == 1
            for shard in (named("ShardNote", one) for one in note["shards"]):
                assert shard["position"] == positions.get(shard["shard"], shard["position"])
                assert shard["first"] <= shard["position"]
            continue
        group = named("LogGroup", value)
        for commit in (named("LogCommit", one) for one in group["commits"]):
            assert digest_commit(commit["body"]) == commit["digest"]
            positions[commit["shard"]] = commit["position"]
        heads = {head[0]: head[1] for head in group["signature"][2]}
        assert all(positions[shard] == position for shard, position in heads.items())
    assert sorted(kinds) == ["end", "group", "note", "piece"], "something of each kind is in it"


def test_snapshots_by_the_manual() -> None:
    parts: dict[str, dict[int, dict[str, Any]]] = {}
    for _, subject, payload in read_fixture()[SHELF]:
        part, _, number = subject.rpartition(".")
        parts.setdefault(part, {})[int(number)] = named("SnapshotChunk", messagepack.decode(payload))
    assert any(len(chunks) > 1 for chunks in parts.values())
    for chunks in parts.values():
        assert sorted(chunks) == list(range(chunks[0]["chunks"]))
        assert blake3(b"".join(chunks[number]["body"] for number in sorted(chunks))).digest() == chunks[0]["digest"]
