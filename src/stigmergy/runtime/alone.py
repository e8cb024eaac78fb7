"""A mesh with nobody on it: for a node without a bus or a mesh, whose own agents share fields all the same."""

from __future__ import annotations

from stigmergy.ports.mesh import Hear, MeshCounters, check_datagram

BYTES_MAX = 64 * 1024


class Alone:
    """The Mesh port of a node that has no way to others. Whatever is sent is dropped and counted."""

    contact = ""

    def __init__(self, node: str) -> None:
        self.node = node
        self.bytes_max = BYTES_MAX
        self.counters = MeshCounters()

    async def open(self, hear: Hear) -> None:
        """There is nothing to listen to."""

    def send_nowait(self, to: str, body: bytes) -> None:
        """Nobody is there."""
        check_datagram(to, body, self.bytes_max)
        self.counters.dropped_count += 1

    def introduce(self, node: str, contact: str) -> None:
        """Nobody can be reached."""

    async def close(self) -> None:
        """There is nothing to end."""
