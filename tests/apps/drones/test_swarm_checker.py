"""The checker of the swarm finds each broken promise in files that have exactly one."""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from apps.drones.area import Area
from apps.drones.messages import JobAssigned, JobDelivered, JobEndedFor, JobPlaced, PlaceJob, Site
from rigs.swarm_checker import (
    Clock,
    Findings,
    Given,
    Hold,
    Logged,
    LoggedJob,
    TakeOver,
    check,
    check_ground,
    read_witness,
)
from rigs.swarm_checker import check_reassignment as reassignment
from rigs.swarm_checker import main as run_checker
from stigmergy import (
    Agent,
    Command,
    Effects,
    Event,
    Events,
    Fleet,
    Granted,
    Ordered,
    decide,
    evolve,
    ordered,
    react,
    reject,
)
from stigmergy import Claim as Claimed
from stigmergy.testing.bus_rig import wait_until

TICK_S = 0.5
AREA = Area(columns=1, rows=1, zone_m=3000.0, regions=1)
Way = Callable[[float], tuple[float, float, float]]


def write_world(
    folder: Path, ways: dict[str, Way], seconds: float, *facts: dict[str, Any], begin_t: float = 0.0
) -> None:
    ticks = np.arange(0.0, seconds, TICK_S)
    places = np.array([[way(t) for way in ways.values()] for t in ticks], np.float32)
    places.tofile(folder / "world.f4")
    lines: list[dict[str, Any]] = [{"fact": "world", "t": begin_t, "tick_s": TICK_S}]
    lines += [
        {"fact": "commissioned", "t": begin_t, "index": number, "drone": name} for number, name in enumerate(ways)
    ]
    (folder / "world.jsonl").write_text("\n".join(json.dumps(line) for line in [*lines, *facts]))


def stands(x: float, y: float, z: float) -> Way:
    return lambda t: (x, y, z)


def flies(x: float, y: float, z: float, vx: float, vy: float = 0.0, vz: float = 0.0) -> Way:
    return lambda t: (x + vx * t, y + vy * t, z + vz * t)


# ------------------------------------------------------------------ the air


def test_two_that_meet_between_two_ticks_are_too_close(tmp_path: Path) -> None:
    # At 20 m/s each they are 19 m apart at one tick and 1 m past each other at the next: no sample is too close.
    ways = {"a": flies(0.0, 0.0, 45.0, 20.0), "b": flies(119.0 + 20.0, 9.0, 45.0, -20.0)}
    write_world(tmp_path, ways, 8.0)
    found = check(tmp_path)
    assert found.separation_violations == 1
    assert found.least_distance_m == pytest.approx(9.0, abs=0.1)
    assert found.violations == 1
    assert "a and b" in found.details[0]


def test_one_encounter_is_counted_once_and_each_new_one_again(tmp_path: Path) -> None:
    def to_and_fro(t: float) -> tuple[float, float, float]:
        return (5.0 if int(t) // 10 % 2 else 100.0, 0.0, 45.0)

    write_world(tmp_path, {"a": stands(0.0, 0.0, 45.0), "b": to_and_fro}, 60.0)
    assert check(tmp_path).separation_violations == 3


@pytest.mark.parametrize(
    ("other", "holds"),
    [
        (stands(0.0, 0.0, 49.5), True),
        (stands(0.0, 0.0, 48.5), False),
        (stands(10.5, 0.0, 45.0), True),
        (stands(9.5, 0.0, 45.0), False),
        # It is near in the plane first, and in height later, when it is away again: never both at once.
        (lambda t: (0.0 if t < 2 else 50.0, 0.0, 60.0 if t < 3 else 45.0), True),
        (lambda t: (t * 4.0, 0.0, 45.0 + t * 3.0), False),
        (stands(0.0, 0.0, 0.0), True),
    ],
)
def test_too_close_is_in_the_plane_and_in_height_at_once(tmp_path: Path, other: Way, holds: bool) -> None:
    write_world(tmp_path, {"a": stands(0.0, 0.0, 45.0), "b": other}, 6.0)
    assert (check(tmp_path).separation_violations == 0) is holds


def test_a_failed_drone_is_counted_beside(tmp_path: Path) -> None:
    ways = {"a": flies(0.0, 0.0, 45.0, 10.0), "b": stands(40.0, 0.0, 45.0)}
    write_world(tmp_path, ways, 10.0, {"fact": "failed", "t": 1.0, "drone": "b", "kind": "motor"})
    found = check(tmp_path)
    assert (found.separation_violations, found.near_failed, found.violations) == (0, 1, 0)


def test_a_radio_that_is_back_does_not_excuse(tmp_path: Path) -> None:
    facts = [
        {"fact": "failed", "t": 0.5, "drone": "b", "kind": "radio"},
        {"fact": "repaired", "t": 1.0, "drone": "b", "kind": "radio"},
    ]
    write_world(tmp_path, {"a": flies(0.0, 0.0, 45.0, 10.0), "b": stands(60.0, 0.0, 45.0)}, 10.0, *facts)
    assert check(tmp_path).separation_violations == 1


# ------------------------------------------------------------------ closed zones


def zone(announced_t: float = 1.0, **more: Any) -> dict[str, Any]:
    """The letter L: concave, so that a bounding box is not enough."""
    corners = [[0, 0], [100, 0], [100, 50], [50, 50], [50, 100], [0, 100]]
    return {
        "fact": "zone_closed",
        "t": announced_t,
        "name": "Z",
        "corners": corners,
        "floor_m": 30.0,
        "ceiling_m": 80.0,
        "from_t": 2.0,
        "until_t": 20.0,
        **more,
    }


@pytest.mark.parametrize(
    ("way", "intrusions"),
    [
        (flies(-50.0, 25.0, 45.0, 10.0), 1),
        (flies(-50.0, 75.0, 45.0, 10.0), 1),
        (flies(-50.0, 75.0, 90.0, 10.0), 0),
        (flies(-50.0, 75.0, 20.0, 10.0), 0),
        (stands(75.0, 75.0, 45.0), 0),
        (lambda t: (-50.0 if t < 20.0 else 25.0, 25.0, 45.0), 0),
        (lambda t: (25.0 if 1.1 < t < 1.9 else -50.0, 25.0, 45.0), 0),
        (lambda t: (25.0 if 1.1 < t < 3.9 else -50.0, 25.0, 45.0), 1),
        (lambda t: (25.0 if 5 < t < 6 or 8 < t < 9 else -50.0, 25.0, 45.0), 2),
    ],
)
def test_nobody_enters_a_closed_zone(tmp_path: Path, way: Way, intrusions: int) -> None:
    write_world(tmp_path, {"a": way}, 25.0, zone())
    found = check(tmp_path)
    assert found.zone_intrusions == intrusions
    assert found.violations == intrusions


def test_who_was_inside_leaves_and_does_not_come_back(tmp_path: Path) -> None:
    def leaves(t: float) -> tuple[float, float, float]:
        return (25.0 if t < 7.0 or 10.0 < t < 11.0 else -50.0, 25.0, 45.0)

    write_world(tmp_path, {"a": leaves, "b": stands(25.0, 25.0, 45.0)}, 15.0, zone())
    found = check(tmp_path)
    assert found.inside_when_announced == 2
    assert found.zone_intrusions == 1
    assert found.time_to_leave_s_max == pytest.approx(13.5)


# ------------------------------------------------------------------ the ground


def test_two_down_in_one_cell(tmp_path: Path) -> None:
    ways: dict[str, Way] = {"a": stands(30.0, 30.0, 0.0), "c": stands(90.0, 30.0, 0.0)}
    ways["b"] = lambda t: (40.0, 50.0, max(30.0 - 5 * t, 0.0))
    write_world(tmp_path, ways, 10.0)
    assert check(tmp_path).double_held_pads == 1


@pytest.mark.parametrize(
    ("other", "count"), [(Hold("pad-1", "Drone/b", 2, 11.0, 12.0), 0), (Hold("pad-1", "Drone/b", 2, 9.0, 12.0), 1)]
)
def test_two_holders_of_one_claim(tmp_path: Path, other: Hold, count: int) -> None:
    write_world(tmp_path, {"a": stands(0.0, 0.0, 0.0)}, 2.0)
    found = Findings()
    check_ground(found, read_witness(tmp_path), Logged(jobs={}, holds=[Hold("pad-1", "Drone/a", 1, 1.0, 10.0), other]))
    assert found.double_held_pads == count


def test_an_empty_battery_counts_unless_the_motors_had_failed(tmp_path: Path) -> None:
    facts = [
        {"fact": "failed", "t": 1.0, "drone": "b", "kind": "motor"},
        *({"fact": "battery_empty", "t": 2.0, "drone": drone} for drone in "ab"),
    ]
    write_world(tmp_path, {"a": stands(0.0, 0.0, 0.0), "b": stands(90.0, 0.0, 0.0)}, 2.0, *facts)
    assert check(tmp_path).batteries_empty_in_the_air == 1


def test_a_zone_that_was_opened_early_is_open(tmp_path: Path) -> None:
    opened = {"fact": "zone_opened", "t": 5.0, "name": "Z"}
    write_world(tmp_path, {"a": lambda t: (25.0 if t > 6 else -50.0, 25.0, 45.0)}, 15.0, zone(), opened)
    assert check(tmp_path).zone_intrusions == 0


# ------------------------------------------------------------------ jobs, from a real journal


class Job(Agent):
    """Says of itself whatever it is told: the checker must not believe it."""

    @decide
    def place(self, command: PlaceJob) -> Events:
        if command.kg > 5:
            reject("too heavy")
        yield JobPlaced(command.pickup, command.drop, command.kg, command.area, 0.0, command.priority)

    @evolve
    def log(self, event: JobPlaced | JobAssigned | JobDelivered | JobEndedFor) -> None:
        pass


DELIVERED = (JobDelivered(token=1, drone="a"), JobEndedFor(how="delivered"))


def write_jobs(folder: Path, jobs: dict[str, tuple[Event, ...]], kg: float = 1.0, deadline_s: float = 1800.0) -> None:
    async def run() -> None:
        fleet = Fleet("drones", agents=[Job])
        place = PlaceJob(pickup=Site(30.0, 30.0), drop=Site(90.0, 30.0), kg=kg, area=AREA, deadline_s=deadline_s)
        async with fleet.running(journal=f"sqlite:{folder}/ground.db", key=folder / "ground.key") as live:
            for name, events in jobs.items():
                await live.send(f"Job/{name}", place)
                for event in events:
                    await live.observe(f"Job/{name}", event)

    asyncio.run(run())


def drop(job: str, t: float = 5.0, token: int = 1, drone: str = "a") -> dict[str, Any]:
    return {"fact": "dropped", "t": t, "job": job, "token": token, "drone": drone}


def placed(folder: Path, **answers: bool) -> None:
    lines = [json.dumps({"job": job, "accepted": accepted}) for job, accepted in answers.items()]
    (folder / "placed.jsonl").write_text("\n".join(lines))


def test_delivered_once_is_as_it_must_be(tmp_path: Path) -> None:
    write_world(tmp_path, {"a": stands(0.0, 0.0, 0.0)}, 2.0, drop("J1"))
    write_jobs(tmp_path, {"J1": DELIVERED, "J2": (JobEndedFor(how="given_up"),), "J3": ()})
    placed(tmp_path, J1=True, J2=True, J3=True)
    found = check(tmp_path)
    assert (found.jobs, found.delivered, found.given_up, found.under_way, found.violations) == (3, 1, 1, 1, 0)


def test_said_to_be_delivered_and_not_in_the_box_is_lost(tmp_path: Path) -> None:
    write_world(tmp_path, {"a": stands(0.0, 0.0, 0.0)}, 2.0)
    write_jobs(tmp_path, {"J1": DELIVERED})
    assert check(tmp_path).lost == 1


def test_answered_and_in_no_log_is_lost(tmp_path: Path) -> None:
    write_world(tmp_path, {"a": stands(0.0, 0.0, 0.0)}, 2.0)
    write_jobs(tmp_path, {"J1": (JobEndedFor(how="cancelled"),)})
    placed(tmp_path, J1=True, J2=True, J3=False)
    found = check(tmp_path)
    assert (found.jobs, found.cancelled, found.refused, found.lost) == (3, 1, 1, 1)


def test_refused_is_no_loss(tmp_path: Path) -> None:
    write_world(tmp_path, {"a": stands(0.0, 0.0, 0.0)}, 2.0)
    write_jobs(tmp_path, {"J1": ()}, kg=9.0)
    placed(tmp_path, J1=False)
    found = check(tmp_path)
    assert (found.jobs, found.refused, found.violations) == (1, 1, 0)


def test_two_parcels_in_one_box_and_two_ends_in_one_log(tmp_path: Path) -> None:
    twice = (*DELIVERED, *DELIVERED)
    write_world(tmp_path, {"a": stands(0.0, 0.0, 0.0)}, 2.0, drop("J1"), drop("J1", token=2, drone="b"), drop("J2"))
    write_jobs(tmp_path, {"J1": DELIVERED, "J2": twice})
    assert check(tmp_path).doubled == 2


def test_given_to_two_under_one_token(tmp_path: Path) -> None:
    given = [JobAssigned(job="J1", drone=drone, token=1, desk=1) for drone in ("a", "b")]
    write_world(tmp_path, {"a": stands(0.0, 0.0, 0.0)}, 2.0, drop("J1"))
    write_jobs(tmp_path, {"J1": (*given, *DELIVERED)})
    found = check(tmp_path)
    assert (found.given_twice, found.violations) == (1, 1)


def test_in_the_box_and_told_otherwise_is_said(tmp_path: Path) -> None:
    write_world(tmp_path, {"a": stands(0.0, 0.0, 0.0)}, 2.0, drop("J1"))
    write_jobs(tmp_path, {"J1": (JobEndedFor(how="given_up"),)})
    assert check(tmp_path).in_box_untold == 1


def test_late_is_missed_by_the_clock_of_the_world(tmp_path: Path) -> None:
    write_jobs(tmp_path, {"J1": DELIVERED}, deadline_s=100.0)
    write_world(tmp_path, {"a": stands(0.0, 0.0, 0.0)}, 2.0, drop("J1", t=250.0))
    now_s = (tmp_path / "ground.db").stat().st_mtime
    # When the job was placed the clock of the world showed about 100 s.
    (tmp_path / "clock.jsonl").write_text(json.dumps({"wall_s": now_s, "t": 100.0}))
    found = check(tmp_path)
    assert found.missed_deadlines == 1
    assert found.delivery_mean_s == pytest.approx(150.0, abs=30.0)


def test_reassignment_counts_from_the_failure(tmp_path: Path) -> None:
    facts = [{"fact": "failed", "t": 20.0, "drone": "a", "kind": "motor"}, drop("J2", t=15.0), drop("J1", 90.0, 2, "b")]
    write_world(tmp_path, {"a": stands(0.0, 0.0, 0.0)}, 2.0, *facts)
    jobs = {
        "J1": LoggedJob(1.0, given=[Given(1, "a", 5.0), Given(2, "b", 27.5)], reopened={2: 26.5}, ended=[]),
        "J2": LoggedJob(1.0, given=[Given(1, "a", 5.0), Given(2, "b", 29.5)], ended=[]),
        "J3": LoggedJob(1.0, given=[Given(1, "a", 5.0)], ended=[]),
    }
    found = Findings()
    reassignment(found, read_witness(tmp_path), Logged(jobs=jobs, holds=[]))
    assert (found.failures, found.reassigned, found.reassignment_p99_s) == (1, 1, 7.5)
    assert found.take_overs == [TakeOver("J1", "a", "motor", "b", 7.5, 6.5), TakeOver("J3", "a", "motor")]


def test_a_failure_that_nobody_could_know_of_is_counted_apart(tmp_path: Path) -> None:
    def fails(drone: str, t: float) -> dict[str, Any]:
        return {"fact": "failed", "t": t, "drone": drone, "kind": "motor"}

    cut = [{"fact": "cut_off", "t": 20.0, "name": "r2"}, {"fact": "joined", "t": 50.0, "name": "r2"}]
    names = ("r1-0", "r2-0", "r2-1", "r2-2", "r2-3")
    failures = [fails(name, t) for name, t in zip(names, (30.0, 30.0, 15.0, 5.0, 19.0), strict=True)]
    write_world(
        tmp_path, {name: stands(60.0 * place, 0.0, 0.0) for place, name in enumerate(names)}, 2.0, *cut, *failures
    )
    next_t = {"r1-0": 55.0, "r2-0": 52.0, "r2-1": 54.5, "r2-2": 51.0, "r2-3": 19.5}
    jobs = {
        f"J{name}": LoggedJob(1.0, given=[Given(1, name, 2.0), Given(2, "r1-9", next_t[name])], ended=[])
        for name in names
    }
    found = Findings()
    reassignment(found, read_witness(tmp_path), Logged(jobs=jobs, holds=[]))
    # Behind the cut: r2-0, r2-1. The region of r1-0 was not cut off, r2-2 failed long before, r2-3 was known in time.
    assert (found.reassigned, found.reassigned_cut_off, found.reassignment_rejoined_s_max) == (5, 2, 4.5)
    assert 40.0 < found.reassignment_linked_p99_s <= 46.0
    assert 40.0 < found.reassignment_p99_s <= 46.0


class Ask(Command):
    pass


class Asked(Event):
    pass


class Guest(Agent):
    room: Ordered[Claimed] = ordered(of="cell-1-1")

    @decide
    def ask(self, command: Ask) -> Events:
        yield Asked()

    @react
    def claim(self, event: Asked) -> Effects:
        yield self.room.claim(for_s=60, renew=True)

    @evolve
    def granted(self, event: Granted) -> None:
        pass


def test_a_lease_that_ended_with_its_process_is_not_held_after_it(tmp_path: Path) -> None:
    from rigs.swarm_checker import read_logs

    async def run(name: str, after: int) -> int:
        fleet = Fleet("drones", agents=[Guest])
        where = {"journal": f"sqlite:{tmp_path}/{name}.db", "key": tmp_path / f"{name}.key"}
        async with fleet.running(**where, ledger=f"sqlite:{tmp_path}/ledger.db", node=name) as live:  # type: ignore[arg-type]
            await live.send("Guest/a", Ask())
            # At first the second process still has what the log says of the first.
            await wait_until(lambda: live.query("Guest/a", Guest).room.token > after, 240.0)
            return live.query("Guest/a", Guest).room.token

    token = asyncio.run(run("one", 0))
    asyncio.run(run("one", token))
    holds = read_logs([f"sqlite:{tmp_path}/one.db"], Clock()).holds
    assert len(holds) == 2
    assert {hold.resource for hold in holds} == {"cell-1-1"}
    first, second = sorted(holds, key=lambda hold: hold.begin_t)
    assert first.token < second.token
    assert first.begin_t <= first.end_t <= second.begin_t


def test_the_command_says_it_by_its_exit_code(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_world(tmp_path, {"a": stands(0.0, 0.0, 45.0), "b": stands(100.0, 0.0, 45.0)}, 4.0)
    assert run_checker([str(tmp_path), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["violations"] == 0
    write_world(tmp_path, {"a": stands(0.0, 0.0, 45.0), "b": stands(1.0, 0.0, 45.0)}, 4.0)
    assert run_checker([str(tmp_path)]) == 1
    assert "separation_violations        1" in capsys.readouterr().out


def test_it_imports_nothing_of_the_application() -> None:
    import subprocess

    code = "import rigs.swarm_checker, sys; sys.exit(any(name.startswith('apps') for name in sys.modules))"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
