"""Commits as bytes: their digest, their chain, and what is said about bytes that are none."""

from __future__ import annotations

import re
from typing import Any

import pytest
from blake3 import blake3

from stigmergy.agents.codec import encode
from stigmergy.base.errors import JournalCorrupt, JournalForeign
from stigmergy.shard.commit import (
    COMMIT_FORMAT,
    GENESIS,
    SHARED_HASH_BYTES,
    Commit,
    EventRun,
    Head,
    digest_commit,
    genesis_of,
    head_of,
    open_commit,
    seal,
    statement,
)


def commit(**changed: Any) -> Commit:
    fields: dict[str, Any] = {
        "format": COMMIT_FORMAT,
        "hash_algorithm": 1,
        "shard": 3,
        "position": 9,
        "epoch": 2,
        "previous": GENESIS,
        "runs": [EventRun(1, 50, "s"), EventRun(0, 70, "")],
        "events": [("Drone/a", b"x")],
    }
    return Commit(**{**fields, **changed})


def test_a_commit_comes_back_from_its_bytes() -> None:
    sealed = seal(commit())
    assert open_commit(sealed.body) == commit()
    assert (sealed.shard, sealed.position, sealed.epoch, sealed.time_ns, sealed.events) == (3, 9, 2, 70, 1)
    assert sealed.digest == digest_commit(sealed.body)
    assert head_of(sealed) == Head(shard=3, position=9, epoch=2, digest=sealed.digest)


def test_any_other_byte_is_another_digest() -> None:
    body = bytearray(seal(commit()).body)
    body[-1] ^= 1
    assert digest_commit(bytes(body)) != seal(commit()).digest


def test_each_shard_of_each_fleet_begins_somewhere_else() -> None:
    beginnings = {genesis_of(fleet, shard) for fleet in ("a", "b") for shard in range(3)}
    assert len(beginnings | {GENESIS}) == 7


def test_what_is_signed_has_a_domain_of_its_own() -> None:
    assert statement([]).startswith(b"stigmergy.group@1\x00")
    assert statement([head_of(seal(commit()))]) != statement([head_of(seal(commit(position=10)))])


@pytest.mark.parametrize(
    ("body", "error", "text"),
    [
        (b"", JournalCorrupt, "a commit of 0 bytes does not decode"),
        (b"\x91" * 5_000, JournalCorrupt, "restore from a copy"),
        (
            encode(commit(format=3)),
            JournalForeign,
            "commit format 3 with hash algorithm 1; this version reads formats 1 and 2 with 1: use the version",
        ),
        (encode(commit(format=0)), JournalForeign, "commit format 0 with hash algorithm 1"),
        (
            encode(commit(hash_algorithm=0)),
            JournalForeign,
            "hash algorithm 0; this version reads formats 1 and 2 with 1",
        ),
        (
            encode(commit(confirmed=[("Drone", 1)])),
            JournalCorrupt,
            "position 9: columns in a commit of format 1; restore",
        ),
        (encode(commit(runs=[EventRun(0, 0, "")])), JournalCorrupt, "its runs do not add up to its 1 events; restore"),
        (encode(commit(hash_algorithm=9)), JournalForeign, "use the version that wrote it, or a later one"),
        (encode(commit(runs=[])), JournalCorrupt, "shard 3, position 9: no runs; restore from a copy"),
        (encode(commit(runs=[EventRun(-1, 0, ""), EventRun(2, 0, "")])), JournalCorrupt, "no runs"),
        (encode(commit(runs=[EventRun(2, 0, "")])), JournalCorrupt, "its runs do not add up to its 1 events; restore"),
    ],
)
def test_what_is_no_commit(body: bytes, error: type[Exception], text: str) -> None:
    with pytest.raises(error, match=re.escape(text)):
        open_commit(body)


def test_a_large_body_has_the_digest_that_the_manual_says() -> None:
    body = bytes(range(256)) * (2 * SHARED_HASH_BYTES // 256)
    assert digest_commit(body) == blake3(body, derive_key_context="stigmergy 2026 commit chain").digest()
