"""The life of a shard in a worker: what may follow what, and that everything ends."""

import pytest

from stigmergy.base.errors import Bug
from stigmergy.cluster.lifecycle import TRANSITIONS, Signal, State, Step, Tenancy


def lived(*signals: Signal) -> Tenancy:
    tenancy = Tenancy(3)
    for signal in signals:
        tenancy.take(signal)
    return tenancy


def reached_from(start: State) -> list[State]:
    found = [start]
    for state in found:
        for (before, _), (after, _) in TRANSITIONS.items():
            if before is state and after not in found:
                found.append(after)
    return found


def test_a_planned_life_from_idle_to_idle() -> None:
    tenancy = Tenancy(3)
    steps = [
        tenancy.take(signal)
        for signal in (Signal.WANTED, Signal.WARM, Signal.FREE, Signal.CLAIMED, Signal.AWAITED, Signal.OVER)
    ]
    assert steps == [Step.FOLLOW, Step.ANNOUNCE, Step.CLAIM, Step.SETTLE, Step.RELEASE, Step.WAIT]
    assert tenancy.state is State.IDLE


@pytest.mark.parametrize("signal", [Signal.FENCED, Signal.FAILED])
def test_what_is_lost_ends_as_it_is_and_begins_anew(signal: Signal) -> None:
    tenancy = lived(Signal.WANTED, Signal.WARM, Signal.FREE, Signal.CLAIMED)
    assert tenancy.take(signal) is Step.END
    assert tenancy.state is State.LOST
    tenancy.take(Signal.OVER)
    assert tenancy.take(Signal.WANTED) is Step.FOLLOW


def test_who_is_beaten_waits_on() -> None:
    tenancy = lived(Signal.WANTED, Signal.WARM, Signal.FREE, Signal.BEATEN)
    assert tenancy.state is State.READY
    assert tenancy.take(Signal.FREE) is Step.CLAIM


def test_a_signal_at_the_wrong_time_is_a_bug() -> None:
    with pytest.raises(Bug, match="shard 3 is idle, and was told that the host runs"):
        lived(Signal.CLAIMED)


def test_every_state_can_be_reached_and_left_to_idle() -> None:
    assert {state.value for state in reached_from(State.IDLE)} == {state.value for state in State}
    for start in State:
        assert State.IDLE in reached_from(start)


def test_a_host_can_only_be_lost_never_forgotten() -> None:
    """Whoever owns goes to idle only by releasing or by ending: no table entry forgets a host."""
    with_host = (State.CLAIMING, State.OWNING, State.RELEASING, State.LOST)
    for (before, signal), (after, step) in TRANSITIONS.items():
        if before in with_host and after not in with_host:
            assert step is not Step.FORGET, (before, signal)
            assert signal in (Signal.OVER, Signal.BEATEN)
