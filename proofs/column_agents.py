"""The fleet of the proofs about compiled agents: gauges in columns, a board in plain Python, and a model of both.

Every record carries a number of its own, so that what is lost, doubled or overtaken shows: in sums, in a chain that
depends on the order, and in the actions that some numbers ask for.
"""

from __future__ import annotations

from typing import Any

from msgspec import Struct

from stigmergy import (
    Action,
    Agent,
    Command,
    Effects,
    Event,
    Events,
    Fleet,
    Settings,
    Snapshots,
    Tell,
    decide,
    evolve,
    react,
    reject,
)
from stigmergy.columns import Batcher
from stigmergy.node.column_roster import Roster
from stigmergy.shard.batches import open_batch

KIND = "Gauge"
SHARDS = 2
ACT_EVERY = 64
WARN_EVERY = 200
TELL_EVERY = 500
CHAIN = 1_000_003
BATCH_BYTES = 60_000
"""So that a batch fits into a frame of the conversation."""
SETTINGS = Settings(snapshots=Snapshots(every_events=2_000, every_s=60.0, tail_ratio=1.0))
"""Snapshots are small and frequent, so that kills hit them as well."""


class Gauged(Event):
    """One record of a batch. Some numbers ask for an action, some tell the board."""

    number: int


class Noted(Event):
    """A message that comes alone."""

    number: int


class Take(Command):
    """Take this number. Every fifth is refused."""

    number: int


class Taken(Event):
    """A number was taken."""

    number: int


class Act(Action):
    """Do something in the world for this number, once."""

    number: int


class Warn(Action):
    """Another thing to do."""

    number: int
    count: int


class Seen(Event):
    """What gauges tell the board."""

    number: int


class Gauge(Agent):
    """Counts what comes, in three ways that do not depend on each other's order."""

    count: int = 0
    total: int = 0
    chain: int = 0
    noted: int = 0
    taken: int = 0

    @evolve
    def on_gauged(self, event: Gauged) -> None:
        self.count += 1
        self.total += event.number
        self.chain = (self.chain * 31 + event.number) % 1_000_003

    @react
    def act(self, event: Gauged) -> Effects:
        if event.number % 64 == 0:
            yield Act(number=event.number)
        if event.number % 200 == 0:
            yield Warn(number=event.number, count=self.count)
        if event.number % 500 == 0:
            yield Tell(to="Board/main", message=Seen(number=event.number))

    @evolve
    def on_noted(self, event: Noted) -> None:
        self.noted += event.number

    @react
    def act_on_note(self, event: Noted) -> Effects:
        yield Act(number=event.number)

    @decide
    def take(self, command: Take) -> Events:
        if command.number % 5 == 0:
            reject(f"{command.number} is a multiple of five")
        yield Taken(number=command.number)

    @evolve
    def on_taken(self, event: Taken) -> None:
        self.taken += event.number


class Board(Agent):
    """An interpreted agent of the same fleet."""

    count: int = 0
    total: int = 0

    @evolve
    def on_seen(self, event: Seen) -> None:
        self.count += 1
        self.total += event.number


class Expected(Struct):
    """What one gauge must be."""

    count: int = 0
    total: int = 0
    chain: int = 0
    noted: int = 0
    taken: int = 0


class Model:
    """The fleet in plain Python: what follows from everything that was sent, each of it once."""

    def __init__(self) -> None:
        self.gauges: dict[str, Expected] = {}
        self.board = [0, 0]
        self.acts: dict[int, None] = {}
        self.warned: dict[int, int] = {}

    def gauged(self, name: str, number: int) -> None:
        """A record of a batch."""
        gauge = self._gauge(name)
        gauge.count += 1
        gauge.total += number
        gauge.chain = (gauge.chain * 31 + number) % CHAIN
        if number % ACT_EVERY == 0:
            self.acts[number] = None
        if number % WARN_EVERY == 0:
            self.warned[number] = gauge.count
        if number % TELL_EVERY == 0:
            self.board[0] += 1
            self.board[1] += number

    def noted(self, name: str, number: int) -> None:
        """A message that came alone."""
        self._gauge(name).noted += number
        self.acts[number] = None

    def taken(self, name: str, number: int) -> None:
        """A command that was answered."""
        if number % 5:
            self._gauge(name).taken += number

    def _gauge(self, name: str) -> Expected:
        return self.gauges.setdefault(name, Expected())

    def differences(self, states: list[Any]) -> list[str]:
        """How the recovered states of all shards differ from this, in words."""
        found: list[str] = []
        seen: dict[str, Expected] = {}
        board = [0, 0]
        for state in states:
            table = state.tables[KIND]
            for number in range(len(table)):
                agent = table.agent(number, ahead=True)
                seen[agent.id] = Expected(agent.count, agent.total, agent.chain, agent.noted, agent.taken)
            if "Board/main" in state.agents:
                board = [state.agents["Board/main"].count, state.agents["Board/main"].total]
        for name, expected in self.gauges.items():
            if seen.get(name) != expected:
                found.append(f"{KIND}/{name} is {seen.get(name)}, and should be {expected}")
        found += [f"{KIND}/{name} has had what was never sent" for name in seen if self._never(name, seen[name])]
        if board != self.board:
            found.append(f"the board has {board}, and should have {self.board}")
        return found

    def _never(self, name: str, seen: Expected) -> bool:
        return name not in self.gauges and seen != Expected()


def make_fleet(act: Any, warn: Any, like: Fleet | None = None) -> Fleet:
    """The fleet, with these hands. `like` is one that is compiled already, in this process."""
    compiled: list[type[Agent]] = [Gauge] if like is None else []
    fleet = Fleet("gauged", agents=[Gauge, Board], compiled=compiled, shards=SHARDS, settings=SETTINGS)
    if like is not None:
        fleet.plans.update(like.plans)
    fleet.batch_actuator(Act)(act)
    fleet.batch_actuator(Warn)(warn)
    return fleet


def ready_fleet() -> Fleet:
    """The fleet without hands, compiled: to look at what it has left."""
    fleet = make_fleet(lambda _: None, lambda _: None)
    fleet.prepare(lambda _: None)
    return fleet


class Producer:
    """Makes batches for a roster, numbered for good, and keeps the model."""

    def __init__(self, roster: Roster, model: Model, *, batch_bytes: int = BATCH_BYTES) -> None:
        self._batcher = Batcher(roster, source="radio")
        self._batch_bytes = batch_bytes
        self._model = model
        self._next = 1
        self._names = list(roster.names)

    def renew(self, roster: Roster) -> None:
        """Agents have been enrolled since."""
        self._batcher.renew(roster)
        self._names = list(roster.names)

    def batches(self, names: list[str], count: int) -> list[tuple[int, int, bytes]]:
        """So many records, spread over these agents: shard, number of the last record there, bytes."""
        spread = [names[(self._next + place) % len(names)] for place in range(count)]
        numbers = range(self._next, self._next + count)
        self._next += count
        for name, number in zip(spread, numbers, strict=True):
            self._model.gauged(name, number)
        self._batcher.add(Gauged, spread, number=list(numbers))
        made: list[tuple[int, int, bytes]] = []
        for data in self._batcher.take(self._batch_bytes):
            shard, last = last_of(data)
            made.append((shard, last, data))
        return made

    @property
    def names(self) -> list[str]:
        """All agents that there are."""
        return self._names


def last_of(data: bytes) -> tuple[int, int]:
    """The shard of a batch, and the number of its last record there."""
    header = open_batch(data).header
    return header.shard, header.sequence + header.count - 1
