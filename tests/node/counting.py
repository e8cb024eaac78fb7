"""A fleet that counts, greets its neighbours, sets timers and fails when it is told to: for tests of the host."""

from typing import Any

from stigmergy.agents.agent import Agent, decide, evolve, react, reject
from stigmergy.agents.codec import pack_envelope
from stigmergy.agents.effects import Effects, Events, Tell, WakeMe, WakeMeAt, Woken
from stigmergy.agents.messages import Action, Command, Event, transient, within
from stigmergy.agents.supervision import SafeAction, Supervise
from stigmergy.node.declaration import Declaration


class Counted(Event):
    number: int
    padding: bytes = b""


class Sampled(Event, keep=within(seconds=1)):
    number: int


class Glimpsed(Event, keep=transient):
    number: int


class Spoilt(Event):
    number: int


class Add(Command):
    number: int


class SetTimers(Command):
    after_s: tuple[float, ...] = ()
    at_s: tuple[float, ...] = ()


class TimersWanted(Event):
    after_s: tuple[float, ...]
    at_s: tuple[float, ...]


class Hello(Event):
    by: str
    number: int


class Land(Action):
    reason: str = "stopped"


class Counter(Agent):
    numbers: tuple[int, ...] = ()
    woken: tuple[str, ...] = ()
    greeted: tuple[tuple[str, int], ...] = ()

    supervision = Supervise(stop_after=2, within_s=10)
    safe = SafeAction(then=Land())

    @decide
    def add(self, command: Add) -> Events:
        if command.number < 0:
            reject("only what is positive is added")
        yield Counted(number=command.number)

    @evolve
    def counted(self, event: Counted) -> None:
        self.numbers = (*self.numbers, event.number)

    @react
    def greet(self, event: Counted) -> Effects:
        if event.number >= 100:
            yield Tell(f"Counter/t{event.number % 5}", Hello(by=self.address, number=event.number))

    @evolve
    def sampled(self, event: Sampled) -> None:
        self.numbers = (*self.numbers, event.number)

    @decide
    def glimpsed(self, event: Glimpsed) -> Events:
        if event.number % 2:
            yield Counted(number=event.number)

    @evolve
    def spoilt(self, event: Spoilt) -> None:
        raise ValueError(f"spoilt {event.number}")

    @decide
    def timers(self, command: SetTimers) -> Events:
        yield TimersWanted(after_s=command.after_s, at_s=command.at_s)

    @react
    def set_timers(self, event: TimersWanted) -> Effects:
        for seconds in event.after_s:
            yield WakeMe(f"after {seconds:g}", after_s=seconds)
        for seconds in event.at_s:
            yield WakeMeAt(f"at {seconds:g}", at_s=self.now + seconds)

    @evolve
    def wake(self, event: Woken) -> None:
        self.woken = (*self.woken, event.name)

    @evolve
    def hello(self, event: Hello) -> None:
        self.greeted = (*self.greeted, (event.by, event.number))


def declare(shards: int = 1, **streams: Any) -> Declaration:
    return Declaration("counters", agents=[Counter], shards=shards, streams=streams or None)


def envelope(first: int, numbers: range, source: str = "s", epoch: int = 0, address: str = "Counter/a") -> bytes:
    return pack_envelope(source, [(address, Counted(number=n)) for n in numbers], sequence=first, epoch=epoch)
