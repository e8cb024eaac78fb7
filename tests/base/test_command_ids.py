"""Ids that carry their time."""

from __future__ import annotations

import uuid

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stigmergy.base.command_ids import PLAUSIBLE_MS_MIN, RANDOM_BYTES, new_command_id, time_ms_of


@given(st.integers(0, 2**48 * 1_000_000 - 1), st.binary(min_size=RANDOM_BYTES, max_size=RANDOM_BYTES))
def test_a_new_id_is_a_uuid_of_version_7_with_its_time(wall_ns: int, random: bytes) -> None:
    made = new_command_id(wall_ns, random)
    read = uuid.UUID(made)
    assert (str(read), read.version, read.variant) == (made, 7, uuid.RFC_4122)
    time_ms = wall_ns // 1_000_000
    assert read.int >> 80 == time_ms
    assert time_ms_of(made) == time_ms_of(made.upper()) == (time_ms if time_ms >= PLAUSIBLE_MS_MIN else None)


def test_the_example_of_the_rfc() -> None:
    assert time_ms_of("017F22E2-79B0-7CC3-98C4-DC0C0C07398F") == 1_645_557_742_000


@pytest.mark.parametrize(
    "opaque", ["", "order-4711", str(uuid.UUID(int=0, version=4)), "017f22e279b07cc398c4dc0c0c07398f"]
)
def test_any_other_id_carries_no_time(opaque: str) -> None:
    assert time_ms_of(opaque) is None
