"""The links of a gateway to other levels: commands and answers cross them both ways, and what is reachable goes up.

    delivery/north/uplink/gateway/routed         up     to the level above
    delivery/north/uplink/gateway/routed-down    down   from it

A link is between two nodes: a gateway and the node above that collects its uplink, on the bus of that uplink. Nothing
here is kept or repeated: a frame may be lost, doubled or late, and whoever needs an answer asks again. So a frame must
mean the same however often it comes.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Iterable, Sequence
from functools import cached_property

import msgspec
from blake3 import blake3
from msgspec import Struct

from stigmergy.agents.assignment import ANY, Assignment
from stigmergy.agents.codec import MESSAGE_BYTES_MAX, NUMBERS_END, UNDECODABLE, tagged_without_empty_end
from stigmergy.agents.messages import SECOND_NS
from stigmergy.base.errors import ConfigError, LinkDown, Malformed, NotRunning, PeerError, TooLarge
from stigmergy.bus.port import Bus, BusMessage
from stigmergy.uplink.names import CollectedBus, UplinkSource, routed_sender, routed_topics_pattern

ABOVE = "above"
FRAME_BYTES_MAX = 512 * 1024
TEXT_CHARS_MAX = 1_000
ROUTES_COUNT_MAX = 10_000
"""Agents that a gateway names to the level above. Of more, a kind with many is announced as a whole."""
NEIGHBOURS_COUNT_MAX = 4_096
ANNOUNCE_S = 5.0
"""How often a gateway says that it is there, with a digest of what is reachable through it."""
SILENT_NS = 35 * SECOND_NS
"""A gateway that was not heard for so long counts as cut off."""
PUBLISH_S = 10.0


class Forward(Struct, array_like=True, frozen=True, tag=1):
    """A command for an agent that is reachable through the receiver, or runs there."""

    agent: str
    command_id: str
    command: bytes
    client: str
    expires_ns: int
    origin: str
    replaces: str
    superseded_by: str
    hops: int
    traceparent: str = ""
    tracestate: str = ""
    """Its trace context; not there if it has none."""


class ForwardTaken(Struct, array_like=True, frozen=True, tag=2):
    """The receiver has the command in its log, and no answer yet."""

    agent: str
    command_id: str


class ForwardAnswered(Struct, array_like=True, frozen=True, tag=3):
    """The answer; None for an accepted command."""

    agent: str
    command_id: str
    refused: str | None
    after: str = ""
    """Of an accepted one, the position in the log of the node that has decided; empty if that is not known."""


class RoutesDigest(Struct, array_like=True, frozen=True, tag=4):
    """What is reachable through the sender, by its digest."""

    digest: bytes


class RoutesWanted(Struct, array_like=True, frozen=True, tag=5):
    """The receiver of a digest does not know it."""


class Routes(Struct, array_like=True, frozen=True, tag=6):
    """What is reachable through the sender: agents and patterns of them, and kinds of which somebody runs all."""

    agents: list[str]
    kinds: list[str]

    @property
    def digest(self) -> bytes:
        return blake3(write_frame(self)).digest(length=16)


class TellsCarried(Struct, array_like=True, frozen=True, tag=7):
    """Tells for an agent that is reachable through the receiver, or runs there: a frame of bus/tells.py."""

    agent: str
    tells: bytes


class TellsTold(Struct, array_like=True, frozen=True, tag=8):
    """The acknowledgement of such a frame."""

    acknowledgement: bytes


RoutedFrame = Forward | ForwardTaken | ForwardAnswered | TellsCarried | TellsTold
LevelFrame = Forward | ForwardTaken | ForwardAnswered | RoutesDigest | RoutesWanted | Routes | TellsCarried | TellsTold
_decoder: msgspec.msgpack.Decoder[LevelFrame] = msgspec.msgpack.Decoder(LevelFrame)
_write = msgspec.msgpack.Encoder().encode
_FIELDS_MIN = Forward.__struct_fields__.index("traceparent")


def write_frame(frame: LevelFrame) -> bytes:
    """The bytes of a frame."""
    return _write(tagged_without_empty_end(frame, _FIELDS_MIN) if isinstance(frame, Forward) else frame)


def read_frame(data: bytes) -> LevelFrame:
    """Reads a frame; raises Malformed or TooLarge."""
    if len(data) > FRAME_BYTES_MAX:
        raise TooLarge(f"a frame of {len(data)} bytes, {FRAME_BYTES_MAX} at most")
    try:
        frame = _decoder.decode(data)
    except UNDECODABLE as error:
        raise Malformed(f"a frame that does not decode ({error}); run the same version at both levels") from None
    match frame:
        case Forward():
            texts = (frame.agent, frame.command_id, frame.client, frame.origin, frame.replaces, frame.superseded_by)
            trace = (frame.traceparent, frame.tracestate)
            if len(frame.command) > MESSAGE_BYTES_MAX or max(map(len, (*texts, *trace))) > TEXT_CHARS_MAX:
                raise TooLarge("a command that is too large, or whose names are")
            if not 0 <= frame.expires_ns < NUMBERS_END >> 1 or not 0 <= frame.hops < TEXT_CHARS_MAX:
                raise Malformed("a command with impossible numbers")
        case Routes():
            if len(frame.agents) + len(frame.kinds) > ROUTES_COUNT_MAX + 1_000:
                raise TooLarge(f"{len(frame.agents)} routes, {ROUTES_COUNT_MAX} at most")
        case _:
            pass
    return frame


def routes_of(agents: Iterable[str], kinds: Iterable[str]) -> Routes:
    """What to announce of these: within the bound, kinds with the most agents as a whole first."""
    named = dict.fromkeys(sorted(agents))
    while len(named) > ROUTES_COUNT_MAX:
        counts: dict[str, int] = {}
        for agent in named:
            kind = agent.partition("/")[0]
            counts[kind] = counts.get(kind, 0) + 1
        largest = max(counts, key=lambda kind: counts[kind])
        named = {agent: None for agent in named if agent.partition("/")[0] != largest}
        named[f"{largest}/{ANY}"] = None
    return Routes(sorted(named), sorted(dict.fromkeys(kinds)))


class Known(Struct, frozen=True, dict=True):
    """What a neighbour below has announced."""

    routes: Routes = Routes([], [])

    @cached_property
    def assignment(self) -> Assignment | None:
        """The agents that it names; None if it names none that can be read."""
        try:
            return Assignment(self.routes.agents) if self.routes.agents else None
        except ConfigError:
            return None  # perhaps of a later version

    def names(self, agent: str) -> bool:
        return self.assignment is not None and self.assignment.runs(agent)

    def has_kind(self, agent: str) -> bool:
        return agent.partition("/")[0] in self.routes.kinds


class Neighbour:
    """The other end of a link."""

    def __init__(self, bus: Bus, topic: str, name: str, monotonic_ns: Callable[[], int]) -> None:
        self._bus = bus
        self._topic = topic
        self._monotonic_ns = monotonic_ns
        self.name = name
        """`above`, or the site and node below, such as `north/gateway`."""
        self.known = Known()
        self.digest = b""
        self.heard_ns = monotonic_ns()

    @property
    def shown(self) -> str:
        """For a sentence."""
        site, _, node = self.name.partition("/")
        return f"gateway {node!r} of site {site!r}" if node else "the level above"

    @property
    def is_up(self) -> bool:
        """Whether it can be reached, as far as is known. The level above announces nothing to us."""
        silent = self.name != ABOVE and self._monotonic_ns() - self.heard_ns > SILENT_NS
        return self._bus.is_up and not silent

    async def send(self, frame: LevelFrame) -> bool:
        """Whether the bus has taken it."""
        with contextlib.suppress(LinkDown, NotRunning, TimeoutError):
            async with asyncio.timeout(PUBLISH_S):
                await self._bus.publish(BusMessage(self._topic, write_frame(frame)))
                return True
        return False


Heard = Callable[[Neighbour, RoutedFrame], None]


class LevelLinks:
    """All links of a node. `start` before the buses open. `heard` gets what is about commands, and must not wait."""

    def __init__(
        self,
        me: UplinkSource,
        above: Bus | None,
        below: Sequence[CollectedBus],
        monotonic_ns: Callable[[], int],
        *,
        expects: bool,
    ) -> None:
        """`expects`: gateways of whole sites connect here, also if none is heard yet."""
        self._me = me
        self._monotonic_ns = monotonic_ns
        self._expects = expects
        self.wake: Callable[[], None] = lambda: None
        self._collected = tuple(below)
        self.above = None if above is None else Neighbour(above, me.routed_topic, ABOVE, monotonic_ns)
        self._above_bus = above
        self.below: dict[str, Neighbour] = {}
        self._routes = Routes([], [])
        self.announced = b""
        """The digest of what was announced last."""
        self.heard: Heard = lambda *_: None
        self.refused = 0
        if above is not None:
            above.on_link(lambda _: self.wake())

    @property
    def exist(self) -> bool:
        """Whether this node is between levels at all."""
        return self.above is not None or bool(self._collected)

    @property
    def has_below(self) -> bool:
        """Whether there are gateways below, or will be."""
        return self._expects or bool(self.below)

    async def start(self) -> None:
        if self._above_bus is not None:
            await self._above_bus.subscribe(self._me.routed_down_topic, self._hear_above)
        for collected in self._collected:
            pattern = routed_topics_pattern(self._me.fleet, collected.site)

            async def hear(message: BusMessage, bus: Bus = collected.bus) -> None:
                await self._hear_below(bus, message)

            await collected.bus.subscribe(pattern, hear)

    def find(self, agent: str, *, all_of_kind: bool) -> list[Neighbour]:
        """The neighbours below that name an agent, or that have everything of its kind."""
        return [
            one for one in self.below.values() if (one.known.has_kind(agent) if all_of_kind else one.known.names(agent))
        ]

    async def announce(self, routes: Routes) -> None:
        """Says to the level above what is reachable here: a digest, and all of it if it asks."""
        self._routes, self.announced = routes, routes.digest
        if self.above is not None:
            await self.above.send(RoutesDigest(routes.digest))

    async def _hear_above(self, message: BusMessage) -> None:
        assert self.above is not None
        frame = self._read(message)
        if isinstance(frame, RoutesWanted):
            await self.above.send(self._routes)
        elif isinstance(frame, RoutedFrame):
            self.heard(self.above, frame)

    async def _hear_below(self, bus: Bus, message: BusMessage) -> None:
        sender = routed_sender(message.topic)
        if sender == self._me:
            return
        frame, name = self._read(message), f"{sender.site}/{sender.node}"
        neighbour = self.below.get(name)
        if frame is None or (neighbour is None and len(self.below) >= NEIGHBOURS_COUNT_MAX):
            return
        if neighbour is None:
            neighbour = self.below[name] = Neighbour(bus, sender.routed_down_topic, name, self._monotonic_ns)
        was_up, neighbour.heard_ns = neighbour.is_up, self._monotonic_ns()
        match frame:
            case RoutesDigest():
                if frame.digest != neighbour.digest:
                    await neighbour.send(RoutesWanted())
            case Routes():
                neighbour.known, neighbour.digest = Known(frame), frame.digest
                self.wake()
            case RoutesWanted():
                pass  # only the level above asks
            case _:
                self.heard(neighbour, frame)
        if not was_up:
            self.wake()

    def _read(self, message: BusMessage) -> LevelFrame | None:
        try:
            return read_frame(message.payload)
        except PeerError:
            self.refused += 1
            return None
