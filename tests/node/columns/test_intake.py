"""Neighbours in the mailbox become one delivery: nothing changes its order, and everybody is told."""

from __future__ import annotations

import asyncio
import random
from typing import Any

import pytest
from msgspec import structs

from stigmergy.node.column_intake import JOINED_BYTES_MAX, SMALL_BYTES, join_queued
from stigmergy.node.mailbox import Queued
from stigmergy.shard.inputs import ColumnDelivery, EnrollAgents, SequencesSkipped
from stigmergy.shard.state import Limits
from stigmergy.sim.node import SimNode
from tests.agents.meters import Counted
from tests.node.columns.stage import Hand, Radio, Told, declare, play

WIDTH = 16


def letter(sequence: int, count: int = 1, /, **changed: Any) -> Queued:
    records = b"".join(number.to_bytes(WIDTH, "little") for number in range(sequence, sequence + count))
    delivery = ColumnDelivery("radio", "Meter", b"l" * 16, 1, b"c" * 8, records, count, sequence, 1, 0)
    shard = changed.pop("shard", 0)
    return Queued(shard, structs.replace(delivery, **changed), (Told(),), 1, len(records) + 100)


def flat(letters: list[Queued]) -> list[Any]:
    """What the shards would see, record by record."""
    seen: list[Any] = []
    for one in letters:
        if isinstance(one.input, ColumnDelivery):
            whole = one.input
            for number in range(whole.start, whole.count):
                record = whole.records[number * WIDTH : (number + 1) * WIDTH]
                sequence = whole.sequence and whole.sequence + number - whole.start
                seen.append((one.shard, whole.source, whole.incarnation, whole.epoch, whole.kind, sequence, record))
        else:
            seen.append((one.shard, one.input))
    return seen


def test_what_follows_each_other_becomes_one_with_the_tickets_of_all() -> None:
    letters = [letter(1, 3), letter(4, 2), letter(6)]
    (joined,) = join_queued(letters)
    assert isinstance(joined.input, ColumnDelivery)
    assert (joined.input.sequence, joined.input.count) == (1, 6)
    assert joined.tickets == tuple(ticket for one in letters for ticket in one.tickets)
    assert joined.items == 3
    assert joined.size_bytes == sum(one.size_bytes for one in letters)
    assert flat([joined]) == flat(letters)


@pytest.mark.parametrize(
    "changed",
    [
        {"sequence": 5},
        {"sequence": 3},
        {"sequence": 0},
        {"source": "other"},
        {"incarnation": 2},
        {"epoch": 1},
        {"kind": "Horn"},
        {"layout": b"m" * 16},
        {"generation": 2},
        {"check": b"d" * 8},
        {"start": 1},
        {"shard": 1},
    ],
)
def test_what_does_not_follow_stays_alone(changed: dict[str, Any]) -> None:
    letters = [letter(1, 3), letter(4, 2, **changed)]
    assert join_queued(letters) == letters


def test_unnumbered_ones_are_joined_to_each_other() -> None:
    unnumbered: dict[str, Any] = {"sequence": 0}
    letters = [letter(1, 1, **unnumbered), letter(2, 1, **unnumbered)]
    (joined,) = join_queued(letters)
    assert flat([joined]) == flat(letters)


def test_the_rest_of_one_goes_on_with_what_follows_it() -> None:
    rest = letter(1, 5)
    assert isinstance(rest.input, ColumnDelivery)
    rest.input = structs.replace(rest.input, start=3, sequence=4)
    letters = [rest, letter(6, 2)]
    (joined,) = join_queued(letters)
    assert isinstance(joined.input, ColumnDelivery)
    assert (joined.input.start, joined.input.count, joined.input.length) == (3, 7, 4)
    assert flat([joined]) == flat(letters)


def test_large_ones_are_left_alone_and_a_join_has_its_limit() -> None:
    large = SMALL_BYTES // WIDTH + 1
    letters = [letter(1), letter(2, large), letter(2 + large)]
    assert join_queued(letters) == letters
    count = 3_000
    many = [letter(1 + number * count, count) for number in range(20)]
    joined = join_queued(many)
    assert 1 < len(joined) < 20
    assert all(one.size_bytes <= JOINED_BYTES_MAX for one in joined)
    assert flat(joined) == flat(many)


@pytest.mark.parametrize("seed", range(50))
def test_whatever_comes_together_the_order_of_nothing_changes(seed: int) -> None:
    chance = random.Random(seed)
    nexts: dict[tuple[int, str], int] = {}
    letters: list[Queued] = []
    for _ in range(60):
        if chance.random() < 0.1:
            others: list[Any] = [EnrollAgents("Meter", ["x"]), SequencesSkipped("radio", 1, 0, 9, "lost")]
            letters.append(Queued(0, chance.choice(others)))
            continue
        shard, source = chance.randrange(2), chance.choice(["radio", "other"])
        sequence, count = nexts.get((shard, source), 1), chance.randint(1, 4)
        if chance.random() < 0.1:
            sequence = max(1, sequence - 1)
        nexts[shard, source] = sequence + count
        letters.append(letter(sequence, count, shard=shard, source=source))
    joined = join_queued(letters)
    assert flat(joined) == flat(letters)
    assert [ticket for one in joined for ticket in one.tickets] == [t for one in letters for t in one.tickets]
    assert sum(one.items for one in joined) == sum(one.items for one in letters)


def test_a_join_that_fills_several_commits_tells_everybody_once_it_is_all_there() -> None:
    """More records than a commit has room for: the rest is put back, tickets and all."""

    async def scene(node: SimNode) -> None:
        live = await node.start()
        await live.enroll("Meter", ["a"])
        before = live.host.shards.first.state.position
        radio = Radio(live)
        sent = [radio.send(*(("a", Counted(by=1)) for _ in range(100))) for _ in range(120)]
        await asyncio.gather(*sent)
        assert live.query("Meter/a").total == 12_000
        assert live.host.shards.first.state.position > before + 1, "else nothing was left over"

    play(declare(Hand()), scene, limits=Limits(columns_bytes_max=256 * 1024))
