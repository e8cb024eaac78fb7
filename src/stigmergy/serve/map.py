"""`/v1/map`: where the agents are and what they draw, live over WebSocket; now or at a past moment, in one answer.

One reader for each part of the fleet asks for the agents that have changed, while somebody looks, and keeps where each
agent is now. A part is a shard of a fleet on workers, or a node: the one that is asked, and each other one on its bus.
Each client is sent, a few times a second, the agents that changed since its last frame: the newest position wins, a
slow client skips positions, and nobody waits for it. docs/watching.md describes every byte of a frame.
"""

from __future__ import annotations

import asyncio
import struct
from array import array
from collections.abc import Iterable, Mapping, Sequence

import msgspec
from msgspec import Struct

from stigmergy.audit.history import Moment, read_at
from stigmergy.audit.listing import readable_time
from stigmergy.base.errors import ConfigError, NotRunning, StigmergyError
from stigmergy.base.tasks import end_tasks
from stigmergy.control.protocol import PositionsRequest
from stigmergy.control.replies import MissingPart, PositionsReply
from stigmergy.node.map_layers import NOTHING_DRAWN, MapLayer
from stigmergy.serve.access import AccessGate, DeniedRequest
from stigmergy.serve.asker import Asker
from stigmergy.serve.http import HttpAnswer, HttpCall, HttpRoute, json_answer, number_of, one_of
from stigmergy.serve.pump import CLOSE_NOT_ALLOWED, LOOK_S, SEND_S_MAX, wait_gone

CLIENTS_MAX = 200
"""One more is refused."""
RATE_HZ = 5
RATE_HZ_MAX = 20
"""Frames a second to a client, unless it asks for another number, and at most."""
AGENTS_MAX = 500_000
"""Agents of a fleet on one map; further ones are left out, and the page is told."""
WAIT_S = 10.0
"""So long a reader waits for a change in one request."""
FAR_S = 0.5
FAR_HZ_MAX = 50
"""Another node on the bus is asked so often, and all of them together."""
AGAIN_S = 0.5
AGAIN_S_MAX = 5.0
"""A part that does not answer is asked again after so long; the wait doubles up to the larger."""
NOTHING = msgspec.Raw(NOTHING_DRAWN)
MAGIC = int.from_bytes(b"SMP1", "little")
HEAD = struct.Struct("<IIddd")
NAMES_AT_ONCE = 20_000


# What a client is told as text beside the frames.


class ToldNames(Struct):
    """Addresses with the numbers of their layers, for the agents with the numbers from `first` on."""

    names: list[tuple[str, int]]
    first: int


class ToldColours(Struct):
    """All names of colours so far: byte n of a frame means the n-th."""

    colours: list[str]


class ToldGone(Struct):
    """Agents that are nowhere any more."""

    gone: list[int]


class ToldDrawn(Struct):
    """The GeoJSON features of agents that draw others than before, by number."""

    drawn: list[tuple[int, msgspec.Raw]]


class ToldMissing(Struct):
    """Parts of the fleet that do not answer at present, and for how long the first of them has not."""

    missing: list[str]
    age_ms: int


class ToldTroubles(Struct):
    """What is left out, in sentences."""

    troubles: list[str]


ToldText = ToldNames | ToldColours | ToldGone | ToldDrawn | ToldMissing | ToldTroubles


class _Part:
    """A node, or a shard of a fleet on workers. `node` is another one on the bus."""

    def __init__(self, shard: int | None, node: str = "") -> None:
        self.shard = shard
        self.node = node
        self.name = node or ("node" if shard is None else f"shard-{shard}")
        self.task: asyncio.Task[None] | None = None
        self.after = ""
        self.numbers: list[int] = []
        """The number on the whole map, by the part's own number."""
        self.stale: dict[int, None] = {}
        """After a new beginning: agents that were there before and were not told again yet."""
        self.colours = bytes(range(256))
        self.silent_s: float | None = None
        """Since when it does not answer."""
        self.troubles: Sequence[str] = ()


class FleetMap:
    """Where all agents are now. It is filled from `join` to `leave` of the last client."""

    def __init__(self, layers: Mapping[str, MapLayer], asker: Asker, shards: Sequence[int | None]) -> None:
        self._layer_numbers = {kind: number for number, kind in enumerate(layers)}
        self._asker = asker
        self.shards = shards
        self._clients: dict[object, int] = {}
        """Their rates."""
        self._parts: list[_Part] = []
        self._clear()

    def _clear(self) -> None:
        self._far = asyncio.Semaphore(max(1, self._asker.waits_max // 2))
        """Held while another node is asked: one that does not answer must not take all connections."""
        self._owners: list[_Part] = []
        """By number, who said last where an agent is: one that has moved may be known to two nodes."""
        self.names: list[tuple[str, int]] = []
        self._numbers: dict[str, int] = {}
        self._xs, self._ys = array("d"), array("d")
        self._headings, self._colours = bytearray(), bytearray()
        self._changed: dict[int, int] = {}
        """By number, when it changed last, the oldest first; agents that are nowhere are in `_gone`."""
        self._gone: dict[int, int] = {}
        self._drawn: dict[int, tuple[int, msgspec.Raw]] = {}
        """What agents draw, with a stamp, by number, the oldest change first."""
        self.stamp = 0
        self.palette: dict[str, int] = {}
        self._time_ms = 0.0
        self._grown = asyncio.Event()
        self._frame: tuple[int, int, bytes] = (-1, -1, b"")
        self._full = ""

    @property
    def has_layers(self) -> bool:
        """Whether there is anything to show."""
        return bool(self._layer_numbers)

    def layer_of(self, address: str) -> int:
        """The number of the layer that an agent is in."""
        return self._layer_numbers.get(address.partition("/")[0], 0)

    def join(self, client: object, rate_hz: int) -> None:
        """One more looks; the first one starts the readers."""
        self._clients[client] = rate_hz
        if not self._parts:
            self._clear()
            for shard in self.shards:
                self._add(_Part(shard))

    async def leave(self, client: object) -> None:
        """One less looks; with the last one the readers end."""
        self._clients.pop(client, None)
        if not self._clients:
            await self.close()

    async def close(self) -> None:
        """Asks nobody any more."""
        parts, self._parts = self._parts, []
        await end_tasks(*(part.task for part in parts))

    def _add(self, part: _Part) -> None:
        self._parts.append(part)
        part.task = asyncio.ensure_future(self._follow(part))

    # ------------------------------------------------------------------ what clients are sent

    async def wait(self, seen: int, within_s: float) -> None:
        """Until something is new behind this stamp, or the time is over."""
        if self.stamp > seen:
            return
        grown = self._grown
        try:
            async with asyncio.timeout(within_s):
                await grown.wait()
        except TimeoutError:
            pass

    def frame(self, seen: int) -> bytes:
        """The agents that have changed behind this stamp; empty if none has. Clients that are level share it."""
        if self._frame[:2] != (seen, self.stamp):
            self._frame = (seen, self.stamp, self._made(_newer(self._changed, seen)))
        return self._frame[2]

    def gone(self, seen: int) -> list[int]:
        """Agents that have left the map behind this stamp."""
        return _newer(self._gone, seen)

    def drawn(self, seen: int) -> list[tuple[int, msgspec.Raw]]:
        """What agents draw that drew something else up to this stamp."""
        found: list[tuple[int, msgspec.Raw]] = []
        for number, (stamp, features) in reversed(self._drawn.items()):
            if stamp <= seen:
                break
            if seen or features != NOTHING:
                found.append((number, features))
        return found

    def missing(self) -> tuple[list[str], int]:
        """The parts that do not answer, and for how many ms the oldest of them has not."""
        silent = [(part.name, part.silent_s) for part in self._parts if part.silent_s is not None]
        now_s = asyncio.get_running_loop().time()
        return [name for name, _ in silent], max((round((now_s - since_s) * 1000) for _, since_s in silent), default=0)

    def troubles(self) -> list[str]:
        """What is left out, in sentences."""
        found = [trouble for part in self._parts for trouble in part.troubles]
        return [*found, self._full] if self._full else found

    def _made(self, numbers: list[int]) -> bytes:
        if not numbers:
            return b""
        xs, ys = self._xs, self._ys
        # Offsets from a point nearby: a float of 32 bits is exact to a centimetre over a hundred kilometres.
        origin_x, origin_y = xs[numbers[0]], ys[numbers[0]]
        parts = (
            HEAD.pack(MAGIC, len(numbers), self._time_ms, origin_x, origin_y),
            array("I", numbers).tobytes(),
            array("f", [xs[number] - origin_x for number in numbers]).tobytes(),
            array("f", [ys[number] - origin_y for number in numbers]).tobytes(),
            bytes([self._headings[number] for number in numbers]),
            bytes([self._colours[number] for number in numbers]),
        )
        return b"".join(parts)

    # ------------------------------------------------------------------ the readers

    async def _follow(self, part: _Part) -> None:
        again_s = AGAIN_S
        now_s = asyncio.get_running_loop().time
        while True:
            asked_s = now_s()
            try:
                reply = await self._ask(part)
            except StigmergyError:
                part.silent_s = part.silent_s or asked_s
                self._wake()
                await asyncio.sleep(again_s)
                again_s = min(AGAIN_S_MAX, 2 * again_s)
                continue
            again_s, part.silent_s = AGAIN_S, None
            self._take(part, reply)
            if part.shard is None and not part.node:
                await self._find_others(reply.missing)
            if not reply.more:
                pause_s = 1 / max(self._clients.values(), default=1)
                if part.node:
                    pause_s = max(pause_s, FAR_S, len(self._parts) / FAR_HZ_MAX)
                await asyncio.sleep(max(0.0, asked_s + pause_s - now_s()))

    async def _ask(self, part: _Part) -> PositionsReply:
        if part.node:
            async with self._far:
                return await self._asker.ask(PositionsRequest(after=part.after, node=part.node))
        within_s = WAIT_S if part.after else 0.0
        return await self._asker.ask(PositionsRequest(after=part.after, shard=part.shard, within_s=within_s))

    async def _find_others(self, missing: Sequence[MissingPart]) -> None:
        """Follows the nodes that this one names; who is no more named is no more followed."""
        named = dict.fromkeys(nodes_of(missing))
        for part in [one for one in self._parts if one.node and one.node not in named]:
            self._parts.remove(part)
            await end_tasks(part.task)
            self._leave_out(part, part.numbers)
            for number in part.numbers:
                self._draw(part, number, NOTHING)
        followed = {part.node for part in self._parts}
        for node in named:
            if node not in followed:
                self._add(_Part(None, node))

    def _take(self, part: _Part, reply: PositionsReply) -> None:
        if reply.is_new:
            part.stale = dict.fromkeys(part.numbers)
            part.numbers = []
            for number in part.stale:
                self._draw(part, number, NOTHING)  # It tells what is drawn anew, and not what is drawn no more.
        for address in reply.names:
            number = self._number(part, address)
            part.numbers.append(number)
            part.stale.pop(number, None)
        part.after = reply.after
        part.troubles = reply.troubles
        part.colours = self._translation(reply.palette)
        self._time_ms = max(self._time_ms, reply.time_ns / 1e6)
        numbers, xs, ys = array("I", reply.numbers), array("d", reply.xs), array("d", reply.ys)
        colours = reply.colours.translate(part.colours)
        for place, local in enumerate(numbers):
            number = part.numbers[local]
            if number < 0:
                continue
            self._xs[number], self._ys[number] = xs[place], ys[place]
            self._headings[number], self._colours[number] = reply.headings[place], colours[place]
            self._owners[number] = part
            self._touch(number, self._changed, self._gone)
        self._leave_out(part, [part.numbers[local] for local in reply.gone])
        for local, features in reply.drawn:
            if (number := part.numbers[local]) >= 0:
                self._owners[number] = part
                self._draw(part, number, features.copy())
        if not reply.more:
            self._leave_out(part, part.stale)
            part.stale = {}
        self._wake()

    def _leave_out(self, part: _Part, numbers: Iterable[int]) -> None:
        """These are nowhere any more, unless another part has said since where they are."""
        for number in numbers:
            if self._owners[number] is part:
                self._touch(number, self._gone, self._changed)

    def _draw(self, part: _Part, number: int, features: msgspec.Raw) -> None:
        """This is what an agent draws, unless another part has said since what it does."""
        before = self._drawn[number][1] if number in self._drawn else NOTHING
        if number >= 0 and self._owners[number] is part and features != before:
            self.stamp += 1
            self._drawn.pop(number, None)
            self._drawn[number] = (self.stamp, features)

    def _number(self, part: _Part, address: str) -> int:
        number = self._numbers.get(address)
        if number is None:
            if len(self.names) >= AGENTS_MAX:
                self._full = f"the map shows {AGENTS_MAX:,} agents and leaves out the others, such as {address}"
                return -1
            number = self._numbers[address] = len(self.names)
            self._owners.append(part)
            self.names.append((address, self.layer_of(address)))
            self._xs.append(0.0)
            self._ys.append(0.0)
            self._headings.append(0)
            self._colours.append(0)
        return number

    def _touch(self, number: int, now: dict[int, int], before: dict[int, int]) -> None:
        if number >= 0:
            self.stamp += 1
            before.pop(number, None)
            now.pop(number, None)
            now[number] = self.stamp

    def _translation(self, palette: Sequence[str]) -> bytes:
        """From the part's numbers of colours to ours."""
        ours = [self.palette.setdefault(name, min(len(self.palette), 255)) for name in palette]
        return bytes([*ours, *range(len(ours), 256)])

    def _wake(self) -> None:
        grown, self._grown = self._grown, asyncio.Event()
        grown.set()


def nodes_of(missing: Sequence[MissingPart]) -> list[str]:
    """The other nodes on the bus that an answer names."""
    return [one.node for one in missing if isinstance(one.node, str)]


def _newer(stamps: dict[int, int], seen: int) -> list[int]:
    found: list[int] = []
    for number, stamp in reversed(stamps.items()):
        if stamp <= seen:
            break
        found.append(number)
    return found


class MapClient:
    """One client: what it knows already."""

    def __init__(self, found: FleetMap) -> None:
        self._map = found
        self._stamp = 0
        self._names = 0
        self._colours: list[str] = []
        self._missing: list[str] = []
        self._troubles: list[str] = []

    @property
    def seen(self) -> int:
        """Up to where it has been told everything."""
        return self._stamp

    def next(self) -> tuple[list[ToldText], bytes]:
        """What it does not know yet: texts, which come first, and a frame; all of it may be empty."""
        texts: list[ToldText] = []
        while self._names < len(self._map.names):
            names = self._map.names[self._names : self._names + NAMES_AT_ONCE]
            texts.append(ToldNames(names, self._names))
            self._names += len(names)
        colours = list(self._map.palette)
        if colours != self._colours:
            self._colours = colours
            texts.append(ToldColours(colours))
        missing, age_ms = self._map.missing()
        if missing or self._missing:
            self._missing = missing
            texts.append(ToldMissing(missing, age_ms))
        troubles = self._map.troubles()
        if troubles != self._troubles:
            self._troubles = troubles
            texts.append(ToldTroubles(troubles))
        seen, self._stamp = self._stamp, self._map.stamp
        if drawn := self._map.drawn(seen):
            texts.append(ToldDrawn(drawn))
        gone = self._map.gone(seen) if seen else []
        if gone:
            texts.append(ToldGone(gone))
        return texts, self._map.frame(seen)


class MapAnswer(Struct, omit_defaults=True):
    """The whole map in one answer: lists of equal length, one entry for each agent."""

    time: str | None
    """Of the newest commit that it shows; null if there is none."""
    names: list[tuple[str, int]]
    """Addresses with the numbers of their layers."""
    x: list[float]
    y: list[float]
    heading: list[int]
    colour: list[str]
    """Their names; empty for none."""
    drawn: dict[str, msgspec.Raw] = {}
    """The GeoJSON features that agents draw, by address."""
    missing: list[MissingPart] = []
    troubles: list[str] = []


class MapRoutes:
    """The map of a fleet. `past` is held by whoever looks back: a node does that for one at a time."""

    def __init__(self, found: FleetMap, asker: Asker, gate: AccessGate, past: asyncio.Lock) -> None:
        self._map = found
        self._asker = asker
        self._past = past
        self._gate = gate
        self._count = 0

    def routes(self) -> list[HttpRoute]:
        """Where it is."""
        return [
            HttpRoute(
                *("GET", "/v1/map", self._whole, "read", "Where the agents are, now or at a time"),
                is_described=self._map.has_layers,
            ),
            HttpRoute("WEBSOCKET", "/v1/map", self._live, "read", "Where the agents are, live"),
        ]

    async def _whole(self, call: HttpCall) -> HttpAnswer:
        self._check_layers()
        at = one_of(call.query(("at",)), "at")
        if at is None:
            return json_answer(await self._joined(None, Moment()))
        moment = read_at(at)
        async with self._past:
            return json_answer(await self._joined(at, moment))

    def _check_layers(self) -> None:
        if not self._map.has_layers:
            text = "this fleet shows nothing on a map; declare it: fleet.map(Drone, at=lambda d: (d.lat, d.lon))"
            raise DeniedRequest(404, text)

    async def _joined(self, at: str | None, moment: Moment) -> MapAnswer:
        """What all parts say. Raises what one of them refuses with, and NotRunning where none answers."""
        parts = [await self._part(at, shard) for shard in self._map.shards]
        first = parts[0]
        if self._map.shards[0] is None and not isinstance(first, MissingPart):
            nodes = nodes_of(first[0].missing)
            if nodes and moment.position is not None:
                raise ConfigError("a position is one of a log, and each node of this fleet has its own; give a time")
            parts += await asyncio.gather(*(self._part(at, None, node) for node in nodes))
        found = MapAnswer(None, [], [], [], [], [])
        found.missing = [part for part in parts if isinstance(part, MissingPart)]
        if len(found.missing) == len(parts):
            raise NotRunning(found.missing[-1].why)
        time_ns = 0
        known: set[str] = set()
        """An agent that has moved may be known to two nodes."""
        for replies in parts:
            if isinstance(replies, MissingPart):
                continue
            names = [name for reply in replies for name in reply.names]
            for reply in replies:
                time_ns = max(time_ns, reply.time_ns)
                xs, ys = array("d", reply.xs), array("d", reply.ys)
                colours = [*reply.palette, *[""] * (256 - len(reply.palette))]
                for place, number in enumerate(array("I", reply.numbers)):
                    name = names[number]
                    if name in known:
                        continue
                    found.names.append((name, self._map.layer_of(name)))
                    found.x.append(xs[place])
                    found.y.append(ys[place])
                    found.heading.append(reply.headings[place])
                    found.colour.append(colours[reply.colours[place]])
                for number, features in reply.drawn:
                    if names[number] not in known:
                        found.drawn[names[number]] = features
            known.update(names)
            found.troubles += replies[-1].troubles
        found.time = readable_time(time_ns) if time_ns else None
        return found

    async def _part(self, at: str | None, shard: int | None, node: str = "") -> list[PositionsReply] | MissingPart:
        """The answers of a shard or a node. Another node on the bus is missing also if it refuses."""
        try:
            replies = [await self._asker.ask(PositionsRequest(at=at, shard=shard, node=node))]
            while replies[-1].more:
                replies.append(await self._asker.ask(PositionsRequest(after=replies[-1].after, shard=shard, node=node)))
            return replies
        except StigmergyError as error:
            if not node and not isinstance(error, NotRunning):
                raise
            return MissingPart(node=node, why=str(error)) if node else MissingPart(shard=shard or 0, why=str(error))

    async def _live(self, call: HttpCall) -> None:
        self._check_layers()
        rate_hz = number_of(call.query(("rate",)), "rate", RATE_HZ)
        if not 1 <= rate_hz <= RATE_HZ_MAX:
            raise DeniedRequest(400, f"rate={rate_hz}: give 1 to {RATE_HZ_MAX} frames a second")
        if self._count >= CLIENTS_MAX:
            raise DeniedRequest(429, f"{CLIENTS_MAX} maps are open already; try again later", retry_after_s=5)
        self._count += 1
        client = MapClient(self._map)
        self._map.join(client, rate_hz)
        try:
            await call.receive()
            await call.send({"type": "websocket.accept", "subprotocol": call.subprotocol})
            await self._pump(call, client, 1 / rate_hz)
        finally:
            self._count -= 1
            await self._map.leave(client)

    async def _pump(self, call: HttpCall, client: MapClient, pause_s: float) -> None:
        """Sends until the client leaves or must be left."""
        leaving = asyncio.ensure_future(wait_gone(call.receive, "websocket.disconnect"))
        now_s = asyncio.get_running_loop().time
        looked_s = now_s()
        try:
            while not leaving.done():
                began_s = now_s()
                texts, frame = client.next()
                async with asyncio.timeout(SEND_S_MAX):
                    for text in texts:
                        await call.send({"type": "websocket.send", "text": msgspec.json.encode(text).decode()})
                    if frame:
                        await call.send({"type": "websocket.send", "bytes": frame})
                if now_s() - looked_s >= LOOK_S:
                    looked_s = now_s()
                    if not self._gate.is_still_valid(call.caller):
                        reason = "the token does not count any more"
                        await call.send({"type": "websocket.close", "code": CLOSE_NOT_ALLOWED, "reason": reason})
                        return
                await asyncio.sleep(max(0.0, began_s + pause_s - now_s()))
                await self._map.wait(client.seen, LOOK_S)
            return
        except TimeoutError:
            call.abort()
        finally:
            await end_tasks(leaving)
