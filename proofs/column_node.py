"""The node that the kill proof of compiled agents kills: gauges in columns on a real journal in segments.

It runs in a process that was forked from one with everything imported and compiled, so that a start costs milliseconds.
The other side of the socket is proofs/column_kill.py: producer, operators and receiver of actions in one.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import os
import traceback
from pathlib import Path
from typing import Any, NoReturn

import msgspec
from msgspec import Struct

from proofs.column_agents import KIND, SETTINGS, Act, Take, Warn, make_fleet
from rigs.node_process import Broken, Channel, Confirm, Deliver, Delivered, Stop, ToldNode
from stigmergy import Accepted, Fleet, Live, StigmergyError
from stigmergy.journal import segments
from stigmergy.node.column_actuators import Orders
from stigmergy.node.column_roster import Roster
from stigmergy.shard.snapshot import digest_of_state

SEGMENT_BYTES = 1 << 20
"""Small, so that kills hit the begin of a segment too."""
SOURCE = "radio"
ORDERS_MAX = 3_000
"""In one frame of the conversation."""


class Ready(Struct, tag=True, frozen=True):
    """The node has recovered: so far it has consumed the producer's records, shard by shard."""

    consumed: list[int]
    events: int
    snapshots: int
    passed_over: int


class Enroll(Struct, tag=True, frozen=True):
    """Give these agents numbers."""

    names: list[str]


class Enrolled(Struct, tag=True, frozen=True):
    """They have some."""

    roster: Roster


class Ask(Struct, tag=True, frozen=True):
    """Give this command to an agent."""

    command_id: str
    name: str
    number: int


class Answered(Struct, tag=True, frozen=True):
    """The durable answer: accepted at a position, or refused for a reason."""

    command_id: str
    position: int
    reason: str


class Release(Struct, tag=True, frozen=True):
    """Carry out these actions of a shard: sequences, and what is to be done for each number."""

    key: str
    shard: int
    what: str
    sequences: list[int]
    numbers: list[int]
    counts: list[int]


class Stopped(Struct, tag=True, frozen=True):
    """How the node ended."""

    digests: list[bytes]
    duplicates: int


FromNode = Ready | Enrolled | Delivered | Answered | Release | Stopped | Broken
ToNode = Deliver | Enroll | Ask | Confirm | Stop
from_node: msgspec.msgpack.Decoder[FromNode] = msgspec.msgpack.Decoder(FromNode)
to_node: msgspec.msgpack.Decoder[ToNode] = msgspec.msgpack.Decoder(ToNode)


class Node:
    """The fleet's side of the conversation."""

    def __init__(self, channel: Channel[ToNode], compiled: Fleet) -> None:
        self._channel = channel
        self._told = ToldNode(channel, self._take)
        self._live: Live | None = None
        self._released = 0
        self.fleet = make_fleet(self._act, self._warn, compiled)

    async def run(self, path: Path) -> None:
        """Recovers, then does as it is told until it is told to stop."""
        running = self.fleet.running(journal=f"segments:{path}", key=path.with_suffix(".key"), settings=SETTINGS)
        async with running as live:
            self._live = live
            states = live.recovered.states
            consumed = [state.marks.consumed(SOURCE, 0) for state in states]
            recovered = live.recovered
            self._channel.send(Ready(consumed, recovered.events, len(recovered.snapshots), len(recovered.passed_over)))
            await self._told.attend(live)
            duplicates = live.standing().counters["duplicates"]
        self._channel.send(Stopped([digest_of_state(state) for state in states], duplicates))

    async def _take(self, frame: ToNode) -> None:
        assert self._live is not None
        if isinstance(frame, Enroll):
            self._channel.send(Enrolled(await self._live.enroll(KIND, frame.names)))
        elif isinstance(frame, Ask):
            await self._ask(self._live, frame)

    async def _ask(self, live: Live, frame: Ask) -> None:
        verdict = await live.send(f"{KIND}/{frame.name}", Take(number=frame.number), command_id=frame.command_id)
        if isinstance(verdict, Accepted):
            self._channel.send(Answered(frame.command_id, verdict.position, ""))
        else:
            self._channel.send(Answered(frame.command_id, 0, verdict.reason))

    async def _act(self, orders: Orders[Act]) -> None:
        numbers = orders.column("number").tolist()
        await self._release("act", orders, numbers, [0] * len(numbers))

    async def _warn(self, orders: Orders[Warn]) -> None:
        await self._release("warn", orders, orders.column("number").tolist(), orders.column("count").tolist())

    async def _release(self, what: str, orders: Orders[Any], numbers: list[int], counts: list[int]) -> None:
        sequences = orders.sequences.tolist()
        for start in range(0, len(sequences), ORDERS_MAX):
            part = slice(start, start + ORDERS_MAX)
            self._released += 1
            key = str(self._released)
            frame = Release(key, orders.shard, what, sequences[part], numbers[part], counts[part])
            await self._told.wait_confirmed(key, frame)


def run_node(channel: Channel[ToNode], path: Path, compiled: Fleet) -> NoReturn:
    """The whole life of a forked process. Never returns."""
    code = 0
    setattr(segments, "open_journal", functools.partial(segments.open_journal, segment_bytes=SEGMENT_BYTES))  # noqa: B010
    try:
        asyncio.run(Node(channel, compiled).run(path))
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
