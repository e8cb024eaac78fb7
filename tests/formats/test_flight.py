"""Reads the flight log that an earlier version wrote, by the tables of the manual, and writes it again."""

from __future__ import annotations

import asyncio
import shutil
import zlib
from pathlib import Path
from typing import Any

from blake3 import blake3

from stigmergy.agents.codec import encode
from stigmergy.audit.flight import FlightSelection, FlightVerification, make_flight
from stigmergy.audit.flight_journal import open_flight
from stigmergy.keys.ed25519 import Ed25519Verifier
from stigmergy.shard.commit import digest_commit
from tests.audit.column_log import SECOND_NS, SIGNER, a_log
from tests.formats import golden, messagepack
from tests.formats.golden import read_hex
from tests.formats.golden_columns import LAYOUT, TEMPLATES
from tests.formats.make_fixtures import flight_bytes
from tests.formats.manual import fields_of

KINDS = {1: "FlightOpening", 2: "FlightCommit", 3: "FlightManifest", 4: "FlightSeal", 5: "FlightDirectory"}


def records(data: bytes) -> list[tuple[str, dict[str, Any], int, bytes]]:
    """What the manual says of each record: structure, fields by name, where it begins, its body."""
    assert data[:8] == b"stgflog1"
    found: list[tuple[str, dict[str, Any], int, bytes]] = []
    place = 8
    while place < len(data):
        kind, length = data[place], int.from_bytes(data[place + 1 : place + 5], "little")
        body = data[place + 5 : place + 5 + length]
        checksum = int.from_bytes(data[place + 5 + length : place + 9 + length], "little")
        assert checksum == zlib.crc32(data[place : place + 5 + length])
        values = messagepack.decode(body)
        found.append((KINDS[kind], dict(zip(fields_of(KINDS[kind]), values, strict=True)), place, body))
        place += 9 + length
    return found


def test_the_manual_is_enough_to_read_it() -> None:
    data = read_hex("flight-1.hex")
    (_, opening, _, _), *commits, (_, manifest, place, manifest_body), (_, seal, _, _) = records(data)
    assert (opening["format"], opening["fleet"], opening["shards"], opening["reason"]) == (1, "golden", 2, "golden")
    assert {name for name, *_ in commits} == {"FlightCommit"}
    assert [(one["shard"], one["position"]) for _, one, _, _ in commits] == sorted(
        (one["shard"], one["position"]) for _, one, _, _ in commits
    )
    for _, one, _, _ in commits:
        assert digest_commit(one["body"]) == one["digest"]
    assert manifest["commits"] == len(commits)
    assert manifest["digest"] == blake3(data[:place], derive_key_context="stigmergy 2026 flight log").digest()
    sections = [dict(zip(fields_of("FlightSection"), one, strict=True)) for one in manifest["sections"]]
    for section in sections:
        mine = [one for _, one, _, _ in commits if one["shard"] == section["shard"]]
        assert (section["first"], section["last"]) == (mine[0]["position"], mine[-1]["position"])
        assert section["digest"] == mine[-1]["digest"]
        assert section["previous"] == messagepack.decode(mine[0]["body"])[5]
    statement = b"stigmergy.flight@1\x00" + manifest_body
    assert Ed25519Verifier().verify(seal["algorithm"], seal["key"], statement, seal["value"])
    assert seal["key"] == golden.SIGNER.public_key


def test_it_is_sound(tmp_path: Path) -> None:
    (tmp_path / "flight").write_bytes(read_hex("flight-1.hex"))
    flight = open_flight(tmp_path / "flight")
    found = FlightVerification(flight, Ed25519Verifier(), trusted_key=(1, golden.SIGNER.public_key)).run()
    asyncio.run(flight.close())
    assert found.verified.problems == []
    assert "Drone/D-1" in found.agents


def test_the_same_journal_gives_the_same_bytes(tmp_path: Path) -> None:
    shutil.copy(golden.FOLDER / "journal-1.sqlite3", tmp_path / "golden.db")
    assert flight_bytes(tmp_path / "golden.db") == read_hex("flight-1.hex")


async def test_what_a_part_of_a_log_brings_along_is_as_the_manual_says() -> None:
    log = await a_log()
    data = b"".join(make_flight(log.journal, SIGNER, FlightSelection(since_ns=4 * SECOND_NS), 9))
    described = [one for name, one, _, _ in records(data) if name == "FlightDirectory"]
    rosters = [dict(zip(fields_of("FlightNames"), one, strict=True)) for part in described for one in part["rosters"]]
    assert rosters == [{"kind": "Meter", "count": 4, "numbers": [0, 1], "names": ["M-1", "M-2"]}]
    assert [pair for part in described for pair in part["declared"]] == [
        [encode(LAYOUT), b""],
        [b"", encode(TEMPLATES)],
    ]
    assert [name for name, _, _, _ in records(data)][:2] == ["FlightOpening", "FlightDirectory"]
