"""What every journal must do, as tests: inherit them to prove your own adapter. Needs only pytest.

    class TestMyJournal(JournalContract):
        @pytest.fixture
        def open_journal(self, tmp_path):
            return lambda identity: my_adapter.open_journal(f"my:{tmp_path}/fleet", identity)

`open_journal` opens the same place each time within a test and a fresh one for each test. Test power loss, damage and
full disks in the adapter's own suite. A journal on files inherits FileJournalContract instead: it says what must happen
when such a file is taken away.
"""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Awaitable, Callable, Coroutine, Iterable
from typing import Any, ParamSpec, Protocol

import pytest
from msgspec import msgpack, structs

from stigmergy.base.errors import Bug, JournalConflict, JournalCorrupt, JournalForeign, JournalLocked, JournalUnknown
from stigmergy.journal.port import Journal, JournalIdentity, SnapshotPart, StoredCommit, file_check
from stigmergy.shard.commit import (
    COMMIT_FORMAT,
    GENESIS,
    Commit,
    EventRun,
    Group,
    HashAlgorithm,
    Sealed,
    Signature,
    SignatureAlgorithm,
    head_of,
    seal,
)

# Builds small, real commits and groups for tests of journals: true bodies, true digests, chained per shard.
#
# The signatures are made up: a journal stores them and never checks them. Recovery tests need a real signer.


def make_commit(
    shard: int, position: int, previous: bytes = GENESIS, *, payload: bytes = b"", epoch: int = 1
) -> Sealed:
    """One commit with one event that carries the payload."""
    return seal(
        Commit(
            format=COMMIT_FORMAT,
            hash_algorithm=HashAlgorithm.BLAKE3_256,
            shard=shard,
            position=position,
            epoch=epoch,
            previous=previous,
            runs=[EventRun(events=1, time_ns=1_000_000 * position, source="test")],
            events=[(f"agent/{shard}", msgpack.encode(payload))],
        )
    )


def make_group(*commits: Sealed) -> Group:
    """A group of these commits, with a signature that has the right shape and covers the last head of each shard."""
    last = {sealed.shard: head_of(sealed) for sealed in commits}
    heads = [last[shard] for shard in sorted(last)]
    value = b"".join(head.digest[:8] for head in heads)[:64].ljust(64, b"s")
    return Group(
        commits=commits,
        signature=Signature(algorithm=SignatureAlgorithm.ED25519, key=b"k" * 32, heads=heads, value=value),
    )


class CommitChain:
    """Continues each shard where it was left: the next commit has the next position and cites the one before."""

    def __init__(self) -> None:
        self.positions: dict[int, int] = {}
        self._digests: dict[int, bytes] = {}

    def continue_from(self, sealed: Sealed) -> None:
        """Takes this commit as the newest of its shard."""
        self.positions[sealed.shard] = sealed.position
        self._digests[sealed.shard] = sealed.digest

    def commit(self, shard: int = 0, payload: bytes = b"") -> Sealed:
        """The shard's next commit."""
        position = self.positions.get(shard, 0) + 1
        sealed = make_commit(shard, position, self._digests.get(shard, GENESIS), payload=payload)
        self.continue_from(sealed)
        return sealed

    def group(self, shards: Iterable[int] = (0,), payload: bytes = b"") -> Group:
        """One commit for each of the shards, in the given order; a shard may occur more than once."""
        return make_group(*[self.commit(shard, payload) for shard in shards])


IDENTITY = JournalIdentity(fleet="contract", shards=4, incarnation=7)
COMMITS_MANY = 600

OpenJournal = Callable[[JournalIdentity], Journal]
P = ParamSpec("P")


def in_a_loop(test: Callable[P, Coroutine[Any, Any, None]]) -> Callable[P, None]:
    """Lets an async test run under plain pytest."""

    @functools.wraps(test)
    def run(*args: P.args, **kwargs: P.kwargs) -> None:
        asyncio.run(test(*args, **kwargs))

    return run


def stored(*groups: Group, shard: int) -> list[StoredCommit]:
    """How a shard's commits of these groups must read back."""
    return [
        StoredCommit(sealed, group.signature if sealed is group.commits[-1] else None)
        for group in groups
        for sealed in group.commits
        if sealed.shard == shard
    ]


class JournalContract:
    """Every sentence of the port's docstring, one test or more each."""

    @pytest.fixture
    def open_journal(self) -> OpenJournal:
        """Opens the journal of this test. A subclass gives it."""
        raise NotImplementedError("give the fixture open_journal: see the module's docstring")

    @in_a_loop
    async def test_new_journal_is_empty(self, open_journal: OpenJournal) -> None:
        journal = open_journal(IDENTITY)
        assert journal.identity == IDENTITY
        assert journal.heads() == []
        assert journal.first_position(0) == 1
        assert list(journal.read(0)) == []
        assert journal.snapshots(0) == []
        assert list(journal.read_snapshot(0, 1)) == []
        assert journal.size().commits == 0
        assert journal.size().bytes_free > 0
        await journal.close()

    # Appending and reading.

    @in_a_loop
    async def test_commits_read_back_in_order_and_bit_for_bit(self, open_journal: OpenJournal) -> None:
        journal, chain = open_journal(IDENTITY), CommitChain()
        groups = [chain.group([0], payload) for payload in (b"", b"one", bytes(5_000), b"\xff" * 100_000)]
        for group in groups:
            await journal.append(group)
        assert list(journal.read(0)) == stored(*groups, shard=0)
        await journal.close()

    @in_a_loop
    async def test_group_spans_shards_and_its_last_commit_has_the_signature(self, open_journal: OpenJournal) -> None:
        journal, chain = open_journal(IDENTITY), CommitChain()
        first, second = chain.group([2, 0, 2, 2]), chain.group([0, 3])
        await journal.append(first)
        await journal.append(second)
        for shard in range(IDENTITY.shards):
            assert list(journal.read(shard)) == stored(first, second, shard=shard)
        assert [found.signature for found in journal.read(2)] == [None, None, first.signature]
        await journal.close()

    @in_a_loop
    async def test_heads_are_the_last_commits_by_shard(self, open_journal: OpenJournal) -> None:
        journal, chain = open_journal(IDENTITY), CommitChain()
        await journal.append(chain.group([3, 1]))
        last = chain.group([3])
        await journal.append(last)
        heads = journal.heads()
        assert [(head.shard, head.position) for head in heads] == [(1, 1), (3, 2)]
        assert heads[1] == head_of(last.commits[0])
        await journal.close()

    @in_a_loop
    async def test_read_begins_behind_a_position(self, open_journal: OpenJournal) -> None:
        journal, chain = open_journal(IDENTITY), CommitChain()
        for _ in range(5):
            await journal.append(chain.group([0, 1]))
        assert [found.sealed.position for found in journal.read(0, after=3)] == [4, 5]
        assert list(journal.read(0, after=5)) == []
        assert list(journal.read(0, after=99)) == []
        assert list(journal.read(2)) == []
        await journal.close()

    @in_a_loop
    async def test_reader_goes_on_between_appends(self, open_journal: OpenJournal) -> None:
        journal, chain = open_journal(IDENTITY), CommitChain()
        await journal.append(chain.group([0]))
        reader = journal.read(0)
        assert next(reader).sealed.position == 1
        await journal.append(chain.group([0]))
        assert [found.sealed.position for found in reader] == [2]
        await journal.close()

    @in_a_loop
    async def test_many_commits_in_one_group_are_kept(self, open_journal: OpenJournal) -> None:
        journal, chain = open_journal(IDENTITY), CommitChain()
        group = chain.group([position % 2 for position in range(COMMITS_MANY)], bytes(3_000))
        await journal.append(group)
        assert list(journal.read(0)) == stored(group, shard=0)
        assert list(journal.read(1)) == stored(group, shard=1)
        assert journal.size().commits == COMMITS_MANY
        assert journal.size().bytes_used > COMMITS_MANY * 3_000
        await journal.close()

    # What is refused, and leaves nothing behind.

    @in_a_loop
    async def test_taken_position_conflicts_and_nothing_of_the_group_is_kept(self, open_journal: OpenJournal) -> None:
        journal, chain = open_journal(IDENTITY), CommitChain()
        await journal.append(chain.group([1]))
        await self.refuses(journal, make_group(make_commit(0, 1), make_commit(1, 1)), JournalConflict)
        await journal.append(chain.group([1]))
        await journal.close()

    @in_a_loop
    async def test_position_twice_in_a_group_conflicts(self, open_journal: OpenJournal) -> None:
        journal = open_journal(IDENTITY)
        await self.refuses(journal, make_group(make_commit(0, 1), make_commit(0, 1)), JournalConflict)
        await journal.close()

    @in_a_loop
    async def test_gap_is_a_bug_and_nothing_of_the_group_is_kept(self, open_journal: OpenJournal) -> None:
        journal, chain = open_journal(IDENTITY), CommitChain()
        await journal.append(chain.group([1]))
        await self.refuses(journal, make_group(make_commit(0, 1), make_commit(1, 3)), Bug)
        await self.refuses(journal, make_group(make_commit(2, 2)), Bug)
        await journal.close()

    @in_a_loop
    async def test_unknown_shard_and_empty_group_are_bugs(self, open_journal: OpenJournal) -> None:
        journal, chain = open_journal(IDENTITY), CommitChain()
        await self.refuses(journal, chain.group([IDENTITY.shards]), Bug)
        await self.refuses(journal, make_group(), Bug)
        await journal.close()

    async def refuses(self, journal: Journal, group: Group, error: type[Exception]) -> None:
        """The group is refused, and the journal is as it was."""
        before = [journal.heads(), [list(journal.read(shard)) for shard in range(IDENTITY.shards)]]
        with pytest.raises(error):
            await journal.append(group)
        assert [journal.heads(), [list(journal.read(shard)) for shard in range(IDENTITY.shards)]] == before

    # One write at a time.

    @pytest.mark.parametrize("second", ["append", "put_snapshot", "drop_snapshot", "drop"])
    @in_a_loop
    async def test_second_write_while_one_is_under_way_is_a_bug(self, open_journal: OpenJournal, second: str) -> None:
        journal, chain = open_journal(IDENTITY), CommitChain()
        await journal.append(chain.group([0]))
        await journal.append(chain.group([0]))
        under_way = chain.group([0])
        writes: dict[str, Callable[[], Awaitable[None]]] = {
            "append": lambda: journal.append(make_group(make_commit(1, 1))),
            "put_snapshot": lambda: journal.put_snapshot(0, 1, [SnapshotPart(0, b"a")]),
            "drop_snapshot": lambda: journal.drop_snapshot(0, 1),
            "drop": lambda: journal.drop(0, 1),
        }

        async def begin(write: Callable[[], Awaitable[None]]) -> None:
            await write()

        # Both begin in one turn of the loop: an append that began before it could have ended when the second begins.
        first = begin(lambda: journal.append(under_way))
        outcomes = await asyncio.gather(first, begin(writes[second]), return_exceptions=True)
        assert outcomes[0] is None
        assert isinstance(outcomes[1], Bug)
        assert [head.position for head in journal.heads()] == [3]
        assert journal.first_position(0) == 1
        assert journal.snapshots(0) == []
        await journal.append(chain.group([0]))
        await journal.close()

    @in_a_loop
    async def test_close_waits_for_a_write_whose_caller_was_cancelled(self, open_journal: OpenJournal) -> None:
        journal, chain = open_journal(IDENTITY), CommitChain()
        group = chain.group([0, 1, 2])
        writing = asyncio.ensure_future(journal.append(group))
        await asyncio.sleep(0)
        writing.cancel()
        await journal.close()
        journal = open_journal(IDENTITY)
        kept = [len(list(journal.read(shard))) for shard in range(3)]
        assert kept in ([0, 0, 0], [1, 1, 1])
        await journal.close()

    # Snapshots.

    @in_a_loop
    async def test_snapshot_reads_back_in_order(self, open_journal: OpenJournal) -> None:
        journal = open_journal(IDENTITY)
        parts = [SnapshotPart(number, bytes([number]) * size) for number, size in enumerate((0, 10, 70_000))]
        await journal.put_snapshot(1, 12, parts[:2])
        await journal.put_snapshot(1, 12, parts[2:])
        await journal.put_snapshot(1, 4, parts[:1])
        await journal.put_snapshot(0, 9, parts[:1])
        assert journal.snapshots(1) == [4, 12]
        assert list(journal.read_snapshot(1, 12)) == parts
        assert list(journal.read_snapshot(1, 5)) == []
        await journal.close()

    @in_a_loop
    async def test_snapshot_that_begins_anew_replaces_the_old_one(self, open_journal: OpenJournal) -> None:
        journal = open_journal(IDENTITY)
        await journal.put_snapshot(0, 3, [SnapshotPart(0, b"old"), SnapshotPart(1, b"old"), SnapshotPart(2, b"old")])
        await journal.put_snapshot(0, 3, [SnapshotPart(0, b"new")])
        assert list(journal.read_snapshot(0, 3)) == [SnapshotPart(0, b"new")]
        await journal.close()

    @in_a_loop
    async def test_snapshot_part_out_of_order_is_a_bug(self, open_journal: OpenJournal) -> None:
        journal = open_journal(IDENTITY)
        for parts in ([SnapshotPart(1, b"")], [SnapshotPart(0, b""), SnapshotPart(2, b"")]):
            with pytest.raises(Bug):
                await journal.put_snapshot(0, 3, parts)
        assert journal.snapshots(0) == []
        await journal.put_snapshot(0, 3, [])
        assert journal.snapshots(0) == []
        await journal.close()

    @in_a_loop
    async def test_dropped_snapshot_is_gone_and_others_stay(self, open_journal: OpenJournal) -> None:
        journal = open_journal(IDENTITY)
        for shard, position in ((0, 3), (0, 5), (1, 3)):
            await journal.put_snapshot(shard, position, [SnapshotPart(0, b"a")])
        await journal.drop_snapshot(0, 3)
        await journal.drop_snapshot(0, 4)
        assert (journal.snapshots(0), journal.snapshots(1)) == ([5], [3])
        await journal.close()

    # Dropping commits.

    @in_a_loop
    async def test_dropped_commits_are_gone_and_the_rest_stays(self, open_journal: OpenJournal) -> None:
        journal, chain = open_journal(IDENTITY), CommitChain()
        groups = [chain.group([0, 1]) for _ in range(6)]
        for group in groups:
            await journal.append(group)
        heads = journal.heads()
        await journal.drop(0, 2)
        await journal.drop(0, 4)
        await journal.drop(0, 1)
        await journal.drop(3, 9)
        assert (journal.first_position(0), journal.first_position(1), journal.first_position(3)) == (5, 1, 1)
        assert list(journal.read(0)) == stored(*groups[4:], shard=0)
        assert list(journal.read(0, after=5)) == stored(*groups[5:], shard=0)
        assert list(journal.read(1)) == stored(*groups, shard=1)
        assert journal.heads() == heads
        assert journal.size().commits == 8
        await journal.append(chain.group([0]))
        await journal.close()

    @in_a_loop
    async def test_dropping_the_head_is_a_bug(self, open_journal: OpenJournal) -> None:
        journal, chain = open_journal(IDENTITY), CommitChain()
        await journal.append(chain.group([0]))
        await journal.append(chain.group([0]))
        with pytest.raises(Bug):
            await journal.drop(0, 2)
        assert [found.sealed.position for found in journal.read(0)] == [1, 2]
        await journal.close()

    @in_a_loop
    async def test_reading_what_was_dropped_meanwhile_is_a_bug(self, open_journal: OpenJournal) -> None:
        journal, chain = open_journal(IDENTITY), CommitChain()
        for _ in range(COMMITS_MANY):
            await journal.append(chain.group([0]))
        reader = journal.read(0)
        next(reader)
        await journal.drop(0, COMMITS_MANY - 1)
        with pytest.raises(Bug):
            list(reader)
        await journal.close()

    # Opening and closing.

    @in_a_loop
    async def test_reopened_journal_has_everything(self, open_journal: OpenJournal) -> None:
        journal, chain = open_journal(IDENTITY), CommitChain()
        groups = [chain.group([0, 1]), chain.group([1]), chain.group([1, 0])]
        for group in groups:
            await journal.append(group)
        await journal.put_snapshot(1, 2, [SnapshotPart(0, b"state")])
        await journal.drop(1, 1)
        heads = journal.heads()
        await journal.close()
        journal = open_journal(IDENTITY)
        assert journal.heads() == heads
        assert list(journal.read(0)) == stored(*groups, shard=0)
        assert list(journal.read(1)) == stored(*groups, shard=1)[1:]
        assert (journal.first_position(0), journal.first_position(1)) == (1, 2)
        assert list(journal.read_snapshot(1, 2)) == [SnapshotPart(0, b"state")]
        await journal.append(chain.group([0, 1]))
        await journal.close()

    @in_a_loop
    async def test_other_fleet_or_number_of_shards_is_foreign(self, open_journal: OpenJournal) -> None:
        await open_journal(IDENTITY).close()
        for other in (
            JournalIdentity(fleet="another", shards=IDENTITY.shards, incarnation=IDENTITY.incarnation),
            JournalIdentity(fleet=IDENTITY.fleet, shards=IDENTITY.shards + 1, incarnation=IDENTITY.incarnation),
        ):
            with pytest.raises(JournalForeign):
                open_journal(other)
        await open_journal(IDENTITY).close()

    @in_a_loop
    async def test_part_keeps_its_own_shards_and_is_no_other_part(self, open_journal: OpenJournal) -> None:
        part = structs.replace(IDENTITY, part=(1, 2))
        journal, chain = open_journal(part), CommitChain()
        assert (journal.identity, list(journal.identity.owned), journal.identity.signers_shard) == (part, [1, 2], 1)
        group = chain.group([1, 2])
        await journal.append(group)
        for shard in (0, 3):
            await self.refuses(journal, chain.group([shard]), Bug)
        await journal.close()
        for other in (None, (0, 1), (2, 3), (1, 1)):
            with pytest.raises(JournalForeign, match="1 to 2"):
                open_journal(structs.replace(IDENTITY, part=other))
        journal = open_journal(part)
        assert journal.identity == part
        assert list(journal.read(1)) == stored(group, shard=1)
        await journal.close()

    @in_a_loop
    async def test_whole_journal_is_no_part(self, open_journal: OpenJournal) -> None:
        await open_journal(IDENTITY).close()
        with pytest.raises(JournalForeign):
            open_journal(structs.replace(IDENTITY, part=(0, IDENTITY.shards - 1)))

    @in_a_loop
    async def test_who_says_where_agents_live_is_fixed(self, open_journal: OpenJournal) -> None:
        await open_journal(IDENTITY).close()
        with pytest.raises(JournalForeign, match="without shard_by"):
            open_journal(structs.replace(IDENTITY, shard_by="zone_of"))
        journal = open_journal(IDENTITY)
        assert journal.identity.shard_by == ""
        await journal.close()

    @in_a_loop
    async def test_the_function_that_says_where_agents_live_is_remembered(self, open_journal: OpenJournal) -> None:
        keyed = structs.replace(IDENTITY, shard_by="zone_of", part=(1, 2))
        journal, chain = open_journal(keyed), CommitChain()
        await journal.append(chain.group([1, 2]))
        await journal.close()
        for other in ("", "district_of"):
            with pytest.raises(JournalForeign, match="shard_by=zone_of"):
                open_journal(structs.replace(keyed, shard_by=other))
        with pytest.raises(JournalForeign):
            open_journal(structs.replace(keyed, part=None))
        journal = open_journal(keyed)
        assert journal.identity == keyed
        assert [head.position for head in journal.heads()] == [1, 1]
        await journal.close()

    @in_a_loop
    async def test_incarnation_is_the_one_it_was_made_with(self, open_journal: OpenJournal) -> None:
        await open_journal(IDENTITY).close()
        journal = open_journal(JournalIdentity(fleet=IDENTITY.fleet, shards=IDENTITY.shards, incarnation=8))
        assert journal.identity == IDENTITY
        await journal.close()

    @in_a_loop
    async def test_open_journal_is_locked(self, open_journal: OpenJournal) -> None:
        journal, chain = open_journal(IDENTITY), CommitChain()
        with pytest.raises(JournalLocked):
            open_journal(IDENTITY)
        await journal.append(chain.group([0]))
        await journal.close()
        await open_journal(IDENTITY).close()

    @in_a_loop
    async def test_closed_journal_refuses_and_may_be_closed_again(self, open_journal: OpenJournal) -> None:
        journal, chain = open_journal(IDENTITY), CommitChain()
        await journal.append(chain.group([0]))
        await journal.close()
        await journal.close()
        reads: list[Callable[[], object]] = [
            journal.heads,
            journal.size,
            lambda: journal.first_position(0),
            lambda: list(journal.read(0)),
            lambda: journal.snapshots(0),
            lambda: list(journal.read_snapshot(0, 1)),
        ]
        for read in reads:
            with pytest.raises(Bug):
                read()
        for write in (
            journal.append(chain.group([0])),
            journal.put_snapshot(0, 1, [SnapshotPart(0, b"")]),
            journal.drop_snapshot(0, 1),
            journal.drop(0, 0),
        ):
            with pytest.raises(Bug):
                await write


class DiskFiles(Protocol):
    """The files of a journal as somebody else gets at them, by their paths below the folder that all of it is in."""

    def paths(self) -> list[str]:
        """All of them, sorted."""
        ...

    def read(self, path: str) -> bytes:
        """What is in a file."""
        ...

    def put(self, path: str, content: bytes) -> None:
        """Puts another file there, in the place of the one that has the name, if there is one."""
        ...

    def take_away(self, path: str, to: str | None = None) -> None:
        """Removes a file, or renames it; what is open stays open."""
        ...


class FileJournalContract(JournalContract):
    """What every journal on files must do beside that."""

    mark = ""
    """The path of its mark: a subclass gives it."""

    @pytest.fixture
    def place(self) -> DiskFiles:
        """The files of this test's journal. A subclass gives it."""
        raise NotImplementedError("give the fixture place")

    async def _begin(self, open_journal: OpenJournal) -> tuple[Journal, CommitChain]:
        journal, chain = open_journal(IDENTITY), CommitChain()
        for _ in range(3):
            await journal.append(chain.group([0, 1]))
        return journal, chain

    def _begun(self, place: DiskFiles) -> list[str]:
        """Its files, without what means nothing."""
        return [path for path in place.paths() if not path.endswith(("spare", "-reserve"))]

    @pytest.mark.parametrize("how", ["removed", "renamed", "replaced"])
    @in_a_loop
    async def test_files_that_were_taken_away_are_noticed_before_an_acknowledgement(
        self, open_journal: OpenJournal, place: DiskFiles, how: str
    ) -> None:
        journal, chain = await self._begin(open_journal)
        for path in self._begun(place):
            self._take_away(place, path, how)
        for _ in range(2):
            with pytest.raises(JournalUnknown, match="while the journal was open"):
                await journal.append(chain.group([0]))
        await journal.close()

    @in_a_loop
    async def test_each_file_is_missed_while_nothing_is_written(
        self, open_journal: OpenJournal, place: DiskFiles
    ) -> None:
        journal, _ = await self._begin(open_journal)
        await journal.close()
        image = {path: place.read(path) for path in place.paths()}
        journal = open_journal(IDENTITY)
        paths = self._begun(place)
        await journal.close()
        for path in paths:
            for found in place.paths():
                place.take_away(found)
            for found, content in image.items():
                place.put(found, content)
            journal = open_journal(IDENTITY)
            check = file_check(journal)
            assert check is not None
            await check()
            place.take_away(path)
            with pytest.raises(JournalUnknown, match="while the journal was open"):
                await check()
            with pytest.raises(JournalUnknown, match="while the journal was open"):
                await check()
            await journal.close()

    @in_a_loop
    async def test_files_of_another_are_left_alone_by_a_close(
        self, open_journal: OpenJournal, place: DiskFiles
    ) -> None:
        journal, _ = await self._begin(open_journal)
        for path in place.paths():
            place.put(path, b"")
        await journal.close()
        assert [place.read(path) for path in place.paths() if path != self.mark and not path.endswith("spare")] == [
            b"" for path in place.paths() if path != self.mark and not path.endswith("spare")
        ]

    @in_a_loop
    async def test_a_journal_that_is_gone_is_not_begun_anew(self, open_journal: OpenJournal, place: DiskFiles) -> None:
        journal, _ = await self._begin(open_journal)
        await journal.close()
        for path in place.paths():
            if path != self.mark:
                place.take_away(path)
        for _ in range(2):
            with pytest.raises(JournalCorrupt, match=r"gone.*restore"):
                open_journal(IDENTITY)
        assert place.paths() == [self.mark]
        place.take_away(self.mark)
        await open_journal(IDENTITY).close()

    @in_a_loop
    async def test_an_older_copy_of_it_is_refused(self, open_journal: OpenJournal, place: DiskFiles) -> None:
        journal, chain = await self._begin(open_journal)
        await journal.close()
        older = {path: place.read(path) for path in place.paths() if path != self.mark}
        journal = open_journal(IDENTITY)
        await journal.append(chain.group([0]))
        await journal.close()
        for path in place.paths():
            if path != self.mark:
                place.take_away(path)
        for path, content in older.items():
            place.put(path, content)
        with pytest.raises(JournalCorrupt, match="acknowledged up to 4, found 3"):
            open_journal(IDENTITY)

    @in_a_loop
    async def test_a_damaged_mark_is_refused_and_a_blank_one_says_nothing(
        self, open_journal: OpenJournal, place: DiskFiles
    ) -> None:
        journal, _ = await self._begin(open_journal)
        await journal.close()
        good = place.read(self.mark)
        for bad in (good[:20], good[:-1], bytes([good[0] ^ 1]) + good[1:], good[:24] + b"x" + good[25:], b"x"):
            place.put(self.mark, bad)
            with pytest.raises(JournalCorrupt, match=r"the mark is damaged.*restore"):
                open_journal(IDENTITY)
            assert place.read(self.mark) == bad
        for blank in (b"", bytes(len(good))):
            place.put(self.mark, blank)
            await open_journal(IDENTITY).close()

    def _take_away(self, place: DiskFiles, path: str, how: str) -> None:
        if how == "replaced":
            place.put(path, place.read(path))
        else:
            place.take_away(path, f"{path}.elsewhere" if how == "renamed" else None)
