"""Memory that a sender goes on to use: what was stepped is what is written."""

from __future__ import annotations

import asyncio

import pytest

from stigmergy import Agent, Event, Fleet, evolve, within
from stigmergy.sim.node import SimNode
from tests.node.columns.stage import Radio, play


class Dripped(Event, keep=within(seconds=1)):
    drops: int


class Bucket(Agent):
    drops: int = 0

    @evolve
    def dripped(self, event: Dripped) -> None:
        self.drops += event.drops


def test_a_sender_that_waits_no_longer_may_use_its_memory_again() -> None:
    # The real engine: it keeps records where they lie, which the plain one does not.
    fleet = Fleet("buckets", agents=[Bucket], compiled=True)
    fleet.prepare(lambda _: None)

    async def scene(node: SimNode) -> None:
        live = await node.start()
        await live.enroll("Bucket", ["a"])
        batch = Radio(live, kind="Bucket").batch(("a", Dripped(drops=3)), ("a", Dripped(drops=4)))
        memory = bytearray(batch)
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(live.host.columns.deliver(memoryview(memory)), 0.2)
        memory[-16:] = b"\xff" * 16
        await asyncio.sleep(2.0)
        assert live.query("Bucket/a").drops == 7
        await node.stop()
        live = await node.start()
        assert live.query("Bucket/a").drops == 7

    play(fleet, scene)
