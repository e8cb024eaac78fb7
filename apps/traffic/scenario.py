"""A grid of intersections in the simulator: `stigmergy sim traffic` breaks everything around it and looks at the lamps.

Controllers, sensors and actuators run as they ship. Cabinets stand at the roadside and live on when a node dies; their
detectors and lamp reports fall silent now and then. What is shown is written down by a witness who knows the law, and
none of the code under test.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial
from typing import Any

from msgspec import structs

from apps.traffic.cabinet import Cabinet
from apps.traffic.city import ALIVE_S, Roadside, make_fleet
from apps.traffic.grid import AXES, grid, place_of
from apps.traffic.intersection import COMING, HERE, SILENCE_S, TICK_S, Intersection, beats_of, vehicles_of
from apps.traffic.messages import StopAll
from apps.traffic.monitor import SILENCE_S_MAX
from apps.traffic.phases import GROUPS, Geometry, Lamps, Phase, may_follow
from apps.traffic.traffic import Rates, Traffic
from stigmergy import Event
from stigmergy.sim import ALL, World, simulate

AGENTS, NODES = 6, 3
FOR_S = 60.0
HEAL_S = 240.0
FLOWS_S = 150.0
"""So soon after the heal all lamps have been green again, and everybody who was on the way is at home."""
FAULTS_PER_S = 1 / 40
"""How often detectors or lamp reports of one cabinet fall silent."""
SILENT_S = (0.5, 8.0)
STOPPING_S = 5.0
STEP_S = 0.2
"""How often traffic moves, and cabinets look at their clocks."""
SLACK_S = 0.5
"""What a turn of the host, the way to the device, and our own look at it take."""

roadside = Roadside()
fleet = make_fleet(roadside)


class Witness:
    """Sees the lamps of one intersection, and nothing else. Knows what the law wants."""

    def __init__(self, name: str, geometry: Geometry, now_s: float) -> None:
        self._name = name
        self._geometry = geometry
        self._lamps = Lamps()
        self._since_s = dict.fromkeys(GROUPS, now_s - 3600.0)
        self._cut_s = now_s
        """When a group last ended without its warning."""
        self.greens = 0
        self.findings: list[str] = []

    def see(self, lamps: Lamps, now_s: float) -> None:
        """Looks at the lamps at a moment when they may have changed."""
        going = [group for group in GROUPS if getattr(lamps, group) != "red"]
        if len(going) > 1:
            self._find(f"{' and '.join(going)} at once")
        for group in GROUPS:
            old, new = getattr(self._lamps, group), getattr(lamps, group)
            if old == new:
                continue
            lasted_s = now_s - self._since_s[group]
            warning_s = self._geometry.flashing_s if group == "walk" else self._geometry.yellow_s
            if new == "red" and (old == "green" or lasted_s < warning_s - 0.05):
                self._cut_s = now_s
                if lamps != Lamps():
                    self._find(f"{group} ended without its warning, and others go")
            if new == "green":
                self.greens += 1
                self._check_clear(group, now_s)
            self._since_s[group] = now_s
        self._lamps = lamps

    def _check_clear(self, going: str, now_s: float) -> None:
        red_s = min(now_s - self._since_s[group] for group in GROUPS if group != going)
        if red_s < self._geometry.clearing_s - 0.05:
            self._find(f"{going} goes {red_s:.2f} s after another")
        if now_s - self._cut_s < self._geometry.recovery_s - 0.05:
            self._find(f"{going} goes {now_s - self._cut_s:.2f} s after a green that was cut off")

    def _find(self, what: str) -> None:
        self.findings.append(f"{self._name}: {what}")


class Drive:
    """One run: traffic, cabinets that fail now and then, and all that must hold."""

    def __init__(self, world: World) -> None:
        self._world = world
        names = [address.partition("/")[2] for address in world.agents]
        rows, columns = (1 + max(place_of(name)[side] for name in names) for side in (0, 1))
        self._cabinets = {name: roadside[name] for name in names}
        rates = Rates(street_per_min=6, avenue_per_min=4, walkers_per_min=0.5)
        self._traffic = Traffic(rows, columns, world.seed, self._lamps_of, self._detect, rates)
        self._geometry = Geometry()
        self._witnesses = {name: Witness(name, self._geometry, world.now_s) for name in names}
        self._known: dict[str, tuple[int, Phase]] = {}
        self._quiet_s: dict[tuple[str, str], float] = {}
        """When detectors or lamps of a cabinet fell silent."""
        self._apart_s: dict[str, float] = {}
        """When a cabinet was last seen without its controller."""
        self._ends_s: dict[tuple[str, str], float] = {}
        self._healed_s: float | None = None
        self._greens: dict[str, int] = {}
        self.findings: list[str] = []
        for name, cabinet in self._cabinets.items():
            cabinet.on_change = self._changed
            cabinet.standing = partial(self._traffic.standing_at, name)

    # ------------------------------------------------------------------ the roadside

    def _lamps_of(self, name: str) -> Lamps:
        return self._cabinets[name].lamps

    def _detect(self, name: str, event: Event) -> None:
        self._cabinets[name].detect(event)

    def _changed(self, cabinet: Cabinet) -> None:
        self._witnesses[cabinet.name].see(cabinet.lamps, self._world.now_s)

    async def run(self) -> None:
        """Moves traffic and the clocks of the cabinets until all is over, and then a little: with everybody stopped,
        so that nobody has anything more to tell the others."""
        while not self.over():
            await self._step()
        for address in self._world.agents:
            self._world.ask(address, StopAll(reason="all is over"))
        for _ in range(round(STOPPING_S / STEP_S)):
            await self._step()

    async def _step(self) -> None:
        now_s = self._world.now_s
        self._break(now_s)
        for name, cabinet in self._cabinets.items():
            cabinet.tick()
            self._check_silence(name, cabinet, now_s)
        self._traffic.step(now_s)
        await asyncio.sleep(STEP_S)

    def _break(self, now_s: float) -> None:
        """Has cabinets fall silent and speak again."""
        chance = self._world.chance
        for name, cabinet in self._cabinets.items():
            for part in ("blind", "dark"):
                ends_s = self._ends_s.get((name, part))
                calm = self._healed_s is not None
                if ends_s is not None and (now_s >= ends_s or calm):
                    del self._ends_s[name, part]
                    setattr(cabinet, part, False)
                elif ends_s is None and not calm and chance.random() < FAULTS_PER_S * STEP_S:
                    self._ends_s[name, part] = now_s + chance.uniform(*SILENT_S)
                    self._quiet_s[name, part] = now_s
                    setattr(cabinet, part, True)

    # ------------------------------------------------------------------ what must hold

    def _check_silence(self, name: str, cabinet: Cabinet, now_s: float) -> None:
        """Whoever hears nothing for T has red lamps a tick later; so has a cabinet that nobody speaks to."""
        unheard_s = cabinet.monitor.silent_s(now_s)
        if unheard_s > 2 * ALIVE_S:
            self._apart_s[name] = now_s
        if unheard_s > SILENCE_S_MAX + SLACK_S and cabinet.lamps != Lamps():
            self.findings.append(f"{name}: its controller is silent, {cabinet.phase.value} at {now_s:.1f} s")
        for part in ("blind", "dark"):
            since_s = self._quiet_s.get((name, part), now_s)
            # If the controller itself was gone meanwhile, its monitor had to notice that first.
            gone = self._apart_s.get(name, 0.0) >= since_s
            within_s = SILENCE_S + TICK_S + SLACK_S + (SILENCE_S_MAX if gone else 0.0)
            if (name, part) in self._ends_s and now_s - since_s > within_s and cabinet.lamps != Lamps():
                self.findings.append(f"{name}: {part} since {since_s:.1f} s, {cabinet.phase.value} at {now_s:.1f} s")

    def lamps_are_lawful(self) -> bool:
        """No two groups at once, no clearance too short, no silence without red: at every moment, seen from outside."""
        found = [finding for witness in self._witnesses.values() for finding in witness.findings] + self.findings
        assert not found, found[0]
        latched = [name for name, cabinet in self._cabinets.items() if cabinet.monitor.latched]
        assert not latched, f"{latched[0]}: the monitor saw a conflict"
        return True

    def phases_are_in_order(self) -> bool:
        """What is decided follows what was decided before, by the table."""
        for one in self._world.states(Intersection):
            known = self._known.get(one.id)
            if known is not None and one.number == known[0] + 1:
                assert may_follow(known[1], one.phase), f"{one.id}: {one.phase} after {known[1]}"
            self._known[one.id] = (one.number, one.phase)
        return True

    def flows_again(self) -> bool:
        """After the heal every intersection lets everybody go again, and everybody comes home."""
        if self._healed_s is None:
            self._healed_s = self._world.now_s
            self._traffic.open = False
            self._greens = {name: witness.greens for name, witness in self._witnesses.items()}
        turned = all(witness.greens > self._greens[name] for name, witness in self._witnesses.items())
        return turned and not self._traffic.places()

    def over(self) -> bool:
        """Whether there is nothing more to see."""
        healed_s = self._healed_s
        if healed_s is None:
            return False
        settled = self.flows_again() and self.neighbours_agree() and self.vehicles_are_conserved()
        return settled or self._world.now_s > healed_s + FLOWS_S

    def vehicles_are_conserved(self) -> bool:
        """Every vehicle is recorded where it is, once; what a lost disk alone knew is lost."""
        if any(node.incarnation > 1 for node in self._world.nodes):
            return True
        return self._recorded() == {name: [place] for name, place in self._traffic.places().items()}

    def neighbours_agree(self) -> bool:
        """All intersections of a road know the same phases, and those are the ones that are shown."""
        states = {one.id: one for one in self._world.states(Intersection)}
        for one in states.values():
            for axis in AXES:
                for name, register in beats_of(one, axis).items():
                    beat = register.value
                    if beat is None or (beat.phase, beat.number) != (states[name].phase, states[name].number):
                        return False
            if one.mode != "coordinated":
                return False
        return True

    def _recorded(self) -> dict[str, list[str]]:
        found: dict[str, list[str]] = {}
        for one in self._world.states(Intersection):
            for axis in AXES:
                mine = vehicles_of(one, axis)[one.id]
                for place in (HERE, COMING):
                    for vehicle in mine[place]:
                        found.setdefault(vehicle, []).append(one.id)
        return found


def addresses(count: int) -> list[str]:
    """So many intersections, in a grid that is as square as can be."""
    rows = max(rows for rows in range(1, count + 1) if count % rows == 0 and rows * rows <= count)
    return [f"Intersection/{name}" for name in grid(rows, count // rows)]


@simulate(
    fleet,
    agents=addresses(AGENTS),
    nodes=NODES,
    seeds=200,
    faults=ALL,
    for_s=FOR_S,
    heal_s=HEAL_S,
    devices=True,
)
def drive(world: World) -> None:
    """A grid of intersections: lamps are lawful whatever breaks, and traffic flows again afterwards."""
    run = Drive(world)
    world.script(run.run)
    world.always(run.lamps_are_lawful)
    world.always(run.phases_are_in_order)
    checks: list[Callable[[], bool]] = [run.flows_again, run.vehicles_are_conserved, run.neighbours_agree]
    for check in checks:
        world.eventually(check, within_s=FLOWS_S, name=check.__name__)
    world.eventually(world.converged, within_s=FLOWS_S)


scenario: Any = structs.replace(vars(drive)["scenario"], names=addresses)
"""What `stigmergy sim traffic` runs; `--agents` makes the grid larger."""
