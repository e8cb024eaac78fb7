"""What one region knows of the air above one zone: `Sector/r2-0705@r1`. It warns and misses the drones of its region.

Drones of the region tell it their tracks. If drones of another region are above the same zone, their sector has said so
in `regions`, and both share all tracks: a drone at a border sees those that come from the other side. Once a second it
looks at all tracks:

* a drone of its region that is in the zone and has to give way is told the traffic around it;
* one that wants to go down where another one lies, which its safe action has put there, is told so;
* one that has a job and was not heard for `SILENT_S` is reported to its job, once for each token;
* tracks of those that left are removed.

Nothing of a tick is stored, unless something happened. That it was not running itself it therefore knows only from what
it stored: a drone that it misses is first suspected, and a verdict that comes much too late is not given.
"""

from __future__ import annotations

from math import hypot

from msgspec import Struct

from apps.drones.airways import at, conflicts
from apps.drones.area import FLOOR_M, cell_name, region_of, zone_of
from apps.drones.messages import (
    ClosedZone,
    ColumnTaken,
    DroneSilent,
    Ticked,
    Track,
    TrackShared,
    TrafficHeard,
    ZoneClosed,
    ZoneOpened,
    ZonesHeard,
)
from stigmergy import (
    Agent,
    Effects,
    Event,
    Events,
    LWWRegister,
    ORMap,
    ORSet,
    Shared,
    Tell,
    decide,
    evolve,
    field,
    react,
    shared,
)

SILENT_S = 4.5
SUSPECT_S = 3.5
"""Drones with a job share a track every 2 s at least: one that is this old is worth a note."""
LATE_S = 2.5
"""A tick that comes so long after it was due: the sector was not running."""
BACK_S = 3.0
"""Drones share a track with the first fix after that, so one of which nothing came within this time is silent."""
FORGET_S = 30.0
"""A drone that was in the air and was not heard for so long is not here any more."""
PARKED_S = 150.0
"""The same of one on the ground, which shares its track every `SHARE_PARKED_S`."""
OTHERS_MAX = 8
AROUND_M = 600.0
ZONES_MAX = 64
ON_GROUND = ("new", "parked", "charging", "grounded")


class Suspicion(Struct, frozen=True, array_like=True):
    """A drone that was not heard for a while: since when the sector knows, and when it gives its verdict."""

    drone: str
    token: int
    last_t: float
    due_t: float


class MemberHeard(Event):
    """A drone of the own region, for the first time, or as it enters or leaves the zone itself."""

    drone: str
    inside: bool


class MembersLeft(Event):
    drones: tuple[str, ...]


class DronesSuspected(Event):
    suspicions: tuple[Suspicion, ...]


class DronesWarned(Event):
    """Who has to give way, and the others that it is told of."""

    t: float
    warnings: tuple[tuple[str, tuple[str, ...]], ...]


class ColumnsTaken(Event):
    """Who wants to go down where another one lies, with that one."""

    taken: tuple[tuple[str, str], ...]


class ZonesEnded(Event):
    names: tuple[str, ...]


Tracks = ORMap[str, LWWRegister[Track]]


class Sector(Agent):
    """The air above one zone, as one region sees it."""

    regions: Shared[ORSet[str]] = shared(by=zone_of)
    """Those that have drones above this zone."""
    tracks: Shared[Tracks] = shared(by=zone_of)
    """Of the drones of all regions, while there are several: most zones are never shared, and cost nothing."""
    own: dict[str, Track] = field(default_factory=dict)
    """Of the drones of its own region, its members: they tell this sector their tracks."""
    inside: frozenset[str] = frozenset()
    """Those of them that are in the zone itself."""
    suspicions: tuple[Suspicion, ...] = ()
    reported: tuple[tuple[str, str, int], ...] = ()
    """Whose silence its job was told: drone, job, token."""
    zones: tuple[ClosedZone, ...] = ()

    # ------------------------------------------------------------------ drones

    @decide
    def heard(self, event: TrackShared) -> Events:
        last = self.own.get(event.drone)
        if last is not None and last.t > event.track.t:
            return
        yield event
        if self._is_shared():
            yield self.tracks[event.drone].set(event.track)
        inside = event.zone in ("", zone_of(self.id))
        if last is None or inside != (event.drone in self.inside):
            yield MemberHeard(event.drone, inside)
        if not self.own:
            yield self.regions.add(region_of(self.id))

    @evolve
    def notes(self, event: TrackShared) -> None:
        self.own[event.drone] = event.track

    @evolve
    def joined(self, event: MemberHeard) -> None:
        self.inside = self.inside | {event.drone} if event.inside else self.inside - {event.drone}

    def _is_shared(self) -> bool:
        """Whether drones of another region are, or were lately, above this zone."""
        return len(self.regions) > (region_of(self.id) in self.regions)

    def _track(self, drone: str) -> Track | None:
        return self.own.get(drone) or self.tracks[drone].value

    @react
    def say_zones(self, event: MemberHeard) -> Effects:
        yield self._tell_zones(event.drone)

    def _tell_zones(self, drone: str) -> Tell:
        return Tell(f"Drone/{drone}", ZonesHeard(self.id, self.zones))

    # ------------------------------------------------------------------ once a second

    @decide
    def ticked(self, event: Ticked) -> Events:
        t = event.t
        yield from self._share()
        seen = [*self.own.items()]
        for name, register in self.tracks.items():
            if name not in self.own and (track := register.value) is not None:
                seen.append((name, track))
        yield from self._warn(t, seen)
        yield from self._keep_off(seen)
        yield from self._miss(t)
        yield from self._forget(t, seen)
        over = tuple(zone.name for zone in self.zones if zone.until_t <= t)
        if over:
            yield ZonesEnded(over)

    def _share(self) -> Events:
        """Shares all tracks as soon as there is another region, and none of its own when that has left."""
        if self._is_shared():
            for drone, track in self.own.items():
                if drone not in self.tracks:
                    yield self.tracks[drone].set(track)
        elif self.tracks:
            for drone in self.own:
                if drone in self.tracks:
                    yield self.tracks.remove(drone)

    def _warn(self, t: float, seen: list[tuple[str, Track]]) -> Events:
        flying = [one for one in seen if one[1].mode not in ON_GROUND and t - one[1].t < FORGET_S]
        comes: dict[int, list[int]] = {}
        for _, a, b in conflicts(flying, t):
            if flying[a][0] in self.inside:
                comes.setdefault(a, []).append(b)
        if comes:
            places = [at(track, t) for _, track in flying]
            warnings = [(flying[a][0], _others(flying, places, a, first)) for a, first in sorted(comes.items())]
            yield DronesWarned(t, tuple(warnings))

    @react
    def tell_traffic(self, event: DronesWarned) -> Effects:
        for drone, names in event.warnings:
            others = tuple((name, track) for name in names if (track := self._track(name)) is not None)
            yield Tell(f"Drone/{drone}", TrafficHeard(event.t, others))

    def _keep_off(self, seen: list[tuple[str, Track]]) -> Events:
        """A safe action asks nobody: who was put down on a pad or cell may not have been granted it."""
        lying = {cell_name(track.x, track.y): name for name, track in seen if track.mode in ("landing", "grounded")}
        if not lying:
            return
        taken = [
            (name, by)
            for name, track in seen
            if name in self.inside and track.mode in ("above", "sinking") and track.to_z == 0.0
            if (by := lying.get(cell_name(track.x, track.y))) is not None
        ]
        if taken:
            yield ColumnsTaken(tuple(taken))

    @react
    def tell_taken(self, event: ColumnsTaken) -> Effects:
        for drone, by in event.taken:
            yield Tell(f"Drone/{drone}", ColumnTaken(by))

    def _miss(self, t: float) -> Events:
        known = {one.drone: one for one in self.suspicions}
        suspected = []
        for drone, track in self.own.items():
            old_s = t - track.t
            if old_s < SUSPECT_S or not track.job or track.mode in ON_GROUND or drone not in self.inside:
                continue
            if (drone, track.job, track.token) in self.reported:
                continue
            before = known.get(drone)
            if before is None or before.last_t != track.t or t > before.due_t + LATE_S:
                # Seen this late for the first time, the sector was not running: maybe the drone was not either.
                due_t = track.t + SILENT_S if old_s < SUSPECT_S + LATE_S else t + BACK_S
                suspected.append(Suspicion(drone, track.token, track.t, max(due_t, t + 0.5)))
            elif t >= before.due_t:
                yield DroneSilent(drone, track.job, track.token, track.t)
        if suspected:
            yield DronesSuspected(tuple(suspected))

    @evolve
    def suspected(self, event: DronesSuspected) -> None:
        drones = {one.drone for one in event.suspicions}
        kept = (one for one in self.suspicions if one.drone not in drones and one.drone in self.own)
        self.suspicions = (*kept, *event.suspicions)

    @evolve
    def missed(self, event: DroneSilent) -> None:
        self.suspicions = tuple(one for one in self.suspicions if one.drone != event.drone)
        kept = (one for one in self.reported if one[0] != event.drone)
        self.reported = (*kept, (event.drone, event.job, event.token))

    @react
    def tell_job(self, event: DroneSilent) -> Effects:
        yield Tell(f"Job/{event.job}", event)

    def _forget(self, t: float, seen: list[tuple[str, Track]]) -> Events:
        gone = []
        for drone, track in seen:
            is_own = drone in self.own
            # Its own region forgets a drone first. What a region that is down has left here goes, too.
            if t - track.t > (PARKED_S if track.mode in ON_GROUND else FORGET_S) * (1 if is_own else 2):
                if is_own:
                    gone.append(drone)
                if drone in self.tracks:
                    yield self.tracks.remove(drone)
        if gone:
            yield MembersLeft(tuple(gone))
            if len(gone) == len(self.own):
                yield self.regions.remove(region_of(self.id))

    @evolve
    def left(self, event: MembersLeft) -> None:
        for drone in event.drones:
            self.own.pop(drone, None)
        self.inside -= set(event.drones)
        self.suspicions = tuple(one for one in self.suspicions if one.drone not in event.drones)
        self.reported = tuple(one for one in self.reported if one[0] not in event.drones)

    @react
    def clear_zones(self, event: MembersLeft) -> Effects:
        """What was closed here is not the business of a drone that is elsewhere."""
        if self.zones:
            for drone in event.drones:
                yield Tell(f"Drone/{drone}", ZonesHeard(self.id, ()))

    # ------------------------------------------------------------------ closed zones

    @evolve
    def closes(self, event: ZoneClosed) -> None:
        kept = [zone for zone in self.zones if zone.name != event.zone.name]
        self.zones = (*kept, event.zone)[-ZONES_MAX:]

    @evolve
    def opens(self, event: ZoneOpened) -> None:
        self.zones = tuple(zone for zone in self.zones if zone.name != event.name)

    @evolve
    def ends(self, event: ZonesEnded) -> None:
        self.zones = tuple(zone for zone in self.zones if zone.name not in event.names)

    @react
    def tell_change(self, event: ZoneClosed | ZoneOpened | ZonesEnded) -> Effects:
        for drone in sorted(self.own):
            yield self._tell_zones(drone)


def _others(
    flying: list[tuple[str, Track]], places: list[tuple[float, float, float]], own: int, first: list[int]
) -> tuple[str, ...]:
    """Those that a drone is told of: the conflicts first, then the nearest that are in the air around it."""
    x, y, _ = places[own]
    around = []
    for i, (other_x, other_y, z) in enumerate(places):
        far_m = hypot(other_x - x, other_y - y)
        if i != own and i not in first and far_m < AROUND_M and (z >= FLOOR_M or flying[i][1].vz > 0.5):
            around.append((far_m, i))
    return tuple(flying[i][0] for i in [*first, *(i for _, i in sorted(around))][:OTHERS_MAX])
