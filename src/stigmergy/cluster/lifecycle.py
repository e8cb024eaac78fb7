"""One shard's life in one worker: what may follow what, as a table. Pure; `tenant` does what it says.

    idle -> warming -> ready -> claiming -> owning -> releasing -> idle
                                    \\          \\          \\-> lost -> idle
                                     \\-> ready  \\-> lost

A planned hand-over is two such lives side by side: one worker becomes ready, then the other releases, then the first
one claims. A take-over is one alone. Whatever is not in the table cannot happen; a signal that comes at the wrong time
is a bug of ours.
"""

from __future__ import annotations

from enum import Enum

from stigmergy.base.errors import Bug


class State(Enum):
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


class Signal(Enum):
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


class Step(Enum):
    """What is to be done on the way."""

    FOLLOW = "begin to replay the log, and go on"
    ANNOUNCE = "say that we are ready"
    CLAIM = "claim the log and start a host"
    SETTLE = "say that it is ours"
    RELEASE = "stop the host and let go"
    END = "end the host as it is"
    FORGET = "follow no more"
    WAIT = "nothing"


TRANSITIONS: dict[tuple[State, Signal], tuple[State, Step]] = {
    (State.IDLE, Signal.WANTED): (State.WARMING, Step.FOLLOW),
    (State.WARMING, Signal.WARM): (State.READY, Step.ANNOUNCE),
    (State.WARMING, Signal.UNWANTED): (State.IDLE, Step.FORGET),
    (State.WARMING, Signal.FAILED): (State.IDLE, Step.FORGET),
    (State.READY, Signal.FREE): (State.CLAIMING, Step.CLAIM),
    (State.READY, Signal.UNWANTED): (State.IDLE, Step.FORGET),
    (State.READY, Signal.FAILED): (State.IDLE, Step.FORGET),
    (State.CLAIMING, Signal.CLAIMED): (State.OWNING, Step.SETTLE),
    (State.CLAIMING, Signal.BEATEN): (State.READY, Step.WAIT),
    (State.CLAIMING, Signal.FAILED): (State.LOST, Step.END),
    (State.CLAIMING, Signal.FENCED): (State.LOST, Step.END),
    (State.OWNING, Signal.AWAITED): (State.RELEASING, Step.RELEASE),
    (State.OWNING, Signal.FENCED): (State.LOST, Step.END),
    (State.OWNING, Signal.FAILED): (State.LOST, Step.END),
    (State.RELEASING, Signal.OVER): (State.IDLE, Step.WAIT),
    (State.RELEASING, Signal.FENCED): (State.LOST, Step.END),
    (State.LOST, Signal.OVER): (State.IDLE, Step.WAIT),
}


class Tenancy:
    """The state of one shard in one worker."""

    def __init__(self, shard: int) -> None:
        self.shard = shard
        self.state = State.IDLE

    def take(self, signal: Signal) -> Step:
        """Goes on to the next state, and says what is to be done for that."""
        following = TRANSITIONS.get((self.state, signal))
        if following is None:
            raise Bug(f"shard {self.shard} is {self.state.value}, and was told that {signal.value}")
        self.state, step = following
        return step

    @property
    def has_host(self) -> bool:
        """Whether a host of it may run here."""
        return self.state in (State.CLAIMING, State.OWNING, State.RELEASING, State.LOST)
