"""The journal in segments against the one in memory: whatever is done, both hold the same, before and after a crash."""

import asyncio
import random
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from stigmergy.base.errors import StigmergyError
from stigmergy.journal.memory import MemoryJournal, MemoryJournalStore
from stigmergy.journal.port import Journal, JournalIdentity, SnapshotPart
from stigmergy.journal.segments import open_journal
from stigmergy.sim.disk import SimDisk, SimFolder
from stigmergy.testing.journal_contract import CommitChain

SHARDS = 3
IDENTITY = JournalIdentity(fleet="model", shards=SHARDS, incarnation=1)

shards = st.integers(0, SHARDS - 1)
steps = st.one_of(
    st.tuples(st.just("append"), st.lists(shards, min_size=1, max_size=4), st.sampled_from((0, 30, 900, 5_000))),
    st.tuples(st.just("append"), st.lists(shards, min_size=1, max_size=4), st.sampled_from((0, 30, 900, 5_000))),
    st.tuples(st.just("drop"), shards, st.floats(0, 1)),
    st.tuples(st.just("drop all"), st.integers(0, 2), st.just(0)),
    st.tuples(st.just("put snapshot"), shards, st.integers(1, 3)),
    st.tuples(st.just("drop snapshot"), shards, st.integers(0, 5)),
    st.tuples(st.just("crash"), st.booleans(), st.just(0)),
)


class Pair:
    """Both journals, and what goes on in them."""

    def __init__(self, seed: int, filled: bool) -> None:
        self.disk = SimDisk(random.Random(seed))
        self.store = MemoryJournalStore(IDENTITY)
        self.chain = CommitChain()
        self.filled = filled
        self.open()

    def open(self) -> None:
        self.store.owner = None
        self.model = MemoryJournal(self.store)
        self.tried = open_journal(
            "segments:fleet",
            IDENTITY,
            inline=True,
            segment_bytes=8_192,
            filled=self.filled,
            folder=SimFolder(self.disk, "fleet"),
            key=bytes(32),
        )

    async def take(self, what: str, one: Any, two: Any) -> None:
        match what:
            case "append":
                group = self.chain.group(one, bytes(two))
                await self.both(lambda journal: journal.append(group))
            case "drop":
                await self.drop(one, int(two * self.chain.positions.get(one, 0)))
            case "drop all":
                for shard, position in self.chain.positions.items():
                    await self.drop(shard, position - 1 - one)
            case "put snapshot":
                position = self.chain.positions.get(one, 0)
                parts = [SnapshotPart(number, bytes([number]) * 700) for number in range(two)]
                await self.both(lambda journal: journal.put_snapshot(one, position, parts))
            case "drop snapshot":
                await self.both(lambda journal: journal.drop_snapshot(one, two))
            case "crash":
                (self.disk.lose_power if one else self.disk.kill)()
                self.disk.restart()
                self.open()
            case _:
                raise AssertionError(what)
        await asyncio.sleep(0)

    async def drop(self, shard: int, upto: int) -> None:
        await self.both(lambda journal: journal.drop(shard, upto))

    async def both(self, act: Any) -> None:
        """Both do it, or both refuse it with the same kind of error."""
        outcomes: list[str] = []
        for journal in (self.model, self.tried):
            try:
                await act(journal)
                outcomes.append("done")
            except StigmergyError as error:
                outcomes.append(type(error).__name__)
        assert outcomes[0] == outcomes[1]

    def compare(self, after: int) -> None:
        assert seen(self.tried, after) == seen(self.model, after)


def seen(journal: Journal, after: int) -> Any:
    """All that can be read of a journal."""
    return (
        journal.heads(),
        journal.size().commits,
        [
            (
                journal.first_position(shard),
                list(journal.read(shard)),
                list(journal.read(shard, after)),
                [(position, list(journal.read_snapshot(shard, position))) for position in journal.snapshots(shard)],
            )
            for shard in range(SHARDS)
        ],
    )


@given(st.lists(steps, max_size=40), st.integers(0, 1000), st.booleans(), st.integers(0, 30))
@settings(max_examples=50, deadline=None)
def test_it_does_what_the_model_does(todo: list[tuple[str, Any, Any]], seed: int, filled: bool, after: int) -> None:
    async def main() -> None:
        pair = Pair(seed, filled)
        try:
            for step in todo:
                await pair.take(*step)
                pair.compare(after)
            await pair.take("crash", True, 0)
            pair.compare(after)
        finally:
            pair.disk.close()

    asyncio.run(main())
