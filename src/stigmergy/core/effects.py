"""The effects that the framework itself carries out, and what comes back from the world as inputs.

Users' own effects are `Action` (an actuator) and `Work` (slow code elsewhere). The rest is here: tell another agent,
publish, wake me later. Every effect goes to a *sink*; within a sink, effects of one agent keep their order.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Generic, TypeVar

from msgspec import Struct

from stigmergy.core.claiming import LEDGER, ClaimAsked, ClaimReleased
from stigmergy.core.errors import ClaimLapsed
from stigmergy.core.messages import Action, Command, Effect, Event, Message, Work
from stigmergy.crdt.delta import Edit

Events = Iterable[Event | Edit]
"""What a `decide` handler yields: events, and writes to shared fields."""
Effects = Iterable[Effect]
"""What a `react` handler yields."""

ACTUATORS = "actuators"
WORK = "work"
PUBLISH = "publish"
LAPSED = "is not held any more; the order is dropped: claim again, and decide anew"
TIMERS = "timers"
"""The timers' sink is the shard itself: it keeps a table, and the host only says when one is due."""


def shard_sink(shard: int) -> str:
    """The sink and the source name of a shard; tells between shards carry it both ways."""
    return f"shard/{shard}"


class Tell(Effect, name="stigmergy.Tell"):
    """Gives a command or an observed event to another agent, in a later step; first-in first-out per pair of shards."""

    to: str
    message: Command | Event


class Publish(Effect, name="stigmergy.Publish"):
    """Offers an event to whoever listens outside: the bus."""

    topic: str
    event: Event


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


class Woken(Event, name="stigmergy.Woken"):
    """A timer of this agent went off."""

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
    """Higher with each new grant of the resource, whoever gets it: a device that remembers the highest refuses what a
    former holder sends, once it has heard of the newer grant."""
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
    if isinstance(effect, ClaimAsked | ClaimReleased):
        return LEDGER
    return TIMERS


__all__ = [
    "ACTUATORS",
    "PUBLISH",
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
    "Publish",
    "Tell",
    "WakeMe",
    "WakeMeAt",
    "WindowClosed",
    "Woken",
    "WorkFailed",
    "shard_sink",
    "sink_of",
]
