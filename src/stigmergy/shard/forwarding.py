"""Commands for agents that other nodes run: kept in this log until they are answered there. Pure.

Each node on the way does the same. It owes the command to the sink `forward`, and forgets it with the answer, which it
keeps as if it were its own: a repetition of the id gets the same one. A command that expired, or was superseded before
it came here, is refused under its id, so a copy that comes later is not decided either.
"""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime

import msgspec
from msgspec import Struct

from stigmergy.agents.codec import encode, tag_of
from stigmergy.agents.effects import PUBLISH, REMOTE_SINKS
from stigmergy.agents.messages import SECOND_NS, Command, Message, spec_of
from stigmergy.base.errors import Malformed, PeerError
from stigmergy.shard.commit import Owed
from stigmergy.shard.inputs import Ask
from stigmergy.shard.outbox import Outbox, Pending, read_told

FORWARD = "forward"
"""The sink of commands for agents elsewhere."""
NOT_SENT_ON = "not sent on: "
LATE = ("expired: ", "superseded by the command ", NOT_SENT_ON)
"""How the reasons begin of what was refused before any handler saw it."""
PER_AGENT_MAX = 100
FORWARDED_MAX = 10_000
"""Commands of a shard that are not answered yet, for one agent and for all; one more is refused."""


class Forwarded(Struct, array_like=True, frozen=True):
    """What is owed to the sink: a command on its way."""

    command_id: str
    command: bytes
    client: str
    asked_ns: int
    """When it came to this node."""
    expires_ns: int
    """By the wall clock: nobody decides it later."""
    origin: str
    """Where it was given: site and node. Empty: here."""
    replaces: str
    """The type of command of which it cancels older ones from the same origin; empty: none."""
    hops: int
    came_by: str
    """The link that it came by, which it does not leave by; empty: none."""


_decoder = msgspec.msgpack.Decoder(Forwarded)
_addressed = msgspec.msgpack.Decoder(tuple[str, bytes])


def read_forwarded(pending: Pending | Owed) -> Forwarded:
    """The command of an owed effect."""
    return _decoder.decode(pending.body)


class Forwarding:
    """The commands that one shard has sent on, by agent and id."""

    def __init__(self, outbox: Outbox) -> None:
        self._known: dict[str, dict[str, int]] = {}
        self._count = 0
        for pending in owed_commands(outbox):
            self.add(pending.agent, read_forwarded(pending).command_id, pending.sequence)

    def add(self, agent: str, command_id: str, sequence: int) -> None:
        self._known.setdefault(agent, {})[command_id] = sequence
        self._count += 1

    def drop(self, agent: str, command_id: str) -> None:
        """It is answered."""
        known = self._known[agent]
        del known[command_id]
        self._count -= 1
        if not known:
            del self._known[agent]

    def get(self, agent: str, command_id: str) -> int | None:
        """Its sequence, if it is on its way."""
        return self._known.get(agent, {}).get(command_id)

    def refusal(self, agent: str) -> str | None:
        """Why no more can be sent on; None if one can."""
        waiting = len(self._known.get(agent, ()))
        if waiting < PER_AGENT_MAX and self._count < FORWARDED_MAX:
            return None
        return (
            f"overloaded: {waiting} commands for {agent} and {self._count} in all are on their way from here, "
            f"{PER_AGENT_MAX} and {FORWARDED_MAX} at most; nothing was done, send it again when some are answered"
        )


def named(pending: Pending) -> tuple[str, str]:
    """The tag of what an owed effect says or does, and for whom or which topic; for traces."""
    sink, body = pending.sink, pending.body
    if sink == FORWARD:
        return tag_of(read_forwarded(pending).command), pending.agent
    if sink.startswith(REMOTE_SINKS):
        told = read_told(body)
        return tag_of(told.message), told.to
    if sink == PUBLISH or sink.startswith("shard/"):
        to, message = _addressed.decode(body)
        return tag_of(message), to
    return tag_of(body), ""


def owed_commands(outbox: Outbox) -> Iterator[Pending]:
    """The commands that are on their way, oldest first."""
    return (pending for pending in outbox.owed() if pending.sink == FORWARD)


def late(ask: Ask, now_ns: int) -> str | None:
    """Why a command that came from another node is not decided, nor sent on; None if it may be."""
    travel = ask.travel
    if travel.refused:
        return f"{NOT_SENT_ON}{travel.refused}"
    if travel.superseded_by:
        return f"superseded by the command {travel.superseded_by[:200]!r}; nothing of it was done"
    if travel.expires_ns and now_ns > travel.expires_ns:
        return (
            f"expired: it was to be decided by {shown_time(travel.expires_ns)}, and it is {shown_time(now_ns)} at the "
            "node that has it; nothing of it was done"
        )
    return None


def forwarded(ask: Ask, command: Message | None, client: str, now_ns: int) -> Forwarded:
    """What is owed for a command; `command` is what it says, where this fleet can read it.

    Raises PeerError for what the place where it was given should not send.
    """
    travel = ask.travel
    expires_ns, replaces = travel.expires_ns, travel.replaces
    if not travel.hops:
        if not isinstance(command, Command):
            raise PeerError(f"{type(command).__name__} is no command, and only commands are answered; observe it")
        spec = spec_of(type(command))
        within_ns = int(spec.expires_s * SECOND_NS) or travel.keep_ns
        expires_ns = min(now_ns + within_ns, expires_ns or now_ns + within_ns)
        replaces = spec.tag if spec.supersedes else ""
    return Forwarded(
        ask.command_id,
        ask.command,
        client,
        now_ns,
        expires_ns,
        travel.origin,
        replaces,
        travel.hops,
        travel.came_by,
    )


def packed(one: Forwarded) -> tuple[str, bytes]:
    """The effect, with its sink."""
    return FORWARD, encode(one)


def shown_time(time_ns: int) -> str:
    """A wall clock's time for people."""
    try:
        shown = datetime.fromtimestamp(time_ns / SECOND_NS, UTC).isoformat(timespec="milliseconds")
    except (OverflowError, ValueError, OSError):
        raise Malformed(f"{time_ns} ns is no time") from None
    return shown.replace("+00:00", "Z")
