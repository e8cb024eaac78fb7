"""What batched hands are owed is in snapshots, and a node that has failed begins nothing more of it."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from stigmergy import Snapshots
from stigmergy.base.errors import JournalUnknown
from stigmergy.node.column_actuators import Orders
from stigmergy.sim.disk import DiskFault
from stigmergy.sim.node import SimNode
from tests.agents.meters import Counted, Glimpsed
from tests.node.columns.stage import Radio, declare, play


class Slow:
    """A hand that does not return before it may."""

    def __init__(self) -> None:
        self.go = asyncio.Event()
        self.begun: list[list[tuple[str, int]]] = []

    async def __call__(self, orders: Orders[Any]) -> None:
        self.begun.append([(order.key, order.sequence) for order in orders])
        await self.go.wait()


def test_what_is_owed_comes_again_also_from_a_snapshot() -> None:
    hand = Slow()

    async def beep(orders: Orders[Any]) -> None:
        await hand(orders)

    async def scene(node: SimNode) -> None:
        live = await node.start()
        await live.enroll("Meter", ["a"])
        radio = Radio(live)
        await radio.send(("a", Glimpsed(level=1.0)), ("a", Glimpsed(level=2.0)))
        for _ in range(20):
            await radio.send(("a", Counted(by=1)))
            await asyncio.sleep(0.1)
        assert live.standing().counters["snapshots"] >= 1
        await node.kill()
        live = await node.start()
        assert live.recovered.snapshots, "it started from one"
        await asyncio.sleep(0.1)
        first, again = hand.begun
        assert first == again
        assert [sequence for _, sequence in again] == [1, 2]
        hand.go.set()
        await asyncio.sleep(2.0)
        assert live.host.shards.first.state.blocks.count == 0

    play(
        declare(beep),
        scene,
        snapshots=Snapshots(every_events=5, every_s=0.5, tail_ratio=0.0),
        effect_within_s=1000.0,
    )


def test_a_node_that_has_failed_begins_no_block() -> None:
    hand = Slow()

    async def beep(orders: Orders[Any]) -> None:
        await hand(orders)

    async def scene(node: SimNode) -> None:
        live = await node.start()
        await live.enroll("Meter", ["a"])
        radio = Radio(live)
        await radio.send(("a", Glimpsed(level=1.0)))
        await radio.send(("a", Glimpsed(level=2.0)))
        node.disk.fail(node.disk.calls + 1, DiskFault.EIO)
        with pytest.raises(JournalUnknown):
            await radio.send(("a", Glimpsed(level=3.0)))
        hand.go.set()
        await asyncio.sleep(1.0)
        assert [[sequence for _, sequence in block] for block in hand.begun] == [[1]]
        await node.kill()

    play(declare(beep), scene, effect_within_s=1000.0)
