"""A shared field is taken out of a class, a snapshot is made without it, and it comes back."""

from __future__ import annotations

import asyncio

import pytest

from stigmergy.base.errors import FoldMismatch
from stigmergy.node.declaration import Declaration
from stigmergy.node.settings import Retention, Settings, Snapshots
from stigmergy.sim.node import SimNode
from stigmergy.sim.run import Run
from tests.shard.test_brought_back import GATE, Arrived, First, Without, back


def declared(agent: type) -> Declaration:
    return Declaration("gates", agents=[agent])


@pytest.mark.parametrize("dropped", [False, True])
def test_its_numbers_go_on_or_the_node_does_not_start(dropped: bool) -> None:
    keep_s = 0.0 if dropped else 1e9
    settings = Settings(
        snapshots=Snapshots(every_events=1, every_s=1e9, tail_ratio=0.0, share_max=1.0, incremental_max=0),
        retention=Retention(keep_s=keep_s, reserve_bytes=0, check_every_s=0.1),
        drain_s=1.0,
    )
    world = Run(5)

    async def main() -> None:
        node = SimNode(world, lambda _: declared(First), settings=settings)
        for version, vehicle in ((First, "V-1"), (Without, "V-2"), (Without, "V-3")):
            node.change_declaration(declared(version))
            live = await node.start()
            await live.observe(GATE, Arrived(vehicle=vehicle))
            await asyncio.sleep(2.0)
            assert live.host.journal.snapshots(0)
            await node.stop()
        node.change_declaration(declared(back()))
        if dropped:
            with pytest.raises(FoldMismatch, match="seen is shared and was not there"):
                await node.start()
            return
        live = await node.start()
        await live.observe(GATE, Arrived(vehicle="V-4"))
        gate = live.query(GATE)
        assert list(gate.seen) == ["V-1", "V-4"]
        assert [counter for _, counter in gate.seen.store.context.vector()] == [2]
        await node.stop()

    world.run(main())
