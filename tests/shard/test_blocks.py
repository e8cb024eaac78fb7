"""Blocks of batched actions: numbered without a gap, confirmed in order, owed until then."""

from __future__ import annotations

import pytest

from stigmergy.agents.columns import ACTION_HEAD_BYTES, ColumnRun
from stigmergy.shard.draft import COLUMNS_REST_BYTES, OVERHEAD_BYTES
from stigmergy.shard.outbox import BLOCK_INDEX, Block, Blocks
from stigmergy.shard.state import COLUMNS_BYTES_BOUNDS


def run(kind: str, first: int, count: int) -> ColumnRun:
    return ColumnRun(kind, b"l", 1, "s", 1, b"r", b"t", first, count, bytes(count))


@pytest.fixture
def blocks() -> Blocks:
    """Three blocks of meters, one of gauges."""
    owed = Blocks()
    owed.owe(9, 1, 0, run("Meter", 1, 3))
    owed.owe(9, 1, 3, run("Meter", 4, 2))
    owed.owe(9, 2, 0, run("Gauge", 1, 1))
    owed.owe(9, 3, 0, run("Meter", 6, 1))
    return owed


def test_actions_are_numbered_from_one(blocks: Blocks) -> None:
    assert Blocks().next_sequence("Meter") == 1
    assert (blocks.next_sequence("Meter"), blocks.next_sequence("Gauge"), blocks.count) == (7, 2, 7)
    assert [(one.kind, one.first, one.position, one.index) for one in blocks.owed()] == [
        ("Gauge", 1, 2, 0),
        ("Meter", 1, 1, 0),
        ("Meter", 4, 1, 3),
        ("Meter", 6, 3, 0),
    ]
    assert Blocks().owe(9, 1, 5, run("Meter", 1, 2)) == Block(9, 1, 5, "Meter", b"t", 1, 2, bytes(2))


def test_a_block_is_owed_until_its_last_action_is_confirmed(blocks: Blocks) -> None:
    blocks.confirm("Meter", 2)
    assert (blocks.cursor("Meter"), blocks.count) == (2, 7)
    blocks.confirm("Meter", 3)
    assert (blocks.cursor("Meter"), blocks.count) == (3, 4)
    blocks.confirm("Meter", 1)
    assert blocks.cursor("Meter") == 3, "it never goes back"
    blocks.confirm("Meter", 6)
    assert [one.kind for one in blocks.owed()] == ["Gauge"]
    assert blocks.count == 1
    blocks.confirm("Nobody", 5)
    assert blocks.count == 1


def test_what_earlier_commits_owe(blocks: Blocks) -> None:
    assert [blocks.sent_before("Meter", position) for position in (1, 2, 3, 4)] == [0, 5, 5, 6]
    assert blocks.sent_before("Gauge", 2) == 0
    assert blocks.sent_before("Nobody", 9) == 0
    blocks.confirm("Meter", 5)
    assert blocks.sent_before("Meter", 3) == 5


def test_what_later_commits_owe(blocks: Blocks) -> None:
    assert [blocks.count_after(position) for position in (0, 1, 2, 3)] == [7, 2, 1, 0]


def test_retention_stops_before_the_oldest_that_is_owed(blocks: Blocks) -> None:
    assert Blocks().lowest_position() is None
    assert blocks.lowest_position() == 1
    blocks.confirm("Meter", 5)
    assert blocks.lowest_position() == 2
    blocks.confirm("Gauge", 1)
    assert blocks.lowest_position() == 3
    blocks.confirm("Meter", 6)
    assert blocks.lowest_position() is None


def test_a_snapshot_holds_all_of_it(blocks: Blocks) -> None:
    blocks.confirm("Meter", 4)
    again = Blocks()
    again.owe(1, 1, 0, run("Other", 1, 4))
    again.restore(blocks.sent(), list(blocks.owed()))
    assert (list(again.owed()), again.sent(), again.count) == (list(blocks.owed()), blocks.sent(), blocks.count)
    assert again.sent() == [("Gauge", 1, 0), ("Meter", 6, 4)]
    assert (again.next_sequence("Meter"), again.cursor("Meter"), again.next_sequence("Other")) == (7, 4, 1)
    again.confirm("Meter", 6)
    assert [one.kind for one in again.owed()] == ["Gauge"]


def test_their_ids_are_nobody_elses() -> None:
    # The largest commit has room for no more actions than there are ids behind BLOCK_INDEX, and below 2**20.
    actions_count_max = COLUMNS_BYTES_BOUNDS[1] // ACTION_HEAD_BYTES
    assert BLOCK_INDEX + actions_count_max <= 2**20
    assert (COLUMNS_BYTES_BOUNDS[1] + COLUMNS_REST_BYTES) // OVERHEAD_BYTES <= BLOCK_INDEX, "nor of ordinary effects"
