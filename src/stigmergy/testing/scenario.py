"""Unit tests of agents without any infrastructure: given past facts, when inputs come, then these events and effects.

    given(Drone).when(BatteryMeasured(percent=12)).then(Land(reason="battery"))

It runs on the real shard, step and seal. Beside what a test asks for, every input is checked for what the framework
relies on: messages and state survive their encoding, `decide` and `react` change nothing, handlers called twice give
the same, and a replay of the commits ends in the same state.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, Generic, Literal, NoReturn, TypeVar

from msgspec import Struct

from stigmergy.core.agent import Agent
from stigmergy.core.claiming import CLAIM_EVENTS
from stigmergy.core.codec import canonical_bytes, encode
from stigmergy.core.commit import Commit, seal
from stigmergy.core.confirmations import Done, Failed, confirmation, typed, woken_body
from stigmergy.core.draft import Draft
from stigmergy.core.effects import TIMERS, ActionDone, ActionFailed, Woken, WorkFailed
from stigmergy.core.inputs import (
    Ask,
    Delivery,
    Input,
    Refused,
    SafeActionOut,
    SharedReceived,
    TimerDue,
    Verdict,
    VerdictCame,
)
from stigmergy.core.messages import SECOND_NS, Command, Effect, Event, Keeping, Message, Work, spec_of
from stigmergy.core.outcome import NO_CAUSE
from stigmergy.core.plans import AgentPlan, plan_agent
from stigmergy.core.ready import Ready
from stigmergy.core.replay import apply
from stigmergy.core.shard import Shard
from stigmergy.core.sharing import SharedChanged
from stigmergy.core.snapshot import digest_of_state
from stigmergy.core.state import ShardState, plan_agents
from stigmergy.core.supervision import FACTS, InputFailed, SafeActionTaken
from stigmergy.core.timers import WINDOW_PREFIX, read_timer
from stigmergy.crdt.delta import Edit, mint
from stigmergy.runtime.showing import shared_fields
from stigmergy.runtime.staleness import Staleness
from stigmergy.testing.comparing import has_value
from stigmergy.testing.purity import Watch, identity_of, lost_in_encoding

A = TypeVar("A", bound=Agent)

PEER = b"peer-rep"
"""The replica under which peers write."""
FIRINGS_COUNT_MAX = 10_000
"""Timers that one `later` may fire: an agent that wakes itself without end is a mistake."""


def given(
    agent: type[A], *past: Event, id: str = "one", at: float = 1000.0, fleet: Iterable[type[Agent]] | None = None
) -> Scenario[A]:
    """An agent to which these events have happened; they are folded, nothing is decided or released.

    `id` is its name, `at` the time in seconds. Tells may go to agents of any kind, unless `fleet` lists the classes.
    """
    return Scenario(agent, past, id, at, fleet)


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
        self._watch = Watch()
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

    def when(self, *inputs: Command | Event) -> Scenario[A]:
        """Commands are asked, events observed, one after the other, at the present time of the scenario.

        Verdicts of the ledger (`Granted`, `Denied`, `Lost`, `Released`) come as if the ledger had said so, and
        `SafeActionTaken` as if a safe action had gone out.
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
            return message
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
    said = shared_fields(spec_of(type(message)).tag, encode(message))
    return repr(message) if said is None else f"{type(message).__name__}({said})"


def _lines(shown: Iterable[object]) -> str:
    lines = [f"    {text if isinstance(text, str) else repr(text)}" for text in shown]
    return "\n".join(lines) or "    nothing"
