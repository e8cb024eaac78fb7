"""Compiled agents beside interpreted ones whose handlers take long: records never wait for thousands of those."""

import asyncio
from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import pytest

from stigmergy.agents.codec import pack_envelope
from stigmergy.base.errors import NotRunning
from stigmergy.node.mailbox import STEP_NS
from stigmergy.shard.draft import Stepped
from stigmergy.shard.inputs import ColumnDelivery, Delivery
from stigmergy.shard.shard import Shard
from stigmergy.sim.node import SimNode
from tests.agents.meters import Counted, Seen
from tests.node.columns.stage import Hand, Radio, declare, play

ITEM_S = STEP_NS / 40 / 1_000_000_000
"""What an input of an interpreted agent takes here: forty fill a step."""


@pytest.fixture
def steps(monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, int]]:
    """Of each step: how many inputs of interpreted agents it took, and how many records. The former take time."""
    taken: list[tuple[int, int]] = []
    step = Shard.step

    def timed(self: Shard, inputs: Sequence[Any], now_ns: int) -> Stepped:
        items = sum(one.length for one in inputs if isinstance(one, Delivery))
        taken.append((items, sum(one.length for one in inputs if isinstance(one, ColumnDelivery))))
        asyncio.get_running_loop().pause(items * ITEM_S)  # type: ignore[attr-defined]
        return step(self, inputs, now_ns)

    monkeypatch.setattr(Shard, "step", timed)
    return taken


def test_records_are_stepped_and_acted_on_between_the_parts_of_an_envelope(steps: list[tuple[int, int]]) -> None:
    hand = Hand()

    async def scene(node: SimNode) -> None:
        node.latency.jitter = False
        live = await node.start()
        await live.enroll("Meter", ["a"])
        radio, seen = Radio(live), [("Board/main", Seen(level=1.0))]
        await live.deliver(pack_envelope("boards", seen * 200, sequence=1))
        steps.clear()
        kept = asyncio.ensure_future(live.deliver(pack_envelope("boards", seen * 1_000, sequence=201)))
        done_at: list[int] = []
        for _ in range(5):
            await radio.send(("a", Counted(by=100)))
            done_at.append(sum(items for items, _ in steps))
        print(done_at, steps)
        assert not kept.done()
        assert max(after - before for before, after in pairwise([0, *done_at])) <= 160, done_at
        await kept
        assert max(items for items, _ in steps) <= 80
        assert sum(items for items, _ in steps) == 1_000
        assert live.query("Meter/a").total == 500

    play(declare(hand), scene)


def test_after_a_crash_in_the_middle_of_an_envelope_the_rest_is_taken_once(steps: list[tuple[int, int]]) -> None:
    """The board tells the meter of each high level."""

    async def scene(node: SimNode) -> None:
        live = await node.start()
        await live.enroll("Meter", ["a"])
        high = [("Board/main", Seen(level=1_000.0))]
        await live.deliver(pack_envelope("boards", high * 200, sequence=1))
        await live.deliver(pack_envelope("boards", [("Board/main", Seen(level=1.0))], sequence=201))
        envelope = pack_envelope("boards", high * 1_000, sequence=202)
        kept = asyncio.ensure_future(live.deliver(envelope))
        while live.query("Board/main").levels != (1_000.0,) * 5:  # noqa: ASYNC110 - virtual time
            await asyncio.sleep(ITEM_S)
        assert not kept.done(), "a part of it is durable, and nobody was told of all of it"
        await node.kill()
        with pytest.raises(NotRunning):
            await kept
        live = await node.start()
        consumed = live.host.shards.first.state.marks.consumed("boards", 0)
        assert 201 < consumed < 1_201
        await live.deliver(envelope)
        await asyncio.sleep(60.0)
        assert live.query("Meter/a").total == 1_200 * 1_000

    play(declare(Hand()), scene)
