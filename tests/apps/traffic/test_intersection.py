"""What an intersection decides. No disk, no clock, no network."""

from __future__ import annotations

from typing import Any

import pytest

from apps.traffic.intersection import (
    COMING,
    CONFIRM_S,
    HERE,
    LOST_TICKS,
    SILENCE_S,
    TICK_S,
    Intersection,
    change,
    demand,
    leg_name,
    remember,
    vehicles_of,
)
from apps.traffic.messages import (
    AllRed,
    Beat,
    ClearMonitor,
    CrossingRequested,
    DetectorsHeard,
    LampsSeen,
    MonitorResetAsked,
    PhaseChanged,
    PhaseConfirmed,
    ResetMonitor,
    Resume,
    ShowPhase,
    StopAll,
    Survey,
    VehicleArrived,
    VehicleLeft,
    WokeUp,
)
from apps.traffic.phases import FIXED_GREEN_S, STAGE_OF, Geometry, Phase, may_follow
from stigmergy import ActionFailed, Command, Event, SafeActionTaken
from stigmergy.testing import Scenario, given

SIZE = Geometry()


def ready(*past: Event) -> Scenario[Intersection]:
    """One that was switched on, and whose lamps were seen."""
    begun = given(Intersection, *past, id="r1c1").when(DetectorsHeard())
    return seen(begun)


def seen(one: Scenario[Intersection], phase: Phase | None = None, **more: Any) -> Scenario[Intersection]:
    """Its lamps show what they should, or this."""
    return one.when(LampsSeen(phase=phase or one.agent.phase, number=more.pop("number", one.agent.number), **more))


def alive(one: Scenario[Intersection], seconds: float, *, detectors: bool = True) -> Scenario[Intersection]:
    """Time passes, lamps obey, detectors are heard if they work."""
    for _ in range(round(seconds / 0.5)):
        if not one.agent.confirmed:
            seen(one)
            if detectors and one.agent.phase is Phase.CLEARING:
                one.when(DetectorsHeard())
        one.later(hearing="everything", seconds=0.5)
    return one


def until(one: Scenario[Intersection], phase: Phase, within_s: float = 120.0) -> float:
    """Lives on until it wants to show this; returns after how long."""
    for looks in range(round(within_s * 2)):
        if one.agent.phase is phase:
            return looks / 2
        alive(one, 0.5)
    raise AssertionError(f"still {one.agent.phase} after {within_s} s")


def test_begins_with_everything_red_and_asks_the_lamps() -> None:
    one = given(Intersection, id="r1c1").when(DetectorsHeard())
    one.state(phase=Phase.ALL_RED, awake=True, confirmed=False, mode="local", number=1)
    assert ShowPhase(phase=Phase.ALL_RED, number=1) in shown(one)
    seen(one).state(confirmed=True)


def shown(one: Scenario[Intersection]) -> list[Any]:
    return [happened.message for happened in one._happened]


def test_recovers_from_all_red_in_order() -> None:
    one = ready()
    waited_s = until(one, Phase.CLEARING)
    assert SIZE.recovery_s <= waited_s <= SIZE.recovery_s + 2 * TICK_S
    first_s = until(one, Phase.STREET_GREEN)
    assert SIZE.clearing_s <= first_s <= SIZE.clearing_s + 0.5


def test_a_round_alone_keeps_all_times() -> None:
    """Fixed times, everybody in turn, no yellow and no clearance shorter than it must be."""
    one = ready()
    until(one, Phase.STREET_GREEN)
    one.when(CrossingRequested())
    lasted: list[tuple[Phase, float]] = []
    for _ in range(12):
        phase = one.agent.phase
        before_s = one._now_ns
        while one.agent.phase is phase:
            alive(one, 0.5)
        assert may_follow(phase, one.agent.phase)
        lasted.append((phase, (one._now_ns - before_s) / 1e9))
    for phase, lasted_s in lasted:
        least_s = FIXED_GREEN_S if phase in STAGE_OF and phase is not Phase.WALK else SIZE.least_s(phase)
        assert least_s <= lasted_s <= least_s + 1.5, phase
    assert [phase for phase, _ in lasted if phase in STAGE_OF] == [
        Phase.STREET_GREEN,
        Phase.WALK,
        Phase.AVENUE_GREEN,
        Phase.STREET_GREEN,
    ]


def test_time_counts_from_when_the_lamps_were_seen() -> None:
    one = ready()
    until(one, Phase.CLEARING)
    one.later(hearing="everything", seconds=CONFIRM_S - 0.1).state(phase=Phase.CLEARING, confirmed=False)
    seen(one).when(DetectorsHeard())
    one.later(hearing="everything", seconds=SIZE.clearing_s - 0.1).state(phase=Phase.CLEARING)
    one.later(hearing="everything", seconds=0.2).state(phase=Phase.STREET_GREEN)


def test_lamps_that_do_not_obey_turn_everything_red() -> None:
    one = ready()
    until(one, Phase.STREET_GREEN)
    one.later(hearing="everything", seconds=CONFIRM_S + 0.1).state(
        phase=Phase.ALL_RED, because="lamps do not show street-green"
    )
    number = one.agent.number
    one.later(hearing="everything", seconds=CONFIRM_S + 0.1)
    assert one.agent.number > number, "asks again"
    one.state(because="lamps do not show street-green")


@pytest.mark.parametrize("wrong", [Phase.AVENUE_GREEN, Phase.WALK, Phase.ALL_RED])
def test_lamps_that_show_something_else(wrong: Phase) -> None:
    one = ready()
    until(one, Phase.STREET_GREEN)
    seen(one)
    seen(one, wrong).state(phase=Phase.ALL_RED)
    assert one.agent.because == f"lamps show {wrong.value}, not street-green"


def test_what_lamps_showed_before_is_no_matter() -> None:
    one = ready()
    until(one, Phase.STREET_GREEN)
    seen(one, Phase.CLEARING, number=one.agent.number - 1).state(phase=Phase.STREET_GREEN)


def test_a_monitor_that_trips() -> None:
    one = ready()
    until(one, Phase.STREET_GREEN)
    seen(one, Phase.ALL_RED, tripped="too soon").state(phase=Phase.ALL_RED, because="monitor: too soon")
    seen(one, tripped="too soon")
    until(one, Phase.CLEARING)
    one = ready()
    until(one, Phase.STREET_GREEN)
    seen(one, Phase.ALL_RED, tripped="two at once", latched=True)
    for _ in range(60):
        seen(one, tripped="two at once", latched=True)
        one.later(hearing="everything", seconds=1)
    one.state(phase=Phase.ALL_RED, latched=True)
    one.when(ResetMonitor(by="ada")).then(MonitorResetAsked(by="ada"), ClearMonitor(by="ada"))
    seen(one)
    until(one, Phase.CLEARING)
    one.when(ResetMonitor(by="ada")).refused("nothing to reset")


def test_an_order_that_failed() -> None:
    one = ready()
    until(one, Phase.STREET_GREEN)
    one.when(ActionFailed(action="ShowPhase", reason="no answer")).state(
        phase=Phase.ALL_RED, because="lamps: no answer"
    )
    number = one.agent.number
    one.when(ActionFailed(action="ShowPhase", reason="no answer")).state(number=number)
    until(one, Phase.STREET_GREEN)
    one.when(ActionFailed(action="AllRed", reason="?")).state(phase=Phase.STREET_GREEN)


@pytest.mark.parametrize("at", list(Phase))
def test_a_safe_action_ends_every_phase_and_nothing_goes_on_unheard(at: Phase) -> None:
    one = ready()
    if at in (Phase.WALK, Phase.WALK_ENDING):
        one.when(CrossingRequested())
    until(one, at)
    safe = given(Intersection, *history(one), SafeActionTaken(action="AllRed", because="silence"), id="r1c1")
    safe.state(phase=Phase.ALL_RED, because="silence", confirmed=False, detectors=False, lamps=False)
    seen(safe)
    for _ in range(60):
        safe.later(hearing="everything", seconds=0.5)
    safe.state(phase=Phase.ALL_RED)


def history(one: Scenario[Intersection]) -> tuple[Event, ...]:
    """All that an agent has kept of its own, to begin another one with."""
    kept = [one._plan.decode(body) for commit, _ in one._commits for _, body in commit.events]
    return tuple(event for event in kept if isinstance(event, Event))


def test_a_controller_that_was_started_anew_begins_with_red() -> None:
    one = ready()
    until(one, Phase.STREET_GREEN)
    seen(one)
    seen(one, first=True).state(phase=Phase.ALL_RED, because="the controller was started anew", detectors=False)
    alive(one, 60, detectors=False).state(phase=Phase.ALL_RED)
    one.when(DetectorsHeard())
    until(one, Phase.CLEARING)
    one.state(detectors=False)
    alive(one, 10, detectors=False).state(phase=Phase.CLEARING)
    one.when(DetectorsHeard())
    alive(one, 1).state(phase=Phase.AVENUE_GREEN)


def test_a_controller_that_was_started_anew_in_red_waits_as_long_as_ever() -> None:
    one = ready()
    alive(one, SIZE.recovery_s - 2)
    seen(one, first=True).state(phase=Phase.ALL_RED, red_ticks=0)
    alive(one, 5, detectors=False).state(red_ticks=0)
    one.when(DetectorsHeard())
    assert until(one, Phase.CLEARING) >= SIZE.recovery_s - TICK_S


def test_detectors_that_say_they_are_broken() -> None:
    one = ready()
    until(one, Phase.STREET_GREEN)
    one.when(DetectorsHeard(working=False)).state(phase=Phase.ALL_RED, because="detectors do not work")
    alive(one, 40, detectors=False).state(phase=Phase.ALL_RED)
    one.when(DetectorsHeard())
    until(one, Phase.STREET_GREEN)


def test_people_stop_and_resume_it() -> None:
    one = ready()
    one.when(Resume()).refused("nobody has stopped it")
    until(one, Phase.STREET_GREEN)
    one.when(StopAll(reason="accident")).state(phase=Phase.ALL_RED, stop="accident")
    alive(one, 60).state(phase=Phase.ALL_RED)
    one.when(Resume()).state(stop="")
    waited_s = until(one, Phase.CLEARING)
    assert waited_s >= SIZE.recovery_s


def test_a_survey() -> None:
    one = ready().when(Survey(width_m=30, speed_m_s=20, block_m=300))
    one.state(geometry=Geometry(width_m=30, speed_m_s=20, block_m=300))
    for wrong in (
        Survey(width_m=1, speed_m_s=20, block_m=300),
        Survey(width_m=30, speed_m_s=90, block_m=300),
        Survey(width_m=30, speed_m_s=20, block_m=float("nan")),
    ):
        one.when(wrong).refused("give ")
    until(one, Phase.STREET_GREEN)
    one.when(Survey(width_m=30, speed_m_s=20, block_m=300)).refused("while everything is red")


def test_the_table_is_asked_before_every_change() -> None:
    agent = ready().agent
    with pytest.raises(ValueError, match="street-green cannot follow all-red"):
        list(change(agent, Phase.STREET_GREEN))


def test_walkers_are_served_once_and_told_to_hurry() -> None:
    one = ready()
    until(one, Phase.STREET_GREEN)
    one.when(CrossingRequested()).state(walkers=True)
    until(one, Phase.WALK)
    one.state(walkers=False)
    one.when(CrossingRequested()).state(walkers=False)
    ending_s = until(one, Phase.WALK_ENDING)
    assert ending_s >= 6.0
    one.when(CrossingRequested()).state(walkers=True)
    assert until(one, Phase.CLEARING) >= SIZE.width_m


# ---------------------------------------------------------------------- vehicles


def at(one: Scenario[Intersection], place: str, name: str = "r1c1", axis: Any = "street") -> list[str]:
    return list(vehicles_of(one.agent, axis)[name][place])


def test_a_vehicle_comes_and_is_handed_on() -> None:
    one = ready().when(VehicleArrived("V1", 1, "street", entering=True))
    assert (at(one, HERE), one.agent.unheard) == (["V1.1"], ())
    one.when(VehicleLeft("V1", 1, "street", to="r1c2", onto="street"))
    assert (at(one, HERE), at(one, COMING, "r1c2")) == ([], ["V1.2"])
    assert one.agent.served == 1


def test_a_vehicle_turns() -> None:
    one = ready().when(VehicleArrived("V1", 3, "street", entering=True))
    one.when(VehicleLeft("V1", 3, "street", to="r2c1", onto="avenue"))
    assert at(one, HERE) == []
    assert at(one, COMING, "r2c1", "avenue") == ["V1.4"]


def test_a_vehicle_leaves_the_grid() -> None:
    one = ready().when(VehicleArrived("V1", 1, "avenue", entering=True), VehicleLeft("V1", 1, "avenue"))
    assert list(one.agent.avenue_vehicles) == []


def test_what_detectors_say_twice_counts_once() -> None:
    came, went = VehicleArrived("V1", 1, "street", entering=True), VehicleLeft("V1", 1, "street", to="r1c2")
    one = ready().when(came, came)
    assert at(one, HERE) == ["V1.1"]
    one.when(went, went, came)
    assert (at(one, HERE), at(one, COMING, "r1c2"), one.agent.served) == ([], ["V1.2"], 1)


def test_a_way_that_does_not_exist() -> None:
    ready().when(VehicleLeft("V1", 1, "street", to="r2c2", onto="street")).failed("cannot go from r1c1 to r2c2")


def test_who_comes_unannounced_is_remembered() -> None:
    one = ready().when(VehicleArrived("V1", 2, "street"))
    one.state(unheard=("V1.2",))
    one = ready().when(VehicleLeft("V2", 5, "street", to="r1c2"))
    one.state(unheard=("V2.5",))
    assert at(one, COMING, "r1c2") == ["V2.6"]


def test_memory_has_an_end() -> None:
    names: tuple[str, ...] = ()
    for number in range(10):
        names = remember(names, leg_name("V", number), 3)
    assert names == ("V.7", "V.8", "V.9")
    assert remember(names, "V.8", 3) == names


def test_whom_a_detector_has_missed_still_stands_there() -> None:
    one = ready().when(DetectorsHeard(avenue=True)).state(standing=("avenue",))
    assert (demand(one.agent, "avenue").here, demand(one.agent, "street").here) == (1, 0)
    one.when(DetectorsHeard()).state(standing=())


def test_who_was_stopped_has_nothing_to_say() -> None:
    one = ready().when(StopAll(reason="accident"))
    alive(one, 20)
    assert one.agent.told_tick < 5
    assert one.agent.ticks >= 19


# ---------------------------------------------------------------------- neighbours


def told(phase: Phase, number: int, at_s: float) -> Beat:
    return Beat(phase=phase, number=number, at_s=at_s)


def test_a_neighbour_that_is_heard_changes_the_mode_and_makes_a_wave() -> None:
    one = ready()
    now_s = one._now_ns / 1e9
    one.when_peers_write(lambda other: other.street["r1c2"].set(told(Phase.STREET_GREEN, 7, now_s)))
    (platoon,) = one.agent.platoons
    assert (platoon.source, platoon.axis) == ("r1c2", "street")
    assert platoon.begins_s == pytest.approx(now_s + 140 / 13.9)
    alive(one, 1).state(mode="coordinated")
    one.when_peers_write(lambda other: other.street["r1c2"].set(told(Phase.STREET_YELLOW, 8, now_s + 1)))
    assert one.agent.platoons[0].ends_s < platoon.ends_s
    alive(one, LOST_TICKS * TICK_S + 1).state(mode="local")


def test_no_register_moves_a_lamp() -> None:
    one = ready()
    until(one, Phase.STREET_GREEN)
    wrong = told(Phase.AVENUE_GREEN, 99, one._now_ns / 1e9)
    one.when_peers_write(lambda other: other.street["r1c1"].set(wrong), lambda other: other.avenue["r1c1"].set(wrong))
    one.state(phase=Phase.STREET_GREEN)
    assert not [done for done in shown(one) if isinstance(done, ShowPhase)]


def test_old_news_make_no_wave() -> None:
    one = ready()
    old = told(Phase.STREET_GREEN, 7, one._now_ns / 1e9 - 6)
    one.when_peers_write(lambda other: other.street["r1c2"].set(old)).state(platoons=())
    assert [name for name, _ in one.agent.heard] == ["r1c2"]


def test_those_further_away_make_no_wave_as_long_as_the_nearest_is_heard() -> None:
    one = ready()
    now_s = one._now_ns / 1e9
    one.when_peers_write(
        lambda other: other.street["r1c2"].set(told(Phase.ALL_RED, 1, now_s)),
        lambda other: other.street["r1c3"].set(told(Phase.STREET_GREEN, 1, now_s)),
    )
    one.state(platoons=())


def test_an_announcement_after_the_vehicle_is_taken_back() -> None:
    one = ready().when(VehicleArrived("V1", 2, "street"), VehicleLeft("V1", 2, "street", to="r1c2"))
    one.state(unheard=("V1.2",))
    one.when_peers_write(lambda other: other.street_vehicles["r1c1"][COMING].add("V1.2")).state(unheard=())
    assert (at(one, HERE), at(one, COMING), at(one, COMING, "r1c2")) == ([], [], ["V1.3"])


def test_an_announcement_before_the_vehicle_is_met_by_it() -> None:
    one = ready().when_peers_write(lambda other: other.street_vehicles["r1c1"][COMING].add("V1.2"))
    assert at(one, COMING) == ["V1.2"]
    one.when(VehicleArrived("V1", 2, "street")).state(unheard=())
    assert (at(one, HERE), at(one, COMING)) == (["V1.2"], [])


# ---------------------------------------------------------------------- silence


def test_what_makes_safe_is_declared() -> None:
    rules = {Intersection.blind.event, Intersection.dark.event, Intersection.stuck.event}
    assert {rule.__name__ for rule in rules} == {"DetectorsHeard", "LampsSeen", "Ticked"}
    assert Intersection.blind.then == Intersection.dark.then == Intersection.stuck.then == AllRed()
    assert Intersection.stuck.after_s == SILENCE_S > TICK_S


def test_alone_it_says_so() -> None:
    one = ready()
    alive(one, LOST_TICKS * TICK_S * 2)
    one.state(mode="local")


@pytest.mark.parametrize("command", [StopAll(reason="x"), Survey(width_m=9, speed_m_s=9, block_m=99)])
def test_orders_before_anything_else(command: Command) -> None:
    given(Intersection, id="r1c1").when(command).state(phase=Phase.ALL_RED)


def test_confirmations_come_once() -> None:
    one = given(Intersection, WokeUp(), id="r1c1").when(LampsSeen(phase=Phase.ALL_RED, number=1))
    assert PhaseConfirmed(number=1) in shown(one)
    seen(one).then(LampsSeen(phase=Phase.ALL_RED, number=1))
    assert PhaseChanged(phase=Phase.ALL_RED) not in shown(one)
