"""A small stage for tests of the runtime: one node in virtual time, and a fleet made for the test."""

from collections.abc import Awaitable, Callable, Sequence
from typing import TypeVar

from stigmergy.node.declaration import Declaration
from stigmergy.node.host import Host
from stigmergy.node.settings import Settings
from stigmergy.sim.node import NodeService, SimNode
from stigmergy.sim.run import Run

T = TypeVar("T")


def play(
    fleet: Declaration,
    main: Callable[[SimNode], Awaitable[T]],
    *,
    settings: Settings | None = None,
    in_memory: bool = False,
    in_segments: bool = False,
    seed: int = 1,
    shuffle: bool = False,
    agents: Sequence[str] = (),
    parts: Callable[[SimNode, Host], Sequence[NodeService]] | None = None,
) -> T:
    """Runs a scene on a node with this fleet. Afterwards the log must fold into what was in memory."""
    world = Run(seed, shuffle=shuffle)
    node = SimNode(
        world,
        lambda _: fleet,
        settings=settings,
        in_memory=in_memory,
        in_segments=in_segments,
        agents=agents,
        parts=parts,
    )

    async def scene() -> T:
        result = await main(node)
        if node.live is not None:
            await node.stop()
        return result

    result = world.run(scene())
    assert not node.logbook.findings
    return result
