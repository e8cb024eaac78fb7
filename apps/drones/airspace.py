"""Who closes airspace: `Airspace/main`, on the ground. It keeps what is closed and tells the sectors concerned.

Concerned are the zones that the polygon, by its bounding box, comes nearer to than `BORDER_M`. Of each of them the copy
of its own region is told. Drones of another region may be there too, and then have a copy of their own: those of all
regions are told if a border of regions is at most two columns away. A copy without drones costs one message.
"""

from __future__ import annotations

from apps.drones.airways import area_m2, is_simple
from apps.drones.area import BORDER_M, Area, place_of
from apps.drones.messages import ClosedZone, CloseZone, OpenZone, ZoneClosed, ZoneOpened
from stigmergy import Agent, Effect, Effects, Event, Events, Tell, Timer, Woken, decide, evolve, react, reject

CORNERS_MAX = 64
AREA_M2_MAX = 25e6
ZONES_MAX = 64
"""Closed at a time."""
BORDER_COLUMNS = 2
TIDY_S = 1.0


OVER = "over"


class Tidy(Timer):
    """The first of the zones is over."""


class TidyDue(Event):
    """More zones are to end later."""


class ZoneDropped(Event):
    """It is not closed any more: opened, closed anew, or over."""

    zone: ClosedZone
    why: str


class Airspace(Agent):
    """All closed zones."""

    area: Area | None = None
    zones: tuple[ClosedZone, ...] = ()

    @decide
    def close(self, command: CloseZone) -> Events:
        zone = command.zone
        why = refusal(zone, self.now)
        if why:
            reject(why)
        others = [kept for kept in self.zones if kept.name != zone.name]
        if len(others) >= ZONES_MAX:
            reject(f"{ZONES_MAX} zones are closed; open one first")
        # One that is closed again, with other corners, may concern other sectors: those of the old one have to hear it.
        yield from (ZoneDropped(kept, "closed anew") for kept in self.zones if kept.name == zone.name and kept != zone)
        yield ZoneClosed(command.area, zone)

    @decide
    def open(self, command: OpenZone) -> Events:
        found = [zone for zone in self.zones if zone.name == command.name]
        if not found:
            reject(f"{command.name} is not closed")
        yield ZoneDropped(found[0], "opened")

    @decide
    def over(self, event: Woken[Tidy]) -> Events:
        for zone in self.zones:
            if zone.until_t <= self.now:
                yield ZoneDropped(zone, OVER)
        if any(zone.until_t > self.now for zone in self.zones):
            yield TidyDue()

    @evolve
    def closed(self, event: ZoneClosed) -> None:
        self.area = event.area
        self.zones = (*(zone for zone in self.zones if zone.name != event.zone.name), event.zone)

    @evolve
    def dropped(self, event: ZoneDropped) -> None:
        self.zones = tuple(zone for zone in self.zones if zone.name != event.zone.name)

    @react
    def tell_closed(self, event: ZoneClosed) -> Effects:
        for sector in sectors_of(event.area, event.zone):
            yield Tell(f"Sector/{sector}", event)
        yield self._wake()

    @react
    def tell_opened(self, event: ZoneDropped) -> Effects:
        """Sectors know themselves when a zone is over."""
        if event.why != OVER and self.area is not None:
            for sector in sectors_of(self.area, event.zone):
                yield Tell(f"Sector/{sector}", ZoneOpened(event.zone.name))

    @react
    def wake_again(self, event: TidyDue) -> Effects:
        yield self._wake()

    def _wake(self) -> Effect:
        first_t = min(zone.until_t for zone in self.zones)
        return Tidy.wake(after_s=max(first_t - self.now, 0.0) + TIDY_S)


def refusal(zone: ClosedZone, now_t: float) -> str:
    """Why a zone cannot be closed like this; empty if it can."""
    if not zone.name:
        return "a zone needs a name"
    if not 3 <= len(zone.corners) <= CORNERS_MAX:
        return f"{len(zone.corners)} corners; 3 to {CORNERS_MAX} are possible"
    if not is_simple(zone.corners):
        return "the border of the polygon touches itself"
    if area_m2(zone.corners) > AREA_M2_MAX:
        return f"{area_m2(zone.corners) / 1e6:.0f} km²; at most {AREA_M2_MAX / 1e6:.0f} are possible"
    if zone.floor_m >= zone.ceiling_m:
        return f"its floor at {zone.floor_m:g} m is not below its ceiling at {zone.ceiling_m:g} m"
    if zone.until_t <= zone.from_t:
        return "it ends before it begins"
    if zone.until_t <= now_t:
        return "it is over already"
    return ""


def sectors_of(area: Area, zone: ClosedZone) -> list[str]:
    """The sectors that have to know of a closed zone: `r2-0705@r1`."""
    left, bottom = (min(corner[axis] for corner in zone.corners) - BORDER_M for axis in (0, 1))
    right, top = (max(corner[axis] for corner in zone.corners) + BORDER_M for axis in (0, 1))
    first, last = place_of(area.zone_at(left, bottom)), place_of(area.zone_at(right, top))
    regions = sorted({area.region(column) for column in range(area.columns)})
    found = []
    for column in range(first[0], last[0] + 1):
        around = (max(column - BORDER_COLUMNS, 0), min(column + BORDER_COLUMNS, area.columns - 1))
        own = area.region(column)
        of = [own] if area.region(around[0]) == area.region(around[1]) else regions
        for row in range(first[1], last[1] + 1):
            found += [f"{area.zone(column, row)}@{region}" for region in of]
    return found
