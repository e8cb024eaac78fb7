"""One intersection: decides alone, safely, and with its neighbours, well. What it has decided survives a crash.

Its phase is its own state, in its own journal, and lamps follow from that alone. What it tells its neighbours of it is
shared, and so is who drives where; a register that converges could jump from one green to another, so no lamp ever
listens to one. Time that makes safe is counted by timers, on the monotonic clock, from when the lamps were seen.
"""

from __future__ import annotations

from msgspec import Struct

from apps.traffic.grid import AXES, Axis, adjacent, avenue_of, blocks_between, is_on, street_of
from apps.traffic.messages import (
    AllRed,
    AnnouncementsMet,
    Beat,
    ClearMonitor,
    CrossingRequested,
    DetectorsHeard,
    LampsSeen,
    Mode,
    ModeChanged,
    MonitorResetAsked,
    PhaseChanged,
    PhaseConfirmed,
    PhaseExtended,
    ResetMonitor,
    Resume,
    Resumed,
    ShowPhase,
    StopAll,
    Stopped,
    Survey,
    Surveyed,
    Ticked,
    VehicleArrived,
    VehicleLeft,
    WokeUp,
)
from apps.traffic.phases import FOLLOWING, GREEN_OF, STAGE_OF, Geometry, Phase, Stage, green_axis, may_follow
from apps.traffic.timing import Demand, Platoon, Situation, ends_now, merge_platoon, next_stage
from stigmergy import (
    ActionFailed,
    Agent,
    CancelWake,
    Effects,
    Events,
    LWWRegister,
    Merged,
    ORMap,
    ORSet,
    SafeActionTaken,
    Shared,
    WakeMe,
    WhenStale,
    Woken,
    decide,
    evolve,
    react,
    reject,
    shared,
)

SILENCE_S = 2.5
"""Without detectors or lamps for so long, or without a tick of its own, everything turns red."""
TICK_S = 1.0
CONFIRM_S = 2.0
"""So soon lamps must be seen to show what was ordered."""
EXTEND_S = 0.5
BEAT_TICKS = 4
"""Neighbours are told at least every so many ticks that we are here."""
LOST_TICKS = 12
"""A neighbour that is not heard for so many is not counted on any more."""
NEWS_S_MAX = 5.0
"""What a neighbour says of a green older than this comes too late for a wave."""
PLATOON_S = 12.0
"""How long a platoon takes to pass, as long as nobody has said that its green is over."""
FULL_COUNT = 18
"""So many vehicles on a block leave no room for more."""
UNHEARD_COUNT_MAX = 1_000
"""Vehicles whose announcement has not come yet; the oldest are forgotten first."""
GONE_COUNT_MAX = 100
"""The last vehicles that left: a detector that was interrupted may name them once more."""
WIDTH_M, SPEED_M_S, BLOCK_M = (5.0, 60.0), (5.0, 25.0), (40.0, 2_000.0)
TICK, STEP, CONFIRM = "tick", "step", "confirm"
HERE, COMING = "here", "coming"

Beats = ORMap[str, LWWRegister[Beat]]
Vehicles = ORMap[str, ORMap[str, ORSet[str]]]


class Heard(Struct, frozen=True):
    """What is known of a neighbour."""

    number: int
    at_s: float
    tick: int


class Intersection(Agent):
    """One intersection, named by its place: `r2c5`."""

    geometry: Geometry = Geometry()
    phase: Phase = Phase.ALL_RED
    number: int = 0
    """Of the phase: one more with each order to the lamps."""
    confirmed: bool = False
    """Whether the lamps were seen to show it."""
    green_s: float = 0.0
    """How long the present green has lasted, as far as it is decided."""
    stage: Stage = "avenue"
    """Who has the way, or had it last."""
    axis: Axis = "avenue"
    because: str = "the controller has not begun"
    """Why everything is red, or was last."""
    mode: Mode = "local"
    stop: str = ""
    """Why somebody wants everything red."""
    walkers: bool = False
    detectors: bool = False
    """Whether they were heard, and work, since everything turned red."""
    standing: tuple[Axis, ...] = ()
    """Where somebody stands at a stop line, known or not."""
    lamps: bool = False
    latched: bool = False
    awake: bool = False
    ticks: int = 0
    told_tick: int = 0
    told_number: int = -1
    red_ticks: int = 0
    """For how long nothing has spoken against going on."""
    heard: tuple[tuple[str, Heard], ...] = ()
    platoons: tuple[Platoon, ...] = ()
    unheard: tuple[str, ...] = ()
    gone: tuple[str, ...] = ()
    served: int = 0

    # Shared with all intersections of the same street, and of the same avenue.
    street: Shared[Beats] = shared(by=street_of)
    avenue: Shared[Beats] = shared(by=avenue_of)
    street_vehicles: Shared[Vehicles] = shared(by=street_of)
    avenue_vehicles: Shared[Vehicles] = shared(by=avenue_of)

    # Without these it does not know enough to let anybody go. They go out even if the disk is dead.
    blind = WhenStale(DetectorsHeard, after_s=SILENCE_S, then=AllRed())
    dark = WhenStale(LampsSeen, after_s=SILENCE_S, then=AllRed())
    stuck = WhenStale(Ticked, after_s=SILENCE_S, then=AllRed())

    # ------------------------------------------------------------------ orders of people

    @decide
    def survey(self, command: Survey) -> Events:
        if self.phase is not Phase.ALL_RED:
            reject(f"{self.phase.value}: an intersection is surveyed while everything is red; send StopAll first")
        for name, (low, high) in (("width_m", WIDTH_M), ("speed_m_s", SPEED_M_S), ("block_m", BLOCK_M)):
            if not low <= getattr(command, name) <= high:
                reject(f"{name}={getattr(command, name):g}; give {low:g} to {high:g}")
        yield Surveyed(width_m=command.width_m, speed_m_s=command.speed_m_s, block_m=command.block_m)

    @decide
    def stop_all(self, command: StopAll) -> Events:
        yield Stopped(reason=command.reason or "somebody wants it")
        if self.phase is not Phase.ALL_RED:
            yield from change(self, Phase.ALL_RED, command.reason)

    @decide
    def resume(self, command: Resume) -> Events:
        if not self.stop:
            reject("nobody has stopped it")
        yield Resumed()

    @decide
    def reset_monitor(self, command: ResetMonitor) -> Events:
        if self.phase is not Phase.ALL_RED:
            reject(f"{self.phase.value}: there is nothing to reset")
        yield MonitorResetAsked(by=command.by)

    # ------------------------------------------------------------------ what devices say

    @decide
    def detectors_heard(self, event: DetectorsHeard) -> Events:
        yield event
        if not self.awake:
            yield WokeUp()
        elif not event.working and self.phase is not Phase.ALL_RED:
            yield from change(self, Phase.ALL_RED, "detectors do not work")

    @decide
    def lamps_seen(self, event: LampsSeen) -> Events:
        yield event
        ours = event.number == self.number
        if event.first and self.phase is not Phase.ALL_RED:
            yield from change(self, Phase.ALL_RED, "the controller was started anew")
        elif event.tripped and self.phase is not Phase.ALL_RED:
            yield from change(self, Phase.ALL_RED, f"monitor: {event.tripped}")
        elif ours and event.phase is self.phase and not self.confirmed:
            yield PhaseConfirmed(number=self.number)
        elif ours and event.phase is not self.phase:
            yield from change(self, Phase.ALL_RED, f"lamps show {event.phase.value}, not {self.phase.value}")

    @decide
    def arrived(self, event: VehicleArrived) -> Events:
        vehicles, name = vehicles_of(self, event.axis), leg_name(event.vehicle, event.leg)
        if name in self.gone or name in vehicles[self.id][HERE]:
            return  # said once more
        yield event
        yield vehicles[self.id][HERE].add(name)
        if name in vehicles[self.id][COMING]:
            yield vehicles[self.id][COMING].remove(name)

    @decide
    def left(self, event: VehicleLeft) -> Events:
        if event.to and not is_on(event.onto, self.id, event.to):
            raise ValueError(f"{event.vehicle} cannot go from {self.id} to {event.to} along its {event.onto}")
        vehicles, name = vehicles_of(self, event.axis), leg_name(event.vehicle, event.leg)
        if name in self.gone:
            return
        yield event
        for place in (HERE, COMING):
            if name in vehicles[self.id][place]:
                yield vehicles[self.id][place].remove(name)
        if event.to:
            yield vehicles_of(self, event.onto)[event.to][COMING].add(leg_name(event.vehicle, event.leg + 1))

    # ------------------------------------------------------------------ time

    @decide
    def woken(self, event: Woken) -> Events:
        match event.name:
            case "tick":
                yield from tick(self)
            case "step":
                yield from step(self)
            case "confirm" if not self.confirmed:
                red = self.phase is Phase.ALL_RED
                why = self.because if red else f"lamps do not show {self.phase.value}"
                yield from change(self, Phase.ALL_RED, why)
            case _:
                pass

    @decide
    def order_failed(self, event: ActionFailed) -> Events:
        yield event
        if event.action == "ShowPhase" and self.phase is not Phase.ALL_RED:
            yield from change(self, Phase.ALL_RED, f"lamps: {event.reason}")

    # ------------------------------------------------------------------ neighbours

    @decide
    def merged(self, event: Merged) -> Events:
        """Announcements of vehicles that have long been here, or gone, are taken back."""
        axis = axis_of(event.field)
        if axis is None or not self.unheard or not event.field.endswith("vehicles"):
            return
        coming = vehicles_of(self, axis)[self.id][COMING]
        met = tuple(name for name in self.unheard if name in coming)
        for name in met:
            yield coming.remove(name)
        if met:
            yield AnnouncementsMet(vehicles=met)

    @evolve
    def neighbours_heard(self, event: Merged) -> None:
        axis = axis_of(event.field)
        if axis is None or event.field.endswith("vehicles"):
            return
        heard, news = dict(self.heard), dict[str, Beat]()
        for name, register in beats_of(self, axis).items():
            beat, known = register.value, heard.get(name)
            if name == self.id or beat is None or known == Heard(beat.number, beat.at_s, known.tick if known else 0):
                continue
            heard[name] = Heard(beat.number, beat.at_s, self.ticks)
            if (known is None or beat.number != known.number) and abs(self.now - beat.at_s) <= NEWS_S_MAX:
                news[name] = beat
        self.heard = tuple(sorted(heard.items()))
        for name in beside(self, axis):
            if name in news:
                self.platoons = expect(self.platoons, axis, name, news[name], self.geometry, self.id, self.now)

    # ------------------------------------------------------------------ what is so

    @evolve
    def surveyed(self, event: Surveyed) -> None:
        self.geometry = Geometry(width_m=event.width_m, speed_m_s=event.speed_m_s, block_m=event.block_m)
        self.red_ticks = 0

    @evolve
    def woke_up(self, event: WokeUp) -> None:
        self.awake = True
        self.number += 1
        self.confirmed = False

    @evolve
    def changed(self, event: PhaseChanged) -> None:
        self.phase = event.phase
        self.number += 1
        self.confirmed = False
        self.green_s = 0.0
        self.told_tick, self.told_number = self.ticks, self.number
        if event.phase is Phase.ALL_RED:
            self.because, self.red_ticks = event.because, 0
        elif event.phase is Phase.CLEARING:
            self.detectors = False  # nobody goes before they were heard once more
        elif event.phase in STAGE_OF:
            self.stage = STAGE_OF[event.phase]
            self.axis = green_axis(event.phase) or self.axis
            self.walkers = self.walkers and event.phase is not Phase.WALK

    @evolve
    def confirmed_now(self, event: PhaseConfirmed) -> None:
        self.confirmed = True
        if self.phase in STAGE_OF:
            self.green_s = self.geometry.least_s(self.phase)

    @evolve
    def extended(self, event: PhaseExtended) -> None:
        self.green_s += event.by_s

    @evolve
    def ticked(self, event: Ticked) -> None:
        self.ticks += 1
        if event.told:
            self.told_tick, self.told_number = self.ticks, self.number
        self.red_ticks = self.red_ticks + 1 if is_ready(self) else 0

    @evolve
    def mode_changed(self, event: ModeChanged) -> None:
        self.mode = event.mode

    @evolve
    def detectors_there(self, event: DetectorsHeard) -> None:
        self.detectors = event.working
        self.standing = tuple(axis for axis in AXES if getattr(event, axis))

    @evolve
    def lamps_there(self, event: LampsSeen) -> None:
        self.lamps = not event.latched
        self.latched = event.latched
        if event.first:
            self.detectors, self.red_ticks = False, 0

    @evolve
    def made_safe(self, event: SafeActionTaken) -> None:
        """Everything is red already. Nothing is known any more until it is heard again."""
        self.phase = Phase.ALL_RED
        self.number += 1
        self.confirmed = self.detectors = self.lamps = False
        self.red_ticks, self.green_s = 0, 0.0
        self.because = event.because

    @evolve
    def wants_to_walk(self, event: CrossingRequested) -> None:
        self.walkers = self.phase is not Phase.WALK

    @evolve
    def came(self, event: VehicleArrived) -> None:
        name = leg_name(event.vehicle, event.leg)
        if not event.entering and name not in vehicles_of(self, event.axis)[self.id][COMING]:
            self.unheard = remember(self.unheard, name, UNHEARD_COUNT_MAX)

    @evolve
    def went(self, event: VehicleLeft) -> None:
        mine, name = vehicles_of(self, event.axis)[self.id], leg_name(event.vehicle, event.leg)
        if name not in mine[HERE] and name not in mine[COMING]:
            self.unheard = remember(self.unheard, name, UNHEARD_COUNT_MAX)
        self.gone = remember(self.gone, name, GONE_COUNT_MAX)
        self.served += 1

    @evolve
    def met(self, event: AnnouncementsMet) -> None:
        self.unheard = tuple(name for name in self.unheard if name not in event.vehicles)

    @evolve
    def stopped_now(self, event: Stopped) -> None:
        self.stop = event.reason

    @evolve
    def resumed(self, event: Resumed) -> None:
        self.stop = ""
        self.red_ticks = 0

    # ------------------------------------------------------------------ what follows

    @react
    def begin(self, event: WokeUp) -> Effects:
        yield from order(self)
        yield WakeMe(name=TICK, after_s=TICK_S)

    @react
    def have_shown(self, event: PhaseChanged) -> Effects:
        yield from order(self)

    @react
    def begin_again(self, event: SafeActionTaken) -> Effects:
        """A green that was decided a moment before may have gone out behind the safe action: red once more."""
        yield from order(self)
        yield WakeMe(name=TICK, after_s=TICK_S)

    @react
    def count_from_now(self, event: PhaseConfirmed) -> Effects:
        yield CancelWake(name=CONFIRM)
        if self.phase is not Phase.ALL_RED:
            yield WakeMe(name=STEP, after_s=self.geometry.least_s(self.phase))

    @react
    def go_on(self, event: PhaseExtended) -> Effects:
        yield WakeMe(name=STEP, after_s=event.by_s)

    @react
    def tick_again(self, event: Ticked) -> Effects:
        yield WakeMe(name=TICK, after_s=TICK_S)

    @react
    def clear_monitor(self, event: MonitorResetAsked) -> Effects:
        yield ClearMonitor(by=event.by)


# ---------------------------------------------------------------------- rules of an intersection


def change(one: Intersection, phase: Phase, because: str = "") -> Events:
    """Another phase, and neighbours are told. Raises rather than to skip a yellow or a clearance."""
    if not may_follow(one.phase, phase):
        raise ValueError(f"{phase.value} cannot follow {one.phase.value}")
    yield PhaseChanged(phase=phase, because=because)
    yield from tell(one, phase, one.number + 1)


def tell(one: Intersection, phase: Phase, number: int) -> Events:
    """Tells both roads what is shown."""
    beat = Beat(phase=phase, number=number, at_s=one.now)
    yield one.street[one.id].set(beat)
    yield one.avenue[one.id].set(beat)


def order(one: Intersection) -> Effects:
    """Has the lamps show the phase, and waits until they are seen to."""
    yield ShowPhase(phase=one.phase, number=one.number)
    yield CancelWake(name=STEP)
    yield WakeMe(name=CONFIRM, after_s=CONFIRM_S)


def tick(one: Intersection) -> Events:
    """Twice a second: says that it is alive, looks who is heard, and goes on from ALL_RED when nothing is in doubt."""
    mode: Mode = "coordinated" if any(beside(one, axis) for axis in AXES) else "local"
    if mode != one.mode:
        yield ModeChanged(mode=mode)
    if is_ready(one) and one.red_ticks * TICK_S >= one.geometry.recovery_s:
        yield Ticked()
        yield from change(one, Phase.CLEARING)
        return
    # One that was stopped lets nobody go, and has nothing to say.
    told = not one.stop and (one.told_number != one.number or one.ticks - one.told_tick >= BEAT_TICKS)
    yield Ticked(told=told)
    if told:
        yield from tell(one, one.phase, one.number)


def step(one: Intersection) -> Events:
    """The least time of the phase is over, by the clock and as seen on the lamps."""
    if not one.confirmed or one.phase is Phase.ALL_RED:
        return
    seen = situation(one)
    if one.phase is Phase.CLEARING and not one.detectors:
        yield PhaseExtended(by_s=EXTEND_S)
    elif one.phase is Phase.CLEARING:
        yield from change(one, GREEN_OF[next_stage(seen)])
    elif one.phase not in STAGE_OF or ends_now(seen):
        yield from change(one, FOLLOWING[one.phase][0])
    else:
        yield PhaseExtended(by_s=EXTEND_S)


def is_ready(one: Intersection) -> bool:
    """Whether nothing speaks against leaving ALL_RED: everybody heard, lamps seen to be red, nobody against it."""
    sound = one.detectors and one.lamps and one.confirmed and not one.latched
    return one.phase is Phase.ALL_RED and sound and not one.stop


def situation(one: Intersection) -> Situation:
    """What counts for the green."""
    return Situation(
        now_s=one.now,
        stage=one.stage,
        axis=one.axis,
        green_s=one.green_s,
        coordinated=one.mode == "coordinated",
        walkers=one.walkers,
        demand={axis: demand(one, axis) for axis in AXES},
        platoons=one.platoons,
        geometry=one.geometry,
    )


def demand(one: Intersection, axis: Axis) -> Demand:
    """Who wants to go along this road, and whether there is room for them."""
    vehicles = vehicles_of(one, axis)
    mine = vehicles[one.id]
    rooms = [len(vehicles[name][HERE]) + len(vehicles[name][COMING]) for name in beside(one, axis)]
    return Demand(
        here=max(len(mine[HERE]), 1 if axis in one.standing else 0),
        coming=len(mine[COMING]),
        blocked=bool(rooms) and min(rooms) >= FULL_COUNT,
    )


def beside(one: Intersection, axis: Axis) -> tuple[str, ...]:
    """The nearest intersections along a road that are heard."""
    near = [name for name, heard in one.heard if one.ticks - heard.tick < LOST_TICKS and is_on(axis, one.id, name)]
    return adjacent(axis, one.id, near)


def expect(
    platoons: tuple[Platoon, ...], axis: Axis, source: str, beat: Beat, geometry: Geometry, me: str, now_s: float
) -> tuple[Platoon, ...]:
    """What a neighbour's phase means for us: who it lets go is here after the way between us."""
    travel_s = geometry.travel_s(blocks_between(axis, me, source))
    green = green_axis(beat.phase)
    if green == axis:
        new = Platoon(source, axis, now_s + travel_s, now_s + travel_s + PLATOON_S)
        return merge_platoon(platoons, new, now_s)
    known = next((one for one in platoons if (one.source, one.axis) == (source, axis)), None)
    if known is None or known.ends_s < now_s:
        return platoons
    ends_s = min(known.ends_s, now_s + travel_s) if green is not None else now_s + travel_s
    return merge_platoon(platoons, Platoon(source, axis, known.begins_s, max(ends_s, known.begins_s)), now_s)


def axis_of(field: str) -> Axis | None:
    """Along which road a shared field is shared."""
    if field.startswith("street"):
        return "street"
    return "avenue" if field.startswith("avenue") else None


def beats_of(one: Intersection, axis: Axis) -> Beats:
    """The phases of all intersections along a road."""
    return one.street if axis == "street" else one.avenue


def vehicles_of(one: Intersection, axis: Axis) -> Vehicles:
    """The vehicles at and between all intersections along a road."""
    return one.street_vehicles if axis == "street" else one.avenue_vehicles


def leg_name(vehicle: str, leg: int) -> str:
    """A vehicle on one part of its trip: who passes a place twice is there twice."""
    return f"{vehicle}.{leg}"


def remember(names: tuple[str, ...], name: str, count_max: int) -> tuple[str, ...]:
    """One more, and not too many."""
    return names if name in names else (*names, name)[-count_max:]
