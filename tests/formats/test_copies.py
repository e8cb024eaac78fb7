"""Reads a copy that an earlier version made, by the tables of the manual, and writes it again."""

from __future__ import annotations

import re

import pytest
from blake3 import blake3
from msgspec import Struct

from stigmergy.agents.codec import encode
from stigmergy.audit import copy_format as copies
from stigmergy.audit.copy_format import (
    CopiedCommit,
    CopiedLog,
    CopiedParts,
    CopiedShard,
    CopiedSnapshot,
    CopyManifest,
    digest_piece,
    read_commits,
    read_manifest,
    write_commits,
)
from stigmergy.shard.commit import Head, Signature
from stigmergy.testing.journal_contract import CommitChain
from tests.formats import messagepack
from tests.formats.golden import read_hex
from tests.formats.manual import DOCS, fields_of

CHAIN = CommitChain()
COMMITS = [
    CopiedCommit(
        one.shard, one.position, one.epoch, one.time_ns, one.events, one.digest, one.body, Signature(1, b"k", [], b"v")
    )
    for one in (CHAIN.group([0], b"a").commits[0], CHAIN.group([0], b"b").commits[0])
]
MANIFEST = CopyManifest(
    format=1,
    hash_algorithm=1,
    fleet="golden",
    shards=2,
    incarnation=7,
    part=(0, 1),
    shard_by="zone",
    node="north/n1/1-of-2",
    made_ns=1_700_000_000_000_000_000,
    copied=[
        CopiedShard(
            before=Head(0, 3, 1, b"b" * 32),
            last=Head(0, 5, 1, b"l" * 32),
            snapshots=[CopiedSnapshot(3, 0, [CopiedParts(b"p" * 32, [10, 20])])],
            log=[CopiedLog(b"c" * 32, 300, 2, 5)],
        )
    ],
)
STRUCTURES: tuple[type[Struct], ...] = (
    CopyManifest,
    CopiedShard,
    CopiedSnapshot,
    CopiedParts,
    CopiedLog,
    CopiedCommit,
)


@pytest.mark.parametrize("structure", STRUCTURES, ids=lambda structure: structure.__name__)
def test_the_fields_are_those_of_the_manual(structure: type[Struct]) -> None:
    assert fields_of(structure.__name__) == list(structure.__struct_fields__)


def test_the_manual_is_enough_to_read_a_manifest() -> None:
    values = messagepack.decode(read_hex("copy-manifest-1.hex"))
    manifest = dict(zip(fields_of("CopyManifest"), values, strict=True))
    assert (manifest["fleet"], manifest["part"], manifest["shard_by"]) == ("golden", [0, 1], "zone")
    (shard,) = [dict(zip(fields_of("CopiedShard"), one, strict=True)) for one in manifest["copied"]]
    assert dict(zip(fields_of("Head"), shard["before"], strict=True))["position"] == 3
    (snapshot,) = [dict(zip(fields_of("CopiedSnapshot"), one, strict=True)) for one in shard["snapshots"]]
    assert snapshot["pieces"] == [[b"p" * 32, [10, 20]]]


def test_what_was_written_is_read_and_written_alike() -> None:
    data = read_hex("copy-manifest-1.hex")
    assert read_manifest(data) == MANIFEST
    assert encode(MANIFEST) == data
    piece = read_hex("copy-commits-1.hex")
    assert read_commits(CopiedLog(digest_piece(piece), len(piece), 1, 2), piece) == COMMITS
    assert write_commits(COMMITS) == piece


def test_the_digest_is_that_of_the_manual() -> None:
    manual = (DOCS / "formats.md").read_text(encoding="utf-8")
    (context,) = re.findall(r"derive_key, `(stigmergy 2026 piece[^`]*)`", manual)
    assert digest_piece(b"abc") == blake3(b"abc", derive_key_context=context).digest()
    assert copies.COPY_FORMAT == 1
