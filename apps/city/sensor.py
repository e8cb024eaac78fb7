"""A sensor: gathers readings, asks the model or its own rule, and tells its district when it becomes suspicious.

It decides alone, whatever else is down. A reading whose number it has had is a repetition of the broker's and is
dropped. Raw readings stay in the log of the gateway; what leaves the agent are probabilities.
"""

from __future__ import annotations

from apps.city.layouts import CHANNELS, STEPS
from apps.city.messages import Asked, Calmed, Exposed, GasAlarm, Levelled, Sampled, Seen, Suspected
from apps.city.plan import district_of, gateway_of, kind_of
from apps.city.rules import CALM, CALM_READINGS, CONFIRM_S, FRESH_S, LIMITS, READINGS, REMIND, SUSPICIOUS
from stigmergy import Agent, Effects, Event, Events, Inferred, Tell, Window, decide, evolve, react


def is_new(number: int, last: int) -> bool:
    """Whether a reading is no repetition. A sensor that has restarted counts from 0 again."""
    return number > last or number == 0 < last


class Counted(Event):
    """One more reading while it is suspicious."""

    calm: bool


class Watch(Agent):
    """What sensors of all kinds have: being suspicious, and saying so. A base; there are no agents of this kind."""

    number: int = -1
    """Of the last reading."""
    over: str = ""
    """What it is suspicious of."""
    since_s: float = 0.0
    told: int = 0
    """Readings since it said so last."""
    calm: int = 0
    """Readings in a row that were calm."""
    seen_s: float = 0.0
    levels: tuple[float, float] = (0.0, 0.0)
    """The probabilities of CO and NO2 over their limits; of other kinds, of its own, and 0."""

    def judge(self, what: str, level: float, because: str) -> Events:
        """What follows from a level of what it is, or would be, suspicious of."""
        if self.over and level < CALM:
            if self.calm + 1 >= CALM_READINGS:
                yield Calmed(sensor=self.id, what=self.over)
            else:
                yield Counted(calm=True)
        elif level > SUSPICIOUS and (not self.over or self.told + 1 >= REMIND):
            since_s = self.since_s if self.over else self.now
            yield Suspected(sensor=self.id, what=self.over or what, confidence=level, since_s=since_s, because=because)
        elif self.over:
            yield Counted(calm=False)

    @evolve
    def suspects(self, event: Suspected) -> None:
        self.over, self.since_s, self.told, self.calm = event.what, event.since_s, 0, 0

    @evolve
    def calms(self, event: Calmed) -> None:
        self.over, self.calm, self.told = "", 0, 0

    @evolve
    def counts(self, event: Counted) -> None:
        self.calm, self.told = (self.calm + 1 if event.calm else 0), self.told + 1

    @react
    def tell(self, event: Suspected | Calmed) -> Effects:
        yield Tell(to=f"District/{district_of(self.id)}", message=event)

    @react
    def answer(self, event: Asked) -> Effects:
        yield self.seen_for(event.case)

    def seen_for(self, case: str) -> Tell:
        """What it tells a district that has asked."""
        seen = Seen(case=case, sensor=self.id, probability=max(self.levels), age_s=self.now - self.seen_s)
        return Tell(to=f"District/{district_of(self.id)}", message=seen)


class GasSensor(Watch):
    """Measures gas."""

    window: Window[Sampled] = Window.last(STEPS)
    asked: str = ""
    """The case that it was asked about when it knew nothing new, as after a lost disk."""
    asked_s: float = 0.0

    @evolve
    def was_asked(self, event: Asked) -> None:
        if self.now - self.seen_s > FRESH_S:
            self.asked, self.asked_s = event.case, self.now

    @decide
    def sampled(self, event: Sampled) -> Events:
        if is_new(event.number, self.number):
            yield event

    @evolve
    def took(self, event: Sampled) -> None:
        self.number = event.number

    @react
    def look(self, event: Sampled) -> Effects:
        if len(self.window) == STEPS:
            yield GasAlarm.ask(self.window, *CHANNELS)

    @evolve
    def inferred(self, result: Inferred[GasAlarm]) -> None:
        self.levels, self.seen_s = (result.answer.co, result.answer.no2), self.now

    @decide
    def judged(self, result: Inferred[GasAlarm]) -> Events:
        answers = {"co": result.answer.co, "no2": result.answer.no2}
        what = max(answers, key=answers.__getitem__)
        yield from self.judge(what, answers[what], result.source.fallback or result.source.version)

    @react
    def tell_inferred(self, result: Inferred[GasAlarm]) -> Effects:
        if self.asked and self.now - self.asked_s <= CONFIRM_S:
            yield self.seen_for(self.asked)
        for pollutant, level in (("co", result.answer.co), ("no2", result.answer.no2)):
            if level > SUSPICIOUS:
                place = f"{district_of(self.id)}/{pollutant}"
                yield Tell(to=f"Desk/{gateway_of(self.id)}", message=Exposed(place=place))


class Meter(Watch):
    """Measures noise, traffic or crowds, and has a simple rule: over the limit so many times in a row."""

    in_a_row: int = 0

    @decide
    def levelled(self, event: Levelled) -> Events:
        if is_new(event.number, self.number):
            yield event
            in_a_row = self.in_a_row + 1 if _is_over(self.id, event.value) else 0
            yield from self.judge(kind_of(self.id), _level(in_a_row), "rule")

    @evolve
    def took(self, event: Levelled) -> None:
        self.number, self.seen_s = event.number, self.now
        self.in_a_row = self.in_a_row + 1 if _is_over(self.id, event.value) else 0
        self.levels = (_level(self.in_a_row), 0.0)


def _is_over(sensor: str, value: float) -> bool:
    kind = kind_of(sensor)
    return value < LIMITS[kind] if kind == "flow" else value > LIMITS[kind]


def _level(in_a_row: int) -> float:
    return 0.9 if in_a_row >= READINGS else 0.6 if in_a_row else 0.0
