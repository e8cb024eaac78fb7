"""What a shard hands to its host: after a step what is asked of it, after sealing what to persist and then to do."""

from __future__ import annotations

from typing import Any

from msgspec import Struct

from stigmergy.core.blocks import Block
from stigmergy.core.commit import Commit, Sealed
from stigmergy.core.errors import StigmergyError
from stigmergy.core.inputs import Asked, Input, Verdict
from stigmergy.core.messages import Message
from stigmergy.core.outbox import Pending
from stigmergy.core.sharing import Merged, SharedChanged
from stigmergy.core.timers import Timer


class Stepped(Struct, frozen=True):
    """What a step asks of the host: how long the draft may stay open, and what to step again after sealing."""

    wait_ns: int | None
    left: list[Input]
    repeats: list[tuple[Asked, Verdict, int]]
    """Commands that are not done now, because they were before or may not be: the answer, and the position that must be
    durable to give it."""
    fresh: list[tuple[str, type[Message] | None]]
    """Agents with staleness rules that are new (None) or got an event that a rule waits for."""
    untaken: list[tuple[Input, StigmergyError]] = []
    """Inputs of which nothing was consumed, and why: nobody may be told that they are durable."""


class Ready(Struct, frozen=True):
    """A sealed commit. First persist `sealed`; only then tell `verdicts`, release `owed` and
    `blocks`, schedule `timers`."""

    sealed: Sealed
    commit: Commit
    verdicts: list[tuple[Asked, Verdict]]
    """Answers to give."""
    owed: list[Pending]
    blocks: list[Block]
    """Actions for batched hands."""
    timers: list[tuple[Timer, int]]
    """Timers that were set, each with the time of the step that set it."""
    stopped: list[str]
    """Agents that supervision has stopped: their safe actions are due."""
    shared: list[tuple[str, SharedChanged | Merged | None]]
    """Agents with shared fields that are new (None), and what has changed in whose: for peers."""
    touched: dict[str, Any]
    """Agents as they were before this commit; what a query sees until it is durable."""
    images: dict[str, Any]
    """Per kind of compiled agents that has changed, its table's image of that; None: its events are to be folded."""
    enrolled: dict[str, int]
    """How many compiled agents of each kind there are once it is durable."""
