"""The table of timers, the order in which they fire, and the bytes they are kept as."""

from __future__ import annotations

from typing import Any

import pytest

from stigmergy.agents.codec import encode
from stigmergy.agents.effects import CancelWake, WakeMe, WakeMeAt
from stigmergy.agents.messages import SECOND_NS, Effect
from stigmergy.base.errors import JournalCorrupt
from stigmergy.shard.timers import PendingTimer, Timers, TimerSet, read_timer, timer_body


def test_durations_become_due_times() -> None:
    assert read_timer(timer_body(WakeMe(name="a", after_s=1.5), 10)) == TimerSet("a", 10 + 3 * SECOND_NS // 2)
    assert read_timer(timer_body(WakeMeAt(name="a", at_s=2), 10)) == TimerSet("a", 2 * SECOND_NS, follows_wall=True)
    assert read_timer(timer_body(CancelWake(name="a"), 10)) == TimerSet("a", None)


@pytest.mark.parametrize("effect", [WakeMe, WakeMeAt, CancelWake])
def test_the_name_of_a_timer_is_a_text(effect: Any) -> None:
    when = {"after_s": 1.0} if effect is WakeMe else {"at_s": 1.0} if effect is WakeMeAt else {}
    with pytest.raises(TypeError, match="a timer's name is a text, not 5"):
        timer_body(effect(name=5, **when), 0)


@pytest.mark.parametrize("after_s", [-1, float("nan"), float("inf"), 86_400 * 3661])
def test_a_duration_is_bounded(after_s: float) -> None:
    with pytest.raises(ValueError, match="give 0 seconds to ten years"):
        timer_body(WakeMe(name="a", after_s=after_s), 0)


def test_a_duration_of_nothing_or_of_ten_years_is_taken() -> None:
    assert read_timer(timer_body(WakeMe(name="a", after_s=0), 7)).due_ns == 7
    ten_years_s = 86_400 * 3660
    assert read_timer(timer_body(WakeMe(name="a", after_s=ten_years_s), 7)).due_ns == 7 + ten_years_s * SECOND_NS
    with pytest.raises(ValueError, match="give 0 seconds to ten years"):
        timer_body(WakeMe(name="a", after_s=ten_years_s + 1), 7)


def test_a_moment_lies_before_the_year_2242() -> None:
    for at_s in (2**33 - 1, 0, -(2**33) + 1):
        assert read_timer(timer_body(WakeMeAt(name="a", at_s=at_s), 7)).due_ns == at_s * SECOND_NS
    for at_s in (2**33, -(2**33)):
        with pytest.raises(ValueError, match="give seconds since 1970"):
            timer_body(WakeMeAt(name="a", at_s=at_s), 7)


@pytest.mark.parametrize("at_s", [float("nan"), float("inf"), 1e300])
def test_a_moment_is_bounded(at_s: float) -> None:
    with pytest.raises((ValueError, OverflowError)):
        timer_body(WakeMeAt(name="a", at_s=at_s), 0)


@pytest.mark.parametrize("effect", [WakeMe(name="window:x", after_s=1), WakeMeAt(name="window:x", at_s=1)])
def test_names_of_windows_are_not_for_agents(effect: Effect) -> None:
    with pytest.raises(ValueError, match="'window:x': names with 'window:' belong to windows; choose another"):
        timer_body(effect, 0)


def test_an_effect_that_nobody_carries_out() -> None:
    class Odd(Effect):
        pass

    with pytest.raises(TypeError, match="Odd is no effect that anybody carries out; subclass Action or Work"):
        timer_body(Odd(), 0)


def test_bytes_that_are_no_timer() -> None:
    with pytest.raises(JournalCorrupt, match="a timer does not decode"):
        read_timer(encode("timer"))


def test_timers_are_set_replaced_cancelled_and_fired() -> None:
    timers = Timers()
    assert timers.put("Drone/a", TimerSet("x", 5)) == PendingTimer(5, "Drone/a", "x")
    assert timers.put("Drone/a", TimerSet("x", 7, follows_wall=True)) == PendingTimer(7, "Drone/a", "x", True)
    assert len(timers) == 1
    assert timers.get("Drone/a", "x") == PendingTimer(7, "Drone/a", "x", True)
    assert timers.put("Drone/a", TimerSet("x", None)) is None
    assert timers.get("Drone/a", "x") is None
    assert timers.put("Drone/a", TimerSet("x", None)) is None
    timers.put("Drone/a", TimerSet("x", 5))
    timers.fire("Drone/a", "x")
    timers.fire("Drone/a", "x")
    assert len(timers) == 0


def test_semantics_7_overdue_timers_fire_in_the_order_of_due_time_and_id() -> None:
    timers = Timers()
    for agent, name, due_ns in (("b", "x", 5), ("a", "y", 5), ("a", "x", 5), ("c", "x", 1)):
        timers.put(agent, TimerSet(name, due_ns))
    assert [(timer.due_ns, timer.agent, timer.name) for timer in timers.all()] == [
        (1, "c", "x"),
        (5, "a", "x"),
        (5, "a", "y"),
        (5, "b", "x"),
    ]
    other = Timers()
    other.restore(timers.all())
    assert other.all() == timers.all()
