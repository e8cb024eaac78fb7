"""A small city in the simulator: `stigmergy sim city` breaks everything around it and looks at what becomes of leaks.

Three gateways, a few sensors each; gas leaks, sensors break. Nodes crash, lose power and disks, and are cut off from
each other and from the ledger. The model is answered by its rule. What really leaked is the witness.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from typing import Any

from msgspec import structs

from apps.city.desk import Desk, Known
from apps.city.fleet import make_fleet
from apps.city.layouts import LEVEL, READING
from apps.city.messages import Acknowledge, Levelled, Notify, OpenDesk, OpenDistrict, Sampled, Sound
from apps.city.plan import City, district_of, gateway_of, kind_of, place_of
from apps.city.readings import Leak, Readings
from apps.city.rules import KINDS
from stigmergy import Event
from stigmergy.sim import ALL, World, simulate

GATEWAYS, SENSORS = 3, 10
"""Of each gateway one district has sensors."""
LEAKS = 6
FOR_S, HEAL_S = 60.0, 400.0
PERIOD_S = 2.0
LASTS = 8
"""Readings while a leak lasts."""
DONE_S = 300.0
WARN_S = 3 * PERIOD_S + 6.0
"""So soon after a leak began a district is warned, if its gateway was up and could write all the time."""
AFTER_S = 60.0


CITY = City(SENSORS * GATEWAYS, GATEWAYS, districts_each=1)
NAMES = [sensor for district in CITY.districts() for sensor in CITY.sensors_of(district)]
NODES = {
    gateway: [f"{kind}/{gateway}d*" for kind in ("GasSensor", "Meter", "District")] + [f"Desk/{gateway}"]
    for gateway in CITY.gateway_names()
}
fleet = make_fleet(lambda _: None, (), devices=False)


def address_of(sensor: str) -> str:
    """The agent of a sensor."""
    return f"{'GasSensor' if kind_of(sensor) == 'gas' else 'Meter'}/{sensor}"


def event_of(sensor: str, payload: bytes) -> Event:
    """A raw payload as an observed event, as the declared layout has it."""
    return Sampled(**READING.read(payload)) if kind_of(sensor) == "gas" else Levelled(**LEVEL.read(payload))


def addresses(_: int = 0) -> list[str]:
    """All agents."""
    districts = [f"District/{district}" for district in CITY.districts()]
    return [*map(address_of, NAMES), *districts, *(f"Desk/{gateway}" for gateway in CITY.gateway_names())]


class Days:
    """One run: leaks, broken sensors, and all that must hold."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._began_s = world.now_s
        self._healed_s: float | None = None
        self._chance = world.chance
        self.leaks = self._plan()
        self._readings = Readings(CITY, CITY.districts(), world.seed, self.leaks)
        self._acknowledged: dict[str, float] = {}
        self._step = 0
        self._opened: dict[str, Known] = {}
        calm = [one for one in self._readings.gas if len(CITY.near(one)) > 1]
        if self._chance.random() < 0.3:
            self._readings.broken[self._chance.choice(calm)] = self._chance.randrange(5, 15)

    def _plan(self) -> list[Leak]:
        """Not two in one district at once: between them all is clear again."""
        found: list[Leak] = []
        free = dict.fromkeys(CITY.districts(), 5)
        for number in range(LEAKS):
            district = self._chance.choice(CITY.districts())
            begin = free[district] + self._chance.randrange(4)
            if begin > FOR_S / PERIOD_S:
                continue
            free[district] = begin + LASTS + 200
            anchor = f"{district}-{self._chance.randrange(1, 5):03d}"
            (x, y), (other_x, other_y) = place_of(anchor), place_of(CITY.near(anchor)[0])
            what = self._chance.choice(("co", "no2"))
            middle = (x + other_x) / 2, (y + other_y) / 2
            found.append(Leak(f"leak-{number}", what, district, *middle, begin, begin + LASTS))
        return found

    # ------------------------------------------------------------------ what happens

    async def run(self) -> None:
        """Readings until all is over."""
        while not self._is_over():
            for district in CITY.districts():
                self._world.ask(f"District/{district}", OpenDistrict(CITY))
            for gateway in CITY.gateway_names():
                self._world.ask(f"Desk/{gateway}", OpenDesk(CITY.gateways))
            if self._healed_s is not None:
                self._readings.broken.clear()
            for sensor, payload in self._readings.at(self._step):
                self._world.observe(address_of(sensor), event_of(sensor, payload))
            self._respond()
            self._step += 1
            await asyncio.sleep(PERIOD_S)

    def _respond(self) -> None:
        """Responders acknowledge what they were told, two of three times, and everything when faults are over."""
        told = dict.fromkeys(order.effect.incident for order in self._world.orders(Notify))
        for incident in told:
            if incident not in self._acknowledged or self._healed_s is not None:
                self._acknowledged[incident] = self._world.now_s
                if self._healed_s is not None or self._chance.random() < 0.66:
                    gateway = self._chance.choice(CITY.gateway_names())
                    self._world.ask(f"Desk/{gateway}", Acknowledge(incident=incident, by="responder"))

    # ------------------------------------------------------------------ what must hold

    def desks(self) -> list[Desk]:
        """All of them."""
        return list(self._world.states(Desk))

    def known(self) -> dict[str, Known]:
        """Every incident that is in the ledger, as somebody has it."""
        return {
            one.entry.incident_id: one
            for desk in self.desks()
            for one in desk.known
            if one.position and one.entry.stage == "opened"
        }

    def leak_of(self, known: Known) -> Leak | None:
        """What somebody has noticed."""
        entry = known.entry
        for one in self.leaks:
            is_then = self.begin_s(one) - 1.0 <= self.virtual_s(entry.since_s) <= self.end_s(one) + AFTER_S
            if one.district == district_of(entry.source_node) and is_then and _is_kind(entry.kind, one.what):
                return one
        return None

    def begin_s(self, leak: Leak) -> float:
        """Virtual seconds."""
        return self._began_s + leak.begin * PERIOD_S

    def end_s(self, leak: Leak) -> float:
        """Virtual seconds."""
        return self._began_s + leak.end * PERIOD_S

    def virtual_s(self, wall_s: float) -> float:
        """Nodes' clocks are set to the same day, and may drift or jump by some seconds."""
        return wall_s - START_S

    def one_incident_for_a_leak(self) -> bool:
        """In the ledger there is at most one, unless a disk was lost."""
        self._opened |= self.known()
        open_at_once: Counter[str] = Counter()
        for one in self._opened.values():
            open_at_once[f"{district_of(one.entry.source_node)} {_family(one.entry.kind)}"] += not one.cleared
        worst = max(open_at_once.values(), default=0)
        assert worst <= 1, f"{open_at_once.most_common(1)[0][0]}: {worst} incidents at once"
        return True

    def orders_agree(self) -> bool:
        """Positions of the same entry are the same on all desks."""
        places: dict[str, int] = {}
        for desk in self.desks():
            for one in desk.known:
                if one.position:
                    place = places.setdefault(one.entry.incident_id, one.position)
                    assert place == one.position, f"{one.entry.incident_id} at {place} and {one.position}"
        return True

    def leaks_are_noticed(self) -> bool:
        """Every leak has an incident in the ledger."""
        if self._healed_s is None:
            self._healed_s = self._world.now_s
        places = {(district_of(one.entry.source_node), _family(one.entry.kind)) for one in self.known().values()}
        missing = [one for one in self.leaks if (one.district, "gas") not in places]
        # What a gateway had noticed on a disk that was lost after the leak is gone with it.
        return all(self._world.replaced(gateway_of(one.district)) for one in missing)

    def all_is_clear(self) -> bool:
        """When nothing leaks any more, and everything is acknowledged."""
        return all(one.cleared for desk in self.desks() for one in desk.known)

    def desks_agree(self) -> bool:
        """Everybody has the same ledger and counts the same exposure."""
        ledgers = {
            tuple((one.entry.incident_id, one.position, one.severity, one.cleared) for one in _sorted(desk))
            for desk in self.desks()
        }
        exposed = {tuple((place, one.value) for place, one in desk.exposure.items()) for desk in self.desks()}
        return len(ledgers) == 1 and len(exposed) == 1

    def everybody_is_notified(self) -> bool:
        """Of each incident, and of each severity once at a receiver that keeps marks."""
        marks = Counter(order.effect.mark for order in self._world.orders(Notify))
        told = {mark.partition(":")[0] for mark in marks}
        return all(name in told for name in self.known())

    def districts_are_warned(self) -> bool:
        """Each district that leaked."""
        warned = {order.effect.district for order in self._world.orders(Sound)}
        return all(one.district in warned or self._world.replaced(gateway_of(one.district)) for one in self.leaks)

    def _is_over(self) -> bool:
        healed_s = self._healed_s
        if healed_s is None or self._step < max((one.end for one in self.leaks), default=0) + 10:
            return False
        checks = (self.leaks_are_noticed, self.all_is_clear, self.desks_agree, self.everybody_is_notified)
        return all(check() for check in checks) or self._world.now_s > healed_s + DONE_S


START_S = 1_767_225_600.0


def _family(kind: str) -> str:
    return "gas" if kind.endswith("_leak") else kind


def _is_kind(kind: str, what: str) -> bool:
    return _family(kind) == _family(KINDS[what])


def _sorted(desk: Desk) -> list[Known]:
    return sorted((one for one in desk.known if one.position), key=lambda one: one.position)


@simulate(
    fleet,
    agents=addresses(),
    nodes=NODES,
    seeds=200,
    faults=ALL,
    for_s=FOR_S,
    heal_s=HEAL_S,
)
def watch(world: World) -> None:
    """A small city: every leak is one incident in one order, told once, whatever breaks."""
    days = Days(world)
    world.script(days.run)
    world.always(days.one_incident_for_a_leak)
    world.always(days.orders_agree)
    world.eventually(days.leaks_are_noticed, within_s=DONE_S)
    world.eventually(days.districts_are_warned, within_s=DONE_S)
    world.eventually(days.all_is_clear, within_s=DONE_S)
    world.eventually(days.everybody_is_notified, within_s=DONE_S)
    world.eventually(days.desks_agree, within_s=DONE_S)


scenario: Any = structs.replace(vars(watch)["scenario"], names=addresses)
"""What `stigmergy sim city` runs."""
