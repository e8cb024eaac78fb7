"""`GET /v1/fleet`: the figures of a whole fleet, once a second, as Server-Sent Events.

The fleet is asked while somebody listens, once for all of them. What is only known by watching is remembered here:
since when a trouble is there, and where shards have moved. It begins anew with the first listener; since when something
is so that was so before that is not known.
"""

from __future__ import annotations

import asyncio
import re
from collections import deque
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec
from msgspec import UNSET, Struct, structs

from stigmergy.app.cluster_client import ClusterServer
from stigmergy.audit.listing import readable_time
from stigmergy.base.clock import Clock
from stigmergy.base.errors import ConfigError, StigmergyError
from stigmergy.base.tasks import end_tasks
from stigmergy.control import protocol
from stigmergy.control.replies import (
    LetterReply,
    MemberReply,
    ObjectReply,
    ProcessReply,
    ResourceReply,
    StatusReply,
)
from stigmergy.metrics.catalogue import DROPPED
from stigmergy.metrics.samples import Percentiles, Samples, lags_s, latencies
from stigmergy.serve.access import AccessGate, DeniedRequest
from stigmergy.serve.asker import Asker
from stigmergy.serve.http import HttpCall, HttpRoute
from stigmergy.serve.pump import RETRY_MS, pump, send_events

EVERY_S = 1.0
LISTENERS_MAX = 200
"""One more is refused."""
LISTED_MAX = 100
"""Of letters, objects, resources, members and incidents so many are told; `counts` has how many there are."""
MOVES_MAX = 50
SERVERS_S = 5.0
"""The servers of a cluster are asked so often: one that is down is waited for."""
LATENCY_S = 10
"""Latencies are of so many seconds: of one there may be too few."""
REFUSED = {"refused": "input", "claims_denied": "claim"}
FAILED = {"stigmergy_inputs_total": "input", "stigmergy_effects_total": "effect"}
_DIGITS = re.compile(r"\d[\d.,:TZ-]*")


class Incident(Struct, frozen=True):
    """Something that a person should look at."""

    severity: str
    """critical or warning"""
    text: str
    since: str | None
    """None if it was so before anybody looked."""


class ShardMove(Struct, frozen=True):
    """A shard has another owner."""

    time: str
    text: str


class FleetFigures(Struct, omit_defaults=True):
    """What is told each second. What a fleet does not have is left out."""

    time: str
    status: StatusReply
    rates: dict[str, float]
    """Events and commits in a second, since the figures before."""
    mailbox: int
    latencies: dict[str, Percentiles] = {}
    """Of the last seconds, such as `event_to_action`."""
    lag: dict[str, float] = {}
    """Seconds that shards, the uplink and shared state are behind; the worst of each."""
    shed: dict[str, int] = {}
    """What was not taken or was given up, by the reason that stigmergy_dropped_total has."""
    refused: dict[str, int] = {}
    """Inputs and claims that were answered with no."""
    failed: dict[str, int] = {}
    """Inputs whose handlers raised, and effects that were given up."""
    letters: list[LetterReply] = []
    members: list[MemberReply] = []
    objects: list[ObjectReply] = []
    """The one that is behind for longest first."""
    resources: list[ResourceReply] = []
    incidents: list[Incident] = []
    parts: list[ProcessReply] = []
    moves: list[ShardMove] = []
    missing: list[str] = []
    servers: list[ClusterServer] = []
    """Of a fleet on workers."""
    counts: dict[str, int] = {}
    """How many letters, objects, resources and members there are, also those that are not in their lists."""
    unread: dict[str, str] = {}
    """Which of these lists could not be read, and why."""


class FigureHub:
    """Asks the fleet while somebody listens."""

    def __init__(self, asker: Asker, clock: Clock) -> None:
        self._asker = asker
        self._clock = clock
        self._listeners = 0
        self._task: asyncio.Task[None] | None = None
        self._told = asyncio.Event()
        self._clear()

    def _clear(self) -> None:
        self.number = 0
        self.text = b""
        """The last figures, or the last trouble to get them, as an event."""
        self._before: tuple[float, StatusReply] | None = None
        self._measured: deque[Samples] = deque(maxlen=LATENCY_S)
        self._since: dict[str, str | None] | None = None
        """Of troubles and stopped agents; None before the first look."""
        self._owners: dict[int, str] = {}
        self._moves: deque[ShardMove] = deque(maxlen=MOVES_MAX)
        self._servers: tuple[float, list[ClusterServer]] = (0.0, [])
        """Until when they count."""
        self._unread: dict[str, str] = {}

    def join(self) -> None:
        """One more listens."""
        self._listeners += 1
        if self._task is None:
            self._clear()
            self._task = asyncio.ensure_future(self._follow())

    async def leave(self) -> None:
        """One less listens."""
        self._listeners -= 1
        if not self._listeners:
            await self.close()

    async def close(self) -> None:
        """Asks nobody any more."""
        task, self._task = self._task, None
        if task is not None:
            await end_tasks(task)

    async def wait(self, seen: int, within_s: float) -> None:
        """Until there are newer figures, or the time is over."""
        if self.number > seen:
            return
        told = self._told
        try:
            async with asyncio.timeout(within_s):
                await told.wait()
        except TimeoutError:
            pass

    async def _follow(self) -> None:
        now_s = asyncio.get_running_loop().time
        while True:
            began_s = now_s()
            try:
                figures = await self._ask(began_s)
                self.text = b"event: fleet\ndata: %b\n\n" % msgspec.json.encode(figures)
            except StigmergyError as error:
                said = msgspec.json.encode({"time": self._now(), "error": str(error)})
                self.text = b"event: missing\ndata: %b\n\n" % said
            self.number += 1
            told, self._told = self._told, asyncio.Event()
            told.set()
            await asyncio.sleep(max(EVERY_S / 10, began_s + EVERY_S - now_s()))

    def _now(self) -> str:
        return readable_time(self._clock.wall_ns())

    async def _ask(self, now_s: float) -> FleetFigures:
        status = await self._asker.ask(protocol.StatusRequest())
        self._unread = {}
        letters = await self._some("letters", protocol.LettersRequest()) if status.dead_letters else []
        objects = sorted(await self._some("objects", protocol.SharedRequest()), key=_by_lag)
        resources = await self._some("resources", protocol.ClaimsRequest())
        members = await self._some("members", protocol.MembersRequest())
        servers = await self._look_at_servers(now_s)
        self._note_moves(status.parts)
        found = FleetFigures(
            self._now(),
            status,
            self._rates(now_s, status),
            status.waiting,
            *self._times(status),
            _counted(status.counters, DROPPED),
            _counted(status.counters, REFUSED),
            _failed(status),
            letters[-LISTED_MAX:],
            members[:LISTED_MAX],
            [_shortened(one) for one in objects[:LISTED_MAX]],
            resources[:LISTED_MAX],
            parts=status.parts,
            moves=list(reversed(self._moves)),
            missing=[f"shard-{one.first_shard}" for one in status.parts if one.pid is None],
            servers=servers,
            unread=self._unread,
        )
        listed = {"letters": letters, "objects": objects, "resources": resources, "members": members}
        found.counts = {name: len(items) for name, items in listed.items() if items}
        alarms = {f"{agent} is stopped: {why}": "critical" for agent, why in status.stopped.items()}
        alarms |= dict.fromkeys(status.troubles, "warning")
        since = self._since = since_when([*alarms], self._since, found.time)
        found.incidents = [Incident(severity, text, since[text]) for text, severity in alarms.items()][:LISTED_MAX]
        return found

    async def _some(self, name: str, request: protocol.Request[Any]) -> list[Any]:
        """What there is of something that a fleet may not have."""
        try:
            return await self._asker.items(request)
        except ConfigError:
            return []  # It has nothing of the kind.
        except StigmergyError as error:
            self._unread[name] = str(error)
            return []

    async def _look_at_servers(self, now_s: float) -> list[ClusterServer]:
        if now_s >= self._servers[0]:
            try:
                self._servers = (now_s + SERVERS_S, await self._asker.servers())
            except StigmergyError as error:
                self._unread["servers"] = str(error)
                return []
        return self._servers[1]

    def _rates(self, now_s: float, status: StatusReply) -> dict[str, float]:
        before, self._before = self._before, (now_s, status)
        if before is None or now_s <= before[0]:
            return {}
        # A shard that does not answer for a moment is not a rate below zero.
        of = {name: getattr(status, name) - getattr(before[1], name) for name in ("events", "commits")}
        return {name: round(max(0, count) / (now_s - before[0]), 1) for name, count in of.items()}

    def _times(self, status: StatusReply) -> tuple[dict[str, Percentiles], dict[str, float]]:
        if status.metrics is UNSET:
            return {}, {}
        self._measured.append(status.metrics)
        before = self._measured[0] if len(self._measured) > 1 else None
        return latencies(status.metrics, before), lags_s(status.metrics)

    def _note_moves(self, parts: Sequence[ProcessReply]) -> None:
        for part in parts:
            if part.pid is None:
                continue
            owner = f"{part.host or ''} {part.pid}".strip()
            before = self._owners.get(part.first_shard)
            if before is not None and before != owner:
                text = f"shard {part.first_shard} moved from {before} to {owner}"
                self._moves.append(ShardMove(self._now(), text))
            self._owners[part.first_shard] = owner


class _Listener:
    """One client: the last figures that it has."""

    last_id = ""

    def __init__(self, hub: FigureHub) -> None:
        self._hub = hub
        self._seen = 0

    async def next(self, within_s: float) -> bytes:
        """Newer figures; empty if there are none within this time. Those between are skipped."""
        await self._hub.wait(self._seen, within_s)
        if self._hub.number == self._seen:
            return b""
        self._seen = self._hub.number
        return self._hub.text


class FigureRoutes:
    """The figures over Server-Sent Events."""

    def __init__(self, hub: FigureHub, gate: AccessGate) -> None:
        self._hub = hub
        self._gate = gate
        self._count = 0

    def routes(self) -> list[HttpRoute]:
        """Where they are."""
        return [HttpRoute("GET", "/v1/fleet", self._stream, "read", "The figures of the fleet, once a second")]

    async def _stream(self, call: HttpCall) -> None:
        call.query(())
        if self._count >= LISTENERS_MAX:
            raise DeniedRequest(429, f"{LISTENERS_MAX} listen already; try again later", retry_after_s=5)
        self._count += 1
        self._hub.join()
        send = send_events(call)

        async def idle() -> None:
            await send(b": nothing new\n\n")

        try:
            await send(f"retry: {RETRY_MS}\n\n".encode())
            await pump(call, _Listener(self._hub), self._gate, send, idle, "http.disconnect")
        finally:
            self._count -= 1
            await self._hub.leave()


def _by_lag(one: ObjectReply) -> tuple[bool, float, int, str]:
    """The one that needs somebody most comes first."""
    return not one.diverged, -(one.behind_s or 0.0), len(one.in_step) - len(one.peers), one.object


def _shortened(one: ObjectReply) -> ObjectReply:
    return structs.replace(one, agents=one.agents[:LISTED_MAX], replicas=one.replicas[:LISTED_MAX])


def since_when(texts: Sequence[str], before: Mapping[str, str | None] | None, now: str) -> dict[str, str | None]:
    """Since when each is there. A text that differs from one that is gone only in its reason or its counts is the same
    trouble."""
    if before is None:
        return dict.fromkeys(texts)
    gone = [text for text in before if text not in texts]
    found = {text: before.get(text, now) for text in texts}
    new = [text for text in texts if text not in before]
    for form in (_subject, _without_counts):
        for text in list(new):
            same = next((other for other in gone if form(other) == form(text)), None)
            if same is not None:
                found[text] = before[same]
                gone.remove(same)
                new.remove(text)
    return found


def _subject(text: str) -> str:
    return text.partition(": ")[0]


def _without_counts(text: str) -> str:
    return _DIGITS.sub("#", text)


def _failed(status: StatusReply) -> dict[str, int]:
    found: dict[str, int] = {}
    for one in () if status.metrics is UNSET else status.metrics.samples:
        if one.metric in FAILED and one.labels.get("outcome") == "failed" and one.value:
            found[FAILED[one.metric]] = found.get(FAILED[one.metric], 0) + int(one.value)
    return found


def _counted(counters: Mapping[str, int], names: Mapping[str, str]) -> dict[str, int]:
    return {told: counters[name] for name, told in names.items() if counters.get(name)}
