"""What an agent shares and claims, as its state says at some moment: who wrote what, and what it held. Pure.

The state has both, so the past and a log that is played back can tell them too. What only a running node knows, who
lacks changes and who waits for a resource, is added by the ReplicationService.
"""

from __future__ import annotations

from typing import Any

from msgspec import UNSET, Struct, UnsetType


class WriterReply(Struct, frozen=True, omit_defaults=True):
    """Who wrote to a shared field. An agent or a node that is not known is absent."""

    replica: str
    changes: int
    """So many of its changes are known."""
    agent: str = ""
    node: str = ""


class WrittenReply(Struct, frozen=True):
    """Something in a shared field that is alive, and the replica that wrote it."""

    at: list[Any]
    """The keys that lead to it; none for the value itself."""
    replica: str
    value: Any = UNSET


class SharedFieldReply(Struct, frozen=True, omit_defaults=True):
    """A shared field of an agent."""

    field: str
    object: str
    """What it is a replica of; empty if the agent belongs to no group."""
    writers_count: int
    writers: list[WriterReply]
    entries_count: int
    entries: list[WrittenReply]
    peers: list[str] | UnsetType = UNSET
    """The nodes that hold it too; absent where that is not known, as of the past."""
    lacking: list[str] = []
    """Those of them that are not known to be in step."""
    diverged: bool = False


class ClaimFieldReply(Struct, frozen=True, omit_defaults=True):
    """A claim of an agent: what its state says, and the ledger where a running node reads one."""

    claim: str
    resource: str
    """What it holds, or held or asked for last; empty before the first time."""
    held: bool
    token: int
    until: str | None = None
    """When its lease ends; null for one that is prolonged by itself, and for one that is not held."""
    asking: bool = False
    holder: str | UnsetType = UNSET
    """Who holds the resource by the ledger, as far as it was read; empty for nobody."""
    queue: list[str] | UnsetType = UNSET
