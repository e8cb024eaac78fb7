"""Small workflows for tests: steps A to E of an agent `Robot`, each ended by an event of its own, and undone."""

from typing import Any

import stigmergy as st
from stigmergy.agents.codec import encode
from stigmergy.agents.messages import Event
from stigmergy.agents.steps import StepAsked, StepHeard, StepRefused
from stigmergy.testing.scenario import Scenario


class Begin(st.Command):
    robot: str = "R1"
    number: int = 0


class A(st.Command):
    pass


class B(st.Command):
    pass


class C(st.Command):
    pass


class D(st.Command):
    pass


class UndoA(st.Command):
    pass


class UndoB(st.Command):
    pass


class UndoC(st.Command):
    pass


class UndoD(st.Command):
    pass


class DidA(st.Event):
    pass


class DidB(st.Event):
    pass


class DidC(st.Event):
    pass


class DidD(st.Event):
    pass


class Jammed(st.Event):
    pass


class Blocked(st.Event):
    pass


class Beep(st.Action):
    number: int = 0


class Hush(st.Action):
    pass


class Measure(st.Work):
    pass


class Measured(st.Event):
    value: int


COMMANDS: dict[str, tuple[type[st.Command], type[Event], type[st.Command]]] = {
    "A": (A, DidA, UndoA),
    "B": (B, DidB, UndoB),
    "C": (C, DidC, UndoC),
    "D": (D, DidD, UndoD),
}


def step(name: str, **options: Any) -> st.Step:
    """A step that can be undone."""
    does, done, undo = COMMANDS[name]
    return st.Step(does, done=done, **{"undo": undo, **options})


def flow(*items: Any, **options: Any) -> st.Workflow:
    return st.Workflow("Trip", Begin, *items, **{"to": "Robot/{robot}", **options})


def heard(name: str, event: Event | None = None, attempt: int = 1) -> StepHeard:
    """What the robot tells of a step; without an event: that it is done, or accepted."""
    event = COMMANDS[name][1]() if event is None and name in COMMANDS else event
    return StepHeard(step=name, attempt=attempt, body=b"" if event is None else encode(event))


def refused(name: str, attempt: int = 1, **options: Any) -> StepRefused:
    return StepRefused(run="Trip/one", step=name, attempt=attempt, reason="no", **options)


def states(scenario: Scenario[Any]) -> dict[str, str]:
    """How each step is."""
    return {name: state.state for name, state in scenario.agent.steps.items()}


def asked(scenario: Scenario[Any]) -> list[tuple[str, str]]:
    """Whom the run has asked just now, and for which step."""
    effects = [one.message for one in scenario._happened]
    tells = [effect for effect in effects if isinstance(effect, st.Tell)]
    return [(tell.to, tell.message.step) for tell in tells if isinstance(tell.message, StepAsked)]


def kept(scenario: Scenario[Any]) -> list[str]:
    """The events that were kept just now, with their steps."""
    events = [one.message for one in scenario._happened if isinstance(one.message, st.Event)]
    return [" ".join(filter(None, (type(event).__name__, getattr(event, "step", "")))) for event in events]
