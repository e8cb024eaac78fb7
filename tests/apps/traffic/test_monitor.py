"""The conflict monitor: whatever is ordered, what is shown is safe."""

from __future__ import annotations

import itertools
import random

import pytest

from apps.traffic.monitor import RED, SILENCE_S_MAX, Limits, Monitor
from apps.traffic.phases import LAMPS, Aspect, Lamps, Phase

LIMITS = Limits(yellow_s=3.0, clearing_s=2.0, flashing_s=10.0, unwarned_s=10.0)
ASPECTS: tuple[Aspect, ...] = ("red", "yellow", "green", "flashing")
STREET = (Phase.STREET_GREEN, Phase.STREET_YELLOW, Phase.CLEARING)
AVENUE = (Phase.AVENUE_GREEN, Phase.AVENUE_YELLOW, Phase.CLEARING)
WALK = (Phase.WALK, Phase.WALK_ENDING, Phase.CLEARING)
LASTS = {
    Phase.STREET_GREEN: 6.0,
    Phase.AVENUE_GREEN: 6.0,
    Phase.WALK: 6.0,
    Phase.STREET_YELLOW: 3.0,
    Phase.AVENUE_YELLOW: 3.0,
    Phase.WALK_ENDING: 10.0,
    Phase.CLEARING: 2.0,
    Phase.ALL_RED: 10.0,
}


class Watched:
    """A monitor and a clock."""

    def __init__(self) -> None:
        self.now_s = 100.0
        self.monitor = Monitor(LIMITS, self.now_s)
        self.now_s += LIMITS.unwarned_s

    def run(self, *phases: Phase, hurry: Phase | None = None) -> bool:
        """Shows one after the other, each for as long as it takes; whether the monitor has let them all pass."""
        for phase in phases:
            if self.monitor.show(LAMPS[phase], self.now_s) != LAMPS[phase] or self.monitor.tripped:
                return False
            self.now_s += LASTS[phase] * (0.8 if phase is hurry else 1.0)
        return True


def test_a_whole_round_passes() -> None:
    watched = Watched()
    assert watched.run(*STREET, *WALK, *AVENUE, *STREET)
    assert watched.monitor.trips == 0


@pytest.mark.parametrize(("first", "then"), list(itertools.permutations([STREET, AVENUE, WALK], 2)))
def test_no_clearance_may_be_shorter(first: tuple[Phase, ...], then: tuple[Phase, ...]) -> None:
    for hurried in first[1:]:
        watched = Watched()
        assert not watched.run(*first, *then, hurry=hurried)
        assert watched.monitor.lamps == RED


@pytest.mark.parametrize(("now", "then"), list(itertools.product(Phase, Phase)))
def test_no_green_follows_anything_but_a_clearance(now: Phase, then: Phase) -> None:
    """All pairs: what the table forbids, the monitor forbids too, without knowing the table."""
    watched = Watched()
    ways = {Phase.STREET_YELLOW: STREET[:1], Phase.AVENUE_YELLOW: AVENUE[:1], Phase.WALK_ENDING: WALK[:1]}
    assert watched.run(*ways.get(now, ()), now)
    shown = watched.monitor.show(LAMPS[then], watched.now_s)
    going = [name for name in ("street", "avenue", "walk") if getattr(shown, name) != "red"]
    was = [name for name in ("street", "avenue", "walk") if getattr(LAMPS[now], name) != "red"]
    assert len(going) <= 1
    assert not was or not going or was == going, "nobody else goes right after somebody"


@pytest.mark.parametrize("lamps", [Lamps(*some) for some in itertools.product(ASPECTS, repeat=3)])
def test_two_at_once_are_never_shown_and_latch(lamps: Lamps) -> None:
    going = [aspect for aspect in (lamps.street, lamps.avenue, lamps.walk) if aspect != "red"]
    watched = Watched()
    shown = watched.monitor.show(lamps, watched.now_s)
    if len(going) > 1:
        assert shown == RED
        assert watched.monitor.latched
        assert not watched.run(Phase.ALL_RED, *STREET), "only a technician ends this"
        watched.monitor.reset(watched.now_s)
        assert not watched.run(*STREET), "not at once"
        watched.now_s += LIMITS.unwarned_s
        assert watched.run(*STREET)


def test_red_is_always_allowed_and_costs_time() -> None:
    watched = Watched()
    assert watched.run(Phase.STREET_GREEN, Phase.ALL_RED)
    watched.now_s -= 1.0
    assert not watched.run(*AVENUE)
    assert "after a fault" in watched.monitor.tripped
    watched.now_s += LIMITS.unwarned_s
    assert watched.run(*AVENUE)
    assert watched.monitor.tripped == ""


def test_a_silent_controller_gets_red_lamps() -> None:
    watched = Watched()
    assert watched.run(Phase.STREET_GREEN)
    monitor = watched.monitor
    monitor.alive(watched.now_s)
    assert monitor.tick(watched.now_s + SILENCE_S_MAX - 0.1) != RED
    assert monitor.tick(watched.now_s + SILENCE_S_MAX + 0.1) == RED
    assert "silent" in monitor.tripped
    assert monitor.trips == 1
    watched.now_s += SILENCE_S_MAX + 0.1
    monitor.show(RED, watched.now_s)
    assert monitor.tripped, "not over yet"
    watched.now_s += LIMITS.unwarned_s
    monitor.show(RED, watched.now_s)
    assert monitor.tripped == "", "whoever begins again in order is not told of it for ever"
    assert watched.run(*AVENUE)


def test_lamps_that_a_group_does_not_have() -> None:
    watched = Watched()
    assert watched.run(Phase.STREET_GREEN)
    assert watched.monitor.show(Lamps(street="flashing"), watched.now_s) == RED
    assert watched.monitor.tripped == "street has no flashing"


@pytest.mark.parametrize("seed", range(20))
def test_whatever_is_ordered_what_is_shown_is_safe(seed: int) -> None:
    """Random orders at random times, and an account of what was shown that knows nothing of how it is checked."""
    chance = random.Random(seed)
    watched = Watched()
    groups = ("street", "avenue", "walk")
    ended_s = dict.fromkeys(groups, 0.0)
    greens = 0
    shown = RED
    for _ in range(2_000):
        wanted = LAMPS[chance.choice(list(Phase))]
        if chance.random() < 0.02:
            wanted = Lamps(*(chance.choice(ASPECTS) for _ in groups))
        if chance.random() < 0.05:
            watched.monitor.reset(watched.now_s)
            ended_s |= {group: watched.now_s for group in groups if getattr(shown, group) != "red"}
            shown = RED
            watched.now_s += chance.choice((0.0, 11.0))
        before, shown = shown, watched.monitor.show(wanted, watched.now_s)
        going = [group for group in groups if getattr(shown, group) != "red"]
        assert len(going) <= 1
        for group in groups:
            if getattr(before, group) != "red" and getattr(shown, group) == "red":
                ended_s[group] = watched.now_s
        for group in going:
            if getattr(before, group) == "red":
                greens += 1
                others = [ended_s[other] for other in groups if other != group]
                assert watched.now_s - max(others) >= LIMITS.clearing_s - 0.1
        watched.now_s += chance.choice((0.1, 1.0, 2.0, 3.0, 6.0, 10.0, 20.0))
    assert greens > 5, "it lets somebody go now and then"
