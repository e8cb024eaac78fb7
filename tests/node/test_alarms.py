"""The watch over timers: durations by the monotonic clock, moments by the wall clock, whatever either does."""

from stigmergy.node.wakeups import SWEEP_COUNT_MIN, Alarms
from stigmergy.shard.timers import PendingTimer

SECOND_NS = 1_000_000_000
T0 = 1_767_225_600 * SECOND_NS


def duration(seconds: float, name: str = "t", agent: str = "Drone/a") -> PendingTimer:
    return PendingTimer(T0 + int(seconds * SECOND_NS), agent, name)


def moment(seconds: float, name: str = "m") -> PendingTimer:
    return PendingTimer(T0 + int(seconds * SECOND_NS), "Drone/a", name, follows_wall=True)


def names(alarms: Alarms, wall_s: float, monotonic_s: float) -> list[str]:
    fired = alarms.due(T0 + int(wall_s * SECOND_NS), int(monotonic_s * SECOND_NS))
    return [due.name for _, due in fired]


def test_a_duration_is_counted_by_the_monotonic_clock() -> None:
    alarms = Alarms()
    alarms.set(0, duration(10), T0, 0)
    assert alarms.next_ns == 10 * SECOND_NS
    assert not names(alarms, wall_s=5_000, monotonic_s=9.9)
    assert names(alarms, wall_s=-5_000, monotonic_s=10) == ["t"]
    assert not names(alarms, wall_s=0, monotonic_s=100)
    assert alarms.next_ns is None


def test_a_moment_follows_the_wall_clock_forward_within_a_second() -> None:
    alarms = Alarms()
    alarms.set(0, moment(3600), T0, 0)
    assert alarms.next_ns == SECOND_NS
    assert not names(alarms, wall_s=1, monotonic_s=1)
    assert names(alarms, wall_s=3600, monotonic_s=2) == ["m"]


def test_a_moment_follows_the_wall_clock_back() -> None:
    alarms = Alarms()
    alarms.set(0, moment(2), T0, 0)
    assert not names(alarms, wall_s=-3600, monotonic_s=2)
    assert not names(alarms, wall_s=1.5, monotonic_s=3700)
    assert names(alarms, wall_s=2, monotonic_s=3701) == ["m"]


def test_what_is_overdue_after_a_restart_fires_once_by_due_time_agent_and_name() -> None:
    alarms = Alarms()
    timers = [duration(-1, "b"), duration(-5, "z"), duration(-1, "a"), duration(-1, "a", agent="Drone/A"), moment(-3)]
    for timer in timers:
        alarms.set(0, timer, T0, 7)
    fired = alarms.due(T0, 7)
    assert [(due.agent, due.name) for _, due in fired] == [
        ("Drone/a", "z"),
        ("Drone/a", "m"),
        ("Drone/A", "a"),
        ("Drone/a", "a"),
        ("Drone/a", "b"),
    ]
    assert not alarms.due(T0 + SECOND_NS, SECOND_NS)


def test_a_timer_that_was_set_anew_rings_at_its_new_time_only() -> None:
    alarms = Alarms()
    alarms.set(0, duration(1), T0, 0)
    alarms.set(0, duration(5), T0, 0)
    assert not names(alarms, wall_s=1, monotonic_s=1)
    assert names(alarms, wall_s=5, monotonic_s=5) == ["t"]


def test_a_timer_that_was_set_to_the_same_time_twice_rings_once() -> None:
    alarms = Alarms()
    alarms.set(0, duration(1), T0, 0)
    alarms.set(0, duration(1), T0, 0)
    assert names(alarms, wall_s=1, monotonic_s=1) == ["t"]
    assert not names(alarms, wall_s=2, monotonic_s=2)


def test_the_same_name_in_two_shards_is_two_timers() -> None:
    alarms = Alarms()
    alarms.set(0, duration(1), T0, 0)
    alarms.set(1, duration(2), T0, 0)
    assert [shard for shard, _ in alarms.due(T0, 2 * SECOND_NS)] == [0, 1]


def test_a_timer_that_is_put_off_again_and_again_takes_no_more_room() -> None:
    alarms = Alarms()
    for second in range(20 * SWEEP_COUNT_MIN):
        alarms.set(0, duration(10_000 + second), T0, 0)
    assert len(alarms._heap) <= SWEEP_COUNT_MIN
    assert alarms.next_ns is not None
    assert names(alarms, wall_s=0, monotonic_s=10**9) == ["t"]
