"""The mesh port: small datagrams between nodes that know each other by name. Nothing about it is reliable.

Gossip (anti-entropy, membership) needs no more: it repeats itself and relies on nothing. A mesh never retries, never
waits and keeps only a short queue. If you need an answer, ask again.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable
from typing import Protocol

from msgspec import Struct

from stigmergy.base.errors import Bug, Malformed, TooLarge

BYTES_MIN = 1000
"""Every mesh carries bodies of so many bytes."""
PACKET_BYTES = 1024
"""What fits into one packet of IPv6 on any path, with names and a seal: the usual size of meshes on a network."""
NODE_NAME_BYTES_MAX = 64
CONTACT_BYTES_MAX = 128
_NODE_NAME = re.compile(r"[A-Za-z0-9_.-]{1,64}", re.ASCII)

Hear = Callable[[str, bytes], None]
"""Takes what came: the name of its sender, as the datagram has it, and the body. Called on the event loop.

It must not wait, and it may send. Never called from within `send_nowait`. What it raises is our own bug: the loop's
exception handler is told, the datagram is gone, and the mesh goes on.
"""


class MeshCounters(Struct):
    """What went through a mesh since it was made. Bytes are those of bodies."""

    sent_count: int = 0
    sent_bytes: int = 0
    received_count: int = 0
    """Given to `hear`."""
    received_bytes: int = 0
    dropped_count: int = 0
    """Asked to send and not sent: no way to the node is known, the link is down, it is not open."""
    overflowed_count: int = 0
    """Asked to send and not sent, because a queue was full: the oldest had to go."""
    refused_count: int = 0
    """Arrived and not given to `hear`: not a datagram of ours, not for us, too large, or not from whom it says."""


class Mesh(Protocol):
    """This node's way to the others.

    Ordering: none. What is sent later may arrive earlier, also between the same two nodes.
    Loss: any datagram may be lost, and nobody is told. One that cannot be sent is dropped and counted.
    Duplication: any datagram may arrive more than once, and also long after it was sent, or after its sender restarted
        under the same name.
    Integrity: a body arrives whole or not at all. Beyond that a mesh promises nothing: bytes may be damaged and names
        forged, unless the adapter says otherwise. What matters is signed, or checked by its reader.
    Size: bodies of 0 to `bytes_max` bytes, which is BYTES_MIN or more.
    Concurrency: one event loop. `send_nowait` may be called from anywhere on it, from within `hear` too.
    Bounds: what cannot leave at once waits in a short queue; when that is full, the oldest is dropped and counted:
        in gossip the newest says most.
    Errors: TooLarge and Malformed from `send_nowait`, for what could never be sent: mend the caller. ConfigError from
        `open` when the node's own place cannot be had; Bug when it is opened twice. Nothing else is raised, whatever
        the network does.
    """

    @property
    def node(self) -> str:
        """This node's name: 1 to 64 letters, digits, `_`, `-`, `.`. No two nodes of a mesh may have the same."""
        ...

    @property
    def bytes_max(self) -> int:
        """The longest body. It is the same for as long as the mesh lives."""
        ...

    @property
    def contact(self) -> str:
        """How others reach this node, for them to hand on; known once the mesh is open.

        At most CONTACT_BYTES_MAX bytes. Empty where a name is enough.
        """
        ...

    @property
    def counters(self) -> MeshCounters:
        """What went through; for people."""
        ...

    async def open(self, hear: Hear) -> None:
        """Begins to listen. Once in the life of a mesh; when it returns, what is sent to this node may be heard."""
        ...

    def send_nowait(self, to: str, body: bytes) -> None:
        """Sends a datagram and forgets it. To itself, to strangers, or while not open: dropped and counted."""
        ...

    def introduce(self, node: str, contact: str) -> None:
        """Says how a node can be reached, as heard from others. A hint, which a mesh that needs none ignores."""
        ...

    async def close(self) -> None:
        """Ends it. What waits to be sent may be lost; `hear` is not called any more. Closing twice does nothing."""
        ...


def is_node_name(name: object) -> bool:
    """Whether a node may be called so."""
    return isinstance(name, str) and _NODE_NAME.fullmatch(name) is not None


def check_datagram(to: str, body: bytes, bytes_max: int) -> None:
    """Raises Malformed or TooLarge unless this could be sent. Every mesh calls it first."""
    if _NODE_NAME.fullmatch(to) is None:
        raise Malformed(f"no node can be called {to!r}: a name is 1 to 64 letters, digits, '_', '-' and '.'")
    if len(body) > bytes_max:
        raise TooLarge(f"a datagram of {len(body)} bytes to {to}, at most {bytes_max}; say less, or in several")


# A mesh without peers: for a node without a bus or a mesh, whose own agents still share fields.

BYTES_MAX = 64 * 1024


class NullMesh:
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


# Several users of one mesh: a byte before each body says whose it is. Membership and anti-entropy share one this way.
#
#     channels = MeshChannels(mesh)
#     membership = Membership(channels.channel(MEMBERSHIP), …)      # each channel is a Mesh
#     replicas = Replicas(channels.channel(REPLICAS), …)
#     await channels.close()                                        # and the mesh with it

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
        """A separate mesh for the user with this number."""
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
