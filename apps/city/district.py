"""A district: asks the neighbours of a suspicious sensor, and makes one case of what many sensors see.

A sensor that nobody near confirms, and two or more near contradict, is doubted; a second one that is suspicious ends
that and is the first of a new case. If no neighbour can be asked, one sensor is enough, with the lowest severity:
better a false alarm than gas that nobody believes in.
"""

from __future__ import annotations

from msgspec import Struct, structs

from apps.city.messages import Asked, Calmed, Confirmed, OpenDistrict, Seen, Suspected, WentCalm
from apps.city.plan import City, are_near, gateway_of, kind_of
from apps.city.rules import CALM, CONFIRM_S, CONTRADICT_COUNT, FRESH_S, LIKELY, incident_id, same, severity_of
from stigmergy import Agent, Effects, Event, Events, Tell, WakeMe, Woken, decide, evolve, react

CASES_MAX = 32
"""Of these the oldest that are over go first; then the oldest."""


class Case(Struct, frozen=True):
    """What several sensors may see."""

    id: str
    what: str
    sensor: str
    """The first one."""
    confidence: float
    since_s: float
    asked: int
    seen: tuple[Seen, ...] = ()
    suspects: tuple[str, ...] = ()
    """Those who are suspicious now."""
    saw: tuple[str, ...] = ()
    """Those who were: after an hour without power, a leak comes and goes in a moment."""
    state: str = "asking"
    """asking, confirmed, doubted, over."""


class CaseOpened(Event):
    """A sensor is the first."""

    case: Case
    near: tuple[str, ...]


class CaseJoined(Event):
    """One more sensor sees it."""

    case: str
    sensor: str
    confidence: float


class SensorDoubted(Event):
    """Its neighbours see nothing."""

    case: str
    sensor: str


class DistrictOpened(Event):
    """It knows the city, and so the neighbours of its sensors."""

    city: City


class DoubtEnded(Event):
    """A doubted sensor has calmed, or a second one is suspicious and has a case that has both."""

    case: str


class District(Agent):
    """All sensors of a district tell it what they suspect."""

    city: City | None = None
    cases: tuple[Case, ...] = ()

    @decide
    def open(self, command: OpenDistrict) -> Events:
        if self.city != command.city:
            yield DistrictOpened(city=command.city)

    @evolve
    def opened(self, event: DistrictOpened) -> None:
        self.city = event.city

    # ------------------------------------------------------------------ cases

    def case(self, name: str) -> Case | None:
        """The case of this name."""
        return next((one for one in self.cases if one.id == name), None)

    def case_near(self, sensor: str, what: str) -> Case | None:
        """The case of this kind that a sensor sees, too; of doubted ones only its own."""
        near = self.cases_near(sensor, what)
        return next((one for one in near if one.state != "doubted" or one.sensor == sensor), None)

    def cases_near(self, sensor: str, what: str) -> list[Case]:
        """All cases of this kind nearby."""
        return [
            one for one in self.cases if same(one.what, what) and one.state != "over" and are_near(one.sensor, sensor)
        ]

    @decide
    def suspected(self, event: Suspected) -> Events:
        case = self.case_near(event.sensor, event.what)
        if case is None:
            near = () if self.city is None else tuple(self.city.near(event.sensor))
            # A case is as wide as a leak around its first sensor. Were that one the doubted one, and broken, sensors on
            # the other side of the leak would be too far away, and open a case of their own.
            doubted = self.cases_near(event.sensor, event.what)
            sensors = (*(one.sensor for one in doubted), event.sensor)
            name = incident_id(event.sensor, event.what, event.since_s)
            opened = Case(
                id=name,
                what=event.what,
                sensor=event.sensor,
                confidence=event.confidence,
                since_s=event.since_s,
                asked=len(near),
                suspects=sensors,
                saw=sensors,
            )
            yield CaseOpened(case=opened, near=() if doubted else near)
            for one in doubted:
                yield DoubtEnded(case=one.id)
            if doubted:
                yield self.confirmed_of(opened)
            return
        joined = CaseJoined(case=case.id, sensor=event.sensor, confidence=event.confidence)
        yield joined
        if case.state == "confirmed":
            # A desk that knows it hears it again: it may have lost its disk.
            yield self.confirmed_of(_with(case, joined))

    @evolve
    def case_opened(self, event: CaseOpened) -> None:
        kept = [one for one in self.cases if one.id != event.case.id]
        if len(kept) >= CASES_MAX:
            kept.remove(next((one for one in kept if one.state == "over"), kept[0]))
        self.cases = (*kept, event.case)

    @evolve
    def case_joined(self, event: CaseJoined) -> None:
        self.cases = tuple(_with(one, event) if one.id == event.case else one for one in self.cases)

    @react
    def ask(self, event: CaseOpened) -> Effects:
        for sensor in event.near:
            kind = "GasSensor" if kind_of(sensor) == "gas" else "Meter"
            yield Tell(to=f"{kind}/{sensor}", message=Asked(case=event.case.id, what=event.case.what))
        yield WakeMe(name=event.case.id, after_s=CONFIRM_S if event.near else 0.0)

    @decide
    def answered(self, event: Seen) -> Events:
        case = self.case(event.case)
        if case is None or case.state != "asking" or any(_is_as_new(one, event) for one in case.seen):
            return
        yield event
        after = _with_seen(case, event)
        fresh = sum(one.age_s <= FRESH_S for one in after.seen)
        if len(after.seen) >= after.asked and fresh >= min(after.asked, CONTRADICT_COUNT):
            yield from self.verdict_on(after)

    @evolve
    def has_seen(self, event: Seen) -> None:
        self.cases = tuple(_with_seen(one, event) if one.id == event.case else one for one in self.cases)

    @decide
    def time_is_up(self, woken: Woken) -> Events:
        case = self.case(woken.name)
        if case is not None and case.state == "asking":
            yield from self.verdict_on(case)

    def verdict_on(self, case: Case) -> Events:
        """What the neighbours make of it; it may be over by now."""
        fresh = [one for one in case.seen if one.age_s <= FRESH_S and one.sensor not in case.saw]
        confirming = len(case.saw) - 1 + sum(one.probability > LIKELY for one in fresh)
        if confirming == 0 and sum(one.probability < CALM for one in fresh) >= CONTRADICT_COUNT:
            yield SensorDoubted(case=case.id, sensor=case.sensor)
            if not case.suspects:
                yield DoubtEnded(case=case.id)
            return
        yield self.confirmed_of(case, confirming)
        if not case.suspects:
            yield WentCalm(incident=case.id, what=case.what, sensor=case.sensor)

    def confirmed_of(self, case: Case, confirming: int | None = None) -> Confirmed:
        """What the desk is told of a case."""
        severity = severity_of(len(case.saw) - 1 if confirming is None else confirming)
        return Confirmed(
            incident=case.id,
            what=case.what,
            sensor=case.sensor,
            confidence=round(case.confidence, 4),
            reading=round(max([case.confidence, *(one.probability for one in case.seen)]), 4),
            severity=severity,
            since_s=case.since_s,
        )

    @evolve
    def confirmed(self, event: Confirmed) -> None:
        self.set_state(event.incident, "confirmed")

    @evolve
    def doubted(self, event: SensorDoubted) -> None:
        self.set_state(event.case, "doubted")

    @react
    def tell_desk(self, event: Confirmed | WentCalm) -> Effects:
        yield Tell(to=f"Desk/{gateway_of(self.id)}", message=event)

    # ------------------------------------------------------------------ the end of a case

    @decide
    def calmed(self, event: Calmed) -> Events:
        yield event
        for one in self.cases:
            if same(one.what, event.what) and one.suspects == (event.sensor,) and one.state in ("confirmed", "doubted"):
                if one.state == "confirmed":
                    yield WentCalm(incident=one.id, what=one.what, sensor=one.sensor)
                else:
                    yield DoubtEnded(case=one.id)

    @evolve
    def sensor_calmed(self, event: Calmed) -> None:
        self.cases = tuple(
            structs.replace(one, suspects=tuple(name for name in one.suspects if name != event.sensor))
            if same(one.what, event.what)
            else one
            for one in self.cases
        )

    @evolve
    def case_over(self, event: WentCalm) -> None:
        self.set_state(event.incident, "over")

    @evolve
    def doubt_over(self, event: DoubtEnded) -> None:
        self.set_state(event.case, "over")

    def set_state(self, name: str, state: str) -> None:
        """For evolve only."""
        self.cases = tuple(structs.replace(one, state=state) if one.id == name else one for one in self.cases)


def _is_as_new(one: Seen, event: Seen) -> bool:
    """Whether a sensor has said something as new before."""
    return one.sensor == event.sensor and (one.age_s <= FRESH_S or event.age_s > FRESH_S)


def _with_seen(case: Case, event: Seen) -> Case:
    return structs.replace(case, seen=(*(one for one in case.seen if one.sensor != event.sensor), event))


def _with(case: Case, joined: CaseJoined) -> Case:
    suspects, saw = (
        (*(name for name in names if name != joined.sensor), joined.sensor) for names in (case.suspects, case.saw)
    )
    return structs.replace(case, suspects=suspects, saw=saw, confidence=max(case.confidence, joined.confidence))
