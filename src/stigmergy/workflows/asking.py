"""What a run asks others for: the agent that a step is told to, and the message, made of what the run knows."""

from __future__ import annotations

import re
from functools import cache
from typing import Any

import msgspec
from msgspec import UNSET
from msgspec.structs import fields as struct_fields

from stigmergy.agents.agent import reject
from stigmergy.agents.codec import encode
from stigmergy.agents.messages import BINDING, Action, Command, Event, Work, own_fields, spec_of
from stigmergy.agents.steps import ACCEPTED, StepAsked, fits
from stigmergy.workflows.definition import Workflow
from stigmergy.workflows.messages import CancelRun, RetryUndo, StepBegun
from stigmergy.workflows.run import StepState, tries_now
from stigmergy.workflows.step import (
    BOUND_ELSEWHERE,
    HERE,
    TRIES_MAX,
    UNDO,
    Cancelling,
    Holding,
    Releasing,
    Step,
    undone_by,
)

ID_CHARS_MAX = 128
_ADDRESS = re.compile(rf"[A-Za-z0-9_.-]{{1,64}}/[A-Za-z0-9_.:@=~-]{{1,{ID_CHARS_MAX}}}", re.ASCII)
PLACE = "Place"
"""The kind of the agents that carry out steps at other places: `Place/gateway.Delivery.J-17.PlanRoute`."""


def is_effect(step: Step) -> bool:
    """Whether it is an action or work."""
    return isinstance(step.does, type) and issubclass(step.does, Action | Work)


def has_message(step: Step) -> bool:
    return is_effect(step) or isinstance(step.does, Workflow) or (step.is_told and issubclass(step.does, Command))


def _known(run: Any, workflow: Workflow) -> dict[str, Any]:
    """All that is known by a name: of the command that began the run, and of the newest events of its steps."""
    found: dict[str, Any] = {}
    fields = _fields_known(workflow)
    for field in run.known:
        if field in fields:
            newest = getattr(run, field)
            found.update({name: getattr(newest, name) for name in own_fields(type(newest))})
    return found


@cache
def _fields_known(workflow: Workflow) -> frozenset[str]:
    events = (event for step in workflow.steps.values() for event in (step.done, step.on) if event is not None)
    return frozenset(f"last_{message.__name__}" for message in (workflow.start, *events))


def _filled(run: Any, workflow: Workflow, template: str) -> str:
    return template.format_map(_known(run, workflow)) if "{" in template else template


def message_of(run: Any, workflow: Workflow, step: Step) -> Any:
    """What a step tells an agent, an actuator or a worker."""
    does = step.does.start if isinstance(step.does, Workflow) else step.does
    if step.make is not None:
        made: Any = step.make(run)
        if type(made) is not does:
            called = "make_undo" if step.name.startswith(UNDO) else "make"
            what = "None" if made is None else type(made).__name__
            raise TypeError(f"{called} returned {what}; it must return {does.__name__}")
        if step.is_elsewhere and getattr(made, BINDING) is not UNSET:
            raise TypeError(BOUND_ELSEWHERE)
        return made
    known = _known(run, workflow)
    for name in _required(does):
        if name not in known:
            raise LookupError(f"{does.__name__}.{name} is not known")
    return does(**{name: known[name] for name in own_fields(does) if name in known})


def check_message(run: Any, workflow: Workflow, step: Step) -> None:
    """Raises for a message that cannot be made, or whose fields have values of other types than they say."""
    message = message_of(run, workflow, step)
    if step.make is not None:
        msgspec.msgpack.decode(encode(message), type=type(message))


@cache
def _required(message: type[Any]) -> tuple[str, ...]:
    """The fields without a default. To look at them takes ten times as long as to make the message."""
    return tuple(field.name for field in struct_fields(message) if field.required)


def target_of(run: Any, workflow: Workflow, step: Step, attempt: int) -> str:
    """The agent that a step is told to, or the resource that it claims; empty: the run carries it out itself."""
    of = run.steps.get(undone_by(step.name))
    if isinstance(step.does, Holding):
        return _filled(run, workflow, step.does.text)
    if isinstance(step.does, Releasing | Cancelling):
        return str(of.to)
    if isinstance(step.does, Workflow):
        return _address(f"{step.does.kind}/{run.id}.{step.name}.{attempt}")
    if is_effect(step):
        return _place_of(run, workflow, step, of)
    undoes_told = step.name.startswith(UNDO) and workflow.steps[undone_by(step.name)].is_told
    return str(of.to) if undoes_told else _address(_filled(run, workflow, step.to)) if step.is_told else ""


def _place_of(run: Any, workflow: Workflow, step: Step, of: StepState | None) -> str:
    """The agent that carries out an action or work, by its try. The same undoes it: what it asks of one sink is carried
    out in order, so an undo comes after an action that takes long."""
    name = undone_by(step.name)
    if step.name == f"{UNDO}{name}":
        return of.to if of is not None and is_effect(workflow.steps[name]) else ""
    at = step.at[min(tries_now(run, step.name), len(step.at)) - 1]
    return "" if at == HERE else _address(f"{PLACE}/{_filled(run, workflow, at)}.{workflow.kind}.{run.id}.{name}")


def check_names(run: Any, workflow: Workflow) -> None:
    """Refuses a run whose name makes the address of a later step too long."""
    for step in workflow.steps.values():
        made = [f"{run.id}.{step.name}.{TRIES_MAX}"] if isinstance(step.does, Workflow) else []
        if is_effect(step) and step.name in workflow.at:
            made = [f"{at}.{workflow.kind}.{run.id}.{step.name}" for at in step.at if at != HERE]
        for name in made:
            if len(name) > ID_CHARS_MAX:
                reject(
                    f"{step.name} would be carried out by {name}, which has more than {ID_CHARS_MAX} characters; give "
                    "the run a shorter name"
                )


def _address(text: str) -> str:
    if _ADDRESS.fullmatch(text) is None:
        raise ValueError(
            f"{text!r} is no address of an agent, {ID_CHARS_MAX} letters, digits and _.:@=~- at most behind its kind; "
            "give the run a shorter name, or other values"
        )
    return text


def asking_of(run: Any, workflow: Workflow, step: Step, begun: StepBegun) -> StepAsked:
    message: Any = None
    if isinstance(step.does, Cancelling):
        # A run that is not undone as a whole repeats the step, and has undone an earlier part under this name.
        by_person = begun.attempt > 1 and run.steps[step.name].tried == 1 and run.status == "undoing"
        message = RetryUndo() if by_person else CancelRun(reason=run.reason)
    elif has_message(step):
        message = message_of(run, workflow, step)
    wants = [spec_of(event).tag for event in step.events]
    others = tuple(
        name
        for name, state in run.steps.items()
        if name != step.name and state.to == begun.to and state.state in ("begun", "again")
    )
    return StepAsked(
        run=run.address,
        step=step.name,
        attempt=begun.attempt,
        body=b"" if message is None else encode(message),
        wants=tuple(wants) or (ACCEPTED,),
        others=others,
        match=_match_of(run, workflow, step, message),
    )


def _match_of(run: Any, workflow: Workflow, step: Step, message: Any) -> tuple[tuple[str, bytes], ...]:
    """The fields that events must share with the command of a step, or with what is known, and their values."""
    known = {} if message is not None or not step.matched else _known(run, workflow)
    values = ((name, known[name] if name in known else getattr(message, name)) for name in step.matched)
    return tuple((name, encode(value)) for name, value in values)


def is_of_step(run: Any, workflow: Workflow, step: Step, event: Event) -> bool:
    """Whether a step waits for an event that nobody ascribes to it."""
    if type(event) not in step.events:
        return False
    message = message_of(run, workflow, step) if step.matched and has_message(step) else None
    return fits(_match_of(run, workflow, step, message), event)
