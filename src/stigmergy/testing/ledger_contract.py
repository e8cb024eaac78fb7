"""What every ledger must do, as tests: inherit them to prove your own adapter. Needs only pytest.

    class TestMyLedger(LedgerContract):
        @pytest.fixture
        def open_ledger(self, tmp_path):
            return lambda name: my_adapter.open_ledger(f"my:{tmp_path}/ledger", name)

`open_ledger` opens another connection to the same place each time within a test, and a fresh place for each test. Test
what is specific to a technology (power loss, damage, elections) in the adapter's own suite.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest

from stigmergy.base.errors import Bug, ConfigError, LedgerCorrupt, LedgerCut, LedgerForeign, TooLarge
from stigmergy.claims.port import (
    CHECKPOINT_BYTES_MAX,
    ENTRIES_COUNT_MAX,
    ENTRY_BYTES_MAX,
    NAME_CHARS_MAX,
    READ_COUNT_MAX,
    LedgerCheckpoint,
    LedgerEntry,
    LedgerPort,
)
from stigmergy.testing.journal_contract import in_a_loop

NAME = "contract"
HEARD_S_MAX = 5.0

OpenLedger = Callable[[str], LedgerPort]


async def read_all(ledger: LedgerPort, after: int = 0, count_max: int = READ_COUNT_MAX) -> list[LedgerEntry]:
    """Everything behind a position, in as many reads as it takes."""
    entries: list[LedgerEntry] = []
    while found := await ledger.read(entries[-1].position if entries else after, count_max):
        entries += found
    return entries


async def wait_heard(told: list[int], position: int) -> None:
    """Waits until the end of the log was told, at most so long."""
    deadline = asyncio.get_running_loop().time() + HEARD_S_MAX
    while not told or told[-1] < position:
        assert asyncio.get_running_loop().time() < deadline, f"told {told}, but not of {position}"
        await asyncio.sleep(0.005)


class LedgerContract:
    """Every sentence of the port's docstring, one test or more each."""

    @pytest.fixture
    def open_ledger(self) -> OpenLedger:
        """Opens a connection to the ledger of this test. A subclass gives it."""
        raise NotImplementedError("give the fixture open_ledger: see the module's docstring")

    @in_a_loop
    async def test_a_new_ledger_is_empty(self, open_ledger: OpenLedger) -> None:
        ledger = open_ledger(NAME)
        assert ledger.name == NAME
        assert await ledger.read(0) == []
        assert await ledger.checkpoint() is None
        await ledger.close()

    @pytest.mark.parametrize("name", ["", "x" * (NAME_CHARS_MAX + 1), "two\nlines"])
    @in_a_loop
    async def test_a_name_must_be_one(self, open_ledger: OpenLedger, name: str) -> None:
        with pytest.raises(ConfigError):
            open_ledger(name)

    @in_a_loop
    async def test_a_ledger_of_another_name_is_refused(self, open_ledger: OpenLedger) -> None:
        ledger = open_ledger(NAME)
        with pytest.raises(LedgerForeign, match=NAME):
            open_ledger("another")
        await ledger.close()

    # Appending and reading.

    @in_a_loop
    async def test_entries_read_back_in_order_and_bit_for_bit(self, open_ledger: OpenLedger) -> None:
        ledger = open_ledger(NAME)
        bodies = [b"", b"one", bytes(ENTRY_BYTES_MAX), b"\xff" * 100]
        first = await ledger.append(bodies[:1])
        assert first == 1
        second = await ledger.append(bodies[1:])
        assert second > first
        entries = await ledger.read(0)
        assert [entry.body for entry in entries] == bodies
        assert [entry.position for entry in entries] == [first, second, second + 1, second + 2]
        assert await ledger.read(second) == entries[2:]
        assert await ledger.read(entries[-1].position) == []
        await ledger.close()

    @in_a_loop
    async def test_reads_are_bounded(self, open_ledger: OpenLedger) -> None:
        ledger = open_ledger(NAME)
        count = 0
        while count <= READ_COUNT_MAX:
            await ledger.append([b"%d" % (count + index) for index in range(ENTRIES_COUNT_MAX)])
            count += ENTRIES_COUNT_MAX
        assert len(await ledger.read(0, count_max=3)) == 3
        assert len(await ledger.read(0)) == READ_COUNT_MAX
        assert len(await ledger.read(0, count_max=READ_COUNT_MAX * 2)) == READ_COUNT_MAX
        assert [int(entry.body) for entry in await read_all(ledger)] == list(range(count))
        await ledger.close()

    @in_a_loop
    async def test_without_asking_a_connection_knows_what_it_has_appended_and_read(
        self, open_ledger: OpenLedger
    ) -> None:
        one, other = open_ledger(NAME), open_ledger(NAME)
        await one.append([b"one"])
        assert [entry.body for entry in await one.read(0, fresh=False)] == [b"one"]
        assert [entry.body for entry in await other.read(0, fresh=False)] == [b"one"], "the first read is a fresh one"
        await one.append([b"two"])
        known = await other.read(0)
        assert [entry.body for entry in known] == [b"one", b"two"]
        assert await other.read(0, fresh=False) == known
        await one.close()
        await other.close()

    @in_a_loop
    async def test_what_cannot_be_an_append_is_refused(self, open_ledger: OpenLedger) -> None:
        ledger = open_ledger(NAME)
        with pytest.raises(Bug):
            await ledger.append([])
        with pytest.raises(TooLarge):
            await ledger.append([b"x"] * (ENTRIES_COUNT_MAX + 1))
        with pytest.raises(TooLarge):
            await ledger.append([b"fits", bytes(ENTRY_BYTES_MAX + 1)])
        assert await ledger.read(0) == []
        await ledger.close()

    @in_a_loop
    async def test_one_append_at_a_time(self, open_ledger: OpenLedger) -> None:
        ledger = open_ledger(NAME)
        first = asyncio.ensure_future(ledger.append([b"first"]))
        await asyncio.sleep(0)
        if not first.done():
            with pytest.raises(Bug):
                await ledger.append([b"second"])
        await first
        await ledger.append([b"third"])
        assert [entry.body for entry in await ledger.read(0)] == [b"first", b"third"]
        await ledger.close()

    @in_a_loop
    async def test_reading_behind_the_end_says_that_the_end_is_lost(self, open_ledger: OpenLedger) -> None:
        ledger = open_ledger(NAME)
        await ledger.append([b"one"])
        with pytest.raises(LedgerCorrupt):
            await ledger.read(5)
        await ledger.close()

    # Several connections.

    @in_a_loop
    async def test_what_one_has_appended_all_read(self, open_ledger: OpenLedger) -> None:
        one, other = open_ledger(NAME), open_ledger(NAME)
        await one.append([b"one"])
        assert [entry.body for entry in await other.read(0)] == [b"one"]
        await other.append([b"other"])
        assert await one.read(0) == await other.read(0)
        await one.close()
        await other.append([b"after"])
        again = open_ledger(NAME)
        assert [entry.body for entry in await again.read(0)] == [b"one", b"other", b"after"]
        await again.close()
        await other.close()

    @in_a_loop
    async def test_appends_of_several_are_in_one_order_and_never_torn(self, open_ledger: OpenLedger) -> None:
        ledgers = [open_ledger(NAME) for _ in range(4)]
        said: dict[int, list[bytes]] = {}

        async def write(number: int, ledger: LedgerPort) -> None:
            for turn in range(12):
                bodies = [b"%d.%d.%d" % (number, turn, index) for index in range(1 + turn % 4)]
                first = await ledger.append(bodies)
                assert first not in said
                said[first] = bodies

        await asyncio.gather(*(write(number, ledger) for number, ledger in enumerate(ledgers)))
        expected = [body for first in sorted(said) for body in said[first]]
        for ledger in ledgers:
            entries = await read_all(ledger, count_max=7)
            assert [entry.body for entry in entries] == expected
            assert [entry.position for entry in entries] == sorted({entry.position for entry in entries})
            by_position = {entry.position: entry.body for entry in entries}
            for first, bodies in said.items():
                assert [by_position[first + index] for index in range(len(bodies))] == bodies
        for ledger in ledgers:
            await ledger.close()

    # Watching.

    @in_a_loop
    async def test_watchers_are_told_of_growth_by_anybody(self, open_ledger: OpenLedger) -> None:
        one, other = open_ledger(NAME), open_ledger(NAME)
        told: list[int] = []
        one.watch(told.append)
        for ledger in (one, other, one, other):
            first = await ledger.append([b"x", b"y"])
            await wait_heard(told, first + 1)
        assert told == sorted(told)
        await one.close()
        told.clear()
        await other.append([b"z"])
        await asyncio.sleep(0.05)
        assert told == []
        await other.close()

    # Checkpoints.

    @in_a_loop
    async def test_the_newest_checkpoint_stays(self, open_ledger: OpenLedger) -> None:
        one, other = open_ledger(NAME), open_ledger(NAME)
        await one.append([b"1", b"2", b"3"])
        await one.put_checkpoint(LedgerCheckpoint(1, b"state at 1"))
        assert await other.checkpoint() == LedgerCheckpoint(1, b"state at 1")
        await other.put_checkpoint(LedgerCheckpoint(3, b"state at 3"))
        await one.put_checkpoint(LedgerCheckpoint(2, b"state at 2"))
        assert await one.checkpoint() == LedgerCheckpoint(3, b"state at 3")
        assert len(await one.read(0)) == 3
        await one.close()
        await other.close()

    @in_a_loop
    async def test_a_large_checkpoint_reads_back(self, open_ledger: OpenLedger) -> None:
        ledger = open_ledger(NAME)
        await ledger.append([b"1"])
        body = bytes(range(256)) * 10_000
        await ledger.put_checkpoint(LedgerCheckpoint(1, body))
        assert await ledger.checkpoint() == LedgerCheckpoint(1, body)
        with pytest.raises(TooLarge):
            await ledger.put_checkpoint(LedgerCheckpoint(1, bytes(CHECKPOINT_BYTES_MAX + 1)))
        await ledger.close()

    @in_a_loop
    async def test_a_checkpoint_is_of_what_is_there(self, open_ledger: OpenLedger) -> None:
        ledger = open_ledger(NAME)
        await ledger.append([b"1"])
        for position in (0, 2):
            with pytest.raises(Bug):
                await ledger.put_checkpoint(LedgerCheckpoint(position, b""))
        await ledger.close()

    @in_a_loop
    async def test_a_cut_forgets_what_a_checkpoint_covers(self, open_ledger: OpenLedger) -> None:
        one, other = open_ledger(NAME), open_ledger(NAME)
        first = await one.append([b"1", b"2", b"3", b"4"])
        with pytest.raises(Bug):
            await one.cut(first)
        await one.put_checkpoint(LedgerCheckpoint(first + 1, b"state"))
        with pytest.raises(Bug):
            await one.cut(first + 2)
        await one.cut(first + 1)
        await one.cut(first)
        for ledger in (one, other):
            with pytest.raises(LedgerCut):
                await ledger.read(0)
            with pytest.raises(LedgerCut):
                await ledger.read(first)
            assert [entry.body for entry in await ledger.read(first + 1)] == [b"3", b"4"]
        assert await other.append([b"5"]) == first + 4
        assert [entry.body for entry in await one.read(first + 2)] == [b"4", b"5"]
        await one.close()
        await other.close()

    @in_a_loop
    async def test_positions_go_on_after_everything_was_cut(self, open_ledger: OpenLedger) -> None:
        ledger = open_ledger(NAME)
        first = await ledger.append([b"1", b"2"])
        await ledger.put_checkpoint(LedgerCheckpoint(first + 1, b"state"))
        await ledger.cut(first + 1)
        assert await ledger.read(first + 1) == []
        await ledger.close()
        again = open_ledger(NAME)
        assert await again.append([b"3"]) == first + 2
        assert [entry.body for entry in await again.read(first + 1)] == [b"3"]
        await again.close()

    # The end.

    @in_a_loop
    async def test_a_closed_ledger_takes_no_calls(self, open_ledger: OpenLedger) -> None:
        ledger = open_ledger(NAME)
        await ledger.append([b"1"])
        await ledger.close()
        await ledger.close()
        with pytest.raises(Bug):
            await ledger.append([b"2"])
        with pytest.raises(Bug):
            await ledger.read(0)
        with pytest.raises(Bug):
            await ledger.checkpoint()
        again = open_ledger(NAME)
        assert [entry.body for entry in await again.read(0)] == [b"1"]
        await again.close()
