"""Scenes with one node and one outsider on a broker, and the messages that the outsider sends."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

from stigmergy.bus.memory import MemoryBroker
from stigmergy.control.live import Live
from stigmergy.node.declaration import Declaration
from stigmergy.node.settings import Settings
from stigmergy.sim.node import SimNode
from stigmergy.sim.run import Run
from tests.node.fleets import Monitor, Outsider, cloud

COMMANDS = "delivery/local/agents/Drone/1/commands"
INPUTS = "delivery/local/agents/Drone/1/inputs"
BATTERY = "delivery/local/agents/Drone/1/events/battery"


def play(
    fleet: Callable[[SimNode], Declaration],
    main: Callable[[SimNode, Live, Outsider], Awaitable[None]],
    settings: Settings | None = None,
    agents: tuple[str, ...] = (),
) -> None:
    """Runs a scene with one node and one outsider on a broker."""
    world = Run(1)
    broker = MemoryBroker()
    node = SimNode(world, fleet, name="node", in_memory=True, broker=broker, settings=settings, agents=agents)

    async def scene() -> None:
        outsider = await Outsider(broker).start()
        live = await node.start()
        await asyncio.sleep(0.1)
        await main(node, live, outsider)
        if node.live is not None:
            await node.stop()
        await outsider.bus.close()

    world.run(scene())
    assert not node.logbook.findings


def counter(live: Live, name: str) -> int:
    return live.standing().counters[name]


def numbered(number: int, /, **attributes: Any) -> dict[str, Any]:
    numbers = {"sequence": str(number), "incarnation": "7", "epoch": "1"}
    return cloud("Measured@1", {"number": number}) | {"id": str(number)} | numbers | attributes


def heard(live: Live) -> tuple[int, ...]:
    return live.query("Monitor/1", Monitor).numbers
