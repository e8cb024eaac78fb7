"""Windows forget as they say, count what they lose, and close their buckets once."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stigmergy.agents.messages import SECOND_NS, Event
from stigmergy.agents.windows import Shape, Window
from stigmergy.base.errors import DefinitionError


class Sampled(Event):
    value: float = 0.0
    at_s: float = 0.0


def add(window: Window[Sampled], *times: float) -> Window[Sampled]:
    for at in times:
        window = window.add(int(at * SECOND_NS), Sampled(value=at, at_s=at))
    return window


def values(window: Window[Sampled]) -> list[float]:
    return [event.value for event in window.values]


def test_the_last_so_many() -> None:
    window = add(Window.last(2), 1, 2, 3)
    assert values(window) == [2, 3]
    assert (len(window), window.dropped) == (2, 0)
    assert window.end_ns is None
    assert not window.due(10**18)
    assert window.close() is window


def test_a_sliding_window_holds_what_is_not_older_than_its_span() -> None:
    window = add(Window.sliding(seconds=10), 1, 5, 11)
    assert values(window) == [5, 11]


def test_a_sliding_window_past_its_count_drops_the_oldest_and_counts_it() -> None:
    window = add(Window.sliding(seconds=10, count_max=2), 1, 2, 3, 4)
    assert values(window) == [3, 4]
    assert window.dropped == 2


def test_a_sliding_window_by_event_time_takes_late_ones_within_its_span() -> None:
    window = add(Window.sliding(seconds=10, by="at_s"), 20, 15, 9)
    assert values(window) == [20, 15]


def test_a_tumbling_window_closes_bucket_after_bucket() -> None:
    window = add(Window.tumbling(seconds=10), 12, 19, 23)
    assert (window.start_ns, window.end_ns) == (10 * SECOND_NS, 20 * SECOND_NS)
    assert not window.due(20 * SECOND_NS - 1)
    assert window.due(20 * SECOND_NS), "due exactly at its end"
    closed = window.close()
    assert [event.value for event in closed.closed_values] == [12, 19]
    assert values(closed) == [23]
    assert closed.end_ns == 30 * SECOND_NS
    empty = closed.close()
    assert (len(empty), empty.end_ns) == (0, None)


def test_a_tumbling_window_waits_for_late_ones() -> None:
    window = add(Window.tumbling(seconds=10, late_s=5), 12)
    assert not window.due(25 * SECOND_NS - 1)
    assert window.due(25 * SECOND_NS)


def test_a_bucket_that_was_closed_stays_closed_though_the_clock_is_behind() -> None:
    closed = add(Window.tumbling(seconds=10, late_s=5), 12).close()
    again = closed.add(13 * SECOND_NS, Sampled(value=13))
    assert again.late == 1
    assert len(again) == 0
    assert len(add(closed, 21)) == 1


def test_a_window_by_event_time_closes_by_the_events() -> None:
    window = add(Window.tumbling(seconds=10, by="at_s", late_s=5), 12, 24)
    assert not window.due(10**18), "our own time does not count"
    window = add(window, 25)
    assert window.due(0)
    window = add(window, 13)
    assert values(window) == [12, 24, 25, 13], "late, but its bucket is still open"
    closed = window.close()
    assert [event.value for event in closed.closed_values] == [12, 13]
    assert add(closed, 14).late == 1
    assert add(closed, 21).late == 0


YEARS_S = 10 * 366 * 86_400.0


@pytest.mark.parametrize("ahead_s", [0.0, 30.0, 300.0])
def test_an_event_from_the_future_stays_out_and_is_counted(ahead_s: float) -> None:
    """Otherwise one device with a wrong clock would close every bucket to come, and empty what slides."""
    sliding: Window[Sampled] = Window.sliding(seconds=10, by="at_s", ahead_s=ahead_s)
    tumbling: Window[Sampled] = Window.tumbling(seconds=10, by="at_s", ahead_s=ahead_s)
    for window in (sliding, tumbling):
        before = add(window, 12, 13)
        after = before.add(14 * SECOND_NS, Sampled(at_s=YEARS_S))
        assert after.ahead == 1
        assert after.entries == before.entries
        assert not after.due(0)
        assert values(add(after, 15)) == [12, 13, 15]
        edge = before.add(14 * SECOND_NS, Sampled(at_s=14 + ahead_s))
        assert (edge.ahead, edge.seen_ns) == (0, int((14 + ahead_s) * SECOND_NS)), "within what is tolerated"
        assert before.add(14 * SECOND_NS - 1, Sampled(at_s=14 + ahead_s)).ahead == 1


def test_a_window_tolerates_five_minutes_unless_told_otherwise() -> None:
    for window in (Window[Sampled].sliding(seconds=10, by="at_s"), Window[Sampled].tumbling(seconds=10, by="at_s")):
        assert window.add(0, Sampled(at_s=300)).ahead == 0
        assert window.add(0, Sampled(at_s=301)).ahead == 1


def test_an_event_that_opens_an_earlier_bucket() -> None:
    window = add(Window.tumbling(seconds=10, by="at_s", late_s=20), 25, 12)
    assert window.start_ns == 10 * SECOND_NS


def test_a_bucket_may_begin_in_1970() -> None:
    window = add(Window.tumbling(seconds=10, by="at_s", late_s=20), 1, 12)
    assert (window.start_ns, window.end_ns) == (0, 10 * SECOND_NS)
    assert (window.due(0), add(window, 30).due(0)) == (False, True)
    assert add(window, 30).close().start_ns == 10 * SECOND_NS
    assert add(Window.tumbling(seconds=10), 0).end_ns == 10 * SECOND_NS


def test_a_tumbling_window_past_its_count_drops_the_oldest() -> None:
    window = add(Window.tumbling(seconds=10, count_max=2), 11, 12, 13)
    assert (values(window), window.dropped) == ([12, 13], 1)


@pytest.mark.parametrize("at", [-1.0, float("nan"), float("inf"), 1e300, 5e9])
def test_an_event_time_that_is_none(at: float) -> None:
    with pytest.raises((ValueError, OverflowError)):
        Window[Sampled].sliding(seconds=1, by="at_s").add(0, Sampled(at_s=at))


@pytest.mark.parametrize("seconds", [0, -1, 86_400 * 367, float("nan"), 1e-10])
def test_a_span_is_bounded(seconds: float) -> None:
    with pytest.raises(DefinitionError, match="seconds: give more than 0 and at most a year"):
        Window.sliding(seconds=seconds)
    with pytest.raises(DefinitionError, match="give more than 0"):
        Window.tumbling(seconds=seconds)


@pytest.mark.parametrize("count", [0, -1, 4097])
def test_a_count_is_bounded(count: int) -> None:
    with pytest.raises(DefinitionError, match="entries: give 1 to 4096"):
        Window.last(count)
    with pytest.raises(DefinitionError, match="give 1 to 4096"):
        Window.sliding(seconds=1, count_max=count)
    with pytest.raises(DefinitionError, match="give 1 to 4096"):
        Window.tumbling(seconds=1, count_max=count)


@pytest.mark.parametrize("late_s", [-1, float("nan"), 1e12])
def test_lateness_is_bounded(late_s: float) -> None:
    with pytest.raises(DefinitionError, match="give 0 to a year of seconds"):
        Window.tumbling(seconds=1, late_s=late_s)
    with pytest.raises(DefinitionError, match=r"tumbling\(ahead_s=.*give 0 to a year of seconds"):
        Window.tumbling(seconds=1, ahead_s=late_s)
    with pytest.raises(DefinitionError, match=r"sliding\(ahead_s=.*give 0 to a year of seconds"):
        Window.sliding(seconds=1, ahead_s=late_s)


YEAR_S = 86_400 * 366


def test_windows_at_their_limits_are_taken() -> None:
    assert Window.sliding(seconds=YEAR_S).span == YEAR_S * SECOND_NS
    assert Window.tumbling(seconds=1e-9).span == 1
    assert Window.tumbling(seconds=1, late_s=YEAR_S, ahead_s=YEAR_S).late_ns == YEAR_S * SECOND_NS
    assert Window.tumbling(seconds=1, late_s=YEAR_S, ahead_s=YEAR_S).ahead_ns == YEAR_S * SECOND_NS
    assert Window.sliding(seconds=1, ahead_s=0).ahead_ns == 0
    for count in (1, 4096):
        assert Window.last(count).count_max == Window.last(count).span == count
        assert Window.sliding(seconds=1, count_max=count).count_max == count
        assert Window.tumbling(seconds=1, count_max=count).count_max == count


def test_windows_a_second_past_their_limits_are_refused() -> None:
    with pytest.raises(DefinitionError):
        Window.sliding(seconds=YEAR_S + 1)
    with pytest.raises(DefinitionError):
        Window.tumbling(seconds=1, late_s=YEAR_S + 1)
    with pytest.raises(DefinitionError):
        Window.tumbling(seconds=1, late_s=-0.001)


def test_counts_of_what_was_lost_add_up() -> None:
    sliding = add(Window.sliding(seconds=10, by="at_s", count_max=2), 1, 2, 3)
    for _ in range(3):
        sliding = sliding.add(0, Sampled(at_s=301.0))
    assert (sliding.dropped, sliding.ahead) == (1, 3)
    closed = add(Window.tumbling(seconds=10), 12).close()
    for _ in range(3):
        closed = closed.add(13 * SECOND_NS, Sampled())
    assert closed.late == 3
    full = add(Window.tumbling(seconds=10, count_max=2), 11, 12, 13, 14, 15)
    assert (values(full), full.dropped) == ([14, 15], 3)


def test_a_bucket_is_late_when_its_end_and_the_grace_have_been_seen() -> None:
    window = add(Window.tumbling(seconds=10, by="at_s", late_s=5), 12, 25)
    closed = window.close()
    assert closed.end_ns == 30 * SECOND_NS
    for at_s, late in ((19.9, 1), (20.0, 0), (5.0, 1)):
        assert add(closed, at_s).late == late, "the bucket before 20 was seen to its end"
    empty = closed.close()
    assert empty.seen_ns == 35 * SECOND_NS
    assert add(empty, 29).late == 1
    assert add(empty, 30).late == 0


@given(st.lists(st.integers(0, 60), max_size=40), st.integers(0, 9))
def test_each_event_ends_in_one_bucket_or_is_counted_as_late(times: list[int], late_s: int) -> None:
    window: Window[Sampled] = Window.tumbling(seconds=5, by="at_s", late_s=late_s)
    seen: list[float] = []
    ends: list[int] = []
    for at in times:
        window = add(window, at)
        while window.due(0):
            ends.append(window.end_ns or 0)
            window = window.close()
            seen += [event.value for event in window.closed_values]
            assert len({event.at_s // 5 for event in window.closed_values}) <= 1
    assert ends == sorted(set(ends)), "each bucket closes once, in order"
    assert len(seen) + len(window) + window.late == len(times)
    assert window.shape is Shape.TUMBLING


# ---- what is in a window


class Counted(Event):
    count: int = 0
    on: bool = True


def counted(*counts: int, window: Window[Counted] | None = None) -> Window[Counted]:
    made: Window[Counted] = Window.last(8) if window is None else window
    for at, count in enumerate(counts):
        made = made.add(at * SECOND_NS, Counted(count=count))
    return made


def test_a_window_is_asked_for_a_field() -> None:
    window = counted(3, -1, 4, -1)
    assert (window.total("count"), window.mean("count")) == (5, 1.25)
    assert (window.lowest("count"), window.highest("count")) == (-1, 4)
    assert (window.oldest("count"), window.newest("count"), window.newest("on")) == (3, -1, True)
    assert type(window.total("count")) is int


def test_the_bucket_that_closed_is_asked_for_a_field() -> None:
    window = counted(1, 5, 9, window=Window.tumbling(seconds=2)).close()
    assert [getattr(window, name)("count", closed=True) for name in ASKED] == [6, 3.0, 1, 5, 1, 5]
    assert [getattr(window, name)("count") for name in ASKED] == [9, 9.0, 9, 9, 9, 9]


ASKED = ("total", "mean", "lowest", "highest", "oldest", "newest")


@pytest.mark.parametrize("name", ASKED)
@pytest.mark.parametrize("closed", [False, True])
def test_an_empty_window_has_nothing_to_say_unless_told_what(name: str, closed: bool) -> None:
    window: Window[Sampled] = Window.sliding(seconds=1)
    says = rf"{name}\('value'\) of an empty window; ask len\(\) first"
    with pytest.raises(ValueError, match=says):
        getattr(window, name)("value", closed=closed)
    assert getattr(window, name)("value", 2.5, closed=closed) == 2.5
    assert getattr(window, name)("value", None, closed=closed) is None


def test_floats_are_added_one_after_the_other() -> None:
    window: Window[Sampled] = Window.last(8)
    for value in (1e16, 1.0, -1e16, -0.0):
        window = window.add(0, Sampled(value=value))
    assert window.total("value") == 0.0, "which `sum` of Python 3.12 makes 1.0"
    assert window.mean("value") == 0.0
    alone: Window[Sampled] = Window.last(1)
    assert str(alone.add(0, Sampled(value=-0.0)).total("value")) == "-0.0"


def test_a_total_beyond_64_bits_overflows_where_it_does() -> None:
    assert counted(2**62, 2**62 - 1).total("count") == 2**63 - 1
    assert counted(-(2**62), -(2**62)).total("count") == -(2**63)
    for counts in ((2**62, 2**62), (-(2**62), -(2**62), -1), (2**62, 2**62, -1)):
        for name in ("total", "mean"):
            with pytest.raises(OverflowError, match=r"outside of -2\^63"):
                getattr(counted(*counts), name)("count")


def test_of_nan_and_zeros_the_choice_is_that_of_min_and_max() -> None:
    for given_values in ((0.0, -0.0), (-0.0, 0.0), (math.nan, 1.0), (1.0, math.nan), (2.0, 1.0, 3.0)):
        window: Window[Sampled] = Window.last(8)
        for value in given_values:
            window = window.add(0, Sampled(value=value))
        assert str(window.lowest("value")) == str(min(given_values))
        assert str(window.highest("value")) == str(max(given_values))


@pytest.mark.parametrize("name", ASKED[:4])
def test_only_numbers_are_calculated_with(name: str) -> None:
    with pytest.raises(TypeError, match=r"\('on'\) of True, which is no number; use oldest or newest"):
        getattr(counted(1), name)("on")
    with pytest.raises(AttributeError):
        getattr(counted(1), name)("off")
