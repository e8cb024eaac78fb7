"""The fleet that `proofs.workers` runs on workers: agents that count, tell each other, and ring a bell that is counted.

    RECEIVER=/path/to/socket python -m stigmergy worker proofs.workers_node:fleet --nats URL

The bell is a socket of whoever runs the proof. It confirms each ring, and remembers the keys that it had.
"""

from __future__ import annotations

import asyncio
import os

import msgspec

from stigmergy import (
    Action,
    Agent,
    Command,
    Effects,
    Event,
    Events,
    Fleet,
    Order,
    Settings,
    Snapshots,
    Tell,
    decide,
    evolve,
    react,
)

SHARDS = 6
RECEIVER = "STIGMERGY_PROOF_RECEIVER"


class Count(Command):
    """Counts, tells another agent of it, and rings."""

    number: int
    to: str


class Counted(Event):
    """It has counted."""

    number: int
    to: str


class Heard(Event):
    """Another agent has said that it has counted."""

    by: str
    number: int


class Ring(Action):
    """Rings the bell."""

    number: int


class Rung(msgspec.Struct):
    """What the bell is told."""

    key: str
    agent: str
    number: int
    pid: int


class Relay(Agent):
    """Counts and hears."""

    counted: int = 0
    heard: int = 0

    @decide
    def count(self, command: Count) -> Events:
        """Every command is accepted."""
        yield Counted(number=command.number, to=command.to)

    @evolve
    def was_counted(self, event: Counted) -> None:
        """One more."""
        self.counted += 1

    @react
    def pass_on(self, event: Counted) -> Effects:
        """Tells whoever it is for, and rings."""
        yield Tell(event.to, Heard(by=self.address, number=event.number))
        yield Ring(number=event.number)

    @evolve
    def was_heard(self, event: Heard) -> None:
        """One more."""
        self.heard += 1


fleet = Fleet(
    "relays",
    agents=[Relay],
    shards=SHARDS,
    settings=Settings(snapshots=Snapshots(every_events=200, tail_ratio=0.0), drain_s=5.0),
)


@fleet.actuator(Ring)
async def ring(order: Order[Ring]) -> None:
    """Rings, and waits until the bell has it."""
    reader, writer = await asyncio.open_unix_connection(os.environ[RECEIVER])
    try:
        rung = Rung(order.key, order.agent, order.effect.number, os.getpid())
        writer.write(msgspec.json.encode(rung) + b"\n")
        await writer.drain()
        await reader.readexactly(1)
    finally:
        writer.close()
