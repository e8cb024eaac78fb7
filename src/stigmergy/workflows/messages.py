"""What a run of a workflow keeps in its log, and what people may tell it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Generic, Literal, TypeVar

from stigmergy.agents.effects import event_of
from stigmergy.agents.messages import Command, Event, spec_of
from stigmergy.base.errors import DefinitionError

Status = Literal["new", "running", "undoing", "done", "undone", "stuck"]
"""`undone`: it failed or was cancelled, and everything was compensated. `stuck`: a compensation was given up."""

CommandT = TypeVar("CommandT", bound=Command)

if TYPE_CHECKING:

    class _OfCommand(Generic[CommandT]):
        """What type checkers see."""

else:

    class _OfCommand:
        """`RunBegan[Deliver]` is a class of its own, made when it is first named."""

        __slots__ = ()

        def __class_getitem__(cls, command: Any) -> type[Any]:
            if isinstance(command, TypeVar):
                return cls
            if not (isinstance(command, type) and issubclass(command, Command)):
                raise DefinitionError(f"RunBegan[{command!r}]: name the command that begins a run")
            spec = spec_of(command)
            types = {"command": command, "version": int, "digest": str, "run": str, "step": str, "attempt": int}
            return event_of(cls, command, f"{spec_of(RunBegan).name}.{spec.name}", spec.version, types)


class RunBegan(_OfCommand[CommandT], Event, name="stigmergy.RunBegan"):
    """A run began, with this command, on this version of its workflow; as a step of another run, if one is named."""

    command: CommandT
    version: int
    digest: str
    run: str = ""
    step: str = ""
    attempt: int = 0


class StepBegun(Event, name="stigmergy.StepBegun"):
    """A step is under way. One that undoes another is called `undo TakeOff`."""

    step: str
    attempt: int
    to: str = ""
    """The agent that is asked, or the resource that is claimed."""


class StepDone(Event, name="stigmergy.StepDone"):
    """A step is done."""

    step: str


class StepFailed(Event, name="stigmergy.StepFailed"):
    """A try failed. `again_s` later it is tried again; below 0: it is given up."""

    step: str
    attempt: int
    reason: str
    again_s: float = -1.0
    unknown: bool = False
    """Whether it may have been carried out all the same: then it is undone with the others."""


class StepKept(Event, name="stigmergy.StepKept"):
    """The run went back, and passes over a step whose effect still stands: it is done, and was not undone."""

    step: str


class StepUndone(Event, name="stigmergy.StepUndone"):
    """The effect of a step was compensated."""

    step: str


class WentBack(Event, name="stigmergy.WentBack"):
    """An event sent the run back to an earlier step. It goes on there after a pause."""

    step: str
    to: str
    because: str
    again_s: float = 0.0


class RoundBegan(Event, name="stigmergy.RoundBegan"):
    """The pause is over after which a run that went back goes on."""

    step: str
    """That sent it back."""


class RepeatBegan(Event, name="stigmergy.RepeatBegan"):
    """The run came back to a step that is to be done once more: what it did before is undone first."""

    step: str


class BranchTaken(Event, name="stigmergy.BranchTaken"):
    """A condition was looked at."""

    branch: str
    at: int
    holds: bool


class PartsBegan(Event, name="stigmergy.PartsBegan"):
    """The parts of a Parallel began."""

    at: int
    fork: int


class PartsJoined(Event, name="stigmergy.PartsJoined"):
    """All parts of a Parallel are done, or, with join="any", the first."""

    fork: int


class PartFailed(Event, name="stigmergy.PartFailed"):
    """A part of a Parallel with join="any" failed. The others go on, and what it has done is undone."""

    fork: int
    at: int
    """Where in the part it failed."""
    reason: str


class UndoBegan(Event, name="stigmergy.UndoBegan"):
    """The run failed, or was cancelled: what it has done is undone, last first."""

    reason: str
    run: str = ""
    """The run above that asked for it, its step and try."""
    step: str = ""
    attempt: int = 0


class RunEnded(Event, name="stigmergy.RunEnded"):
    """The run is over."""

    status: str
    reason: str = ""


class Approved(Event, name="stigmergy.Approved"):
    """A person said yes."""

    step: str
    by: str


class CancelRun(Command, name="stigmergy.CancelRun"):
    """Ends a run: what it has done is undone."""

    reason: str = ""


class ApproveStep(Command, name="stigmergy.ApproveStep"):
    """Says yes to an approval that a run waits for."""

    step: str
    by: str = ""


class DenyStep(Command, name="stigmergy.DenyStep"):
    """Says no: the run fails, and is undone."""

    step: str
    by: str = ""
    reason: str = ""


class RetryUndo(Command, name="stigmergy.RetryUndo"):
    """Tries again to undo what a stuck run could not undo."""


TRANSITIONS = (
    StepBegun,
    StepDone,
    StepFailed,
    StepKept,
    StepUndone,
    WentBack,
    RoundBegan,
    RepeatBegan,
    BranchTaken,
    PartsBegan,
    PartsJoined,
    PartFailed,
    UndoBegan,
    RunEnded,
)
"""What a run folds, besides its beginning and the events of its steps."""
_TAGS = frozenset(spec_of(event).tag for event in (*TRANSITIONS, Approved))


def is_decided(tag: str) -> bool:
    """Whether a run decides events with this tag, although they are the framework's."""
    return tag in _TAGS or tag.startswith(f"{spec_of(RunBegan).name}.")
