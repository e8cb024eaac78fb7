"""Replays a journal in segments that an earlier version wrote, and reads it by the manual alone."""

from __future__ import annotations

import struct
from pathlib import Path
from typing import Any

import pytest
from blake3 import blake3

from stigmergy.journal import segments
from stigmergy.journal.recovery import Recovery
from stigmergy.keys.ed25519 import Ed25519Verifier
from stigmergy.shard.snapshot import digest_of_state
from stigmergy.shard.state import Limits, plan_agents
from tests.formats import golden, messagepack
from tests.formats.golden import read_lines
from tests.formats.manual import fields_of

PLANS = plan_agents([golden.Drone, golden.Tower])
IDENTITY_KEY = blake3(b"stigmergy 2026 identity of a journal in segments").digest()


@pytest.fixture
def files() -> dict[str, bytes]:
    return read_lines("journal-segments-1.txt")


@pytest.fixture
def folder(files: dict[str, bytes], tmp_path: Path) -> Path:
    for name, content in files.items():
        (tmp_path / name).write_bytes(content)
    return tmp_path


async def test_journal_recovers_to_the_same_state(folder: Path) -> None:
    journal = segments.open_journal(f"segments:{folder}", golden.IDENTITY)
    found = Recovery(journal, PLANS, Ed25519Verifier(), Limits(), every_signature=True).recover()
    states = {
        f"shard {number} position {state.position} state": digest_of_state(state)
        for number, state in enumerate(found.states)
    }
    assert states == read_lines("journal-1.txt"), "the very same life is in the SQLite journal"
    assert sorted(found.snapshots) == [0, 1]
    assert [journal.first_position(shard) for shard in range(2)] == [7, 2]
    await journal.close()


def read_frames(data: bytes, key: bytes) -> list[tuple[int, int, Any]]:
    """Kind, number and value of each frame, with nothing but struct, BLAKE3, MessagePack and docs/formats.md."""
    found, at = [], 0
    while at < len(data):
        magic, kind, padding, zero, length, number = struct.unpack_from("<4sBBHIQ", data, at)
        assert (magic, zero) == (b"STGF", 0)
        assert data[at + 20 : at + 24] == blake3(data[at : at + 20], key=key).digest()[:4]
        payload = data[at + 40 : at + 40 + length]
        assert data[at + 24 : at + 40] == blake3(data[at : at + 24] + payload, key=key).digest()[:16]
        end = at + 40 + length + padding
        assert end % 8 == 0
        assert data[at + 40 + length : end] == bytes(padding)
        found.append((kind, number, messagepack.decode(payload)))
        at = end
    return found


def named(structure: str, values: list[Any]) -> dict[str, Any]:
    fields = fields_of(structure)
    assert len(values) <= len(fields)
    return dict(zip(fields, values, strict=False))  # fields that came later may be missing


def test_journal_by_the_manual(files: dict[str, bytes]) -> None:
    ((kind, number, value),) = read_frames(files["identity"], IDENTITY_KEY)
    identity = named("SegmentIdentity", value)
    assert (kind, number) == (5, 1)
    assert (identity["format"], identity["fleet"], identity["shards"]) == (1, "golden", 2)
    key = identity["key"]
    ((kind, number, value),) = read_frames(files["kept"], key)
    kept = [named("KeptCommit", one) for one in value]
    assert (kind, number) == (6, 1)
    reached = dict.fromkeys(range(2), 0)
    firsts: dict[int, int] = {}
    commits: list[dict[str, Any]] = [*kept]
    numbers: list[int] = []
    for name in sorted(name for name in files if name.endswith(".log")):
        (kind, number, value), *rest = read_frames(files[name], key)
        head = named("SegmentHead", value)
        assert (kind, head["format"], head["segment"]) == (1, 1, int(name.removesuffix(".log")))
        heads = {one["shard"]: one for one in (named("Head", values) for values in head["heads"])}
        assert not any(reached.values()) or {s: one["position"] for s, one in heads.items()} == reached
        reached = {shard: one["position"] for shard, one in heads.items()}
        firsts = head["firsts"]
        numbers.append(number)
        for kind, number, value in rest:
            numbers.append(number)
            if kind == 3:
                firsts |= value
                continue
            assert kind == 2
            group = named("SegmentGroup", value)
            rows = [named("SegmentCommit", one) for one in group["commits"]]
            covered = {
                one["shard"]
                for one in (named("Head", values) for values in named("Signature", group["signature"])["heads"])
            }
            assert {row["shard"] for row in rows} <= covered
            for row in rows:
                assert row["position"] == reached[row["shard"]] + 1
                reached[row["shard"]] = row["position"]
            commits += rows
    assert numbers == list(range(numbers[0], numbers[0] + len(numbers)))
    check_commits(commits, firsts, reached)
    parts = {name: read_frames(data, key) for name, data in files.items() if name.startswith("snapshot-")}
    assert parts
    for name, found in parts.items():
        for count, (kind, number, value) in enumerate(found):
            part = named("SegmentPart", value)
            assert (kind, number, part["part"]) == (4, count + 1, count)
            assert name == f"snapshot-{part['shard']}-{part['position']}"
    assert files["mark"][:8] == b"stgmark1"


def check_commits(commits: list[dict[str, Any]], firsts: dict[int, int], reached: dict[int, int]) -> None:
    """All that were not dropped are there, each cites the one before, and is what its row says."""
    for shard, last in reached.items():
        mine = [one for one in commits if one["shard"] == shard and one["position"] >= firsts.get(shard, 1)]
        assert [one["position"] for one in mine] == list(range(firsts.get(shard, 1), last + 1))
        previous = None
        for one in mine:
            commit = dict(zip(fields_of("Commit")[:15], messagepack.decode(one["body"]), strict=True))
            assert blake3(one["body"], derive_key_context="stigmergy 2026 commit chain").digest() == one["digest"]
            assert (commit["shard"], commit["position"], commit["epoch"]) == (shard, one["position"], one["epoch"])
            assert (commit["runs"][-1][1], len(commit["events"])) == (one["time_ns"], one["events"])
            assert previous in (None, commit["previous"])
            previous = one["digest"]
