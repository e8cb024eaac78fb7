"""An event with every type of field, and rosters of the meters that have it. Not a test."""

from __future__ import annotations

import enum
from collections.abc import Sequence
from typing import Annotated

from msgspec import Meta

from stigmergy import Event
from stigmergy.agents.columns import NO_CHECK, roster_check
from stigmergy.node.column_roster import Place, Roster, ShardRoster
from tests.formats.golden_columns import LAYOUT


class Mode(enum.Enum):
    CALM = "calm"
    WILD = 7


class Measured(Event):
    level: Annotated[float, Meta(ge=0.0, lt=1e6)]
    count: int
    mode: Mode
    small: Annotated[int, Meta(ge=-100, le=100)]
    wide: Annotated[int, Meta(ge=0, le=2**32 - 1)]
    ok: bool
    code: Annotated[bytes, Meta(min_length=3, max_length=3)]
    tiny: Annotated[int, Meta(ge=0, le=255)]


class Elsewhere(Event):
    level: float


def a_roster(names: Sequence[str], shards: int = 1, *, named: bool = True) -> Roster:
    """These agents, dealt out to so many shards in turn."""
    places = [Place(number % shards, number // shards) for number in range(len(names))]
    of_shard = [[name for place, name in zip(places, names, strict=True) if place.shard == n] for n in range(shards)]
    here = [ShardRoster(LAYOUT.digest(), 1, roster_check(NO_CHECK, some), len(some)) for some in of_shard]
    return Roster("Meter", LAYOUT, here, places if named else [], list(names) if named else [])
