"""The mesh port: small datagrams between nodes that know each other by name. Nothing about it is reliable.

What gossips (anti-entropy, membership) needs no more: it repeats itself, and takes nothing for granted. A mesh never
retries, never waits and keeps no more than a short queue. Who needs an answer asks again.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Protocol

from msgspec import Struct

from stigmergy.core.errors import Malformed, TooLarge

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
        forged, unless the adapter says otherwise. What matters is signed or checked by whoever reads it.
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
