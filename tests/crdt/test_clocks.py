"""The hybrid clock of registers."""

from __future__ import annotations

import pytest

from stigmergy.crdt.bounds import COUNTER_MAX
from stigmergy.crdt.delta import next_stamp_ns
from stigmergy.crdt.errors import LimitReached


def test_a_stamp_is_the_time_unless_a_later_one_was_seen() -> None:
    assert next_stamp_ns(now_ns=1_000, after_ns=10) == 1_000
    assert next_stamp_ns(now_ns=1_000, after_ns=1_000) == 1_001
    assert next_stamp_ns(now_ns=0, after_ns=5_000) == 5_001


def test_there_is_a_last_stamp() -> None:
    assert next_stamp_ns(0, COUNTER_MAX - 1) == COUNTER_MAX
    with pytest.raises(LimitReached, match="set the clocks"):
        next_stamp_ns(0, COUNTER_MAX)
