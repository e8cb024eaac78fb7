"""Rosters: what a producer needs to know to make records. Plain values, so that they can be sent to one elsewhere."""

from __future__ import annotations

from msgspec import Struct

from stigmergy.core.columns import Layout


class Place(Struct, array_like=True, frozen=True):
    """Where an agent is: its shard, and its number there."""

    shard: int
    number: int


class ShardRoster(Struct, array_like=True, frozen=True):
    """What a batch for one shard must name."""

    layout: bytes
    generation: int
    check: bytes
    agents: int
    """How many agents of the kind are enrolled there."""


class Roster(Struct, array_like=True, frozen=True):
    """How to make records for agents of one kind."""

    kind: str
    layout: Layout
    shards: list[ShardRoster]
    places: list[Place]
    """Of the agents that were asked for, in that order."""
    names: list[str] = []
    """The same agents."""
