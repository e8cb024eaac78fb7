"""The trace: one hash for one run, whatever the hash seed; bounded; and a finger on the first difference."""

import asyncio
import locale
import os
import subprocess
import sys
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec import Struct

from rigs.recorded_trace import CHECKPOINTS_MAX, DETAIL_BYTES_KEPT_MAX, RecordedTrace, first_difference
from stigmergy.sim.loop import VirtualLoop, run
from stigmergy.sim.run import Trace


class Landed(Struct, frozen=True, tag="landed@1"):
    pad: str
    height: float


def trace_of(*details: Any, keep_from: int | None = None, records_max: int = 1_000) -> RecordedTrace:
    trace = RecordedTrace(keep_from=keep_from, records_max=records_max)
    for number, detail in enumerate(details):
        trace.record(number, "node", "happened", detail)
    return trace


# The hash.


def test_the_hash_is_fixed() -> None:
    """If this value changes, hashes printed by older versions cannot be compared: say so in the changelog."""
    trace = Trace()
    trace.record(0, "drone/7", "started")
    trace.record(1_500_000_000, "drone/7", "landed", Landed(pad="north", height=0.25))
    trace.record(2_000_000_000, "tower", "heard", {"b": [1, None], "a": {"y", "x"}, "c": b"\x00\xff"})
    assert trace.hexdigest() == "1f41c679adc29cf3692dee607e58149f2a820ecf91a9e26b6505e9c79b5a868c"


def test_every_part_of_a_record_counts() -> None:
    records: list[tuple[int, str, str, Any]] = [
        (0, "a", "b", None),
        (1, "a", "b", None),
        (0, "b", "b", None),
        (0, "a", "a", None),
        (0, "a", "b", 0),
        (0, "a", "b", b""),
        (0, "a", "b", ""),
        (0, "a", "b", 0.0),
        (0, "a", "b", -0.0),
        (0, "a", "b", False),
    ]
    hashes = []
    for record in records:
        trace = Trace()
        trace.record(*record)
        hashes.append(trace.hexdigest())
    assert len(set(hashes)) == len(records)
    assert Trace().hexdigest() not in hashes


def test_the_order_of_maps_and_sets_does_not_count() -> None:
    assert trace_of({"a": 1, "b": 2}).hexdigest() == trace_of({"b": 2, "a": 1}).hexdigest()
    assert trace_of({"x", "y", "z"}).hexdigest() == trace_of({"z", "y", "x"}).hexdigest()
    assert trace_of([1, 2]).hexdigest() != trace_of([2, 1]).hexdigest()


@given(st.lists(st.binary(max_size=8), max_size=4), st.lists(st.binary(max_size=8), max_size=4))
def test_records_do_not_run_into_each_other(left: list[bytes], right: list[bytes]) -> None:
    assert (trace_of(*left).hexdigest() == trace_of(*right).hexdigest()) == (left == right)


def test_an_object_without_canonical_bytes_is_refused() -> None:
    trace = Trace()
    with pytest.raises(TypeError):
        trace.record(0, "node", "happened", object())
    assert trace.hexdigest() == Trace().hexdigest(), "a refused record leaves nothing behind"
    assert trace.count == 0


SIMULATION = """
import asyncio, locale, sys
from stigmergy.sim.loop import SimClock, SimEntropy
from stigmergy.sim.loop import VirtualLoop
from stigmergy.sim.run import Trace

loop = VirtualLoop(seed=11, shuffle=True)
clock, entropy, trace = SimClock(loop), SimEntropy(11, "a"), Trace()

async def agent(name, inbox, peers):
    for _ in range(20):
        peer = peers[entropy.token(1)[0] % len(peers)]
        peer.put_nowait({"from": name, "id": entropy.token(4), "seen": {name, "x", "y"}})
        await asyncio.sleep(entropy.token(1)[0] % 3)
        message = await asyncio.wait_for(inbox.get(), 5) if not inbox.empty() else None
        trace.record(loop.time_ns(), name, "step", [message, clock.wall_ns(), clock.monotonic_ns() / 7])

async def main():
    inboxes = [asyncio.Queue() for _ in range(5)]
    await asyncio.gather(*(agent(f"agent/{n}", inbox, inboxes) for n, inbox in enumerate(inboxes)))

loop.run(main())
print(trace.count, trace.hexdigest(), hash("seeded"))
"""


def test_other_hash_seeds_give_the_same_hash() -> None:
    printed = []
    for hash_seed, language in (("0", "C"), ("1", "C.UTF-8"), ("4711", "de_DE.UTF-8"), ("random", "C")):
        environment = {**os.environ, "PYTHONHASHSEED": hash_seed, "LC_ALL": language}
        done = subprocess.run(
            [sys.executable, "-c", SIMULATION], env=environment, capture_output=True, text=True, check=True
        )
        printed.append(done.stdout.split())
    assert len({seeded for *_, seeded in printed}) > 1, "the hash seeds have an effect"
    assert len({(count, digest) for count, digest, _ in printed}) == 1
    assert printed[0][0] == "100"


def test_a_run_that_ends_differently_has_another_hash() -> None:
    def digest(seed: int) -> str:
        trace = Trace()

        async def step(name: str) -> None:
            loop = asyncio.get_running_loop()
            assert isinstance(loop, VirtualLoop)
            trace.record(loop.time_ns(), name, "step")

        async def main() -> None:
            await asyncio.gather(*(step(str(number)) for number in range(8)))

        run(main(), seed=seed, shuffle=True)
        return trace.hexdigest()

    assert digest(1) == digest(1) != digest(2)


# What is kept.


def test_the_last_records_are_kept_and_no_more() -> None:
    trace = trace_of(*range(50), records_max=10)
    assert trace.count == 50
    assert [record.number for record in trace.records()] == list(range(41, 51))
    assert len(str(trace).splitlines()) == 11


def test_records_from_a_number_on_are_kept_if_asked_for() -> None:
    trace = trace_of(*range(50), records_max=10, keep_from=21)
    assert [record.number for record in trace.records()] == list(range(21, 31))


def test_a_long_detail_is_cut_but_counts_in_full() -> None:
    long = bytes(10_000)
    left, right = trace_of(long + b"1"), trace_of(long + b"2")
    assert len(left.records()[0].detail) == DETAIL_BYTES_KEPT_MAX
    assert left.hexdigest() != right.hexdigest()
    assert left.records() != right.records()
    assert "10004 bytes, BLAKE3 " in str(left.records()[0])


def test_checkpoints_are_bounded_and_cover_the_run() -> None:
    trace = trace_of(*range(10_000))
    numbers = list(trace.checkpoints())
    assert CHECKPOINTS_MAX // 2 <= len(numbers) <= CHECKPOINTS_MAX
    assert numbers[0] <= 16
    assert numbers[-1] > 9_980


def test_a_record_reads_well() -> None:
    trace = RecordedTrace()
    trace.record(1_500_000_000, "drone/7", "landed", Landed(pad="north", height=0.25))
    trace.record(1_500_000_001, "drone/7", "stopped")
    assert [str(record).rstrip() for record in trace.records()] == [
        "#1 1.500000000 drone/7 landed {'type': 'landed@1', 'pad': 'north', 'height': 0.25}",
        "#2 1.500000001 drone/7 stopped",
    ]
    assert locale.localeconv()["decimal_point"]  # whatever it is, the text above has a point


# The first difference.


def test_equal_traces_have_no_difference() -> None:
    assert first_difference(trace_of(1, 2, 3), trace_of(1, 2, 3)) is None
    assert first_difference(trace_of(), trace_of()) is None


def test_the_first_different_record_is_named() -> None:
    difference = first_difference(trace_of(1, 2, 3, 4), trace_of(1, 2, 30, 40))
    assert difference is not None
    assert (difference.after, difference.upto) == (2, 3)
    assert difference.left is not None
    assert difference.right is not None
    assert "record 3" in str(difference)
    assert "30" in str(difference)


def test_a_trace_that_goes_on_differs_where_the_other_ends() -> None:
    difference = first_difference(trace_of(1, 2), trace_of(1, 2, 3))
    assert difference is not None
    assert (difference.after, difference.upto, difference.left) == (2, 3, None)
    assert difference.right is not None


@settings(deadline=None, max_examples=40)  # thousands of records each
@given(st.integers(1, 6_000), st.integers(0, 3_000), st.booleans())
def test_the_range_leads_to_the_record(different_at: int, more: int, longer: bool) -> None:
    """Runs that are too long to keep: first the range, then, with keep_from, the record itself."""
    count = different_at + more
    left = list(range(count))
    right = [*left[: different_at - 1], "other", *left[different_at:], *([1] * 3_000 if longer else [])]
    difference = first_difference(trace_of(*left, records_max=5), trace_of(*right, records_max=5))
    assert difference is not None
    assert difference.after < different_at <= difference.upto
    if difference.left is None:
        assert "keep_from" in str(difference)
        start = difference.after + 1
        again = first_difference(trace_of(*left, keep_from=start), trace_of(*right, keep_from=start))
        assert again is not None
        assert again.upto == different_at
        assert again.left is not None
