"""What runs on each machine of a simulated fleet beside its host and its bus: the one place where that is said.

A part that talks to other machines gets a mesh here. What it hears belongs to its machine, so that it is held up with
it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from contextvars import Context

from stigmergy.ports.mesh import Hear
from stigmergy.runtime.host import Host
from stigmergy.sim.network import Network, SimMesh
from stigmergy.sim.node import Part, SimNode

MakePart = Callable[[SimNode, Host, "OwnMesh"], Part]
"""Makes a part of a node at its start. Given the mesh of the node; who uses it opens and closes it."""


class OwnMesh(SimMesh):
    """A mesh whose datagrams are heard as a part of one machine."""

    def __init__(self, network: Network, node: str, bytes_max: int, context: Context) -> None:
        super().__init__(network, node, bytes_max)
        self._context = context

    async def open(self, hear: Hear) -> None:
        """Begins to listen."""
        loop, context = asyncio.get_running_loop(), self._context

        def pass_on(sender: str, body: bytes) -> None:
            loop.call_soon(hear, sender, body, context=context.copy())

        await super().open(pass_on)


def make_parts(makers: Sequence[MakePart], node: SimNode, host: Host, network: Network, context: Context) -> list[Part]:
    """The parts of a node that is about to start. Whoever was there before, under its name, is gone."""
    network.crash(node.name)
    mesh = OwnMesh(network, node.name, network._bytes_max, context)
    return [make(node, host, mesh) for make in makers]
