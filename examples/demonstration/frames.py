"""What the node of the demonstration and the world around it say to each other, besides what all such nodes say."""

from __future__ import annotations

import msgspec
from msgspec import Struct

from stigmergy.testing.frames import Broken, Confirm, Deliver, Delivered, Stop


class Ready(Struct, tag=True, frozen=True):
    """The node has recovered so many events, and takes inputs; `milliseconds` since it began to open its journal."""

    events: int
    commits: int
    milliseconds: float
    from_snapshot: bool
    agents: int


class Seen(Struct, frozen=True):
    """One drone, as it is on disk."""

    name: str
    battery: float
    mission: str | None
    progress: float
    delivered: int
    neighbour_cell: int
    landed_because: str | None


class Status(Struct, tag=True, frozen=True):
    """Where the node stands."""

    drones: list[Seen]
    commits: int
    owed: int


class Ask(Struct, tag=True, frozen=True):
    """Start a mission."""

    command_id: str
    drone: str
    mission: str


class Answered(Struct, tag=True, frozen=True):
    """The durable answer."""

    command_id: str
    accepted: bool
    answer: str


class Ordered(Struct, tag=True, frozen=True):
    """An action for the receiver to carry out. A safe action has sequence 0: it did not wait for the disk."""

    sequence: int
    key: str
    drone: str
    action: str
    detail: str


class Stopped(Struct, tag=True, frozen=True):
    """The digest of the state that the node leaves."""

    digest: bytes


FromNode = Ready | Status | Delivered | Answered | Ordered | Stopped | Broken
ToNode = Deliver | Ask | Confirm | Stop

from_node: msgspec.msgpack.Decoder[FromNode] = msgspec.msgpack.Decoder(FromNode)
to_node: msgspec.msgpack.Decoder[ToNode] = msgspec.msgpack.Decoder(ToNode)
