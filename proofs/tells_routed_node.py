"""The fleets of `proofs.tells_routed`: agents that tell agents of other nodes numbers, and check what they get."""

from __future__ import annotations

from stigmergy import Agent, Command, Effects, Event, Events, Fleet, Tell, TellFailed, decide, evolve, field, react


class Pass(Command):
    """Tells another agent a number."""

    to: str
    number: int


class Count(Command):
    """Is a number itself."""

    by: str
    number: int


class Passed(Event):
    to: str
    number: int


class Got(Event):
    by: str
    number: int


class Cart(Agent):
    """Numbers of each teller must come as 1, 2, 3 …: then none is lost, doubled or out of order."""

    last: dict[str, int] = field(default_factory=dict)
    wrong: tuple[str, ...] = ()

    @decide
    def passes(self, command: Pass) -> Events:
        yield Passed(to=command.to, number=command.number)

    @decide
    def counts(self, command: Count) -> Events:
        yield Got(by=command.by, number=command.number)

    @react
    def tell(self, event: Passed) -> Effects:
        yield Tell(event.to, Got(by=self.address, number=event.number))

    @evolve
    def got(self, event: Got) -> None:
        expected = self.last.get(event.by, 0) + 1
        if event.number != expected:
            self.wrong = (*self.wrong, f"{event.by}: {event.number} came, {expected} was expected")[:20]
        self.last = {**self.last, event.by: max(event.number, expected - 1)}

    @evolve
    def failed(self, event: TellFailed) -> None:
        self.wrong = (*self.wrong, f"{event.to}: given up: {event.reason}")[:20]


class Pilot(Cart):
    """The same in another fleet."""


yard = Fleet("yard", agents=[Cart], shards=2)
ground = Fleet("ground", agents=[Pilot])
