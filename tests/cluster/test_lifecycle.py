"""The life of a shard in a worker: what may follow what, and that everything ends."""

import pytest

from stigmergy.base.errors import Bug
from stigmergy.cluster.lifecycle import TRANSITIONS, LifecycleSignal, LifecycleState, LifecycleStep, ShardLifecycle


def lived(*signals: LifecycleSignal) -> ShardLifecycle:
    lifecycle = ShardLifecycle(3)
    for signal in signals:
        lifecycle.take(signal)
    return lifecycle


def reached_from(start: LifecycleState) -> list[LifecycleState]:
    found = [start]
    for state in found:
        for (before, _), (after, _) in TRANSITIONS.items():
            if before is state and after not in found:
                found.append(after)
    return found


def test_a_planned_life_from_idle_to_idle() -> None:
    lifecycle = ShardLifecycle(3)
    steps = [
        lifecycle.take(signal)
        for signal in (
            LifecycleSignal.WANTED,
            LifecycleSignal.WARM,
            LifecycleSignal.FREE,
            LifecycleSignal.CLAIMED,
            LifecycleSignal.AWAITED,
            LifecycleSignal.OVER,
        )
    ]
    assert steps == [
        LifecycleStep.FOLLOW,
        LifecycleStep.ANNOUNCE,
        LifecycleStep.CLAIM,
        LifecycleStep.SETTLE,
        LifecycleStep.RELEASE,
        LifecycleStep.WAIT,
    ]
    assert lifecycle.state is LifecycleState.IDLE


@pytest.mark.parametrize("signal", [LifecycleSignal.FENCED, LifecycleSignal.FAILED])
def test_what_is_lost_ends_as_it_is_and_begins_anew(signal: LifecycleSignal) -> None:
    lifecycle = lived(LifecycleSignal.WANTED, LifecycleSignal.WARM, LifecycleSignal.FREE, LifecycleSignal.CLAIMED)
    assert lifecycle.take(signal) is LifecycleStep.END
    assert lifecycle.state is LifecycleState.LOST
    lifecycle.take(LifecycleSignal.OVER)
    assert lifecycle.take(LifecycleSignal.WANTED) is LifecycleStep.FOLLOW


def test_who_is_beaten_waits_on() -> None:
    lifecycle = lived(LifecycleSignal.WANTED, LifecycleSignal.WARM, LifecycleSignal.FREE, LifecycleSignal.BEATEN)
    assert lifecycle.state is LifecycleState.READY
    assert lifecycle.take(LifecycleSignal.FREE) is LifecycleStep.CLAIM


def test_a_signal_at_the_wrong_time_is_a_bug() -> None:
    with pytest.raises(Bug, match="shard 3 is idle, and was told that the host runs"):
        lived(LifecycleSignal.CLAIMED)


def test_every_state_can_be_reached_and_left_to_idle() -> None:
    assert {state.value for state in reached_from(LifecycleState.IDLE)} == {state.value for state in LifecycleState}
    for start in LifecycleState:
        assert LifecycleState.IDLE in reached_from(start)


def test_a_host_can_only_be_lost_never_forgotten() -> None:
    """Whoever owns goes to idle only by releasing or by ending: no table entry forgets a host."""
    with_host = (LifecycleState.CLAIMING, LifecycleState.OWNING, LifecycleState.RELEASING, LifecycleState.LOST)
    for (before, signal), (after, step) in TRANSITIONS.items():
        if before in with_host and after not in with_host:
            assert step is not LifecycleStep.FORGET, (before, signal)
            assert signal in (LifecycleSignal.OVER, LifecycleSignal.BEATEN)
