"""The effects that the framework itself carries out, and the inputs that report their outcome.

Users define `Action` (for an actuator) and `Work` (slow code elsewhere). The rest is here: tell another agent, publish,
set a timer. Every effect goes to a *sink*; within a sink, effects of one agent keep their order.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any, ClassVar, Generic, TypeVar

from msgspec import Struct

from stigmergy.agents.messages import Action, Command, Effect, Event, Message, MessageMeta, Work, is_text, spec_of
from stigmergy.agents.ordered import LEDGER, ClaimAnyAsked, ClaimAsked, ClaimReleased
from stigmergy.base.errors import ClaimLapsed, DefinitionError
from stigmergy.crdt.delta import Edit

Events = Iterable[Event | Edit]
"""What a `decide` handler yields: events, and writes to shared fields."""
Effects = Iterable[Effect]
"""What a `react` handler yields."""

ACTUATORS = "actuators"
WORK = "work"
PUBLISH = "publish"
MODELS = "models"
"""The sink of what models are asked, and the source of their answers."""
LAPSED = "is not held any more; the order is dropped: claim again, and decide anew"
ENTRIES = "entries"
"""The sink of what is proposed to ledgers of users' own."""
WITHIN_S_MAX = 366 * 24 * 3600
TIMERS = "timers"
"""The timers' sink is the shard itself: it keeps a table, and the host only says when one is due."""


def shard_sink(shard: int) -> str:
    """The sink and the source name of a shard; tells between shards carry it both ways."""
    return f"shard/{shard}"


REMOTE_SINKS = "to/"
"""The sink of tells to an agent that does not run here is this and its address: sequences are dense per such agent."""


def remote_sink(address: str) -> str:
    """The sink of tells to an agent that another node, or another fleet, runs."""
    return f"{REMOTE_SINKS}{address}"


class Tell(Effect, name="stigmergy.Tell"):
    """Gives a command or an observed event to another agent, in a later step; first-in first-out per pair of shards.

    `to` is an address, `Drone/D-17`, or that of an agent of another fleet, `ground/Pilot/D-17`. A tell to an agent that
    another node runs is kept until that node has it, at most `within_s` seconds; without it, as long as the node's
    settings say. One that is given up is a dead letter, and its teller gets `TellFailed`.
    """

    to: str
    message: Command | Event
    within_s: float | None = None


class Publish(Effect, name="stigmergy.Publish"):
    """Publishes an event to listeners outside: on the bus."""

    topic: str
    event: Event


class ProposeEntry(Effect, name="stigmergy.ProposeEntry", omit_defaults=True):
    """Proposes an entry to a ledger; `Ledger.propose` makes it. The answer is `Proposed`."""

    ledger: str
    id: str
    entry: bytes
    """Its bytes, with its tag."""
    within_s: float | None = None


class WakeMe(Effect, name="stigmergy.WakeMe"):
    """Sets this agent's timer `name`; `Woken(name)` comes after the duration, whatever the wall clock does meanwhile.

    Setting it again replaces it.
    """

    name: str
    after_s: float


class WakeMeAt(Effect, name="stigmergy.WakeMeAt"):
    """Sets this agent's timer `name` to a moment of the wall clock, in seconds since 1970."""

    name: str
    at_s: float


class CancelWake(Effect, name="stigmergy.CancelWake"):
    """Forgets this agent's timer `name`; nothing happens if there is none."""

    name: str


class Timer:
    """A timer of an agent that is known by its class instead of by a text. Subclass it; there are no instances.

        class NextStep(Timer): ...

        yield NextStep.wake(after_s=5)              # in @react
        def step(self, woken: Woken[NextStep]) ...  # when it goes off

    The timer is called like the class, or as `class NextStep(Timer, name="step")` says.
    """

    timer_name: ClassVar[str] = ""

    def __init_subclass__(cls, *, name: str = "", **config: Any) -> None:
        super().__init_subclass__(**config)
        cls.timer_name = name or cls.__name__
        if not is_text(cls.timer_name) or "@" in cls.timer_name:
            raise DefinitionError(f"{cls.__name__}: name={name!r}; the name of a timer is a text without '@'")

    @classmethod
    def wake(cls, *, after_s: float) -> WakeMe:
        """The effect that sets this timer; setting it again replaces it."""
        return WakeMe(name=cls.timer_name, after_s=after_s)

    @classmethod
    def wake_at(cls, *, at_s: float) -> WakeMeAt:
        """The effect that sets this timer to a moment of the wall clock, in seconds since 1970."""
        return WakeMeAt(name=cls.timer_name, at_s=at_s)

    @classmethod
    def cancel(cls) -> CancelWake:
        """The effect that forgets this timer; nothing happens if it is not set."""
        return CancelWake(name=cls.timer_name)


if TYPE_CHECKING:
    from typing_extensions import TypeVar as TypeVarWithDefault

    # A default, so that the plain `Woken` needs no brackets.
    TimerT = TypeVarWithDefault("TimerT", bound=Timer, default=Timer)

    class _OfTimer(Generic[TimerT]):
        """What type checkers see."""

else:
    TimerT = TypeVar("TimerT", bound=Timer)

    class _OfTimer:
        """`Woken[NextStep]` is a class of events of its own, made when it is first named."""

        __slots__ = ()

        def __class_getitem__(cls, timer: Any) -> type[Any]:
            if isinstance(timer, TypeVar):
                return cls
            if not (isinstance(timer, type) and issubclass(timer, Timer)) or timer is Timer:
                shown = getattr(timer, "__name__", repr(timer))
                raise DefinitionError(
                    f"Woken[{shown}]: name a timer by a class: class NextStep(Timer), Woken[NextStep]"
                )
            return event_of(cls, timer, f"{spec_of(Woken).name}.{timer.timer_name}", 1, {"name": str})


class Woken(_OfTimer[TimerT], Event, name="stigmergy.Woken"):
    """A timer of this agent went off; `Woken[NextStep]` is for one timer alone."""

    name: str


class ActionDone(Event, name="stigmergy.ActionDone"):
    """An actuator confirmed. Kept only if the agent has a handler for it.

    A compiled agent keeps no `key` of this and the following ones, and no `reason`; and as the `action` or `work` an
    empty text unless its handlers mention it.
    """

    action: str
    key: str = ""


class ActionFailed(Event, name="stigmergy.ActionFailed"):
    """An actuator gave up on an action, or there is none. Kept only if the agent has a handler for it."""

    action: str
    key: str = ""
    reason: str = ""


class TellFailed(Event, name="stigmergy.TellFailed"):
    """A tell was given up: nobody confirmed it in time, or it was refused. It is in the dead letters. Kept only if the
    agent has a handler for it."""

    to: str
    message: str
    """The name of the message's class."""
    reason: str = ""


class WorkFailed(Event, name="stigmergy.WorkFailed"):
    """Slow work raised or found nobody to do it. Kept only if the agent has a handler for it."""

    work: str
    key: str = ""
    reason: str = ""


class WindowClosed(Event, name="stigmergy.WindowClosed"):
    """A tumbling window of this agent is complete; read it as `self.<window>.closed`."""

    window: str
    start_s: float
    end_s: float


class OrderClaim(Struct, frozen=True):
    """The claim that an order is bound to, as it was the moment before the actuator was called."""

    field: str
    resource: str
    fencing_token: int
    """Higher with each new grant of the resource: a device that remembers the highest refuses orders of a former
    holder, once it has seen the newer grant."""
    until_ns: int
    """By the monotonic clock of this node: from then on the order may not be carried out."""
    left_s: float
    """So long it was until then: give it to a device that has a clock of its own."""
    asked: Callable[[], bool]

    @property
    def held(self) -> bool:
        """Whether the claim is held at this very moment, by this node's clock: ask before each irreversible step."""
        return self.asked()

    def check(self) -> None:
        """Raises ClaimLapsed if it is held no longer: the order is then given up without another try."""
        if not self.held:
            raise ClaimLapsed(f"the claim on {self.resource} under fencing token {self.fencing_token} {LAPSED}")


_events: dict[tuple[type[Any], type[Any]], type[Any]] = {}


def event_of(generic: type[Event], of: type[Any], name: str, version: int, types: Mapping[str, Any]) -> type[Any]:
    """The class of events that `generic[of]` stands for, made once: a subclass with a tag and fields of its own."""
    made = _events.get((generic, of))
    if made is None:
        title = f"{generic.__name__}[{of.__name__}]"
        required = len(generic.__struct_fields__) - len(generic.__struct_defaults__)
        defaults = dict(zip(generic.__struct_fields__[required:], generic.__struct_defaults__, strict=True))
        # Its fields are told anew, all of them: one alone would go to the end.
        told = {"__annotations__": dict(types), "__module__": of.__module__, "__qualname__": title, **defaults}
        made = _events[generic, of] = MessageMeta(title, (generic,), told, name=name, version=version)
    return made


EffectT = TypeVar("EffectT", bound=Effect)


class Order(Struct, Generic[EffectT], frozen=True):
    """An effect as its actuator or worker gets it.

    `key` is the same at every repetition: give it to a device that knows idempotency keys. `token` is that of the
    order: it only ever grows per agent, and says nothing of claims. That of a claim is `claim.fencing_token`.
    """

    agent: str
    effect: EffectT
    key: str
    token: int
    sequence: int
    """Dense per sink: a receiver that remembers the highest contiguous one drops what it had."""
    attempt: int = 1
    claim: OrderClaim | None = None
    """The claim that the effect is bound to with `valid_while`, held when the order was given; None: it is bound to
    none."""


def sink_of(effect: Effect) -> str:
    """Which sink carries out this effect; tells are routed by the shard, which knows where agents live."""
    if isinstance(effect, Action):
        return ACTUATORS
    if isinstance(effect, Work):
        return WORK
    if isinstance(effect, Publish):
        return PUBLISH
    if isinstance(effect, ClaimAsked | ClaimAnyAsked | ClaimReleased):
        return LEDGER
    if isinstance(effect, ProposeEntry):
        return ENTRIES
    return effect.__sink__ or TIMERS


__all__ = [
    "ACTUATORS",
    "ENTRIES",
    "MODELS",
    "PUBLISH",
    "REMOTE_SINKS",
    "TIMERS",
    "WORK",
    "ActionDone",
    "ActionFailed",
    "CancelWake",
    "Effects",
    "Events",
    "Message",
    "Order",
    "OrderClaim",
    "ProposeEntry",
    "Publish",
    "Tell",
    "TellFailed",
    "Timer",
    "WakeMe",
    "WakeMeAt",
    "WindowClosed",
    "Woken",
    "WorkFailed",
    "remote_sink",
    "shard_sink",
    "sink_of",
]
