"""A fleet with a ledger of incidents, for the tests of ledgers."""

from __future__ import annotations

from stigmergy import (
    Agent,
    Command,
    Effects,
    Entered,
    Entry,
    Event,
    Events,
    Fleet,
    Ledger,
    Proposed,
    decide,
    evolve,
    react,
)


class Incident(Entry):
    incident: str
    gas: str = "co"


incidents = Ledger("incidents", Incident, to="Desk/main")


class Report(Command):
    incident: str
    gas: str = "co"
    within_s: float | None = None


class Suspected(Event):
    incident: str
    gas: str
    within_s: float | None = None


class Sensor(Agent):
    """Proposes what it is told to report, and keeps what becomes of it."""

    asked: int = 0
    outcomes: tuple[tuple[str, int, bool, str], ...] = ()

    @decide
    def report(self, command: Report) -> Events:
        yield Suspected(command.incident, command.gas, command.within_s)

    @evolve
    def count(self, event: Suspected) -> None:
        self.asked += 1

    @react
    def suspected(self, event: Suspected) -> Effects:
        yield incidents.propose(Incident(event.incident, event.gas), within_s=event.within_s)

    @evolve
    def proposed(self, outcome: Proposed[Incident]) -> None:
        self.outcomes = (*self.outcomes, (outcome.id, outcome.position, outcome.duplicate, outcome.reason))


class Noted(Event):
    incident: str
    position: int


class Desk(Agent):
    """Keeps every incident that was entered."""

    seen: tuple[tuple[str, int], ...] = ()

    @decide
    def on_incident(self, entry: Entered[Incident]) -> Events:
        yield Noted(entry.entry.incident, entry.position)

    @evolve
    def noted(self, event: Noted) -> None:
        self.seen = (*self.seen, (event.incident, event.position))


def city(name: str = "city", *, shards: int = 1, ledger: Ledger[Incident] = incidents) -> Fleet:
    return Fleet(name, agents=[Sensor, Desk], shards=shards, ledgers=[ledger])
