"""What one write puts into one place."""

from __future__ import annotations

import pytest

from stigmergy.crdt.bounds import COUNTER_MAX, PAYLOAD_BYTES_MAX
from stigmergy.crdt.payloads import (
    fault_of,
    plain_value,
    stamp_of,
    stamped,
    stamped_value,
    total_of,
    total_payload,
    unstamped_payload,
    value_payload,
)


def test_what_goes_in_comes_out() -> None:
    assert total_of(total_payload(-5)) == -5
    assert plain_value(value_payload(b"\x05")) == b"\x05"
    payload = stamped(unstamped_payload(b"\x05"), 77)
    assert (stamp_of(payload), stamped_value(payload)) == (77, b"\x05")


@pytest.mark.parametrize(
    "payload",
    [
        b"",
        total_payload(COUNTER_MAX),
        total_payload(-COUNTER_MAX),
        stamped(unstamped_payload(b"\x05"), COUNTER_MAX),
        value_payload(b"\x05"),
    ],
)
def test_good_ones(payload: bytes) -> None:
    assert fault_of(payload) is None


@pytest.mark.parametrize(
    ("payload", "fault"),
    [
        (bytes(PAYLOAD_BYTES_MAX + 1), "at most"),
        (b"\x00", "kind 0"),
        (b"\x04\x01", "kind 4"),
        (b"\x01", "no int"),
        (b"\x01\xa1a", "no int"),
        (b"\x01\xcc\x01", "shortest"),
        (b"\x01\x01\x01", "no int"),
        (total_payload(COUNTER_MAX + 1), "63 bits"),
        (b"\x02" + bytes(8), "without a value"),
        (b"\x02\xff" + bytes(8), "63 bits"),
        (b"\x03", "without a value"),
    ],
)
def test_bad_ones(payload: bytes, fault: str) -> None:
    found = fault_of(payload)
    assert found is not None
    assert fault in found
