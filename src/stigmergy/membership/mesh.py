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
"""Every mesh carries bodies of at least this size."""
PACKET_BYTES = 1024
"""Fits into one IPv6 packet on any path, with names and a seal: the usual size of meshes on a network."""
NODE_NAME_BYTES_MAX = 64
CONTACT_BYTES_MAX = 128
_NODE_NAME = re.compile(r"[A-Za-z0-9_.-]{1,64}", re.ASCII)

Hear = Callable[[str, bytes], None]
"""Receives a datagram: the name of its sender, as the datagram has it, and the body. Called on the event loop.

It must not wait, and it may send. Never called from within `send_nowait`. An exception in it is a bug of ours: it goes
to the loop's exception handler, the datagram is lost, and the mesh goes on.
"""


class MeshCounters(Struct):
    """Traffic of a mesh since it was made. Bytes are those of bodies."""

    sent_count: int = 0
    sent_bytes: int = 0
    received_count: int = 0
    """Given to `hear`."""
    received_bytes: int = 0
    dropped_count: int = 0
    """Not sent: no address of the node is known, the link is down, or the mesh is not open."""
    overflowed_count: int = 0
    """Not sent, because a queue was full: the oldest was dropped."""
    refused_count: int = 0
    """Arrived and not given to `hear`: not our datagram, not for us, too large, or not from its claimed sender."""


class Mesh(Protocol):
    """Sends datagrams to other nodes and receives theirs.

    Ordering: none. A later datagram may arrive earlier, also between the same two nodes.
    Loss: any datagram may be lost, and nobody is told. One that cannot be sent is dropped and counted.
    Duplication: any datagram may arrive more than once, also long after it was sent, or after its sender restarted
        under the same name.
    Integrity: a body arrives complete or not at all. Beyond that a mesh promises nothing: bytes may be damaged and
        names forged, unless the adapter says otherwise. Readers check or verify what matters.
    Size: bodies of 0 to `bytes_max` bytes, which is BYTES_MIN or more.
    Concurrency: one event loop. `send_nowait` may be called from anywhere on it, from within `hear` too.
    Bounds: datagrams that cannot leave at once wait in a short queue; when that is full, the oldest is dropped and
        counted: in gossip the newest says most.
    Errors: TooLarge and Malformed from `send_nowait`, for what could never be sent: fix the caller. ConfigError from
        `open` if the node's own address is not available; Bug if it is opened twice. Nothing else is raised, whatever
        the network does.
    """

    @property
    def node(self) -> str:
        """This node's name: 1 to 64 letters, digits, `_`, `-`, `.`. No two nodes of a mesh may have the same."""
        ...

    @property
    def bytes_max(self) -> int:
        """The longest body. It does not change."""
        ...

    @property
    def contact(self) -> str:
        """The address that others pass on to reach this node; known once the mesh is open.

        At most CONTACT_BYTES_MAX bytes. Empty if a name is enough.
        """
        ...

    @property
    def counters(self) -> MeshCounters: ...

    async def open(self, hear: Hear) -> None:
        """Starts listening. Call it once; when it returns, datagrams to this node may arrive."""
        ...

    def send_nowait(self, to: str, body: bytes) -> None:
        """Sends a datagram and forgets it. To itself, to unknown nodes, or while not open: dropped and counted."""
        ...

    def introduce(self, node: str, contact: str) -> None:
        """Tells how a node can be reached, as heard from others. A hint; a mesh may ignore it."""
        ...

    async def close(self) -> None:
        """Closes the mesh. Waiting datagrams may be lost; `hear` is not called any more. Closing twice does nothing."""
        ...


def is_node_name(name: object) -> bool:
    """Whether this is a valid name of a node."""
    return isinstance(name, str) and _NODE_NAME.fullmatch(name) is not None


def check_datagram(to: str, body: bytes, bytes_max: int) -> None:
    """Raises Malformed or TooLarge unless this could be sent. Every mesh calls it first."""
    if _NODE_NAME.fullmatch(to) is None:
        raise Malformed(f"no node can be called {to!r}: a name is 1 to 64 letters, digits, '_', '-' and '.'")
    if len(body) > bytes_max:
        raise TooLarge(f"a datagram of {len(body)} bytes to {to}, at most {bytes_max}; send less, or several")


# A mesh without peers: for a node without a bus or a mesh, whose own agents still share fields.

BYTES_MAX = 64 * 1024


class NullMesh:
    """The Mesh port of a node without peers. Everything sent is dropped and counted."""

    contact = ""

    def __init__(self, node: str) -> None:
        self.node = node
        self.bytes_max = BYTES_MAX
        self.counters = MeshCounters()

    async def open(self, hear: Hear) -> None:
        """Nothing to listen to."""

    def send_nowait(self, to: str, body: bytes) -> None:
        """Drops and counts it."""
        check_datagram(to, body, self.bytes_max)
        self.counters.dropped_count += 1

    def introduce(self, node: str, contact: str) -> None:
        """Does nothing."""

    async def close(self) -> None:
        """Does nothing."""


# Several users of one mesh: a byte before each body is the channel. Membership and anti-entropy share one this way.
#
#     channels = MeshChannels(mesh)
#     membership = Membership(channels.channel(MEMBERSHIP), …)      # each channel is a Mesh
#     replicas = Replicas(channels.channel(REPLICAS), …)
#     await channels.close()                                        # and the mesh with it

MEMBERSHIP = 1
REPLICAS = 2
CHANNELS_MAX = 16
"""Channels are numbered from 0 to one less than this."""


class MeshChannels:
    """A mesh and its channels. The first channel that is opened opens the mesh."""

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
    """One channel: the Mesh port, a byte smaller than the mesh below, which also counts waiting datagrams."""

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
        """The mesh's contact."""
        return self._channels.mesh.contact

    async def open(self, hear: Hear) -> None:
        """Starts receiving on this channel."""
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
        """Passes the hint to the mesh."""
        self._channels.mesh.introduce(node, contact)

    async def close(self) -> None:
        """Receives nothing more. The mesh stays open for the other channels."""
        self._was_opened = True
        self._hear = None
        self._channels._leave(self)

    def _heard(self, sender: str, body: bytes) -> None:
        if self._hear is not None:
            self.counters.received_count += 1
            self.counters.received_bytes += len(body)
            self._hear(sender, body)
