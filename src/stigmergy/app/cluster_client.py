"""A client of a fleet on several workers: `Workers` within an event loop, `ClusterClient` without one.

The owner of a shard is asked again while the shard moves, within a bound, and only where asking twice is harmless. A
shard that was handed over or taken over answers elsewhere a moment later. Commands have an id, so a repetition gets the
same answer; queries change nothing. An observation has no id: it is sent again only if nobody received it the first
time, or the receiver says that it took nothing.
"""

from __future__ import annotations

import asyncio
from base64 import b64decode
from collections.abc import AsyncIterator, Awaitable, Callable, Generator
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

from msgspec import Struct

from stigmergy.base.errors import (
    ConfigError,
    JournalConflict,
    JournalUnknown,
    LinkDown,
    Malformed,
    NotOwned,
    NotRunning,
    StigmergyError,
)
from stigmergy.bus.port import Bus
from stigmergy.cluster.records import FLEET, FleetShape, WorkerRecord, read_record
from stigmergy.control import protocol
from stigmergy.control.protocol import Reply, Request, note_missing, read_refusal, read_reply, write_request
from stigmergy.control.replies import MissingPart
from stigmergy.control.router import Answers, ControlRouter, close_answers
from stigmergy.nats.naming import VIEWS
from stigmergy.node.declaration import Declaration
from stigmergy.shard.homes import Homes

if TYPE_CHECKING:
    from stigmergy.nats.link import NatsLink

R = TypeVar("R")
ASK_S_MAX = 65.0
"""No line of an answer takes so long, but for what is broken."""
CLOSE_S_MAX = 5.0
BUCKET_S_MAX = 1.0
"""A bucket that has a leader answers sooner."""
NAMED_MAX = 3
"""So many workers are named in a sentence."""
MOVED_S_MAX = 15.0
"""A shard that moves answers again within this, also where a server that led its log was killed."""
LOOK_S_MAX = 1.0
"""Who looks at a fleet is told that a shard does not answer, rather than made to wait."""
NOBODY_S_MAX = 3.0
"""If nobody answers for any shard, probably no worker runs, and the caller is told sooner."""
PAUSE_S = 0.05
PAUSE_S_MAX = 0.5
"""Between two attempts; it doubles up to the larger."""
MOVED = (NotOwned, NotRunning, JournalConflict, JournalUnknown, LinkDown)
"""What a former owner says."""
UNTAKEN = (NotOwned, NotRunning)
"""Of these, what an owner says before it has taken an observation, and never after: it may be said again."""
RETRYABLE = (
    protocol.SendRequest,
    protocol.ObserveRequest,
    protocol.ObserveManyRequest,
    protocol.StateRequest,
    protocol.ResumeRequest,
    protocol.EnrollAgentsRequest,
    protocol.EnrolRequest,
)
"""Requests for which somebody waits until the shard has arrived."""


class ClusterServer(Struct, frozen=True, omit_defaults=True):
    """A server below a fleet on workers."""

    name: str
    is_up: bool
    leads: bool = False
    """Whether it places streams for all of them."""
    version: str = ""
    store_bytes: int | None = None
    store_bytes_max: int | None = None
    error: str = ""
    """What it says is wrong."""


class InDoubt(NotRunning):
    """Nobody answers any more, and somebody may have taken what was asked."""


class Workers:
    """Asks the owners of all shards of a fleet, over a link that is open. Repeats what may be repeated while shards
    move."""

    def __init__(self, link: NatsLink, homes: Homes, fleet: str) -> None:
        from stigmergy.nats.control import NatsControlClient

        self._link, self._fleet, self._shards = link, fleet, homes.shards
        self._room = NatsControlClient(link, fleet)
        branches = [RetryingClient(self._room.branch(shard), self._is_anybody_there) for shard in range(homes.shards)]
        projector = RetryingClient(self._room.branch(VIEWS), self._is_anybody_there)
        self.board = ControlRouter(fleet, link.address.shown, homes, branches, projector)

    async def ask(self, request: Request[R]) -> R:
        """The one answer to a request; raises what the owner refuses with, and NotRunning where nobody answers."""
        answers = await self.board.answer(request)
        try:
            reply = await _next(answers, request)
        finally:
            await close_answers(answers)
        if reply is None or reply.ok is None:
            raise NotRunning("the answer ended before it began; ask again")
        return reply.ok

    async def items(self, request: Request[R], missing: list[MissingPart] | None = None) -> list[R]:
        """All items of an answer that is a stream, of the shards that answer; the others are added to `missing`. Raises
        as `ask` does."""
        answers = await self.board.answer(request)
        found: list[R] = []
        try:
            while (reply := await _next(answers, request)) is not None:
                found += [] if reply.item is None else [reply.item]
                note_missing(reply, missing)
                if reply.end is not None:
                    break
        finally:
            await close_answers(answers)
        return found

    async def servers(self) -> list[ClusterServer]:
        """All servers, those that are down included. Raises LinkDown."""
        from stigmergy.nats.servers.inspection import look_at_servers
        from stigmergy.nats.servers.status import is_off

        seen = await look_at_servers(self._link)
        return [
            ClusterServer(
                *(one.name, one.is_up, one.leads, one.version, one.store_bytes, one.store_bytes_max),
                is_off([one.name]) if one.is_off else one.error,
            )
            for one in seen.servers
        ]

    async def check_bus(self) -> None:
        """Refuses to listen where agents are not heard: workers without a bus publish nothing. Where no worker is
        there, or an earlier version runs, nobody knows. Raises ConfigError, and LinkDown without an answer."""
        members = await self._members()
        if without := [f"{one.id} on {one.host}" for one in members if one.bus is False]:
            more = f" and {len(without) - NAMED_MAX} more" if len(without) > NAMED_MAX else ""
            raise ConfigError(
                f"what agents of {self._fleet!r} publish cannot be heard: there is no bus at worker "
                f"{', '.join(without[:NAMED_MAX])}{more}; start all its workers with --bus nats://…, or name it under "
                "[fleet] in stigmergy.toml"
            )

    async def close(self) -> None:
        """Asks nobody any more, and ends the connection."""
        await self._room.close()
        await self._link.close()

    async def leave(self) -> None:
        """Asks nobody any more; the link stays."""
        await self._room.close()

    async def _members(self) -> list[WorkerRecord]:
        """The workers that are there, as each describes itself. Raises LinkDown without an answer."""
        from stigmergy.nats.errors import JetStreamRefused
        from stigmergy.nats.naming import cluster_bucket

        bucket = cluster_bucket(self._fleet)
        members: list[WorkerRecord] = []
        for subject in await self._leases():
            try:
                said = await self._link.api(f"STREAM.MSG.GET.KV_{bucket}", {"last_by_subj": subject})
                members.append(read_record(WorkerRecord, subject, b64decode(said["message"].get("data", ""))))
            except (JetStreamRefused, Malformed):
                continue  # it has left, or is not ours
        return members

    async def _is_anybody_there(self) -> bool:
        for shard in range(self._shards):
            if await self._room.is_answered(shard):
                return True
        # Workers may be about to join again: when the server is killed that leads their bucket, all of them have lost
        # their leases until it has another leader.
        try:
            return bool(await self._leases(within_s=BUCKET_S_MAX))
        except LinkDown:
            return True

    async def _leases(self, **options: float) -> list[str]:
        """The subjects of the leases of all workers; none where the fleet has no bucket. Raises LinkDown."""
        from stigmergy.nats.errors import JetStreamRefused
        from stigmergy.nats.naming import cluster_bucket

        bucket = cluster_bucket(self._fleet)
        asked = {"subjects_filter": f"$KV.{bucket}.worker.*"}
        try:
            found = await self._link.api(f"STREAM.INFO.KV_{bucket}", asked, **options)
        except JetStreamRefused:
            return []
        return sorted(found["state"].get("subjects") or {})


async def find_workers(url: str, fleet: str | Declaration, name: str) -> tuple[Workers | None, Bus]:
    """Connects to NATS: the workers of a fleet, if it runs on some, and what is said on its bus. Raises ConfigError,
    also where the client library is missing, and NotRunning without a server."""
    try:
        from stigmergy.nats.address import parse_address
        from stigmergy.nats.bus.options import OPTIONS
        from stigmergy.nats.bus.plain import PlainNatsBus
        from stigmergy.nats.link import NatsLink
    except ModuleNotFoundError as error:
        raise ConfigError(f'{url!r} needs {error.name}: pip install "stigmergy[nats]"') from None
    called = fleet if isinstance(fleet, str) else fleet.name
    try:
        link = await NatsLink.open(parse_address(url, (*OPTIONS, "max_bytes")), name=f"stigmergy {called} {name}")
    except LinkDown as error:
        raise NotRunning(str(error)) from None
    try:
        homes = await _homes_of(link, fleet)
    except BaseException:
        await link.close()
        raise
    return None if homes is None else Workers(link, homes, called), PlainNatsBus(link, owns_link=homes is None)


async def _homes_of(link: NatsLink, fleet: str | Declaration) -> Homes | None:
    """Where the agents of a fleet on workers live, as its bucket says; None for a fleet that has no workers here."""
    from stigmergy.nats.errors import JetStreamRefused
    from stigmergy.nats.naming import cluster_bucket

    called = fleet if isinstance(fleet, str) else fleet.name
    bucket = cluster_bucket(called)
    try:
        found = await link.api(f"STREAM.MSG.GET.KV_{bucket}", {"last_by_subj": f"$KV.{bucket}.{FLEET}"})
    except JetStreamRefused:
        return None
    shape = read_record(FleetShape, FLEET, b64decode(found["message"]["data"]))
    if not isinstance(fleet, str):
        if (shape.shards, shape.shard_by) != (fleet.shards, fleet.homes.key_name):
            raise ConfigError(f"the fleet {called!r} runs with other shards than this program has; use its own code")
        return fleet.homes
    if shape.shard_by:
        raise ConfigError(
            f"agents of {called!r} are put into shards by its function {shape.shard_by}: give connect(fleet=…) the "
            "Fleet itself, not its name"
        )
    return Homes(shape.shards)


class ClusterClient:
    """Asks the owners of all shards of a fleet; used like the client of one node's socket."""

    def __init__(self, url: str, fleet: Declaration, *, timeout_s: float = ASK_S_MAX) -> None:
        """Connects. Raises ConfigError, also where the client library is missing, and NotRunning without a server."""
        try:
            from stigmergy.nats.address import parse_address
            from stigmergy.nats.threaded import BlockingLink
        except ModuleNotFoundError as error:
            raise ConfigError(f'--nats {url!r} needs {error.name}: pip install "stigmergy[nats]"') from None
        address = parse_address(url, ("replicas", "max_bytes"))
        self._timeout_s = max(timeout_s, MOVED_S_MAX + 1.0)
        try:
            self._link = BlockingLink(address, name=f"stigmergy {fleet.name}")
        except LinkDown as error:
            raise NotRunning(str(error)) from None
        self._workers = Workers(self._link.link, fleet.homes, fleet.name)

    def ask(self, request: Request[R]) -> Generator[Reply[R], None, None]:
        """The replies to a request, for as long as the caller takes them. Raises NotRunning, and refusals."""
        answers = self._run(self._workers.board.answer(request))
        try:
            while (reply := self._run(_next(answers, request))) is not None:
                yield reply
        finally:
            self._run(close_answers(answers))
        raise NotRunning("the answer ended before it was whole; ask again")

    def close(self) -> None:
        """Ends the connection."""
        self._link.run(lambda _: self._workers.leave(), CLOSE_S_MAX)
        self._link.close()

    def _run(self, work: Any) -> Any:
        try:
            return self._link.run(lambda _: work, self._timeout_s)
        except LinkDown as error:
            raise NotRunning(f"{error}; is the fleet stopped or overloaded?") from None


async def _next(answers: Answers, request: Request[R]) -> Reply[R] | None:
    """The next reply; None when there are no more. Only a line that came from an owner is decoded."""
    try:
        answer = await anext(answers) if isinstance(answers, AsyncIterator) else next(answers)
    except (StopIteration, StopAsyncIteration):
        return None
    return read_reply(answer, request) if isinstance(answer, bytes) else answer


class LineClient(Protocol):
    """A transport to the owner of a shard."""

    def ask(self, request: bytes) -> AsyncIterator[bytes]:
        """The lines that answer a line, as they come. Raises NotRunning where nobody answers."""
        ...


class RetryingClient:
    """A branch that is asked again while nobody, or only an owner of the past, answers there."""

    def __init__(self, branch: LineClient, is_anybody_there: Callable[[], Awaitable[bool]]) -> None:
        """`is_anybody_there` says whether somebody answers for any shard at all."""
        self.branch = branch
        self.is_anybody_there = is_anybody_there

    def ask(self, request: Request[Any]) -> AsyncIterator[bytes]:
        """The lines that answer a request, as they come. Raises NotRunning once the time is over."""
        return _RetriedRequest(self, request)


def _repeated_upon(request: Request[Any]) -> tuple[type[StigmergyError], ...]:
    """The answers upon which a request is asked again: those after which asking twice is as good as asking once."""
    match request:
        case protocol.SendRequest():
            return MOVED if request.command_id is not None else ()
        case protocol.ObserveRequest() | protocol.ObserveManyRequest():
            return UNTAKEN
        case protocol.RetryRequest() | protocol.DropRequest() | protocol.EnrolRequest() | protocol.RevokeRequest():
            return ()
        case _:
            return MOVED


class _RetriedRequest:
    """One request: its first line may take several attempts, the others come as they come."""

    def __init__(self, client: RetryingClient, request: Request[Any]) -> None:
        self._client = client
        self._request = write_request(request)
        self._began_s = asyncio.get_running_loop().time()
        self._within_s = MOVED_S_MAX if isinstance(request, RETRYABLE) else LOOK_S_MAX
        self._moved = _repeated_upon(request)
        self._may_be_taken = False
        self._lines: AsyncIterator[bytes] | None = None

    def __aiter__(self) -> _RetriedRequest:
        return self

    async def __anext__(self) -> bytes:
        try:
            return await (self._first() if self._lines is None else anext(self._lines))
        except LinkDown as error:
            raise NotRunning(f"the connection broke while the answer came ({error}); ask again") from None

    async def aclose(self) -> None:
        """Wants no more lines."""
        close = getattr(self._lines, "aclose", None)
        if close is not None:
            await close()

    async def _first(self) -> bytes:
        pause_s = PAUSE_S
        while True:
            lines = self._client.branch.ask(self._request)
            self._lines = lines
            try:
                line = await anext(lines)
                error = read_refusal(line)
                if not isinstance(error, self._moved):
                    return line
                self._may_be_taken |= isinstance(error, JournalUnknown)
            except NotRunning as nobody:
                error = nobody
            except LinkDown as broke:
                if LinkDown not in self._moved:
                    raise InDoubt(f"{broke}; whether it was taken is unknown, and it is not said twice") from None
                self._may_be_taken = True
                error = broke
            await self.aclose()
            passed_s = asyncio.get_running_loop().time() + pause_s - self._began_s
            if passed_s > self._within_s or (passed_s > NOBODY_S_MAX and not await self._client.is_anybody_there()):
                raise InDoubt(str(error)) if self._may_be_taken else NotRunning(str(error))
            await asyncio.sleep(pause_s)
            pause_s = min(PAUSE_S_MAX, 2 * pause_s)
