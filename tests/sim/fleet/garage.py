"""A fleet for tests of the simulator with all three kinds of state: own counts, shared sets and totals, one gate."""

from stigmergy import (
    Agent,
    Claim,
    Command,
    Effects,
    Event,
    Events,
    Fleet,
    GCounter,
    Granted,
    Ordered,
    ORSet,
    Shared,
    WakeMe,
    Woken,
    decide,
    evolve,
    ordered,
    react,
    shared,
)


class Arrived(Event):
    car: str


class Left(Event):
    car: str


class Pass(Command):
    pass


class Asked(Event):
    pass


class GateOpened(Event):
    token: int


class Door(Agent):
    arrived: int = 0
    tokens: int = 0
    inside: Shared[ORSet[str]] = shared(by="garage")
    total: Shared[GCounter] = shared(by="garage")
    gate: Ordered[Claim] = ordered(of="gate")

    @decide
    def arrive(self, event: Arrived) -> Events:
        yield event
        yield self.inside.add(event.car)
        yield self.total.add(1)

    @evolve
    def count(self, event: Arrived) -> None:
        self.arrived += 1

    @decide
    def leave(self, event: Left) -> Events:
        yield event
        yield self.inside.remove(event.car)

    @decide
    def ask(self, command: Pass) -> Events:
        yield Asked()

    @react
    def claim(self, event: Asked) -> Effects:
        yield self.gate.claim(for_s=3)

    @decide
    def granted(self, verdict: Granted) -> Events:
        if self.gate.held:
            yield GateOpened(token=verdict.token)

    @evolve
    def opened(self, event: GateOpened) -> None:
        self.tokens += 1

    @react
    def keep_open(self, event: GateOpened) -> Effects:
        yield WakeMe(name="close", after_s=1)

    @react
    def close(self, event: Woken) -> Effects:
        yield self.gate.release()


fleet = Fleet("garage", agents=[Door])
