"""The control protocol: requests to a running node and replies, as JSON lines. docs/control.md describes every key.

A request is one line with its version and what to do: {"v": 1, "do": "status"}. The reply is one line, {"v": 1, "ok":
{...}} or {"v": 1, "error": "...", "kind": "..."}; for a stream, lines with "item" and then one with "end". An unknown
key is refused, so that a misspelt one is not silently ignored.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Iterator, Sequence
from functools import cache
from typing import Any, Generic, Protocol, TypeVar, get_args

import msgspec
from msgspec import UNSET, Struct, structs

from stigmergy.agents.assignment import within_fleet
from stigmergy.agents.codec import UNDECODABLE
from stigmergy.audit.listing import LogEntry
from stigmergy.base import errors
from stigmergy.base.errors import Malformed, StigmergyError, error_named
from stigmergy.control import replies
from stigmergy.control.replies import MissingPart, StreamEnd
from stigmergy.ledgers.records import ShownLedger
from stigmergy.metrics.profile import Profile
from stigmergy.node.column_roster import DescribedRoster
from stigmergy.traces.spans import Span

R = TypeVar("R")
VERSION = 1
REQUEST_BYTES_MAX = 256 * 1024
"""A line from a client; a longer one is refused and its connection closed."""
REPLY_BYTES_MAX = 16 * 1024 * 1024
"""A line from a node. An agent whose state is larger is refused: read it from a stopped journal."""
REQUEST_S_MAX = 60.0
"""The limit for a request, and for a client to read each line of its answer."""
GIVE_WAY_LINES = 64  # of an answer: then the node's other tasks get a turn
PLACES = (("lat", "lon"), ("latitude", "longitude"), ("x", "y"))
"""Fields of an event or of a state that say where it is."""


class Request(Struct, Generic[R], tag_field="do", forbid_unknown_fields=True, omit_defaults=True, kw_only=True):
    """What all requests have. `R` is the type of the reply, or of each item where the reply is a stream."""

    v: int = 0


class TracedRequest(Request[R], kw_only=True):
    """A request that may belong to a trace: its W3C trace context, not in the bytes of one that does not."""

    traceparent: str = ""
    tracestate: str = ""


TRACE_HEADERS = ("traceparent", "tracestate")
"""The names under which HTTP, gRPC and CloudEvents carry a trace context."""


def trace_headers(request: TracedRequest[Any] | None) -> dict[str, str]:
    """The trace context of a request, as headers; none if it has none."""
    if request is None or not request.traceparent:
        return {}
    state = {"tracestate": request.tracestate} if request.tracestate else {}
    return {"traceparent": request.traceparent} | state


class SendRequest(TracedRequest[replies.SendReply], tag="send"):
    """Gives an agent a command, and waits for its durable answer. `texts` are read by the types of the fields."""

    agent: str
    command: str
    fields: dict[str, Any] = {}
    texts: dict[str, str] = {}
    command_id: str | None = None
    wait_s: float | None = None
    """For an agent on another node: how long to wait; then the reply says `pending`. None: 10 s, then NoAnswer."""
    caller: str = ""  # through an API: `http` or `grpc`, a space, and the name of the token; for a policy


class ObserveRequest(TracedRequest[replies.ObserveReply], tag="observe"):
    """Tells an agent what was observed."""

    agent: str
    event: str
    fields: dict[str, Any] = {}
    texts: dict[str, str] = {}


class ObservedItem(Struct, frozen=True, forbid_unknown_fields=True):
    """One of many observations."""

    agent: str
    event: str
    fields: dict[str, Any] = {}


class ObserveManyRequest(Request[replies.ObserveManyReply], tag="observe_many"):
    """Tells agents what was observed, in this order per agent. Each has its own outcome."""

    items: list[ObservedItem]


class StateRequest(Request[replies.StateReply], tag="state"):
    """An agent's durable state; `at` is a position or a time."""

    agent: str
    at: str | None = None


class StatusRequest(Request[replies.StatusReply], tag="status"):
    """Where the node stands."""


class NamesRequest(Request[replies.NamesReply], tag="names"):
    """What the node knows: agent kinds with their commands and events, and agents whose address begins like this."""

    prefix: str = ""
    limit: int = 100


class AgentsRequest(Request[replies.AgentsReply], tag="agents"):
    """A page of the agents that are on disk, with their states, sorted by address; `after` is the last address of the
    page before. `where` has conditions on fields of the state, all of which must hold: `battery<20`, `mission=M1`."""

    kind: str | None = None
    where: list[str] = []
    limit: int = 100
    after: str = ""
    here: bool = False
    """Only those of the node that is asked, and not those of other nodes on its bus."""
    at: str | None = None  # as they were at a time, or at a position of a log of one shard


class EventsRequest(Request[replies.EventsReply], tag="events"):
    """The next events behind positions, at most so many; waits so long for the first.

    `after` are the positions of an earlier answer, or `since_ns` a time; without both, where the log ends now, and no
    events."""

    after: str | None = None
    since_ns: int | None = None
    shard: int | None = None
    limit: int = 1000
    within_s: float = 0.0
    node: str = ""
    """The node on the bus whose log it is; else the one that is asked."""


class SpanRequest(Request[replies.SpanReply], tag="span"):
    """From when to when the log goes that is still kept."""


class PositionsRequest(Request[replies.PositionsReply], tag="positions"):
    """Where the agents are that the fleet shows on its map: those whose state has changed behind `after`, which is that
    of an earlier answer; without it, all. Waits so long for a change. `at` asks for the past instead: a time, or of
    one shard a position; then all are returned, and nothing is waited for."""

    after: str = ""
    at: str | None = None
    shard: int | None = None
    within_s: float = 0.0
    node: str = ""
    """The node on the bus whose agents they are; else the one that is asked."""


class ExplainRequest(Request[replies.ExplainReply], tag="explain"):
    """How an agent came to be as it is, or as it was at `position`: its last log entries, with their inputs, events and
    effects, and whether each effect is settled."""

    agent: str
    position: int | None = None
    limit: int = 20


class WhereRequest(Request[replies.WhereReply], tag="where"):
    """Which node runs an agent, and why."""

    agent: str


class BlobRequest(Request[replies.BlobReply], tag="blob"):
    """An object of a blob that another node on the bus has: for a server beside the node, which has no bus."""

    name: str


class ViewRequest(Request[replies.ViewReply], tag="view"):
    """A page of the rows of a view. `where` has conditions that must all hold: `zone=7`, `active>=5`. `order` names
    fields, `-active` from high to low. `after` has positions to wait for, `3:41` or `Drone/D-17:41`, so long."""

    view: str
    where: list[str] = []
    order: list[str] = []
    limit: int = 100
    cursor: str = ""
    after: list[str] = []
    within_s: float = 5.0
    node: str = ""
    """The node on the bus whose view it is; else the one that is asked."""


class LedgerRequest(Request[ShownLedger], tag="ledger"):
    """Entries of a ledger of the fleet's own behind a position, or the `latest`; `fresh`: up to this very moment."""

    ledger: str
    after: int = 0
    limit: int = 100
    latest: bool = False
    fresh: bool = False


class ViewsRequest(Request[replies.ViewsReply], tag="views"):
    """The views of the fleet, and where each stands."""

    node: str = ""
    """The node on the bus whose views they are; else the one that is asked."""


class RosterRequest(Request[DescribedRoster], tag="roster"):
    """How records for agents of a compiled kind are made: for programs that send column batches."""

    kind: str


class EnrollAgentsRequest(Request[DescribedRoster], tag="enroll_agents"):
    """Gives compiled agents their numbers, durably; those that have one keep it. So many names at a time."""

    kind: str
    names: list[str]


class LogRequest(Request[LogEntry], tag="log"):
    """A stream of what the log says; the keys are those of `stigmergy log show`."""

    agent: str | None = None
    first: int | None = None
    last: int | None = None
    type: str | None = None
    shard: int | None = None
    limit: int = 100


class TraceRequest(Request[Span], tag="trace"):
    """The spans of the traces that these are in: ids of traces or commands, addresses of agents. Of the last `limit`
    traces, in the order of the log."""

    jobs: list[str]
    limit: int = 10
    here: bool = False
    """Only from the log of the node that is asked, and not from those of other nodes on its bus."""


class VerifyRequest(Request[Any], tag="verify"):
    """A stream of LogProgress and at last a VerifyReply: see `read_item`. `trusted` is a key in hex digits."""

    trusted: str | None = None
    algorithm: int = 1


class ExportRequest(Request[Any], tag="export"):
    """A stream of LogEntry and in between LogProgress. The keys are those of `stigmergy log export`, times in ns."""

    agent: str | None = None
    type: str | None = None
    shard: int | None = None
    first: int | None = None
    last: int | None = None
    since_ns: int | None = None
    until_ns: int | None = None


class FlightRequest(Request[replies.FlightPiece], tag="flight"):
    """A stream of the bytes of a flight log, sealed with the node's key: `data` in base64, with how far it is."""

    agent: str = ""
    since_ns: int | None = None
    until_ns: int | None = None
    reason: str = ""


class CommitsRequest(Request[replies.CommitPiece], tag="commits"):
    """A stream of the next commits behind these positions, by shard: of all shards, or without any only what the log
    has. Waits so long for the first. For programs that follow the log, such as `stigmergy capture`."""

    after: dict[int, int] = {}
    within_s: float = 0.0


class HoldsRequest(Request[replies.HoldsReply], tag="holds"):
    """The holds on the journal, cleared ones included."""


class HoldRequest(Request[replies.HoldReply], tag="hold"):
    """Holds the log of an agent, or all of it, from a time on: nothing of it is dropped until the hold is cleared."""

    reason: str
    by: str
    agent: str = ""
    since_ns: int = 0


class UnholdRequest(Request[replies.HoldReply], tag="unhold"):
    """Clears a hold; it stays in the record, with who and why."""

    hold: int
    reason: str
    by: str


class LettersRequest(Request[replies.LetterReply], tag="letters"):
    """A stream of the dead letters, oldest first; with `everywhere`, also those of the other nodes on the bus."""

    everywhere: bool = False


class CommandsRequest(Request[replies.CommandReply], tag="commands"):
    """A stream of the commands for agents that other nodes run: those on their way, and the last that were answered."""

    limit: int = 100


class RetryRequest(Request[replies.LetterTakenReply], tag="retry"):
    """Gives a dead letter to its agent once more."""

    letter: str


class DropRequest(Request[replies.LetterTakenReply], tag="drop"):
    """Gives a dead letter up."""

    letter: str


class ResumeRequest(Request[replies.ResumeReply], tag="resume"):
    """Lets a stopped agent go on; `by` is who says so, for the log."""

    agent: str
    by: str = "control"


class EnrolRequest(Request[replies.EnrolReply], tag="enrol"):
    """Lets another key sign from the next commit on; the key in hex digits."""

    public_key: str
    algorithm: int = 1


class RevokeRequest(Request[replies.RevokeReply], tag="revoke"):
    """A key's signatures count up to a position of shard 0, without one up to now."""

    public_key: str
    algorithm: int = 1
    last_position: int | None = None


class SharedRequest(Request[replies.ObjectReply], tag="shared"):
    """A stream of the shared objects that this node holds, or the one that is named."""

    object: str | None = None


class QuarantineRequest(Request[replies.QuarantineReply], tag="quarantine"):
    """A stream of quarantined replicas, and why."""


class LiftRequest(Request[replies.LiftReply], tag="lift"):
    """Lets a key take part again that was shut out: its hex digits, or as many of them as tell it apart."""

    key: str


class RetireRequest(Request[replies.RetireReply], tag="retire"):
    """Declares a replica of a shared object dead: nodes name it no more. Its hex digits, or as many as are needed."""

    object: str
    replica: str


class ClaimsRequest(Request[replies.ResourceReply], tag="claims"):
    """A stream of resources that somebody claims, or the one that is named: what the ledger says, and this node."""

    resource: str | None = None


class MembersRequest(Request[replies.MemberReply], tag="members"):
    """A stream of the nodes that are in the fleet, as this one knows them; empty without a bus and a mesh."""


class ProfileRequest(Request[Profile], tag="profile"):
    """Where the time of a process goes in the next so many seconds, and what it writes to its disk."""

    seconds: float = 10.0
    worker: str = ""
    """Of a fleet on workers: which one, by its id or by the beginning of it."""


class StopRequest(Request[replies.StopReply], tag="stop"):
    """Drains and ends the node."""


SingleRequest = (
    SendRequest
    | ObserveRequest
    | ObserveManyRequest
    | StateRequest
    | StatusRequest
    | NamesRequest
    | AgentsRequest
    | EventsRequest
    | SpanRequest
    | PositionsRequest
    | ExplainRequest
    | ViewRequest
    | ViewsRequest
    | LedgerRequest
    | WhereRequest
    | BlobRequest
    | RosterRequest
    | EnrollAgentsRequest
    | HoldsRequest
    | HoldRequest
    | UnholdRequest
    | RetryRequest
    | DropRequest
    | ResumeRequest
    | EnrolRequest
    | RevokeRequest
    | LiftRequest
    | RetireRequest
    | ProfileRequest
    | StopRequest
)
"""Answered by one line with `ok`."""
StreamRequest = (
    LogRequest
    | TraceRequest
    | VerifyRequest
    | ExportRequest
    | FlightRequest
    | CommitsRequest
    | LettersRequest
    | CommandsRequest
    | SharedRequest
    | QuarantineRequest
    | ClaimsRequest
    | MembersRequest
)
"""Answered by lines with `item`, and one with `end`."""
AnyRequest = SingleRequest | StreamRequest


def check_node(request: Request[Any]) -> None:
    """Refuses the name of a node where there is no other one to ask. Raises ConfigError."""
    if isinstance(request, EventsRequest | PositionsRequest | ViewRequest | ViewsRequest) and request.node:
        raise errors.ConfigError(f"node {request.node!r}: no other node can be asked from here; leave it out")


class _Opening(Struct):
    v: int = 0


class Reply(Struct, Generic[R], omit_defaults=True, kw_only=True, frozen=True):
    """One line from the node: exactly one of `ok`, `item`, `end` and `error` is there."""

    v: int
    ok: R | None = None
    item: R | None = None
    end: StreamEnd | None = None
    error: str = ""
    kind: str = ""


_opening_decoder = msgspec.json.Decoder(_Opening)
_request_decoder: msgspec.json.Decoder[AnyRequest] = msgspec.json.Decoder(AnyRequest)


def read_request(line: bytes) -> AnyRequest:
    """Reads a request; raises Malformed with what is wrong with it."""
    try:
        version = _opening_decoder.decode(line).v
        if version == VERSION:
            return _request_decoder.decode(line)
    except UNDECODABLE as error:
        raise Malformed(f"not a request: {error}; docs/control.md says what may be asked") from None
    raise Malformed(f'version {version} of the protocol, this node speaks {VERSION}; write "v": {VERSION}')


def write_request(request: Request[Any]) -> bytes:
    """The line of a request. Raises TooLarge."""
    line = msgspec.json.encode(msgspec.structs.replace(request, v=VERSION)) + b"\n"
    if len(line) > REQUEST_BYTES_MAX:
        raise errors.TooLarge(
            f"a request of {len(line)} bytes, {REQUEST_BYTES_MAX} at most; send less, or large things by reference"
        )
    return line


def single(value: R) -> Reply[R]:
    """The reply that is the whole answer."""
    return Reply(v=VERSION, ok=value)


def item(value: R) -> Reply[R]:
    """One of many replies of a stream."""
    return Reply(v=VERSION, item=value)


def end(count: int, missing: Sequence[MissingPart] = ()) -> Reply[Any]:
    """The end of a stream. `missing` are those that did not answer."""
    return Reply(v=VERSION, end=StreamEnd(count, list(missing) or UNSET))


def refusal(error: Exception) -> Reply[Any]:
    """The reply that refuses. An error of ours has its name as kind; anything else is a bug of this node."""
    kind = type(error).__name__ if isinstance(error, StigmergyError) else "Bug"
    text = str(error) if isinstance(error, StigmergyError) else f"{type(error).__name__}: {error}"
    return Reply(v=VERSION, error=text or kind, kind=kind)


def write_reply(reply: Reply[Any]) -> bytes:
    """The line of a reply; too large a one becomes an error."""
    line = msgspec.json.encode(reply) + b"\n"
    if len(line) > REPLY_BYTES_MAX:
        text = f"the answer has {len(line)} bytes, {REPLY_BYTES_MAX} at most; read it from a copy of the journal"
        return write_reply(refusal(errors.TooLarge(text)))
    return line


ITEM = write_reply(item(0))[:-3]
"""How the line of an item begins. Any other line is the last of its answer."""
REFUSAL = write_reply(refusal(StigmergyError("")))[:14]
"""How the line of a refusal begins."""


class UnreadableReply(Malformed):
    """An answer that does not decode: what was asked for may be done."""


@cache
def _decoder(request: type[Request[R]]) -> msgspec.json.Decoder[Reply[R]]:
    """Reads the replies to requests of this type."""
    (base,) = request.__orig_bases__  # type: ignore[attr-defined]
    return msgspec.json.Decoder(Reply[get_args(base)[0]])  # type: ignore[misc]


def read_reply(line: bytes, request: Request[R]) -> Reply[R]:
    """Reads a reply to this request; raises what the node has refused with, by its kind, and UnreadableReply."""
    try:
        reply = _decoder(type(request)).decode(line)
    except UNDECODABLE as error:
        text = f"the node's answer does not decode ({error}); is something else listening there?"
        raise UnreadableReply(text) from None
    if reply.v != VERSION:
        raise UnreadableReply(
            f"the node speaks version {reply.v} of the protocol, this program {VERSION}; update one of them"
        )
    return checked(reply)


def answers_to(replies: Iterable[Reply[R]]) -> list[R]:
    """The one answer among these replies, or all items of a stream."""
    found: list[R] = []
    for reply in replies:
        if reply.end is not None:
            break
        found.extend(one for one in (reply.ok, reply.item) if one is not None)
        if reply.ok is not None:
            break
    return found


def within(request: R, fleet: str) -> R:
    """The request with addresses as nodes of this fleet write them."""
    if isinstance(request, ObserveManyRequest):
        items = [structs.replace(one, agent=within_fleet(one.agent, fleet)) for one in request.items]
        return structs.replace(request, items=items)
    agent: str | None = getattr(request, "agent", None)
    return structs.replace(request, agent=within_fleet(agent, fleet)) if agent else request  # type: ignore[type-var]


def note_missing(reply: Reply[Any], missing: list[MissingPart] | None) -> None:
    """Adds those that have not answered, if this is the end of a stream and somebody wants to know."""
    if missing is not None and reply.end is not None:
        missing += reply.end.missing or ()


def read_single(line: bytes, request: Request[R]) -> R:
    """Reads the one reply to this request. Raises as `read_reply`."""
    reply = read_reply(line, request)
    if reply.ok is None:
        raise UnreadableReply("the node's answer is part of a stream, and one answer was expected; update one of them")
    return reply.ok


def read_refusal(line: bytes) -> StigmergyError | None:
    """What a line refuses with, if it does; any other line is not decoded."""
    if not line.startswith(REFUSAL):
        return None
    try:
        reply = msgspec.json.decode(line, type=Reply[Any])
    except UNDECODABLE:
        return None
    return error_named(reply.kind, reply.error)


def checked(reply: Reply[R]) -> Reply[R]:
    """The same reply; raises what it refuses with."""
    if reply.kind:
        raise error_named(reply.kind, reply.error)
    return reply


# A transport carries lines. At its edge a line becomes a request, once, and a reply becomes a line, once.

Answer = Reply[Any] | bytes
"""A reply, or the line of one that another node has encoded and that is passed on as it is. An empty line means:
nothing yet, do something else meanwhile."""


def streamed(items: Iterable[Any]) -> Iterator[Answer]:
    """Items, then the end; None among them means: nothing yet. An error on the way is the last reply."""
    count = 0
    try:
        for one in items:
            if one is None:
                yield b""
                continue
            count += 1
            yield item(one)
    except Exception as error:
        yield refusal(error)
        return
    yield end(count)


class ControlHandler(Protocol):
    """Answers requests: a node, or the owner of a shard."""

    async def answer(self, request: AnyRequest) -> Iterator[Answer]:
        """The answers to this request. Raises nothing: a refusal is a reply."""
        ...


class RequestHandler(Protocol):
    """The port under a transport: one line in, lines out."""

    async def answer(self, line: bytes) -> Iterator[bytes]:
        """The lines of the answer, each with its end; an empty one means: nothing yet. Raises nothing."""
        ...

    def refuse(self, error: StigmergyError) -> bytes:
        """The line for a request that could not be taken."""
        ...


async def answer_line(
    handler: RequestHandler, line: bytes, write: Callable[[bytes], Awaitable[None]], within_s: float
) -> bool:
    """Answers one request of a transport, line by line; whether another may follow. The handler has so long until its
    answer begins."""
    try:
        async with asyncio.timeout(within_s):
            lines = await handler.answer(line)
    except TimeoutError:
        text = (
            f"no answer within {within_s:g} s; the request was given up. Whether a command was accepted is unknown: "
            "send it again with the same command id"
        )
        await write(handler.refuse(errors.Overloaded(text)))
        return False
    for number, answer in enumerate(lines, start=1):
        if answer:
            await write(answer)
        if not answer or number % GIVE_WAY_LINES == 0:
            await asyncio.sleep(0)
    return True


class ControlEndpoint:
    """The edge of a handler: what a transport needs."""

    def __init__(self, handler: ControlHandler) -> None:
        self._handler = handler

    async def answer(self, line: bytes) -> Iterator[bytes]:
        """The lines that answer this one."""
        try:
            request = read_request(line)
        except Malformed as error:
            return iter((self.refuse(error),))
        return map(_line, await self._handler.answer(request))

    def refuse(self, error: StigmergyError) -> bytes:
        """The line for a request that could not be taken."""
        return write_reply(refusal(error))


def _line(answer: Answer) -> bytes:
    return answer if isinstance(answer, bytes) else write_reply(answer)
