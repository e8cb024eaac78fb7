"""Checks a run of the swarm from what was witnessed and logged: `python -m rigs.swarm_checker FOLDER --json`.

It imports nothing of the application. It believes three kinds of files in the folder:

    world.f4, world.jsonl   where every drone was twice a second, and what happened physically; written by the world
    placed.jsonl            what the customers were answered; written by the client that placed the jobs
    *.db, */identity        the journals of the nodes

`clock.jsonl`, if it is there, has pairs of world time and wall time: journals have the wall's, the world has its own.
Every figure in `MUST_BE_ZERO` is a broken promise, and `violations` is their sum.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from itertools import zip_longest
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
from msgspec import Struct, structs
from numpy.typing import NDArray
from scipy.spatial import cKDTree

from stigmergy.agents.codec import tag_of
from stigmergy.app.fleet import inspect_all, journals_in
from stigmergy.audit.export import Export, Selection
from stigmergy.claims.permissions import RESTARTED

SEPARATION_M, SEPARATION_HEIGHT_M = 10.0, 4.0
"""Nearer than both at one moment, two drones are too close."""
CELL_M = 60.0
AIRBORNE_M = 1.0
"""Higher than this a drone is in the air, whatever the ground under it is like."""
MARGIN_S = 0.25
"""Two grants of one claim that overlap by less are the times at which two nodes wrote them down."""
DEADLINE_S = 1800.0
"""Of a job that was placed without one."""
MUST_BE_ZERO = (
    "lost",
    "doubled",
    "given_twice",
    "separation_violations",
    "zone_intrusions",
    "batteries_empty_in_the_air",
    "double_held_pads",
)
NOTICED_S = 10.0
"""A link that is cut so soon after a drone has failed may keep that from everybody."""
SHOWN_MAX = 20
Floats = NDArray[np.float64]
Cells = NDArray[np.int64]


class TakeOver(Struct, frozen=True, omit_defaults=True):
    """A drone failed that had a job, and another one got it."""

    job: str
    failed: str
    kind: str
    """What of it failed."""
    by: str = ""
    """Nobody, if the run ended before."""
    after_s: float | None = None
    noticed_s: float | None = None
    """When its job knew."""


class Findings(Struct):
    """What was found. Times are in seconds of the world."""

    jobs: int = 0
    """Asked for by customers."""
    delivered: int = 0
    refused: int = 0
    given_up: int = 0
    cancelled: int = 0
    under_way: int = 0
    """When the run ended."""
    lost: int = 0
    """Answered to a customer and in no log; or said to be delivered, and no parcel is in the box."""
    doubled: int = 0
    """Two parcels in one box, or delivered twice by the log."""
    given_twice: int = 0
    """Given to two drones under one token."""
    in_box_untold: int = 0
    """The parcel is in the box, and the job did not end as delivered: the customer was told something else."""
    separation_violations: int = 0
    least_distance_m: float = -1.0
    """Between any two in the air and under control; -1: there never were two within reach of each other."""
    near_failed: int = 0
    """Encounters with a drone that had failed or was silent."""
    zone_intrusions: int = 0
    inside_when_announced: int = 0
    time_to_leave_s_max: float = 0.0
    batteries_empty_in_the_air: int = 0
    double_held_pads: int = 0
    failures: int = 0
    """Of drones, by motor, radio or computer."""
    reassigned: int = 0
    """Jobs of failed drones that another one got."""
    reassignment_p50_s: float = 0.0
    reassignment_p99_s: float = 0.0
    reassigned_cut_off: int = 0
    """Of them, those that nobody could know of: the drone's region was cut off from all others, or its node down."""
    reassignment_linked_p99_s: float = 0.0
    """Of all others."""
    reassignment_rejoined_s_max: float = 0.0
    """Of these, since the link or the node was back."""
    take_overs: list[TakeOver] = []
    """The slowest few."""
    delivery_mean_s: float = 0.0
    missed_deadlines: int = 0
    drones: int = 0
    flown_h: float = 0.0
    """Hours in the air, of all drones together."""
    violations: int = 0
    details: list[str] = []
    """The first few of each kind, for people."""

    def note(self, what: str, count: int, details: Iterable[str]) -> None:
        """Sets a figure, and keeps the first few of what it counts."""
        setattr(self, what, count)
        self.details = [*self.details, *(f"{what}: {one}" for one in list(details)[:SHOWN_MAX])]


# ------------------------------------------------------------------ what the world has seen


class Spell(Struct, frozen=True):
    """A drone is not under control from a time to a time."""

    drone: str
    kind: str
    begin_t: float
    end_t: float


class Zone(Struct, frozen=True):
    """Closed airspace, and when it was announced."""

    name: str
    corners: tuple[tuple[float, float], ...]
    floor_m: float
    ceiling_m: float
    from_t: float
    until_t: float
    announced_t: float


class Cut(Struct, frozen=True):
    """A region is cut off from all others, or its node is down."""

    region: str
    begin_t: float
    end_t: float


class Drop(Struct, frozen=True):
    """A parcel was put into a box."""

    job: str
    token: int
    drone: str
    t: float


class Witness(Struct):
    """The world's own record."""

    begin_t: float = 0.0
    tick_s: float = 0.5
    drones: list[str] = []
    """By index in `world.f4`."""
    drops: list[Drop] = []
    spells: list[Spell] = []
    zones: list[Zone] = []
    cuts: list[Cut] = []
    empty: list[tuple[str, float]] = []
    positions: NDArray[np.float32] = msgspec.field(default_factory=lambda: np.zeros((0, 0, 3), np.float32))

    def out_of_control(self) -> NDArray[np.bool_]:
        """Tick by drone."""
        ticks, count, _ = self.positions.shape
        found = np.zeros((ticks, count), np.bool_)
        index = {name: number for number, name in enumerate(self.drones)}
        for spell in self.spells:
            first = int((spell.begin_t - self.begin_t) / self.tick_s)
            last = ticks if spell.end_t == float("inf") else int((spell.end_t - self.begin_t) / self.tick_s) + 2
            found[max(first, 0) : max(last, 0), index[spell.drone]] = True
        return found


def read_lines(path: Path) -> Iterator[dict[str, Any]]:
    """The facts in a file; the last line may be cut off by a crash."""
    if path.exists():
        for line in path.read_bytes().splitlines():
            try:
                yield json.loads(line)
            except ValueError:
                return


def read_witness(folder: Path) -> Witness:
    """Reads both files of the world. A battery that gets empty does so in the air: nothing is used on the ground."""
    found = Witness()
    names: dict[int, str] = {}
    began: dict[tuple[str, str], float] = {}
    zones: dict[str, Zone] = {}
    cut: dict[str, float] = {}
    for fact in read_lines(folder / "world.jsonl"):
        match fact["fact"]:
            case "world":
                found.begin_t, found.tick_s = fact["t"], fact["tick_s"]
            case "commissioned":
                names[fact["index"]] = fact["drone"]
            case "dropped":
                found.drops.append(Drop(fact["job"], fact["token"], fact["drone"], fact["t"]))
            case "failed":
                began.setdefault((fact["drone"], fact["kind"]), fact["t"])
            case "repaired":
                begin_t = began.pop((fact["drone"], fact["kind"]), None)
                if begin_t is not None:
                    found.spells.append(Spell(fact["drone"], fact["kind"], begin_t, fact["t"]))
            case "zone_closed":
                zones[fact["name"]] = msgspec.convert({**fact, "announced_t": fact["t"]}, Zone)
            case "zone_opened":
                zone = zones[fact["name"]]
                zones[fact["name"]] = structs.replace(zone, until_t=min(zone.until_t, fact["t"]))
            case "cut_off":
                cut[fact["name"]] = fact["t"]
            case "joined":
                found.cuts.append(Cut(fact["name"], cut.pop(fact["name"]), fact["t"]))
            case "battery_empty":
                if (fact["drone"], "motor") not in began:
                    found.empty.append((fact["drone"], fact["t"]))
            case _:
                pass
    found.spells += [Spell(drone, what, t, float("inf")) for (drone, what), t in began.items()]
    found.zones = list(zones.values())
    found.drones = [names[number] for number in range(len(names))]
    raw = np.fromfile(folder / "world.f4", np.float32)
    count = len(found.drones)
    ticks = len(raw) // (3 * count) if count else 0
    found.positions = raw[: ticks * count * 3].reshape(ticks, count, 3)
    return found


class Clock:
    """World time of a wall time."""

    def __init__(self, pairs: Sequence[tuple[float, float]] = ()) -> None:
        """Pairs of wall and world; without any they are the same."""
        ordered = sorted(pairs)
        self._wall = np.array([wall for wall, _ in ordered])
        self._world = np.array([t for _, t in ordered])

    def t(self, wall_s: float) -> float:
        """What the world's clock showed, between two pairs in proportion; outside it runs as fast as the wall's."""
        if not len(self._wall):
            return wall_s
        if wall_s <= self._wall[0]:
            return float(self._world[0] + wall_s - self._wall[0])
        if wall_s >= self._wall[-1]:
            return float(self._world[-1] + wall_s - self._wall[-1])
        return float(np.interp(wall_s, self._wall, self._world))


# ------------------------------------------------------------------ what the logs say


class Given(Struct, frozen=True):
    """A job was given to a drone."""

    token: int
    drone: str
    t: float


class LoggedJob(Struct):
    """A job as its log tells it."""

    placed_t: float | None = None
    deadline_s: float = 0.0
    refused: bool = False
    given: list[Given] = []
    reopened: dict[int, float] = {}
    """When, by the token under which it was given away next."""
    delivered: int = 0
    ended: list[str] = []


class Hold(Struct):
    """An agent has held a resource."""

    resource: str
    agent: str
    token: int
    begin_t: float
    end_t: float


class Logged(Struct):
    """All that the journals say."""

    jobs: dict[str, LoggedJob] = {}
    holds: list[Hold] = []

    def job(self, name: str) -> LoggedJob:
        """The job with this name."""
        return self.jobs.setdefault(name, LoggedJob(given=[], reopened={}, ended=[]))


WANTED = frozenset(
    f"{name}@1"
    for name in (
        "JobPlaced",
        "JobAssigned",
        "JobReopened",
        "JobDelivered",
        "JobEndedFor",
        "stigmergy.Granted",
        "stigmergy.Lost",
        "stigmergy.Released",
    )
)


def read_logs(urls: Iterable[str], clock: Clock) -> Logged:
    """Reads the journals, one after the other: of each only what is counted here."""
    found = Logged(jobs={}, holds=[])
    for url in urls:
        journal = inspect_all(url)
        try:
            _read_log(Export(journal, Selection()), clock, found)
        finally:
            asyncio.run(journal.close())
    return found


def _read_log(export: Export, clock: Clock, found: Logged) -> None:
    held: dict[tuple[str, str], Hold] = {}
    last_t: dict[int, float] = {}
    for commit in export.commits():
        for answer in commit.answers:
            if answer.agent.startswith("Job/") and tag_of(answer.command) == "PlaceJob@1":
                job = found.job(answer.agent.partition("/")[2])
                job.refused = answer.refused is not None and job.placed_t is None
                job.deadline_s = msgspec.msgpack.decode(answer.command).get("deadline_s", DEADLINE_S)
        index = 0
        for run in commit.runs:
            t = clock.t(run.time_ns / 1e9)
            for agent, body in commit.events[index : index + run.events]:
                tag = tag_of(body)
                if tag in WANTED:
                    fields = msgspec.msgpack.decode(body)
                    if agent.startswith("Job/"):
                        _read_job(found.job(agent.partition("/")[2]), tag, fields, t)
                    elif tag.startswith("stigmergy."):
                        _read_claim(held, found, agent, tag, fields, t, last_t.get(commit.shard, t))
            index += run.events
            last_t[commit.shard] = t
    found.holds += held.values()


def _read_job(job: LoggedJob, tag: str, fields: dict[str, Any], t: float) -> None:
    match tag:
        case "JobPlaced@1":
            job.placed_t, job.refused = t, False
        case "JobAssigned@1":
            job.given.append(Given(fields["token"], fields["drone"], t))
        case "JobReopened@1":
            job.reopened[fields["token"]] = t
        case "JobDelivered@1":
            job.delivered += 1
        case "JobEndedFor@1":
            job.ended.append(fields["how"])
        case _:
            pass


def _read_claim(
    held: dict[tuple[str, str], Hold],
    found: Logged,
    agent: str,
    tag: str,
    fields: dict[str, Any],
    t: float,
    before_t: float,
) -> None:
    """A lease that was prolonged by itself and ended with its process is held until the last sign of life."""
    resource = fields["resource"]
    if tag == "stigmergy.Granted@1":
        if (former := held.pop((agent, resource), None)) is not None:
            found.holds.append(Hold(resource, agent, former.token, former.begin_t, min(former.end_t, t)))
        end_t = float("inf") if fields.get("renews") else t + fields["for_s"]
        held[agent, resource] = Hold(resource, agent, fields["token"], t, end_t)
    elif (hold := held.pop((agent, resource), None)) is not None:
        end_t = before_t if fields.get("reason") == RESTARTED else t
        found.holds.append(Hold(resource, agent, hold.token, hold.begin_t, min(hold.end_t, end_t)))


# ------------------------------------------------------------------ jobs


def check_jobs(found: Findings, witness: Witness, logged: Logged, answers: dict[str, bool]) -> None:
    """Every job that was asked for is somewhere, once. `answers`: what customers were told, accepted or not."""
    drops: dict[str, list[Drop]] = defaultdict(list)
    for drop in witness.drops:
        drops[drop.job].append(drop)
    lost: list[str] = []
    doubled: list[str] = []
    twice: list[str] = []
    untold: list[str] = []
    times: list[float] = []
    ends: Counter[str] = Counter()
    for name in sorted({*logged.jobs, *answers}):
        job, boxed = logged.jobs.get(name, LoggedJob(given=[], ended=[])), drops.get(name, [])
        how = job.ended[-1] if job.ended else ""
        if job.placed_t is None:
            if answers.get(name, False):
                lost.append(f"{name}: accepted, and no log has it")
            ends["refused"] += job.refused or not answers.get(name, True)
            continue
        ends[how or "under_way"] += 1
        if how == "delivered" and not boxed:
            lost.append(f"{name}: delivered by the log, and nothing is in the box")
        if how not in ("delivered", "given_up", "cancelled", ""):
            lost.append(f"{name}: ended as {how}")
        if how not in ("delivered", "") and boxed:
            untold.append(f"{name}: {how}, and {boxed[0].drone} had put it into the box at {boxed[0].t:.1f}")
        if len(boxed) > 1:
            doubled.append(f"{name}: {', '.join(f'{drop.drone} under {drop.token}' for drop in boxed)}")
        elif job.delivered > 1 or len(job.ended) > 1:
            doubled.append(f"{name}: its log ends {len(job.ended)} times, with {job.delivered} deliveries")
        tokens = Counter(given.token for given in job.given)
        twice += [f"{name}: {count} times under {token}" for token, count in tokens.items() if count > 1]
        if boxed:
            times.append(boxed[0].t - job.placed_t)
            found.missed_deadlines += 0 < job.deadline_s < times[-1]
    found.jobs = len({*logged.jobs, *answers})
    found.delivered, found.refused = ends["delivered"], ends["refused"]
    found.given_up, found.cancelled, found.under_way = ends["given_up"], ends["cancelled"], ends["under_way"]
    found.note("lost", len(lost), lost)
    found.note("doubled", len(doubled), doubled)
    found.note("given_twice", len(twice), twice)
    found.note("in_box_untold", len(untold), untold)
    found.delivery_mean_s = float(np.mean(times)) if times else 0.0


def check_reassignment(found: Findings, witness: Witness, logged: Logged) -> None:
    """How long after a drone failed its job was given to the next one."""
    by_drone: dict[str, list[tuple[str, Given, Given | None]]] = defaultdict(list)
    dropped = {(drop.job, drop.drone): drop.t for drop in witness.drops}
    for name, job in logged.jobs.items():
        for given, later in zip_longest(job.given, job.given[1:]):
            by_drone[given.drone].append((name, given, later))
    linked: list[float] = []
    hidden: list[float] = []
    rejoined: list[float] = []
    take_overs: list[TakeOver] = []
    for spell in witness.spells:
        for name, given, later in by_drone.get(spell.drone, ()):
            next_t = float("inf") if later is None else later.t
            done_t = dropped.get((name, spell.drone), float("inf"))
            if not given.t <= spell.begin_t < min(next_t, done_t):
                continue
            if later is not None:
                after_s = next_t - spell.begin_t
                since_s = [next_t - cut.end_t for cut in witness.cuts if hides(cut, spell, next_t)]
                (hidden if since_s else linked).append(after_s)
                rejoined += since_s
                noticed_t = logged.jobs[name].reopened.get(later.token, next_t)
                noticed_s = noticed_t - spell.begin_t
                take_overs.append(TakeOver(name, spell.drone, spell.kind, later.drone, after_s, noticed_s))
            elif done_t == float("inf") and not logged.jobs[name].ended:
                take_overs.append(TakeOver(name, spell.drone, spell.kind))
    take_overs.sort(key=lambda one: -(one.after_s or 0.0))
    found.take_overs = take_overs[:SHOWN_MAX]
    found.failures = len(witness.spells)
    found.reassigned, found.reassigned_cut_off = len(linked) + len(hidden), len(hidden)
    found.reassignment_p50_s, found.reassignment_p99_s = (percentile(linked + hidden, share) for share in (50, 99))
    found.reassignment_linked_p99_s = percentile(linked, 99)
    found.reassignment_rejoined_s_max = max(rejoined, default=0.0)


def percentile(times: Sequence[float], share: float) -> float:
    """0 without any."""
    return float(np.percentile(times, share)) if times else 0.0


def hides(cut: Cut, spell: Spell, next_t: float) -> bool:
    """Whether nobody could give away the job of a failed drone before its region had its link again."""
    is_behind = spell.drone.startswith(f"{cut.region}-")
    return is_behind and cut.begin_t - NOTICED_S < spell.begin_t < cut.end_t < next_t


# ------------------------------------------------------------------ the air


def check_separation(found: Findings, witness: Witness) -> None:
    """Between two ticks every drone flies straight: the moment at which two are closest is computed, not sampled."""
    places = witness.positions
    failed = witness.out_of_control()
    least, flown = float("inf"), 0
    open_now: dict[tuple[int, int], int] = {}
    violations: list[str] = []
    near_failed = 0
    for tick in range(len(places) - 1):
        here, there = places[tick].astype(np.float64), places[tick + 1].astype(np.float64)
        flying = np.flatnonzero((here[:, 2] > AIRBORNE_M) | (there[:, 2] > AIRBORNE_M))
        flown += len(flying)
        here, there = here[flying], there[flying]
        if len(flying) < 2:
            open_now = {}
            continue
        one, other = close_pairs(here, there)
        near, too_close = closest(here, there, one, other)
        bad = failed[tick, flying] | failed[tick + 1, flying]
        with_failed = bad[one] | bad[other]
        if len(near) and not with_failed.all():
            least = min(least, float(near[~with_failed].min()))
        still: dict[tuple[int, int], int] = {}
        for place in np.flatnonzero(too_close):
            pair = int(flying[one[place]]), int(flying[other[place]])
            still[pair] = tick
            if pair in open_now:
                continue
            if with_failed[place]:
                near_failed += 1
                continue
            first, second = (witness.drones[number] for number in pair)
            t = witness.begin_t + tick * witness.tick_s
            violations.append(f"{first} and {second} {near[place]:.1f} m apart at {t:.1f}, {_at(here, one[place])}")
        open_now = still
    found.note("separation_violations", len(violations), violations)
    found.near_failed = near_failed
    found.least_distance_m = -1.0 if least == float("inf") else least
    found.flown_h = flown * witness.tick_s / 3600


def _at(places: Floats, number: int) -> str:
    x, y, z = places[number]
    return f"at {x:.0f}, {y:.0f}, {z:.0f} m"


def close_pairs(here: Floats, there: Floats) -> tuple[Cells, Cells]:
    """Those that may come too close between two ticks: found around the middle of their ways."""
    middle, way = (here + there) / 2, np.linalg.norm((there - here)[:, :2], axis=1)
    reach = SEPARATION_M + float(way.max())
    pairs = cKDTree(middle[:, :2]).query_pairs(reach, output_type="ndarray")
    return pairs[:, 0], pairs[:, 1]


def closest(here: Floats, there: Floats, one: Cells, other: Cells) -> tuple[Floats, NDArray[np.bool_]]:
    """The least distance of each pair in between, and whether it was too close: in the plane and in height at once."""
    apart, turned = here[one] - here[other], (there - here)[one] - (there - here)[other]
    squared = np.einsum("ij,ij->i", turned, turned)
    when = np.clip(-np.einsum("ij,ij->i", apart, turned) / np.where(squared > 0, squared, 1.0), 0.0, 1.0)
    least = np.linalg.norm(apart + when[:, None] * turned, axis=1)
    # |apart + s turned| < SEPARATION_M in the plane, for s between two roots.
    a = np.einsum("ij,ij->i", turned[:, :2], turned[:, :2])
    b = np.einsum("ij,ij->i", apart[:, :2], turned[:, :2])
    c = np.einsum("ij,ij->i", apart[:, :2], apart[:, :2]) - SEPARATION_M**2
    root = np.sqrt(np.maximum(b * b - a * c, 0.0))
    moves, safe_a = a > 1e-12, np.where(a > 1e-12, a, 1.0)
    begin = np.where(moves, (-b - root) / safe_a, np.where(c < 0, 0.0, 2.0))
    end = np.where(moves, (-b + root) / safe_a, np.where(c < 0, 1.0, -2.0))
    never = moves & (b * b - a * c <= 0)
    # |apart + s turned| < SEPARATION_HEIGHT_M in height.
    climbs = np.abs(turned[:, 2]) > 1e-12
    safe_z = np.where(climbs, turned[:, 2], 1.0)
    low, high = (-SEPARATION_HEIGHT_M - apart[:, 2]) / safe_z, (SEPARATION_HEIGHT_M - apart[:, 2]) / safe_z
    level = np.abs(apart[:, 2]) < SEPARATION_HEIGHT_M
    begin_z = np.where(climbs, np.minimum(low, high), np.where(level, 0.0, 2.0))
    end_z = np.where(climbs, np.maximum(low, high), np.where(level, 1.0, -2.0))
    first = np.maximum(np.maximum(begin, begin_z), 0.0)
    last = np.minimum(np.minimum(end, end_z), 1.0)
    return least, ~never & (first < last)


def inside(zone: Zone, places: Floats) -> NDArray[np.bool_]:
    """Which places are in a zone: by the crossings of a ray, so that the polygon may be concave."""
    x, y, z = places[:, 0], places[:, 1], places[:, 2]
    found = np.zeros(len(places), np.bool_)
    corners = zone.corners
    for (x1, y1), (x2, y2) in zip(corners, (*corners[1:], corners[0]), strict=True):
        if y1 != y2:
            crosses = ((y1 > y) != (y2 > y)) & (x < (x2 - x1) * (y - y1) / (y2 - y1) + x1)
            found ^= crosses
    return found & (z >= zone.floor_m) & (z <= zone.ceiling_m) & (z > AIRBORNE_M)


def check_zones(found: Findings, witness: Witness) -> None:
    """Nobody is in a closed zone but who was there when it was announced, and those leave."""
    failed = witness.out_of_control()
    intrusions: list[str] = []
    for zone in witness.zones:
        ticks = witness.begin_t + np.arange(len(witness.positions)) * witness.tick_s
        announced = int(np.searchsorted(ticks, zone.announced_t))
        if announced >= len(ticks):
            continue
        leaving = set(np.flatnonzero(inside(zone, witness.positions[announced].astype(np.float64))).tolist())
        found.inside_when_announced += len(leaving)
        was_in: set[int] = set()
        for tick in range(announced, len(ticks)):
            if ticks[tick] >= zone.until_t:
                break
            now = inside(zone, witness.positions[tick].astype(np.float64)) & ~failed[tick]
            numbers = set(np.flatnonzero(now).tolist())
            gone = leaving - numbers
            leaving &= numbers
            if gone:
                found.time_to_leave_s_max = max(found.time_to_leave_s_max, float(ticks[tick] - zone.announced_t))
            if ticks[tick] < zone.from_t:
                continue
            strange = numbers - leaving
            for number in sorted(strange - was_in):
                where = _at(witness.positions[tick].astype(np.float64), number)
                intrusions.append(f"{witness.drones[number]} in {zone.name} at {ticks[tick]:.1f}, {where}")
            was_in = strange
        if leaving:
            found.time_to_leave_s_max = max(found.time_to_leave_s_max, float(ticks[-1] - zone.announced_t))
    found.note("zone_intrusions", len(intrusions), intrusions)


# ------------------------------------------------------------------ the ground


def check_ground(found: Findings, witness: Witness, logged: Logged) -> None:
    """One drone to a cell, by where they were and by what they held."""
    failed = witness.out_of_control()
    twice: dict[tuple[int, int], str] = {}
    for tick, here in enumerate(witness.positions):
        down = np.flatnonzero((here[:, 2] <= AIRBORNE_M) & ~failed[tick])
        cells = np.floor(here[down, :2].astype(np.float64) / CELL_M).astype(np.int64)
        key = cells[:, 0] * 1_000_003 + cells[:, 1]
        order = np.argsort(key, kind="stable")
        same = np.flatnonzero(key[order][1:] == key[order][:-1])
        for place in same:
            pair = int(down[order[place]]), int(down[order[place + 1]])
            t = witness.begin_t + tick * witness.tick_s
            names = " and ".join(witness.drones[number] for number in pair)
            twice.setdefault(pair, f"{names} were down in one cell at {t:.1f}, {_at(here.astype(np.float64), pair[0])}")
    found.note("double_held_pads", len(twice), twice.values())
    by_resource: dict[str, list[Hold]] = defaultdict(list)
    for hold in logged.holds:
        by_resource[hold.resource].append(hold)
    overlaps = []
    for resource, holds in by_resource.items():
        holds.sort(key=lambda hold: hold.begin_t)
        one = holds[0]
        for other in holds[1:]:
            if one.agent != other.agent and other.begin_t + MARGIN_S < one.end_t:
                overlaps.append(f"{resource} held by {one.agent} and {other.agent} at {other.begin_t:.1f}")
            one = max(one, other, key=lambda hold: hold.end_t)
    found.note("double_held_pads", len(twice) + len(overlaps), overlaps)


def check(folder: Path, logs: Sequence[str] = ()) -> Findings:
    """Everything. `logs` names journals that are not in the folder, such as those of a cluster."""
    clock = Clock([(pair["wall_s"], pair["t"]) for pair in read_lines(folder / "clock.jsonl")])
    witness = read_witness(folder)
    logged = read_logs([*journals_in(folder), *logs], clock)
    answers = {fact["job"]: fact["accepted"] for fact in read_lines(folder / "placed.jsonl")}
    found = Findings(drones=len(witness.drones))
    check_jobs(found, witness, logged, answers)
    check_reassignment(found, witness, logged)
    check_separation(found, witness)
    check_zones(found, witness)
    check_ground(found, witness, logged)
    empty = [f"{drone} at {t:.1f}" for drone, t in witness.empty]
    found.note("batteries_empty_in_the_air", len(empty), empty)
    found.violations = sum(getattr(found, name) for name in MUST_BE_ZERO)
    return found


def main(arguments: list[str] | None = None) -> int:
    """Prints what was found; exits with 1 if a promise was broken."""
    parser = argparse.ArgumentParser(prog="python -m rigs.swarm_checker", description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--log", action="append", default=[], metavar="URL", help="a journal elsewhere: nats://…")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args(arguments)
    found = check(options.folder, options.log)
    said = msgspec.to_builtins(found)
    if options.json:
        print(json.dumps({key: round(value, 2) if isinstance(value, float) else value for key, value in said.items()}))
    else:
        details = said.pop("details")
        for key, value in said.items():
            print(f"{key:28} {value:.2f}" if isinstance(value, float) else f"{key:28} {value}")
        print(*details, sep="\n")
    return 1 if found.violations else 0


if __name__ == "__main__":
    sys.exit(main())
