"""What the node and the world around it say to each other: one JSON object per line, over pipes."""

from __future__ import annotations

import msgspec
from msgspec import Struct


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


class Deliver(Struct, tag=True, frozen=True):
    """Take this envelope; its last event has this sequence."""

    last: int
    envelope: bytes


class Delivered(Struct, tag=True, frozen=True):
    """It is durable: whoever sent it may forget it."""

    last: int


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


class Confirm(Struct, tag=True, frozen=True):
    """The receiver has carried it out, now or before."""

    key: str


class Stop(Struct, tag=True, frozen=True):
    """Finish what you have, close, and say in which state."""


class Stopped(Struct, tag=True, frozen=True):
    """The digest of the state that the node leaves."""

    digest: bytes


class Broken(Struct, tag=True, frozen=True):
    """The node cannot go on."""

    why: str


FromNode = Ready | Status | Delivered | Answered | Ordered | Stopped | Broken
ToNode = Deliver | Ask | Confirm | Stop

encode = msgspec.json.Encoder().encode
decode_from_node: msgspec.json.Decoder[FromNode] = msgspec.json.Decoder(FromNode)
decode_to_node: msgspec.json.Decoder[ToNode] = msgspec.json.Decoder(ToNode)
