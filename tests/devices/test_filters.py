"""Thinning: rates, every so many, one for each period; and nothing comes of silence."""

import enum
import itertools
import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stigmergy.agents.messages import SECOND_NS, Event
from stigmergy.base.errors import DefinitionError
from stigmergy.devices.filters import Thinner, Thinning


class Mode(enum.IntEnum):
    OFF = 0
    ON = 10


class Measured(Event):
    value: float
    count: int = 0
    label: str = ""
    good: bool = True
    mode: Mode = Mode.OFF
    spare: float | None = None


class Other(Event):
    value: float


def thin(thinning: Thinning, readings: list[tuple[float, Event]], until_s: float) -> list[tuple[float, Any]]:
    """What comes out, and when: offered at its time, taken whenever something is due."""
    thinner = Thinner(thinning)
    out: list[tuple[float, Any]] = []
    waiting = sorted(readings, key=lambda reading: reading[0])
    while True:
        due_ns = thinner.due_ns
        next_ns = int(waiting[0][0] * SECOND_NS) if waiting else None
        moments = [moment for moment in (due_ns, next_ns) if moment is not None]
        if not moments or min(moments) > until_s * SECOND_NS:
            return out
        now_ns = min(moments)
        if next_ns == now_ns:
            thinner.offer(waiting.pop(0)[1], now_ns)
        event = thinner.take(now_ns)
        if event is not None:
            out.append((now_ns / SECOND_NS, event))


def series(*values: float, every_s: float = 0.1) -> list[tuple[float, Event]]:
    return [(number * every_s, Measured(value=value)) for number, value in enumerate(values)]


def values_of(out: list[tuple[float, Any]]) -> list[float]:
    return [event.value for _, event in out]


def test_without_any_everything_passes_at_once() -> None:
    readings = series(1, 2, 3)
    assert thin(Thinning(), readings, 10) == readings


def test_a_rate_lets_the_first_pass_and_then_the_newest_in_time() -> None:
    out = thin(Thinning(at_most_hz=2), series(*range(12)), 10)
    assert values_of(out) == [0, 5, 10, 11]
    assert [at for at, _ in out] == pytest.approx([0.0, 0.5, 1.0, 1.5])


@given(st.lists(st.floats(0, 20), max_size=100), st.sampled_from([0.3, 1.0, 7.0]))
def test_a_rate_is_never_exceeded_and_the_last_reading_always_arrives(times: list[float], hertz: float) -> None:
    readings: list[tuple[float, Event]] = [(at, Measured(value=number)) for number, at in enumerate(sorted(times))]
    out = thin(Thinning(at_most_hz=hertz), readings, 100)
    assert all(after - before >= 1 / hertz - 1e-6 for (before, _), (after, _) in itertools.pairwise(out))
    assert values_of(out)[-1:] == values_of(readings)[-1:]


def test_one_of_so_many() -> None:
    assert values_of(thin(Thinning(keep_every=4), series(*range(10)), 10)) == [0, 4, 8]


@pytest.mark.parametrize(("take", "expected"), [("mean", 4.0), ("min", 1.0), ("max", 9.0), ("last", 2.0)])
def test_one_reading_stands_for_a_period(take: Any, expected: float) -> None:
    out = thin(Thinning(over_s=1, take=take), series(4, 1, 9, 2), 10)
    assert out == [(1.0, Measured(value=expected))]


def test_a_period_begins_with_its_first_reading_and_silence_brings_nothing() -> None:
    readings: list[tuple[float, Event]] = [(at, Measured(value=at)) for at in (0.0, 0.5, 7.3, 7.4)]
    out = thin(Thinning(over_s=1, take="mean"), readings, 100)
    assert [(at, event.value) for at, event in out] == [(1.0, 0.25), (8.3, pytest.approx(7.35))]


def test_the_limits_add_up() -> None:
    thinning = Thinning(keep_every=2, over_s=1, take="max", at_most_hz=0.5)
    out = thin(thinning, series(*range(60)), 100)
    assert [round(at, 1) for at, _ in out] == [1.0, 3.0, 5.0, 7.0]
    assert values_of(out) == [8.0, 28.0, 48.0, 58.0]


def test_numbers_are_folded_each_by_itself_and_the_rest_is_the_last() -> None:
    readings: list[tuple[float, Event]] = [
        (0.0, Measured(value=1, count=1, label="a", good=True, mode=Mode.ON, spare=None)),
        (0.1, Measured(value=2, count=2, label="b", good=False, mode=Mode.OFF, spare=4.0)),
    ]
    ((_, event),) = thin(Thinning(over_s=1, take="mean"), readings, 10)
    assert event == Measured(value=1.5, count=2, label="b", good=False, mode=Mode.OFF, spare=4.0)
    assert isinstance(event.count, int)


def test_what_is_no_number_is_left_out_of_the_mean() -> None:
    readings: list[tuple[float, Event]] = [(0.0, Measured(value=2.0)), (0.1, Measured(value=math.nan))]
    ((_, event),) = thin(Thinning(over_s=1, take="mean"), readings, 10)
    assert event.value == 2.0


def test_a_field_that_is_empty_in_the_end_stays_empty() -> None:
    readings: list[tuple[float, Event]] = [(0.0, Measured(value=2.0, spare=1.0)), (0.1, Measured(value=4.0))]
    ((_, event),) = thin(Thinning(over_s=1, take="mean"), readings, 10)
    assert event == Measured(value=3.0)


def test_a_mean_is_of_one_kind_of_event() -> None:
    readings: list[tuple[float, Event]] = [(0.0, Measured(value=2.0)), (0.1, Other(value=5.0)), (0.2, Other(value=7.0))]
    assert thin(Thinning(over_s=1, take="mean"), readings, 10) == [(1.0, Other(value=6.0))]


@given(st.lists(st.floats(-1e308, 1e308), min_size=1, max_size=50))
def test_a_mean_lies_between_the_smallest_and_the_largest(values: list[float]) -> None:
    ((_, event),) = thin(Thinning(over_s=1, take="mean"), series(*values, every_s=0.001), 10)
    spread = 1e-9 * max(abs(value) for value in values)
    assert min(values) - spread <= event.value <= max(values) + spread


def test_what_is_left_out_is_counted() -> None:
    thinner = Thinner(Thinning(at_most_hz=1))
    for number in range(10):
        thinner.offer(Measured(value=number), number)
        thinner.take(number)
    assert thinner.left_out == 8  # one passed, one is held


@pytest.mark.parametrize(
    "wrong",
    [
        Thinning(at_most_hz=0),
        Thinning(at_most_hz=math.nan),
        Thinning(keep_every=0),
        Thinning(over_s=0),
        Thinning(take="mean"),
        Thinning(over_s=1, take="median"),  # type: ignore[arg-type]
    ],
)
def test_what_cannot_be_meant_is_refused(wrong: Thinning) -> None:
    with pytest.raises(DefinitionError, match="sensor x: "):
        wrong.check("sensor x")
