"""The state of a run, as a pure machine: `settle` says which events follow by themselves, `apply` folds an event.

Tokens stand at instructions of the program. `settle` works on a copy: it yields an event, applies it there and looks
again, until every token waits for something. The same `apply` folds the same events into the run itself. A token that
undoes has a list of steps instead of a place in the program.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Literal, TypeVar

from msgspec import Struct, field
from msgspec.structs import replace

from stigmergy.agents.agent import Agent
from stigmergy.agents.codec import describe
from stigmergy.agents.messages import Event, Message
from stigmergy.base.errors import DefinitionError
from stigmergy.workflows.definition import Workflow
from stigmergy.workflows.messages import (
    BranchTaken,
    PartFailed,
    PartsBegan,
    PartsJoined,
    RepeatBegan,
    RoundBegan,
    RunBegan,
    RunEnded,
    Status,
    StepBegun,
    StepDone,
    StepFailed,
    StepKept,
    StepUndone,
    UndoBegan,
    WentBack,
)
from stigmergy.workflows.program import Choose, Do, End, Fork, Join, Jump, parts_of
from stigmergy.workflows.step import UNDO, undone_by

E = TypeVar("E", bound=Message)
Begin = Callable[[Any, str], Sequence[Event]]
SETTLE_COUNT_MAX = 10_000
"""Events that may follow from one input by themselves."""
UNDOING = -1
"""The place of a token that undoes."""


class RunToken(Struct, frozen=True):
    """Where a run, or a part of it, stands."""

    at: int
    fork: int = 0
    """The open fork that it is a part of; 0: none."""
    busy: bool = False
    """Its step is under way, or waits to be tried again."""
    undo: tuple[str, ...] = ()
    """Of a token that undoes: the steps that are left, the next one first."""


NOT_FOLDED = RunToken(UNDOING)
"""The token of a run whose steps are not there any more: its events were passed over, and its state is not known."""


class OpenFork(Struct, frozen=True):
    """Parts that run at the same time."""

    id: int
    parent: int
    join: int


class StepState(Struct, frozen=True):
    """What is known of a step."""

    state: Literal["begun", "again", "done", "failed", "left", "abandoned", "undone"]
    """`left`: the run went back to an earlier step; `abandoned`: nobody waits for it any more."""
    attempt: int
    since_s: float
    to: str = ""
    reason: str = ""
    tried: int = 1
    """How often it was begun since the run came to it; `attempt` goes on counting when the run goes back."""


class WorkflowRun(Agent, kind="stigmergy.WorkflowRun"):
    """A run of a workflow. The class of a workflow's runs has, for each of its messages, a field `last_…` more."""

    status: Status = "new"
    reason: str = ""
    version: int = 0
    digest: str = ""
    parent: str = ""
    """The run that this one is a step of, its step and try."""
    parent_step: str = ""
    parent_attempt: int = 0
    tokens: tuple[RunToken, ...] = ()
    forks: tuple[OpenFork, ...] = ()
    fork_count: int = 0
    steps: Mapping[str, StepState] = field(default_factory=dict)
    undoable: tuple[str, ...] = ()
    """Steps that are done, or may be, and can be undone; in the order in which they were done. `Beep at gateway` may
    have been done there, before it was tried at another place."""
    told: tuple[str, ...] = ()
    """The agents that carry out steps of it: they are told of its end."""
    known: tuple[str, ...] = ()
    """The fields `last_…` that are set, the newest last."""

    def last(self, message: type[E]) -> E:
        """The newest message of this type. Raises LookupError if there was none."""
        found = getattr(self, f"last_{message.__name__}", None)
        if found is None:
            raise LookupError(f"{self.address}: no {message.__name__} yet")
        return found  # type: ignore[no-any-return]

    @property
    def ended(self) -> bool:
        """Whether nothing happens any more by itself."""
        return self.status in ("done", "undone", "stuck")


def settle(run: Any, workflow: Workflow, begin: Begin) -> Iterator[Event]:
    """What follows by itself. `run` is a copy, and is changed. `begin` says what it means that a step begins."""
    for _ in range(SETTLE_COUNT_MAX):
        events = _next(run, workflow, begin)
        if not events:
            return
        for event in events:
            yield event
            apply(run, workflow, event)
    raise RuntimeError(f"{run.address} does not come to rest")


def _next(run: Any, workflow: Workflow, begin: Begin) -> Sequence[Event]:
    if run.ended or run.status == "new":
        return ()
    for token in run.tokens:
        if token.busy:
            continue
        events = _undo_next(run, token, begin) if token.at == UNDOING else _step_next(run, workflow, token, begin)
        if events:
            return events
    return ()


def _undo_next(run: Any, token: RunToken, begin: Begin) -> Sequence[Event]:
    if token.undo:
        return begin(run, f"{UNDO}{token.undo[0]}")
    if run.status == "undoing" and not any(other.undo for other in run.tokens):
        return (RunEnded(status="undone", reason=run.reason),)
    return ()


def _step_next(run: Any, workflow: Workflow, token: RunToken, begin: Begin) -> Sequence[Event]:
    match workflow.program[token.at]:
        case Do(step=name):
            if any(name == undone_by(one) for other in run.tokens for one in other.undo):
                return ()  # the run came back to it while it is being undone
            if name not in run.undoable or run.steps[name].state != "done":
                return begin(run, name)
            return (RepeatBegan(step=name) if workflow.steps[name].repeat else StepKept(step=name),)
        case Choose(name=name, condition=condition):
            try:
                holds = bool(condition(run))
            except Exception as error:
                return (failure(run, workflow, token.at, f"{name}: {describe(error)}"),)
            return (BranchTaken(branch=name, at=token.at, holds=holds),)
        case Fork():
            return (PartsBegan(at=token.at, fork=run.fork_count + 1),)
        case Join(any=takes_first):
            inside = [other for other in run.tokens if token.fork in _forks_of(run, other)]
            met = takes_first or all(other.at == token.at and other.fork == token.fork for other in inside)
            return (PartsJoined(fork=token.fork),) if met else ()
        case End():
            # What undoes the parts that were not first ends before the run does.
            return (RunEnded(status="done"),) if run.tokens == (token,) else ()
        case Jump():  # `_place` has followed it
            return ()


def tries_now(run: Any, name: str) -> int:
    """Which try it is if a step begins now, counted since the run came to it."""
    state = run.steps.get(name)
    return state.tried + 1 if state is not None and state.state == "again" else 1


def apply(run: Any, workflow: Workflow, event: Event) -> None:
    """Folds an event into a run."""
    match event:
        case RunBegan():
            run.status, run.version, run.digest = "running", event.version, event.digest
            run.parent, run.parent_step, run.parent_attempt = event.run, event.step, event.attempt
            run.tokens = (RunToken(_place(workflow, 0)),)
        case StepBegun(step=name, attempt=attempt, to=to):
            _leave_place(run, workflow, name, to)
            _note(run, name, StepState("begun", attempt, run.now, to, tried=tries_now(run, name)))
            _move(run, workflow, name, busy=True)
            if workflow.steps[name].is_told and to not in run.told:
                run.told = (*run.told, to)
        case StepDone(step=name):
            _note(run, name, replace(run.steps[name], state="done", since_s=run.now, reason=""))
            _done(run, workflow, name)
        case StepKept(step=name):
            _done(run, workflow, name)
        case StepFailed(step=name, attempt=attempt, reason=reason):
            was = run.steps.get(name) or StepState("begun", attempt, run.now)
            ended: Any = "failed" if event.again_s < 0 else "again"
            _note(run, name, replace(was, state=ended, attempt=attempt, since_s=run.now, reason=reason))
            if event.unknown:
                _can_undo(run, workflow, name)
        case StepUndone(step=name):
            _note(run, undone_by(name), replace(run.steps[undone_by(name)], state="undone", since_s=run.now))
            run.undoable = tuple(one for one in run.undoable if one != name)
        case WentBack(step=name, to=to, again_s=again_s):
            _note(run, name, replace(run.steps[name], state="left", since_s=run.now, reason=event.because))
            _can_undo(run, workflow, name)  # it may have had an effect before the run went back
            place = _place(workflow, workflow.at[to])
            run.tokens = tuple(
                replace(token, at=place, busy=again_s > 0) if token.at == workflow.at[name] else token
                for token in run.tokens
            )
        case RoundBegan(step=name):
            _move(run, workflow, workflow.steps[name].again_from, busy=False)
        case RepeatBegan(step=name):
            again = tuple(one for one in reversed(run.undoable) if undone_by(one) == name)
            run.tokens = (*run.tokens, RunToken(UNDOING, undo=again))
        case BranchTaken(at=at, holds=holds):
            choice = workflow.program[at]
            assert isinstance(choice, Choose)
            place = _place(workflow, at + 1 if holds else choice.otherwise)
            run.tokens = tuple(replace(token, at=place) if token.at == at else token for token in run.tokens)
        case PartsBegan(at=at, fork=fork):
            _fork(run, workflow, at, fork)
        case PartsJoined(fork=fork):
            _join(run, workflow, fork)
        case PartFailed(fork=fork, at=at):
            _fail_part(run, workflow, fork, at)
        case UndoBegan():
            _begin_undo(run, workflow, event)
        case RunEnded(status=status, reason=reason):
            run.status, run.reason, run.tokens, run.forks = status, reason, (), ()
        case _:
            pass


def _begin_undo(run: Any, workflow: Workflow, event: UndoBegan) -> None:
    if event.run:
        run.parent, run.parent_step, run.parent_attempt = event.run, event.step, event.attempt
    if run.status == "undoing":
        return
    _abandon(run, workflow, run.tokens)
    under_way = tuple(token for token in run.tokens if _undoes_now(run, token))
    left = [name for name in reversed(run.undoable) if not any(name in token.undo for token in under_way)]
    run.status, run.reason, run.forks = "undoing", event.reason, ()
    run.tokens = (*under_way, RunToken(UNDOING, undo=tuple(left)))


def failure(run: Any, workflow: Workflow, at: int, reason: str) -> PartFailed | UndoBegan:
    """What follows when an instruction failed for good: a part of a Parallel fails if another may still be first, or
    else the run is undone."""
    around = [(fork, part) for fork in run.forks for part in parts_of(_fork_of(workflow, fork)) if at in part]
    for fork, part in sorted(around, key=lambda one: len(one[1])):
        join = workflow.program[fork.join]
        assert isinstance(join, Join)
        if join.any and any(token.at not in part and fork.id in _forks_of(run, token) for token in run.tokens):
            return PartFailed(fork=fork.id, at=at, reason=reason)
    return UndoBegan(reason=reason)


def _fail_part(run: Any, workflow: Workflow, id: int, at: int) -> None:
    (fork,) = (one for one in run.forks if one.id == id)
    (part,) = (part for part in parts_of(_fork_of(workflow, fork)) if at in part)
    lost = [token for token in run.tokens if token.at in part]
    _abandon(run, workflow, tuple(lost))
    run.forks = tuple(one for one in run.forks if one.join not in part)
    run.tokens = (*(token for token in run.tokens if token not in lost), *_undoing(run, workflow, [part]))


def _undoing(run: Any, workflow: Workflow, parts: list[range]) -> tuple[RunToken, ...]:
    """The token that undoes these parts of a fork; none if nothing is to be undone."""
    lost = [name for name, at in workflow.at.items() if any(at in part for part in parts)]
    undone_already = [name for token in run.tokens for name in token.undo]
    undo = tuple(one for one in reversed(run.undoable) if undone_by(one) in lost and one not in undone_already)
    return (RunToken(UNDOING, undo=undo),) if undo else ()


def _fork_of(workflow: Workflow, fork: OpenFork) -> Fork:
    return next(one for one in workflow.program if isinstance(one, Fork) and one.join == fork.join)


def _undoes_now(run: Any, token: RunToken) -> bool:
    """Whether a token undoes a part of a Parallel at this moment."""
    first = run.steps.get(f"{UNDO}{token.undo[0]}") if token.busy and token.undo else None
    return first is not None and first.state in ("begun", "again")


def _can_undo(run: Any, workflow: Workflow, name: str) -> None:
    """A step is done, or may be: if it can be undone, it is the first that will be."""
    if f"{UNDO}{name}" in workflow.steps:
        run.undoable = (*(one for one in run.undoable if one != name), name)


def _leave_place(run: Any, workflow: Workflow, name: str, to: str) -> None:
    """A step begins at another place than before: where it may have been done, it is undone on its own."""
    was, places = run.steps.get(name), workflow.steps[name].at
    if name in run.undoable and was.to != to:
        left = f"{name} at {places[min(was.tried, len(places)) - 1]}"
        if f"{UNDO}{left}" in workflow.steps:
            run.undoable = (*(one for one in run.undoable if one not in (name, left)), left)


def _note(run: Any, name: str, state: StepState) -> None:
    run.steps = {**run.steps, name: state}


def _move(run: Any, workflow: Workflow, name: str, *, busy: bool) -> None:
    """Marks the token of a step."""
    run.tokens = tuple(
        replace(token, busy=busy) if _stands_at(workflow, token, name) else token for token in run.tokens
    )


def _stands_at(workflow: Workflow, token: RunToken, name: str) -> bool:
    if name.startswith(UNDO):
        return token.at == UNDOING and token.undo[:1] == (name.removeprefix(UNDO),)
    return token.at == workflow.at[name]


def _done(run: Any, workflow: Workflow, name: str) -> None:
    if name.startswith(UNDO):
        run.tokens = tuple(
            replace(token, busy=False, undo=token.undo[1:]) if _stands_at(workflow, token, name) else token
            for token in run.tokens
        )
        if run.status == "running":  # what undid the other parts of a Parallel has no more to do
            run.tokens = tuple(token for token in run.tokens if token.at != UNDOING or token.undo)
        return
    if is_behind(run, workflow, name):
        return
    _can_undo(run, workflow, name)
    place = _place(workflow, workflow.at[name] + 1)
    run.tokens = tuple(
        replace(token, at=place, busy=False) if token.at == workflow.at[name] else token for token in run.tokens
    )


def is_behind(run: Any, workflow: Workflow, name: str) -> bool:
    """Whether the run has gone on from a step that is under way: it claims again what it has lost."""
    return not any(_stands_at(workflow, token, name) for token in run.tokens)


def _place(workflow: Workflow, at: int) -> int:
    """The instruction that comes next from here: jumps are followed."""
    while isinstance(found := workflow.program[at], Jump):
        at = found.to
    return at


def _fork(run: Any, workflow: Workflow, at: int, fork: int) -> None:
    found = workflow.program[at]
    assert isinstance(found, Fork)
    (token,) = (one for one in run.tokens if one.at == at)
    parts = tuple(RunToken(_place(workflow, part), fork=fork) for part in found.parts)
    run.tokens = (*(one for one in run.tokens if one is not token), *parts)
    run.forks = (*run.forks, OpenFork(fork, token.fork, found.join))
    run.fork_count = fork


def _forks_of(run: Any, token: RunToken) -> tuple[int, ...]:
    """The forks that a token is a part of, the innermost first."""
    found: tuple[int, ...] = ()
    fork = token.fork
    while fork:
        found = (*found, fork)
        fork = next(one.parent for one in run.forks if one.id == fork)
    return found


def _join(run: Any, workflow: Workflow, fork: int) -> None:
    (found,) = (one for one in run.forks if one.id == fork)
    inside = [token for token in run.tokens if fork in _forks_of(run, token)]
    first = next(token for token in inside if token.fork == fork and token.at == found.join)
    others = [token for token in inside if token is not first and token.at != found.join]
    _abandon(run, workflow, tuple(others))
    lost = [part for part in parts_of(_fork_of(workflow, found)) if any(token.at in part for token in others)]
    run.tokens = (
        *(token for token in run.tokens if token not in inside),
        RunToken(_place(workflow, found.join + 1), fork=found.parent),
        *_undoing(run, workflow, lost),
    )
    run.forks = tuple(one for one in run.forks if one.id != fork and fork not in _ancestors(run, one))


def _ancestors(run: Any, fork: OpenFork) -> tuple[int, ...]:
    found: tuple[int, ...] = ()
    parent = fork.parent
    while parent:
        found = (*found, parent)
        parent = next(one.parent for one in run.forks if one.id == parent)
    return found


def _abandon(run: Any, workflow: Workflow, tokens: tuple[RunToken, ...]) -> None:
    """Gives up what these tokens carry out. It may be carried out all the same, so it is undone."""
    for token in tokens:
        step = None if token.at == UNDOING else workflow.program[token.at]
        if not token.busy or not isinstance(step, Do):
            continue
        state = run.steps[step.step]
        if state.state in ("begun", "again"):
            _note(run, step.step, replace(state, state="abandoned", since_s=run.now))
            if state.state == "begun":
                _can_undo(run, workflow, step.step)


def check_recovered(run: Any, workflows: Mapping[int, Workflow]) -> None:
    """Refuses to go on with a run that began on steps which are not there any more; also with one that has ended, if
    without them its state cannot be known. A snapshot that was taken after its end knows it."""
    has_ended = run.status in ("done", "undone")
    if run.status == "new" or (has_ended and NOT_FOLDED not in run.tokens):
        return
    workflow = workflows.get(run.version)
    if workflow is not None and workflow.digest == run.digest:
        return
    stands = "has ended, and its steps and events cannot be read" if has_ended else "is under way"
    kind, newest = run.__agent_kind__, max(workflows)
    if workflow is None:
        has = f"version {run.version} is not there any more; put Workflow({kind!r}, …, version={run.version}) back"
        also = f", as it was, beside version {newest} in workflows=[…]"
    else:
        has = f"version {run.version} has other steps now; put the steps back, and give the new ones"
        also = f" as Workflow({kind!r}, …, version={newest + 1}) beside them in workflows=[…]"
    raise DefinitionError(f"{run.address} {stands}, and its workflow was changed: {has}{also}")
