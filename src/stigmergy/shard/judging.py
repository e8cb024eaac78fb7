"""What a policy is asked before an agent decides, and what it says of it. Pure.

The judge of a shard is called in the step, right before `decide`: it sees the state that `decide` sees. What it says
becomes part of the commit, so a replay reads the ruling and never asks again. A judge must not raise, must answer
within a stated time, and must not change what it is shown. Without one nothing is asked.

What goes towards safety is never asked: commands of a class with `safety=True`, and safe actions, which are no inputs.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Literal

from msgspec import Struct


class Sender(Struct, frozen=True):
    """Who sent an input, as far as this node knows. Empty is unknown."""

    how: str = ""
    """`program`, `socket`, `http`, `grpc`, `cluster`, `bus`, `link`, `envelope` or `tell`."""
    token: str = ""
    """The name of the token that an HTTP or gRPC caller showed."""
    node: str = ""
    """Site and node where it was given, if it came from another one."""
    fleet: str = ""
    """Of a tell, the fleet that it came from; empty for the own one."""
    source: str = ""
    """What the message says of its source. Only the broker's permissions vouch for it."""
    certificate: str = ""
    """The name in the certificate of the connection that it came by."""


OUTSIDE = Sender()
"""Somebody of whom nothing is known."""

Kind = Literal["command", "tell", "enrolment", "model"]


class PolicyQuestion(Struct, frozen=True):
    """What a policy is asked about."""

    kind: Kind
    message: str
    """The name of the message, without its version."""
    fields: Any
    """The message itself, or a mapping."""
    address: str = ""
    agent: Any = None
    """The agent as `decide` would see it; None for one that runs elsewhere."""
    sender: Sender = OUTSIDE


class Ruling(Struct, frozen=True):
    """What the policy says, and which policy it was. Without a policy its version is 0."""

    refused: str | None
    policy: str = ""
    version: int = 0
    digest: bytes = b""

    @property
    def stamp(self) -> str:
        """The policy in words: name, version and the start of the digest."""
        return f"{self.policy} {self.version} {self.digest.hex()[:16]}" if self.version else "no policy"


Judge = Callable[[PolicyQuestion], Ruling]


def enrolment(message: str, fields: Mapping[str, Any], address: str, sender: Sender) -> PolicyQuestion:
    """The question whether somebody may enrol agents, or a key."""
    return PolicyQuestion("enrolment", message, fields, address, None, sender)
