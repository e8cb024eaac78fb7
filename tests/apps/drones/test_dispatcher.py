"""A dispatcher: rounds, holds, hand-overs, and a desk that only one holds."""

from __future__ import annotations

from typing import Any

import pytest

from apps.drones import dispatcher as module
from apps.drones.area import Area
from apps.drones.dispatcher import (
    AGAIN_S,
    DESK_S,
    DESK_WAIT_S,
    HOLD_S,
    OFFERS_MAX,
    PATIENCE_S,
    ROUND_DRONES_MAX,
    ROUND_JOBS_MAX,
    ROUND_S,
    SOLVER_S,
    SOON_S,
    STALE_S,
    ClaimAgain,
    Dispatcher,
    RoundDue,
    SolverLate,
)
from apps.drones.messages import (
    AssignJob,
    DeskOpened,
    DroneBusy,
    DroneReady,
    HandOverAsked,
    HandOverJob,
    JobClosed,
    JobOpened,
    Match,
    Matched,
    OpenDesk,
    RoundBegan,
    RoundSkipped,
    Site,
)
from stigmergy import Denied, Effect, Event, Failed, Granted, Lost, Tell, Woken
from stigmergy.testing import Scenario, given

AREA = Area(columns=4, rows=4, zone_m=3000.0, regions=2)
ZONE = "r1-0101"
DESK = f"desk-{ZONE}"
START = 1000.0
J1, J2 = f"{ZONE}.J1", f"{ZONE}.J2"
D1, D2 = f"{ZONE}-001", f"{ZONE}-002"


def job(name: str = J1, token: int = 1, **more: Any) -> JobOpened:
    known: dict[str, Any] = {"zone": ZONE, "kg": 1.0, "deadline_t": START + 1800.0, "priority": 1, "since_t": START}
    return JobOpened(job=name, token=token, pickup=Site(3030.0, 3030.0), drop=Site(3330.0, 3030.0), **known | more)


def drone(name: str = D1, battery: float = 90.0, x: float = 4000.0) -> DroneReady:
    return DroneReady(drone=name, x=x, y=4000.0, battery=battery, capacity_kg=2.5)


def granted(token: int = 5) -> Granted:
    return Granted(claim="desk", resource=DESK, token=token, for_s=DESK_S, renews=True)


LOST = Lost(claim="desk", resource=DESK, token=5, reason="no contact")


def at_desk(token: int = 5) -> Scenario[Dispatcher]:
    return given(Dispatcher, id=f"{ZONE}.a", at=START).when(OpenDesk(area=AREA)).when(granted(token))


def solving() -> Scenario[Dispatcher]:
    """The solver was asked about one job and one drone."""
    return at_desk().when(drone(), job()).later(seconds=SOON_S)


def assigned(name: str = J1, to: str = D1, token: int = 1, desk: int = 5) -> Tell:
    return Tell(f"Job/{name}", AssignJob(drone=to, desk=desk, token=token, zone=ZONE))


def answer(*pairs: tuple[str, str], round: int = 1, by: str = "solver") -> Matched:
    return Matched(round=round, pairs=pairs, by=by)


# ------------------------------------------------------------------ the desk


def test_the_desk_is_claimed_and_claimed_again() -> None:
    one = given(Dispatcher, id=f"{ZONE}.a").when(OpenDesk(area=AREA))
    asked = one.agent.desk.claim(for_s=DESK_S, of=DESK, wait_s=DESK_WAIT_S, renew=True)
    one.then(DeskOpened(area=AREA), asked)
    one.when(OpenDesk(area=AREA)).then_nothing()
    denied = Denied(claim="desk", resource=DESK, reason="its turn did not come in time")
    for verdict in (denied, LOST):
        one.when(granted()).when(verdict).then(ClaimAgain.wake(after_s=AGAIN_S))
        one.later(seconds=AGAIN_S).then(asked)


def test_the_job_of_a_silent_drone_does_not_wait_for_the_next_round() -> None:
    """A run with 500 drones had jobs that waited 2 s for a round when every second counted."""
    one = solving().when(answer((J1, D1))).state(solving=False)
    silent = job(J2, token=2, silent=D2, why=f"{D2} is silent")
    one.when(drone(f"{ZONE}-003"), silent).later(seconds=SOON_S).state(solving=True, round=2)
    one.when(answer((J2, f"{ZONE}-003"), round=2)).when(job(f"{ZONE}.J3"), drone(f"{ZONE}-004"))
    one.later(seconds=ROUND_S - SOON_S).state(solving=False).later(seconds=SOON_S).state(solving=True, round=3)
    busy = solving().when(silent, drone(f"{ZONE}-003")).when(answer((J1, D1)))
    busy.later(seconds=SOON_S).state(solving=True, round=2)


def test_without_the_desk_it_listens_and_gives_nothing_away() -> None:
    other = given(Dispatcher, id=f"{ZONE}.b", at=START).when(OpenDesk(area=AREA))
    other.when(drone(), job()).then(drone(), job())
    other.later(seconds=60).then_nothing()
    other.when(Woken[RoundDue](name="RoundDue")).then_nothing()
    other.when(granted(9)).then(RoundDue.wake(after_s=SOON_S))
    other.later(seconds=SOON_S).state(solving=True)
    other.when(answer((J1, D1))).then(
        answer((J1, D1)), assigned(desk=9), SolverLate.cancel(), RoundDue.wake(after_s=HOLD_S)
    )


def test_a_desk_that_is_lost_while_the_solver_works_gives_nothing_away() -> None:
    one = solving().when(LOST)
    one.when(answer((J1, D1))).then(answer(), SolverLate.cancel()).state(solving=False)
    late = solving().when(LOST).later(seconds=SOLVER_S).state(solving=False)
    assert late.agent.jobs[J1].offers == 0


# ------------------------------------------------------------------ rounds


def test_a_round() -> None:
    one = at_desk().when(job()).when(drone()).then(drone(), RoundDue.wake(after_s=SOON_S))
    match = Match(zone=ZONE, round=1, jobs=(job(),), drones=(drone(),), now_t=START + SOON_S)
    one.later(seconds=SOON_S).then(RoundBegan(1, 1, 1, True), match, SolverLate.wake(after_s=SOLVER_S))
    one.when(answer((J1, D1)))
    one.then(answer((J1, D1)), assigned(), SolverLate.cancel(), RoundDue.wake(after_s=HOLD_S))
    one.when(JobClosed(job=J1, token=1), DroneBusy(drone=D1, why="rising")).state(jobs={}, drones={})
    one.later(seconds=HOLD_S).then(RoundSkipped()).state(next_s=0.0)
    one.later(seconds=3600).then_nothing()


def test_an_idle_dispatcher_has_no_timers() -> None:
    at_desk().when(drone(D1), drone(D2)).then(drone(D1), drone(D2)).later(seconds=3600).then_nothing()


def test_a_pair_of_which_nothing_is_heard_is_free_again() -> None:
    one = solving().when(answer((J1, D1)))
    one.later(seconds=ROUND_S).then_nothing()
    one.when(drone(battery=80.0)).later(seconds=ROUND_S).then_nothing()  # said before it had heard of its job
    one.later(seconds=HOLD_S - 2 * ROUND_S).state(solving=True, round=2)


def test_a_job_that_comes_back_is_free_at_once() -> None:
    one = solving().when(answer((J1, D1)))
    one.when(job(J1, token=2, not_by=(D1,), why=f"{D1}: no"), drone(D2)).later(seconds=ROUND_S)
    one.state(solving=True, round=2)
    one.when(answer((J1, D2), round=2)).then(
        answer((J1, D2), round=2), assigned(to=D2, token=2), SolverLate.cancel(), RoundDue.wake(after_s=8.0)
    )


def test_rounds_are_so_far_apart() -> None:
    one = solving().when(answer((J1, D1))).when(job(J2)).when(drone(D2))
    one.then(drone(D2), RoundDue.wake(after_s=ROUND_S))
    one.later(seconds=ROUND_S).state(solving=True, round=2)


def test_a_stream_of_news_does_not_put_a_round_off() -> None:
    one = at_desk().when(drone())
    for number in range(10):
        one.when(job(f"{ZONE}.N{number}")).later(seconds=SOON_S / 4)
    one.state(round=1)


def test_what_nobody_can_fly_is_not_solved_over_and_over() -> None:
    one = at_desk().when(drone(), job(kg=4.0)).later(seconds=SOON_S).when(answer())
    one.later(seconds=PATIENCE_S / 2).state(round=1, solving=False)
    one.when(drone(D2)).later(seconds=ROUND_S).state(round=2, solving=True)


def test_the_solver_is_late_and_the_greedy_rule_decides() -> None:
    one = solving().later(seconds=SOLVER_S).state(solving=False)
    assert one.agent.jobs[J1].offers == 1
    one.when(answer((J1, D1))).then_nothing()  # too late


def test_the_solver_fails_and_the_greedy_rule_decides() -> None:
    one = solving().when(Failed(Match(ZONE, 7, (), (), START), reason="another round"))
    one.then_nothing().state(solving=True)
    one.when(Failed(Match(ZONE, 1, (job(),), (drone(),), START), reason="no worker")).state(solving=False)
    assert one.agent.jobs[J1].offers == 1


def test_an_answer_counts_as_far_as_it_still_holds() -> None:
    """Of five pairs: one job is closed, one drone is busy, one was returned by that drone, one nobody knows."""
    names = [f"{ZONE}.J{n}" for n in range(5)]
    drones = [f"{ZONE}-{n:03d}" for n in range(5)]
    one = at_desk().when(*map(job, names), *map(drone, drones)).later(seconds=SOON_S)
    one.when(JobClosed(names[0], 1), DroneBusy(drones[1], "charging"), job(names[2], 2, not_by=(drones[2],)))
    one.when(answer(*zip(names[:4], drones[:4], strict=True), (f"{ZONE}.X", drones[4])))
    kept = answer((names[3], drones[3]))
    one.then(kept, assigned(names[3], drones[3]), SolverLate.cancel(), RoundDue.wake(after_s=ROUND_S))


def test_answers_of_other_rounds_are_not_heard() -> None:
    solving().when(answer((J1, D1), round=2)).then_nothing()
    at_desk().when(drone(), job()).when(answer((J1, D1), round=0)).then_nothing()


def test_a_round_is_bounded_and_the_rest_waits_for_the_next() -> None:
    """As large as it can get, it fits into a message."""
    not_by = tuple(f"{ZONE}-9{n:02d}" for n in range(4))
    jobs = [job(f"{ZONE}.{'J' * 36}{n:04d}", not_by=not_by, why="because" * 9) for n in range(ROUND_JOBS_MAX + 9)]
    drones = [drone(f"{ZONE}-{n:03d}") for n in range(ROUND_DRONES_MAX + 9)]
    one = given(Dispatcher, DeskOpened(area=AREA), *jobs, *drones, id=f"{ZONE}.a", at=START)
    one.when(granted()).later(seconds=SOON_S).state(solving=True, news=True)
    pairs = [(one.job, other.drone) for one, other in zip(jobs[:ROUND_JOBS_MAX], drones, strict=False)]
    one.when(answer(*pairs)).later(seconds=ROUND_S).state(round=2, solving=True)
    one.when(answer(round=2)).state(news=False)


def test_no_more_is_kept_than_there_is_room_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "JOBS_MAX", 3)
    monkeypatch.setattr(module, "DRONES_MAX", 2)
    one = given(Dispatcher, id=f"{ZONE}.a").when(*(job(f"{ZONE}.J{n}") for n in range(5)))
    one.when(*(drone(f"{ZONE}-{n:03d}") for n in range(5)))
    assert (len(one.agent.jobs), len(one.agent.drones)) == (3, 2)


# ------------------------------------------------------------------ jobs and drones


def test_what_is_heard_again_is_not_kept_again() -> None:
    one = at_desk().when(job(), drone())
    one.when(job(), drone(battery=91.0, x=4001.0)).then_nothing()
    assert one.when(drone(battery=70.0)).agent.drones[D1].drone.battery == 70.0
    one.when(JobClosed(J2, 1), DroneBusy(D2, "x")).then_nothing()
    one.when(job(zone="r1-0100", name=J2)).then_nothing()


def test_a_closed_job_of_an_earlier_token_stays() -> None:
    one = at_desk().when(job(token=2))
    one.when(JobClosed(J1, 1)).then_nothing()
    one.when(JobClosed(J1, 2)).state(jobs={})


def test_a_drone_that_a_job_calls_silent_is_not_ready() -> None:
    one = at_desk().when(drone(), drone(D2), job(token=2, silent=D1))
    assert list(one.agent.drones) == [D2]
    one.when(job(token=2), drone())
    assert set(one.agent.drones) == {D1, D2}, "it has said since that it is ready"


def test_a_job_that_never_answers_does_not_take_drones_for_ever() -> None:
    """It was given away or has ended, and this dispatcher has missed that."""
    one = at_desk().when(drone(), job()).later(seconds=SOON_S)
    for offer in range(1, OFFERS_MAX + 1):
        one.state(round=offer, solving=True)
        one.when(answer((J1, D1), round=offer)).later(seconds=HOLD_S)
    one.later(seconds=STALE_S).state(solving=False, round=OFFERS_MAX)
    one.when(job(J2)).later(seconds=ROUND_S).state(solving=True)
    assert list(one.agent.jobs) == [J2]


def test_a_job_that_says_again_that_it_is_open_is_offered_again() -> None:
    one = at_desk().when(drone(), job()).later(seconds=SOON_S)
    for offer in range(1, OFFERS_MAX + 1):
        one.when(answer((J1, D1), round=offer)).later(seconds=HOLD_S)
    one.when(job()).later(seconds=ROUND_S).state(round=OFFERS_MAX + 1, solving=True)


# ------------------------------------------------------------------ hand-over


def test_a_job_without_a_drone_is_handed_over_to_one_zone_after_the_other() -> None:
    around = AREA.neighbours(ZONE)
    one = at_desk().when(job()).then(job(), RoundDue.wake(after_s=PATIENCE_S))
    for number, zone in enumerate(around):
        one.later(seconds=PATIENCE_S).then(
            HandOverAsked(jobs=((J1, 1, zone),)),
            Tell(f"Job/{J1}", HandOverJob(zone=zone, token=1, desk=5, of=ZONE)),
            RoundDue.wake(after_s=PATIENCE_S),
        )
        one.when(JobClosed(J1, 1), job(since_t=START + number * PATIENCE_S))


def test_a_job_of_another_zone_goes_home() -> None:
    home = "r1-0001"
    name = f"{home}.J1"
    one = at_desk().when(job(name)).later(seconds=PATIENCE_S)
    asked = HandOverJob(zone=home, token=1, desk=5, of=ZONE)
    one.then(HandOverAsked(jobs=((name, 1, home),)), Tell(f"Job/{name}", asked), RoundDue.wake(after_s=PATIENCE_S))


@pytest.mark.parametrize(("waited_s", "stays_s"), [(0.0, 15.0), (20.0, 15.0), (100.0, 50.0), (1e6, 240.0)])
def test_the_longer_a_job_has_waited_the_longer_it_stays(waited_s: float, stays_s: float) -> None:
    waits = job(since_t=START - waited_s)
    at_desk().when(waits).then(waits, RoundDue.wake(after_s=stays_s))


def test_what_the_solver_leaves_is_handed_over_in_the_same_round() -> None:
    one = at_desk().when(job(kg=3.0)).later(seconds=PATIENCE_S - 1).when(drone()).later(seconds=2)
    one.state(solving=True).when(answer())
    asked = HandOverJob(zone=AREA.neighbours(ZONE)[0], token=1, desk=5, of=ZONE)
    handed: list[Event | Effect] = [HandOverAsked(jobs=((J1, 1, asked.zone),)), Tell(f"Job/{J1}", asked)]
    one.then(answer(), SolverLate.cancel(), RoundDue.wake(after_s=0.2), *handed, RoundDue.wake(after_s=HOLD_S))


def test_where_there_is_no_other_zone_a_job_stays() -> None:
    alone = Area(columns=1, rows=1, zone_m=3000.0, regions=1)
    one = given(Dispatcher, id="r1-0000.a", at=START).when(OpenDesk(area=alone))
    one.when(Granted(claim="desk", resource="desk-r1-0000", token=5, for_s=DESK_S, renews=True))
    one.when(job("r1-0000.J1", zone="r1-0000")).later(seconds=3600).then_nothing()
