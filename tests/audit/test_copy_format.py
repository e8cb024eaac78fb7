"""Copies as bytes, and the groups that their commits become again."""

from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import structs

from stigmergy.agents.codec import encode
from stigmergy.audit.copy_format import (
    COPY_FORMAT,
    CopiedCommit,
    CopiedLog,
    CopiedParts,
    CopiedShard,
    CopiedSnapshot,
    CopyManifest,
    digest_piece,
    groups_of,
    read_commits,
    read_manifest,
    read_parts,
    write_commits,
)
from stigmergy.base.errors import JournalCorrupt, JournalForeign
from stigmergy.shard.commit import Group, HashAlgorithm, Head, Signature, head_of
from stigmergy.testing.journal_contract import CommitChain

HEAD = Head(0, 7, 1, b"h" * 32)
MANIFEST = CopyManifest(
    format=COPY_FORMAT,
    hash_algorithm=HashAlgorithm.BLAKE3_256,
    fleet="town",
    shards=2,
    incarnation=5,
    part=None,
    shard_by="",
    node="north/gateway",
    made_ns=1,
    copied=[
        CopiedShard(
            before=HEAD,
            last=structs.replace(HEAD, position=9),
            snapshots=[CopiedSnapshot(7, 0, [CopiedParts(b"p" * 32, [3, 4])])],
            log=[CopiedLog(b"l" * 32, 100, 5, 9)],
        )
    ],
)


def copied(group: Group) -> list[CopiedCommit]:
    """A group's commits as a journal has them."""
    return [
        CopiedCommit(
            one.shard,
            one.position,
            one.epoch,
            one.time_ns,
            one.events,
            one.digest,
            one.body,
            group.signature if one is group.commits[-1] else None,
        )
        for one in group.commits
    ]


def lanes_of(commits: list[CopiedCommit]) -> dict[int, Iterator[CopiedCommit]]:
    """By shard."""
    shards = sorted({commit.shard for commit in commits})
    return {shard: iter([one for one in commits if one.shard == shard]) for shard in shards}


def test_a_manifest_reads_back_and_knows_what_it_needs() -> None:
    assert read_manifest(encode(MANIFEST)) == MANIFEST
    part = structs.replace(MANIFEST, part=(0, 1), shard_by="zone")
    assert read_manifest(encode(part)) == part
    assert MANIFEST.commits == 9
    assert MANIFEST.digests == [b"p" * 32, b"l" * 32]


def test_a_manifest_that_is_none_is_refused() -> None:
    for data in (b"", b"\xc1", encode(MANIFEST)[:-5], encode([1, 2])):
        with pytest.raises(JournalCorrupt, match="take another version"):
            read_manifest(data)
    for other in (structs.replace(MANIFEST, format=9), structs.replace(MANIFEST, hash_algorithm=9)):
        with pytest.raises(JournalForeign, match="use the version that made it"):
            read_manifest(encode(other))


def test_commits_read_back_and_are_held_against_the_manifest() -> None:
    chain = CommitChain()
    commits = [one for number in range(3) for one in copied(chain.group([0], b"%d" % number))]
    data = write_commits(commits)
    piece = CopiedLog(digest_piece(data), len(data), 1, 3)
    assert read_commits(piece, data) == commits
    assert [commit.sealed.position for commit in read_commits(piece, data)] == [1, 2, 3]
    with pytest.raises(JournalCorrupt, match="not the one"):
        read_commits(piece, data + b"x")
    with pytest.raises(JournalCorrupt, match="not those"):
        read_commits(structs.replace(piece, last=4), data)
    with pytest.raises(JournalCorrupt, match="decode"):
        read_commits(structs.replace(piece, digest=digest_piece(b"x")), b"x")


def test_parts_read_back_and_are_held_against_the_manifest() -> None:
    piece = CopiedParts(digest_piece(b"abcdef"), [1, 0, 5])
    assert read_parts(piece, b"abcdef") == [b"a", b"", b"bcdef"]
    for sizes in ([1, 2], [-1, 7], []):
        with pytest.raises(JournalCorrupt, match="sizes"):
            read_parts(structs.replace(piece, sizes=sizes), b"abcdef")
    with pytest.raises(JournalCorrupt, match="not the one"):
        read_parts(piece, b"abcdeX")
    assert read_parts(CopiedParts(digest_piece(b""), []), b"") == []


@given(st.lists(st.lists(st.integers(0, 3), min_size=1, max_size=4, unique=True), max_size=20), st.data())
def test_groups_have_all_commits_in_order_each_with_its_signature(groups: list[list[int]], data: st.DataObject) -> None:
    """Of every shard a part of its beginning is covered by a snapshot, and not there."""
    chain = CommitChain()
    commits = [one for number, shards in enumerate(groups) for one in copied(chain.group(shards, b"%d" % number))]
    shards = sorted({commit.shard for commit in commits})
    heads = [Head(shard, max(c.position for c in commits if c.shard == shard), 1, b"") for shard in shards]
    if commits:
        # What every node does when it notes a snapshot: a signature covers all heads.
        last = chain.group([0], b"note")
        signature = Signature(1, b"k" * 32, [*(head for head in heads if head.shard), head_of(last.commits[0])], b"")
        commits += copied(Group(last.commits, signature))
    dropped = {shard: data.draw(st.integers(0, 5)) for shard in range(4)}
    kept = [one for one in commits if one.position > dropped[one.shard] or one is commits[-1]]
    kept = [one for one in kept if one.shard or one.position > dropped[0] or one is commits[-1]]
    found = list(groups_of(lanes_of(kept)))
    written = [one for group in found for one in copied(group)]
    for shard in range(4):
        assert [one for one in written if one.shard == shard] == [one for one in kept if one.shard == shard]


def test_groups_are_told_by_signatures_and_not_by_times() -> None:
    """A clock that stands still gives all commits one time."""
    chain = CommitChain()
    groups = [chain.group(shards) for shards in ([1], [1], [1, 0])]
    commits = [one for group in groups for one in copied(group)]
    last = chain.group([0], b"note")
    signature = Signature(1, b"k" * 32, [head_of(last.commits[0]), head_of(groups[-1].commits[0])], b"")
    commits += copied(Group(last.commits, signature))
    for time_ns in (0, 7):
        frozen = [structs.replace(commit, time_ns=time_ns) for commit in commits]
        found = list(groups_of(lanes_of(frozen)))
        assert [
            [one.position for one in group.commits if one.shard == 1] for group in found if len(group.commits) > 1
        ] == [[3]]
        written = [one for group in found for one in copied(group)]
        for shard in (0, 1):
            assert [one for one in written if one.shard == shard] == [one for one in frozen if one.shard == shard]


def test_commits_that_no_signature_covers_are_refused() -> None:
    chain = CommitChain()
    first, second = copied(chain.group([0, 1], b"a"))
    assert second.signature is not None
    with pytest.raises(JournalCorrupt, match="shard 0: no signature covers the end"):
        list(groups_of({0: iter([first])}))
    assert list(groups_of({})) == []
    whole = list(groups_of({0: iter([first]), 1: iter([second])}))
    assert [len(group.commits) for group in whole] == [2]
