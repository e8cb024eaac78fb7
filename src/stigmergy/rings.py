"""For programs that feed a node on the same machine: `from stigmergy.rings import open_blocking_feed`.

    with open_blocking_feed("telemetry.sock", "telemetry.ring", "Drone", source="gateway-7") as feed:
        feed.enroll(["D-17", "D-18"])
        feed.add(Positioned, ["D-17", "D-18"], north_m=[1.0, 2.0], east_m=0.0, altitude_m=50.0)
        feed.send()
        feed.wait_durable()

`open_feed` is the same on an event loop. It asks the node over its control socket for the record layout and the agents'
numbers; batches go through memory. Importing this needs numpy: `pip install "stigmergy[compiled]"`.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import AsyncGenerator, Iterator, Sequence
from contextlib import aclosing, closing
from pathlib import Path
from typing import Any, Generic, TypeVar, cast

import msgspec
from msgspec import structs

from stigmergy.agents.messages import Message
from stigmergy.base.errors import ConfigError
from stigmergy.columns import Batcher, Roster
from stigmergy.control import protocol
from stigmergy.control.protocol import REQUEST_BYTES_MAX, Request, answers_to, read_single
from stigmergy.control.socket import ControlCall, ControlClient
from stigmergy.node.column_roster import ENROLLED_NAMES_MAX, DescribedRoster, read_roster
from stigmergy.ring import BlockingProducer, Producer, open_blocking_producer, open_producer
from stigmergy.ring.port import DURABLE_S_MAX, MESSAGE_BYTES_MAX, PUT_S_MAX

BATCH_BYTES = 256 * 1024
"""How large batches are made: small enough for any ring but the smallest, large enough to cost little each."""
_ENVELOPE_BYTES = 1024
"""What a request has beside its names."""

ProducerT = TypeVar("ProducerT", Producer, BlockingProducer)


class _Feed(Generic[ProducerT]):
    """What both kinds of feed do without waiting."""

    def __init__(
        self, ring: str | Path, kind: str, source: str, incarnation: int | None, found: DescribedRoster
    ) -> None:
        self._ring = str(ring)
        self._kind = kind
        self._roster = read_roster(found)
        self._known: dict[str, int] = {}
        self._batcher = Batcher(
            self._roster,
            source=source,
            incarnation=time.time_ns() // 1_000_000 if incarnation is None else incarnation,
        )
        self._producer: ProducerT
        self._unsent: deque[bytes] = deque()
        """Batches that are numbered and not in the ring yet: they come first."""

    @property
    def roster(self) -> Roster:
        """All agents that were enrolled here, and where they are."""
        return self._roster

    @property
    def waiting(self) -> int:
        """How many records were added and not sent."""
        return self._batcher.waiting

    def add(self, message: type[Message] | str, agents: Any, /, **columns: Any) -> int:
        """Adds one record for each agent, in order; how many. See `Batcher.add`."""
        return self._batcher.add(message, agents, **columns)

    def _requests(self, names: Sequence[str]) -> Iterator[tuple[list[str], protocol.EnrollAgentsRequest]]:
        """What asks the node to enrol those of these agents that are not known here, part by part."""
        if isinstance(names, str) or not all(isinstance(name, str) for name in names):
            raise ConfigError(f"enroll({names!r:.60}): give a list of names, also for one alone")
        part: list[str] = []
        size_bytes = _ENVELOPE_BYTES
        for name in dict.fromkeys(names):
            if name in self._known:
                continue
            name_bytes = len(msgspec.json.encode(name)) + 1
            if part and (len(part) >= ENROLLED_NAMES_MAX or size_bytes + name_bytes > REQUEST_BYTES_MAX):
                yield part, protocol.EnrollAgentsRequest(kind=self._kind, names=part)
                part, size_bytes = [], _ENVELOPE_BYTES
            part.append(name)
            size_bytes += name_bytes
        if part:
            yield part, protocol.EnrollAgentsRequest(kind=self._kind, names=part)

    def _enrolled(self, names: list[str], found: DescribedRoster) -> None:
        """The node has these agents. They come behind those that were here before: places stay what they were."""
        new, before = read_roster(found, names), self._roster
        for name in names:
            self._known[name] = len(self._known)
        self._roster = structs.replace(new, places=before.places + new.places, names=before.names + names)

    def _made(self) -> None:
        """What was added becomes batches."""
        self._unsent.extend(self._batcher.take(BATCH_BYTES))

    def close(self) -> None:
        """Leaves. What was sent stays in the ring."""
        self._producer.close()


class BlockingFeed(_Feed[BlockingProducer]):
    """For a plain script or thread. `open_blocking_feed` makes one."""

    def __init__(
        self, socket: str | Path, ring: str | Path, kind: str, source: str, incarnation: int | None = None
    ) -> None:
        self._socket = Path(socket)
        super().__init__(ring, kind, source, incarnation, self._ask(protocol.RosterRequest(kind=kind)))
        self._producer = open_blocking_producer(self._ring)

    def enroll(self, names: Sequence[str]) -> Roster:
        """Has agents enrolled, durably, and can send for them from now on. Those that are known already stay."""
        for part, request in self._requests(names):
            self._enrolled(part, self._ask(request))
        self._batcher.renew(self._roster)
        return self._roster

    def send(self, *, within_s: float = PUT_S_MAX) -> None:
        """Puts what was added into the ring. Overloaded if there was no room within that time: send again, then it
        goes on where it was."""
        self._made()
        while self._unsent:
            self._producer.put(self._unsent[0], within_s=within_s)
            self._unsent.popleft()

    def wait_durable(self, *, within_s: float = DURABLE_S_MAX) -> None:
        """Waits until the node has made durable all that was sent. Overloaded if it takes longer: it may still be."""
        self._producer.wait_durable(within_s=within_s)

    def __enter__(self) -> BlockingFeed:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _ask(self, request: Request[DescribedRoster]) -> DescribedRoster:
        with closing(ControlClient(self._socket)) as client:
            (found,) = answers_to(client.ask(request))
            return found


class Feed(_Feed[Producer]):
    """For an event loop. `open_feed` makes one."""

    def __init__(
        self,
        call: ControlCall,
        found: DescribedRoster,
        ring: str | Path,
        kind: str,
        source: str,
        incarnation: int | None,
    ) -> None:
        self._call = call
        super().__init__(ring, kind, source, incarnation, found)
        self._producer = open_producer(self._ring)

    async def enroll(self, names: Sequence[str]) -> Roster:
        """Has agents enrolled, durably, and can send for them from now on. Those that are known already stay."""
        for part, request in self._requests(names):
            self._enrolled(part, await _answer(self._call, request))
        self._batcher.renew(self._roster)
        return self._roster

    async def send(self, *, within_s: float = PUT_S_MAX) -> None:
        """Puts what was added into the ring. Overloaded if there was no room within that time: send again, then it
        goes on where it was. Not for several tasks at once."""
        self._made()
        while self._unsent:
            await self._producer.put(self._unsent[0], within_s=within_s)
            self._unsent.popleft()

    async def wait_durable(self, *, within_s: float = DURABLE_S_MAX) -> None:
        """Waits until the node has made durable all that was sent. Overloaded if it takes longer: it may still be."""
        await self._producer.wait_durable(within_s=within_s)

    async def __aenter__(self) -> Feed:
        return self

    async def __aexit__(self, *_: object) -> None:
        self.close()


def open_blocking_feed(
    socket: str | Path, ring: str | Path, kind: str, *, source: str, incarnation: int | None = None
) -> BlockingFeed:
    """A feed for the agents of a compiled kind of the node at this control socket, by this ring of it.

    A source that starts anew begins a higher incarnation: the time, in milliseconds, unless one is given. Raises
    NotRunning without a node, UnknownKind for a kind that is not compiled, RingLocked where another producer is.
    """
    return BlockingFeed(socket, ring, kind, source, incarnation)


async def open_feed(
    socket: str | Path, ring: str | Path, kind: str, *, source: str, incarnation: int | None = None
) -> Feed:
    """The same for an event loop."""
    call = ControlCall(Path(socket))
    return Feed(call, await _answer(call, protocol.RosterRequest(kind=kind)), ring, kind, source, incarnation)


async def _answer(call: ControlCall, request: Request[DescribedRoster]) -> DescribedRoster:
    async with aclosing(cast("AsyncGenerator[bytes]", call.ask(request))) as lines:
        return read_single(await anext(lines), request)


__all__ = ["BATCH_BYTES", "MESSAGE_BYTES_MAX", "BlockingFeed", "Feed", "open_blocking_feed", "open_feed"]
