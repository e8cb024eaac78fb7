"""Steps of workflows that an agent carries out: it is asked, decides as always, and its events go back to the run.

    class Drone(Agent):
        steps: Steps = Steps()      # workflows may command this agent and wait for its events

A run asks with `StepAsked`. The agent's own `decide` handler for the command accepts or refuses it; both are facts of
the agent's log. While a step is open, each event that the run waits for is told to it once it is part of the agent's
state. All of this is tells: once, in order, wherever the run and the agent live.
"""

from __future__ import annotations

import msgspec
from msgspec import Struct

from stigmergy.agents.codec import encode, tag_of
from stigmergy.agents.effects import Effects, Tell
from stigmergy.agents.messages import Action, Effect, Event, Message, Work, spec_of

OPEN_COUNT_MAX = 64
"""Steps that may be open at one agent; one more is refused."""
ACCEPTED = ""
"""Among what a run waits for: that the command was accepted."""


class StepAsked(Event, name="stigmergy.StepAsked"):
    """A run of a workflow asks an agent to carry out a step. Without a `body` it only waits for events."""

    run: str
    step: str
    attempt: int
    body: bytes
    """The command, action or work."""
    wants: tuple[str, ...]
    """The tags of the events that the run waits for."""
    others: tuple[str, ...] = ()
    """Steps of the same run at this agent that stay open."""
    match: tuple[tuple[str, bytes], ...] = ()
    """Fields that tell whose an event is, with the bytes of their values."""


class StepTaken(Event, name="stigmergy.StepTaken"):
    """The agent carries out a step."""

    run: str
    step: str
    attempt: int
    wants: tuple[str, ...]
    others: tuple[str, ...] = ()
    body: bytes = b""
    match: tuple[tuple[str, bytes], ...] = ()


class StepRefused(Event, name="stigmergy.StepRefused"):
    """The agent refused a step. Kept by the agent, and told to the run."""

    run: str
    step: str
    attempt: int
    reason: str
    unknown: bool = False
    """Whether it may have been carried out all the same: a run that is a step could not be undone."""


class StepHeard(Event, name="stigmergy.StepHeard"):
    """Told to a run: an event that one of its steps waits for, or, without a `body`, that its command was accepted."""

    step: str
    attempt: int
    body: bytes


class StepsClosed(Event, name="stigmergy.StepsClosed"):
    """Told to an agent: a run has ended, and waits for nothing any more."""

    run: str


class OpenStep(Struct, frozen=True, omit_defaults=True):
    """A step that an agent carries out. A new field has a default, and is no part of the layout of an agent's state."""

    run: str
    step: str
    attempt: int
    wants: tuple[str, ...]
    match: tuple[tuple[str, bytes], ...] = ()


class Steps(Struct, frozen=True):
    """The steps that an agent carries out now. The framework fills this field."""

    open: tuple[OpenStep, ...] = ()

    def taken(self, step: StepTaken) -> Steps:
        """With this step, and of its run only those others that are still open."""
        kept = tuple(one for one in self.open if one.run != step.run or one.step in step.others)
        return Steps((*kept, OpenStep(step.run, step.step, step.attempt, step.wants, step.match)))

    def closed(self, run: str) -> Steps:
        """Without the steps of a run."""
        return Steps(tuple(one for one in self.open if one.run != run))

    def tells(self, event: Message) -> Effects:
        """What the runs are told of an event."""
        for one in self.open:
            if awaits(one, event) and fits(one.match, event):
                yield Tell(to=one.run, message=StepHeard(step=one.step, attempt=one.attempt, body=encode(event)))


def awaits(step: OpenStep | StepAsked, event: Message) -> bool:
    """Whether a step waits for events of this type."""
    return spec_of(type(event)).tag in step.wants


def fits(match: tuple[tuple[str, bytes], ...], event: Message) -> bool:
    """Whether an event has these values in those of these fields that it has."""
    names = type(event).__struct_fields__
    return all(name not in names or encode(getattr(event, name)) == value for name, value in match)


class StepEffect(Effect, name="stigmergy.StepEffect"):
    """An action or work of one try of a step. What comes back of it is a `StepHeard` of that try, so that a result that
    is late is not taken for that of the next try."""

    does: Action | Work
    step: str
    attempt: int

    def packed(self) -> bytes:
        """The bytes of the action or work, with its try among its fields; its actuator or worker does not see it."""
        return encode({**_fields.decode(encode(self.does)), _TRY: (self.step, self.attempt)})


_TRY = "try"
"""No field of a message can be called so."""
_TRY_BYTES = encode(_TRY)
_fields = msgspec.msgpack.Decoder(dict[str, msgspec.Raw])


class _Tried(Struct):
    tried: tuple[str, int] | None = msgspec.field(default=None, name=_TRY)


_tried = msgspec.msgpack.Decoder(_Tried)


def run_of(body: bytes) -> str:
    """The run that asks for a step with this message; empty: it is another message. A dead letter of it goes back to
    the run, which alone knows whether it still waits, and asks again."""
    return msgspec.msgpack.decode(body, type=StepAsked).run if tag_of(body) == spec_of(StepAsked).tag else ""


def heard_of(effect: bytes, result: bytes) -> bytes:
    """What an agent hears of an effect with these bytes: its result, of a step's try as a `StepHeard`."""
    tried = _tried.decode(effect).tried if _TRY_BYTES in effect else None
    return result if tried is None else encode(StepHeard(step=tried[0], attempt=tried[1], body=result))
