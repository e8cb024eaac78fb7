"""The lifecycle of one shard in one worker: a table of permitted transitions. Pure; `supervisor` carries it out.

    idle -> warming -> ready -> claiming -> owning -> releasing -> idle
                                    \\          \\          \\-> lost -> idle
                                     \\-> ready  \\-> lost

A planned hand-over is two such lifecycles side by side: one worker becomes ready, then the other releases, then the
first one claims. A take-over is one alone. A transition that is not in the table cannot happen; a signal at the wrong
time is our own bug.
"""

from __future__ import annotations

from enum import Enum

from stigmergy.base.errors import Bug


class LifecycleState(Enum):
    """Where a shard stands in this worker."""

    IDLE = "idle"
    """It is no business of ours."""
    WARMING = "warming"
    """We replay its log."""
    READY = "ready"
    """We have replayed it, follow it, and wait until it is free."""
    CLAIMING = "claiming"
    """We read the last of it, claim it and start a host."""
    OWNING = "owning"
    """It is ours: a host runs."""
    RELEASING = "releasing"
    """The host finishes what it has taken, and we let go."""
    LOST = "lost"
    """It is not ours any more, or its host has failed: what is left here ends, without a word to the world."""


class LifecycleSignal(Enum):
    """What brings it from one state to the next."""

    WANTED = "the plan names us"
    UNWANTED = "the plan does not name us any more"
    WARM = "the log is replayed"
    FREE = "nobody has it"
    CLAIMED = "the host runs"
    BEATEN = "whoever has it goes on writing"
    AWAITED = "who is to have it is ready"
    FENCED = "another has it, or our lease is gone"
    FAILED = "it cannot be done, now or here"
    OVER = "what was begun has ended"


class LifecycleStep(Enum):
    """What is to be done on the way."""

    FOLLOW = "begin to replay the log, and go on"
    ANNOUNCE = "say that we are ready"
    CLAIM = "claim the log and start a host"
    SETTLE = "say that it is ours"
    RELEASE = "stop the host and let go"
    END = "end the host as it is"
    FORGET = "follow no more"
    WAIT = "nothing"


TRANSITIONS: dict[tuple[LifecycleState, LifecycleSignal], tuple[LifecycleState, LifecycleStep]] = {
    (LifecycleState.IDLE, LifecycleSignal.WANTED): (LifecycleState.WARMING, LifecycleStep.FOLLOW),
    (LifecycleState.WARMING, LifecycleSignal.WARM): (LifecycleState.READY, LifecycleStep.ANNOUNCE),
    (LifecycleState.WARMING, LifecycleSignal.UNWANTED): (LifecycleState.IDLE, LifecycleStep.FORGET),
    (LifecycleState.WARMING, LifecycleSignal.FAILED): (LifecycleState.IDLE, LifecycleStep.FORGET),
    (LifecycleState.READY, LifecycleSignal.FREE): (LifecycleState.CLAIMING, LifecycleStep.CLAIM),
    (LifecycleState.READY, LifecycleSignal.UNWANTED): (LifecycleState.IDLE, LifecycleStep.FORGET),
    (LifecycleState.READY, LifecycleSignal.FAILED): (LifecycleState.IDLE, LifecycleStep.FORGET),
    (LifecycleState.CLAIMING, LifecycleSignal.CLAIMED): (LifecycleState.OWNING, LifecycleStep.SETTLE),
    (LifecycleState.CLAIMING, LifecycleSignal.BEATEN): (LifecycleState.READY, LifecycleStep.WAIT),
    (LifecycleState.CLAIMING, LifecycleSignal.FAILED): (LifecycleState.LOST, LifecycleStep.END),
    (LifecycleState.CLAIMING, LifecycleSignal.FENCED): (LifecycleState.LOST, LifecycleStep.END),
    (LifecycleState.OWNING, LifecycleSignal.AWAITED): (LifecycleState.RELEASING, LifecycleStep.RELEASE),
    (LifecycleState.OWNING, LifecycleSignal.FENCED): (LifecycleState.LOST, LifecycleStep.END),
    (LifecycleState.OWNING, LifecycleSignal.FAILED): (LifecycleState.LOST, LifecycleStep.END),
    (LifecycleState.RELEASING, LifecycleSignal.OVER): (LifecycleState.IDLE, LifecycleStep.WAIT),
    (LifecycleState.RELEASING, LifecycleSignal.FENCED): (LifecycleState.LOST, LifecycleStep.END),
    (LifecycleState.LOST, LifecycleSignal.OVER): (LifecycleState.IDLE, LifecycleStep.WAIT),
}


class ShardLifecycle:
    """The state of one shard in one worker."""

    def __init__(self, shard: int) -> None:
        self.shard = shard
        self.state = LifecycleState.IDLE

    def take(self, signal: LifecycleSignal) -> LifecycleStep:
        """Goes on to the next state, and says what is to be done for that."""
        following = TRANSITIONS.get((self.state, signal))
        if following is None:
            raise Bug(f"shard {self.shard} is {self.state.value}, and was told that {signal.value}")
        self.state, step = following
        return step
