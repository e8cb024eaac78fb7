"""What an agent class declares about failures, and the events that the framework keeps about them.

    safe = WhenStale(PhaseChanged, after_s=0.5, then=AllRed())
    supervision = Supervise(stop_after=3, within_s=60)

A *safe action* is idempotent: it goes out without waiting for the disk, and possibly again. It is the one exception
from journal-before-effect, so that a dead disk does not keep a drone in the air.
"""

from __future__ import annotations

from collections.abc import Callable

from msgspec import UNSET, Struct

from stigmergy.agents.messages import Action, Event, Message, is_number
from stigmergy.base.errors import DefinitionError

NEVER = 2**31
"""More failures than are counted: such an agent is not stopped."""
FAILURES_COUNT_MAX = 1_000
"""So many failures of an agent are remembered."""


class WhenStale(Struct, frozen=True):
    """Without a fresh event of this type for `after_s` seconds, the safe action goes out, once per silence.

    The clock is the monotonic one; it starts with the agent's first input, and anew when the node starts. The same
    action goes out when the agent is stopped by its supervision and when the journal fails.
    """

    event: type[Event]
    after_s: float
    then: Action

    def __post_init__(self) -> None:
        _check_waited_for(self.event)
        if not is_number(self.after_s) or not 0 < self.after_s <= 86_400:
            raise DefinitionError(f"WhenStale(after_s={self.after_s}): give more than 0 and at most a day of seconds")
        _check_safe("WhenStale", self.then)


class SafeAction(Struct, frozen=True):
    """The safe action of an agent that has no staleness rule: when it is stopped and when the journal fails."""

    then: Action

    def __post_init__(self) -> None:
        _check_safe("SafeAction", self.then)


def _check_waited_for(event: object) -> None:
    if not (isinstance(event, type) and issubclass(event, Event)):
        raise DefinitionError(f"WhenStale({event!r}): name the class of the event that must not stay away")


def _check_safe(where: str, then: object) -> None:
    """Found now, and not when it is to make an agent safe."""
    if not isinstance(then, Action):
        raise DefinitionError(f"{where}(then={then!r}): give an action, made from its class: then=Land()")
    if then.valid_while is not UNSET:
        raise DefinitionError(f"{where}(then={then!r}): what makes safe needs no claim; take valid_while out")


class Supervise(Struct, frozen=True):
    """Stops an agent after so many failed inputs within so many seconds; without it an agent goes on for ever.

    Only inputs on which a handler of the agent failed count. What never reached a handler (bytes that do not decode,
    messages the agent does not know) is the sender's fault, and no sender can stop an agent with it.
    """

    stop_after: int
    within_s: float = 60.0

    def __post_init__(self) -> None:
        counted = is_number(self.stop_after) and 1 <= self.stop_after <= FAILURES_COUNT_MAX
        if not counted and self.stop_after != NEVER:
            raise DefinitionError(f"Supervise(stop_after={self.stop_after}): give 1 to {FAILURES_COUNT_MAX}")
        if not is_number(self.within_s) or not 0 < self.within_s <= 86_400 * 366:
            raise DefinitionError(f"Supervise(within_s={self.within_s}): give more than 0 and at most a year")


GO_ON = Supervise(stop_after=NEVER)


class FrameworkEvent(Event):
    """An event that the framework keeps in an agent's log. Agents may evolve and react to it like to any other."""


class InputFailed(FrameworkEvent, name="stigmergy.InputFailed"):
    """An input raised, or could not be decoded. It is in the dead letters under `letter` until retried or dropped.

    Where a handler raised, it is kept in the log of the agent, otherwise in that of the shard; `to` is the address.
    """

    letter: str
    to: str
    source: str
    error: str
    input: bytes


OnFailed = Callable[[int, InputFailed, str, Exception | None, bytes], None]
"""Is told at once of an input that failed: the shard, what is kept of it, its type, what a handler raised, and the id
of its trace or nothing."""


class LetterTaken(FrameworkEvent, name="stigmergy.LetterTaken"):
    """A dead letter was retried or dropped, and is no longer there."""

    letter: str
    retried: bool


class AgentStopped(FrameworkEvent, name="stigmergy.AgentStopped"):
    """Supervision stopped the agent: commands are refused, events go to the dead letters, until it is resumed."""

    reason: str


class AgentResumed(FrameworkEvent, name="stigmergy.AgentResumed"):
    """Somebody resumed a stopped agent."""

    by: str


class SafeActionTaken(FrameworkEvent, name="stigmergy.SafeActionTaken"):
    """The safe action went out, before this event could be written; `because` says what was silent or broken."""

    action: str
    because: str


class InputsSkipped(FrameworkEvent, name="stigmergy.InputsSkipped"):
    """A source's inputs were given up: shed under load, declared missing by the sender, or waited for too long."""

    source: str
    first: int
    last: int
    because: str


class SignerEnrolled(FrameworkEvent, name="stigmergy.SignerEnrolled"):
    """From the next commit on, this key may sign. The commit that says so is signed by a key enrolled before it."""

    algorithm: int
    public_key: bytes
    cites: bytes
    epoch: int = 0


class SignerRevoked(FrameworkEvent, name="stigmergy.SignerRevoked"):
    """This key's signatures count up to this position and no further."""

    algorithm: int
    public_key: bytes
    last_position: int


class ColumnsDeclared(FrameworkEvent, name="stigmergy.ColumnsDeclared"):
    """How the records and actions of a kind of compiled agents lie in bytes, from here on; see agents/columns.py."""

    kind: str
    layout: bytes
    templates: bytes


class AgentsEnrolled(FrameworkEvent, name="stigmergy.AgentsEnrolled"):
    """Compiled agents of this kind have got their numbers: the first this one, the others those behind it."""

    kind: str
    first: int
    names: tuple[str, ...]


SHARD_ADDRESS = ""
"""Under this address a shard keeps what concerns no single agent."""

FRAMEWORK_EVENTS: tuple[type[Message], ...] = (
    InputFailed,
    LetterTaken,
    AgentStopped,
    AgentResumed,
    SafeActionTaken,
    InputsSkipped,
    SignerEnrolled,
    SignerRevoked,
    ColumnsDeclared,
    AgentsEnrolled,
)
