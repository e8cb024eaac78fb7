"""Partitions commands and inputs by shard: the owner of a shard gets only the messages for its agents.

The server does it. A second stream sources the fleet's own; it puts a token with a `/` between an agent's kind and
name, and hashes the three: that is FNV-1a of `Kind/Name`, as in `shard_of`. If the fleet has a key function for homes,
or topics escape the agent's name, the hash is wrong: a reader that finds such a message forwards it to its shard.
Messages for no particular agent go to every shard, by its session on the fleet's stream.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from typing import Any
from urllib.parse import unquote

from msgspec import Struct

from stigmergy.base.errors import ConfigError, StigmergyError
from stigmergy.base.tasks import end_tasks
from stigmergy.nats.bus.options import BusOptions
from stigmergy.nats.bus.outlet import MSG_ID, Outlet
from stigmergy.nats.bus.streams import MIB, SECOND_NS
from stigmergy.nats.bus.subjects import size_of
from stigmergy.nats.errors import STREAM_NAME_IN_USE, JetStreamRefused
from stigmergy.nats.link import NatsLink
from stigmergy.nats.naming import bus_stream, parted_stream, parted_subject
from stigmergy.nats.streams import StreamFound, ensure_stream, find_stream
from stigmergy.shard.homes import shard_of

CHANNELS = ("commands", "inputs")
"""The channels of one agent, and so of one shard."""
AGENTS = "agents"
LEVELS = 6
"""fleet, site, agents, kind, name, channel."""
EMPTY_LEVEL = "%"
MOVE_PAUSE_S = 0.1

Home = Callable[[str], int]
"""The shard of an agent, by its address."""


class Partition(Struct, frozen=True):
    """A shard of a fleet, and the number of shards. `home` gives an agent's shard where that is not its hash."""

    shard: int
    shards: int
    home: Home | None = None

    def __post_init__(self) -> None:
        if not 0 <= self.shard < self.shards:
            raise ConfigError(f"partition {self.shard} of {self.shards}; they count from 0")

    def home_of(self, address: str) -> int:
        """The shard of an agent."""
        return shard_of(address, self.shards) if self.home is None else self.home(address)


class PartitionedStream:
    """The partitioned stream of a fleet, as one of its shards sees it."""

    def __init__(self, options: BusOptions, partition: Partition) -> None:
        self._options = options
        self.partition = partition
        self.stream = parted_stream(options.fleet, partition.shards)
        self._all = parted_subject(options.fleet, partition.shards)
        self._prefix = f"{self._all}.{partition.shard}."

    async def ensure(self, link: NatsLink) -> StreamFound:
        """Makes the stream, which sources the fleet's existing one. Raises ConfigError if its settings differ."""
        found = await find_stream(link, self.stream)
        if found is None:
            fleets = await find_stream(link, bus_stream(self._options.fleet))
            last = 0 if fleets is None else fleets.last_sequence
            try:
                # Messages from before there were shards are for nobody.
                await link.api(
                    f"STREAM.CREATE.{self.stream}", {"name": self.stream, **self._settings({"opt_start_seq": last + 1})}
                )
            except JetStreamRefused as refused:
                if refused.code != STREAM_NAME_IN_USE and not refused.is_passing:
                    raise
        settings = self._settings({})
        if found is not None and not found.config.get("sources"):
            # Another watcher was stopped after it had removed the source: `SourcedStream` restores it.
            del settings["sources"]
        return await ensure_stream(link, self.stream, settings)

    def split(self, filters: Iterable[str]) -> tuple[list[str], list[str]]:
        """Splits filters into those for the fleet's stream and those for the partitioned one, under its names."""
        everybodys: list[str] = []
        ours: list[str] = []
        for one in filters:
            levels = one.split(".")
            if len(levels) == LEVELS and levels[2] == AGENTS and levels[5] in CHANNELS:
                ours.append(self._prefix + ".".join(levels[1:]))
            else:
                everybodys.append(one)
        return everybodys, ours

    def bare(self, subject: str) -> str | None:
        """The subject of the topic that a message was published on; None for other subjects."""
        return f"{self._options.subjects.root}.{subject[len(self._prefix) :]}"

    def home_of(self, subject: str) -> int:
        """The shard of the agent of a topic's subject; if it has none, this one: its host refuses the message."""
        _, _, _, kind, name, *_ = subject.split(".")
        try:
            return self.partition.home_of(f"{_plain(kind)}/{_plain(name)}")
        except StigmergyError:
            return self.partition.shard

    def moved_to(self, shard: int, subject: str) -> str:
        """The subject of a message in another shard."""
        return f"{self._all}.{shard}.{subject.partition('.')[2]}"

    def sources(self, start: Mapping[str, int]) -> list[dict[str, Any]]:
        """The source: the fleet's stream, from its beginning or from `start`."""
        sorting = f"{self._all}.sorting"
        transforms = [
            {
                "src": f"{self._options.subjects.root}.*.{AGENTS}.*.*.{channel}",
                "dest": f"{sorting}.{{{{wildcard(1)}}}}.{{{{wildcard(2)}}}}./.{{{{wildcard(3)}}}}.{channel}",
            }
            for channel in CHANNELS
        ]
        return [{"name": bus_stream(self._options.fleet), "subject_transforms": transforms, **start}]

    def _settings(self, start: Mapping[str, int]) -> dict[str, Any]:
        """JetStream refers to wildcards by number: 1 the site, 2 the kind, 3 the inserted `/`, 4 the name."""
        return {
            "storage": "file",
            "num_replicas": self._options.replicas,
            "discard": "old",
            "max_age": int(self._options.age_s * SECOND_NS),
            "max_bytes": self._options.stored_mb * MIB,
            "subjects": [f"{self._all}.*.>"],
            "sources": self.sources(start),
            "subject_transform": {
                "src": f"{self._all}.sorting.*.*.*.*.*",
                "dest": (
                    f"{self._all}.{{{{partition({self.partition.shards},2,3,4)}}}}.{{{{wildcard(1)}}}}.{AGENTS}."
                    "{{wildcard(2)}}.{{wildcard(4)}}.{{wildcard(5)}}"
                ),
            },
        }


class _Misplaced(Struct, eq=False):
    place: int
    subject: str
    payload: bytes
    headers: Mapping[str, str]
    settled: Callable[[], None]


class Mover:
    """Moves messages to their shard, those of one topic in order."""

    def __init__(self, outlet: Outlet, parting: PartitionedStream) -> None:
        self._outlet = outlet
        self._parting = parting
        self._queues: dict[str, deque[_Misplaced]] = {}
        """By topic; each has its own task. Waiting messages are in a session's window, which bounds them."""
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self.moved_count = 0

    def takes(
        self, place: int, subject: str, payload: bytes, headers: Mapping[str, str], settled: Callable[[], None]
    ) -> bool:
        """Whether this message belongs to another shard; then it is moved, and settled when it is there."""
        home = self._parting.home_of(subject)
        if home == self._parting.partition.shard:
            return False
        target = self._parting.moved_to(home, subject)
        queue = self._queues.setdefault(target, deque())
        # The server's own headers are about the stream and the session that it came from.
        kept = {name: value for name, value in headers.items() if not name.startswith("Nats-")}
        queue.append(_Misplaced(place, target, payload, kept, settled))
        if target not in self._tasks:
            task = asyncio.get_running_loop().create_task(self._work(target, queue), name=f"moving {target}")
            self._tasks[target] = task
        return True

    async def close(self) -> None:
        """Stops; the next owner moves the rest."""
        await end_tasks(*self._tasks.values())

    async def _work(self, target: str, queue: deque[_Misplaced]) -> None:
        try:
            while queue:
                misplaced = queue[0]
                # Whatever is wrong, retry this one: messages behind it must not overtake it.
                with contextlib.suppress(StigmergyError, JetStreamRefused):
                    await (
                        await self._outlet.post(misplaced.subject, misplaced.payload, self._headers(misplaced) or None)
                    )
                    self.moved_count += 1
                    misplaced.settled()
                    queue.popleft()
                    continue
                await asyncio.sleep(MOVE_PAUSE_S)
        finally:
            self._queues.pop(target, None)
            self._tasks.pop(target, None)

    def _headers(self, misplaced: _Misplaced) -> Mapping[str, str]:
        """An id, so that JetStream drops a repetition after a lost answer. Without room for an id the message may be
        there twice, and receivers that keep marks drop the second."""
        marked = {**misplaced.headers, MSG_ID: f"{self._parting.partition.shard}.{misplaced.place}"}
        is_small = size_of(misplaced.payload, marked) <= self._outlet.size_bytes_max
        return marked if is_small else misplaced.headers


def _plain(level: str) -> str:
    """A topic level, unescaped."""
    return "" if level == EMPTY_LEVEL else unquote(level)
