"""The node that the kill proof kills: a small fleet on a real journal, told what to do over a socket.

It runs in a process that was forked from one with everything imported, so that a start costs milliseconds. The other
side of the socket is proofs/kill.py, which is the sensors, the operators and the receiver of
actions in one.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any, NoReturn

import msgspec
from msgspec import Struct

from rigs.node_process import Broken, Channel, Confirm, Deliver, Delivered, Stop, ToldNode
from stigmergy import (
    Accepted,
    Action,
    Agent,
    Command,
    Effects,
    Event,
    Events,
    Fleet,
    Live,
    Order,
    Settings,
    Snapshots,
    StigmergyError,
    Tell,
    decide,
    evolve,
    react,
    reject,
)
from stigmergy.shard.snapshot import digest_of_state

COUNTERS = 12
SETTINGS = Settings(snapshots=Snapshots(every_events=200, every_s=60.0, tail_ratio=1.0))
"""Snapshots are small and frequent, so that kills hit them as well."""


class Counted(Event):
    """Something was counted. Every third number asks for an action, every seventh tells the neighbour."""

    number: int


class Echoed(Event):
    """The neighbour has counted something."""

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


class Counter(Agent):
    """Counts, and keeps a sum that shows whether anything was folded twice or left out."""

    count: int = 0
    total: int = 0
    echoes: int = 0

    @evolve
    def counted(self, event: Counted) -> None:
        self.count += 1
        self.total += event.number

    @react
    def act_on_third(self, event: Counted) -> Effects:
        if event.number % 3 == 0:
            yield Act(number=event.number)
        if event.number % 7 == 0:
            neighbour = (int(self.id) + 1) % COUNTERS
            yield Tell(f"Counter/{neighbour}", Echoed(number=event.number))

    @evolve
    def echoed(self, event: Echoed) -> None:
        self.echoes += event.number

    @decide
    def take(self, command: Take) -> Events:
        if command.number % 5 == 0:
            reject(f"{command.number} is a multiple of five; {self.count} were counted so far")
        yield Taken(number=command.number)

    @evolve
    def taken(self, event: Taken) -> None:
        self.count += 1
        self.total += event.number

    @react
    def act_on_taken(self, event: Taken) -> Effects:
        yield Act(number=event.number)


class Ready(Struct, tag=True, frozen=True):
    """The node has recovered."""

    events: int
    passed_over: int


class Ask(Struct, tag=True, frozen=True):
    """Give this command to an agent."""

    command_id: str
    address: str
    number: int


class Answered(Struct, tag=True, frozen=True):
    """The durable answer: accepted at a position, or refused for a reason."""

    command_id: str
    position: int
    reason: str


class Release(Struct, tag=True, frozen=True):
    """Carry out this action."""

    sequence: int
    key: str
    number: int


class Stopped(Struct, tag=True, frozen=True):
    """How the node ended."""

    digest: bytes
    duplicates: int


FromNode = Ready | Delivered | Answered | Release | Stopped | Broken
ToNode = Deliver | Ask | Confirm | Stop
from_node: msgspec.msgpack.Decoder[FromNode] = msgspec.msgpack.Decoder(FromNode)
to_node: msgspec.msgpack.Decoder[ToNode] = msgspec.msgpack.Decoder(ToNode)


class Node:
    """The fleet's side of the conversation."""

    def __init__(self, channel: Channel[ToNode], confirmed: int) -> None:
        self._channel = channel
        self._told = ToldNode(channel, self._ask)
        self._live: Live | None = None
        self.fleet = make_fleet(self._carry_out)
        self.fleet.receivers["actuators"] = lambda _: confirmed

    async def run(self, scheme: str, path: Path) -> None:
        """Recovers, then does as it is told until it is told to stop."""
        running = self.fleet.running(journal=f"{scheme}:{path}", key=path.with_suffix(".key"), settings=SETTINGS)
        async with running as live:
            self._live = live
            recovered = live.recovered
            self._channel.send(Ready(recovered.events, len(recovered.passed_over)))
            await self._told.attend(live)
            duplicates = live.standing().counters["duplicates"]
            states = recovered.states
        self._channel.send(Stopped(digest_of_state(states[0]), duplicates))

    async def _ask(self, frame: ToNode) -> None:
        assert self._live is not None
        assert isinstance(frame, Ask)
        verdict = await self._live.send(frame.address, Take(number=frame.number), command_id=frame.command_id)
        if isinstance(verdict, Accepted):
            self._channel.send(Answered(frame.command_id, verdict.position, ""))
        else:
            self._channel.send(Answered(frame.command_id, 0, verdict.reason))

    async def _carry_out(self, order: Order[Act]) -> None:
        await self._told.wait_confirmed(order.key, Release(order.sequence, order.key, order.effect.number))


def make_fleet(act: Callable[[Order[Act]], Any]) -> Fleet:
    """The fleet, with this receiver for its actions."""
    fleet = Fleet("killed", agents=[Counter])
    fleet.actuator(Act)(act)
    return fleet


def run_node(channel: Channel[ToNode], scheme: str, path: Path, confirmed: int) -> NoReturn:
    """The whole life of a forked process. Never returns."""
    code = 0
    try:
        asyncio.run(Node(channel, confirmed).run(scheme, path))
    except StigmergyError as error:
        code = 2
        with contextlib.suppress(OSError):
            channel.send(Broken(f"{type(error).__name__}: {error}"))
    except BaseException:
        code = 3
        with contextlib.suppress(OSError):
            channel.send(Broken(traceback.format_exc()[-2_000:]))
    finally:
        os._exit(code)
