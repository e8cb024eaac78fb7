"""Where the agents of a node are and what they draw, for the map: those that have changed since a client asked last.

While somebody asks, each commit that becomes durable marks its agents as changed; the functions that the fleet declared
(`Fleet.map`) run when an answer is made, once for each agent that has changed, however often it did. When nobody has
asked for a while everything is forgotten, and a node that nobody looks at does nothing for the map.

A client gives what the last answer had as `after`. An agent whose function raises is left out, with a trouble that
names it, until its next change. `PastMap` shows the same of the past, from the log.
"""

from __future__ import annotations

import asyncio
import struct
from array import array
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any, TypeVar

from msgspec import Raw, structs

from stigmergy.agents.supervision import SHARD_ADDRESS
from stigmergy.audit.history import History, Moment, read_at
from stigmergy.audit.listing import readable_time
from stigmergy.base.errors import ConfigError, NotRunning, Overloaded
from stigmergy.control.agent_listing import FoldedAgents, list_agents
from stigmergy.control.protocol import AgentsRequest, PositionsRequest
from stigmergy.control.replies import AgentsReply, PositionsReply
from stigmergy.journal.port import Journal, homes_of
from stigmergy.node.column_intake import durable_row
from stigmergy.node.declaration import Declaration
from stigmergy.node.host import Host
from stigmergy.node.map_layers import NOTHING_DRAWN, MapLayer, MapPoint, layer_of
from stigmergy.node.settings import Settings
from stigmergy.shard.commit import Commit
from stigmergy.shard.homes import Homes
from stigmergy.shard.state import ShardState

R = TypeVar("R")
AGENTS_MAX = 200_000
"""So many agents of a node are on a map; further ones are left out, and a trouble says so."""
ANSWER_COUNT_MAX = 20_000
"""Agents in one answer; the rest follows when the client asks again."""
DRAWN_BYTES_MAX = 4 * 1024 * 1024
"""Of GeoJSON in one answer; the rest follows when the client asks again, and is left out of the past."""
GIVE_WAY_AGENTS = 200
WITHIN_S_MAX = 30.0
WAITING_MAX = 32
"""Requests that wait for a change at once; one more is refused."""
FORGOTTEN_S = 15.0
PAST_FORGOTTEN_S = 60.0
"""When nobody has asked for so long, the map is forgotten; that of the past, which has a copy of all states, too."""
COLOURS_MAX = 250
NO_COLOUR = 255
"""Of an agent whose kind has no colours, or when there are too many of them."""
TROUBLES_MAX = 20
LATE = (
    "the log of shard {} begins at {}, later than this moment; agents that were there before are in an older journal, "
    "and not {}"
)
DRAWN_TOO_MUCH = f"the agents draw more than {DRAWN_BYTES_MAX:,} bytes at this moment; left out is what {{}} draws"
TOO_MANY = f"the map shows {AGENTS_MAX:,} agents of this node and leaves out the others, such as {{}}"


class PositionService:
    """Answers for one node."""

    def __init__(self, host: Host) -> None:
        self._host = host
        self._changes: ChangedAgents | None = None
        self._expiry: asyncio.TimerHandle | None = None
        self._past: PastMap | None = None
        self._past_expiry: asyncio.TimerHandle | None = None
        self._waiting = 0

    async def read(self, request: PositionsRequest) -> PositionsReply:
        """The answer. Raises ConfigError, Overloaded and NotRunning."""
        if not self._host.declaration.map_layers:
            raise ConfigError(
                f"fleet {self._host.declaration.name!r} shows nothing on a map; declare where its agents are: "
                "fleet.map(Drone, at=lambda d: (d.lat, d.lon))"
            )
        if not 0 <= request.within_s <= WITHIN_S_MAX:
            raise ConfigError(f"within_s {request.within_s}: give 0 to {WITHIN_S_MAX:g}")
        if request.shard is not None and list(self._host.feed.positions()) != [request.shard]:
            raise ConfigError(f"shard {request.shard}: a node shows all its shards together; leave it out")
        if request.at is not None:
            return await self._look_back(read_at(request.at))
        if self._waiting >= WAITING_MAX:
            raise Overloaded(f"{WAITING_MAX} clients wait for the map already; try again when one has left")
        self._waiting += 1
        try:
            changes = self._begin()
            return await changes.read(request.after, request.within_s)
        finally:
            self._waiting -= 1
            self._expire_later()

    def troubles(self) -> list[str]:
        """What does not work at present, in sentences."""
        return [] if self._changes is None else list(self._changes.troubles.values())

    async def _look_back(self, moment: Moment) -> PositionsReply:
        """All agents at a moment. Who asks for a later one next, as a player does, goes on from there."""
        past = self._take_past()
        return self._kept(past, await past.read(self._shards(), moment))

    async def list_agents(self, request: AgentsRequest, moment: Moment) -> AgentsReply:
        """A page of all agents at a moment."""
        past = self._take_past()
        return self._kept(past, await past.list_agents(self._shards(), moment, request))

    def _shards(self) -> list[int]:
        return [shard.state.shard for shard in self._host.shards]

    def _take_past(self) -> PastMap:
        """What was folded last, until it is given back: a look that fails leaves it half done."""
        past, self._past = self._past or PastMap(self._host.journal, self._host.declaration, self._host.settings), None
        return past

    def _kept(self, past: PastMap, reply: R) -> R:
        self._past = past
        if self._past_expiry is not None:
            self._past_expiry.cancel()
        self._past_expiry = asyncio.get_running_loop().call_later(PAST_FORGOTTEN_S, self._forget_past)
        return reply

    def _forget_past(self) -> None:
        self._past = None

    def _begin(self) -> ChangedAgents:
        if self._changes is None:
            self._changes = ChangedAgents(self._host)
        return self._changes

    def _expire_later(self) -> None:
        if self._expiry is not None:
            self._expiry.cancel()
        self._expiry = asyncio.get_running_loop().call_later(FORGOTTEN_S, self._forget)

    def _forget(self) -> None:
        if self._changes is not None and not self._waiting:
            self._changes.close()
            self._changes = None


class PastMap:
    """All agents of a journal at a moment, and where they were."""

    def __init__(self, journal: Journal, fleet: Declaration, settings: Settings, homes: Homes | None = None) -> None:
        self._history = History(journal, fleet.plans, settings.limits, homes=homes or fleet.homes)
        self._fleet = fleet
        self._homes = homes_of(journal.identity, homes or fleet.homes)
        self._layers = fleet.map_layers
        self._states: dict[int, ShardState] = {}
        """As they were folded last."""

    async def read(self, shards: Sequence[int], moment: Moment) -> PositionsReply:
        """All agents of these shards. Raises ConfigError for a moment that the log does not have."""
        _check_moment(shards, moment)
        names: list[str] = []
        points: list[tuple[int, MapPoint]] = []
        troubles: dict[str, str] = {}
        drawn: list[tuple[int, Raw]] = []
        drawn_bytes = 0
        time_ns = 0
        late = {shard: self._history.late_begin_ns(shard, moment) for shard in shards}
        begins = {shard: begin_ns for shard, begin_ns in late.items() if begin_ns is not None}
        if begins:
            tell(
                troubles,
                "late",
                LATE.format(", ".join(map(str, begins)), readable_time(min(begins.values())), "on the map"),
            )
        for shard in shards:
            state = await self._fold(shard, moment)
            time_ns = max(time_ns, state.time_ns)
            for layer, address, agent in self._agents_of(state):
                if len(names) % GIVE_WAY_AGENTS == 0:
                    await asyncio.sleep(0)
                if len(names) >= AGENTS_MAX:
                    tell(troubles, "/", TOO_MANY.format(address))
                    break
                point = point_of(layer, address, agent, troubles)
                drawing = drawing_of(layer, address, agent, troubles)
                if drawing != NOTHING_DRAWN:
                    drawn_bytes += len(drawing)
                    if drawn_bytes <= DRAWN_BYTES_MAX:
                        drawn.append((len(names), Raw(drawing)))
                    else:
                        tell(troubles, "drawn", DRAWN_TOO_MUCH.format(address))
                if point is not None:
                    points.append((len(names), point))
                if point is not None or drawing != NOTHING_DRAWN:
                    names.append(address)
        return structs.replace(packed(points, {}, troubles), time_ns=time_ns, names=names, drawn=drawn, is_new=True)

    async def list_agents(self, shards: Sequence[int], moment: Moment, request: AgentsRequest) -> AgentsReply:
        """A page of the agents of these shards. Raises ConfigError for a moment that the log does not have."""
        _check_moment(shards, moment)
        late = [begin for shard in shards if (begin := self._history.late_begin_ns(shard, moment)) is not None]
        # One shard that begins later than another had no agents yet: there is a list.
        if len(late) == self._fleet.shards:
            raise ConfigError(LATE.format(", ".join(map(str, shards)), readable_time(min(late)), "listed"))
        states = {shard: await self._fold(shard, moment) for shard in shards}
        return await list_agents(FoldedAgents(self._fleet.plans, states, self._homes.of), request)

    async def _fold(self, shard: int, moment: Moment) -> ShardState:
        for state in self._history.fold_slowly(shard, moment, self._states.pop(shard, None)):
            if state is not None:
                self._states[shard] = state
                return state
            await asyncio.sleep(0)
        raise NotRunning("the log ended while it was read; ask again")

    def _agents_of(self, state: ShardState) -> Iterator[tuple[MapLayer, str, Any]]:
        for kind, layer in self._layers.items():
            if (table := state.tables.get(kind)) is not None:
                for row in range(len(table)):
                    yield layer, f"{kind}/{table.name(row)}", table.agent(row, ahead=True)
        for address, agent in state.agents.items():
            if (found := layer_of(self._layers, address)) is not None:
                yield found, address, agent


class ChangedAgents:
    """The agents of the map, numbered, in the order of their last change."""

    def __init__(self, host: Host) -> None:
        self._host = host
        self._layers = host.declaration.map_layers
        self._session = f"{host.clock.wall_ns():x}"
        """Numbers are void in another session."""
        self._addresses: list[str] = []
        self._numbers: dict[str, int] = {}
        self._shown_by: list[MapLayer] = []
        self._images: list[Callable[[], Any]] = []
        """By number, what returns the agent as it is on disk."""
        self._rows: dict[tuple[int, str], list[int]] = {}
        """The numbers of compiled agents, by shard and kind, in the order of their rows."""
        self._changed: dict[int, int] = {}
        """By number, when it changed last; the oldest change first."""
        self._stamp = 0
        self._shown = bytearray()
        """By number, whether some answer has said where it is."""
        self._drawings: dict[int, tuple[int, bytes]] = {}
        """What agents draw, with a stamp, by number; the oldest change first."""
        self._drawn_stamp = 0
        self._palette: dict[str, int] = {}
        self._grown = asyncio.Event()
        self._time_ns = 0
        self.troubles: dict[str, str] = {}
        host.feed.listeners.append(self._durable)
        self._mark_all()

    def close(self) -> None:
        """Follows the log no more."""
        self._host.feed.listeners.remove(self._durable)

    async def read(self, after: str, within_s: float) -> PositionsReply:
        """What changed behind `after`, which an earlier answer had; all if it is of another session."""
        session, *rest = after.split(":")
        is_new = session != self._session or len(rest) != 3 or not all(one.isdecimal() for one in rest)
        seen, first, drawn_seen = (0, 0, 0) if is_new else map(int, rest)
        if not is_new and seen >= self._stamp and drawn_seen >= self._drawn_stamp and within_s:
            await self._wait(within_s)
        chosen = self._changed_behind(seen)
        more = len(chosen) > ANSWER_COUNT_MAX
        del chosen[ANSWER_COUNT_MAX:]
        last = self._changed[chosen[-1]] if chosen else seen
        time_ns = self._time_ns
        points, gone = await self._points(chosen)
        drawn, drawn_seen = self._drawn_behind(drawn_seen)
        # Who began to draw while we gave way to others may be new: the names go on to here.
        names = self._addresses[first:]
        return structs.replace(
            packed(points, self._palette, self.troubles),
            after=f"{self._session}:{last}:{first + len(names)}:{drawn_seen}",
            time_ns=time_ns,
            first=first,
            names=names,
            gone=gone,
            drawn=drawn,
            is_new=is_new,
            more=more or drawn_seen < self._drawn_stamp,
        )

    async def _wait(self, within_s: float) -> None:
        self._grown.clear()
        try:
            async with asyncio.timeout(within_s):
                await self._grown.wait()
        except TimeoutError:
            pass
        if self._host.feed.ended:
            raise NotRunning(self._host.feed.ended)

    def _changed_behind(self, seen: int) -> list[int]:
        """The agents that have changed since, the oldest change first."""
        found: list[int] = []
        for number, stamp in reversed(self._changed.items()):
            if stamp <= seen:
                break
            found.append(number)
        found.reverse()
        return found

    async def _points(self, chosen: list[int]) -> tuple[list[tuple[int, MapPoint]], list[int]]:
        """Where these agents are, and which of them are nowhere any more."""
        points: list[tuple[int, MapPoint]] = []
        gone: list[int] = []
        for count, number in enumerate(chosen, start=1):
            if count % GIVE_WAY_AGENTS == 0:
                await asyncio.sleep(0)
            agent, layer, address = self._images[number](), self._shown_by[number], self._addresses[number]
            point, drawing = None, NOTHING_DRAWN
            if agent is not None:
                point = point_of(layer, address, agent, self.troubles)
                drawing = drawing_of(layer, address, agent, self.troubles)
            if drawing != self._drawings.get(number, (0, NOTHING_DRAWN))[1]:
                self._drawn_stamp += 1
                self._drawings.pop(number, None)
                self._drawings[number] = (self._drawn_stamp, drawing)
            if point is not None:
                points.append((number, point))
                self._shown[number] = True
            elif self._shown[number]:
                gone.append(number)
        return points, gone

    def _drawn_behind(self, seen: int) -> tuple[list[tuple[int, Raw]], int]:
        """What was drawn anew since, as far as one answer has room, and up to where that is."""
        found: list[tuple[int, int, bytes]] = []
        for number, (stamp, drawing) in reversed(self._drawings.items()):
            if stamp <= seen:
                break
            found.append((stamp, number, drawing))
        told: list[tuple[int, Raw]] = []
        is_first, size = not seen, 0
        for stamp, number, drawing in reversed(found):
            size += len(drawing)
            if told and size > DRAWN_BYTES_MAX:
                break
            if drawing != NOTHING_DRAWN or not is_first:
                told.append((number, Raw(drawing)))
            seen = stamp
        return told, seen

    # ------------------------------------------------------------------ what has changed

    def _mark_all(self) -> None:
        for shard in self._host.shards:
            self._time_ns = max(self._time_ns, shard.state.time_ns)
            self._mark_enrolled(shard.state.shard)
            for address in shard.state.agents:
                self._mark(address)

    def _durable(self, commit: Commit) -> None:
        """A commit is on disk: its agents have changed."""
        before = self._stamp
        if commit.runs:
            self._time_ns = max(self._time_ns, commit.runs[-1].time_ns)
        for address, _ in commit.events:
            if address == SHARD_ADDRESS:
                self._mark_enrolled(commit.shard)
            else:
                self._mark(address)
        for run in commit.columns:
            self._time_ns = max(self._time_ns, run.time_ns)
            if run.kind in self._layers and run.count:
                heads = struct.iter_unpack(f"<I{len(run.records) // run.count - 4}x", run.records)
                self._mark_rows(commit.shard, run.kind, (row for (row,) in heads))
        if self._stamp > before:
            self._grown.set()

    def _mark_enrolled(self, shard: int) -> None:
        """Compiled agents that are there and had no event yet."""
        state = self._host.shards[shard].state
        for kind in self._layers:
            if kind in state.tables:
                known = len(self._rows.get((shard, kind), ()))
                self._mark_rows(shard, kind, iter(range(known, state.enrolled.get(kind, 0))))

    def _mark(self, address: str) -> None:
        number = self._numbers.get(address)
        if number is None:
            layer = layer_of(self._layers, address)
            if layer is None:
                return
            number = self._number(address, layer, partial(self._host.durable_image, address))
        self._touch(number)

    def _mark_rows(self, shard: int, kind: str, rows: Iterator[int]) -> None:
        state, layer = self._host.shards[shard].state, self._layers[kind]
        numbers = self._rows.setdefault((shard, kind), [])
        for row in rows:
            while (new := len(numbers)) <= row:
                address = f"{kind}/{state.tables[kind].name(new)}"
                numbers.append(self._number(address, layer, partial(durable_row, state, kind, new)))
            self._touch(numbers[row])

    def _number(self, address: str, layer: MapLayer, image: Callable[[], Any]) -> int:
        """The number of an agent that is new on the map; -1 if there are too many, or if another node runs it now."""
        if (known := self._numbers.get(address)) is not None:
            return known
        if not self._host.assignment.runs(address):
            return -1
        if len(self._addresses) >= AGENTS_MAX:
            tell(self.troubles, "/", TOO_MANY.format(address))
            return -1
        number = self._numbers[address] = len(self._addresses)
        self._addresses.append(address)
        self._shown_by.append(layer)
        self._images.append(image)
        self._shown.append(False)
        return number

    def _touch(self, number: int) -> None:
        if number < 0:
            return
        self._stamp += 1
        self._changed.pop(number, None)
        self._changed[number] = self._stamp


def _check_moment(shards: Sequence[int], moment: Moment) -> None:
    if moment.position is not None and len(shards) > 1:
        raise ConfigError("a position is one of a shard, and this log has several; give a time")


def point_of(layer: MapLayer, address: str, agent: Any, troubles: dict[str, str]) -> MapPoint | None:
    """Where an agent is; None, and perhaps a trouble, if it is nowhere."""
    try:
        point = layer.point_of(agent)
    except Exception as error:
        said = f"{type(error).__name__}: {error}"[:200]
        tell(troubles, address, f"{address} is left out of the map: {said}; mend what Fleet.map has for {layer.kind}")
        return None
    if troubles:
        troubles.pop(address, None)
    return point


def drawing_of(layer: MapLayer, address: str, agent: Any, troubles: dict[str, str]) -> bytes:
    """What an agent draws; nothing, and a trouble, if its function fails."""
    if layer.draw is None:
        return NOTHING_DRAWN
    key = f"{address} draws"
    try:
        drawing = layer.drawing_of(agent)
    except Exception as error:
        said = f"{type(error).__name__}: {error}"[:200]
        tell(troubles, key, f"what {address} draws is left out: {said}; mend what Fleet.map has for {layer.kind}")
        return NOTHING_DRAWN
    if troubles:
        troubles.pop(key, None)
    return drawing


def packed(points: Sequence[tuple[int, MapPoint]], palette: dict[str, int], troubles: dict[str, str]) -> PositionsReply:
    """Points as arrays. A colour that the palette lacks is added to it."""
    return PositionsReply(
        "",
        0,
        array("I", [number for number, _ in points]).tobytes(),
        array("d", [point.x for _, point in points]).tobytes(),
        array("d", [point.y for _, point in points]).tobytes(),
        bytes([point.heading for _, point in points]),
        bytes([_place(point.colour, palette, troubles) for _, point in points]),
        palette=list(palette),
        troubles=list(troubles.values()),
    )


def _place(colour: str, palette: dict[str, int], troubles: dict[str, str]) -> int:
    if not colour:
        return NO_COLOUR
    place = palette.get(colour)
    if place is None:
        if len(palette) >= COLOURS_MAX:
            tell(troubles, "", f"more than {COLOURS_MAX} names of colours on the map, as {colour[:50]!r}; use fewer")
            return NO_COLOUR
        place = palette[colour] = len(palette)
    return place


def tell(troubles: dict[str, str], key: str, trouble: str) -> None:
    """Keeps a trouble, while there are not too many."""
    if key in troubles or len(troubles) < TROUBLES_MAX:
        troubles[key] = trouble
