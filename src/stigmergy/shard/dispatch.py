"""Handles inputs for agents: decide, evolve, react, and the rollback when any of them fails. Used by the shard's step.

The results of an input are collected aside and enter the draft only when all of it has succeeded. So only the agent's
own state needs undoing, and an image of it is kept.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import chain
from operator import length_hint
from typing import Any

from stigmergy.agents.agent import Rejection
from stigmergy.agents.codec import (
    MESSAGE_BYTES_MAX,
    REASON_CHARS_MAX,
    SOURCE_CHARS_MAX,
    SURELY_FLAT_BYTES,
    UNDECODABLE,
    describe,
    digest_of,
    encode,
    is_sound,
    keepable,
    printable,
    tag_of,
)
from stigmergy.agents.effects import REMOTE_SINKS, WindowClosed
from stigmergy.agents.messages import SECOND_NS, Command, Effect, Event, Message
from stigmergy.agents.plans import AgentPlan
from stigmergy.agents.shared import check_groups
from stigmergy.agents.supervision import SHARD_ADDRESS, AgentStopped, InputFailed, OnFailed
from stigmergy.base.errors import Malformed, Overloaded, PeerError, PolicyDenied, TooLarge
from stigmergy.shard.column_dispatch import ColumnDispatcher
from stigmergy.shard.commit import NO_CAUSE, Answer, column_cause
from stigmergy.shard.decisions import decided_events
from stigmergy.shard.draft import (
    ADDRESS_CHARS_MAX,
    DRAFT_BYTES_MAX,
    OVERHEAD_BYTES,
    REMOTE_ADDRESSES_MAX,
    Draft,
    InputOutcome,
    PackedEffect,
    ShardCounters,
    collect,
    enter,
    keep_silent,
    owe,
    pack_effects,
    size_of,
    window_timers,
)
from stigmergy.shard.forwarding import forwarded
from stigmergy.shard.forwarding import packed as packed_command
from stigmergy.shard.gate import PolicyGate
from stigmergy.shard.homes import Homes
from stigmergy.shard.inputs import ELSEWHERE, Accepted, Ask, Asked, Refused
from stigmergy.shard.judging import PolicyQuestion, Sender
from stigmergy.shard.memory import Remembered
from stigmergy.shard.outbox import Pending, read_passed
from stigmergy.shard.state import ShardState, fold_fact, letter_of
from stigmergy.shard.trace_notes import TracedItems, trace_input
from stigmergy.shard.tracing import TraceContext, Traces, new_trace

REACTIONS_BYTES_MAX = 16 * 1024
"""Effects that an agent may ask for because of an event of the framework."""
WINDOW_CLOSINGS_MAX = 1_000
"""Buckets of one window that one input may close; the rest waits for the next input."""


class _Quiet(Exception):
    """Nobody is to react."""


class InputDispatcher:
    """Turns inputs into what a draft keeps."""

    def __init__(self, state: ShardState, homes: Homes) -> None:
        self._state = state
        self.homes = homes
        self.counters = ShardCounters()
        self.columnar = ColumnDispatcher(state, homes, self)
        self.traces_failures = False
        self.gate = PolicyGate(state)
        self.on_failed: OnFailed = lambda *_: None
        """Whether a refused or failed input that belongs to no trace begins one."""

    def take_items(
        self,
        draft: Draft,
        items: list[tuple[str, bytes]],
        source: str,
        now_ns: int,
        traces: Traces = (),
        sender: Sender | None = None,
    ) -> int:
        """Takes messages of one source in order, some of which may belong to traces; returns how many, fewer than given
        only when the draft is full. The caller has counted the items' own bytes."""
        take_each = self._take_foreign if self.gate.judges_all_of(sender) else self._take_each
        if traces:
            traced = TracedItems(self._state, draft, items, traces, now_ns)
            take_each(draft, chain.from_iterable(traced.pieces()), source, now_ns, sender)
            taken = traced.end()
        else:
            remaining = iter(items)
            take_each(draft, remaining, source, now_ns, sender)
            taken = len(items) - length_hint(remaining)
        self.counters.inputs += taken
        return taken

    def _take_each(
        self, draft: Draft, items: Iterator[tuple[str, bytes]], source: str, now_ns: int, sender: Sender | None
    ) -> None:
        """Takes messages until the draft is full. This loop is where a fleet spends its time: a plain observed event
        (no `decide`, no window) is handled right here, one that its agent decides about by `_decide`, and everything
        else by `take`, with all its cases."""
        state = self._state
        agents, plan_of, stopped, at_rest = state.agents, state.plan_of, state.stopped, state.at_rest
        find, keep_event, keep_image = agents.get, draft.events.append, draft.touched.setdefault
        newest, wait_ns = draft.newest_events, draft.wait_ns
        message: Any
        kind: type | None = None
        agent_plan: Any = None
        decode_body: Any = None
        find_short: Any = None
        find_plan: Any = None
        copy: Any = None
        for item in items:
            address, body = item
            agent = find(address)
            unsound = len(body) > SURELY_FLAT_BYTES and not is_sound(body)
            if agent is None or unsound or (stopped and address in stopped) or (at_rest and address in at_rest):
                if body is ELSEWHERE:
                    continue
                self.take(draft, address, body, source, now_ns, sender)
                if draft.size_bytes > DRAFT_BYTES_MAX:
                    break
                continue
            if agent.__class__ is not kind:
                kind = agent.__class__
                agent_plan = plan_of[kind]
                decode_body, find_short, copy = agent_plan.decode, agent_plan.shorts.get, agent_plan.copy
                find_plan = agent_plan.plans.get
            try:
                message = decode_body(body)
                short = find_short(message.__class__)
            except UNDECODABLE:
                message = short = None
            if short is None:
                plan = find_plan(message.__class__)
                if plan is not None and plan.considered and len(body) <= MESSAGE_BYTES_MAX:
                    self._decide(draft, address, agent_plan, message, body, source, now_ns)
                else:
                    self.take(draft, address, body, source, now_ns, sender)
                if draft.size_bytes > DRAFT_BYTES_MAX:
                    break
                continue
            evolve, react, yields, kept_wait_ns, watched = short
            before = copy(agent)
            effects: list[PackedEffect] | None = None
            try:
                if evolve is not None:
                    evolve(agent, message)
                if react is not None:
                    reactions = react(agent, message)
                    if not yields:
                        reactions = iter(reactions or ())
                    for first in reactions:
                        effects = self._pack_all(agent, message, body, first, reactions, now_ns)
            except BaseException as error:
                agents[address] = before
                if not isinstance(error, Exception):
                    raise
                self.fail(draft, address, body, source, error, now_ns, reached=True)
                if draft.size_bytes > DRAFT_BYTES_MAX:
                    break
                continue
            keep_event(item)
            keep_image(address, before)
            if kept_wait_ns < wait_ns:
                wait_ns = kept_wait_ns
                draft.hurry(wait_ns)
            if newest:
                newest.pop(address, None)
            if watched:
                draft.fresh.append((address, message.__class__))
            if effects is not None:
                self._owe_all(draft, address, effects, now_ns)
                if draft.size_bytes > DRAFT_BYTES_MAX:
                    break

    def _take_foreign(
        self, draft: Draft, items: Iterator[tuple[str, bytes]], source: str, now_ns: int, sender: Sender | None
    ) -> None:
        """Takes messages of another fleet until the draft is full: a policy is asked about each."""
        for address, body in items:
            self.take(draft, address, body, source, now_ns, sender)
            if draft.size_bytes > DRAFT_BYTES_MAX:
                break

    def take(
        self, draft: Draft, address: str, body: bytes, source: str, now_ns: int, sender: Sender | None = None
    ) -> None:
        """Takes one message, whatever it is, with every case. Of a `sender`, a policy is asked about it."""
        if body is ELSEWHERE:
            return
        if address.startswith(REMOTE_SINKS):
            self._pass_on(draft, address, body, source, now_ns, sender)
            return
        try:
            agent_plan, message = self._open(address, body)
            if isinstance(message, Command):
                self.take_command(draft, address, body, "", now_ns, sender=sender)
                return
            self._admit(draft, address, agent_plan, now_ns)
            self.gate.check_tell(draft, address, agent_plan, message, sender)
            record = self._record_of(address, agent_plan, message)
        except (PeerError, Overloaded) as error:
            self.fail(draft, address, body, source, error, now_ns)
            return
        self._decide(draft, address, agent_plan, message, body, source, now_ns, record)
        self.close_windows(draft, address, now_ns, now_ns)

    def _decide(
        self,
        draft: Draft,
        address: str,
        agent_plan: AgentPlan,
        message: Message,
        body: bytes,
        source: str,
        now_ns: int,
        record: bytes | None = None,
    ) -> None:
        """Takes an observed event that is admitted: what its handlers raise makes it a dead letter."""
        try:
            if record is None:
                self._run(draft, address, agent_plan, message, body, now_ns)
            elif (wrong := self.columnar.run(draft, address, record, now_ns)) is not None:
                self.fail(draft, address, body, source, wrong, now_ns)
                return
            # Only what an agent could make something of is fresh: a gauge whose every reading fails is a silent one.
            if agent_plan.plan_for(type(message)).watched:
                draft.fresh.append((address, type(message)))
        except Rejection as rejection:
            refusal = TypeError(f"an observed event cannot be refused ({rejection.reason}); yield nothing to filter it")
            self.fail(draft, address, body, source, refusal, now_ns, reached=True)
        except Exception as error:
            self.fail(draft, address, body, source, error, now_ns, reached=True)

    def _pass_on(
        self, draft: Draft, sink: str, body: bytes, source: str, now_ns: int, sender: Sender | None = None
    ) -> None:
        """A tell of another node for an agent of a third one: it is owed again, and creates nobody."""
        try:
            passed = read_passed(body)
            teller = passed.teller
        except UNDECODABLE as error:
            self.fail(draft, sink, body, source, error, now_ns)
            return
        if self.gate.judges_all_of(sender):
            try:
                self.gate.check_tell(draft, passed.to, *self._opened(passed.to, passed.message), sender, here=False)
            except PeerError as error:
                self.fail(draft, passed.to, passed.message, source, error, now_ns)
                return
        if not self._state.outbox.knows(sink) and self._state.outbox.remote_count >= REMOTE_ADDRESSES_MAX:
            sink = REMOTE_SINKS
        owe(self._state, draft, teller, (sink, body), NO_CAUSE, now_ns)
        draft.grow(teller, sink, bodies_bytes=len(body))

    def take_command(
        self,
        draft: Draft,
        address: str,
        body: bytes,
        command_id: str,
        now_ns: int,
        client: str = "",
        sender: Sender | None = None,
    ) -> None:
        """Takes a command and answers it, also when its handler fails. Without an id the answer is not remembered. Of a
        `sender`, a policy is asked first, and its denial is the answer."""
        at = self._place(draft, address)
        reason: str | None = None
        asked = (address, command_id, body)
        digest = b""
        try:
            agent_plan, message = self._open(address, body)
            if command_id:
                digest = digest_of(message)
            if not isinstance(message, Command):
                raise PeerError(f"{type(message).__name__} is an event, and only commands are answered; observe it")
            self._admit(draft, address, agent_plan, now_ns)
            record = self._record_of(address, agent_plan, message)
        except (PeerError, Overloaded) as error:
            self._answer(draft, asked, (client, digest), str(error), at, now_ns)
            return
        ruling = self.gate.ruling("command", address, agent_plan, message, sender)
        if ruling is not None:
            draft.rule(ruling, answered=True)
            if ruling.refused is not None:
                self._answer(draft, asked, (client, digest), ruling.refused, at, now_ns)
                return
        try:
            if record is None:
                self._run(draft, address, agent_plan, message, body, now_ns)
            elif (wrong := self.columnar.run(draft, address, record, now_ns)) is not None:
                reason = str(wrong)
        except Rejection as rejection:
            reason = printable(rejection.reason, REASON_CHARS_MAX)
        except Exception as error:
            reason = f"the handler failed: {describe(error)}; the command is in the dead letters"
            begins = self._trace_of_refused(draft, address, command_id)
            self.fail(draft, address, body, "command", error, now_ns, reached=True, begins=begins)
            at = len(draft.events)
        self._answer(draft, asked, (client, digest), reason, at, now_ns)
        self.close_windows(draft, address, now_ns, now_ns)

    def digest_of(self, address: str, body: bytes) -> bytes:
        """What tells a command from another one for this agent; empty for one that cannot be read."""
        message = self._read(address, body)
        return b"" if message is None else digest_of(message)

    def refuse(self, draft: Draft, asked: Asked, client: str, reason: str, now_ns: int) -> None:
        """Refuses a command before any handler sees it."""
        known = (client, self.digest_of(asked[0], asked[2]))
        self._answer(draft, asked, known, printable(reason, REASON_CHARS_MAX), self._place(draft, asked[0]), now_ns)

    def check_enrolment(self, draft: Draft, question: PolicyQuestion, now_ns: int) -> None:
        """Raises PolicyDenied unless the policy lets somebody enrol agents or a key. A denial is kept as an answer."""
        try:
            self.gate.check_enrolment(draft, question)
        except PolicyDenied as error:
            whom = (question.address, "", b"")
            self._answer(draft, whom, ("", b""), str(error), len(draft.events), now_ns, kept=False)
            raise

    def forward(self, draft: Draft, ask: Ask, client: str, now_ns: int) -> Pending | None:
        """Owes a command to the node that runs its agent; None if it is refused here."""
        asked = (ask.agent, ask.command_id, ask.command)
        try:
            # A node on the way passes on what it cannot read: its fleet may be of an older version.
            message = None if ask.travel.hops else self._opened(ask.agent, ask.command)[1]
            one = packed_command(forwarded(ask, message, client, now_ns))
        except PeerError as error:
            self.refuse(draft, asked, client, str(error), now_ns)
            return None
        owe(self._state, draft, ask.agent, one, NO_CAUSE, now_ns)
        draft.grow(ask.agent, bodies_bytes=len(one[1]))
        return draft.pending[-1]

    def answer_elsewhere(self, draft: Draft, asked: Asked, client: str, refused: str | None, now_ns: int) -> None:
        """Keeps what another node has answered."""
        known = (client, self.digest_of(asked[0], asked[2]))
        self._answer(draft, asked, known, refused, len(draft.events), now_ns, kept=False)

    def _read(self, address: str, body: bytes) -> Message | None:
        try:
            return self._opened(address, body)[1]
        except (PeerError, Overloaded):
            return None

    def understands(self, address: str, body: bytes) -> bool:
        """Whether this agent has a handler for what came back from a sink; it may ignore confirmations."""
        agent_plan = self._state.plans.get(address.partition("/")[0])
        if agent_plan is None:
            return False
        try:
            return agent_plan.handles(type(agent_plan.decode(body)))
        except UNDECODABLE:
            return not agent_plan.may_ignore(body)

    def close_windows(self, draft: Draft, address: str, reached_ns: int, now_ns: int) -> None:
        """Closes the buckets of tumbling windows that are complete; each closing is an event of the agent."""
        agents, stopped = self._state.agents, self._state.stopped
        if address not in agents:
            return
        agent_plan = self._state.plan_of[agents[address].__class__]
        for name in agent_plan.tumbling:
            for _ in range(WINDOW_CLOSINGS_MAX):
                window = getattr(agents[address], name)
                if not window.due(reached_ns) or address in stopped or draft.size_bytes > DRAFT_BYTES_MAX:
                    break
                start_s, end_s = window.start_ns / SECOND_NS, (window.start_ns + window.span) / SECOND_NS
                closed = WindowClosed(window=name, start_s=start_s, end_s=end_s)
                error = self.keep(draft, address, closed, now_ns)
                if error is not None:
                    self.fail(draft, address, encode(closed), "window", error, now_ns, reached=True)

    def follow(
        self, draft: Draft, address: str, fact: Event, source: str, now_ns: int, body: bytes | None = None
    ) -> None:
        """Keeps a fact that an agent may decide something about: first it is part of the state, then it is decided.
        With `body`, the bytes of a fact of a service, it is kept in them.

        A stopped agent learns of it and does nothing."""
        stopped, image, error = address in self._state.stopped, None, None
        agent = self._state.agents[address]
        agent_plan = self._state.plan_of[agent.__class__]
        if body is not None and agent_plan.plans[fact.__class__].silent:
            image = keep_silent(draft, address, agent_plan, agent, fact, body)
        else:
            error = self.keep(draft, address, fact, now_ns, quietly=stopped, body=body)
        if error is None and not stopped:
            error = self.follow_up(draft, address, fact, now_ns, image)
        if error is not None:
            self.fail(draft, address, letter_of(fact), source, error, now_ns, reached=True)

    def follow_up(self, draft: Draft, address: str, fact: Event, now_ns: int, image: Any = None) -> Exception | None:
        """Decides what follows from a fact that is part of the agent's state; returns what a handler raised. `image` is
        a copy of the agent as it is now, if there is one."""
        agent_plan = self._state.plan_of[self._state.agents[address].__class__]
        if agent_plan.plans[fact.__class__].decide is None:
            return None
        try:
            # No bytes: a fact is kept already, so a handler cannot pass it on.
            self._run(draft, address, agent_plan, fact, b"", now_ns, image)
        except Rejection as rejection:
            return TypeError(f"a fact cannot be refused ({rejection.reason}); yield nothing, or what follows")
        except Exception as error:
            return error
        return None

    def react_again(self, draft: Draft, address: str, fact: Event, now_ns: int) -> Exception | None:
        """Asks once more for the effects of a fact that was kept without them; returns what a handler raised."""
        agent, body = self._state.agents[address], encode(fact)
        react = self._state.plan_at(address).plans[type(fact)].react
        try:
            effects = () if react is None else react(agent, fact) or ()
            room_bytes = len(body) + REACTIONS_BYTES_MAX
            packed = pack_effects(self._state, self.homes, agent, effects, (fact, body), now_ns, room_bytes)
        except Exception as error:
            return error
        for one in packed:
            owe(self._state, draft, address, one, NO_CAUSE, now_ns)
            draft.grow(address, bodies_bytes=size_of(one))
        return None

    def keep(
        self,
        draft: Draft,
        address: str,
        event: Event,
        now_ns: int,
        *,
        quietly: bool = False,
        body: bytes | None = None,
    ) -> Exception | None:
        """Keeps an event of the framework, in these bytes if there are some. If a handler of the agent fails on it, it
        stays a fact without reactions; `quietly` it has none in any case."""
        if body is None:
            body = encode(event)
        self._state.note(address, event, now_ns)
        if address == SHARD_ADDRESS:
            draft.events.append((address, body))
            draft.grow(bodies_bytes=len(body))
            draft.hurry(0)
            return None
        agent = self._state.agents.get(address)
        agent_plan = self._state.plan_at(address) if agent is None else self._state.plan_of[agent.__class__]
        if agent_plan.engine is not None:
            # No handler of a compiled agent takes such an event, and its sender has enrolled its agent.
            draft.events.append((address, body))
            draft.grow(address, bodies_bytes=len(body))
            draft.hurry(0)
            return None
        image = None if agent is None else agent_plan.copy(agent)
        if agent is None:
            agent = self._state.new_agent(address, agent_plan)
        failure: Exception | None = None
        room_bytes = len(body) + REACTIONS_BYTES_MAX
        try:
            if quietly:
                raise _Quiet
            outcome = collect(self._state, self.homes, agent_plan, agent, [(event, body)], now_ns, room_bytes)
        except Exception as error:
            failure = None if quietly else error
            before = self._state.new_agent(address, agent_plan) if image is None else agent_plan.copy(image)
            agent = fold_fact(agent_plan, before, event, now_ns)
            plan = agent_plan.plans[type(event)]
            timers = window_timers(self._state, agent_plan, plan, agent, event)
            outcome = InputOutcome(
                events=[(plan, event, body)],
                effects=[(timer, 0) for timer in timers],
                size_bytes=len(body) + (1 + len(timers)) * (len(address) + OVERHEAD_BYTES),
            )
        enter(self._state, draft, address, agent, image, outcome, now_ns)
        return failure

    def _open(self, address: str, body: bytes) -> tuple[AgentPlan, Message]:
        """Finds the agent's plan and decodes the message for it. Raises PeerError with a sentence that says why."""
        self._state.plan_at(address)
        self._state.assignment.check(address)
        return self._opened(address, body)

    def _opened(self, address: str, body: bytes) -> tuple[AgentPlan, Message]:
        """The same for an agent that may run elsewhere."""
        agent_plan = self._state.plan_at(address)
        size_bytes = len(body)
        if size_bytes > MESSAGE_BYTES_MAX:
            raise TooLarge(
                f"a message of {size_bytes} bytes, {MESSAGE_BYTES_MAX} at most; store the payload and send a Blob"
            )
        if size_bytes > SURELY_FLAT_BYTES and not is_sound(body):
            raise Malformed("a message that is nested too deep, or not one whole value")
        message = decode(agent_plan, body)
        if agent_plan.plan_for(type(message)).fact:
            raise PeerError(f"{type(message).__name__} is said by the framework alone; send an event of your own")
        return agent_plan, message

    def _admit(self, draft: Draft, address: str, agent_plan: AgentPlan, now_ns: int) -> None:
        """Raises unless the agent can take an input now. What time has completed comes before it."""
        if agent_plan.tumbling:
            self.close_windows(draft, address, now_ns, now_ns)
        if address in self._state.stopped:
            reason = self._state.stopped[address]
            raise PeerError(f"{address} is stopped: {reason}; resume it, then send or retry this")
        if not self._state.has_agent(address):
            self.columnar.check_room(address)
            check_groups(agent_plan.shared, address)

    def _record_of(self, address: str, agent_plan: AgentPlan, message: Message) -> bytes | None:
        """The record of a message for a compiled agent; None for an interpreted one."""
        return None if agent_plan.engine is None else self.columnar.record_of(address, message)

    def _run(
        self,
        draft: Draft,
        address: str,
        agent_plan: AgentPlan,
        message: Message,
        body: bytes,
        now_ns: int,
        image: Any = None,
    ) -> None:
        """Decides, evolves and reacts. Raises with the agent as it was before, of which `image` is a copy."""
        state, agents = self._state, self._state.agents
        agent = agents.get(address)
        shared = image is not None
        if agent is None:
            agent = state.new_agent(address, agent_plan)
        elif image is None:
            image = agent_plan.copy(agent)
        plan = agent_plan.plan_for(message.__class__)
        limit, events_max = state.limits.bytes_per_decision_max, state.limits.events_per_decision_max
        try:
            decided = (
                [(message, body)]
                if plan.decide is None
                else decided_events(agent_plan, plan, agent, message, body, state.replica_of, now_ns, events_max)
            )
            if not decided:
                return
            outcome = collect(self._state, self.homes, agent_plan, agent, decided, now_ns, limit)
        except BaseException:
            if image is not None:
                agents[address] = agent_plan.copy(image) if shared else image
            raise
        enter(self._state, draft, address, agent, image, outcome, now_ns)

    def _pack_all(
        self, agent: Any, event: Any, body: bytes, first: Effect, others: Iterable[Effect], now_ns: int
    ) -> list[PackedEffect]:
        room_bytes = self._state.limits.bytes_per_decision_max - len(body)
        return pack_effects(self._state, self.homes, agent, chain((first,), others), (event, body), now_ns, room_bytes)

    def _owe_all(self, draft: Draft, address: str, effects: list[PackedEffect], now_ns: int) -> None:
        cause = len(draft.events) - 1
        for packed in effects:
            owe(self._state, draft, address, packed, cause, now_ns)
            draft.size_bytes += size_of(packed) + len(address) + OVERHEAD_BYTES

    def _place(self, draft: Draft, address: str) -> int:
        """Where an answer stands among the events: of a compiled agent, among those in columns."""
        compiled = address.partition("/")[0] in self._state.tables
        return column_cause(draft.columns_count) if compiled else len(draft.events)

    def _answer(
        self,
        draft: Draft,
        asked: Asked,
        known: tuple[str, bytes],
        refused: str | None,
        at: int,
        now_ns: int,
        *,
        kept: bool = True,
    ) -> None:
        """Records the answer to a command, with its client and digest. Refusals too: sent again it gets the same. With
        `kept`, the command is in it: not where another node has decided it, whose log has it."""
        address, command_id, body = asked
        client, digest = known
        if refused is None:
            self.counters.accepted += 1
        else:
            self.counters.refused += 1
        answer = Answer(
            printable(address, ADDRESS_CHARS_MAX), command_id, keepable(body) if kept else b"", refused, at, now_ns
        )
        context = None if refused is None else self._trace_of_refused(draft, address, command_id)
        draft.answers.append(answer)
        if context is not None:
            begun = (at, len(draft.owed), len(draft.answers) - 1)
            trace_input(self._state, draft, context, answer.agent, tag_of(body), begun, now_ns)
        draft.clients.append(client)
        draft.digests.append(digest)
        draft.grow(answer.agent, command_id, refused or "", client, bodies_bytes=len(answer.command) + len(digest))
        draft.hurry(0)
        if command_id:
            remembered = Remembered(answer.agent, command_id, now_ns, draft.position, refused)
            self._state.answers.put(remembered, client, digest)
            verdict = Accepted(draft.position) if refused is None else Refused(refused)
            draft.verdicts.append((asked, verdict))

    def _trace_of_refused(self, draft: Draft, address: str, command_id: str) -> TraceContext | None:
        """The trace that a refused or failed command begins; None if it is in one, or if it is not to."""
        if not self.traces_failures or draft.trace_id:
            return None
        return new_trace(address, command_id or f"{draft.position}.{len(draft.answers) + 1}")

    def fail(
        self,
        draft: Draft,
        address: str,
        body: bytes,
        source: str,
        error: Exception,
        now_ns: int,
        *,
        reached: bool = False,
        begins: TraceContext | None = None,
    ) -> None:
        """Keeps `InputFailed` and puts the input into the dead letters. Its answer `begins` a trace, if it has one.

        If it has `reached` a handler and that failed, supervision decides; such an agent exists from then on.
        """
        self.counters.failed += 1
        if reached and self._state.plan_at(address).engine is not None:
            self.columnar.ensure(draft, address, now_ns)
        failed = InputFailed(
            letter=f"{self._state.shard}.{draft.position}.{len(draft.events)}",
            to=printable(address, ADDRESS_CHARS_MAX),
            source=printable(source, SOURCE_CHARS_MAX),
            error=describe(error),
            input=keepable(body),
        )
        context = None
        if self.traces_failures and not draft.trace_id and source != "command":
            context = begins = new_trace(failed.letter, self._state.digest.hex())
        trace_id = draft.trace_id or (b"" if begins is None else begins.trace_id)
        name = tag_of(body).removesuffix("@1")
        self.on_failed(self._state.shard, failed, name, error if reached else None, trace_id)
        begun = (len(draft.events), len(draft.owed), len(draft.answers))
        self.keep(draft, address if reached else SHARD_ADDRESS, failed, now_ns)
        if context is not None:
            trace_input(self._state, draft, context, failed.to, tag_of(body), begun, now_ns)
        if not reached or address in self._state.stopped:
            return
        supervision = self._state.plan_at(address).supervision
        failures = self._state.failures.lately(address, now_ns, supervision.within_s)
        if failures >= supervision.stop_after:
            reason = f"{failures} failed inputs within {supervision.within_s:g} s, the last: {describe(error)}"
            self.keep(draft, address, AgentStopped(reason=reason), now_ns)
            draft.stopped.append(address)


def decode(agent_plan: AgentPlan, body: bytes) -> Message:
    """Decodes a message for an agent; raises Malformed or UnknownTag with a sentence that says why."""
    try:
        return agent_plan.decode(body)
    except UNDECODABLE as error:
        raise agent_plan.explain(body, error) from None
