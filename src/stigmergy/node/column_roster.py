"""Rosters: what a producer needs to know to make records. Plain values that can be sent to another machine."""

from __future__ import annotations

import base64
from collections.abc import Mapping, Sequence
from typing import Any

from msgspec import Struct

from stigmergy.agents.codec import encode
from stigmergy.agents.columns import Layout, read_layout
from stigmergy.base.errors import JournalCorrupt, Malformed, TooLarge

ENROLLED_NAMES_MAX = 2_000
"""Names in one request to enrol agents."""


class Place(Struct, array_like=True, frozen=True, gc=False):
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


def check_enrolled_names(names: Sequence[str]) -> None:
    """Raises TooLarge for more names than one request may have."""
    if len(names) > ENROLLED_NAMES_MAX:
        raise TooLarge(
            f"{len(names)} names in one request, {ENROLLED_NAMES_MAX} at most; enrol them one part at a time"
        )


def described_roster(roster: Roster, owned: Sequence[int]) -> dict[str, Any]:
    """A roster in plain values, as it is told over the control endpoint: with the shards that its node has."""
    return {
        "kind": roster.kind,
        "processes": 1,
        "layout": base64.b64encode(encode(roster.layout)).decode(),
        "record_bytes": roster.layout.record_bytes,
        "forms": [
            {
                "tag": form.tag,
                "is_command": form.is_command,
                "fields": {column.name: column.code for column in form.columns},
            }
            for form in roster.layout.forms
        ],
        "shards": [{"shard": shard, **_described_shard(roster.shards[shard])} for shard in owned],
        "places": [[place.shard, place.number] for place in roster.places],
    }


def read_roster(found: Mapping[str, Any], names: Sequence[str] = ()) -> Roster:
    """The roster that a node has described, with these agents. Raises Malformed for what is none, or not whole."""
    try:
        shards = sorted(found["shards"], key=lambda one: int(one["shard"]))
        if [one["shard"] for one in shards] != list(range(len(shards))):
            raise Malformed("a roster of some shards only: ask the node itself, and not one of its processes")
        layout = read_layout(base64.b64decode(found["layout"], validate=True))
        here = [
            ShardRoster(bytes.fromhex(one["layout"]), one["generation"], bytes.fromhex(one["check"]), one["agents"])
            for one in shards
        ]
        places = [Place(shard, number) for shard, number in found["places"]]
        return Roster(found["kind"], layout, here, places, list(names))
    except (KeyError, TypeError, ValueError, JournalCorrupt) as error:
        raise Malformed(
            f"the node describes no roster that this program can read ({error}); update one of them"
        ) from None


def joined_rosters(found: Sequence[Mapping[str, Any]], places: Sequence[Sequence[int]] = ()) -> dict[str, Any]:
    """What the processes of a node say, each of its own shards, as one; with these places."""
    shards = sorted((shard for one in found for shard in one["shards"]), key=lambda one: int(one["shard"]))
    return {**found[0], "processes": len(found), "shards": shards, "places": list(places)}


def _described_shard(shard: ShardRoster) -> dict[str, Any]:
    return {
        "layout": shard.layout.hex(),
        "generation": shard.generation,
        "check": shard.check.hex(),
        "agents": shard.agents,
    }
