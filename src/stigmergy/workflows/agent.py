"""The agents of workflows: a class whose agents are the runs, and one that carries out steps at other places.

A run decides what an input means for its steps, and lets `settle` say what follows. Its effects are made from the state
when `StepBegun` is part of it: a tell to an agent, an action, work, a claim. What comes back is matched with the step
that waits for it; what comes too late, for an earlier try, is ignored.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import reduce
from operator import or_
from typing import Any

import msgspec

from stigmergy.agents.agent import Agent, AgentMeta, Rejection, decide, evolve, react, reject
from stigmergy.agents.codec import describe, encode, tag_of
from stigmergy.agents.confirmations import Done, Failed
from stigmergy.agents.effects import CancelWake, Effects, Events, Tell, TellFailed, WakeMe, Woken
from stigmergy.agents.messages import Action, Command, Event, spec_of
from stigmergy.agents.ordered import Claim, Denied, Granted, Lost, Ordered, Released
from stigmergy.agents.plans import AgentPlan, decoder_of
from stigmergy.agents.steps import StepAsked, StepEffect, StepHeard, StepRefused, StepsClosed, StepTaken
from stigmergy.base.errors import DefinitionError
from stigmergy.workflows.asking import (
    PLACE,
    asking_of,
    check_message,
    check_names,
    has_message,
    is_effect,
    is_of_step,
    message_of,
    target_of,
)
from stigmergy.workflows.definition import Workflow
from stigmergy.workflows.messages import (
    TRANSITIONS,
    Approved,
    ApproveStep,
    CancelRun,
    DenyStep,
    RetryUndo,
    RoundBegan,
    RunBegan,
    RunEnded,
    StepBegun,
    StepDone,
    StepFailed,
    StepUndone,
    UndoBegan,
    WentBack,
)
from stigmergy.workflows.run import NOT_FOLDED, WorkflowRun, apply, check_recovered, failure, is_behind, settle
from stigmergy.workflows.step import RETRY_S_MAX, TRIES_MAX, UNDO, Approval, Holding, Releasing, Step

WITHIN, AGAIN = "within ", "again "
"""What timers are called: this, and the step."""
FULL_RETRY_S = 1.0
"""The first pause, or longer, before a run asks again for a resource that as many wait for as may."""


def agents_of(workflows: Sequence[Workflow]) -> list[type[Agent]]:
    """The agent classes of all workflows of a fleet: one for the runs of each kind, one for other places if needed."""
    kinds: dict[str, dict[int, Workflow]] = {}
    for workflow in workflows:
        versions = kinds.setdefault(workflow.kind, {})
        if workflow.version in versions:
            raise DefinitionError(
                f"{workflow.line}: two workflows {workflow.kind} of version {workflow.version}; give the newer one "
                f"version={max(versions) + 1}"
            )
        versions[workflow.version] = workflow
    classes = [run_class(versions) for versions in kinds.values()]
    elsewhere = [step for workflow in workflows for step in workflow.steps.values() if step.is_elsewhere]
    elsewhere = [step for step in elsewhere if is_effect(step)]
    return [*classes, place_class(elsewhere)] if elsewhere else classes


def events_waited_for(workflows: Sequence[Workflow]) -> dict[str, list[type[Event]]]:
    """The events of each kind of agent that some step waits for."""
    found: dict[str, list[type[Event]]] = {}
    for step in (step for workflow in workflows for step in workflow.steps.values() if step.is_told):
        found.setdefault(step.to.partition("/")[0], []).extend(step.events)
    return found


def check_targets(workflow: Workflow, plans: Mapping[str, AgentPlan]) -> None:
    """Refuses steps for agents that could not carry them out."""
    for step in workflow.steps.values():
        runs = isinstance(step.does, Workflow)
        if not runs and not step.is_told:
            continue
        kind = step.does.kind if runs else step.to.partition("/")[0]
        plan = plans.get(kind)
        if plan is None:
            also = f"; give it to workflows=[…] beside {workflow.kind}" if runs else f"; it has {', '.join(plans)}"
            raise DefinitionError(f"{step.where}: the fleet has no {kind}{also}")
        if runs:
            continue
        if not plan.steps or plan.engine is not None:
            raise DefinitionError(
                f"{step.where}: {kind} takes part in no workflow; write steps: Steps = Steps() in its class"
                + (", and do not compile it" if plan.engine is not None else "")
            )
        if issubclass(step.does, Command) and not plan.handles(step.does):
            raise DefinitionError(f"{step.where}: {kind} has no @decide handler for {step.does.__name__}")


def run_class(versions: Mapping[int, Workflow]) -> type[Agent]:
    """The class of the runs of one kind, for all its versions."""
    newest = versions[max(versions)]
    kept = _kept_of(versions.values())
    effects = _effects_of(versions.values())
    observed = tuple(dict.fromkeys((*kept, *effects)))
    holdings = {field: None for one in versions.values() for field in map(_field_of, one.steps.values()) if field}
    flow = _Flow(versions, observed)
    starts = tuple(dict.fromkeys(workflow.start for workflow in versions.values()))
    lasts = _lasts_of(newest, (*starts, *kept))
    namespace: dict[str, Any] = {
        "__module__": __name__,
        "__qualname__": newest.kind,
        "__doc__": f"A run of the workflow {newest.kind}.",
        "__annotations__": {name: message | None for name, message in lasts.items()}
        | dict.fromkeys(holdings, Ordered[Claim]),
        **dict.fromkeys(lasts),
    }
    began = tuple(RunBegan[start] for start in starts)  # type: ignore[valid-type]
    _add(namespace, decide, "start", _union(starts), flow.start)
    _add(namespace, decide, "cancel", CancelRun, flow.cancel)
    _add(namespace, decide, "approve", ApproveStep, flow.approve)
    _add(namespace, decide, "deny", DenyStep, flow.deny)
    _add(namespace, decide, "retry_undo", RetryUndo, flow.retry_undo)
    _add(namespace, decide, "asked", StepAsked, flow.asked)
    _add(namespace, decide, "heard", StepHeard, flow.heard)
    _add(namespace, decide, "refused", StepRefused, flow.refused)
    _add(namespace, decide, "not_told", TellFailed, flow.not_told)
    _add(namespace, decide, "woken", Woken, flow.woken)
    if observed:
        _add(namespace, decide, "observed", _union(observed), flow.observed)
    if holdings:
        _add(namespace, decide, "claimed", Granted | Denied | Lost | Released, flow.claimed)
    _add(namespace, decide, "forged", _union((*began, *TRANSITIONS, Approved)), _refuse_forged)
    _add(namespace, evolve, "fold_began", _union(began), flow.fold_began)
    _add(namespace, evolve, "fold", _union(TRANSITIONS), flow.fold)
    if kept:
        _add(namespace, evolve, "fold_last", _union(kept), _fold_last)
        _add(namespace, evolve, "fold_heard", StepHeard, flow.fold_heard)
    _add(namespace, react, "carry_out", StepBegun, flow.carry_out)
    _add(namespace, react, "ask_again", StepAsked, flow.ask_again)
    _add(namespace, react, "refuse", StepRefused, flow.refuse)
    _add(namespace, react, "wait", StepFailed, flow.wait)
    _add(namespace, react, "stop_waiting", StepDone | WentBack, flow.stop_waiting)
    _add(namespace, react, "end", RunEnded, flow.end)
    cls: Any = AgentMeta(newest.kind, (WorkflowRun,), namespace, kind=newest.kind)
    cls.workflows = versions
    cls.check_recovered = staticmethod(lambda run: check_recovered(run, versions))
    return cls  # type: ignore[no-any-return]


def _lasts_of(workflow: Workflow, messages: Iterable[type[Any]]) -> dict[str, type[Any]]:
    """The fields of a run with the newest message of each class."""
    found: dict[str, type[Any]] = {}
    for message in messages:
        if found.setdefault(f"last_{message.__name__}", message) is not message:
            raise DefinitionError(
                f"{workflow.line}: workflow {workflow.kind}: two messages are called {message.__name__}; rename one"
            )
    return found


def _union(types: Iterable[Any]) -> Any:
    return reduce(or_, types)


def _add(body: dict[str, Any], role: Callable[[Any], Any], name: str, message: Any, does: Callable[..., Any]) -> None:
    """Adds a handler to the body of a class."""

    def handler(self: Any, message: Any) -> Any:
        return does(self, message)

    handler.__name__, handler.__qualname__ = name, f"{body['__qualname__']}.{name}"
    handler.__annotations__ = {"message": message}
    body[name] = role(handler)


def _kept_of(workflows: Iterable[Workflow]) -> tuple[type[Event], ...]:
    """The users' events that runs keep."""
    found: dict[type[Event], None] = {}
    for workflow in workflows:
        for step in workflow.steps.values():
            found |= dict.fromkeys(event for event in step.events if not issubclass(event, Done | Failed))
    return tuple(found)


def _effects_of(workflows: Iterable[Workflow]) -> tuple[type[Event], ...]:
    """What comes back of actions and work."""
    found: dict[type[Event], None] = {}
    for workflow in workflows:
        for does in workflow.messages():
            if issubclass(does, Action):
                found[Done[does]] = None  # type: ignore[valid-type]
            found[Failed[does]] = None  # type: ignore[valid-type]
    return tuple(found)


def _field_of(step: Step) -> str:
    """The field of a run with the claim of a step."""
    return f"claim_{step.name}" if isinstance(step.does, Holding) else ""


def _refuse_forged(run: Any, event: Event) -> Events:
    """What a run decides itself does not come from outside: it is a dead letter."""
    raise ValueError(f"{type(event).__name__} is said by {run.address} alone; give it a command, such as CancelRun")


def _fold_last(run: Any, event: Any) -> None:
    field = f"last_{type(event).__name__}"
    setattr(run, field, event)
    run.known = (*(one for one in run.known if one != field), field)


def _pause_s(retry_s: float, count: int) -> float:
    """The pause behind so many tries."""
    return min(retry_s * 2.0 ** min(count - 1, 20), RETRY_S_MAX)


def _waited_s(retry_s: float, tried: int) -> float:
    """All pauses before a try."""
    return sum(_pause_s(retry_s, count) for count in range(1, min(tried, TRIES_MAX)))


def _cancelled(reason: str) -> str:
    """Why a run is cancelled; a part hears it from the run above, which says so already."""
    return reason if reason.startswith("cancelled") else f"cancelled: {reason}".rstrip(": ")


class _Flow:
    """What the handlers of a kind of runs do. It has no state of its own."""

    def __init__(self, versions: Mapping[int, Workflow], observed: Sequence[type[Event]]) -> None:
        self._versions = versions
        self._newest = versions[max(versions)]
        self._decode: Callable[[bytes], Any] | None = None
        self._tags: frozenset[str] = frozenset()
        if observed:
            self._decode, self._tags = decoder_of(WorkflowRun, observed)

    def _of(self, run: Any) -> Workflow:
        workflow = self._versions.get(run.version) if run.version else self._newest
        if workflow is None:
            raise LookupError(f"version {run.version} of {self._newest.kind} is not in workflows=[…]; put it back")
        return workflow

    # What comes in

    def start(self, run: Any, command: Command, run_of: StepAsked | None = None) -> Events:
        if run.status != "new":
            reject(f"{run.address} is {run.status} already; a run begins once, take another name")
        workflow = self._newest
        if type(command) is not workflow.start:
            reject(f"{workflow.kind} begins with {workflow.start.__name__} now")
        check_names(run, workflow)
        parent = (run_of.run, run_of.step, run_of.attempt) if run_of else ("", "", 0)
        began = RunBegan[workflow.start](  # type: ignore[name-defined]
            command=command,
            version=workflow.version,
            digest=workflow.digest,
            run=parent[0],
            step=parent[1],
            attempt=parent[2],
        )
        followed = self._follow(run, [began])
        undone = any(isinstance(event, UndoBegan) for event in followed)
        for event in followed:
            if undone and isinstance(event, StepFailed):  # its first step cannot begin: whoever asks is told so at once
                reject(f"{event.step}: {event.reason}")
        return followed

    def asked(self, run: Any, asked: StepAsked) -> Events:
        """Another run has this one as a step, or takes it back."""
        if asked.run == run.address:
            return self._asked_again(run, asked)
        try:
            command = msgspec.msgpack.decode(asked.body, type=self._newest.start | CancelRun | RetryUndo)
            if isinstance(command, CancelRun | RetryUndo):
                if run.status == "stuck" and isinstance(command, CancelRun):
                    reject(f"{run.address} is stuck: {run.reason}")
                reason = _cancelled(command.reason) if isinstance(command, CancelRun) else run.reason
                undo = UndoBegan(reason=reason, run=asked.run, step=asked.step, attempt=asked.attempt)
                return self._follow(run, [undo])
            return self.start(run, command, asked)
        except msgspec.DecodeError as error:
            reason = f"{self._newest.kind} begins with {self._newest.start.__name__} now: {error}"
        except Rejection as rejection:
            reason = rejection.reason
        stuck = run.status == "stuck"
        return [StepRefused(run=asked.run, step=asked.step, attempt=asked.attempt, reason=reason, unknown=stuck)]

    def _asked_again(self, run: Any, asked: StepAsked) -> Events:
        """A person retries a dead letter in which this run asks for a step. If it still waits for it, it asks again."""
        state = run.steps.get(asked.step)
        if state is None or state.attempt != asked.attempt or not self._waits(run, asked.step):
            over = f"try {asked.attempt} of {asked.step} is over, {run.address} is {run.status}"
            raise ValueError(f"{over}: it would be carried out for nobody; drop the dead letter")
        return [asked]

    def cancel(self, run: Any, command: CancelRun) -> Events:
        if run.status == "running":
            return self._follow(run, [UndoBegan(reason=_cancelled(command.reason))])
        reject(f"{run.address} is {run.status}: there is nothing to cancel")

    def approve(self, run: Any, command: ApproveStep) -> Events:
        self._check_approval(run, command.step)
        return self._follow(run, [Approved(step=command.step, by=command.by), StepDone(step=command.step)])

    def deny(self, run: Any, command: DenyStep) -> Events:
        step = self._check_approval(run, command.step)
        reason = f"denied by {command.by or 'somebody'}" + (f": {command.reason}" if command.reason else "")
        return self._fail(run, step, reason, final=True)

    def _check_approval(self, run: Any, name: str) -> Step:
        step = self._of(run).steps.get(name)
        if step is None or not isinstance(step.does, Approval) or not self._waits(run, name):
            reject(f"{run.address} waits for no approval of {name!r}")
        return step

    def retry_undo(self, run: Any, _: RetryUndo) -> Events:
        if run.status != "stuck":
            reject(f"{run.address} is {run.status}, not stuck")
        return self._follow(run, [UndoBegan(reason=run.reason)])

    def heard(self, run: Any, heard: StepHeard) -> Events:
        """An agent, or a place, tells what a step waits for."""
        state = run.steps.get(heard.step)
        if state is None or state.attempt != heard.attempt or not self._is_open(run, heard.step):
            return ()
        if not heard.body:
            return self._finish(run, heard.step, ())
        if self._decode is None:
            return ()
        step, event = self._of(run).steps[heard.step], self._decode(heard.body)
        # The agent has the event in its log. Kept as it is by the run too, it would be there twice.
        return self._match(run, event, step, heard if step.is_told else event)

    def refused(self, run: Any, refused: StepRefused) -> Events:
        state = run.steps.get(refused.step)
        if state is None or state.attempt != refused.attempt or not self._waits(run, refused.step):
            return ()
        step, reason = self._of(run).steps[refused.step], f"refused: {refused.reason}"
        return self._fail(run, step, reason, unknown=refused.unknown, final=refused.unknown)

    def not_told(self, run: Any, failed: TellFailed) -> Events:
        asked = [step for step in self._open(run) if run.steps[step.name].to == failed.to]
        if failed.message != spec_of(StepAsked).name or len(asked) != 1 or run.steps[asked[0].name].tried > 1:
            return ()  # it may be of another step or of an earlier try: their time runs out
        if asked[0].name.startswith(UNDO):
            return ()  # it may be of the step that is undone, to the same agent: two undos would be one too many
        if not self._waits(run, asked[0].name):
            return ()
        return self._fail(run, asked[0], f"{failed.to} was not reached: {failed.reason}", unknown=True)

    def observed(self, run: Any, event: Event) -> Events:
        """An event that nobody ascribes to a step: the first that waits for it takes it."""
        for step in self._open(run):
            failed = isinstance(event, Failed) and type(event.action) is step.does
            if failed or is_of_step(run, self._of(run), step, event):
                return self._match(run, event, step, event)
        return ()

    def _match(self, run: Any, event: Event, step: Step, kept: Event) -> Events:
        """An event for a step, and what the run keeps of it."""
        if type(event) is step.done:
            return self._finish(run, step.name, () if isinstance(event, Done) else (kept,))
        if not self._waits(run, step.name):
            return ()  # it waits to be tried again: only that it is done after all is news
        if isinstance(event, Failed):
            return self._fail(run, step, event.reason or "it failed")
        if type(event) is step.on:
            return self._go_back(run, step, event, kept)
        if type(event) is step.fails:
            # Its agent had accepted it, and may have done a part of it.
            return self._fail(run, step, f"{type(event).__name__} came", kept=(kept,), unknown=True)
        return ()  # the action is carried out, and the step waits for an event

    def claimed(self, run: Any, verdict: Granted | Denied | Lost | Released) -> Events:
        name = verdict.claim.removeprefix("claim_")
        step, state = self._of(run).steps[name], run.steps.get(name)
        # A stuck run keeps what it holds, so after a restart it asks for that as well.
        asks = self._waits(run, name) or (run.status == "stuck" and state is not None and state.state == "begun")
        if isinstance(verdict, Granted) and asks:
            return self._finish(run, name, ())
        if isinstance(verdict, Denied) and asks:
            lost = is_behind(run, self._of(run), name)
            waited_s = _waited_s(max(step.retry_s, FULL_RETRY_S), run.steps[name].tried)
            if verdict.full and not lost and waited_s < step.does.wait_s:
                pause_s = _pause_s(max(step.retry_s, FULL_RETRY_S), run.steps[name].tried)
                return self._try_again(run, step, verdict.reason, min(pause_s, step.does.wait_s - waited_s))
            reason = (
                f"{verdict.resource} was lost: {verdict.reason}" if lost else f"{verdict.resource}: {verdict.reason}"
            )
            return self._fail(run, step, reason, final=lost)
        if isinstance(verdict, Released) and self._waits(run, f"{UNDO}{name}"):
            return self._finish(run, f"{UNDO}{name}", ())
        if isinstance(verdict, Lost):
            if self._waits(run, f"{UNDO}{name}"):
                return self._finish(run, f"{UNDO}{name}", ())
            if run.status not in ("done", "undone") and state is not None and state.state == "done":
                # After a restart nothing is held, and mostly it is still ours: ask before all is undone, and while.
                return self._follow(run, [StepBegun(step=name, attempt=state.attempt + 1, to=verdict.resource)])
        return ()

    def woken(self, run: Any, woken: Woken) -> Events:
        if woken.name.startswith(AGAIN):
            name = woken.name.removeprefix(AGAIN)
            state = run.steps.get(name)
            if state is None or run.ended or state.state not in ("again", "left"):
                return ()
            if state.state == "again":
                return self._follow(run, self._begin(run, name))
            waits = not self._is_open(run, self._of(run).steps[name].again_from) and run.status == "running"
            return self._follow(run, [RoundBegan(step=name)]) if waits else ()
        name = woken.name.removeprefix(WITHIN)
        if not self._waits(run, name):
            return ()
        step = self._of(run).steps[name]
        # A workflow that is a step goes on: it must be cancelled, not begun again beside itself.
        final = isinstance(step.does, Workflow) or is_behind(run, self._of(run), name)
        return self._fail(run, step, f"not done within {step.within_s:g} s", unknown=True, final=final)

    # What follows

    def _waits(self, run: Any, name: str) -> bool:
        state = run.steps.get(name)
        return state is not None and state.state == "begun" and not run.ended

    def _is_open(self, run: Any, name: str) -> bool:
        """Whether that it is done would be news: it is under way, or waits to be tried again."""
        return run.steps[name].state in ("begun", "again") and not run.ended

    def _open(self, run: Any) -> list[Step]:
        steps = self._of(run).steps
        return [steps[name] for name in run.steps if self._is_open(run, name)]

    def _finish(self, run: Any, name: str, kept: Iterable[Event]) -> Events:
        undone = [StepUndone(step=name.removeprefix(UNDO))] if name.startswith(UNDO) else []
        return self._follow(run, [*kept, StepDone(step=name), *undone])

    def _go_back(self, run: Any, step: Step, event: Event, kept: Event) -> Events:
        because, attempt = type(event).__name__, run.steps[step.name].attempt
        if attempt >= step.tries:
            return self._fail(run, step, f"{because} came at the last of {step.tries} tries", kept=(kept,), final=True)
        pause_s = _pause_s(step.retry_s, attempt)
        back = WentBack(step=step.name, to=step.again_from, because=because, again_s=pause_s)
        return self._follow(run, [kept, back])

    def _fail(
        self,
        run: Any,
        step: Step,
        reason: str,
        *,
        kept: Iterable[Event] = (),
        final: bool = False,
        unknown: bool = False,
    ) -> Events:
        state = run.steps[step.name]
        # A loop is bounded by all its passes; other steps have all their tries at each.
        count = state.attempt if step.again_from else state.tried
        if count < step.tries and not final:
            pause_s = _pause_s(step.retry_s, count)
            return self._try_again(run, step, reason, pause_s, kept=kept, unknown=unknown)
        return self._follow(run, [*kept, *self._given_up(run, step.name, state.attempt, reason, unknown=unknown)])

    def _try_again(
        self, run: Any, step: Step, reason: str, pause_s: float, *, kept: Iterable[Event] = (), unknown: bool = False
    ) -> Events:
        attempt = run.steps[step.name].attempt
        failed = StepFailed(step=step.name, attempt=attempt, reason=reason, again_s=pause_s, unknown=unknown)
        return self._follow(run, [*kept, failed])

    def _given_up(self, run: Any, name: str, attempt: int, reason: str, *, unknown: bool = False) -> list[Event]:
        """A step failed for good: what it is a part of is undone; if that is what failed, the run is stuck."""
        failed, why = StepFailed(step=name, attempt=attempt, reason=reason, unknown=unknown), f"{name}: {reason}"
        if name.startswith(UNDO):
            return [failed, RunEnded(status="stuck", reason=why) if run.status == "undoing" else UndoBegan(reason=why)]
        if run.status in ("undoing", "stuck"):
            return [failed]  # it had lost a claim, and undoes without it
        workflow = self._of(run)
        return [failed, failure(run, workflow, workflow.at[name], why)]

    def _follow(self, run: Any, events: Sequence[Event]) -> Sequence[Event]:
        """These events, and what follows from them by itself."""
        scratch = run.__copy__()
        for event in events:
            self._apply(scratch, event)
        return [*events, *settle(scratch, self._of(scratch), self._begin)]

    def _apply(self, scratch: Any, event: Event) -> None:
        if isinstance(event, RunBegan):
            self.fold_began(scratch, event)
        elif isinstance(event, TRANSITIONS):
            self.fold(scratch, event)
        elif isinstance(event, StepHeard):
            self.fold_heard(scratch, event)
        elif not isinstance(event, Approved):
            _fold_last(scratch, event)

    def _begin(self, run: Any, name: str) -> Sequence[Event]:
        """A step begins. One whose message or agent cannot be made fails: users' functions raise, fields lack."""
        workflow, state = self._of(run), run.steps.get(name)
        step, attempt = workflow.steps[name], 1 if state is None else state.attempt + 1
        try:
            to = target_of(run, workflow, step, attempt)
            if has_message(step):
                check_message(run, workflow, step)
        except Exception as error:
            return self._given_up(run, name, attempt, describe(error))
        return [StepBegun(step=name, attempt=attempt, to=to)]

    # The state

    def fold_began(self, run: Any, event: Any) -> None:
        _fold_last(run, event.command)
        workflow = self._versions.get(event.version)
        if workflow is not None and workflow.digest == event.digest:
            apply(run, workflow, event)
        else:
            run.status, run.version, run.digest, run.tokens = "running", event.version, event.digest, (NOT_FOLDED,)

    def fold(self, run: Any, event: Any) -> None:
        workflow = self._versions.get(run.version) if run.version else self._newest
        if workflow is not None and run.digest in ("", workflow.digest):
            apply(run, workflow, event)
        elif isinstance(event, RunEnded):  # of a run on steps that are gone nothing else can be said
            run.status, run.reason, run.tokens = event.status, event.reason, (NOT_FOLDED,)
        elif isinstance(event, UndoBegan):
            run.status = "undoing"

    def fold_heard(self, run: Any, heard: StepHeard) -> None:
        if self._decode is not None and tag_of(heard.body) in self._tags:
            _fold_last(run, self._decode(heard.body))

    # What goes out

    def carry_out(self, run: Any, begun: StepBegun) -> Effects:
        workflow = self._of(run)
        step = workflow.steps[begun.step]
        does = step.does
        lost = isinstance(does, Holding) and is_behind(run, workflow, step.name)
        yield WakeMe(name=f"{WITHIN}{step.name}", after_s=min(step.within_s, does.for_s) if lost else step.within_s)
        if isinstance(does, Holding):
            wait_s = 0.0 if lost else does.wait_s  # the run goes on meanwhile, so it does not queue
            yield getattr(run, _field_of(step)).claim(for_s=does.for_s, of=begun.to, wait_s=wait_s, renew=True)
        elif isinstance(does, Releasing):
            yield getattr(run, f"claim_{does.of}").release(of=begun.to)
        elif is_effect(step) and not begun.to:
            yield StepEffect(does=message_of(run, workflow, step), step=step.name, attempt=begun.attempt)
        elif begun.to:
            # An agent that is away must not begin what nobody waits for any more.
            yield Tell(to=begun.to, message=asking_of(run, workflow, step, begun), within_s=step.within_s)

    def ask_again(self, run: Any, asked: StepAsked) -> Effects:
        yield Tell(to=run.steps[asked.step].to, message=asked, within_s=self._of(run).steps[asked.step].within_s)

    def refuse(self, _: Any, refused: StepRefused) -> Effects:
        yield Tell(to=refused.run, message=refused)

    def wait(self, _: Any, failed: StepFailed) -> Effects:
        yield CancelWake(name=f"{WITHIN}{failed.step}")
        if failed.again_s >= 0:
            yield WakeMe(name=f"{AGAIN}{failed.step}", after_s=failed.again_s)

    def stop_waiting(self, _: Any, done: StepDone | WentBack) -> Effects:
        yield CancelWake(name=f"{WITHIN}{done.step}")
        if isinstance(done, WentBack) and done.again_s > 0:
            yield WakeMe(name=f"{AGAIN}{done.step}", after_s=done.again_s)

    def end(self, run: Any, ended: RunEnded) -> Effects:
        workflow = self._of(run)
        for name, state in run.steps.items():
            if state.state in ("begun", "again", "abandoned"):
                yield CancelWake(name=f"{WITHIN}{name}")
                yield CancelWake(name=f"{AGAIN}{name}")
            step = workflow.steps[name]
            if isinstance(step.does, Holding) and state.state in ("begun", "done") and ended.status == "done":
                yield getattr(run, _field_of(step)).release(of=state.to)
        for to in run.told:
            yield Tell(to=to, message=StepsClosed(run=run.address))
        if run.parent:
            yield Tell(to=run.parent, message=_ending(run, ended))


def _ending(run: Any, ended: RunEnded) -> Event:
    """What the run that this one is a step of hears."""
    return ending_of(run.address, ended, run.parent, run.parent_step, run.parent_attempt)


def ending_of(part: str, ended: RunEnded, run: str, step: str, attempt: int) -> Event:
    """What a run hears of the end of a part, which is this step of it."""
    if ended.status == ("undone" if step.startswith(UNDO) else "done"):
        return StepHeard(step=step, attempt=attempt, body=b"")
    reason = f"{part} is {ended.status}: {ended.reason}"
    return StepRefused(run=run, step=step, attempt=attempt, reason=reason, unknown=ended.status == "stuck")


def place_class(steps: Iterable[Step]) -> type[Agent]:
    """The class of the agents that carry out actions and work at other places. Each carries out one step, and
    undoes it."""
    effects: dict[type[Any], None] = {}
    results: dict[type[Event], None] = {}
    for step in steps:
        effects[step.does] = None
        results |= dict.fromkeys([Done[step.does]] if issubclass(step.does, Action) else [])  # type: ignore[name-defined]
        results |= dict.fromkeys((Failed[step.does], *step.events))  # type: ignore[name-defined]
    decode = msgspec.msgpack.Decoder(_union(effects)).decode

    def take(place: Any, asked: StepAsked) -> Iterator[Event]:
        if asked.step != place.step or asked.attempt > place.attempt:
            yield StepTaken(run=asked.run, step=asked.step, attempt=asked.attempt, wants=asked.wants, body=asked.body)

    def fold(place: Any, taken: StepTaken) -> None:
        place.run, place.step, place.attempt = taken.run, taken.step, taken.attempt

    def carry_out(_: Any, taken: StepTaken) -> Effects:
        yield StepEffect(does=decode(taken.body), step=taken.step, attempt=taken.attempt)

    def tell_heard(place: Any, heard: StepHeard) -> Effects:
        yield Tell(to=place.run, message=heard)

    def tell(place: Any, event: Any) -> Effects:
        if place.run:  # it was observed, and is no result of a try: it counts for the newest
            heard = StepHeard(step=place.step, attempt=place.attempt, body=encode(event))
            yield Tell(to=place.run, message=heard)

    namespace: dict[str, Any] = {
        "__module__": __name__,
        "__qualname__": PLACE,
        "__doc__": "Carries out one step of a run at another place, and undoes it there.",
        "__annotations__": {"run": str, "step": str, "attempt": int},
        "run": "",
        "step": "",
        "attempt": 0,
    }
    _add(namespace, decide, "take", StepAsked, take)
    _add(namespace, evolve, "fold", StepTaken, fold)
    _add(namespace, react, "carry_out", StepTaken, carry_out)
    _add(namespace, react, "tell_heard", StepHeard, tell_heard)
    _add(namespace, react, "tell", _union(results), tell)
    cls: Any = AgentMeta(PLACE, (Agent,), namespace, kind=PLACE)
    return cls  # type: ignore[no-any-return]
