"""Rosters: what a producer needs to know to make records, and how the control endpoint sends them."""

from __future__ import annotations

from collections.abc import Sequence

from msgspec import Struct, structs

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


class DescribedForm(Struct, frozen=True):
    """A message of the kind: its columns, with the code of each type."""

    tag: str
    is_command: bool
    fields: dict[str, str]


class DescribedShard(Struct, frozen=True):
    """A `ShardRoster` for JSON: bytes in hex digits."""

    shard: int
    layout: str
    generation: int
    check: str
    agents: int


class DescribedRoster(Struct, frozen=True):
    """A roster for JSON, as the control endpoint sends it: with the shards that its node has."""

    kind: str
    processes: int
    layout: bytes
    """Base64 on the wire."""
    record_bytes: int
    forms: list[DescribedForm]
    shards: list[DescribedShard]
    places: list[Place]


def check_enrolled_names(names: Sequence[str]) -> None:
    """Raises TooLarge for more names than one request may have."""
    if len(names) > ENROLLED_NAMES_MAX:
        raise TooLarge(
            f"{len(names)} names in one request, {ENROLLED_NAMES_MAX} at most; enrol them one part at a time"
        )


def described_roster(roster: Roster, owned: Sequence[int]) -> DescribedRoster:
    """A roster as the control endpoint sends it: with the shards that its node has."""
    forms = [
        DescribedForm(form.tag, form.is_command, {column.name: column.code for column in form.columns})
        for form in roster.layout.forms
    ]
    shards = [_described_shard(shard, roster.shards[shard]) for shard in owned]
    layout = encode(roster.layout)
    return DescribedRoster(roster.kind, 1, layout, roster.layout.record_bytes, forms, shards, roster.places)


def read_roster(found: DescribedRoster, names: Sequence[str] = ()) -> Roster:
    """The roster that a node has described, with these agents. Raises Malformed for what is none, or not whole."""
    shards = sorted(found.shards, key=lambda one: one.shard)
    if [one.shard for one in shards] != list(range(len(shards))):
        raise Malformed("a roster of some shards only: ask the node itself, and not one of its processes")
    try:
        layout = read_layout(found.layout)
        here = [
            ShardRoster(bytes.fromhex(one.layout), one.generation, bytes.fromhex(one.check), one.agents)
            for one in shards
        ]
    except (ValueError, JournalCorrupt) as error:
        raise Malformed(
            f"the node describes no roster that this program can read ({error}); update one of them"
        ) from None
    return Roster(found.kind, layout, here, found.places, list(names))


def joined_rosters(found: Sequence[DescribedRoster], places: Sequence[Place] = ()) -> DescribedRoster:
    """What the processes of a node say, each of its own shards, as one; with these places."""
    shards = sorted((shard for one in found for shard in one.shards), key=lambda one: one.shard)
    return structs.replace(found[0], processes=len(found), shards=shards, places=list(places))


def _described_shard(number: int, shard: ShardRoster) -> DescribedShard:
    return DescribedShard(number, shard.layout.hex(), shard.generation, shard.check.hex(), shard.agents)
