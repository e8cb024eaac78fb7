"""Unit tests of agents without any infrastructure: given past facts, when inputs come, then these events and effects.

    given(Drone).when(BatteryMeasured(percent=12)).then(Land(reason="battery"))

It runs on the real shard, step and seal. Besides the test's own expectations, every input is checked for what the
framework relies on: messages and state survive their encoding, `decide` and `react` change nothing, handlers called
twice give the same, and a replay of the commits ends in the same state.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from itertools import islice
from typing import Any, Generic, Literal, NoReturn, TypeVar, overload

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from stigmergy.agents.agent import FACTS, Agent
from stigmergy.agents.codec import canonical_bytes, encode
from stigmergy.agents.confirmations import Done, Failed, typed, woken_body
from stigmergy.agents.display import fields_in_words
from stigmergy.agents.effects import (
    MODELS,
    TIMERS,
    ActionDone,
    ActionFailed,
    CancelWake,
    Publish,
    Tell,
    WakeMe,
    WakeMeAt,
    Woken,
    WorkFailed,
)
from stigmergy.agents.ledgers import typed_entered
from stigmergy.agents.messages import SECOND_NS, Command, Effect, Event, FollowedFact, Keeping, Message, Work, spec_of
from stigmergy.agents.now import step_time_ns
from stigmergy.agents.ordered import CLAIM_EVENTS, Claim
from stigmergy.agents.plans import AgentPlan, Plan, confirmation, plan_agent
from stigmergy.agents.shared import SharedChanged
from stigmergy.agents.steps import StepEffect
from stigmergy.agents.supervision import InputFailed, SafeActionTaken
from stigmergy.crdt.delta import Edit
from stigmergy.crdt.flags import DisableWinsFlag, EnableWinsFlag
from stigmergy.crdt.gcounter import GCounter
from stigmergy.crdt.lww_register import LWWRegister
from stigmergy.crdt.mv_register import MVRegister
from stigmergy.crdt.ormap import ORMap
from stigmergy.crdt.orset import ORSet
from stigmergy.crdt.pncounter import PNCounter
from stigmergy.crdt.store import mint
from stigmergy.crdt.value import SharedValue
from stigmergy.devices.staleness import Staleness
from stigmergy.shard.commit import NO_CAUSE, Commit, seal
from stigmergy.shard.draft import Draft, Ready
from stigmergy.shard.inputs import (
    Ask,
    Delivery,
    FactCame,
    Input,
    Refused,
    SafeActionOut,
    SharedReceived,
    TimerDue,
    Verdict,
    VerdictCame,
)
from stigmergy.shard.replay import apply
from stigmergy.shard.shard import Shard
from stigmergy.shard.snapshot import digest_of_state
from stigmergy.shard.state import ShardState, plan_agents
from stigmergy.shard.timers import WINDOW_PREFIX, read_timer, timer_body
from stigmergy.testing.projection import LogScenario
from stigmergy.workflows.agent import ending_of, run_class
from stigmergy.workflows.definition import Workflow
from stigmergy.workflows.messages import RunEnded
from stigmergy.workflows.run import WorkflowRun
from stigmergy.workflows.step import UNDO

# Compares a field of an agent with a plain value: a shared set with a set, a claim with whether it is held.


def has_value(field: Any, expected: object, now_ns: int) -> bool:
    """Whether the field is what is expected. Of a claim `True` and `False` say whether it is held at this time."""
    if isinstance(expected, SharedValue | Claim):
        return bool(field == expected)
    match field:
        case Claim():
            return isinstance(expected, bool) and (now_ns < field.until_ns) == expected
        case ORSet():
            return _has_all(field, len(field), expected)
        case MVRegister():
            return _has_all(field.values, len(field.values), expected)
        case ORMap():
            return (
                isinstance(expected, Mapping)
                and len(field) == len(expected)
                and all(key in field and has_value(field[key], value, now_ns) for key, value in expected.items())
            )
        case EnableWinsFlag() | DisableWinsFlag():
            return isinstance(expected, bool) and bool(field) == expected
        case GCounter() | PNCounter() | LWWRegister():
            return bool(field.value == expected)
        case _:
            return bool(field == expected)


def _has_all(field: Any, count: int, expected: object) -> bool:
    """In which order they are named does not matter: a shared set has none."""
    if isinstance(expected, str) or not isinstance(expected, Collection):
        return False
    return count == len(expected) and all(one in field for one in expected)


# Watches an agent's handlers while a shard runs them: what they change, and whether they give the same twice.
#
# It wraps the handlers of a plan, so it sees them at their real moment, with their real state and time. Findings are
# collected, not raised: the shard would take an exception for a fault of the handler.

YIELDED_COUNT_MAX = 10_000
"""A handler that yields more is cut off here; the shard refuses it long before."""

Handler = Callable[[Any, Any], Any]


def identity_of(message: Message, now_ns: int) -> bytes:
    """Equal for equal messages, whatever kind of number they were made with. Timers are equal by their due time."""
    match message:
        case Tell(to=to, message=told):
            return b"tell " + encode(to) + identity_of(told, now_ns)
        case Publish(topic=topic, event=event):
            return b"publish " + encode(topic) + identity_of(event, now_ns)
        case WakeMe() | WakeMeAt() | CancelWake():
            return b"timer " + bytes(timer_body(message, now_ns))
        case _:
            again = msgspec.msgpack.decode(encode(message), type=type(message))
            return canonical_bytes(again)


def lost_in_encoding(message: Message, now_ns: int) -> str | None:
    """What is wrong with the bytes of this message, or None."""
    try:
        identity_of(message, now_ns)
    except Exception as error:
        return f"{message!r} does not survive its encoding: {error}"
    return None


class HandlerTrace:
    """What the handlers of one agent class did."""

    def __init__(self) -> None:
        self.findings: list[str] = []
        self.errors: list[Exception] = []
        self.paused = False
        self._yielded: dict[bytes, Message] = {}

    def over(self, agent_plan: AgentPlan) -> AgentPlan:
        """The plan with each handler watched."""
        name = agent_plan.cls.__name__
        for message, plan in list(agent_plan.plans.items()):
            watched = self._watched(f"{name}, {message.__name__}", agent_plan, plan)
            agent_plan.plans[message] = watched
            if message in agent_plan.shorts:
                agent_plan.shorts[message] = (
                    watched.evolve,
                    watched.react,
                    watched.yields,
                    watched.wait_ns,
                    watched.watched,
                )
        return agent_plan

    def yielded(self, body: bytes) -> Message | None:
        """The message that a handler yielded and that has these bytes."""
        return self._yielded.get(bytes(body))

    def _watched(self, where: str, agent_plan: AgentPlan, plan: Plan) -> Plan:
        return replace(
            plan,
            decide=plan.decide and self._twice(f"@decide of {where}", plan.decide),
            react=plan.react and self._twice(f"@react of {where}", plan.react),
            yields=False,
            evolve=plan.evolve and self._evolve(f"@evolve of {where}", agent_plan, plan.evolve),
        )

    def _twice(self, where: str, handler: Handler) -> Handler:
        """Calls a handler that may change nothing, twice."""

        def watched(agent: Any, message: Any) -> Any:
            before = self._bytes(agent)
            results = [self._call(handler, agent, message) for _ in range(2)]
            (first, error), (second, other_error) = results
            if self._bytes(agent) != before:
                self._find(f"{where} changed the state; yield an event and change it in its @evolve handler")
            elif self._shown(first, error) != self._shown(second, other_error):
                self._find(
                    f"{where} gave two results for the same input: take time from self.now, chance from an input\n"
                    f"    first  {first or error!r}\n    second {second or other_error!r}"
                )
            if error is not None:
                raise error
            self._remember(first)
            return first

        return watched

    def _evolve(self, where: str, agent_plan: AgentPlan, evolve: Handler) -> Handler:
        def watched(agent: Any, event: Any) -> None:
            if not self.paused:
                images = [agent_plan.copy(agent), agent_plan.copy(agent)]
                errors = [self._call(evolve, image, event)[1] for image in images]
                if errors == [None, None] and self._bytes(images[0]) != self._bytes(images[1]):
                    self._find(f"{where} gave two states for the same event: it may use only the state and the event")
            evolve(agent, event)

        return watched

    def _call(self, handler: Handler, agent: Any, message: Any) -> tuple[list[Any], Exception | None]:
        try:
            return list(islice(handler(agent, message) or (), YIELDED_COUNT_MAX)), None
        except Exception as error:
            self.errors.append(error)
            return [], error

    def _remember(self, messages: list[Any]) -> None:
        now_ns = step_time_ns.get()
        for message in messages:
            if not isinstance(message, Message):
                continue
            if isinstance(message, StepEffect):
                self._yielded[message.packed()] = message.does
                message = message.does
            lost = lost_in_encoding(message, now_ns)
            if lost is not None:
                self._find(lost)
                continue
            match message:
                case Tell(to=to, message=told):
                    self._yielded[encode((to, encode(told)))] = message
                case Publish(topic=topic, event=event):
                    self._yielded[encode((topic, encode(event)))] = message
                case WakeMe() | WakeMeAt() | CancelWake():
                    self._yielded[bytes(timer_body(message, now_ns))] = message
                case _:
                    self._yielded[encode(message)] = message

    def _shown(self, messages: list[Any], error: Exception | None) -> tuple[list[str], str]:
        return [repr(message) for message in messages], repr(error)

    def _bytes(self, agent: Any) -> bytes:
        try:
            return canonical_bytes(agent)
        except Exception as error:
            self._find(f"the state {agent!r} cannot be written: {error}")
            return b""

    def _find(self, finding: str) -> None:
        if finding not in self.findings:
            self.findings.append(finding)


A = TypeVar("A", bound=Agent)

PEER = b"peer-rep"
"""The replica under which peers write."""
FIRINGS_COUNT_MAX = 10_000
"""Timers that one `later` may fire: an agent that wakes itself without end is a mistake."""


@overload
def given(
    agent: type[A], /, *past: Event, id: str = "one", at: float = 1000.0, fleet: Iterable[type[Agent]] | None = None
) -> Scenario[A]: ...


@overload
def given(
    workflow: Workflow, /, *past: Event, id: str = "one", at: float = 1000.0, fleet: Iterable[type[Agent]] | None = None
) -> Scenario[WorkflowRun]: ...


@overload
def given(*log: Event | tuple[str, Event], at: float = 1000.0) -> LogScenario: ...


def given(*given: Any, id: str = "one", at: float = 1000.0, fleet: Iterable[type[Agent]] | None = None) -> Any:
    """An agent to which these events have happened; they are folded, nothing is decided or released.

    `id` is its name, `at` the time in seconds. Tells may go to agents of any kind, unless `fleet` lists the classes.
    Without an agent class: events of a log, to `project` into a view; a pair says whose event it is.
    """
    if given and isinstance(given[0], Workflow):
        workflow = given[0]
        return Scenario(run_class({workflow.version: workflow}), given[1:], id, at, fleet)
    if given and isinstance(given[0], type):
        return Scenario(given[0], given[1:], id, at, fleet)
    return LogScenario(given, at)


class Happened(Struct, frozen=True):
    """An event that was kept or an effect that was asked for."""

    message: Message
    now_ns: int
    may_be_left_out: bool = False


class Scenario(Generic[A]):
    """An agent under test. Each `when` and each `later` starts anew what the checks after it speak of."""

    def __init__(
        self, agent: type[A], past: tuple[Event, ...], id: str, at: float, fleet: Iterable[type[Agent]] | None
    ) -> None:
        __tracebackhide__ = True
        self._watch = HandlerTrace()
        self._plan = self._watch.over(plan_agent(agent))
        self._others = None if fleet is None else plan_agents(other for other in fleet if other is not agent)
        self._address = f"{self._plan.kind}/{id}"
        self._now_ns = int(at * SECOND_NS)
        self._title = f"given {self._address}" + (f" with {', '.join(map(repr, past))}" if past else "")
        self._happened: list[Happened] = []
        self._answers: list[Verdict] = []
        self._failures: list[InputFailed] = []
        self._asked_count = 0
        self._commits: list[tuple[Commit, bytes]] = []
        self._made = False
        """Whether the agent is there although nothing has come to it: time can make one stale that only waits."""
        self._staleness = Staleness({self._plan.kind: self._plan})
        self._staleness.refresh(self._address, None, self._now_ns)
        state = self._new_state()
        if past:
            self._fold(state, past)
        self._shard = Shard(state)

    @property
    def agent(self) -> A:
        """The agent as it is now, for assertions of any kind; a copy."""
        copied: A = self._plan.copy(self._current())
        return copied

    @property
    def happened(self) -> list[Message]:
        """The events that were kept and the effects that were asked for since the last `when` or `later`, in order; for
        assertions of any kind."""
        return [one.message for one in self._happened]

    def when(self, *inputs: Command | Event) -> Scenario[A]:
        """Commands are asked, events observed, one after the other, at the present time of the scenario.

        Verdicts of the ledger (`Granted`, `Denied`, `Lost`, `Released`) come as if the ledger had said so, and
        `SafeActionTaken` as if a safe action had gone out. `inferred(GasAlarm(…))` comes as if the model had said so.
        """
        __tracebackhide__ = True
        self._begin("when " + ", ".join(map(repr, inputs)))
        for message in map(self._as_told, inputs):
            lost = lost_in_encoding(message, self._now_ns)
            if lost is not None:
                self._fail(lost)
            body = encode(message)
            if isinstance(message, Command):
                self._asked_count += 1
                self._take(Ask(agent=self._address, command_id=f"test-{self._asked_count}", command=body))
            elif isinstance(message, CLAIM_EVENTS):
                self._check_is_there()
                self._take(VerdictCame(self._address, body))
            elif isinstance(message, FollowedFact):
                self._check_is_there()
                self._take(FactCame(self._address, body, MODELS))
            elif isinstance(message, SafeActionTaken):
                self._make()
                self._take(SafeActionOut(self._address, message.action, message.because))
            else:
                self._take(Delivery(source="test", items=[(self._address, body)]), body)
        return self

    def when_peers_write(self, *writes: Callable[[A], Edit]) -> Scenario[A]:
        """Another replica, which has seen all that this one has, writes to shared fields:

        .when_peers_write(lambda agent: agent.vehicles.add("V-7"))
        """
        __tracebackhide__ = True
        self._begin("when peers write")
        self._check_is_there()
        for write in writes:
            edit = write(self.agent)
            store = getattr(self._current(), edit.field).store
            delta = mint(edit, store, PEER, self._now_ns)
            self._take(SharedReceived(self._address, edit.field, (delta.to_bytes(),)))
        return self

    def later(self, *, seconds: float, hearing: Event | tuple[Event, ...] | Literal["everything"] = ()) -> Scenario[A]:
        """Time passes. Timers that come due meanwhile go off, and the safe actions of what has become stale go out,
        each at its time, in their order. The silence of an agent to which nothing has come yet begins with `given`.

        `hearing`, one event or several, is observed again each time just before a silence would be too long: what the
        sensors of a healthy agent say meanwhile. With "everything" no silence is too long, and nothing is observed.
        """
        __tracebackhide__ = True
        self._begin(f"{seconds:g} s later")
        until_ns = self._now_ns + int(seconds * SECOND_NS)
        for _ in range(FIRINGS_COUNT_MAX):
            timer = next(iter(self._shard.state.timers.all()), None)
            stale_ns = None if hearing == "everything" else self._staleness.next_ns
            if stale_ns is not None and stale_ns <= until_ns and (timer is None or stale_ns <= timer.due_ns):
                for event in (hearing,) if isinstance(hearing, Event) else hearing:
                    self._now_ns = max(self._now_ns, stale_ns - 1)
                    body = encode(event)
                    self._take(Delivery(source="test", items=[(self._address, body)]), body)
                if self._staleness.next_ns != stale_ns:
                    continue
                self._now_ns = max(self._now_ns, stale_ns)
                self._send_safe_actions()
                continue
            if timer is None or timer.due_ns > until_ns:
                break
            self._now_ns = max(self._now_ns, timer.due_ns)
            due = TimerDue(agent=timer.agent, name=timer.name, due_ns=timer.due_ns)
            self._take(due, woken_body(self._plan.known_tags, due.name))
        else:
            self._fail(f"more than {FIRINGS_COUNT_MAX} timers went off: the agent wakes itself without end")
        self._now_ns = until_ns
        if hearing == "everything":
            self._staleness = Staleness({self._plan.kind: self._plan})
            self._staleness.refresh(self._address, None, until_ns)
        return self

    def then(self, *expected: Event | Effect) -> Scenario[A]:
        """Exactly these events were kept and effects asked for, in this order: each event, then its effects.

        An observed event without a `decide` handler is kept as it is, and need not be listed.
        """
        __tracebackhide__ = True
        self._check_not_failed()
        refusal = next((answer for answer in self._answers if isinstance(answer, Refused)), None)
        if refusal is not None:
            self._fail(f"expected\n{_lines(expected)}\nbut the command was refused\n    {refusal.reason}")
        remaining = list(map(typed, expected))
        for one in self._happened:
            if remaining and _is_same(remaining[0], one):
                remaining.pop(0)
            elif not one.may_be_left_out:
                self._fail(f"expected\n{_lines(expected)}\n{self._actually()}")
        if remaining:
            self._fail(f"expected\n{_lines(expected)}\n{self._actually()}")
        return self

    def then_nothing(self) -> Scenario[A]:
        """Nothing was kept beyond observed events as they are, nothing shared was written, and no effect asked for."""
        __tracebackhide__ = True
        if any(isinstance(one.message, SharedChanged) for one in self._happened):
            self._fail(f"expected\n{_lines(())}\n{self._actually()}")
        return self.then()

    def refused(self, because: str = "") -> Scenario[A]:
        """The last command was refused, with a reason that contains this text."""
        __tracebackhide__ = True
        self._check_not_failed()
        wanted = f"expected a refusal{f' because of {because!r}' if because else ''}"
        if not self._answers:
            self._fail(f"{wanted}, but there was no command\n{self._actually()}")
        answer = self._answers[-1]
        if not isinstance(answer, Refused):
            self._fail(f"{wanted}, but the command was accepted\n{self._actually()}")
        if because not in answer.reason:
            self._fail(f"{wanted}, but the reason is\n    {answer.reason}")
        return self

    def failed(self, error: str = "") -> Scenario[A]:
        """A handler raised, and the error that was kept contains this text."""
        __tracebackhide__ = True
        wanted = f"expected a failure{f' with {error!r}' if error else ''}"
        if not self._failures:
            self._fail(f"{wanted}, but nothing failed\n{self._actually()}")
        if not any(error in failure.error for failure in self._failures):
            found = "\n".join(f"    {failure.error}" for failure in self._failures)
            self._fail(f"{wanted}, but what failed is\n{found}")
        return self

    def state(self, **fields: object) -> Scenario[A]:
        """These fields of the agent's state have these values.

        A shared field is compared with what it means: a set, a number, a dict, a value; an ordered one with whether it
        is held now.
        """
        __tracebackhide__ = True
        agent = self._current()
        for name in fields:
            if not hasattr(agent, name):
                known = ", ".join(type(agent).__struct_fields__)
                self._fail(f"{type(agent).__name__} has no field {name!r}; it has {known}")
        wrong = {
            name: value for name, value in fields.items() if not has_value(getattr(agent, name), value, self._now_ns)
        }
        if wrong:
            lines = [f"    {name}: expected {value!r}, is {getattr(agent, name)!r}" for name, value in wrong.items()]
            lines += [f"    and an input failed: {failure.error}" for failure in self._failures]
            self._fail("the state differs\n" + "\n".join(lines))
        return self

    def part_ended(
        self, step: str, status: Literal["done", "undone", "stuck"] = "done", reason: str = ""
    ) -> Scenario[A]:
        """The run that is this step of the workflow, or that now undoes itself, has ended so: `done`; `undone`, because
        it failed or was taken back; or `stuck`."""
        __tracebackhide__ = True
        run: Any = self._current()
        if not isinstance(run, WorkflowRun):
            self._fail(f"{self._address} is no run of a workflow")
        under_way = [name for name, state in run.steps.items() if state.state == "begun"]
        waits = [name for name in (f"{UNDO}{step}", step) if name in under_way]
        if not waits or not _is_part(run, step):
            self._fail(f"{self._address} waits for no part {step!r}; under way are {', '.join(under_way) or 'none'}")
        name, state, ended = waits[0], run.steps[waits[0]], RunEnded(status=status, reason=reason)
        return self.when(ending_of(state.to, ended, self._address, name, state.attempt))

    def _new_state(self) -> ShardState:
        state = ShardState(0, {self._plan.kind: self._plan, **(self._others or {})})
        if self._others is None:
            state.plans = _AnyKind(state.plans)
        if self._made:
            state.agents[self._address] = state.new_agent(self._address, self._plan)
        return state

    def _as_told(self, message: Message) -> Message:
        """The message as the agent hears it: `Done(Plug())` as the `Done[Plug]` that the agent has a handler for."""
        __tracebackhide__ = True
        if type(message) is Woken:
            return self._plan.decode_kept(encode(message)) or message
        if type(message) not in (Done, Failed):
            told: Message = typed_entered(message)
            return told
        confirmed: Any = message
        name, key = spec_of(type(confirmed.action)).name, confirmed.key
        said: ActionDone | ActionFailed | WorkFailed = ActionDone(name, key)
        if isinstance(message, Failed):
            said = (WorkFailed if isinstance(message.action, Work) else ActionFailed)(name, key, message.reason)
        body = confirmation(self._plan, encode(confirmed.action), said) or b""
        own = typed(message)
        if type(own) not in self._plan.plans and not self._plan.handles(type(said)):
            kinds = f"{type(own).__name__} or {type(said).__name__}"
            self._fail(f"{self._plan.kind} has no handler for {kinds}, so no node tells it; write one")
        return self._plan.decode(body)

    def _make(self) -> None:
        """Sees to it that the agent is there."""
        state = self._shard.state
        if self._address not in state.agents:
            self._made = True
            state.agents[self._address] = state.new_agent(self._address, self._plan)

    def _send_safe_actions(self) -> None:
        """What the host does about stale agents: the action goes out first, then it is written down."""
        __tracebackhide__ = True
        for stale in self._staleness.due(self._now_ns):
            self._make()
            action = stale.rule.then
            self._happened.append(Happened(action, self._now_ns))
            self._take(SafeActionOut(self._address, type(action).__name__, stale.because))

    def _fold(self, state: ShardState, past: tuple[Event, ...]) -> None:
        """Writes the past into one commit and replays it, as a restart would."""
        __tracebackhide__ = True
        draft = Draft(position=1)
        draft.begin_run(self._now_ns, "past")
        for event in past:
            lost = lost_in_encoding(event, self._now_ns)
            if lost is not None:
                self._fail(lost)
            if spec_of(type(event)).keep.promise is Keeping.TRANSIENT:
                self._fail(f"{event!r} is transient, so it was never kept; give it to when(…)")
            draft.events.append((self._address, encode(event)))
        commit = draft.close(state, state.epoch, self._now_ns)
        self._commits.append((commit, seal(commit).digest))
        apply(state, *self._commits[0])

    def _begin(self, what: str) -> None:
        self._title = f"{self._title}\n{what}"
        self._happened = []
        self._answers = []
        self._failures = []
        self._watch.errors.clear()

    def _take(self, one: Input, as_it_is: bytes | None = None) -> None:
        """Steps and seals one input, and checks what the framework relies on."""
        __tracebackhide__ = True
        for address, event in self._shard.step([one], self._now_ns).fresh:
            if event is None:  # its first input: what was before does not count
                self._staleness = Staleness({self._plan.kind: self._plan})
            self._staleness.refresh(address, event, self._now_ns)
        ready = self._shard.seal()
        if self._watch.findings:
            self._fail("\n".join(self._watch.findings))
        if ready is not None:
            self._commits.append((ready.commit, ready.sealed.digest))
            self._answers += [verdict for _, verdict in ready.verdicts]
            self._note(ready, as_it_is)
            self._check_state()

    def _note(self, ready: Ready, as_it_is: bytes | None) -> None:
        """Lists what happened in the order of cause: each event, then its effects."""
        by_cause: dict[int, list[Happened]] = {}
        for owed in ready.commit.owed:
            ours = owed.sink == TIMERS and read_timer(owed.body).name.startswith(WINDOW_PREFIX)
            effect = self._watch.yielded(owed.body)
            if effect is not None and not ours:
                by_cause.setdefault(owed.cause, []).append(Happened(effect, self._now_ns))
        self._happened += by_cause.get(NO_CAUSE, [])
        for index, (_, body) in enumerate(ready.commit.events):
            event = self._watch.yielded(body) or self._plan.decode(body)
            if isinstance(event, InputFailed):
                self._failures.append(event)
            undecided = self._plan.plan_for(type(event)).decide is None and as_it_is is not None
            kept_as_it_is = undecided and bytes(body) == bytes(as_it_is or b"")
            ours = isinstance(event, FACTS)
            self._happened.append(Happened(event, self._now_ns, may_be_left_out=kept_as_it_is or ours))
            self._happened += by_cause.get(index, [])

    def _check_state(self) -> None:
        __tracebackhide__ = True
        state, again = self._shard.state, self._new_state()
        agent = state.agents.get(self._address)
        if agent is not None:
            try:
                restored = self._plan.restore(canonical_bytes(agent))
            except Exception as error:
                self._fail(f"the state {agent!r} cannot be written and read back: {error}")
            if restored != agent and canonical_bytes(restored) != canonical_bytes(agent):
                self._fail(f"the state {agent!r} is read back as {restored!r}")
        self._watch.paused = True
        for commit, digest in self._commits:
            apply(again, commit, digest)
        self._watch.paused = False
        if digest_of_state(again) != digest_of_state(state):
            replayed = again.agents.get(self._address)
            self._fail(f"a replay ends in another state\n    lived    {agent!r}\n    replayed {replayed!r}")

    def _current(self) -> Any:
        state = self._shard.state
        return state.agents.get(self._address) or state.new_agent(self._address, self._plan)

    def _check_is_there(self) -> None:
        """Facts come to agents that are there; the first input that makes one is a command or an observed event."""
        __tracebackhide__ = True
        if self._address not in self._shard.state.agents:
            self._fail(f"{self._address} is not there yet; give it an event or a command first")

    def _check_not_failed(self) -> None:
        __tracebackhide__ = True
        if self._failures:
            cause = self._watch.errors[0] if self._watch.errors else None
            raise AssertionError(f"{self._title}\nfailed:\n    {self._failures[0].error}") from cause

    def _actually(self) -> str:
        shown = [f"{_in_words(one.message)}{'   (as it is)' if one.may_be_left_out else ''}" for one in self._happened]
        return "actually\n" + _lines(shown)

    def _fail(self, text: str) -> NoReturn:
        __tracebackhide__ = True
        raise AssertionError(f"{self._title}:\n{text}")


def _is_part(run: Any, step: str) -> bool:
    return isinstance(type(run).workflows[run.version].steps[step].does, Workflow)


class _AnyKind(dict[str, AgentPlan]):
    """The plans of a fleet of which only one class is known here: a tell to any other kind is as good."""

    def get(self, kind: str, default: Any = None) -> Any:
        return self[kind] if kind in self else plan_agent(Agent)


def _is_same(expected: Message, one: Happened) -> bool:
    if type(expected) is not type(one.message):
        return False
    return identity_of(expected, one.now_ns) == identity_of(one.message, one.now_ns)


def _in_words(message: Message) -> str:
    """A message for people. What was written to a shared field is bytes, and says nothing."""
    said = fields_in_words(spec_of(type(message)).tag, encode(message))
    return repr(message) if said is None else f"{type(message).__name__}({said})"


def _lines(shown: Iterable[object]) -> str:
    lines = [f"    {text if isinstance(text, str) else repr(text)}" for text in shown]
    return "\n".join(lines) or "    nothing"
