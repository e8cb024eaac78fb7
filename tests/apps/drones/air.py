"""A little air without a runtime: drones that follow the rules of the airways, seen by two regions, too late."""

from __future__ import annotations

import itertools
import math
import random

from apps.drones.airways import ANNOUNCE_S, CLEAR_S, aside, at, free_level, give_way_s, is_off, level_of, steady
from apps.drones.area import CELL_M, FLOOR_M, LEVELS_M, SEPARATION_HEIGHT_M, SEPARATION_M, cell_of
from apps.drones.messages import Track

STEP_S = 0.25
SPEED_M_S, PULL_M_S2, CLIMB_M_S, DESCEND_M_S = 15.0, 3.0, 4.0, 3.0
HOLD_M = 30.0


class Flyer:
    """A drone: its body, and the rules it follows."""

    def __init__(self, name: str, region: int, chance: random.Random, cell: tuple[int, int], off_m: float) -> None:
        self.off_m = off_m
        self.name, self.region, self.chance = name, region, chance
        self.x, self.y = place(cell)
        self.z = self.vx = self.vy = self.vz = 0.0
        self.noise = [chance.gauss(0, 0.5), chance.gauss(0, 0.5), chance.gauss(0, 0.7)]
        self.cell = self.left = cell
        self.goal = self.x, self.y
        self.level = 0.0
        self.phase, self.until = "down", chance.uniform(0, 20)
        self.to_z = 0.0
        self.hold_until = 0.0
        self.shared: Track | None = None
        self.shared_phase = ""
        self.steer = (self.x, self.y, 0.0)
        self.flown = self.gave_way = self.asides = 0

    # -------------------------------------------------------------- body

    def move(self) -> None:
        x, y, z = self.steer
        dx, dy = x - self.x, y - self.y
        far = math.hypot(dx, dy)
        speed = min(SPEED_M_S, 0.8 * math.sqrt(2 * PULL_M_S2 * far), far / 0.5)
        wx, wy = (dx / far * speed, dy / far * speed) if far > 0.1 else (0.0, 0.0)
        ax, ay = wx - self.vx, wy - self.vy
        pull = math.hypot(ax, ay)
        share = min(1.0, PULL_M_S2 * STEP_S / pull) if pull else 0.0
        self.vx += ax * share
        self.vy += ay * share
        dz = z - self.z
        wz = math.copysign(min(CLIMB_M_S if dz > 0 else DESCEND_M_S, 0.8 * math.sqrt(6 * abs(dz)), abs(dz) / 0.5), dz)
        self.vz += min(max(wz - self.vz, -PULL_M_S2 * STEP_S), PULL_M_S2 * STEP_S)
        self.x += self.vx * STEP_S
        self.y += self.vy * STEP_S
        self.z = max(self.z + self.vz * STEP_S, 0.0)
        for i in range(3):
            self.noise[i] = self.noise[i] * 0.98 + self.chance.gauss(0, 0.1)

    def track(self, t: float) -> Track:
        x, y, z = self.x + self.noise[0], self.y + self.noise[1], max(self.z + self.noise[2], 0.0)
        to_z = self.to_z if self.phase in ("announce", "vertical", "wait") else self.level
        mode = "parked" if self.phase == "down" else self.phase
        return Track(t, x, y, z, self.vx, self.vy, self.vz, mode, to_z=-1.0 if self.phase == "down" else to_z)

    # -------------------------------------------------------------- rules

    def look(self, t: float, taken: set[tuple[int, int]]) -> None:
        """Twice a second."""
        if self.phase == "fly":
            if t >= self.hold_until:
                self.steer = (*self.goal, self.level)
            far = math.hypot(self.x - self.goal[0], self.y - self.goal[1])
            if far < 3 and math.hypot(self.vx, self.vy) < 1 and abs(self.z - self.level) < 2:
                self.flown += 1
                lands = self.chance.random() < 0.6
                if not lands:
                    self.choose(taken)
                self.phase, self.until, self.to_z = "announce", t + ANNOUNCE_S, 0.0 if lands else self.level
                self.steer = (self.x, self.y, self.z)
        elif self.phase in ("announce", "wait"):
            if t >= self.until:
                self.phase = "vertical"
                self.steer = (self.steer[0], self.steer[1], self.to_z)
        elif self.phase == "vertical":
            if self.to_z == 0.0 and self.z < 0.5:
                self.phase, self.until = "down", t + 5
            elif self.to_z and abs(self.z - self.to_z) < 1.5:
                self.phase = "fly"
                self.steer = (*self.goal, self.level)
                taken.discard(self.left)
        elif t >= self.until:
            self.choose(taken)
            self.phase, self.to_z = "vertical", self.level
            self.steer = (self.x, self.y, self.level)

    def choose(self, taken: set[tuple[int, int]]) -> None:
        free = [cell for cell in itertools.product(range(17), range(17)) if cell not in taken]
        self.left = self.cell  # its own until it flies away
        self.cell = self.chance.choice(free)
        taken.add(self.cell)
        self.goal = place(self.cell)
        if self.off_m:
            east, north = (self.chance.uniform(-self.off_m, self.off_m) for _ in range(2))
            self.goal = self.goal[0] + east, self.goal[1] + north
        self.level = level_of(self.x, self.y, *self.goal)

    @property
    def goes_back(self) -> bool:
        """It has just left the column that is its own, and is not in anybody's way there."""
        is_above = cell_of(self.x, self.y) == self.left
        return self.phase == "vertical" and self.to_z > 0.0 and self.z < LEVELS_M[0] and is_above

    def warn(self, others: tuple[tuple[str, Track], ...], t: float) -> None:
        if self.phase == "down":
            return
        self.gave_way += 1
        if self.z < FLOOR_M or self.phase == "wait" or self.goes_back:
            if self.to_z:
                self.phase, self.until = "wait", t + CLEAR_S
                self.steer = (self.steer[0], self.steer[1], HOLD_M)
            return
        own = self.track(t)
        if self.phase == "vertical":
            self.phase, self.until = "announce", t + CLEAR_S
            self.steer = (self.steer[0], self.steer[1], self.z)
            return
        if self.phase == "announce":
            self.until = t + ANNOUNCE_S
            own = steady(own)
            if all(give_way_s(self.name, own, name, track, t) is None for name, track in others):
                return
        level = free_level(self.name, own, others, t)
        speed = math.hypot(self.vx, self.vy)
        stands = speed < 1
        keeps_z = self.z if self.phase == "announce" else self.level
        if level is not None and (abs(level - keeps_z) > 3 or not stands):
            if self.phase == "fly":
                self.level = level
            self.steer = (self.steer[0], self.steer[1], level)
            return
        away = aside(self.name, own, others, t) if stands and level is None else None
        if away is None and t < self.hold_until:
            self.hold_until = t + CLEAR_S  # it holds, or is on its way aside: that goes on
            return
        self.hold_until = t + CLEAR_S
        brake = speed / (2 * PULL_M_S2) / max(speed, 0.1)
        x, y = away or (self.x + self.vx * speed * brake, self.y + self.vy * speed * brake)
        self.steer = (x, y, keeps_z)
        if away is not None:
            self.asides += 1
            if self.phase == "announce" and self.to_z == 0.0:
                self.phase, self.level = "fly", keeps_z  # it has to come back to its column before it goes down


def place(cell: tuple[int, int]) -> tuple[float, float]:
    return (cell[0] + 0.5) * CELL_M, (cell[1] + 0.5) * CELL_M


class Air:
    """Some drones in a square kilometre, and two regions that see each other's late."""

    def __init__(self, seed: int, count: int = 12, off_m: float = 0.0) -> None:
        """`off_m`: how far from the middle of their cells drones lie, at most."""
        self.chance = chance = random.Random(seed)
        cells = chance.sample(list(itertools.product(range(17), range(17))), count)
        self.flyers = [Flyer(f"d{i:02d}", i % 2, chance, cell, off_m) for i, cell in enumerate(cells)]
        self.taken = set(cells)
        self.heard: list[dict[str, Track]] = [{}, {}]
        self.coming: list[tuple[float, int, str, Track]] = []
        self.warnings: list[tuple[float, Flyer, tuple[tuple[str, Track], ...]]] = []
        self.t = 0.0
        self.nearest = (math.inf, 0.0, "", "")
        self.looks = [chance.randrange(4) for _ in range(2)]

    def run(self, seconds: float) -> None:
        for step in range(int(seconds / STEP_S)):
            self.t = step * STEP_S
            for flyer in self.flyers:
                flyer.move()
                if step % 2 == 0:
                    flyer.look(self.t, self.taken)
                    self.share(flyer)
            self.deliver()
            for region in (0, 1):
                if step % 4 == self.looks[region]:
                    self.tick(region)
            self.check()

    def share(self, flyer: Flyer) -> None:
        track, last = flyer.track(self.t), flyer.shared
        same = last is not None and (last.mode, last.to_z) == (track.mode, track.to_z)
        if same and last and self.t - last.t < 4 and not is_off(last, track.x, track.y, track.z, self.t):
            return
        flyer.shared = track
        for region in (0, 1):
            late = self.chance.uniform(0.1, 0.5) if region == flyer.region else self.chance.uniform(0.5, 2.0)
            self.coming.append((self.t + late, region, flyer.name, track))

    def deliver(self) -> None:
        for due in [one for one in self.coming if one[0] <= self.t]:
            _, region, name, track = due
            old = self.heard[region].get(name)
            if old is None or old.t < track.t:
                self.heard[region][name] = track
        self.coming = [one for one in self.coming if one[0] > self.t]
        for warning in [one for one in self.warnings if one[0] <= self.t]:
            warning[1].warn(warning[2], self.t)
        self.warnings = [one for one in self.warnings if one[0] > self.t]

    def tick(self, region: int) -> None:
        heard = self.heard[region]
        for flyer in self.flyers:
            own = heard.get(flyer.name)
            if flyer.region != region or own is None:
                continue
            others = tuple(
                (name, track) for name, track in heard.items() if name != flyer.name and near(own, track, self.t)
            )
            if any(give_way_s(flyer.name, own, name, track, self.t) is not None for name, track in others):
                self.warnings.append((self.t + self.chance.uniform(0.1, 0.4), flyer, others))

    def check(self) -> None:
        for a, b in itertools.combinations(self.flyers, 2):
            if abs(a.z - b.z) < SEPARATION_HEIGHT_M:
                far = math.hypot(a.x - b.x, a.y - b.y)
                if far < self.nearest[0]:
                    self.nearest = (far, self.t, a.name, b.name)

    @property
    def is_separated(self) -> bool:
        return self.nearest[0] >= SEPARATION_M


def near(own: Track, other: Track, t: float) -> bool:
    a, b = at(own, t), at(other, t)
    return math.hypot(a[0] - b[0], a[1] - b[1]) < 600 and other.mode != "parked"
