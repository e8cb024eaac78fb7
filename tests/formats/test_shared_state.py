"""The manual's tables of shared state say what the code does."""

from __future__ import annotations

import pytest
from msgspec import Struct

from stigmergy.crdt import bounds
from stigmergy.crdt.delta import Delta
from stigmergy.crdt.store import StoredReplica
from tests.formats.manual import fields_of, tables


@pytest.mark.parametrize("structure", [Delta, StoredReplica])
def test_fields_are_documented_in_their_order(structure: type[Struct]) -> None:
    assert fields_of(structure.__name__) == ["format", *structure.__struct_fields__]
    assert structure.__struct_config__.tag == 1


def test_bounds_are_documented() -> None:
    documented = {row[0].strip("`"): int(row[1].replace(",", "")) for row in tables("shared-state.md")["Limits"]}
    in_code = {name: value for name, value in vars(bounds).items() if name.endswith("_MAX") and "HARD" not in name}
    assert documented == in_code


def test_those_who_merge_take_twice_as_many() -> None:
    hard = {name: value for name, value in vars(bounds).items() if name.endswith("_HARD_MAX")}
    assert hard == {name: 2 * getattr(bounds, name.replace("_HARD", "")) for name in hard}
    assert len(hard) == 3
