"""The control protocol: requests to a running node and replies, as JSON lines. docs/control.md describes every key.

A request is one line with its version and what to do: {"v": 1, "do": "status"}. The reply is one line, {"v": 1, "ok":
{...}} or {"v": 1, "error": "...", "kind": "..."}; for a stream, lines with "item" and then one with "end". An unknown
key is refused, so that a misspelt one is not silently ignored.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from typing import Any, Protocol

import msgspec
from msgspec import Struct

from stigmergy.agents.codec import UNDECODABLE
from stigmergy.base import errors
from stigmergy.base.errors import Malformed, StigmergyError

VERSION = 1
REQUEST_BYTES_MAX = 256 * 1024
"""A line from a client; a longer one is refused and its connection closed."""
REPLY_BYTES_MAX = 16 * 1024 * 1024
"""A line from a node. An agent whose state is larger is refused: read it from a stopped journal."""


class Request(Struct, tag_field="do", forbid_unknown_fields=True, omit_defaults=True, kw_only=True):
    """What all requests have."""

    v: int = 0


class SendRequest(Request, tag="send"):
    """Gives an agent a command, and waits for its durable answer. `texts` are read by the types of the fields."""

    agent: str
    command: str
    fields: dict[str, Any] = {}
    texts: dict[str, str] = {}
    command_id: str | None = None


class ObserveRequest(Request, tag="observe"):
    """Tells an agent what was observed."""

    agent: str
    event: str
    fields: dict[str, Any] = {}
    texts: dict[str, str] = {}


class StateRequest(Request, tag="state"):
    """An agent's durable state; `at` is a position or a time."""

    agent: str
    at: str | None = None


class StatusRequest(Request, tag="status"):
    """Where the node stands."""


class NamesRequest(Request, tag="names"):
    """What the node knows: agent kinds with their commands and events, and agents whose address begins like this."""

    prefix: str = ""
    limit: int = 100


class RosterRequest(Request, tag="roster"):
    """How records for agents of a compiled kind are made: for programs that send column batches."""

    kind: str


class EnrollAgentsRequest(Request, tag="enroll_agents"):
    """Gives compiled agents their numbers, durably; those that have one keep it. So many names at a time."""

    kind: str
    names: list[str]


class LogRequest(Request, tag="log"):
    """A stream of what the log says; the keys are those of `stigmergy log show`."""

    agent: str | None = None
    first: int | None = None
    last: int | None = None
    type: str | None = None
    shard: int | None = None
    limit: int = 100


class VerifyRequest(Request, tag="verify"):
    """A stream: how many commits were verified so far, and at last what was found. `trusted` is a key in hex digits."""

    trusted: str | None = None
    algorithm: int = 1


class ExportRequest(Request, tag="export"):
    """A stream of all that the log says, for other tools: entries as those of `log`, and in between how many commits
    were read. The keys are those of `stigmergy log export`, times in ns."""

    agent: str | None = None
    type: str | None = None
    shard: int | None = None
    first: int | None = None
    last: int | None = None
    since_ns: int | None = None
    until_ns: int | None = None


class FlightRequest(Request, tag="flight"):
    """A stream of the bytes of a flight log, sealed with the node's key: `data` in base64, with how far it is."""

    agent: str = ""
    since_ns: int | None = None
    until_ns: int | None = None
    reason: str = ""


class HoldsRequest(Request, tag="holds"):
    """The holds on the journal, cleared ones included."""


class HoldRequest(Request, tag="hold"):
    """Holds the log of an agent, or all of it, from a time on: nothing of it is dropped until the hold is cleared."""

    reason: str
    by: str
    agent: str = ""
    since_ns: int = 0


class UnholdRequest(Request, tag="unhold"):
    """Clears a hold; it stays in the record, with who and why."""

    hold: int
    reason: str
    by: str


class LettersRequest(Request, tag="letters"):
    """A stream of the dead letters, oldest first."""


class RetryRequest(Request, tag="retry"):
    """Gives a dead letter to its agent once more."""

    letter: str


class DropRequest(Request, tag="drop"):
    """Gives a dead letter up."""

    letter: str


class ResumeRequest(Request, tag="resume"):
    """Lets a stopped agent go on; `by` is who says so, for the log."""

    agent: str
    by: str = "control"


class EnrolRequest(Request, tag="enrol"):
    """Lets another key sign from the next commit on; the key in hex digits."""

    public_key: str
    algorithm: int = 1


class RevokeRequest(Request, tag="revoke"):
    """A key's signatures count up to a position of shard 0, without one up to now."""

    public_key: str
    algorithm: int = 1
    last_position: int | None = None


class SharedRequest(Request, tag="shared"):
    """A stream of the shared objects that this node holds, or the one that is named."""

    object: str | None = None


class QuarantineRequest(Request, tag="quarantine"):
    """A stream of quarantined replicas, and why."""


class LiftRequest(Request, tag="lift"):
    """Lets a key take part again that was shut out: its hex digits, or as many of them as tell it apart."""

    key: str


class RetireRequest(Request, tag="retire"):
    """Declares a replica of a shared object dead: nodes name it no more. Its hex digits, or as many as are needed."""

    object: str
    replica: str


class ClaimsRequest(Request, tag="claims"):
    """A stream of resources that somebody claims, or the one that is named: what the ledger says, and this node."""

    resource: str | None = None


class StopRequest(Request, tag="stop"):
    """Drains and ends the node."""


AnyRequest = (
    SendRequest
    | ObserveRequest
    | StateRequest
    | StatusRequest
    | NamesRequest
    | RosterRequest
    | EnrollAgentsRequest
    | LogRequest
    | VerifyRequest
    | ExportRequest
    | FlightRequest
    | HoldsRequest
    | HoldRequest
    | UnholdRequest
    | LettersRequest
    | RetryRequest
    | DropRequest
    | ResumeRequest
    | EnrolRequest
    | RevokeRequest
    | SharedRequest
    | QuarantineRequest
    | LiftRequest
    | RetireRequest
    | ClaimsRequest
    | StopRequest
)


class _Opening(Struct):
    v: int = 0


class Reply(Struct, omit_defaults=True, kw_only=True, frozen=True):
    """One line from the node: exactly one of `ok`, `item`, `end` and `error` is there."""

    v: int
    ok: Any = None
    item: Any = None
    end: Any = None
    error: str = ""
    kind: str = ""


_opening_decoder = msgspec.json.Decoder(_Opening)
_request_decoder: msgspec.json.Decoder[AnyRequest] = msgspec.json.Decoder(AnyRequest)
_reply_decoder = msgspec.json.Decoder(Reply)


def read_request(line: bytes) -> AnyRequest:
    """Reads a request; raises Malformed with what is wrong with it."""
    try:
        version = _opening_decoder.decode(line).v
        if version == VERSION:
            return _request_decoder.decode(line)
    except UNDECODABLE as error:
        raise Malformed(f"not a request: {error}; docs/control.md says what may be asked") from None
    raise Malformed(f'version {version} of the protocol, this node speaks {VERSION}; write "v": {VERSION}')


def write_request(request: AnyRequest) -> bytes:
    """The line of a request."""
    return msgspec.json.encode(msgspec.structs.replace(request, v=VERSION)) + b"\n"


def write_error(error: Exception) -> bytes:
    """The line that refuses. An error of ours has its name as kind; anything else is a bug of this node."""
    kind = type(error).__name__ if isinstance(error, StigmergyError) else "Bug"
    text = str(error) if isinstance(error, StigmergyError) else f"{type(error).__name__}: {error}"
    return write_reply(Reply(v=VERSION, error=text or kind, kind=kind))


def write_reply(reply: Reply) -> bytes:
    """The line of a reply; too large a one becomes an error."""
    line = msgspec.json.encode(reply) + b"\n"
    if len(line) > REPLY_BYTES_MAX:
        text = f"the answer has {len(line)} bytes, {REPLY_BYTES_MAX} at most; read it from a copy of the journal"
        return write_error(errors.TooLarge(text))
    return line


class UnreadableReply(Malformed):
    """An answer that does not decode: what was asked for may be done."""


def read_reply(line: bytes) -> Reply:
    """Reads a reply; raises what the node has refused with, by its kind, and UnreadableReply."""
    try:
        reply = _reply_decoder.decode(line)
    except UNDECODABLE as error:
        text = f"the node's answer does not decode ({error}); is something else listening there?"
        raise UnreadableReply(text) from None
    if reply.v != VERSION:
        raise UnreadableReply(
            f"the node speaks version {reply.v} of the protocol, this program {VERSION}; update one of them"
        )
    if reply.kind:
        raise error_named(reply.kind, reply.error)
    return reply


def error_named(kind: str, text: str) -> StigmergyError:
    """The error that a node has refused with, by its name."""
    found = getattr(errors, kind, StigmergyError)
    return (found if isinstance(found, type) and issubclass(found, StigmergyError) else StigmergyError)(text)


# The control port: answers requests of operators, one line in and lines out. It gives them no meaning.


class RequestHandler(Protocol):
    """Who answers."""

    async def answer(self, line: bytes) -> Iterator[bytes] | AsyncIterator[bytes]:
        """The lines of the answer, each with its end; an empty one means: nothing yet. Raises nothing.

        Whoever has to wait for lines gives them as they come.
        """
        ...

    def refuse(self, error: StigmergyError) -> bytes:
        """The line for a request that could not be taken."""
        ...
