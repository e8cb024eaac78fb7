"""A fleet for tests of the simulator: lamps that are counted, switched, watched, and talk over the bus."""

from stigmergy import (
    Action,
    Agent,
    Command,
    Effects,
    Event,
    Events,
    Fleet,
    Order,
    Publish,
    WhenStale,
    decide,
    evolve,
    react,
    reject,
)


class Seen(Event):
    number: int


class Switch(Command):
    on: bool


class Switched(Event):
    on: bool


class Passed(Event):
    number: int


class Blink(Action):
    number: int


class Dim(Action):
    pass


class Lamp(Agent):
    seen: int = 0
    on: bool = False
    street: str = ""

    silent = WhenStale(Seen, after_s=2.0, then=Dim())

    @evolve
    def count(self, event: Seen) -> None:
        self.seen += 1
        self.street = "odd" if int(self.id) % 2 else "even"

    @react
    def blink(self, event: Seen) -> Effects:
        yield Blink(number=self.seen)
        if self.seen % 4 == 0:
            yield Publish("passed", Passed(number=self.seen))

    @decide
    def switch(self, command: Switch) -> Events:
        if self.on == command.on:
            reject("it is so already")
        yield Switched(on=command.on)

    @evolve
    def switched(self, event: Switched) -> None:
        self.on = event.on


class Station(Agent):
    passed: int = 0

    @evolve
    def count(self, event: Passed) -> None:
        self.passed += 1


def declare(name: str = "lights") -> Fleet:
    fleet = Fleet(name, agents=[Lamp, Station])
    fleet.listen("Lamp/{id}/passed", to="Station/main")

    @fleet.actuator(Blink)
    def blink(order: Order[Blink]) -> None:
        raise AssertionError("the real device must not be reached from a simulation")

    @fleet.actuator(Dim)
    def dim(order: Order[Dim]) -> None:
        raise AssertionError("the real device must not be reached from a simulation")

    return fleet


fleet = declare()
