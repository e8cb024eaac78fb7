"""Several users of one mesh: a byte in front of each body says whose it is. Membership and anti-entropy share one so.

channels = MeshChannels(mesh)
membership = Membership(channels.channel(MEMBERSHIP), …)      # each channel is a Mesh
replicas = Replicas(channels.channel(REPLICAS), …)
await channels.close()                                        # and the mesh with it
"""

from __future__ import annotations

import asyncio

from stigmergy.core.errors import Bug
from stigmergy.ports.mesh import BYTES_MIN, Hear, Mesh, MeshCounters, check_datagram

MEMBERSHIP = 1
REPLICAS = 2
CHANNELS_MAX = 16
"""Channels have numbers from 0 to one less than this."""


class MeshChannels:
    """A mesh, and who hears what on it. The first channel that is opened opens the mesh."""

    def __init__(self, mesh: Mesh) -> None:
        if mesh.bytes_max <= BYTES_MIN:
            raise Bug(f"a mesh of {mesh.bytes_max} bytes cannot be shared: a channel needs {BYTES_MIN} for itself")
        self.mesh = mesh
        self._hearers: dict[int, ChannelMesh] = {}
        self._opening = asyncio.Lock()
        self._is_open = False

    def channel(self, number: int) -> ChannelMesh:
        """A mesh of its own for whoever has this number."""
        if not 0 <= number < CHANNELS_MAX:
            raise Bug(f"channel {number}: there are 0 to {CHANNELS_MAX - 1}")
        return ChannelMesh(self, number)

    async def close(self) -> None:
        """Closes the mesh, for all channels."""
        self._hearers.clear()
        await self.mesh.close()

    async def _enter(self, channel: ChannelMesh) -> None:
        if channel.number in self._hearers:
            raise Bug(f"channel {channel.number} of {self.mesh.node} is taken")
        self._hearers[channel.number] = channel
        async with self._opening:
            if not self._is_open:
                await self.mesh.open(self._heard)
                self._is_open = True

    def _leave(self, channel: ChannelMesh) -> None:
        if self._hearers.get(channel.number) is channel:
            del self._hearers[channel.number]

    def _heard(self, sender: str, body: bytes) -> None:
        hearer = self._hearers.get(body[0]) if body else None
        if hearer is None:
            self.mesh.counters.refused_count += 1
        else:
            hearer._heard(sender, body[1:])


class ChannelMesh:
    """One channel: the Mesh port, a byte smaller than the mesh below. What waits to be sent is counted down there."""

    def __init__(self, channels: MeshChannels, number: int) -> None:
        self.number = number
        self.node = channels.mesh.node
        self.bytes_max = channels.mesh.bytes_max - 1
        self.counters = MeshCounters()
        self._channels = channels
        self._front = bytes([number])
        self._hear: Hear | None = None
        self._was_opened = False

    @property
    def contact(self) -> str:
        """How others reach this node."""
        return self._channels.mesh.contact

    async def open(self, hear: Hear) -> None:
        """Begins to hear what is sent on this channel."""
        if self._was_opened:
            raise Bug(f"channel {self.number} of {self.node} was opened before; make another one")
        self._was_opened = True
        await self._channels._enter(self)
        self._hear = hear

    def send_nowait(self, to: str, body: bytes) -> None:
        """Sends to the same channel of another node."""
        check_datagram(to, body, self.bytes_max)
        if self._hear is None or to == self.node:
            self.counters.dropped_count += 1
            return
        below = self._channels.mesh.counters
        dropped, overflowed = below.dropped_count, below.overflowed_count
        self._channels.mesh.send_nowait(to, self._front + body)
        self.counters.overflowed_count += below.overflowed_count - overflowed
        if below.dropped_count > dropped:
            self.counters.dropped_count += 1
        else:
            self.counters.sent_count += 1
            self.counters.sent_bytes += len(body)

    def introduce(self, node: str, contact: str) -> None:
        """Hands the hint down."""
        self._channels.mesh.introduce(node, contact)

    async def close(self) -> None:
        """Hears nothing more. The mesh below stays open for the others."""
        self._was_opened = True
        self._hear = None
        self._channels._leave(self)

    def _heard(self, sender: str, body: bytes) -> None:
        if self._hear is not None:
            self.counters.received_count += 1
            self.counters.received_bytes += len(body)
            self._hear(sender, body)
