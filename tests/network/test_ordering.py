"""What comes early waits as long as it is said, also where nothing else happens meanwhile."""

from __future__ import annotations

import asyncio

from stigmergy import Fleet, Settings
from stigmergy.agents.codec import Envelope, encode
from stigmergy.control.live import Live
from stigmergy.sim.node import SimNode
from stigmergy.sim.run import Run
from tests.agents.meters import Board, Counted, Meter, meter_engine
from tests.agents.plain_table import compiled
from tests.node.columns.stage import Radio


def waited(early: str) -> float:
    """How long an early delivery of this kind takes, in seconds, with everybody else silent."""
    world = Run(1)
    fleet = Fleet("meters", agents=[Meter, Board])
    if early == "batch":
        fleet.plans["Meter"] = compiled(meter_engine())
    node = SimNode(world, lambda _: fleet, settings=Settings(gap_wait_s=2.0))

    def deliver(live: Live) -> asyncio.Future[None]:
        if early == "batch":
            return Radio(live).send(("a", Counted(by=1)), sequence=5)
        item = ("Meter/a", encode(Counted(by=1)))
        return live.host.intake.deliver(encode(Envelope(1, "radio", 1, 0, 5, [item])))

    async def scene() -> float:
        live = await node.start()
        if early == "batch":
            await live.enroll("Meter", ["a"])
        await asyncio.sleep(0.1)
        begun = asyncio.get_running_loop().time()
        await deliver(live)
        took = asyncio.get_running_loop().time() - begun
        await node.stop()
        return took

    return world.run(scene())


def test_an_early_batch_waits_no_longer_than_it_has_to() -> None:
    assert 2.0 <= waited("batch") < 2.1


def test_an_early_envelope_waits_no_longer_than_it_has_to() -> None:
    assert 2.0 <= waited("envelope") < 2.1
