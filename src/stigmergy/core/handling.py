"""Handles inputs for agents: decide, evolve, react, and the way back when any of them fails. Used by the shard's step.

Everything an input causes is first collected on the side and enters the draft only when all of it has succeeded, so
that there is nothing to undo but the agent's own state, of which an image is kept.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

import msgspec
from msgspec import Raw, Struct

from stigmergy.core.agent import Rejection
from stigmergy.core.codec import encode
from stigmergy.core.commit import Answer
from stigmergy.core.draft import DRAFT_BYTES_MAX, Draft
from stigmergy.core.effects import WindowClosed
from stigmergy.core.errors import Overloaded, PeerError, SequenceGap, StaleEpoch, StigmergyError, TooLarge
from stigmergy.core.inputs import ELSEWHERE, Accepted, Refused
from stigmergy.core.memory import Remembered
from stigmergy.core.messages import SECOND_NS, Command, Event, Message
from stigmergy.core.outcome import OVERHEAD_BYTES, Outcome, PackedEffect, collect, enter, owe, pack_effect, size_of
from stigmergy.core.plans import AgentPlan, Plan
from stigmergy.core.state import ShardState
from stigmergy.core.supervision import SHARD_ADDRESS, AgentStopped, InputFailed

_ADDRESS_IN_MEMORY = re.compile(r" at 0x[0-9a-fA-F]+")
ERROR_CHARS_MAX = 500
WINDOW_CLOSINGS_MAX = 1_000
"""Buckets of one window that one input may close; the rest waits for the next input."""


class Counters(Struct):
    """What became of inputs since the start; for metrics, not part of the state."""

    inputs: int = 0
    accepted: int = 0
    refused: int = 0
    failed: int = 0
    duplicates: int = 0
    gaps: int = 0
    stale_epochs: int = 0
    overloads: int = 0
    skipped: int = 0

    def count_untaken(self, error: StigmergyError) -> None:
        """Counts a delivery that was not taken."""
        match error:
            case SequenceGap():
                self.gaps += 1
            case StaleEpoch():
                self.stale_epochs += 1
            case _:
                self.overloads += 1


class Handling:
    """Turns inputs into what a draft keeps."""

    def __init__(self, state: ShardState, shards: int) -> None:
        self._state = state
        self._shards = shards
        self.counters = Counters()

    def take_items(self, draft: Draft, items: Sequence[tuple[str, Raw]], source: str, now_ns: int) -> int:
        """Takes messages of one source in order; returns how many, fewer than given only when the draft is full.

        This loop is where a fleet spends its time. A plain observed event (no `decide`, no window) is handled right
        here; everything else goes through `take`, which does the same with all its cases.
        """
        agents, plan_of, stopped = self._state.agents, self._state.plan_of, self._state.stopped
        events, touched = draft.events, draft.touched
        number = 0
        for address, body in items:
            number += 1
            agent = agents.get(address)
            if agent is None or (stopped and address in stopped):
                self.take(draft, address, body, source, now_ns)
                if draft.size_bytes > DRAFT_BYTES_MAX:
                    break
                continue
            agent_plan = plan_of[agent.__class__]
            try:
                message = agent_plan.decode(body)
            except (msgspec.DecodeError, RecursionError):
                self.take(draft, address, body, source, now_ns)
                continue
            plan = agent_plan.plans[message.__class__]
            if not plan.plain:
                self.take(draft, address, body, source, now_ns)
                if draft.size_bytes > DRAFT_BYTES_MAX:
                    break
                continue
            before = agent_plan.copy(agent)
            effects: list[PackedEffect] | None = None
            try:
                if plan.evolve is not None:
                    plan.evolve(agent, message)
                if plan.react is not None:
                    for effect in plan.react(agent, message):
                        packed = pack_effect(self._state, self._shards, effect, now_ns)
                        effects = [packed] if effects is None else [*effects, packed]
            except Exception as error:
                agents[address] = before
                self._fail(draft, address, body, source, error, now_ns)
                continue
            events.append((address, body))
            touched.setdefault(address, before)
            draft.note_plain(address, plan.wait_ns)
            if plan.watched:
                draft.fresh.append((address, message.__class__))
            if effects is not None:
                self._owe_all(draft, address, effects, now_ns)
        self.counters.inputs += number
        return number

    def take(self, draft: Draft, address: str, body: Raw, source: str, now_ns: int) -> None:
        """Takes one message, whatever it is, with every case."""
        if body is ELSEWHERE:
            return
        try:
            agent_plan = self._state.plan_at(address)
            message = decode(agent_plan, body)
        except PeerError as error:
            self._fail(draft, address, body, source, error, now_ns)
            return
        if isinstance(message, Command):
            self.take_command(draft, address, body, "", now_ns)
            return
        if address in self._state.stopped:
            stopped = PeerError(
                f"{address} is stopped: {self._state.stopped[address]}; resume it and retry this letter"
            )
            self._fail(draft, address, body, source, stopped, now_ns)
            return
        if agent_plan.plan_for(type(message)).watched:
            draft.fresh.append((address, type(message)))
        self._observe(draft, address, agent_plan, message, body, source, now_ns)
        if agent_plan.tumbling:
            self.close_windows(draft, address, now_ns, now_ns)

    def take_command(self, draft: Draft, address: str, body: Raw, command_id: str, now_ns: int) -> None:
        """Takes a command and answers it, also when its handler fails. Without an id the answer is not remembered."""
        at = len(draft.events)
        reason: str | None = None
        try:
            agent_plan = self._state.plan_at(address)
            message = decode(agent_plan, body)
            if not isinstance(message, Command):
                raise PeerError(f"{type(message).__name__} is an event, and only commands are answered; observe it")
            if address in self._state.stopped:
                reason = f"{address} is stopped: {self._state.stopped[address]}; resume it first"
            else:
                self._run(draft, address, agent_plan, message, body, now_ns)
        except Rejection as rejection:
            reason = rejection.reason
        except (PeerError, Overloaded) as error:
            reason = str(error)
        except Exception as error:
            reason = f"the handler failed: {describe(error)}; the command is in the dead letters"
            self._fail(draft, address, body, "command", error, now_ns)
            at = len(draft.events)
        self._answer(draft, Answer(address, command_id, body, reason, at, now_ns))

    def understands(self, address: str, body: Raw) -> bool:
        """Whether this agent has a handler for what came back from a sink; it may ignore confirmations."""
        agent_plan = self._state.plan_at(address)
        try:
            return agent_plan.handles(type(agent_plan.decode(body)))
        except msgspec.ValidationError:
            return not agent_plan.may_ignore(body)

    def close_windows(self, draft: Draft, address: str, reached_ns: int, now_ns: int) -> None:
        """Closes the buckets of tumbling windows that are complete; each closing is an event of the agent."""
        agents = self._state.agents
        if address not in agents:
            return
        agent_plan = self._state.plan_of[agents[address].__class__]
        for name in agent_plan.tumbling:
            for _ in range(WINDOW_CLOSINGS_MAX):
                window = getattr(agents[address], name)
                if not window.due(reached_ns):
                    break
                start_s, end_s = window.start_ns / SECOND_NS, (window.start_ns + window.span) / SECOND_NS
                closed = WindowClosed(window=name, start_s=start_s, end_s=end_s)
                self._observe(draft, address, agent_plan, closed, Raw(encode(closed)), "window", now_ns)
                if getattr(agents[address], name) is window:
                    break  # the handler failed, and the window stayed as it was

    def keep(self, draft: Draft, address: str, event: Event, now_ns: int) -> None:
        """Keeps an event of the framework. A handler of the agent for it may fail; the event stays a fact."""
        body = Raw(encode(event))
        self._state.note(address, event, now_ns)
        if address == SHARD_ADDRESS:
            draft.events.append((address, body))
            draft.size_bytes += size_of(body) + OVERHEAD_BYTES
            draft.hurry(0)
            return
        agent_plan = self._state.plan_at(address)
        agent = self._state.agents.get(address)
        image = None if agent is None else agent_plan.copy(agent)
        if agent is None:
            agent = self._state.new_agent(address, agent_plan)
        try:
            outcome = collect(self._state, self._shards, agent_plan, agent, [(event, body)], now_ns)
        except Exception:
            agent = self._state.new_agent(address, agent_plan) if image is None else agent_plan.copy(image)
            outcome = Outcome(events=[(agent_plan.plan_for(type(event)), event, body)], effects=[])
        enter(self._state, draft, address, agent, image, outcome, now_ns)

    def _observe(
        self, draft: Draft, address: str, agent_plan: AgentPlan, message: Message, body: Raw, source: str, now_ns: int
    ) -> None:
        try:
            self._run(draft, address, agent_plan, message, body, now_ns)
        except Rejection as rejection:
            refusal = TypeError(f"an observed event cannot be refused ({rejection.reason}); yield nothing to filter it")
            self._fail(draft, address, body, source, refusal, now_ns)
        except Exception as error:
            self._fail(draft, address, body, source, error, now_ns)

    def _run(self, draft: Draft, address: str, agent_plan: AgentPlan, message: Message, body: Raw, now_ns: int) -> None:
        """Decides, evolves and reacts. Raises with the agent as it was before."""
        if agent_plan.tumbling and type(message) is not WindowClosed:
            self.close_windows(draft, address, now_ns, now_ns)
        agents = self._state.agents
        agent = agents.get(address)
        image = None if agent is None else agent_plan.copy(agent)
        if agent is None:
            self._check_room(address)
            agent = self._state.new_agent(address, agent_plan)
        plan = agent_plan.plan_for(type(message))
        try:
            decided = [(message, body)] if plan.decide is None else self._decided(plan, agent, message, body)
            outcome = collect(self._state, self._shards, agent_plan, agent, decided, now_ns)
        except Exception:
            if image is not None:
                agents[address] = image
            raise
        enter(self._state, draft, address, agent, image, outcome, now_ns)

    def _decided(self, plan: Plan, agent: Any, message: Message, body: Raw) -> list[tuple[Any, Raw]]:
        """The events of one `decide`, all collected before any of them changes the state."""
        decided: list[tuple[Any, Raw]] = []
        limit = self._state.limits.events_per_decision_max
        events = plan.decide(agent, message) if plan.decide is not None else None
        for event in events or ():
            if not isinstance(event, Event):
                raise TypeError(f"a @decide handler yields events; {type(event).__name__} is none")
            # An observed event that is passed on keeps the bytes it came with, unknown fields included.
            decided.append((event, body if event is message else Raw(encode(event))))
            if len(decided) > limit:
                raise TooLarge(f"more than {limit} events from one decision; decide in smaller steps")
        return decided

    def _owe_all(self, draft: Draft, address: str, effects: list[PackedEffect], now_ns: int) -> None:
        cause = len(draft.events) - 1
        for packed in effects:
            owe(self._state, draft, address, packed, cause, now_ns)
            draft.size_bytes += size_of(packed[1]) + OVERHEAD_BYTES

    def _answer(self, draft: Draft, answer: Answer) -> None:
        """Records the answer. Refusals too: a command sent again gets the same one."""
        if answer.refused is None:
            self.counters.accepted += 1
        else:
            self.counters.refused += 1
        draft.answers.append(answer)
        draft.size_bytes += size_of(answer.command) + OVERHEAD_BYTES
        draft.hurry(0)
        if answer.command_id:
            self._state.answers.put(Remembered(answer.command_id, answer.time_ns, draft.position, answer.refused))
            verdict = Accepted(draft.position) if answer.refused is None else Refused(answer.refused)
            draft.verdicts.append((answer.command_id, verdict))

    def _fail(self, draft: Draft, address: str, body: Raw, source: str, error: Exception, now_ns: int) -> None:
        """Keeps `InputFailed`, puts the input into the dead letters, and lets supervision decide."""
        self.counters.failed += 1
        known = address.partition("/")[0] in self._state.plans and self._is_address(address)
        where = address if known and address in self._state.agents else SHARD_ADDRESS
        letter = f"{self._state.shard}.{draft.position}.{len(draft.events)}"
        failed = InputFailed(letter=letter, to=address[:200], source=source, error=describe(error), input=body)
        self.keep(draft, where, failed, now_ns)
        if where == SHARD_ADDRESS or address in self._state.stopped:
            return
        supervision = self._state.plan_at(address).supervision
        failures = self._state.failures.lately(address, now_ns, supervision.within_s)
        if failures >= supervision.stop_after:
            reason = f"{failures} failed inputs within {supervision.within_s:g} s, the last: {describe(error)}"
            self.keep(draft, address, AgentStopped(reason=reason), now_ns)
            draft.stopped.append(address)

    def _is_address(self, address: str) -> bool:
        try:
            self._state.plan_at(address)
        except PeerError:
            return False
        return True

    def _check_room(self, address: str) -> None:
        limit = self._state.limits.agents_count_max
        if len(self._state.agents) >= limit:
            raise Overloaded(f"{address}: this shard has {limit} agents already; raise agents_count_max or add shards")


def decode(agent_plan: AgentPlan, body: Raw) -> Message:
    """Decodes a message for an agent; raises Malformed or UnknownTag with a sentence that says why."""
    try:
        return agent_plan.decode(body)
    except (msgspec.DecodeError, RecursionError) as error:
        raise agent_plan.explain(body, error) from None


def describe(error: Exception) -> str:
    """An error as text that is the same in every run: no addresses, no traceback, bounded."""
    text = _ADDRESS_IN_MEMORY.sub("", f"{type(error).__name__}: {error}")
    return text[:ERROR_CHARS_MAX]
